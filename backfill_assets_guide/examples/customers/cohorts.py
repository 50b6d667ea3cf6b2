"""What the customers who first ordered on a day are worth thirty days later: value by cohort."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, following_days, table
from backfill_assets_guide.examples.customers.lifetime_value import customer_lifetime_value

#: A cohort is looked at so many days after its first order.
DAYS = 30


class CohortValue(pa.DataFrameModel):
    """A customer of a cohort: what they have ordered in the thirty days since they came."""

    first_order: T.DateType = Field(description="The day of the first order.")
    customer_id: T.StringType = Field(description="Customer.")
    orders: T.LongType = Field(ge=1, description="Orders up to `through`.")
    revenue: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")  # type: ignore[valid-type]
    through: T.DateType = Field(
        description="Thirty days after the first order, or the last of these days that is there."
    )


@table(
    CohortValue,
    partition="first_order",
    key=["customer_id"],
    totals=["orders", "revenue"],
    counts={"open values": f"through < date_add(first_order, {DAYS})"},
    group="customers",
)
def cohort_value_30d(
    values: Annotated[DataFrame, Reads(customer_lifetime_value, following_days(DAYS))],
) -> DataFrame:
    """The newest lifetime value of each customer of a cohort."""
    newest = values.groupBy("for_day").agg(F.max("run_date").alias("run_date"))
    return (
        values.where("first_order = for_day AND customer_id <> 'unknown'")
        .join(F.broadcast(newest), ["for_day", "run_date"])
        .select(
            "first_order", "customer_id", "orders", "revenue", F.col("run_date").alias("through")
        )
    )
