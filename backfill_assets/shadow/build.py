"""A target's tables and days: which are stale, and their build beside production.

The assets compute and audit the days as in any run. Dagster's instance gets no events, as no table
of production changes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from tempfile import TemporaryDirectory
from typing import NamedTuple

import dagster as dg
import msgspec

from backfill_assets.audit.checks import failure_text
from backfill_assets.backfills.backfill_plan import BackfillRequest, DayOutcome
from backfill_assets.backfills.forecast import DayForecast, forecast_days
from backfill_assets.backfills.planner import days_by_table, split_runs
from backfill_assets.calendar import partitions
from backfill_assets.dagster_ext.failures import run_failure_message
from backfill_assets.delta import targets
from backfill_assets.delta.ledger_reader import read_ledger, read_ledgers
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.table_schema import read_schema_version
from backfill_assets.delta.targets import Target, TargetError
from backfill_assets.deployment import ENGINE_KEY, IO_MANAGER_KEY, Deployment
from backfill_assets.publish.adopt import ClonedDays, Origin, adopt_files
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.publish.publisher import Destination, Publisher
from backfill_assets.publish.types import REASON_TAG, Candidate, DayResult, Delivery, Outcome
from backfill_assets.staleness.snapshot import Snapshot, SwitchedLedger, input_digests
from backfill_assets.staleness.stale import dependent_days
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.derived import Current
from backfill_assets.tables.graph import buildable_tables
from backfill_assets.tables.table import Table, run_tags


@dataclass(frozen=True)
class TargetDestination(Destination):
    """The clones of a target: tables are read as the target sees them, and days go into its clones.

    Attributes:
        deployment: whose tables they are.
        target: the target.
        results: of all published days so far.
    """

    deployment: Deployment
    target: Target
    results: list[tuple[Table, DayResult]] = field(default_factory=list)

    merges = False

    def url(self, table: Table) -> str:
        """Location of a table: the clone, if the target has one."""
        return self.target.table_url(self.deployment, table.name)

    def ledger(self, table: Table) -> Ledger:
        """The ledger of a table as the target sees it."""
        return self.target.table_ledger(self.deployment, table.name)

    def data_url(self, table: Table) -> str:
        """The production table's folder: a clone's data files are written there."""
        return self.deployment.table_url(table.name)

    def deliver(self, publisher: Publisher, candidates: Sequence[Candidate]) -> Iterator[Delivery]:
        """Publish as in any run, and keep the results."""
        for delivery in super().deliver(publisher, candidates):
            for candidate, results in delivery:
                self.results.extend((candidate.plan.table, result) for result in results)
            yield delivery


class StageResult(NamedTuple):
    """The result of a stage of a shadow backfill.

    Attributes:
        name: the stage's name.
        window: its days.
        counts: number of days by table and outcome.
        failure: error messages of the steps; empty if nothing failed.
    """

    name: str
    window: partitions.Window
    counts: Mapping[str, Mapping[Outcome, int]]
    failure: str = ""

    @property
    def counts_as_text(self) -> dict[str, str]:
        """The number of days by outcome as text, by table."""
        return {
            table: ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
            for table, counts in self.counts.items()
        }


def prepare_target(
    publisher: DeltaIOManager, deployment: Deployment, name: str, request: BackfillRequest
) -> Target:
    """Create the target, or let an existing one catch up and add the requested days.

    Raises:
        TargetError: it cannot be created like this, or exists with other tables.
        CloneError: a table cannot be cloned.
    """
    if name not in targets.list_targets(deployment):
        tables = target_tables(deployment, request.tables)
        new = targets.new_target(deployment, name, tables, request.window, request.reason)
        return targets.save_target(deployment, targets.clone_tables(deployment, new))
    target = targets.load_target(deployment, name)
    if (
        request.tables
        and (requested_tables := target_tables(deployment, request.tables)) != target.tables
    ):
        raise TargetError(
            f"target {name} has the tables {', '.join(target.tables)}, and not "
            f"{', '.join(requested_tables)}: take another name for these"
        )
    target = catch_up(publisher, deployment, target)
    days = {day for window in (*target.requested_windows, request.window) for day in window}
    return targets.save_target(
        deployment, target.model_copy(update={"requested_days": tuple(partitions.to_ranges(days))})
    )


def catch_up(publisher: DeltaIOManager, deployment: Deployment, target: Target) -> Target:
    """Let a target see production as of now: clone its tables again, and keep its built days.

    Raises:
        TargetError: another writer has changed days that the target has built, or a table of it was
            migrated.
        PublishError: files of days that it has built are deleted.
    """
    targets.raise_if_busy(target)
    tables, current = deployment.tables, read_ledgers(deployment)
    pins = {name: ledger.version for name, ledger in current.items()}
    if pins == target.pins:
        return target
    refuse_migrated(deployment, target, current)
    refuse_external_changes(deployment, target, current)
    updated = target.model_copy(
        update={"pins": pins, "requested_days": _requested_ranges(target, current)}
    )
    if all(pins[name] == target.pins[name] for name in target.tables):
        return targets.save_target(deployment, updated)
    updated = targets.clone_tables(deployment, updated)
    target_publisher = publisher.with_destination(
        TargetDestination(deployment.settings.warehouse, deployment, updated)
    )
    for name in target.tables:
        cloned, table = days_to_clone(deployment, target, name), tables[name]
        if cloned.days:
            record = target_publisher.run_metadata(table, f"target {target.name}", {})
            adopt_files(
                cloned,
                target_publisher.writer(table),
                partial(target_publisher.ledger, table),
                record,
                partial(
                    translate_origin,
                    deployment,
                    updated,
                    cloned.ledger,
                    partial(updated.table_ledgers, deployment),
                ),
            )
    return targets.save_target(deployment, updated)


def translate_origin(
    deployment: Deployment,
    target: Target,
    clone: Ledger,
    ledgers: Callable[[], Ledgers],
    days: Iterable[date],
) -> Origin:
    """Provenance of days of a clone, for another log of the same table.

    For an input that the target has too, its current version in the destination is named if it has
    the same content for the day as the clone's input. Otherwise no version is named, and the day is
    stale. `ledgers` reads the ledgers of all tables at the destination.
    """
    days, name, destination = sorted(days), clone.table.name, ledgers()
    inputs = clone.table.inputs(deployment.policy)
    # A stateful table reads its previous days, which are copied together with these days.
    clone_contents = {(name, day): clone.content_key(day) for day in days}
    digests = input_digests(inputs, destination, days, destination[name].references, clone_contents)
    differing_days = {d for d in days if clone.latest[d].days[d].input_digest != digests[d]}
    clone_ledgers = {table: target.table_ledger(deployment, table) for table in target.tables}

    def holds_same_input(day: date, table: str, version: int) -> bool:
        """Whether an input has the same content for the day in the destination as in the clone."""
        dependencies = tuple(dependency for dependency in inputs if dependency.source.name == table)
        # The previous state of a stateful table may be from the same commit.
        clone_version = clone.latest[day].version if table == name else version
        past_ledgers = {table: clone_ledgers[table].as_of(clone_version)}
        made_from = input_digests(dependencies, past_ledgers, [day])
        return made_from == input_digests(
            dependencies, destination, [day], content_overrides=clone_contents
        )

    def input_versions(day: date) -> dict[str, int]:
        """The input versions to record; an input without one makes the day stale."""
        return {
            table: (destination[table].version or 0) if table in target.tables else version
            for table, version in clone.latest[day].day_provenance(day).inputs.items()
            if table not in target.tables
            or day not in differing_days
            or holds_same_input(day, table, version)
        }

    provenances = {
        day: msgspec.structs.replace(
            clone.latest[day].day_provenance(day), inputs=input_versions(day)
        )
        for day in days
    }
    return Origin(provenances, {day: digests[day] for day in differing_days})


def _requested_ranges(target: Target, current: Ledgers) -> tuple[str, ...]:
    """The requested days, extended to the newest day of production if the request is open-ended."""
    newest = max(
        (day for name in target.tables for day in current[name].published_days), default=None
    )
    last = target.requested_windows[-1]
    if not target.newest or newest is None or newest < last.end:
        return target.requested_days
    return (
        *target.requested_days[:-1],
        str(partitions.Window(last.start, newest + partitions.DAY)),
    )


def build_stages(
    publisher: DeltaIOManager,
    deployment: Deployment,
    assets: Sequence[dg.AssetsDefinition],
    target: Target,
    request: BackfillRequest,
) -> Iterator[StageResult]:
    """Build days into a target, stage by stage; stops after a stage with failed days.

    Days of the target that are up to date are skipped, so an interrupted build continues.

    Raises:
        TargetError: another command has cloned its tables again meanwhile.
    """
    destination = TargetDestination(deployment.settings.warehouse, deployment, target)
    target_publisher = publisher.with_destination(destination)
    resources = {
        deployment.resource_key(IO_MANAGER_KEY): target_publisher.as_definition(),
        deployment.resource_key(ENGINE_KEY): dg.ResourceDefinition.hardcoded_resource(
            publisher.engine
        ),
    }

    def build_run(home: str, selection: Sequence[str], days: partitions.Window) -> list[str]:
        """Build days of some tables, and return what failed."""
        with dg.DagsterInstance.ephemeral(tempdir=home) as instance:
            result = dg.materialize(
                assets,
                selection=[*map(deployment.asset_key, selection)],
                instance=instance,
                resources=resources,
                tags={
                    REASON_TAG: request.reason or target.reason,
                    **run_tags([deployment.tables[name] for name in selection], days),
                },
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
                raise_on_error=False,
            )
            failures = []
            if failed := _missed_days(deployment, target, target_publisher, result.run_id):
                failures.append(failure_text(failed, "build the same into the target again"))
            if not result.success:
                failures.append(run_failure_message(instance, result.run_id))
            return failures

    parallel = request.max_parallel or 1
    with ThreadPoolExecutor(parallel) as pool, TemporaryDirectory() as home:
        # One run at a time stays in this thread, where Ctrl-C ends it.
        map_runs = pool.map if parallel > 1 else map
        for name, window in request.split_stages():
            reported, failures = len(destination.results), list[str]()
            days = days_of_target(deployment, target, window)
            for names, windows in split_runs(deployment, days):
                for run_failures in map_runs(partial(build_run, home, names), windows):
                    failures.extend(run_failures)
            if targets.load_target(deployment, target.name).generation != target.generation:
                raise TargetError(
                    f"another command has let target {target.name} catch up with production since "
                    "this build began: what was built is not in it. Ask for the same again."
                )
            yield _stage_result(name, window, destination.results[reported:], "\n".join(failures))
            if failures:
                return


def _missed_days(
    deployment: Deployment,
    target: Target,
    target_publisher: DeltaIOManager,
    run_id: str,
) -> dict[str, dict[date, str]]:
    """By table, the days that a run failed to publish, without days that cannot be built yet."""
    failed = {
        name: by_day for name, by_day in target_publisher.failed_days(run_id).items() if by_day
    }
    if not failed:
        return {}
    stale = stale_days(deployment, target, target_publisher.deployment.code, pinned=True)
    missed = {
        name: {day: text for day, text in by_day.items() if day in stale.get(name, ())}
        for name, by_day in failed.items()
    }
    return {name: by_day for name, by_day in missed.items() if by_day}


def _stage_result(
    name: str, window: partitions.Window, results: Sequence[tuple[Table, DayResult]], failure: str
) -> StageResult:
    """The result of a stage, with the number of its days by table and outcome."""
    counts: dict[str, dict[Outcome, int]] = {}
    for table, result in results:
        table_counts = counts.setdefault(table.name, {})
        table_counts[result.outcome] = table_counts.get(result.outcome, 0) + 1
    return StageResult(name, window, counts, failure)


def target_tables(deployment: Deployment, chosen: Sequence[str]) -> tuple[str, ...]:
    """The tables of a target: the chosen tables, and all tables downstream of them.

    Without chosen tables: all that are not loaded from files. A `current_table` of a table is
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
    target: Target,
    only_days: partitions.Window | None = None,
) -> dict[str, list[date]]:
    """The days of each table of a target: requested days and the days downstream of them.

    `only_days` limits the requested days; None for all.
    """
    days_by_name: dict[str, set[date]] = {name: set() for name in target.tables}
    for window in [only_days] if only_days else target.requested_windows:
        for name, window_days in days_by_table(deployment, target.tables, window).items():
            days_by_name[name].update(window_days)
    ledgers = {name: target.table_ledger(deployment, name) for name in target.tables}
    all_days = dependent_days(Snapshot.from_deployment(deployment, ledgers), days_by_name)
    return {name: sorted(days) for name, days in all_days.items() if days}


def stale_days(
    deployment: Deployment,
    target: Target,
    code: Code,
    only_days: partitions.Window | None = None,
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
        clones = {name: ledgers[name] for name in target.tables}
        ledgers = {
            **ledgers,
            **{
                name: SwitchedLedger.from_clone(clone, built_days(target, clone), production[name])
                for name, clone in clones.items()
            },
        }
    days = days_of_target(deployment, target, only_days)
    snapshot = Snapshot.from_deployment(deployment, ledgers, code=code)
    stale: dict[str, dict[date, DayForecast]] = {}
    for name, forecasts in forecast_days(snapshot, days).items():
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


def describe_missing_days(deployment: Deployment, target: Target, code: Code) -> Iterator[str]:
    """One sentence for each table about requested days that the target has not built."""
    for name, forecasts in stale_days(deployment, target, code, pinned=True).items():
        if missing := forecasts.keys() - built_days(target, target.table_ledger(deployment, name)):
            reasons = ", ".join(sorted({forecasts[day].reason for day in missing}))
            yield f"{name} [{partitions.format_ranges(missing)}] is not built ({reasons})"


def built_days(target: Target, ledger: Ledger) -> set[date]:
    """The days of a table that the target has built, with changed rows or not."""
    since = target.cloned_version(ledger.table.name)
    return {day for day, record in ledger.latest.items() if record.version > since}


def days_to_clone(
    deployment: Deployment, target: Target, name: str, days: Iterable[date] | None = None
) -> ClonedDays:
    """The built days of a target's table, to be copied to another log of the table.

    `days` limits them; None for all.
    """
    ledger = target.table_ledger(deployment, name)
    built = built_days(target, ledger)
    if days is not None:
        built.intersection_update(days)
    return ClonedDays(
        target.table_url(deployment, name), ledger, frozenset(built), target.cloned_version(name)
    )


def refuse_migrated(deployment: Deployment, target: Target, current: Ledgers) -> None:
    """Raise if a table was migrated since its clone was made, as the clone has the old columns.

    Raises:
        TargetError: a table was; the target's days cannot be switched over any more.
    """
    problems = []
    for name in target.tables:
        clone, production = target.table_ledger(deployment, name).metadata, current[name].metadata
        if (
            clone
            and production
            and (clone_version := read_schema_version(clone))
            != (version := read_schema_version(production))
        ):
            problems.append(
                f"{name} (its schema has version {version}, and the clone's {clone_version})"
            )
    if problems:
        raise TargetError(
            f"{', '.join(problems)}: the columns were changed since target {target.name} was made, "
            "and what it has built has the columns of then. Nothing was written, and production is "
            f"as it was. Drop the target (`backfill-assets drop {target.name}`), and build the "
            "days into a new one."
        )


def refuse_external_changes(deployment: Deployment, target: Target, current: Ledgers) -> None:
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
            problems.append(f"{name} [{partitions.format_ranges(overwritten)}]")
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
