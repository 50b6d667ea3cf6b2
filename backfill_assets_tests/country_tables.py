"""A table of the orders that reads a table of customers without days, which others keep."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, Unpartitioned, conserves_total, table
from backfill_assets.orders.tables import STAGED


class CountrySpend(pa.DataFrameModel):
    """What the customers of each country spent on a day."""

    run_date: T.DateType
    country: T.StringType
    orders: T.LongType = Field(ge=1)
    spend: T.DecimalType(28, 2)  # type: ignore[valid-type]


@table(
    CountrySpend,
    partition="run_date",
    key=["country"],
    totals=["orders", "spend"],
    checks=[
        conserves_total("orders", None, "orders"),
        conserves_total("orders", "amount", "spend"),
    ],
)
def country_spend(
    orders: Annotated[DataFrame, Reads(STAGED)],
    customers: Annotated[DataFrame, Unpartitioned("customers")],
) -> DataFrame:
    return (
        orders.join(customers, "customer_id", "left")
        .groupBy(
            F.col("for_day").alias("run_date"),
            F.coalesce("country", F.lit("unknown")).alias("country"),
        )
        .agg(F.count("*").alias("orders"), F.sum("amount").cast("decimal(28,2)").alias("spend"))
    )
