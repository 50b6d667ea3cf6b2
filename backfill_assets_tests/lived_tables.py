"""A chain of three tables over two sources, for histories of all that a deployment can do.

`activity` is made of a day of both sources, `peaks` of three days of it, `balances` of all days so
far. Customer `c` is not known: its part of the key is null. See `lived_tables_after` for another
definition.
"""

from __future__ import annotations

import random
import struct
from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets import PREVIOUS_DAY, SELF, Reads, Source, last_days, nullable_column, table
from backfill_assets.orders.tables import ORDER_LINES, STAGED

#: So much an order counts in `activity`.
POINTS = 1
#: The shares of scores: what is odd about DOUBLE, and random bits.
SHARES = (
    float("nan"),
    -0.0,
    float("inf"),
    1e308,
    -5e-324,
    *(struct.unpack("<d", random.Random(seed).randbytes(8))[0] for seed in range(7)),
)


class VisitLine(pa.DataFrameModel):
    """A version of a visit."""

    visit_id: T.StringType = Field(description="Names the visit.")
    user_id: T.StringType = Field(description="Who visited.")
    began_at: T.TimestampType = Field(description="When it began.")
    sent_at: T.TimestampType = Field(description="When this version was sent.")


VISITS = Source(
    "visits", VisitLine, key=["visit_id"], event_time="began_at", version_time="sent_at"
)
SOURCES = [*ORDER_LINES.tables, *VISITS.tables]


class Activity(pa.DataFrameModel):
    """The score of each customer on a day."""

    run_date: T.DateType = Field(description="The day.")
    customer_id: T.StringType = nullable_column(1.0, 1.0, "The customer.")
    score: T.LongType = Field(description="Orders and visits.")
    share: T.DoubleType = nullable_column(1.0, 1.0, "The share of the score.")
    note: T.StringType = nullable_column(1.0, 1.0, "A note.")


class Peak(pa.DataFrameModel):
    """The best score of each customer in three days."""

    run_date: T.DateType = Field(description="The last of the days.")
    customer_id: T.StringType = nullable_column(1.0, 1.0, "The customer.")
    score: T.LongType = Field(description="The best score.")


class Balance(Peak):
    """The scores of each customer on all days so far."""

    run_date: T.DateType = Field(description="The last of the days.")
    score: T.LongType = Field(description="The sum.")


def counted(orders: DataFrame, visits: DataFrame, points: int, **columns: Column) -> DataFrame:
    """The score of each customer on each day: so many points for an order, one for a visit.

    `columns` are computed of these.
    """
    by_order = orders.select("for_day", "customer_id", F.lit(points).alias("points"))
    by_visit = visits.select(
        "for_day", F.col("user_id").alias("customer_id"), F.lit(1).alias("points")
    )
    keys = [F.col("for_day").alias("run_date"), F.expr("nullif(customer_id, 'c') AS customer_id")]
    scores = by_order.unionByName(by_visit).groupBy(*keys).agg(F.sum("points").alias("score"))
    share = F.array(*map(F.lit, SHARES))[F.pmod("score", F.lit(len(SHARES))).cast("int")]
    return scores.withColumns({"share": share, **columns})


def noted(text: str) -> Column:
    """A note about the customer."""
    return F.concat(F.lit(text), "customer_id")


def highest(activity: DataFrame) -> DataFrame:
    """The best score of each customer."""
    keys = [F.col("for_day").alias("run_date"), "customer_id"]
    return activity.groupBy(*keys).agg(F.max("score").alias("score"))


def added_up(before: DataFrame, activity: DataFrame) -> DataFrame:
    """What there was, and what came since."""
    columns = ["for_day", "customer_id", "score"]
    rows = before.select(columns).unionByName(activity.select(columns))
    keys = [F.col("for_day").alias("run_date"), "customer_id"]
    return rows.groupBy(*keys).agg(F.sum("score").alias("score"))


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
