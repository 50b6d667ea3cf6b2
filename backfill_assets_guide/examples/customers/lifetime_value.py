"""What each customer has ordered so far, day by day: a table that carries state."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import PREVIOUS_DAY, SELF, Reads, conserves_total, table
from backfill_assets.orders.tables import CURRENT

_SUMS = ["orders", "revenue"]


class LifetimeValue(pa.DataFrameModel):
    """What each customer has ordered up to a day, as it is known now."""

    run_date: T.DateType = Field(description="The day, at its end.")
    customer_id: T.StringType = Field(description="Customer, or `unknown`.")
    first_order: T.DateType = Field(description="The day of the first order.")
    orders: T.LongType = Field(ge=1, description="Orders so far.")
    revenue: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")  # type: ignore[valid-type]
    days_since_last: T.IntegerType = Field(ge=0, description="Days since the last order's day.")


@table(
    LifetimeValue,
    partition="run_date",
    key=["customer_id"],
    totals=_SUMS,
    counts={"new customers": "first_order = run_date"},
    group="customers",
    checks=[
        conserves_total(source, sum_, sum_) for source in ("before", "orders") for sum_ in _SUMS
    ],
)
def customer_lifetime_value(
    orders: Annotated[DataFrame, Reads(CURRENT)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame:
    """Customers as they were the day before, and the orders since."""
    known = before.withColumn("last_order", F.date_sub("run_date", F.col("days_since_last")))
    new = orders.withColumns({"first_order": F.col("run_date"), "last_order": F.col("run_date")})
    columns = ["for_day", "customer_id", "first_order", "last_order", *_SUMS]
    return (
        known.select(columns)
        .unionByName(new.select(columns))
        .groupBy(F.col("for_day").alias("run_date"), "customer_id")
        .agg(
            F.min("first_order").alias("first_order"),
            F.sum("orders").alias("orders"),
            F.sum("revenue").cast("decimal(28,2)").alias("revenue"),
            F.date_diff("run_date", F.max("last_order")).alias("days_since_last"),
        )
    )
