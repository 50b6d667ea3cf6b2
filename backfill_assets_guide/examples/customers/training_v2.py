"""The training set of the second version of the features."""

from __future__ import annotations

from typing import Annotated

from pyspark.sql import DataFrame

from backfill_assets import Reads, version_of
from backfill_assets_guide.examples.customers.features_v2 import features_v2
from backfill_assets_guide.examples.customers.labels import labels_daily
from backfill_assets_guide.examples.customers.training import training_daily


@version_of(training_daily, 2)
def training_daily_v2(
    known: Annotated[DataFrame, Reads(features_v2)],
    outcome: Annotated[DataFrame, Reads(labels_daily)],
) -> DataFrame:
    """What can be learned from these features, as `training_daily` joins them."""
    return training_daily(known, outcome)
