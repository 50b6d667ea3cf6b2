"""The chain of `lived_tables_after`, with `activity` in the next version of its schema."""

from __future__ import annotations

from typing import Annotated, ClassVar

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame

from backfill_assets import PREVIOUS_DAY, SELF, STAGED, Reads, last_days, nullable, table
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
from backfill_assets_tests.lived_tables_after import POINTS

_OPTIONAL = {"null_warn": 1.0, "null_error": 1.0, "renamed_from": "note"}


class Remarked(pa.DataFrameModel):
    """The score of each customer on a day."""

    run_date: T.DateType = Field(description="The day.")
    customer_id: T.StringType = nullable(1.0, 1.0, "The customer.")
    score: T.LongType = Field(description="Orders and visits.")
    share: T.DoubleType = nullable(1.0, 1.0, "The share of the score.")
    remark: T.StringType = Field(nullable=True, description="A note.", metadata=_OPTIONAL)

    class Config:
        """One row for each day and customer."""

        strict = True
        metadata: ClassVar = {**Activity.Config.metadata, "schema_version": 2}


@table(Remarked)
def activity(
    orders: Annotated[DataFrame, Reads(STAGED)], visits: Annotated[DataFrame, Reads(VISITS.staged)]
) -> DataFrame:
    return counted(orders, visits, POINTS, remark=noted("note of "))


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
