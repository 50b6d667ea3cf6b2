"""The commands `targets`, `compare`, `switch` and `drop`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli import parameters
from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.runs import run_job
from backfill_assets.deployment import Deployment
from backfill_assets.report import ReportTable
from backfill_assets.settings import load_settings

if TYPE_CHECKING:
    from backfill_assets.calendar.partitions import Window
    from backfill_assets.delta.targets import Target


@command("targets", "targets --json")
@parameters.json_option
def targets(out: Output) -> None:
    """The targets that there are, and how far each has come."""
    from backfill_assets.delta import targets as known

    deployment = Deployment(load_settings())
    rows = [target_row(deployment, name) for name in known.list_targets(deployment)]
    out.print_json(rows)
    if not rows:
        out.print_text(
            "there is no target; make one with `backfill-assets backfill DAYS --target NAME`"
        )
        return
    headings = ("target", "made", "days", "tables", "state", "comparison", "reason")
    cells = [[str(row[heading]) for heading in headings] for row in rows]
    out.print_table(ReportTable.from_rows(headings, cells, sentences=["reason"]))


def target_row(deployment: Deployment, name: str) -> dict[str, Any]:
    """A row of `targets`, by the names of its columns."""
    from backfill_assets.delta import targets as known

    try:
        target = known.load_target(deployment, name)
    except known.TargetError as error:  # built by another version: show the other targets
        unknown = {"made": "", "days": "", "tables": "", "state": str(error), "comparison": ""}
        return {"target": name, **unknown, "reason": "", "paths": {}}
    return {
        "target": target.name,
        "made": f"{datetime.fromtimestamp(target.made).astimezone():%Y-%m-%d %H:%M}",
        "days": ", ".join(target.requested_days),
        "tables": ", ".join(target.tables),
        "state": _describe_state(deployment, target),
        "comparison": _describe_comparison(target),
        "reason": target.reason,
        "paths": {table: target.table_url(deployment, table) for table in target.tables},
    }


def _describe_comparison(target: Target) -> str:
    """The result of the last comparison, and whether a switch-over needs one."""
    text = "none"
    if target.compared:
        count = len(target.compared.problems)
        text = f"{count} problem(s)" if count else "passed"
    return text if target.required is None else f"{text} (required {target.required})".rstrip()


def _describe_state(deployment: Deployment, target: Target) -> str:
    """The state as text; an unfinished drop, undo or switch-over comes before any other."""
    from backfill_assets.shadow.switch import has_days_in_production

    state = "built beside production"
    if target.dropping:
        state = "being dropped"
    elif target.undoing:
        state = f"undo of {target.undoing} has not ended"
    elif target.switching:
        state = f"switch-over {target.switch_id} has not ended"
    elif target.switches:
        state = f"switched over: {target.switch_id}"
        if not has_days_in_production(deployment, target):
            state += ", and production has no day of it now"
    return state


@command("compare v2", "compare v2 --most-drift 0.25 --require")
@click.argument("target", metavar="TARGET")
@click.option("--most-drift", type=float, help="The most that a column may have drifted (PSI).")
@click.option(
    "--most-rows",
    type=float,
    help="The share by which a table may have more or fewer rows: 0.01 for one in a hundred.",
)
@click.option(
    "--require/--no-require",
    default=None,
    help="From now on, no switch-over without a passed comparison with these bounds.",
)
@parameters.json_option
def compare(
    out: Output,
    target: str,
    most_drift: float | None,
    most_rows: float | None,
    require: bool | None,
) -> Status:
    """Compare a target with production.

    By table and day: rows, keys, totals, SHA-256; drift, and rows that differ. It ends with 1 if a
    day does not add up, or a bound is not kept. Bounds are those given, or else those that a
    switch-over requires.
    """
    from backfill_assets.backfills.diff import as_table, report_values
    from backfill_assets.delta.targets import ComparisonLimits
    from backfill_assets.shadow.compare import compare_target, require_comparison
    from backfill_assets.spark.session import Engine

    deployment = Deployment(load_settings())
    loaded_target = _find_target(deployment, target)
    given_limits = ComparisonLimits(most_drift=most_drift, most_rows=most_rows)
    limits = given_limits if str(given_limits) else loaded_target.required or given_limits
    if require is not None:
        loaded_target = require_comparison(deployment, loaded_target, limits if require else None)
    spark = Engine.from_settings(deployment.settings).spark_session
    comparison = compare_target(
        deployment,
        spark,
        loaded_target,
        deployment.code,
        limits,
    )
    out.print_json({"problems": comparison.problems, **report_values(comparison.reports)})
    out.print_text("\n".join(comparison.problems) or f"{target}: all days add up")
    for report in comparison.reports:
        out.print_table(as_table(report))
    return Status.FINDING if comparison.problems else Status.FINE


@command("switch v2", "switch v2 --days 2024-01-12...2024-01-14 --reason canary")
@click.argument("target", metavar="TARGET")
@parameters.partitions_option("follows from them")
@click.option("--reason", default="", help="Why, for the record.")
def switch(out: Output, target: str, partitions: Window | None, reason: str) -> None:
    """Make the days of a target production.

    One metadata commit a table; nothing is copied. One that was interrupted is finished.
    """
    deployment = Deployment(load_settings())
    _find_target(deployment, target)
    with parameters.open_instance() as dagster:
        op_config = {"target": target, "days": str(partitions or ""), "reason": reason}
        run_id = run_job(out, dagster, "switch_over", "adopt_days", op_config).id
    loaded_target = _find_target(deployment, target)
    out.print_text(f"Switched {loaded_target.switch_id} by run {run_id[:8]}")
    out.print_note(f"Back     backfill-assets undo {loaded_target.switch_id}")


@command("drop v2")
@click.argument("target", metavar="TARGET")
def drop(out: Output, target: str) -> None:
    """Remove a target, with the files that it alone has.

    Production keeps what was switched over.
    """
    from backfill_assets.delta import targets

    deployment = Deployment(load_settings())
    _find_target(deployment, target)
    count = targets.drop_target(deployment, target)
    out.print_text(f"Dropped  {target}, with {count:,} data file(s) of its own")


def _find_target(deployment: Deployment, name: str) -> Target:
    from backfill_assets.delta import targets as known

    names = known.list_targets(deployment)
    if name not in names:
        raise click.UsageError(parameters.unknown_name_message("target", name, names))
    return known.load_target(deployment, name)
