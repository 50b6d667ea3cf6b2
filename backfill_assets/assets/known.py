"""The assets of tables of what is known now, and of how the facts differ from it."""

from collections.abc import Mapping
from datetime import date
from functools import reduce

import dagster as dg
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.derived import input_sums
from backfill_assets.assets.input_frames import for_days
from backfill_assets.assets.making import Read, made_asset
from backfill_assets.assets.sums import Sums, sums_by_day
from backfill_assets.calendar.partitions import Window
from backfill_assets.calendar.policy import Policy
from backfill_assets.calendar.reach import SAME_DAY, Known
from backfill_assets.engine.caching import Cache
from backfill_assets.publish.candidates import Built
from backfill_assets.quality.audit import Expectation
from backfill_assets.settings import Settings
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.known import Corrections, Current
from backfill_assets.tables.versions import SUPERSEDED, in_time, known, staged, with_event_day


def current_rows(
    table: Current, rows: DataFrame, days: Window, whole: Mapping[str, DataFrame]
) -> DataFrame:
    """The rows of some days.

    Args:
        table: the table.
        rows: of `versions.known`.
        days: the days.
        whole: by parameter, the inputs without days.
    """
    (parameter,) = table.of.reads
    counting = staged(rows, table.source)
    frame = for_days(counting, table.source.staged.partition, SAME_DAY, days)
    return table.of.transform(**{parameter: frame}, **whole)


def current_expectations(
    table: Current, lines: DataFrame, rows: DataFrame, days: Window, policy: Policy
) -> dict[date, Expectation]:
    """By day: lines that count (as counted from the raw log) = rows that count + superseded.

    Args:
        table: the table.
        lines: as for `versions.known`.
        rows: what that gives.
        days: the days.
        policy: the late-data policy.
    """
    day = table.source.staged.partition
    counted = lines.where(days.predicate(day))
    if not policy.corrects:
        counted = counted.where(in_time(policy.window_days))
    sums = {check.total: check.column for check in table.of.conserved if check.column}
    of_rows = {total: F.when(~F.col(SUPERSEDED), F.col(of)) for total, of in sums.items()}
    both = counted.select(day, F.lit(1), F.lit(0), *(F.lit(None) for _ in sums)).unionAll(
        rows.select(day, F.lit(0), F.col(SUPERSEDED).cast("int"), *of_rows.values())
    )
    # A total may be named `lines`; that of a model never begins with an underscore.
    names = ["_lines", "_superseded", *sums]
    seen = sums_by_day(
        both.toDF(day, *names), day, {name: F.sum(name) for name in names}, table.zeros
    )
    nothing: Sums = {name: table.zeros.get(name, 0) for name in names}
    expectations = {}
    for one in days:
        of_day = seen.get(one, nothing)
        came, gone = of_day["_lines"], of_day["_superseded"]
        counting = came - gone
        totals = {c.total: of_day[c.total] if c.column else counting for c in table.of.conserved}
        entries = {"lines": came, "superseded": gone}
        expectations[one] = Expectation(entries=entries, totals=totals)
    return expectations


def correction_rows(table: Corrections, facts: DataFrame, current: DataFrame) -> DataFrame:
    """Current less facts, by day and key; only where there is a difference."""
    types = {column.name: column.dataType for column in table.struct}
    less = facts.select(*table.by, *((-F.col(name)).alias(name) for name in table.totals))

    def total(name: str) -> Column:
        return F.coalesce(F.sum(name), F.lit(0)).cast(types[name]).alias(name)

    return (
        current.select(*table.by, *table.totals)
        .unionByName(less)
        .groupBy(*table.by)
        .agg(*map(total, table.totals))
        .where(reduce(Column.__or__, (F.col(name) != 0 for name in table.totals)))
    )


def correction_expectations(
    table: Corrections,
    of_facts: Mapping[date, Sums],
    of_current: Mapping[date, Sums],
    days: Window,
) -> dict[date, Expectation]:
    """By day: facts + corrections = current.

    Args:
        table: the table.
        of_facts: the totals of the facts, by day that has rows.
        of_current: those of what is known now.
        days: the days.
    """
    expectations = {}
    for day in days:
        then, now = of_facts.get(day, table.zeros), of_current.get(day, table.zeros)
        expectations[day] = Expectation(
            entries={**then, **{f"current {name}": total for name, total in now.items()}},
            totals={name: now[name] - then[name] for name in table.totals},
        )
    return expectations


def build_current(settings: Settings, code: Code, table: Current) -> dg.AssetsDefinition:
    """The asset of a table of what is known now."""
    source = table.source
    policy = source.policy(settings)

    def make(read: Read, cache: Cache, days: Window) -> Built:
        log = read.tables[source.raw.name]
        logged = Known().deciding(log.ledger)
        raw = log.days({d for day in days for d in logged(day)})
        lines = with_event_day(raw, source, settings.timezone)
        rows = cache(known(lines, source, days, policy.window_days, corrects=policy.corrects))
        due = current_expectations(table, lines, rows, days, policy)
        whole = read.whole(table.of.whole, raw.sparkSession)
        return Built(current_rows(table, rows, days, whole), due, scattered=True)

    return made_asset(settings, code, table, make, group=table.of.group, lineage=table.lineage)


def build_corrections(settings: Settings, code: Code, table: Corrections) -> dg.AssetsDefinition:
    """The asset of a table of how facts differ from what is known now."""

    def make(read: Read, cache: Cache, days: Window) -> Built:
        sources = [read.tables[of.name] for of in (table.facts, table.current)]
        frames = [source.days(days) for source in sources]
        rows = cache(correction_rows(table, *frames))
        wanted = {name: name for name in table.totals}
        of_facts, of_current = (
            input_sums(source, frame, table.partition, wanted, table.zeros, days)
            for source, frame in zip(sources, frames, strict=True)
        )
        due = correction_expectations(table, of_facts, of_current, days)
        return Built(rows, due, scattered=True)

    return made_asset(settings, code, table, make, group=table.facts.group, lineage=table.lineage)
