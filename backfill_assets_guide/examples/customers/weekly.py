"""Orders by week and segment: a table with a partition a week, made of one by day."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import WEEK, Reads, conserves_total, table
from backfill_assets_guide.examples.customers.orders import fact_orders_enriched


class WeeklyOrders(pa.DataFrameModel):
    """Orders of a week, Monday to Sunday, by the customer's segment at their time."""

    week: T.DateType = Field(description="The Monday of the week.")
    segment: T.StringType = Field(description="The segment, or `unknown`.")
    orders: T.LongType = Field(ge=1, description="Orders of the week.")
    revenue: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")  # type: ignore[valid-type]


@table(
    WeeklyOrders,
    partition="week",
    key=["segment"],
    totals=["orders", "revenue"],
    group="customers",
    checks=[
        conserves_total("orders", None, "orders"),
        conserves_total("orders", "amount", "revenue"),
    ],
)
def orders_weekly(
    orders: Annotated[DataFrame, Reads(fact_orders_enriched, WEEK)],
) -> DataFrame:
    """Orders and revenue of each week and segment."""
    segment = F.coalesce("segment", F.lit("unknown")).alias("segment")
    return orders.groupBy(F.col("for_day").alias("week"), segment).agg(
        F.count(F.lit(1)).alias("orders"), F.sum("amount").cast("decimal(28,2)").alias("revenue")
    )
