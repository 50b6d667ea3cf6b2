"""The features again, by another definition of engagement: the second version of the table."""

from __future__ import annotations

from typing import Annotated

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import PartialAggregate, Reads, combine_days, last_days, version_of
from backfill_assets.orders.tables import RAW
from backfill_assets_guide.examples.customers.features import features


@version_of(features, 2)
def features_v2(
    orders: Annotated[DataFrame, Reads(RAW, last_days(30), as_known=True, each_row_once=True)],
) -> DataFrame:
    """The same, with the days of the last week that had an order as the engagement."""
    users = orders.withColumn("user_id", F.coalesce("customer_id", F.lit("unknown")))
    of_the_week = F.col("event_date") > F.date_sub("for_day", 7)
    days = combine_days(
        users,
        "user_id",
        keep=["event_date"],
        order_days=PartialAggregate.values("event_date", where=of_the_week),
    ).withColumnRenamed("for_day", "event_date")
    score = (F.size("order_days") * 100 / 7).cast("decimal(5,2)")
    before = features(orders)
    return before.join(days, ["event_date", "user_id"]).select(
        *(name for name in before.columns if name != "engagement_score"),
        score.alias("engagement_score"),
    )
