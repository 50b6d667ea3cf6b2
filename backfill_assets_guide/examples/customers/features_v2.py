"""The features again, by another definition of engagement: the second version of the table."""

from __future__ import annotations

from typing import Annotated

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import RAW, Reads, last_days, version_of
from backfill_assets_guide.examples.customers.features import features


@version_of(features, 2)
def features_v2(
    orders: Annotated[DataFrame, Reads(RAW, last_days(30), as_known=True)],
) -> DataFrame:
    """The same, with the days of the last week that had an order as the engagement."""
    user = F.coalesce("customer_id", F.lit("unknown")).alias("user_id")
    of_the_week = orders.where(F.col("event_date") > F.date_sub("for_day", 7))
    days = of_the_week.groupBy(F.col("for_day").alias("event_date"), user).agg(
        F.count_distinct("event_date").alias("days")
    )
    score = (F.coalesce("days", F.lit(0)) * 100 / 7).cast("decimal(5,2)")
    before = features(orders)
    return before.join(days, ["event_date", "user_id"], "left").select(
        *(name for name in before.columns if name != "engagement_score"),
        score.alias("engagement_score"),
    )
