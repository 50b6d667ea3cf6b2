"""The tables and days of a shadow target, and which days are missing or stale."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime

from backfill_assets.backfills.backfill_plan import BackfillRequest, DayOutcome
from backfill_assets.backfills.forecast import DayForecast, forecast_days
from backfill_assets.backfills.planner import days_by_table
from backfill_assets.calendar.partitions import Window, format_ranges
from backfill_assets.dagster_ext.internals import BaseAssetGraph
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.table_schema import read_schema_version
from backfill_assets.delta.targets import ShadowTarget, TargetError
from backfill_assets.deployment import Deployment
from backfill_assets.publish.adopt import ClonedDays
from backfill_assets.staleness.input_digest import SwitchedLedger
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.current import Current
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import buildable_tables
from backfill_assets.tables.table import Table


def target_tables(deployment: Deployment, chosen: Sequence[str]) -> tuple[str, ...]:
    """The tables of a target: the chosen tables, and all tables downstream of them.

    Without chosen tables: all that are not loaded from files. A `current` view of a table is
    included, as the same function computes it.

    Raises:
        TargetError: there is no such table, it is loaded from files, or it is retired.
    """
    today = datetime.now(deployment.settings.zone).date()
    try:
        buildable_tables(deployment.graph, chosen, today)
    except ValueError as error:
        raise TargetError(str(error)) from error
    graph = deployment.graph.without_retired(today)
    if landed := [name for name in graph.landed_tables if name in chosen]:
        raise TargetError(
            f"{', '.join(landed)} is what has landed, and there is nothing to build of it beside "
            "production: choose the tables that are made of it"
        )
    selected = {*(chosen or graph.tables.keys() - {*graph.landed_tables})}

    def is_downstream(name: str, table: Table) -> bool:
        same = isinstance(table, Current) and table.base.name in selected
        return same or bool(graph.upstream_tables(name) & selected)

    while added := {n for n, table in graph.tables.items() if is_downstream(n, table)} - selected:
        selected |= added
    return tuple(name for name in graph.tables if name in selected)


def days_of_target(
    deployment: Deployment,
    graph: BaseAssetGraph,
    target: ShadowTarget,
    only_days: Window | None = None,
) -> dict[str, list[date]]:
    """The days of each table of a target: requested days and the days downstream of them.

    `only_days` limits the requested days; None for all.
    """
    days_by_name: dict[str, set[date]] = {name: set() for name in target.tables}
    for window in [only_days] if only_days else target.requested_windows:
        for name, window_days in days_by_table(graph, target.tables, window).items():
            days_by_name[name].update(window_days)
    inputs = deployment.graph.inputs
    for name, days in days_by_name.items():
        ledger = target.table_ledger(deployment, name)
        for dependency in inputs[name]:
            if changed := days_by_name.get(dependency.source.name, ()):
                source = target.table_ledger(deployment, dependency.source.name)
                days |= ledger.published_days.intersection(
                    dependency.reach.changed_days(changed, source)
                )
        if days and carries_state(ledger.table):
            days |= {day for day in ledger.published_days if day > min(days)}
    return {name: sorted(days) for name, days in days_by_name.items() if days}


def stale_days(
    deployment: Deployment,
    graph: BaseAssetGraph,
    target: ShadowTarget,
    code: Code,
    only_days: Window | None = None,
    *,
    pinned: bool = False,
) -> dict[str, dict[date, DayForecast]]:
    """The days of a target that differ from what this code would build from production now.

    `only_days` limits the requested days; None for all. With `pinned`, production is as the target
    sees it, not as it is now.
    """
    ledgers = target.table_ledgers(deployment, pinned=pinned)
    tables = deployment.tables
    production = {
        name: read_ledger(deployment.table_url(name), tables[name]) for name in target.tables
    }
    if not pinned:
        # For days that the target has not built, production's current days count.
        forks = {name: ledgers[name] for name in target.tables}
        ledgers = {
            **ledgers,
            **{
                name: SwitchedLedger.from_fork(fork, built_days(target, fork), production[name])
                for name, fork in forks.items()
            },
        }
    days = days_of_target(deployment, graph, target, only_days)
    request = BackfillRequest(
        days=str(only_days or target.requested_windows[-1]), tables=target.tables
    )
    stale: dict[str, dict[date, DayForecast]] = {}
    for name, forecasts in forecast_days(deployment, request, days, ledgers, code, {}).items():
        published = production[name].published_days
        stale_in_table = {
            day: forecast
            for day, forecast in forecasts.items()
            if forecast.outcome is not DayOutcome.IDENTICAL
            # A day that cannot be built and is published nowhere is not stale.
            and not (
                forecast.outcome is DayOutcome.LACKING
                and day not in published | ledgers[name].published_days
            )
        }
        if stale_in_table:
            stale[name] = stale_in_table
    return stale


def describe_missing_days(
    deployment: Deployment, graph: BaseAssetGraph, target: ShadowTarget, code: Code
) -> Iterator[str]:
    """One sentence for each table about requested days that the target has not built."""
    for name, forecasts in stale_days(deployment, graph, target, code, pinned=True).items():
        if missing := forecasts.keys() - built_days(target, target.table_ledger(deployment, name)):
            reasons = ", ".join(sorted({forecasts[day].reason for day in missing}))
            yield f"{name} [{format_ranges(missing)}] is not built ({reasons})"


def built_days(target: ShadowTarget, ledger: Ledger) -> set[date]:
    """The days of a table that the target has built, with changed rows or not."""
    since = target.fork_version(ledger.table.name)
    return {day for day, record in ledger.latest.items() if record.version > since}


def days_to_clone(
    deployment: Deployment, target: ShadowTarget, name: str, days: Iterable[date] | None = None
) -> ClonedDays:
    """The built days of a target's table, to be copied to another log of the table.

    `days` limits them; None for all.
    """
    ledger = target.table_ledger(deployment, name)
    built = built_days(target, ledger)
    if days is not None:
        built.intersection_update(days)
    return ClonedDays(
        target.table_url(deployment, name), ledger, frozenset(built), target.fork_version(name)
    )


def refuse_migrated(deployment: Deployment, target: ShadowTarget, current: Ledgers) -> None:
    """Raise if a table was migrated since its fork was made, as the fork has the old columns.

    Raises:
        TargetError: a table was; the target's days cannot be switched over any more.
    """
    problems = []
    for name in target.tables:
        fork, production = target.table_ledger(deployment, name).metadata, current[name].metadata
        if (
            fork
            and production
            and (fork_version := read_schema_version(fork))
            != (version := read_schema_version(production))
        ):
            problems.append(
                f"{name} (its schema has version {version}, and the fork's {fork_version})"
            )
    if problems:
        raise TargetError(
            f"{', '.join(problems)}: the columns were changed since target {target.name} was made, "
            "and what it has built has the columns of then. Nothing was written, and production is "
            f"as it was. Drop the target (`backfill-assets drop {target.name}`), and build the "
            "days into a new one."
        )


def refuse_external_changes(deployment: Deployment, target: ShadowTarget, current: Ledgers) -> None:
    """Raise if another writer has changed days that a target has built, since it was pinned.

    Raises:
        TargetError: a writer has; a switch-over would lose its rows.
    """
    problems = []
    for name in target.tables:
        pin = target.pins[name]
        external_days = {
            day
            for commit in (current[name].external_commits if name in current else ())
            if pin is not None and commit.version > pin
            for day in commit.days
            # A day that production has published since has none of their rows left.
            if current[name].current_record(day) is None
        }
        if overwritten := external_days & built_days(target, target.table_ledger(deployment, name)):
            problems.append(f"{name} [{format_ranges(overwritten)}]")
    if problems:
        undo_advice = (
            f"Switch-over {target.switch_id} stays where it is: undo it "
            f"(`backfill-assets undo {target.switch_id}`), or their change, and ask again."
        )
        drop_advice = (
            "Nothing was written. Launch these days again in production, or drop the target "
            f"(`backfill-assets drop {target.name}`) and begin again."
        )
        raise TargetError(
            f"others have changed {', '.join(problems)} in production since target {target.name} "
            "saw it, and the target would replace what they wrote. "
            + (undo_advice if target.switching else drop_advice)
        )
