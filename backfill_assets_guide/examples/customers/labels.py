"""Labels: whether a user who ordered on a day came back in the thirty days after it."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import PublishedDays, Reads, following_days, table
from backfill_assets.orders.tables import FACT

#: So many days after a day decide whether a user has churned.
DAYS = 30


class Labels(pa.DataFrameModel):
    """Whether each user who ordered on a day came back, as far as that is known."""

    dt: T.DateType = Field(description="The day of the order.")
    user_id: T.StringType = Field(description="Customer.")
    churned_30d: T.BooleanType = Field(description="No order of the thirty days after is there.")
    label_state: T.StringType = Field(description="`final` once all of them are there, or `open`.")
    label_from: T.DateType = Field(description="The first day that the label is made of.")
    label_through: T.DateType = Field(description="The last of the days after that is published.")


@table(
    Labels,
    partition="dt",
    key=["user_id"],
    rules={"nothing_of_before": ("label_from > dt", "The label begins after the day.")},
    counts={
        "open labels": "label_state = 'open'",
        "final labels": "label_state = 'final'",
        "churned": "churned_30d",
    },
    group="training",
)
def labels_daily(
    orders: Annotated[DataFrame, Reads(FACT, following_days(DAYS))],
    published: Annotated[DataFrame, PublishedDays(FACT, following_days(DAYS))],
) -> DataFrame:
    """The labels of the users that ordered on a day."""
    user = ["for_day", "customer_id"]
    ordered = orders.where("run_date = for_day AND customer_id <> 'unknown'").select(*user)
    back = orders.where("run_date > for_day").groupBy(*user).agg(F.min("run_date").alias("back"))
    after = F.when(F.col("day") > F.col("for_day"), F.col("day"))
    known = published.groupBy("for_day").agg(
        F.count(after).alias("days"), F.min(after).alias("first"), F.max(after).alias("last")
    )
    rows = ordered.join(back, user, "left").join(known, "for_day")
    return rows.select(
        F.col("for_day").alias("dt"),
        F.col("customer_id").alias("user_id"),
        F.col("back").isNull().alias("churned_30d"),
        F.when(F.col("days") == DAYS, "final").otherwise("open").alias("label_state"),
        F.coalesce(F.least("back", "first"), F.date_add("for_day", 1)).alias("label_from"),
        F.coalesce("last", "for_day").alias("label_through"),
    )
