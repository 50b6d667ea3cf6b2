"""The chain of `lived_tables_fourth`, whose `activity` has a `remark` again that is a number."""

from __future__ import annotations

from typing import Annotated

import pyspark.sql.types as T
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import PREVIOUS_DAY, SELF, Reads, last_days, nullable_column, table
from backfill_assets.orders.tables import STAGED
from backfill_assets_tests.lived_tables import (
    SOURCES,
    VISITS,
    Balance,
    Peak,
    added_up,
    counted,
    highest,
)
from backfill_assets_tests.lived_tables_after import POINTS
from backfill_assets_tests.lived_tables_fourth import Plain


class Remarked(Plain):
    """The score of each customer on a day."""

    remark: T.LongType = nullable_column(1.0, 1.0, "The score.")


@table(
    Remarked,
    partition="run_date",
    key=["customer_id"],
    totals=["score"],
    merge=True,
    schema_version=4,
)
def activity(
    orders: Annotated[DataFrame, Reads(STAGED)], visits: Annotated[DataFrame, Reads(VISITS.staged)]
) -> DataFrame:
    return counted(orders, visits, POINTS, remark=F.col("score"))


@table(Peak, partition="run_date", key=["customer_id"], totals=["score"])
def peaks(activity: Annotated[DataFrame, Reads(activity, last_days(3))]) -> DataFrame:
    return highest(activity)


@table(Balance, partition="run_date", key=["customer_id"], totals=["score"])
def balances(
    activity: Annotated[DataFrame, Reads(activity)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame:
    return added_up(before, activity)


TABLES = [*SOURCES, activity, peaks, balances]
