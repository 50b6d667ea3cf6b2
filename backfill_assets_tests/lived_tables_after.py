"""The chain of `lived_tables` where an order counts ten times."""

from __future__ import annotations

from typing import Annotated

from pyspark.sql import DataFrame

from backfill_assets import PREVIOUS_DAY, SELF, Reads, last_days, table
from backfill_assets.orders.tables import STAGED
from backfill_assets_tests.lived_tables import (
    SOURCES,
    VISITS,
    Activity,
    Balance,
    Peak,
    added_up,
    counted,
    highest,
    noted,
)

#: So much an order counts in `activity`.
POINTS = 10


@table(Activity, partition="run_date", key=["customer_id"], totals=["score"], merge=True)
def activity(
    orders: Annotated[DataFrame, Reads(STAGED)], visits: Annotated[DataFrame, Reads(VISITS.staged)]
) -> DataFrame:
    return counted(orders, visits, POINTS, note=noted("note of "))


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
