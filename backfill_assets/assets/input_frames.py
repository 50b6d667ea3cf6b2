"""What the inputs of a table hold for each day: rows, sums, and rows that repeat a key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from functools import reduce

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import DAY, Window, any_window_condition, to_windows
from backfill_assets.calendar.reach import SAME_DAY, WEEK, Reach
from backfill_assets.publish.types import Snapshot
from backfill_assets.spark.frames import create_frame
from backfill_assets.tables.derived import FOR_DAY, Derived, Reads, carries_state
from backfill_assets.tables.sources import SourceTable
from backfill_assets.transforms.dedup import as_known, with_event_day

#: By name, some numbers of a day.
Sums = dict[str, int | Decimal]


def sums_by_day(
    rows: DataFrame,
    day: str,
    aggregations: Mapping[str, Column],
    zeros: Mapping[str, int | Decimal],
) -> dict[date, Sums]:
    """By day that has rows, some sums of them.

    Args:
        rows: of any days.
        day: the column of the day.
        aggregations: the aggregations, by name.
        zeros: by name, what stands for a sum of nothing; 0 if not given.
    """
    if not aggregations:
        return {}
    names, columns = [*aggregations], [*aggregations.values()]
    result_rows = rows.groupBy(day).agg(*columns).collect()
    return {
        partition: {
            name: zeros.get(name, 0) if value is None else value
            for name, value in zip(names, values, strict=True)
        }
        for partition, *values in result_rows
    }


_PUBLISHED_SCHEMA = T.StructType(
    [T.StructField(name, T.DateType(), False) for name in (FOR_DAY, "day")]
)


def for_days(rows: DataFrame, partition: str, reach: Reach, days: Window) -> DataFrame:
    """Rows of an input, each once for each of the days that it helps to decide.

    Args:
        rows: of the input.
        partition: its partition column.
        reach: which days of it decide a day.
        days: the days.

    Returns:
        The columns of the input, and `for_day`.
    """
    day = F.col(partition)
    if reach == SAME_DAY:
        return rows.withColumn(FOR_DAY, day).where(days.sql_condition(partition))
    if reach == WEEK:
        monday = F.date_trunc("week", day).cast("date")
        return rows.withColumn(FOR_DAY, monday).where(days.sql_condition(FOR_DAY))
    counts_for = F.sequence(F.date_sub(day, reach.after), F.date_add(day, reach.before))
    return rows.withColumn(FOR_DAY, F.explode(counts_for)).where(days.sql_condition(FOR_DAY))


def input_frames(
    table: Derived,
    sources: Mapping[str, Snapshot],
    days: Window,
    timezone: str,
) -> dict[str, DataFrame]:
    """What the parameters of a table with days hold, each row with the column `for_day`.

    Args:
        table: the table.
        sources: its inputs, by parameter.
        days: the days that are made.
        timezone: the business time zone.
    """
    if carries_state(table):
        return _stateful_frames(table, sources, days)
    frames: dict[str, DataFrame] = {}
    for name, reads in table.reads.items():
        rows = sources[name].read_days(reads.reach.input_days(days))
        frames[name] = (
            known_rows(rows, reads, days, timezone)
            if reads.as_known
            else for_days(rows, reads.table.partition, reads.reach, days)
        )
    return frames


def _stateful_frames(
    table: Derived, sources: Mapping[str, Snapshot], days: Window
) -> dict[str, DataFrame]:
    """The inputs of a table that carries state.

    Of each stretch of days without a gap, the state is that of the day before it, and counts for
    all its days; a row of another input counts for its own day and those after it.
    """
    frames: dict[str, DataFrame] = {}
    for name, reads in table.reads.items():
        if reads.table is not table:
            # The rows first: in a process of its own they start the session that a column needs.
            frames[name] = _repeat_over_stretches(
                (sources[name].read_days(stretch), F.col(reads.table.partition), stretch)
                for stretch in to_windows(days)
            )
    spark = next(iter(frames.values())).sparkSession
    for name, reads in table.reads.items():
        if reads.table is table:
            frames[name] = _repeat_over_stretches(
                (
                    _state_rows(sources[name], stretch.start - DAY, spark),
                    F.lit(stretch.start),
                    stretch,
                )
                for stretch in to_windows(days)
            )
    return frames


def _repeat_over_stretches(parts: Iterable[tuple[DataFrame, Column, Window]]) -> DataFrame:
    """Rows, each once for each day of its stretch from a first day on."""
    return reduce(
        DataFrame.unionAll,
        (
            rows.withColumn(FOR_DAY, F.explode(F.sequence(first, F.lit(stretch.end - DAY))))
            for rows, first, stretch in parts
        ),
    )


def _state_rows(source: Snapshot, day: date, spark: SparkSession) -> DataFrame:
    """The rows of a day of the table that is made; none while there is no such table."""
    if source.ledger.version is None:
        return create_frame(spark, source.table.struct_type, [])
    return source.read_days([day])


def known_rows(rows: DataFrame, reads: Reads, days: Window, timezone: str) -> DataFrame:
    """What was known of a source at the end of each of some days.

    Args:
        rows: of its raw log, of the days that the reach reads.
        reads: the parameter.
        days: the days.
        timezone: the business time zone.
    """
    assert isinstance(reads.table, SourceTable)
    source = reads.table.source
    return as_known(with_event_day(rows, source, timezone), source, reads.reach, days)


def published_days(
    table: Derived, sources: Mapping[str, Snapshot], days: Window, spark: SparkSession
) -> dict[str, DataFrame]:
    """For each parameter that asks for it, which days of its input are published.

    Args:
        table: the table.
        sources: its inputs, by parameter.
        days: the days that are made.
        spark: the session.
    """
    frames = {}
    for name, reads in table.published.items():
        ledger = sources[name].ledger
        deciding = reads.reach.deciding_days(ledger)
        rows = [(day, d) for day in days for d in deciding(day) if d in ledger.published_days]
        frames[name] = create_frame(spark, _PUBLISHED_SCHEMA, rows)
    return frames


def repeated_key_problems(
    table: Derived, sources: Mapping[str, Snapshot], days: Window
) -> dict[date, str]:
    """By day, which of the input days that decide it have rows of the same key.

    Our own commits have passed the check of that. So only those input days are looked at that
    somebody else has changed since: an old job that appends its rows a second time, as a rule.

    Args:
        table: the table.
        sources: its inputs, by parameter.
        days: the days that are made.
    """
    messages: dict[date, list[str]] = {}
    for name, reads in table.reads.items():
        ledger, key = sources[name].ledger, (reads.table.partition, *reads.table.key)
        deciding = reads.reach.deciding_days(ledger)
        reached = {day: {*deciding(day)} for day in days}
        foreign_days = {
            day
            for day in set().union(*reached.values()) & ledger.published_days
            if reads.table.key and ledger.current_record(day) is None
        }
        if foreign_days and (
            repeated_rows := _count_repeated_rows(
                sources[name].read_days(foreign_days), foreign_days, key
            )
        ):
            for day in days:
                messages.setdefault(day, []).extend(
                    f"{reads.table.name}[{d}] has {repeated_rows[d]} row(s) that repeat a "
                    f"({', '.join(reads.table.key)}), as another writer left it; rebuild it first"
                    for d in sorted(reached[day] & repeated_rows.keys())
                )
    return {day: "; ".join(texts) for day, texts in messages.items() if texts}


def _count_repeated_rows(
    rows: DataFrame, days: Iterable[date], key: tuple[str, ...]
) -> dict[date, int]:
    """By day that has such, the rows beyond the first of their key."""
    day = key[0]
    keys = (
        rows.where(any_window_condition(to_windows(days), day)).groupBy(*dict.fromkeys(key)).count()
    )
    counts = (
        keys.where("count > 1").groupBy(day).agg(F.sum(F.col("count") - 1).alias("more")).collect()
    )
    return {row[day]: row["more"] for row in counts}
