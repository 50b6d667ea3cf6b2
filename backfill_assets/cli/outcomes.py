"""The commands after a backfill: `reconcile`, `undo` and `runbook`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli import parameters
from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.runs import JobFailedError, run_job
from backfill_assets.deployment import Deployment
from backfill_assets.report import Report, ReportTable
from backfill_assets.settings import load_settings

if TYPE_CHECKING:
    from datetime import date

    import dagster as dg

    from backfill_assets.calendar.partitions import Window
    from backfill_assets.delta.ledgers import Ledgers


@command("reconcile aecrkdop", "reconcile aecrkdop --summary", "reconcile aecrkdop-pilot --json")
@click.argument("backfill", metavar="BACKFILL")
@click.option("--summary", is_flag=True, help="Only the verdict.")
@parameters.json_option
def reconcile(out: Output, backfill: str, summary: bool) -> Status:
    """What a backfill changed, and whether it is all.

    BACKFILL is the id of a backfill or of a stage of it, or the first 8 characters of a run's. The
    verdict comes first. It ends with 1 if a day is missing or does not add up.
    """
    deployment = Deployment(load_settings())
    with parameters.open_instance() as dagster:
        refuse_unknown(deployment, dagster, backfill)
        values = _run_reconcile(out, dagster, backfill, details=out.json and not summary)
    out.print_json({**values["summary"], **values["details"]})
    report = Report.from_json(values["report"])
    out.print_report(Report(report.facts[:1]) if summary else report)
    return Status.FINE if values["summary"]["good"] else Status.FINDING


def _run_reconcile(
    out: Output, dagster: dg.DagsterInstance, name: str, *, details: bool
) -> dict[str, Any]:
    """Reconcile a backfill in a run of Dagster, and return the result as the run records it."""
    from backfill_assets.assets.backfill_jobs import RECONCILE_RESULT
    from backfill_assets.backfills.stages import RECONCILE_JOB

    config = {"backfill": name, "details": details}
    try:
        metadata = run_job(out, dagster, RECONCILE_JOB, "compare_days", config).metadata
    except JobFailedError as error:
        if RECONCILE_RESULT not in error.metadata:
            raise
        metadata = error.metadata
    values: Any = metadata[RECONCILE_RESULT].value
    return values


@command(
    "undo aecrkdop --plan",
    "undo aecrkdop --reason 'wrong file'",
    "undo aecrkdop --partitions 2024-01-12...2024-01-14",
)
@click.argument("backfill", metavar="BACKFILL")
@parameters.partitions_option("is made of them")
@parameters.part_option
@click.option("--reason", default="", help="Why, for the record.")
@click.option("--plan", is_flag=True, help="Show the tables and days. Nothing is put back.")
@parameters.json_option
def undo(out: Output, backfill: str, partitions: Window | None, reason: str, plan: bool) -> Status:
    """Put back what a backfill wrote, and what was made of it.

    BACKFILL is the id of a backfill or of a stage of it, or the first 8 characters of a run's. With
    --plan it ends with 1 if an undo would be refused.
    """
    from backfill_assets.backfills.undo import days_written_by_run
    from backfill_assets.tables.table import table_name

    deployment = Deployment(load_settings())
    with parameters.open_instance() as dagster:
        refuse_unknown(deployment, dagster, backfill)
        if plan:
            return _plan_undo(out, deployment, dagster, backfill, partitions)
        days = table_name(str(partitions or ""), parameters.chosen_part())
        op_config = {"backfill": backfill, "days": days, "reason": reason}
        run_id = run_job(out, dagster, "undo", "put_back", op_config).id
    tables = {
        name: _day_ranges(deployment, name, days)
        for name, days in days_written_by_run(deployment, run_id).items()
    }
    out.print_json({"run": run_id, "tables": tables})
    out.print_text(f"Undone   by run {run_id[:8]}, which can be undone as well")
    _show_days(out, [(name, "put back, or recorded anew", days) for name, days in tables.items()])
    return Status.FINE


def _plan_undo(
    out: Output,
    deployment: Deployment,
    dagster: dg.DagsterInstance,
    backfill: str,
    partitions: Window | None,
) -> Status:
    """Print what an undo would revert, or why it would be refused (`FINDING`); writes nothing."""
    from backfill_assets.backfills.undo import plan_undo
    from backfill_assets.shadow import switch
    from backfill_assets.tables.table import table_name

    part = parameters.chosen_part()
    options = {"--partitions": str(partitions or ""), "--part": part}
    chosen = [word for option, value in options.items() if value for word in (option, value)]
    partitions, _ = deployment.parse_days_and_part(table_name(str(partitions or ""), part))
    plan = plan_undo(deployment, backfill, partitions, part=part)
    problems = [*plan.problems]
    if not problems and (message := plan.explain_nothing_to_undo()):
        problems = [message]
    try:
        names = switch.resolve_names(deployment, backfill)
        switch.refuse_undo(deployment, dagster, names, partitions)
    except ValueError as error:
        problems.append(str(error))
    tables: dict[str, dict[str, list[str]]] = {}
    for name, scope in plan.scopes.items():
        days_by_outcome: dict[str, Iterable[date]] = {
            "put back": scope.changes,
            "recorded anew": scope.unchanged,
            "put back before": scope.already_reverted,
        }
        for outcome, days in days_by_outcome.items():
            if ranges := _day_ranges(deployment, name, days):
                tables.setdefault(name, {})[outcome] = ranges
    out.print_json({"backfill": backfill, "tables": tables, "problems": problems})
    _show_days(
        out,
        [
            (name, outcome, ranges)
            for name, ranges_by_outcome in tables.items()
            for outcome, ranges in ranges_by_outcome.items()
        ],
    )
    for problem in problems:
        out.print_text(f"Refused  {problem}")
    if not problems:
        out.print_note(f"Next     backfill-assets {shlex.join(['undo', backfill, *chosen])}")
    return Status.FINDING if problems else Status.FINE


def _day_ranges(deployment: Deployment, table: str, days: Iterable[date]) -> list[str]:
    tables = deployment.graph.all_tables  # with those of others, of which nothing is undone
    return [str(window) for window in tables[table].grain.gapless_ranges(days)]


def _show_days(out: Output, rows: Iterable[tuple[str, str, list[str]]]) -> None:
    """Print rows of table, outcome and day ranges; nothing if there are none."""
    cells = [(name, what, ", ".join(days)) for name, what, days in rows]
    if cells:
        headings = ("table", "outcome", "days")
        out.print_table(ReportTable.from_rows(headings, cells, sentences=["days"]))


def refuse_unknown(deployment: Deployment, dagster: dg.DagsterInstance, name: str) -> None:
    """Raise if no backfill, stage or run of that name is recorded; needs no Spark.

    Raises:
        click.UsageError: naming the most similar names.
        BackfillRefusedError: it is a plan of another deployment on the instance.
    """
    from backfill_assets.backfills import state_store
    from backfill_assets.backfills.changes import own_commits
    from backfill_assets.delta import targets
    from backfill_assets.delta.ledger_reader import read_ledgers

    ledgers = read_ledgers(deployment)
    plan = name.partition("-")[0]
    state_store.refuse_of_others(deployment, dagster, plan)
    # A run without a commit that Dagster knows can be reconciled as well.
    if (
        own_commits(ledgers, name)
        or dagster.get_backfill(name) is not None
        or dagster.get_run_by_id(name) is not None
        or (plan == name and plan in state_store.list_ids(dagster))
        # A switch-over that was killed before its first commit can be undone as well.
        or plan in targets.list_targets(deployment)
    ):
        return
    own_ids = state_store.own_ids(deployment, dagster, state_store.list_ids(dagster))
    known_names = [*dict.fromkeys([*_backfill_names(ledgers), *own_ids])]
    raise click.UsageError(parameters.unknown_name_message("backfill or run", name, known_names))


def _backfill_names(ledgers: Ledgers) -> Iterator[str]:
    """The ids in commits, the oldest first: of backfills, and of runs without one."""
    from backfill_assets.delta.ledgers import own_ledgers

    records = [record for ledger in own_ledgers(ledgers).values() for record in ledger.records]
    for record in sorted(records, key=lambda commit: commit.at.timestamp() if commit.at else 0):
        if record.backfill_id:
            # A planned backfill by its plan's id, without its stages.
            yield re.sub(r"-(pilot|rest|\d{3})(-\d+)?$", "", record.backfill_id)
        else:
            yield record.run_id[:8]


@command("runbook aecrkdop", "runbook aecrkdop --out incidents")
@click.argument("backfill", metavar="BACKFILL")
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write both pages into this folder; what a person has written there stays.",
)
def runbook(out: Output, backfill: str, folder: Path | None) -> None:
    """A post-mortem and a runbook of a backfill, in Markdown.

    From its plan, the tables' history and its runs in Dagster. BACKFILL is the id of a
    backfill or of a stage of it, or the first 8 characters of a run's. Nothing is computed.
    """
    from backfill_assets.backfills.history import read_history, render_postmortem, render_runbook
    from backfill_assets.delta.ledger_reader import read_ledgers

    deployment = Deployment(load_settings())
    with parameters.open_instance() as dagster:
        refuse_unknown(deployment, dagster, backfill)
        backfill_history = read_history(deployment, dagster, read_ledgers(deployment), backfill)
    pages = {
        "post-mortem": render_postmortem(backfill_history),
        "runbook": render_runbook(backfill_history),
    }
    if folder is None:
        click.echo("\n".join(pages.values()))
        return
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^-\w]", "_", backfill)
    for kind, text in pages.items():
        path = folder / f"{kind}-{name}.md"
        if path.exists() and not _is_unedited(path):
            out.print_text(f"{path} stays as it is: somebody has written in it")
            continue
        path.write_text(f"{_page_mark(text)}\n{text}", encoding="utf-8")
        out.print_text(f"{path}")


def _is_unedited(path: Path) -> bool:
    """Whether a page is unchanged since this command wrote it, so that no edit is lost."""
    mark, _, text = path.read_text(encoding="utf-8", errors="replace").partition("\n")
    return mark == _page_mark(text)


def _page_mark(text: str) -> str:
    """The first line of a page: a hidden comment in Markdown."""
    return f"<!-- backfill-assets runbook {sha256(text.encode()).hexdigest()[:16]} -->"
