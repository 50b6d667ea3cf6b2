"""Whether a day has the same rows computed alone as within a range: the contract of every function.

A run computes the days of its range at once. A function that groups without the day would mix them,
and no check of a day by itself would tell. So the first range that new code of a table computes is
held against a day or two of it that are computed alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import date
from functools import reduce

import pyspark.sql.types as T
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import DaySet, Window
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitRecord
from backfill_assets.publish.candidates import ComputeAlone
from backfill_assets.quality.audit import RefusedError, digest_sums
from backfill_assets.tables.table import Table

#: Of the rows that are compared, whether their day was computed alone.
_ALONE_COLUMN = "_alone"


class DependentDaysError(RefusedError):
    """A day has other rows within a range than alone."""


def has_computed_ranges(ledger: Ledger, code_version: str) -> bool:
    """Whether a run has published several days at once by some code of the table."""
    return any(
        record.code_version == code_version and len(record.days) > 1 and _is_computed(record)
        for record in ledger.records
    )


def _is_computed(record: CommitRecord) -> bool:
    """Whether a run computed the days of a commit; others carry what was computed before."""
    details = record.details
    return not (details.kind or details.undoes or details.as_of)


def refuse_dependent_days(
    table: Table,
    frame: DataFrame,
    days: Window,
    rows: Mapping[date, int],
    compute_alone: ComputeAlone,
    *,
    stateful: bool = False,
) -> None:
    """See that days of a range have the rows that they have when each is computed alone.

    The day with the fewest rows is looked at, and one without rows. Values of floating-point
    columns are not compared: a sum of them depends on the order of the rows.

    Args:
        table: the table.
        frame: the rows of the range.
        days: the range.
        rows: by day that may be published, how many rows it has.
        compute_alone: computes one of the days by itself.
        stateful: whether the days are built one upon the other: only the first can be alone.

    Raises:
        DependentDaysError: a day has other rows; nothing was written.
    """
    first, *later = sorted(days)
    sample = [day for day in [first] if day in rows] if stateful else _sample_days(rows, first)
    if not later or not sample:
        return
    frames = [
        frame.where(F.col(table.partition).isin(sample)).withColumn(_ALONE_COLUMN, F.lit(False))
    ]
    exact = T.StructType(
        [column for column in table.struct_type if not _is_inexact(column.dataType)]
    )
    sums = digest_sums(exact)
    with ExitStack() as stack:
        for day in sample:
            built = table.conform_frame(
                stack.enter_context(compute_alone(DaySet.from_days([day]))).frame
            )
            frames.append(built.withColumn(_ALONE_COLUMN, F.lit(True)))
        grouped = reduce(DataFrame.unionByName, frames).groupBy(table.partition, _ALONE_COLUMN)
        digest_rows = grouped.agg(*[column.alias(name) for name, column in sums.items()]).collect()
    digests = {
        (row[table.partition], row[_ALONE_COLUMN]): tuple(row[name] for name in sums)
        for row in digest_rows
    }
    for day in sample:
        within, by_itself = digests.get((day, False)), digests.get((day, True))
        if within != by_itself:
            raise DependentDaysError(
                f"{table.name} [{days}]: refused, the table is as it was: the function gives other "
                f"rows for {day} alone ({_row_count_text(by_itself)}) than within {days} "
                f"({_row_count_text(within)}). Does it group, join and order by for_day? It may read no "
                "clock and no random number, and what it ranks or collects must have one order. "
                "Mend the function and launch these days again; to publish it as it is, set "
                "BACKFILL_ASSETS_CHECK_INDEPENDENCE=false."
            )


def _row_count_text(sums: tuple[int, ...] | None) -> str:
    return f"{sums[0] if sums else 0} row(s)"


def _sample_days(rows: Mapping[date, int], first: date) -> list[date]:
    """The days to compute alone, of those that may be published.

    A function that looks at the row before goes wrong on later days of a range than the first.
    """
    filled = [day for day in rows if rows[day]]
    empty = [day for day in rows if not rows[day]]
    fewest = min(filled, key=lambda day: (day == first, rows[day], day), default=None)
    return [*sorted(empty)[:1], *([fewest] if fewest else [])]


def _is_inexact(kind: T.DataType) -> bool:
    if isinstance(kind, T.ArrayType):
        return _is_inexact(kind.elementType)
    if isinstance(kind, T.MapType):
        return _is_inexact(kind.keyType) or _is_inexact(kind.valueType)
    if isinstance(kind, T.StructType):
        return any(_is_inexact(field.dataType) for field in kind)
    return isinstance(kind, T.FloatType | T.DoubleType)
