"""The chain of `lived_tables_after`, with `activity` in the next version of its schema."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame

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
    noted,
)
from backfill_assets_tests.lived_tables_after import POINTS

_OPTIONAL = {"null_warn": 1.0, "null_error": 1.0, "renamed_from": "note"}


class Remarked(pa.DataFrameModel):
    """The score of each customer on a day."""

    run_date: T.DateType = Field(description="The day.")
    customer_id: T.StringType = nullable_column(1.0, 1.0, "The customer.")
    score: T.LongType = Field(description="Orders and visits.")
    share: T.DoubleType = nullable_column(1.0, 1.0, "The share of the score.")
    remark: T.StringType = Field(nullable=True, description="A note.", metadata=_OPTIONAL)


@table(
    Remarked,
    partition="run_date",
    key=["customer_id"],
    totals=["score"],
    merge=True,
    schema_version=2,
)
def activity(
    orders: Annotated[DataFrame, Reads(STAGED)], visits: Annotated[DataFrame, Reads(VISITS.staged)]
) -> DataFrame:
    return counted(orders, visits, POINTS, remark=noted("note of "))


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
