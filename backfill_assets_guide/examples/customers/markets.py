"""Revenue by market: a table by day that reads a static reference table of countries."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, Unpartitioned, conserves_total, table
from backfill_assets_guide.examples.customers.orders import fact_orders_enriched


class MarketRevenue(pa.DataFrameModel):
    """Orders of a day by the market of the customer's country."""

    run_date: T.DateType = Field(description="The day.")
    market: T.StringType = Field(description="The market, or `unknown`.")
    orders: T.LongType = Field(ge=1, description="Number of orders.")
    revenue: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")  # type: ignore[valid-type]


@table(
    MarketRevenue,
    partition="run_date",
    key=["market"],
    totals=["orders", "revenue"],
    group="customers",
    checks=[
        conserves_total("orders", None, "orders"),
        conserves_total("orders", "amount", "revenue"),
    ],
)
def revenue_by_market(
    orders: Annotated[DataFrame, Reads(fact_orders_enriched)],
    countries: Annotated[DataFrame, Unpartitioned("countries")],
) -> DataFrame:
    """Orders and revenue of each day and market."""
    market = F.coalesce("market", F.lit("unknown")).alias("market")
    known = orders.join(F.broadcast(countries), "country", "left")
    return known.groupBy(F.col("for_day").alias("run_date"), market).agg(
        F.count(F.lit(1)).alias("orders"), F.sum("amount").cast("decimal(28,2)").alias("revenue")
    )
