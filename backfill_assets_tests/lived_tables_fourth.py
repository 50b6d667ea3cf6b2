"""The chain of `lived_tables_third`, whose `activity` has dropped `remark`."""

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
)
from backfill_assets_tests.lived_tables_after import POINTS


class Plain(pa.DataFrameModel):
    """The score of each customer on a day."""

    run_date: T.DateType = Field(description="The day.")
    customer_id: T.StringType = nullable_column(1.0, 1.0, "The customer.")
    score: T.LongType = Field(description="Orders and visits.")
    share: T.DoubleType = nullable_column(1.0, 1.0, "The share of the score.")


@table(
    Plain, partition="run_date", key=["customer_id"], totals=["score"], merge=True, schema_version=3
)
def activity(
    orders: Annotated[DataFrame, Reads(STAGED)], visits: Annotated[DataFrame, Reads(VISITS.staged)]
) -> DataFrame:
    return counted(orders, visits, POINTS)


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
