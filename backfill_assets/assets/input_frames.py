"""Input frames: the rows of a table's inputs for each day, their sums, and repeated keys."""

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
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.spark.frames import create_frame
from backfill_assets.tables.derived import FOR_DAY, Derived, Reads, carries_state
from backfill_assets.tables.sources import SourceTable
from backfill_assets.transforms.dedup import as_known, with_event_day

#: Numbers of a day, by name.
Sums = dict[str, int | Decimal]


def sums_by_day(
    rows: DataFrame,
    day: str,
    aggregations: Mapping[str, Column],
    zeros: Mapping[str, int | Decimal],
) -> dict[date, Sums]:
    """Return some sums by day that has rows.

    `zeros` has the values of empty sums, by default 0.
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
    """Repeat each row of an input for each of the days that it decides.

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
    sources: Mapping[str, TableSnapshot],
    days: Window,
    timezone: str,
) -> dict[str, DataFrame]:
    """Return the rows of the partitioned inputs by parameter, with the column `for_day`."""
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
    table: Derived, sources: Mapping[str, TableSnapshot], days: Window
) -> dict[str, DataFrame]:
    """Return the inputs of a stateful table.

    For each range of days without a gap, the state is that of the day before it, repeated for all
    its days; a row of another input is repeated for its own day and the later ones of the range.
    """
    frames: dict[str, DataFrame] = {}
    for name, reads in table.reads.items():
        if reads.table is not table:
            # The rows first: reading them starts the Spark session that a column needs.
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
    """Repeat rows for each day of their range, from a first day on."""
    return reduce(
        DataFrame.unionAll,
        (
            rows.withColumn(FOR_DAY, F.explode(F.sequence(first, F.lit(stretch.end - DAY))))
            for rows, first, stretch in parts
        ),
    )


def _state_rows(source: TableSnapshot, day: date, spark: SparkSession) -> DataFrame:
    """Return the rows of a day of the stateful table itself; empty if it does not exist yet."""
    if source.ledger.version is None:
        return create_frame(spark, source.table.struct_type, [])
    return source.read_days([day])


def known_rows(rows: DataFrame, reads: Reads, days: Window, timezone: str) -> DataFrame:
    """Return what was known of a source at the end of each day.

    `rows` are those of its raw log, of the days in the reach.
    """
    assert isinstance(reads.table, SourceTable)
    source = reads.table.source
    return as_known(with_event_day(rows, source, timezone), source, reads.reach, days)


def published_days(
    table: Derived, sources: Mapping[str, TableSnapshot], days: Window, spark: SparkSession
) -> dict[str, DataFrame]:
    """Return the published input days, for each parameter that requests them."""
    frames = {}
    for name, reads in table.published.items():
        ledger = sources[name].ledger
        deciding = reads.reach.deciding_days(ledger)
        rows = [(day, d) for day in days for d in deciding(day) if d in ledger.published_days]
        frames[name] = create_frame(spark, _PUBLISHED_SCHEMA, rows)
    return frames


def repeated_key_problems(
    table: Derived, sources: Mapping[str, TableSnapshot], days: Window
) -> dict[date, str]:
    """Return, by day, the input days that decide it and have several rows of one key.

    Commits of this package have passed the check of keys. So only input days that another writer
    has changed since are read: typically an old job appended its rows a second time.
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
    """Return, by day with repeated keys, the number of rows beyond the first of their key."""
    day = key[0]
    keys = (
        rows.where(any_window_condition(to_windows(days), day)).groupBy(*dict.fromkeys(key)).count()
    )
    counts = (
        keys.where("count > 1").groupBy(day).agg(F.sum(F.col("count") - 1).alias("more")).collect()
    )
    return {row[day]: row["more"] for row in counts}
