"""Skew: how many rows of a day one key has, as numbers for plans, for the UI and for the record."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.tables.skews import most_rows_of, skews_of
from backfill_assets.tables.table import Table


def most_rows(frame: DataFrame, table: Table, days: Iterable[date]) -> dict[date, dict[str, int]]:
    """By day, the rows of the most frequent value of each column that is watched.

    In one Spark query. Nulls are no value: the audit counts them. A day without rows has none.

    Args:
        frame: the rows.
        table: which columns are watched, see `tables.skews`.
        days: the days that are made.
    """
    watched = skews_of(table)
    if not watched:
        return {}
    # As hashes: columns of several types are counted at once, and 8 bytes of a key are shuffled.
    cells = [
        F.when(
            F.col(name).isNotNull(),
            F.struct(F.lit(name).alias("name"), F.xxhash64(name).alias("key")),
        )
        for name in watched
    ]
    keys = frame.select(F.col(table.partition).alias("_day"), F.explode(F.array(*cells)).alias("c"))
    counts = keys.where("c is not null").groupBy("_day", "c.name", "c.key").count()
    most = counts.groupBy("_day", "name").agg(F.max("count")).collect()
    most_frequent = {(day, name): count for day, name, count in most}
    return {
        day: {most_rows_of(name): most_frequent.get((day, name), 0) for name in watched}
        for day in days
    }
