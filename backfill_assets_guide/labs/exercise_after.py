"""The tables of the exercises with the feature as it should be."""

from __future__ import annotations

from typing import Annotated

from pyspark.sql import DataFrame

from backfill_assets import Reads, last_days, table
from backfill_assets.orders.tables import ORDERS, STAGED
from backfill_assets_guide.labs.exercise_before import WeekFeatures, draw_fifth, sum_week


@table(
    WeekFeatures,
    partition="run_date",
    key=["customer_id"],
    totals=["orders_7d", "revenue_7d"],
    drift={"revenue_7d": 0.25},
)
def features_7d(orders: Annotated[DataFrame, Reads(STAGED, last_days(7))]) -> DataFrame:
    """A refund lessens the revenue."""
    return sum_week(orders, "amount")


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
