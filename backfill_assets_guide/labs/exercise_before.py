"""The tables of the exercises: a feature of seven days that is wrong, and a sample for training."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, last_days, table
from backfill_assets.orders.tables import ORDERS, STAGED

#: Of the sample for training. Another seed draws other customers.
SEED = 7


class WeekFeatures(pa.DataFrameModel):
    """Orders of each customer in the seven days up to a day."""

    run_date: T.DateType = Field(description="The last of the seven days.")
    customer_id: T.StringType = Field(description="Customer, or `unknown`.")
    orders_7d: T.LongType = Field(ge=1, description="Orders of the seven days.")
    revenue_7d: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")  # type: ignore[valid-type]


def sum_week(orders: DataFrame, amount: str) -> DataFrame:
    """The rows of the features, by the expression that a customer's revenue is the sum of."""
    customer = F.coalesce("customer_id", F.lit("unknown")).alias("customer_id")
    return orders.groupBy(F.col("for_day").alias("run_date"), customer).agg(
        F.count("*").alias("orders_7d"),
        F.sum(F.expr(amount)).cast("decimal(28,2)").alias("revenue_7d"),
    )


def draw_fifth(features: DataFrame) -> DataFrame:
    """A fifth of the customers of each day, the same ones whenever it is drawn."""
    drawn = f"pmod(xxhash64(run_date, customer_id, {SEED}), 100) < 20"
    return features.where(drawn).drop("for_day")


@table(
    WeekFeatures,
    partition="run_date",
    key=["customer_id"],
    totals=["orders_7d", "revenue_7d"],
    drift={"revenue_7d": 0.25},
)
def features_7d(orders: Annotated[DataFrame, Reads(STAGED, last_days(7))]) -> DataFrame:
    """Wrong: a refund has a negative amount, and is counted as revenue."""
    return sum_week(orders, "abs(amount)")


@table(
    WeekFeatures,
    partition="run_date",
    key=["customer_id"],
    totals=["orders_7d", "revenue_7d"],
    drift={"revenue_7d": 0.25},
)
def training_sample(features: Annotated[DataFrame, Reads(features_7d)]) -> DataFrame:
    """A sample of the features."""
    return draw_fifth(features)


TABLES = [*ORDERS, features_7d, training_sample]
