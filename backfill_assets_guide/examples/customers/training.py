"""The training set: features as they were known on a day, with the label that came later."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, nullable_column, table
from backfill_assets_guide.examples.customers.features import features
from backfill_assets_guide.examples.customers.labels import labels_daily


class Training(pa.DataFrameModel):
    """A user who ordered on a day: what was known of them then, and what came of it."""

    dt: T.DateType = Field(description="The day of the order.")
    user_id: T.StringType = Field(description="Customer.")
    orders_7d: T.LongType = Field(ge=0, description="Orders of the last seven days, as known then.")
    orders_30d: T.LongType = Field(ge=1, description="Orders of thirty days, as known then.")
    revenue_30d: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")  # type: ignore[valid-type]
    engagement_score: T.DecimalType(5, 2) = nullable_column(1.0, 1.0, "As in `features`.")  # type: ignore[valid-type]
    churned_30d: T.BooleanType = Field(description="The label: whether the user did not come back.")
    features_through: T.DateType = Field(description="The newest log day in the features.")
    label_from: T.DateType = Field(description="The first day in the label.")


@table(
    Training,
    partition="dt",
    key=["user_id"],
    totals=["orders_30d", "revenue_30d"],
    rules={
        "features_end_with_the_day": (
            "features_through <= dt",
            "Nothing in the features became known after the day.",
        ),
        "labels_begin_after_the_day": (
            "label_from > dt",
            "Nothing in the label is of the day or before it.",
        ),
    },
    group="training",
)
def training_daily(
    known: Annotated[DataFrame, Reads(features)],
    outcome: Annotated[DataFrame, Reads(labels_daily)],
) -> DataFrame:
    """What can be learned from: an open label would be one of those that came back early."""
    final = outcome.where("label_state = 'final'")
    columns = [name for name in Training.to_schema().columns if name != "dt"]
    return known.join(final.drop("dt"), ["for_day", "user_id"]).select(
        F.col("for_day").alias("dt"), *columns
    )
