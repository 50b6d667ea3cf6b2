"""Which tables and days a target has, and which of them are not as production would make them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime

from backfill_assets.backfills.fates import Fate, fates_of
from backfill_assets.backfills.planning import target_days
from backfill_assets.backfills.plans import Expected, Parameters
from backfill_assets.calendar.partitions import Window, spelled
from backfill_assets.dagster_ext.internals import BaseAssetGraph
from backfill_assets.delta.evolution import version_of
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.reading import read_ledger
from backfill_assets.delta.targets import Target, TargetError
from backfill_assets.publish.adoption import Adopted
from backfill_assets.settings import Settings
from backfill_assets.staleness.supposed import SwitchedOver
from backfill_assets.tables.catalog import fed_tables, graph_for, tables_of
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.known import Current
from backfill_assets.tables.table import Table


def tables_for(settings: Settings, chosen: Sequence[str]) -> tuple[str, ...]:
    """The tables of a target: those that are chosen, and all that follow from them.

    What is known now of a table (`current`) is made by the same function, so it belongs to it.

    Args:
        settings: the deployment's settings.
        chosen: names of tables; all that are not loaded from files, if none is given.

    Raises:
        TargetError: there is no such table, it is loaded from files, or it is retired.
    """
    today = datetime.now(settings.zone).date()
    try:
        fed_tables(settings, chosen, today)
    except ValueError as error:
        raise TargetError(str(error)) from error
    graph = graph_for(settings).fed(today)
    if landed := [name for name in graph.landed if name in chosen]:
        raise TargetError(
            f"{', '.join(landed)} is what has landed, and there is nothing to build of it beside "
            "production: choose the tables that are made of it"
        )
    wanted = {*(chosen or graph.tables.keys() - {*graph.landed})}

    def follows(name: str, table: Table) -> bool:
        same = isinstance(table, Current) and table.of.name in wanted
        return same or bool(graph.upstream(name) & wanted)

    while more := {n for n, table in graph.tables.items() if follows(n, table)} - wanted:
        wanted |= more
    return tuple(name for name in graph.tables if name in wanted)


def days_of(
    settings: Settings, graph: BaseAssetGraph, target: Target, only: Window | None = None
) -> dict[str, list[date]]:
    """By table of a target, its days: those that were asked for, and those that they change.

    Args:
        settings: the deployment's settings.
        graph: the assets.
        target: the target.
        only: only these days of those that were asked for, and what they change.
    """
    asked: dict[str, set[date]] = {name: set() for name in target.tables}
    for window in [only] if only else target.windows:
        for name, of_window in target_days(graph, target.tables, window).items():
            asked[name].update(of_window)
    inputs = graph_for(settings).inputs
    for name, days in asked.items():
        ledger = target.ledger(settings, name)
        for of in inputs[name]:
            if changed := asked.get(of.source.name, ()):
                source = target.ledger(settings, of.source.name)
                days |= ledger.published.intersection(of.reach.changed(changed, source))
        if days and carries_state(ledger.table):
            days |= {day for day in ledger.published if day > min(days)}
    return {name: sorted(days) for name, days in asked.items() if days}


def behind(
    settings: Settings,
    graph: BaseAssetGraph,
    target: Target,
    code: Code,
    only: Window | None = None,
    *,
    pinned: bool = False,
) -> dict[str, dict[date, Fate]]:
    """The days of a target that are not as this code would make them of production.

    Args:
        settings: the deployment's settings.
        graph: the assets.
        target: the target.
        code: the code.
        only: only these days are asked for.
        pinned: of production as the target sees it, and not as it is now.
    """
    ledgers = target.ledgers(settings, pinned=pinned)
    tables = tables_of(settings)
    production = {name: read_ledger(settings.table(name), tables[name]) for name in target.tables}
    if not pinned:
        # Of days that it has not made, those of production count, as of now.
        forks = {name: ledgers[name] for name in target.tables}
        ledgers = {
            **ledgers,
            **{
                name: SwitchedOver.of(fork, made(target, fork), production[name])
                for name, fork in forks.items()
            },
        }
    days = days_of(settings, graph, target, only)
    asked = Parameters(days=str(only or target.windows[-1]), tables=target.tables)
    found: dict[str, dict[date, Fate]] = {}
    for name, of in fates_of(settings, asked, days, ledgers, code, {}).items():
        there = production[name].published
        left = {
            day: fate
            for day, fate in of.items()
            if fate.expected is not Expected.IDENTICAL
            # What nobody can make, and nobody has, is not missed.
            and not (
                fate.expected is Expected.LACKING and day not in there | ledgers[name].published
            )
        }
        if left:
            found[name] = left
    return found


def unbuilt(settings: Settings, graph: BaseAssetGraph, target: Target, code: Code) -> Iterator[str]:
    """The days that a target was asked for, and has not made: of each table, in a sentence."""
    for name, of in behind(settings, graph, target, code, pinned=True).items():
        if left := of.keys() - made(target, target.ledger(settings, name)):
            why = ", ".join(sorted({of[day].why for day in left}))
            yield f"{name} [{spelled(left)}] is not built ({why})"


def made(target: Target, ledger: Ledger) -> set[date]:
    """The days of a table that the target has made, with the rows that were there or others."""
    since = target.since(ledger.table.name)
    return {day for day, record in ledger.latest.items() if record.version > since}


def adoptable(
    settings: Settings, target: Target, name: str, days: Iterable[date] | None = None
) -> Adopted:
    """The days of a table that a target has made, for another log of the table.

    Args:
        settings: the deployment's settings.
        target: the target.
        name: of the table.
        days: only these; all if none are given.
    """
    ledger = target.ledger(settings, name)
    found = made(target, ledger)
    if days is not None:
        found.intersection_update(days)
    return Adopted(target.url(settings, name), ledger, frozenset(found), target.since(name))


def refuse_migrated(settings: Settings, target: Target, now: Ledgers) -> None:
    """See that no table has been migrated since its fork was made: the fork has the old columns.

    Args:
        settings: the deployment's settings.
        target: the target.
        now: tables of it, as production has them.

    Raises:
        TargetError: one has; the days of the target cannot become those of the table any more.
    """
    problems = []
    for name in target.tables:
        fork, there = target.ledger(settings, name).metadata, now[name].metadata
        if fork and there and (was := version_of(fork)) != (version := version_of(there)):
            problems.append(f"{name} (its schema has version {version}, and the fork's {was})")
    if problems:
        raise TargetError(
            f"{', '.join(problems)}: the columns were changed since target {target.name} was made, "
            "and what it has built has the columns of then. Nothing was written, and production is "
            f"as it was. Drop the target (`backfill-assets drop {target.name}`), and build the "
            "days into a new one."
        )


def refuse_foreign(settings: Settings, target: Target, now: Ledgers) -> None:
    """See that no other writer has changed days that a target has made, since it was pinned.

    Args:
        settings: the deployment's settings.
        target: the target.
        now: tables of it, as production has them.

    Raises:
        TargetError: one has; the switch-over would lose what it wrote.
    """
    problems = []
    for name in target.tables:
        pin = target.pins[name]
        theirs = {
            day
            for commit in (now[name].external if name in now else ())
            if pin is not None and commit.version > pin
            for day in commit.days
            # Of a day that production has published since, nothing of theirs is left.
            if now[name].current_record(day) is None
        }
        if met := theirs & made(target, target.ledger(settings, name)):
            problems.append(f"{name} [{spelled(met)}]")
    if problems:
        begun = (
            f"Switch-over {target.switch_id} stays where it is: undo it "
            f"(`backfill-assets undo {target.switch_id}`), or their change, and ask again."
        )
        way = (
            "Nothing was written. Launch these days again in production, or drop the target "
            f"(`backfill-assets drop {target.name}`) and begin again."
        )
        raise TargetError(
            f"others have changed {', '.join(problems)} in production since target {target.name} "
            "saw it, and the target would replace what they wrote. "
            + (begun if target.switching else way)
        )
