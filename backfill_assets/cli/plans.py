"""Plans of backfills: `plan`, `plans`. Nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.output import Output, command
from backfill_assets.cli.parameters import (
    ChunkDays,
    Partitions,
    asset_graph,
    json_option,
    open_instance,
    select_option,
)
from backfill_assets.cli.targets import plan_target, target_option
from backfill_assets.settings import Settings, load_settings

if TYPE_CHECKING:
    import dagster as dg

    from backfill_assets.backfills.plans import BackfillPlan, BackfillRequest
    from backfill_assets.calendar.partitions import Window
    from backfill_assets.delta.ledgers import Ledgers


def backfill_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what a backfill is to do: the fields of `plans.BackfillRequest`."""
    for option in reversed(
        (
            select_option,
            click.option(
                "--pilot-days",
                type=click.IntRange(min=0),
                default=0,
                help="So many days first, reconciled before the rest.",
            ),
            click.option(
                "--chunk-days",
                type=ChunkDays(),
                default="auto",
                show_default=True,
                help="Stages of so many days, each reconciled before the next; auto: of about the "
                "same work if days differ much, else one; none: one.",
            ),
            click.option(
                "--max-parallel",
                type=click.IntRange(1, 7),
                help="So many runs at a time; else what the run queue allows.",
            ),
            click.option(
                "--write-mode",
                type=click.Choice(["overwrite", "merge"]),
                default="overwrite",
                show_default=True,
                help="Replace whole days, or only the rows that differ.",
            ),
            click.option("--rewrite", is_flag=True, help="Also what would be identical."),
            click.option(
                "--accept",
                multiple=True,
                metavar="FILE",
                help="A landing file that may take lines away. May be given again.",
            ),
            click.option("--reason", default="", help="Why, for the record."),
        )
    ):
        function = option(function)
    return function


@command(
    "plan 2024-01-10...2024-01-14 --pilot-days 1",
    "plan 2024-01-10 --select stg_orders,fact_daily_orders --json",
)
@click.argument("partitions", type=Partitions())
@backfill_options
@target_option
@json_option
def plan(out: Output, partitions: Window, target: str, as_json: bool, **options: Any) -> None:
    """What a backfill of these days would do, kept under an id.

    PARTITIONS are FIRST...LAST, or one day. Nothing is computed. Needs DAGSTER_HOME. With --target
    nothing is kept.
    """
    if target:
        plan_target(out, partitions, target, options)
        return
    settings = load_settings()
    with open_instance() as dagster:
        backfill_plan = plan_anew(settings, dagster, partitions, options)
    if as_json:
        out.print_json(backfill_plan.model_dump(mode="json"))
        return
    show_plan(out, backfill_plan)
    if backfill_plan.rewritten_final_days:
        out.print_text(
            f"{'final':14} {format_final_days(backfill_plan)} would be rewritten: the launch asks first"
        )
    out.print_text(f"Launch   backfill-assets backfill {backfill_plan.id}")


def plan_anew(
    settings: Settings, dagster: dg.DagsterInstance, days: Window, options: dict[str, Any]
) -> BackfillPlan:
    """A new plan, kept in Dagster's storage.

    Args:
        settings: the deployment's settings.
        dagster: the instance.
        days: the days that are asked for.
        options: the options of `parameters`, by name.

    Raises:
        click.UsageError: what is asked for cannot be planned.
    """
    from backfill_assets.backfills import jobs
    from backfill_assets.backfills.plans import BackfillRequest
    from backfill_assets.tables.code_version import running_code

    request = BackfillRequest(days=str(days), **options)
    _refuse_impossible(settings, request)
    code = running_code(settings)
    return jobs.create_plan(settings, asset_graph(settings), dagster, code, request)


def _refuse_impossible(settings: Settings, request: BackfillRequest) -> None:
    from backfill_assets.backfills.planning import refuse_invalid_request

    try:
        refuse_invalid_request(settings, request)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def show_plan(out: Output, backfill_plan: BackfillPlan) -> None:
    """Print what becomes of each day, and what it costs."""
    from rich.table import Table as Grid

    from backfill_assets.backfills.plans import day_rows, plan_facts

    grid = Grid(
        title=f"Plan {backfill_plan.id}", title_justify="left", box=None, padding=(0, 2, 0, 0)
    )
    for heading in ("table", "what becomes of them", "why", "days"):
        grid.add_column(heading, no_wrap=True)
    rows = list(day_rows(backfill_plan))
    for row in rows:
        grid.add_row(*row)
    out.print_grid(grid)
    out.print_facts(plan_facts(backfill_plan))
    if any("other code" in reason for _, _, reason, _ in rows):
        out.print_note("If the other code makes the same rows: `backfill-assets accept-code`")


def format_final_days(backfill_plan: BackfillPlan) -> str:
    """The final days that a plan rewrites, for a reader."""
    from backfill_assets.calendar.partitions import format_ranges

    return ", ".join(
        f"{name} [{format_ranges(days)}]"
        for name, days in backfill_plan.rewritten_final_days.items()
    )


@command("plans", "plans --json")
@json_option
def plans(out: Output, as_json: bool) -> None:
    """The plans that are kept, and how far each has come.

    The newest comes last.
    """
    from backfill_assets.backfills import undertakings
    from backfill_assets.delta.reading import read_ledgers

    ledgers = read_ledgers(load_settings())
    with open_instance() as dagster:
        plan_rows = [_plan_row(dagster, ledgers, id_) for id_ in undertakings.list_ids(dagster)]
    if as_json:
        out.print_json(plan_rows)
        return
    if not plan_rows:
        out.print_text("no plan is kept; make one with `backfill-assets plan`")
        return
    from rich.table import Table as Grid

    grid = Grid(box=None, padding=(0, 2, 0, 0))
    for heading in ("plan", "made", "days", "tables"):
        grid.add_column(heading, no_wrap=True)
    for heading in ("state", "reason"):
        grid.add_column(heading)
    for row in plan_rows:
        tables = row["tables"]
        # As text: a reason is no markup.
        cells = [*list(row.values())[:3], tables[0] if len(tables) == 1 else str(len(tables))]
        grid.add_row(*cells, row["state"], row["reason"])
    out.print_grid(grid)


def _plan_row(dagster: dg.DagsterInstance, ledgers: Ledgers, id_: str) -> dict[str, Any]:
    from backfill_assets.backfills import stages, undertakings
    from backfill_assets.backfills.undo import reverted_by_table

    try:
        backfill_state = undertakings.load(dagster, id_)
    except (
        undertakings.BackfillRefusedError
    ) as error:  # kept by another version: the others are told
        unknown = {"made": "", "days": "", "tables": [], "state": str(error), "reason": ""}
        return {"plan": id_, **unknown}
    request = backfill_state.plan.parameters
    created_at = (
        f"{datetime.fromtimestamp(backfill_state.made).astimezone():%Y-%m-%d %H:%M}"
        if backfill_state.made
        else ""
    )
    state = (
        stages.describe_progress(dagster, backfill_state)
        if backfill_state.attempt or backfill_state.ended
        else "not launched"
    )
    if any(reverted_by_table(ledgers, id_).values()):
        state += "; undone since, or days of it"
    return {
        "plan": id_,
        "made": created_at,
        "days": request.days,
        "tables": list(request.tables),
        "state": state,
        "reason": request.reason,
    }
