"""The commands that run assets: `materialize`, `close` and `reopen`, and `night`."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli import parameters
from backfill_assets.cli.outcomes import refuse_unknown
from backfill_assets.cli.output import CannotRunError, Output, Status, command
from backfill_assets.cli.runs import RunProcess
from backfill_assets.deployment import Deployment
from backfill_assets.settings import load_settings

if TYPE_CHECKING:
    import dagster as dg

    from backfill_assets.calendar.partitions import Window
    from backfill_assets.delta.ledgers import Ledgers
    from backfill_assets.monitoring.next_runs import NightResult, Request, RunPlanner
    from backfill_assets.tables.graph import Graph
    from backfill_assets.tables.table import Table


#: Among so many runs, one is found by the first characters of its id.
_RECENT_RUNS = 1000


@command(
    "materialize 2024-01-03,2024-01-09...11",
    "materialize --failed-of aecrkdop",
    "materialize --stale --yes",
)
@click.argument("partitions", type=parameters.Partitions(gaps=True), is_eager=True, required=False)
@parameters.select_option
@click.option("--failed-of", metavar="BACKFILL", help="Days that it launched and did not publish.")
@click.option("--stale", is_flag=True, help="Days behind their input, and those that read them.")
@click.option("--yes", is_flag=True, help="Rewrite final days without asking.")
def materialize(
    out: Output,
    partitions: Window | None,
    tables: tuple[str, ...],
    failed_of: str | None,
    stale: bool,
    yes: bool,
) -> Status:
    """Materialize any days of tables, in as few runs as possible.

    PARTITIONS are days and ranges with commas between them. BACKFILL is the id of a backfill or of
    a stage of it, or the first 8 characters of a run's. Exactly these days are built: gaps between
    them stay as they are. A run has at most BACKFILL_ASSETS_PARTITIONS_PER_RUN days (31), in 80
    ranges. Tables by week or month, or with other days, have runs of their own.
    Needs DAGSTER_HOME. It ends with 1 if a run failed.
    """
    if sum(map(bool, (partitions, failed_of, stale))) != 1:
        raise click.UsageError("give days, or --failed-of, or --stale")
    from backfill_assets.delta.ledger_reader import read_ledgers

    deployment = Deployment(load_settings())
    today = deployment.today
    fed_tables = deployment.graph.without_retired(today).tables
    if retired := [name for name in tables if name not in fed_tables]:
        raise click.UsageError(f"{', '.join(retired)} is retired, and no longer built")
    chosen = {name: fed_tables[name] for name in tables or fed_tables}
    tags: Mapping[str, str] = {}
    with parameters.open_instance() as dagster:
        if partitions:
            days_by_table = _find_partitions(out, deployment, chosen, partitions)
        else:
            ledgers = read_ledgers(deployment)
            if failed_of:
                days_by_table, tags = _find_unpublished(
                    deployment, dagster, ledgers, failed_of, chosen
                )
            else:
                days_by_table = _find_stale(deployment, ledgers, chosen, today)
            if not yes:
                words = ["--failed-of", failed_of] if failed_of else ["--stale"]
                select = ["--select", ",".join(tables)] if tables else []
                _confirm_final_days(deployment, ledgers, days_by_table, [*words, *select])
        status, built = Status.FINE, set[tuple[str, date]]()
        if not any(days_by_table.values()):
            out.print_text("There is nothing to build.")
        with RunProcess(out, dagster.root_directory) as process:
            while any(days_by_table.values()):
                status = max(status, _run_tables(out, deployment, process, days_by_table, tags))
                built |= {(name, day) for name, days in days_by_table.items() for day in days}
                # Days that were never published follow from those that are there now.
                stale_days = (
                    _find_stale(deployment, read_ledgers(deployment), chosen, today)
                    if stale
                    else {}
                )
                days_by_table = {
                    name: [day for day in days if (name, day) not in built]
                    for name, days in stale_days.items()
                }
        return status


_CLOSE_HELP = "Why, for the record."


@command("close visits 2024-01-06,2024-01-07 --reason 'public holiday'")
@click.argument("source")
@click.argument("partitions", type=parameters.Partitions(gaps=True), is_eager=True)
@click.option("--reason", required=True, help=_CLOSE_HELP)
def close(out: Output, source: str, partitions: Window, reason: str) -> Status:
    """Say that nothing will come for arrival days of a source.

    They are loaded as empty days, and no window waits for their folders any more. A folder that
    comes after all is loaded. Needs DAGSTER_HOME.
    """
    return _change_closing(out, source, partitions, reason, reopen=False)


@command("reopen visits 2024-01-06 --reason 'it comes on Monday'")
@click.argument("source")
@click.argument("partitions", type=parameters.Partitions(gaps=True), is_eager=True)
@click.option("--reason", required=True, help=_CLOSE_HELP)
def reopen(out: Output, source: str, partitions: Window, reason: str) -> Status:
    """Wait again for the folders of arrival days that were closed.

    Needs DAGSTER_HOME.
    """
    return _change_closing(out, source, partitions, reason, reopen=True)


def _change_closing(out: Output, source: str, days: Window, reason: str, *, reopen: bool) -> Status:
    """Close arrival days or open them again, by a run that loads them; `FINDING` if it failed."""
    from backfill_assets.monitoring.next_runs import assets_of
    from backfill_assets.publish.types import closing_tags
    from backfill_assets.staleness.unloaded import AFTER_CLOSING, refuse_closing

    deployment = Deployment(load_settings())
    declared_source = parameters.find_source(deployment, source)
    with parameters.open_instance() as dagster:
        try:
            refuse_closing(deployment, declared_source, days, reopen=reopen)
        except ValueError as error:
            raise CannotRunError(str(error)) from error
        tables = deployment.graph.loaded_with(declared_source.raw.name)
        assets, tags = assets_of(tables, deployment.tables), closing_tags(reason, reopen=reopen)
        with RunProcess(out, dagster.root_directory) as process:
            succeeded = process.run_days(assets, days, tags)
        if not succeeded:
            out.print_text("FAILED   see above; the days are as they were")
            return Status.FINDING
    verb = "Open     folders are waited for again:" if reopen else "Closed   nothing is waited for:"
    out.print_text(f"{verb} {declared_source.full_name} [{days}]")
    out.print_note(f"Next     {AFTER_CLOSING}")
    return Status.FINE


def _run_tables(
    out: Output,
    deployment: Deployment,
    process: RunProcess,
    days_by_table: Mapping[str, Sequence[date]],
    tags: Mapping[str, str],
) -> Status:
    """Materialize days of tables, inputs first, in as few runs as possible.

    After a run that failed, no table that reads one of its tables is built: its days would have the
    older rows.
    """
    from backfill_assets.backfills.planner import split_runs
    from backfill_assets.monitoring.next_runs import assets_of
    from backfill_assets.publish.types import later_days_tags
    from backfill_assets.tables.derived import carries_state

    failed_tables: set[str] = set()
    for names, windows in split_runs(deployment, days_by_table):
        upstream = {table for name in names for table in deployment.graph.upstream_tables(name)}
        upstream |= {name for name in names if carries_state(deployment.tables[name])}
        shown = ", ".join(deployment.graph.join_parts(names))
        for window in windows:
            if waits_for := deployment.graph.join_parts(sorted(upstream & failed_tables)):
                out.print_text(f"Left     {shown} [{window}], as {', '.join(waits_for)} failed")
                continue
            out.print_note(f"Building {shown} for {window} ...")
            # The tables of a group have the same days.
            later_days = [day for day in days_by_table[names[0]] if day >= window.end]
            run_tags = {**tags, **later_days_tags(later_days)}
            if not process.run_days(assets_of(names, deployment.tables), window, run_tags):
                failed_tables.update(names)
    if failed_tables:
        out.print_text("FAILED   see above; the days that passed are published")
        return Status.FINDING
    return Status.FINE


def _find_partitions(
    out: Output, deployment: Deployment, tables: Mapping[str, Table], window: Window
) -> dict[str, list[date]]:
    """The partitions of each table that contain some days, from its first one to the last due."""
    from backfill_assets.delta.history import format_windows

    graph, days_by_table = deployment.graph, {}
    for name, table in tables.items():
        exists = table.days_def(deployment.settings).has_partition_key
        partitions = table.grain.partitions_of(window)
        existing = [day for day in partitions if exists(str(day)) and graph.expects_day(name, day)]
        early = [day for day in existing if not graph.is_over(name, day, deployment.today)]
        days_by_table[name] = [day for day in existing if day not in early]
        for days, reason in (
            (
                [day for day in partitions if day not in existing],
                "not over, before the start, or after the end of a retired part",
            ),
            (early, "not due yet: lines of it are still to come"),
        ):
            if days:
                ranges = format_windows(table.grain.gapless_ranges(days))
                out.print_note(f"Left     {name} [{ranges}], which is {reason}")
    return days_by_table


def _find_unpublished(
    deployment: Deployment,
    dagster: dg.DagsterInstance,
    ledgers: Ledgers,
    name: str,
    tables: Mapping[str, Table],
) -> tuple[dict[str, list[date]], dict[str, str]]:
    """The days that a backfill or a run was to publish and did not, and the tags of its runs.

    Of a planned backfill, those of the stages that were launched.

    Raises:
        BackfillRefusedError: the backfill is active, or its plan cannot be read.
        CannotRunError: the run has not ended.
    """
    from backfill_assets.backfills import state_store
    from backfill_assets.backfills.reconcile import requested_days
    from backfill_assets.backfills.stages import PARALLEL_TAG
    from backfill_assets.calendar.partitions import DAYS_TAG
    from backfill_assets.monitoring.next_runs import BATCH_TAG
    from backfill_assets.publish.types import CODE_TAG, LATER_DAYS_TAG, NIGHT_TAG

    # A run that published nothing is known to Dagster alone.
    runs = [run for run in dagster.get_runs(limit=_RECENT_RUNS) if run.run_id.startswith(name)]
    # The job `backfill` names its plan by its own run.
    if len(runs) == 1 and len(name) == 8 and name not in state_store.list_ids(dagster):
        name = runs[0].run_id
    if unfinished := [run.run_id[:8] for run in runs if not run.is_finished]:
        raise CannotRunError(f"run {', '.join(unfinished)} has not ended: wait for it, or end it")
    refuse_unknown(deployment, dagster, name)
    backfill = state_store.find_ended_backfill(dagster, name)
    if backfill.plan_error and not backfill.launches:
        raise state_store.PlanUnreadableError(backfill.plan_error)
    unpublished, tags = set[tuple[str, date]](), dict[str, str]()
    launch_ids = [launch.backfill_id for launch in backfill.launches] if backfill.state else [name]
    for launch_id in launch_ids:
        launch = state_store.find_backfill(dagster, launch_id)
        requested = requested_days(deployment, dagster, ledgers, launch)
        unpublished |= requested.unpublished.keys()
        tags |= requested.tags
    # The mended days may need other code; the others are about how these runs came about.
    for tag in (CODE_TAG, DAYS_TAG, BATCH_TAG, NIGHT_TAG, LATER_DAYS_TAG, PARALLEL_TAG):
        tags.pop(tag, None)
    days_by_table = {
        table: sorted(day for other, day in unpublished if other == table) for table in tables
    }
    return days_by_table, tags


def _find_stale(
    deployment: Deployment, ledgers: Ledgers, tables: Mapping[str, Table], today: date
) -> dict[str, list[date]]:
    """The days behind their inputs, and those that read them, without days on hold, by table."""
    from dataclasses import replace

    from backfill_assets.staleness.snapshot import Snapshot
    from backfill_assets.staleness.stale import dependent_days, find_stale_days

    snapshot = Snapshot.from_deployment(deployment, ledgers, today)
    stale, graph = find_stale_days(snapshot), snapshot.graph.without_retired(today)
    stale_days = {name: stale.all_days(name) for name in graph.tables}
    dependent = dependent_days(replace(snapshot, graph=graph), stale_days)
    return {
        name: sorted(dependent.get(name, set()) - (ledgers[name].on_hold.keys() - stale_days[name]))
        for name in tables
    }


def _confirm_final_days(
    deployment: Deployment,
    ledgers: Ledgers,
    days_by_table: Mapping[str, Sequence[date]],
    arguments: Sequence[str],
) -> None:
    """Ask before final days are rewritten; `arguments` are those of the command.

    Raises:
        click.UsageError: nobody can be asked.
        CannotRunError: a person does not want it.
    """
    from backfill_assets.staleness.snapshot import Snapshot

    final_by_table = Snapshot.from_deployment(deployment, ledgers).final_by_table
    final = {
        name: days
        for name in days_by_table
        if (days := final_by_table.get(name, set()) & {*days_by_table[name]})
    }
    if final:
        command = shlex.join(["backfill-assets", "materialize", *arguments, "--yes"])
        parameters.confirm_final_days("the run", final, command)


@command("night", "night --run --as-of 2024-01-22")
@click.option("--run", is_flag=True, help="Run them, until nothing is left to do.")
@click.option("--as-of", metavar="DAY", type=parameters.Day(), help="The business day; else today.")
def night(out: Output, run: bool, as_of: date | None) -> Status:
    """What tonight's runs would be, as commands; with --run, run them.

    In the order in which schedule and sensors would. With --run, it ends with 1 if a run failed, or
    if days are behind their inputs and no run can build them, as inputs were made under other
    settings.
    """
    deployment = Deployment(load_settings())
    import dagster as dg

    from backfill_assets.backfills import state_store
    from backfill_assets.backfills.stages import missing_daemons
    from backfill_assets.monitoring.next_runs import RunPlanner, run_night, tables_in_progress
    from backfill_assets.shadow.switch import save_consistent_versions

    now = deployment.today
    planner, today = RunPlanner(deployment, now), as_of or now
    with _home_or_temporary() as folder, dg.DagsterInstance.from_config(folder) as instance:
        find_busy_tables = partial(
            tables_in_progress, instance, deployment, daemon=not missing_daemons(instance)
        )
        for log, message in () if out.quiet else planner.no_data_warnings(today).items():
            # As a shell comment: the commands below it may be piped into a shell.
            out.print_command(f"# {log}: {message}.")
        if not run:
            _print_commands(
                out, planner, today, *planner.next_batch(today, find_busy_tables(), list)
            )
            _note_days_left_out(out, planner, today)
            for table, days, reason in planner.blocked_days(today):
                out.print_command(f"# {_describe_blocked(table, days, reason)}")
            return Status.FINE
        with RunProcess(out, folder) as process:
            run_request = partial(_run_request, out, planner, process)
            result = run_night(planner, today, find_busy_tables, run_request)
        active_ids = state_store.active_ids(instance)
        if not find_busy_tables() and not state_store.own_ids(deployment, instance, active_ids):
            save_consistent_versions(deployment, now)
        blocked = [*planner.blocked_days(today)]
        status = _report_result(out, today, result, blocked, deployment.graph)
        _note_days_left_out(out, planner, today)
        return status


def _note_days_left_out(out: Output, planner: RunPlanner, today: date) -> None:
    """Name the days that no scheduled run builds, as shell comments."""
    from backfill_assets.calendar.partitions import format_ranges

    for table, days, reason in () if out.quiet else planner.days_for_a_person(today):
        ranges = format_ranges(days)
        out.print_command(
            f"# {table} [{ranges}] is {reason}: no schedule and no sensor builds it. To have it "
            f"built: backfill-assets materialize {ranges.replace(' ', '')} --select {table}, then "
            "backfill-assets materialize --stale"
        )


def _print_commands(
    out: Output, planner: RunPlanner, today: date, kind: str, requests: Sequence[Request]
) -> None:
    out.print_command(_describe_commands(today, kind, requests))
    for request in requests:
        out.print_command(shlex.join(planner.command_of(request)))


def _describe_commands(today: date, kind: str, requests: Sequence[Request]) -> str:
    """A shell comment above the commands: it tells what they do and whether to ask again."""
    from backfill_assets.monitoring.next_runs import LOAD

    if not requests:
        return f"# As of {today} all that has landed is loaded, and all is built that can be."
    if kind == LOAD:
        return f"# As of {today}: load, in this order. Then ask again: what it changed is rebuilt."
    return f"# As of {today}: rebuild. Then ask again, until nothing is left."


def _describe_blocked(table: str, days: Collection[date], reason: str) -> str:
    from backfill_assets.calendar.partitions import format_ranges

    return f"{table} [{format_ranges(days)}] is behind its inputs and cannot be built: {reason}"


def _report_result(
    out: Output,
    today: date,
    result: NightResult,
    blocked: Sequence[tuple[str, Collection[date], str]],
    graph: Graph,
) -> Status:
    """Print failed, blocked and waiting days; `FINDING` if any failed or cannot be built."""
    for request in result.waiting:
        out.print_text(f"Left     {request.tables[0]} [{request.window}] to a run under way")
    for request in result.failed:
        names = graph.join_parts(request.tables)
        out.print_text(f"FAILED   {', '.join(names)} [{request.window}]")
    for table, days, reason in blocked:
        out.print_text(f"Blocked  {_describe_blocked(table, days, reason)}")
    if result.failed:
        out.print_text(
            "Next     mend what the runs above say and ask again: only what is not built"
        )
        out.print_text("         as it should be is run. The days that passed are published.")
    if result.failed or blocked:
        return Status.FINDING
    out.print_text(f"Night    {today}: {len(result.succeeded)} run(s), nothing is left to do")
    return Status.FINE


@contextlib.contextmanager
def _home_or_temporary() -> Iterator[str]:
    """Dagster's home; if not set, a temporary one until the command ends.

    Dagster would create one for each run, with any dagster.yaml of the current folder.
    """
    if folder := parameters.dagster_home():
        yield str(folder)
        return
    with tempfile.TemporaryDirectory(prefix="backfill_assets-") as temporary:
        Path(temporary, "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        yield temporary


def _run_request(
    out: Output,
    planner: RunPlanner,
    process: RunProcess,
    kind: str,
    request: Request,
    later_days: Sequence[date],
) -> bool:
    """Run a request; whether it succeeded."""
    from backfill_assets.monitoring.next_runs import LOAD, assets_of
    from backfill_assets.publish.types import NIGHT_TAG, later_days_tags

    activity = "Loading" if kind == LOAD else "Building"
    names = planner.deployment.graph.join_parts(request.tables)
    out.print_note(f"{activity} {', '.join(names)} for {request.window} ...")
    assets = assets_of(request.tables, planner.deployment.tables)
    tags = {NIGHT_TAG: "true", **later_days_tags(later_days)}
    return process.run_days(assets, request.window, tags)
