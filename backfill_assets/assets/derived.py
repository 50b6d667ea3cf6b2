"""The assets of tables that are declared by a function."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal

import dagster as dg
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.input_frames import input_frames, published_days, repeated
from backfill_assets.assets.making import Read, made_asset
from backfill_assets.assets.sums import Sums, sums_by_day
from backfill_assets.calendar.partitions import DAY, Window, any_of, windows
from backfill_assets.engine.caching import Cache
from backfill_assets.publish.candidates import Built, Remarks, Snapshot
from backfill_assets.publish.failures import calling
from backfill_assets.quality.audit import Expectation, Verdict
from backfill_assets.settings import Settings
from backfill_assets.tables.arguments import shown
from backfill_assets.tables.catalog import graph_for
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.derived import FOR_DAY, Derived, carries_state


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
        nothing = {name: table.zeros[name] for name in wanted}
        found = _of_input(table, sources, parameter, frame, wanted, days)
        for day, of in totals.items():
            for name, value in found.get(day, nothing).items():
                of[name] = of.get(name, table.zeros[name]) + value
    return {
        day: Expectation(entries={f"expected {n}": v for n, v in of.items()}, totals=of)
        for day, of in totals.items()
    }


def _of_input(
    table: Derived,
    sources: Mapping[str, Snapshot],
    parameter: str,
    frame: DataFrame,
    wanted: Mapping[str, str | None],
    days: Window,
) -> Mapping[date, Sums]:
    """What an input says of some totals, by day; a day of which it says nothing may lack.

    Of a table that carries state, the totals of a day are those of the day before its stretch, and
    of all days of the stretch so far.
    """
    of, source = table.reads[parameter], sources[parameter]
    if not wanted or not (of.of_the_day or carries_state(table)):
        return sums_by_day(frame, FOR_DAY, _aggregated(wanted), table.zeros)
    if not carries_state(table):
        return input_sums(source, frame, FOR_DAY, wanted, table.zeros, days)
    found: dict[date, Sums] = {}
    if of.table is table:
        for stretch in windows(days):
            said = _recorded(source, stretch.start - DAY, wanted)
            found |= {day: said for day in stretch if said is not None}
        if left := [day for day in days if day not in found]:
            rest = frame.where(any_of(windows(left), FOR_DAY))
            found |= sums_by_day(rest, FOR_DAY, _aggregated(wanted), table.zeros)
        return found
    rows = frame.where(F.col(of.table.partition) == F.col(FOR_DAY))
    each = input_sums(source, rows, FOR_DAY, wanted, table.zeros, days)
    for day in days:
        so_far, now = found.get(day - DAY, {}), each.get(day, {})
        found[day] = {
            name: so_far.get(name, table.zeros[name]) + now.get(name, table.zeros[name])
            for name in wanted
        }
    return found


def build(settings: Settings, code: Code, table: Derived) -> dg.AssetsDefinition:
    """The asset of a declared table."""
    graph = graph_for(settings)
    starts = {name: graph.policy_of(of.table.name).start for name, of in table.by_day.items()}

    def make(read: Read, cache: Cache, days: Window) -> Built:
        sources = {name: read.tables[of.table.name] for name, of in table.by_day.items()}
        frames = input_frames(table, sources, days, settings.timezone)
        spark = next(iter(frames.values())).sparkSession
        others = {
            **read.whole(table.whole, spark),
            **published_days(table, sources, days, spark),
        }
        asked = read.asking.ask(table.asks, {**frames, **others}, cache, days)
        with calling(table, days):
            frame = table.transform(**frames, **others, **asked.frames)
        if not isinstance(frame, DataFrame):
            raise dg.Failure(
                f"{table.name} [{days}]: its function gives {shown(frame)}, and no DataFrame. "
                "Nothing was written. Mend the function, and launch these days again.",
                allow_retries=False,
            )
        rows = cache(frame)

        def remarks(_: Snapshot | None, verdicts: Sequence[Verdict]) -> Remarks:
            final: set[date] = set()
            for verdict in verdicts:
                if verdict.passed and _final(table, sources, verdict.day, starts, final):
                    final.add(verdict.day)
            return Remarks(final)

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


def _final(
    table: Derived,
    sources: Mapping[str, Snapshot],
    day: date,
    starts: Mapping[str, date],
    final: Container[date],
) -> bool:
    """Whether all input days that decide a day are final; a missing one is not.

    Args:
        table: the table.
        sources: its inputs, by parameter.
        day: the day.
        starts: the first day of each input, by parameter.
        final: days of the table itself that this run makes final.
    """
    return all(
        of in source.ledger.final or (source.table is table and of in final)
        for name, source in sources.items()
        for of in table.by_day[name].reach.deciding(source.ledger)(day)
        if of >= starts[name]
    )
