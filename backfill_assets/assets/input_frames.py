"""What the parameters of a declared table hold besides rows as they are; and bad input rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from functools import reduce

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import DAY, Window, any_of, windows
from backfill_assets.calendar.reach import SAME_DAY, WEEK, Reach
from backfill_assets.engine.frames import frame_of
from backfill_assets.publish.candidates import Snapshot
from backfill_assets.tables.derived import FOR_DAY, Derived, Reads, carries_state
from backfill_assets.tables.sources import SourceTable
from backfill_assets.tables.versions import as_known, with_event_day

_TOLD = T.StructType([T.StructField(name, T.DateType(), False) for name in (FOR_DAY, "day")])


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
        return rows.withColumn(FOR_DAY, day).where(days.predicate(partition))
    if reach == WEEK:
        monday = F.date_trunc("week", day).cast("date")
        return rows.withColumn(FOR_DAY, monday).where(days.predicate(FOR_DAY))
    counts_for = F.sequence(F.date_sub(day, reach.after), F.date_add(day, reach.before))
    return rows.withColumn(FOR_DAY, F.explode(counts_for)).where(days.predicate(FOR_DAY))


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
        return _stretched(table, sources, days)
    frames: dict[str, DataFrame] = {}
    for name, of in table.reads.items():
        rows = sources[name].days(of.reach.read(days))
        frames[name] = (
            known_rows(rows, of, days, timezone)
            if of.as_known
            else for_days(rows, of.table.partition, of.reach, days)
        )
    return frames


def _stretched(
    table: Derived, sources: Mapping[str, Snapshot], days: Window
) -> dict[str, DataFrame]:
    """The inputs of a table that carries state.

    Of each stretch of days without a gap, the state is that of the day before it, and counts for
    all its days; a row of another input counts for its own day and those after it.
    """
    frames: dict[str, DataFrame] = {}
    for name, of in table.reads.items():
        if of.table is not table:
            # The rows first: in a process of its own they start the session that a column needs.
            frames[name] = _in_parts(
                (sources[name].days(stretch), F.col(of.table.partition), stretch)
                for stretch in windows(days)
            )
    spark = next(iter(frames.values())).sparkSession
    for name, of in table.reads.items():
        if of.table is table:
            frames[name] = _in_parts(
                (_state(sources[name], stretch.start - DAY, spark), F.lit(stretch.start), stretch)
                for stretch in windows(days)
            )
    return frames


def _in_parts(parts: Iterable[tuple[DataFrame, Column, Window]]) -> DataFrame:
    """Rows, each once for each day of its stretch from a first day on."""
    return reduce(
        DataFrame.unionAll,
        (
            rows.withColumn(FOR_DAY, F.explode(F.sequence(first, F.lit(stretch.end - DAY))))
            for rows, first, stretch in parts
        ),
    )


def _state(source: Snapshot, day: date, spark: SparkSession) -> DataFrame:
    """The rows of a day of the table that is made; none while there is no such table."""
    if source.ledger.version is None:
        return frame_of(spark, source.table.struct, [])
    return source.days([day])


def known_rows(rows: DataFrame, of: Reads, days: Window, timezone: str) -> DataFrame:
    """What was known of a source at the end of each of some days.

    Args:
        rows: of its raw log, of the days that the reach reads.
        of: the parameter.
        days: the days.
        timezone: the business time zone.
    """
    assert isinstance(of.table, SourceTable)
    source = of.table.source
    return as_known(with_event_day(rows, source, timezone), source, of.reach, days)


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
    found = {}
    for name, of in table.there.items():
        ledger = sources[name].ledger
        deciding = of.reach.deciding(ledger)
        rows = [(day, d) for day in days for d in deciding(day) if d in ledger.published]
        found[name] = frame_of(spark, _TOLD, rows)
    return found


def repeated(table: Derived, sources: Mapping[str, Snapshot], days: Window) -> dict[date, str]:
    """By day, which of the input days that decide it have rows of the same key.

    Our own commits have passed the check of that. So only those input days are looked at that
    somebody else has changed since: an old job that appends its rows a second time, as a rule.

    Args:
        table: the table.
        sources: its inputs, by parameter.
        days: the days that are made.
    """
    said: dict[date, list[str]] = {}
    for name, of in table.reads.items():
        ledger, key = sources[name].ledger, (of.table.partition, *of.table.key)
        deciding = of.reach.deciding(ledger)
        reached = {day: {*deciding(day)} for day in days}
        strange = {
            day
            for day in set().union(*reached.values()) & ledger.published
            if of.table.key and ledger.current_record(day) is None
        }
        if strange and (bad := _repeating(sources[name].days(strange), strange, key)):
            for day in days:
                said.setdefault(day, []).extend(
                    f"{of.table.name}[{d}] has {bad[d]} row(s) that repeat a "
                    f"({', '.join(of.table.key)}), as another writer left it; rebuild it first"
                    for d in sorted(reached[day] & bad.keys())
                )
    return {day: "; ".join(found) for day, found in said.items() if found}


def _repeating(rows: DataFrame, days: Iterable[date], key: tuple[str, ...]) -> dict[date, int]:
    """By day that has such, the rows beyond the first of their key."""
    day = key[0]
    keys = rows.where(any_of(windows(days), day)).groupBy(*dict.fromkeys(key)).count()
    found = (
        keys.where("count > 1").groupBy(day).agg(F.sum(F.col("count") - 1).alias("more")).collect()
    )
    return {row[day]: row["more"] for row in found}
