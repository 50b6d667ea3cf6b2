"""Features of each user on each day: what was known of the orders of thirty days, on that day."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import (
    PartialAggregate,
    Reads,
    combine_days,
    conserves_total,
    last_days,
    nullable_column,
    table,
)
from backfill_assets.orders.tables import RAW


class Features(pa.DataFrameModel):
    """What was known on a day of each user with an order in the thirty days up to it."""

    event_date: T.DateType = Field(description="The last of the thirty days.")
    user_id: T.StringType = Field(description="Customer, or `unknown`.")
    orders_7d: T.LongType = Field(ge=0, description="Orders of the last seven days.")
    orders_30d: T.LongType = Field(ge=1, description="Orders of the thirty days.")
    revenue_30d: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")  # type: ignore[valid-type]
    features_through: T.DateType = Field(description="Log day of the newest line in the row.")
    # Null on days that were made before it was added.
    engagement_score: T.DecimalType(5, 2) = nullable_column(  # type: ignore[valid-type]
        1.0, 1.0, "Days with an order, in percent."
    )


_CHECKS = [
    conserves_total("orders", None, "orders_30d"),
    conserves_total("orders", "amount", "revenue_30d"),
]


@table(
    Features,
    partition="event_date",
    key=["user_id"],
    totals=["orders_30d", "revenue_30d"],
    rules={"nothing_of_later": ("features_through <= event_date", "As known that day.")},
    drift={"orders_7d": 0.25, "revenue_30d": 0.25},
    merge=True,
    checks=_CHECKS,
    group="training",
)
def features(
    orders: Annotated[DataFrame, Reads(RAW, last_days(30), as_known=True, each_row_once=True)],
) -> DataFrame:
    """The features of each user, without an order or a version that was logged later."""
    users = orders.withColumn("user_id", F.coalesce("customer_id", F.lit("unknown")))
    known = combine_days(
        users,
        "user_id",
        keep=["event_date"],
        orders_7d=PartialAggregate.count(where=F.col("event_date") > F.date_sub("for_day", 7)),
        orders_30d=PartialAggregate.count(),
        revenue_30d=PartialAggregate.sum("amount"),
        features_through=PartialAggregate.max("log_date"),
        order_days=PartialAggregate.values("event_date"),
    )
    score = (F.size("order_days") * 100 / F.lit(30)).cast("decimal(5,2)")
    rows = known.withColumn("engagement_score", score).drop("order_days")
    return rows.withColumnRenamed("for_day", "event_date")
