"""The commands `show`, `status`, `history` and `metrics`: they compute nothing, start no JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli import parameters
from backfill_assets.cli.output import CannotRunError, Finding, Output, Status, command
from backfill_assets.deployment import Deployment
from backfill_assets.report import ReportTable
from backfill_assets.settings import PREFIX, load_settings

if TYPE_CHECKING:
    import dagster as dg

    from backfill_assets.calendar.partitions import Window
    from backfill_assets.delta.ledgers import Ledger
    from backfill_assets.monitoring.states import DayState, MonitoringSnapshot

_VERDICTS = ("ok", "warn", "alert")


@command("show", "show stg_orders fact_daily_orders --json")
@parameters.tables_parameters
@parameters.json_option
def show(out: Output, tables: Sequence[str]) -> None:
    """What is published of each table.

    TABLES are the same as those of --select.
    """
    deployment = open_deployment()
    rows = list(_published_rows(deployment, tables))
    out.print_json(rows)
    numbers = ("days", "rows", *_VERDICTS, "commits")
    headings = ("table", "days", "from...to", *numbers[1:])
    cells = map(_row_cells, rows)
    out.print_table(ReportTable.from_rows(headings, cells, title="Published", numbers=numbers))
    out.print_note(f"Tables   {deployment.settings.warehouse}/<table>")
    out.print_note(f"Landing  {deployment.settings.landing}/<source>/arrival_date=<day>/")
    out.print_note("Next     make ui, then launch a range of days; or run the same days again and")
    out.print_note("         see with `backfill-assets show` that not a row has changed")


def _published_rows(deployment: Deployment, tables: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of `show`, from the tables' logs; all tables if none is selected."""
    from backfill_assets.calendar.partitions import to_windows
    from backfill_assets.delta.ledger_reader import read_ledger

    known = deployment.tables
    for name in tables or known:
        ledger = read_ledger(deployment.table_url(name), known[name])
        verdicts = {day: record.days[day].verdict for day, record in ledger.latest.items()}
        counts = Counter(verdicts.values())
        yield {
            "table": name,
            "path": deployment.table_url(name),
            "version": ledger.version,
            "days": len(verdicts),
            "partitions": [str(window) for window in to_windows(verdicts)],
            "rows": sum((ledger.rows or {}).values()),
            "verdicts": {verdict: counts[verdict] for verdict in _VERDICTS},
            "commits": len(ledger.records),
        }


def _row_cells(row: dict[str, Any]) -> list[str]:
    """A row as text cells; a table without a version has fewer cells, and the grid fills them."""
    from backfill_assets.calendar.partitions import Window
    from backfill_assets.delta.history import format_windows

    if row["version"] is None:
        return [row["table"], "0", "no table yet"]
    days = format_windows([Window.parse(text) for text in row["partitions"]])
    counts = [str(count) for count in row["verdicts"].values()]
    return [row["table"], str(row["days"]), days, f"{row['rows']:,}", *counts, str(row["commits"])]


def open_deployment() -> Deployment:
    """The deployment of a command that reads the warehouse.

    Raises:
        CannotRunError: nothing exists at the location in the settings.
    """
    from backfill_assets.spark.filesystems import open_store

    deployment = Deployment(load_settings())
    filesystem, path = open_store(deployment.settings.warehouse)
    if filesystem.get_file_info(path).type.name == "NotFound":
        raise CannotRunError(
            f"there is no warehouse at {deployment.settings.warehouse}: nothing has been published "
            f"there yet, or {PREFIX}WAREHOUSE should name another place"
        )
    return deployment


@command("status", "status fact_daily_orders --json")
@parameters.tables_parameters
@parameters.json_option
def status(out: Output, tables: Sequence[str]) -> Status:
    """The state of the days of each table.

    TABLES are the same as those of --select. It ends with 1 if somebody has to do something about a
    day. Without DAGSTER_HOME it cannot know of days whose last run failed a check.
    """
    deployment = open_deployment()
    from backfill_assets.backfills.accept_code import days_by_reason
    from backfill_assets.calendar.partitions import format_ranges, to_ranges
    from backfill_assets.monitoring.incidents import final_days_behind
    from backfill_assets.monitoring.states import STATE_MEANINGS, days_by_state

    with _open_snapshot(deployment) as (snapshot, _):
        names = tables or deployment.tables
        states_by_table = {name: days_by_state(snapshot.states_of(name)) for name in names}
    states = dict.fromkeys(state for table_days in states_by_table.values() for state in table_days)
    table_states = {
        name: {state.value: to_ranges(days) for state, days in table_days.items()}
        for name, table_days in states_by_table.items()
    }
    good = all(state.is_good for state in states)
    out.print_json({"as_of": str(snapshot.today), "good": good, "tables": table_states})
    _show_states(out, snapshot.ledgers, states_by_table)
    for state in states:
        if not state.is_good:
            out.print_text(f"{state.value}: {STATE_MEANINGS[state]}")
    for name in states_by_table:
        for text, days in final_days_behind(name, snapshot).items():
            out.print_text(f"new input for final days: {name} [{format_ranges(days)}]; {text}")
        for text, days in days_by_reason(snapshot.ledgers[name], deployment.code).items():
            out.print_note(f"{name} [{format_ranges(days)}] was made by {text}")
    out.print_note(f"As of    {snapshot.today}")
    return Status.FINE if good else Status.FINDING


@contextmanager
def _open_snapshot(
    deployment: Deployment,
) -> Iterator[tuple[MonitoringSnapshot, dg.DagsterInstance]]:
    """The inputs of the day states, and Dagster's instance: without DAGSTER_HOME, an empty one."""
    import dagster as dg

    from backfill_assets.monitoring.incidents import read_snapshot

    with (
        parameters.open_instance()
        if parameters.dagster_home()
        else dg.DagsterInstance.ephemeral() as instance
    ):
        now = datetime.now(deployment.settings.zone)
        yield read_snapshot(deployment, instance, now), instance


def _show_states(
    out: Output,
    ledgers: Mapping[str, Ledger],
    states_by_table: dict[str, dict[DayState, list[date]]],
) -> None:
    """Print one line for each table and state, with the days as ranges."""
    from backfill_assets.delta.history import format_windows

    rows = []
    for name, days_by_state in states_by_table.items():
        for state, days in days_by_state.items():
            ranges = ledgers[name].table.grain.gapless_ranges(days)
            rows.append((name, state.value, str(len(days)), format_windows(ranges)))
        if not days_by_state:
            rows.append((name, "no day is due", "0", "none"))
    headings = ("table", "state", "days", "which")
    out.print_table(ReportTable.from_rows(headings, rows, numbers=["days"]))


@command("history fact_daily_orders", "history fact_daily_orders 2024-01-05")
@click.argument("table", type=parameters.Tables(single=True))
@click.argument("partitions", type=parameters.Partitions(), required=False)
@parameters.json_option
def history(out: Output, table: str, partitions: Window | None) -> None:
    """The commits of a table, or the life of a day of it.

    PARTITIONS are one day, or FIRST...LAST: then the commits that speak of these days. It ends with
    1 if there are none.
    """
    deployment = open_deployment()
    from backfill_assets.delta import history as commits

    try:
        if out.json:  # not both: each reads the whole log
            out.print_json(commits.commit_values(deployment, table, partitions))
        elif partitions is not None and len(partitions) == 1:
            out.print_table(commits.format_day_history(deployment, table, partitions.start))
        else:
            out.print_table(commits.format_history(deployment, table, partitions))
    except ValueError as error:  # no such commit
        raise Finding(f"{error}") from error


@command("metrics", "metrics --file backfill_assets.prom")
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Replace this file by them; else they are printed.",
)
def metrics(out: Output, file: Path | None) -> None:
    """States, backlog and incidents for Prometheus, in its text format.

    Without DAGSTER_HOME it cannot know of days whose last run failed a check, nor how long runs
    took.
    """
    deployment = open_deployment()
    from backfill_assets.monitoring.metrics import format_metrics, read_metrics, write_metrics

    with _open_snapshot(deployment) as (snapshot, instance):
        registry = read_metrics(deployment, snapshot, instance)
    if file:
        write_metrics(file, registry)
    else:
        click.echo(format_metrics(registry), nl=False)
