"""What the parameters of a declared table hold besides rows as they are; and bad input rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date

import pyspark.sql.types as T
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import Window, any_of, windows
from backfill_assets.engine.frames import frame_of
from backfill_assets.publish.candidates import Snapshot
from backfill_assets.tables.derived import FOR_DAY, Derived, Reads
from backfill_assets.tables.sources import SourceTable
from backfill_assets.tables.versions import as_known, with_event_day

_TOLD = T.StructType([T.StructField(name, T.DateType(), False) for name in (FOR_DAY, "day")])


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
