"""The chain of `lived_tables_fourth`, whose `activity` has a `remark` again."""

from __future__ import annotations

from typing import Annotated, ClassVar

import pyspark.sql.types as T
from pyspark.sql import DataFrame

from backfill_assets import PREVIOUS_DAY, SELF, STAGED, Reads, last_days, nullable, table
from backfill_assets_tests.lived_tables import (
    SOURCES,
    VISITS,
    Balance,
    Peak,
    added_up,
    counted,
    highest,
    noted,
)
from backfill_assets_tests.lived_tables_after import POINTS
from backfill_assets_tests.lived_tables_fourth import Plain


class Remarked(Plain):
    """The score of each customer on a day."""

    remark: T.StringType = nullable(1.0, 1.0, "Another note.")

    class Config(Plain.Config):
        """One row for each day and customer."""

        metadata: ClassVar = {**Plain.Config.metadata, "schema_version": 4}


@table(Remarked)
def activity(
    orders: Annotated[DataFrame, Reads(STAGED)], visits: Annotated[DataFrame, Reads(VISITS.staged)]
) -> DataFrame:
    return counted(orders, visits, POINTS, remark=noted("again "))


@table(Peak)
def peaks(activity: Annotated[DataFrame, Reads(activity, last_days(3))]) -> DataFrame:
    return highest(activity)


@table(Balance)
def balances(
    activity: Annotated[DataFrame, Reads(activity)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame:
    return added_up(before, activity)


TABLES = [*SOURCES, activity, peaks, balances]
