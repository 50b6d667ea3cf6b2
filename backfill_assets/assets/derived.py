"""The assets of tables that are declared by a function."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal

import dagster as dg
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.input_frames import known_rows, published_days, repeated
from backfill_assets.assets.making import Read, made_asset
from backfill_assets.assets.sums import Sums, sums_by_day
from backfill_assets.calendar.partitions import Window, any_of, windows
from backfill_assets.calendar.reach import SAME_DAY, Reach
from backfill_assets.engine.caching import Cache
from backfill_assets.publish.candidates import Built, Remarks, Snapshot
from backfill_assets.quality.audit import Expectation, Verdict
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import graph_for
from backfill_assets.tables.codes import Code
from backfill_assets.tables.derived import FOR_DAY, Derived
from backfill_assets.tables.table import DeclarationError


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
    counts_for = F.sequence(F.date_sub(day, reach.after), F.date_add(day, reach.before))
    return rows.withColumn(FOR_DAY, F.explode(counts_for)).where(days.predicate(FOR_DAY))


def input_sums(
    source: Snapshot,
    rows: DataFrame,
    day: str,
    wanted: Mapping[str, str | None],
    zeros: Mapping[str, int | Decimal],
    days: Window,
) -> dict[date, Sums]:
    """By day, sums of an input: as its commit recorded them, or else of the rows.

    Args:
        source: the input.
        rows: of it, each for one day.
        day: the column of the day.
        wanted: by name, the column to sum; none to count rows.
        zeros: by name, what stands for a sum of nothing.
        days: the days, each made of the same day of the input.
    """
    found = {}
    for of in days:
        if (sums := _recorded(source, of, wanted)) is not None:
            found[of] = sums
    if left := [of for of in days if of not in found]:
        rest = rows.where(any_of(windows(left), day))
        found |= sums_by_day(rest, day, _aggregated(wanted), zeros)
    return found


def _aggregated(wanted: Mapping[str, str | None]) -> dict[str, Column]:
    return {
        name: F.count(F.lit(1)) if column is None else F.sum(column)
        for name, column in wanted.items()
    }


def _recorded(source: Snapshot, day: date, wanted: Mapping[str, str | None]) -> Sums | None:
    """The sums that the audit found when the day was published; none where they are not known.

    They are those of its rows, as nobody has changed the day since.
    """
    said = source.ledger.current_record(day)
    known = source.table.zeros.keys() & said.totals.keys() if said else frozenset()
    if said is None or not {*wanted.values()} <= {None, *known}:
        return None
    return {
        name: said.rows if column is None else type(source.table.zeros[column])(said.totals[column])
        for name, column in wanted.items()
    }


def expectations(
    table: Derived,
    sources: Mapping[str, Snapshot],
    frames: Mapping[str, DataFrame],
    days: Window,
) -> dict[date, Expectation]:
    """By day, the totals that the inputs say it must have.

    Args:
        table: the table.
        sources: the inputs, by parameter.
        frames: the same with `for_day`.
        days: the days.
    """
    totals: dict[date, Sums] = {day: {} for day in days}
    for parameter, frame in frames.items():
        wanted = {
            check.total: check.column for check in table.conserved if check.parameter == parameter
        }
        if table.reads[parameter].of_the_day:
            source = sources[parameter]
            found = input_sums(source, frame, FOR_DAY, wanted, table.zeros, days)
        else:
            found = sums_by_day(frame, FOR_DAY, _aggregated(wanted), table.zeros)
        nothing = {name: table.zeros[name] for name in wanted}
        for day, of in totals.items():
            of |= found.get(day, nothing)
    return {
        day: Expectation(entries={f"expected {n}": v for n, v in of.items()}, totals=of)
        for day, of in totals.items()
    }


def build(settings: Settings, code: Code, table: Derived) -> dg.AssetsDefinition:
    """The asset of a declared table.

    Raises:
        DeclarationError: a day of it needs an earlier day of an input, and not its own.
    """
    _refuse_the_past(table)
    graph = graph_for(settings)
    starts = {name: graph.policy_of(of.table.name).start for name, of in table.by_day.items()}

    def make(read: Read, cache: Cache, days: Window) -> Built:
        sources = {name: read.tables[of.table.name] for name, of in table.by_day.items()}
        frames = {}
        for name, of in table.reads.items():
            rows = sources[name].days(of.reach.read(days))
            frames[name] = (
                known_rows(rows, of, days, settings.timezone)
                if of.as_known
                else for_days(rows, of.table.partition, of.reach, days)
            )
        spark = next(iter(frames.values())).sparkSession
        others = {
            **read.whole(table.whole, spark),
            **published_days(table, sources, days, spark),
        }
        asked = read.asking.ask(table.asks, {**frames, **others}, cache, days)
        rows = cache(table.transform(**frames, **others, **asked.frames))

        def remarks(_: Snapshot | None, verdicts: Sequence[Verdict]) -> Remarks:
            passed = (v.day for v in verdicts if v.passed)
            return Remarks({d for d in passed if _final(table, sources, d, starts)})

        due = asked.added_to(expectations(table, sources, frames, days))
        for day, why in repeated(table, sources, days).items():
            due[day] = replace(due[day], problems=[*due[day].problems, why])
        return Built(rows, due, scattered=True, numbers=asked.numbers, remarks=remarks)

    return made_asset(
        settings,
        code,
        table,
        make,
        group=table.group,
        lineage=table.lineage,
        lookups=[of.lookup for of in table.asks.values()],
    )


def _refuse_the_past(table: Derived) -> None:
    """Refuse to compute what would come out wrong.

    All days of a run are computed at once, and a day is held back if its own day of an input is
    not there. Days that are built upon each other must be computed and judged one after the other.
    """
    for parameter, of in table.reads.items():
        if of.reach.of_the_past:
            raise DeclarationError(
                f"{table.name}: {parameter} holds earlier days of {of.table.name} only. Such a "
                "table can be declared, but not computed yet: take it out of the list of tables"
            )


def _final(
    table: Derived, sources: Mapping[str, Snapshot], day: date, starts: Mapping[str, date]
) -> bool:
    """Whether all input days that decide a day are final; a missing one is not."""
    return all(
        of in source.ledger.final
        for name, source in sources.items()
        for of in table.by_day[name].reach.deciding(source.ledger)(day)
        if of >= starts[name]
    )
