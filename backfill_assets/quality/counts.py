"""Counts: how many rows of a day are of some kind, as numbers for the UI and for the record."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.tables.counts import counts_of
from backfill_assets.tables.table import Table


def count_kinds(
    frame: DataFrame, table: Table, days: Iterable[date]
) -> dict[date, dict[str, float]]:
    """By day, how many rows there are of each kind that the model names, in one Spark query.

    A row for which a condition is null is not of that kind. A day without rows has none of any.

    Args:
        frame: the rows.
        table: which kinds are counted, see `tables.counts`.
        days: the days that are made.
    """
    kinds = counts_of(table)
    if not kinds:
        return {}
    # Named by number: a name may hold what a column's name may not.
    sums = [
        F.count_if(F.expr(condition)).alias(f"n{n}") for n, condition in enumerate(kinds.values())
    ]
    counts_by_day = {
        row["_day"]: row.asDict()
        for row in frame.groupBy(F.col(table.partition).alias("_day")).agg(*sums).collect()
    }
    return {
        day: {
            f"count of {kind}": counts_by_day.get(day, {}).get(f"n{n}", 0)
            for n, kind in enumerate(kinds)
        }
        for day in days
    }
