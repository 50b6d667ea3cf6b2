"""Making the plan of a backfill: which days of which tables it builds, and at what cost.

Made from the tables' logs, the listing of the landing and Dagster's records alone: nothing is
computed and no JVM is started.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import partial

import dagster as dg

from backfill_assets.backfills.calls import calls_of
from backfill_assets.backfills.chunks import even_stages
from backfill_assets.backfills.durations import expected_seconds, past_runs
from backfill_assets.backfills.fates import WORK, Fate, fates_of
from backfill_assets.backfills.plan_landing import Landed, digest_of, landed_for
from backfill_assets.backfills.plans import BackfillPlan, Expected, Outlook, Parameters, Stage
from backfill_assets.backfills.skews import skews_in
from backfill_assets.backfills.workloads import Workload, workload
from backfill_assets.calendar.cadences import Cadence
from backfill_assets.calendar.days import days_asked
from backfill_assets.calendar.partitions import DAY, Window, packed
from backfill_assets.calendar.policy import Policy
from backfill_assets.dagster_ext.internals import BaseAssetGraph, PartitionsSubset
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.settings import Settings
from backfill_assets.staleness.finality import final_days
from backfill_assets.tables.catalog import fed_tables, graph_for, tables_of
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.graph import Graph, graph_of


def target_days(
    graph: BaseAssetGraph, tables: Sequence[str], window: Window
) -> dict[str, list[date]]:
    """The days of tables, which are given inputs first: those asked for, and what follows them.

    Those asked for are the days of the tables that are made of none of the others. Dagster's own
    answer depends on the order in which it comes to a table that follows two others.
    """
    found: dict[str, PartitionsSubset] = {}
    for name in tables:
        key = dg.AssetKey(name)
        days = graph.get(key).partitions_def
        assert days is not None
        keys = map(str, Cadence.of(days).touched(window))
        parents = [p for p in graph.get(key).parent_keys if p.to_user_string() in found]
        wanted = [] if parents else [of for of in keys if days.has_partition_key(of)]
        subset = days.subset_with_partition_keys(wanted)
        for parent in parents:
            of = graph.get(parent).partitions_def
            assert of is not None
            subset |= graph.get_partition_mapping(
                key, parent
            ).get_downstream_partitions_for_partitions(found[parent.to_user_string()], of, days)
        found[name] = subset
    return {
        name: sorted(map(date.fromisoformat, subset.get_partition_keys()))
        for name, subset in found.items()
        if not subset.is_empty
    }


def refuse_impossible(settings: Settings, parameters: Parameters) -> None:
    """See that what a person asks for can be planned, and that nothing of it would be ignored.

    Raises:
        ValueError: a day is not on the calendar, there is no such table, no day is left to build
            after the pilot, or files are accepted for tables that are not loaded from any; or a
            table is retired.
    """
    days_asked(parameters.days, settings)
    tables = fed_tables(settings, parameters.tables, _today(settings))
    if 0 < len(parameters.window) <= parameters.pilot_days:
        raise ValueError(
            f"a pilot of {parameters.pilot_days} day(s) leaves nothing of the "
            f"{len(parameters.window)} day(s) {parameters.window}: give fewer pilot days, or none"
        )
    landed = graph_for(settings).landed
    if parameters.accept and not {*landed} & {*tables}:
        raise ValueError(
            f"{', '.join(parameters.accept)} is accepted for nothing: only {', '.join(landed)} "
            "are loaded from files, and none of them is among the tables"
        )


def _today(settings: Settings) -> date:
    return datetime.now(settings.zone).date()


def _tables(settings: Settings, parameters: Parameters) -> tuple[str, ...]:
    """The tables that are asked for, inputs first; one may be retired since it was planned."""
    days_asked(parameters.days, settings)
    if not parameters.tables:
        return fed_tables(settings, (), _today(settings))
    tables = tables_of(settings)
    if unknown := set(parameters.tables) - tables.keys():
        raise ValueError(f"no such table: {', '.join(sorted(unknown))}; there are {[*tables]}")
    return tuple(name for name in tables if name in parameters.tables)


def make_plan(
    settings: Settings,
    graph: BaseAssetGraph,
    instance: dg.DagsterInstance,
    parameters: Parameters,
    code: Code,
    id_: str,
) -> BackfillPlan:
    """The plan as of now.

    Args:
        settings: the deployment's settings.
        graph: the assets.
        instance: knows the past runs.
        parameters: what is asked for.
        code: the code that is to compute it.
        id_: of the plan.

    Raises:
        ValueError: a day is not on the calendar, or there is no such table.
    """
    tables = _tables(settings, parameters)
    parameters = parameters.model_copy(update={"tables": tables})
    window = parameters.window
    days = target_days(graph, tables, window)
    follow = target_days(graph, tables, Window(window.end - DAY, window.end))
    ledgers = read_ledgers(settings)
    past = past_runs(instance)
    return plan_backfill(settings, parameters, days, ledgers, code, id_, past, follow)


def plan_backfill(
    settings: Settings,
    parameters: Parameters,
    days: Mapping[str, Sequence[date]],
    ledgers: Ledgers,
    code: Code,
    id_: str,
    past: Sequence[tuple[int, float]] = (),
    follow: Mapping[str, Sequence[date]] | None = None,
) -> BackfillPlan:
    """The plan.

    Args:
        settings: the deployment's settings.
        parameters: what is asked for.
        days: the days of each table, inputs first, as `target_days` says them.
        ledgers: those of all tables.
        code: the code that is to compute it.
        id_: of the plan.
        past: days and seconds of past runs.
        follow: the days of each table that follow from the last day that is asked for.
    """
    policy = Policy.of(settings)
    tables = graph_of(ledgers, policy)
    landed = _landed(settings, parameters, days, ledgers, tables)
    found = fates_of(settings, parameters, days, ledgers, code, landed)
    final = final_days(ledgers, policy, {day for of in days.values() for day in of})
    work = {
        name: [day for day, fate in of.items() if fate.expected in WORK]
        for name, of in found.items()
    }
    files, size = _reading(landed, work, ledgers, policy)
    load = workload(parameters.window, found, landed, ledgers, tables, follow or {})
    cut, chunks = _cut(parameters, load, settings.partitions_per_run)
    # What is made of the log by event day comes in runs of its own, once the log is there.
    waves = 2 if {*days} & {*tables.sources} and len(days) > 1 else 1
    runs, due = chunks * waves, any(work.values())
    touched = {*days, *(source for name in days for source in tables.made_from(name))}
    return BackfillPlan(
        id=id_,
        parameters=parameters,
        code_version=code.version,
        code_versions={name: code.table_version(name) for name in days},
        code=str(code),
        config_digest=settings.digest,
        versions={name: last_change(ledgers[name]) for name in ledgers if name in touched},
        landing=digest_of(landed) if landed else "",
        held=_names(one.manifest.held for of in landed.values() for one in of.targets.values()),
        replaced=_names(one.replaced for of in landed.values() for one in of.targets.values()),
        tables={name: _outlook(ledgers[name], of, final) for name, of in found.items()},
        files=files,
        size=size,
        commits=sum(min(len(of), chunks) for of in work.values()),
        runs=runs,
        seconds=expected_seconds(past, runs, len(parameters.window) * waves) if due else 0,
        calls=calls_of(found, ledgers),
        cut=cut,
        skews=tuple(skews_in(_reads(work, ledgers, policy), ledgers)),
    )


def _landed(
    settings: Settings,
    parameters: Parameters,
    days: Mapping[str, Sequence[date]],
    ledgers: Ledgers,
    tables: Graph,
) -> dict[str, Landed]:
    """By raw log, what its days are to be loaded from."""
    policy, accept = Policy.of(settings), parameters.accept
    return {
        log: landed_for(settings.landing, source, ledgers[log], loaded, policy, accept)
        for log, source in tables.sources.items()
        if (loaded := {*days.get(log, ()), *days.get(source.rejected.name, ())})
    }


def _cut(parameters: Parameters, load: Workload, most: int) -> tuple[tuple[Stage, ...], int]:
    """The stages, and how many runs of at most so many days they have."""
    stages = list(parameters.stages(partial(even_stages, work=load, most=most)))
    runs = sum(len(of.split(most)) for _, of in stages)
    return tuple(Stage(name=name, days=str(of), work=load.of(of)) for name, of in stages), runs


def _outlook(
    ledger: Ledger, fates: Mapping[date, Fate], final_days: Mapping[str, Collection[date]]
) -> Outlook:
    """The fates of the days of a table, by ranges."""
    final = final_days.get(ledger.table.name, ())
    return Outlook(
        **{
            expected.name.lower(): tuple(
                packed(day for day, fate in fates.items() if fate.expected is expected)
            )
            for expected in Expected
        },
        final=tuple(packed(day for day in fates if day in final)),
        why={
            reason: tuple(packed(day for day, fate in fates.items() if fate.why == reason))
            for reason in dict.fromkeys(fate.why for fate in fates.values())
            if reason
        },
        apart=ledger.table.cadence.value,
    )


def _reading(
    landed: Mapping[str, Landed],
    work: Mapping[str, Collection[date]],
    ledgers: Ledgers,
    policy: Policy,
) -> tuple[int, int]:
    """How many files are read at most, and how many bytes these have."""
    entries = [entry for of in landed.values() for entry in of.entries]
    files, size = len(entries), sum(entry.size for entry in entries)
    for input_, of in _reads(work, ledgers, policy):
        stored = [ledgers[input_].stored[day] for day in of]
        files += sum(day.files for day in stored)
        size += sum(day.size for day in stored)
    return files, size


def _names(of: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for names in of for name in names}))


def last_change(ledger: Ledger) -> int | None:
    """The version of the last commit that changed a table; maintenance does not."""
    return max((commit.version for commit in ledger.commits), default=None)


def _reads(
    work: Mapping[str, Collection[date]], ledgers: Ledgers, policy: Policy
) -> Iterator[tuple[str, set[date]]]:
    """What the days that are computed read of other tables: of each input, the published days."""
    for name, days in work.items():
        for of in ledgers[name].table.inputs(policy):
            source = ledgers[of.source.name]
            if source.stored:
                deciding = of.reach.deciding(source)
                read = {d for day in days for d in deciding(day) if d in source.stored}
                yield of.source.name, read
