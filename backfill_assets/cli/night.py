"""The command `night`: the runs of schedule and sensors."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.parameters import Day, dagster_home
from backfill_assets.cli.runs import run_days
from backfill_assets.deployment import Deployment
from backfill_assets.settings import load_settings

if TYPE_CHECKING:
    from backfill_assets.monitoring.next_runs import NightResult, Request, RunPlanner


@command("night", "night --run --as-of 2024-01-22")
@click.option("--run", is_flag=True, help="Run them, until nothing is left to do.")
@click.option("--as-of", metavar="DAY", type=Day(), help="The business day; else today.")
def night(out: Output, run: bool, as_of: date | None) -> Status:
    """What tonight's runs would be, as commands; with --run, run them.

    In the order in which schedule and sensors would. It ends with 1 if a run failed.
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
            tables_in_progress, instance, deployment.tables, daemon=not missing_daemons(instance)
        )
        for log, message in () if out.quiet else planner.no_data_warnings(today).items():
            # As a shell comment: the commands below it may be piped into a shell.
            out.print_command(f"# {log}: {message}.")
        if not run:
            _print_commands(
                out, planner, today, *planner.next_batch(today, find_busy_tables(), list)
            )
            _note_days_left_out(out, planner, today)
            return Status.FINE
        result = run_night(
            planner, today, find_busy_tables, partial(_run_request, out, planner, folder)
        )
        if not find_busy_tables() and not state_store.active_ids(instance):
            save_consistent_versions(deployment, now)
        status = _report_result(out, today, result)
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
        return f"# As of {today} all that has landed is loaded, and every open day is built."
    if kind == LOAD:
        return f"# As of {today}: load, in this order. Then ask again: what it changed is rebuilt."
    return f"# As of {today}: rebuild. Then ask again, until nothing is left."


def _report_result(out: Output, today: date, result: NightResult) -> Status:
    """Print failed requests and those left to other runs; `FINDING` if any failed."""
    for request in result.waiting:
        out.print_text(f"Left     {request.tables[0]} [{request.window}] to a run under way")
    for request in result.failed:
        out.print_text(f"FAILED   {', '.join(request.tables)} [{request.window}]")
    if result.failed:
        out.print_text(
            "Next     mend what the runs above say and ask again: only what is not built"
        )
        out.print_text("         as it should be is run. The days that passed are published.")
        return Status.FINDING
    out.print_text(f"Night    {today}: {len(result.succeeded)} run(s), nothing is left to do")
    return Status.FINE


@contextlib.contextmanager
def _home_or_temporary() -> Iterator[str]:
    """Dagster's home; if not set, a temporary one until the command ends.

    Dagster would create one for each run, with any dagster.yaml of the current folder.
    """
    if folder := dagster_home():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="backfill_assets-") as temporary:
        Path(temporary, "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        yield temporary


def _run_request(
    out: Output, planner: RunPlanner, folder: str, kind: str, request: Request
) -> bool:
    """Run a request in a process of its own; whether it succeeded."""
    from backfill_assets.monitoring.next_runs import LOAD, assets_of
    from backfill_assets.publish.types import NIGHT_TAG

    activity = "Loading" if kind == LOAD else "Building"
    out.print_note(f"{activity} {', '.join(request.tables)} for {request.window} ...")
    assets = assets_of(request.tables, planner.deployment.tables)
    return run_days(out, folder, assets, request.window, {NIGHT_TAG: "true"})
