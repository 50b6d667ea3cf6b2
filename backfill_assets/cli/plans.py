"""Plans of backfills: `plan`, `plans`. Nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.output import Output, command
from backfill_assets.cli.parameters import ChunkDays, Partitions, instance, json_option, selection
from backfill_assets.cli.targets import plan_target, target_option
from backfill_assets.settings import Settings, load_settings

if TYPE_CHECKING:
    import dagster as dg

    from backfill_assets.backfills.plans import BackfillPlan, Parameters
    from backfill_assets.calendar.partitions import Window
    from backfill_assets.delta.ledgers import Ledgers


def parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what a backfill is to do: the fields of `plans.Parameters`."""
    for option in reversed(
        (
            selection,
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
@parameters
@target_option
@json_option
def plan(out: Output, partitions: Window, target: str, as_json: bool, **given: Any) -> None:
    """What a backfill of these days would do, kept under an id.

    PARTITIONS are FIRST...LAST, or one day. Nothing is computed. Needs DAGSTER_HOME. With --target
    nothing is kept.
    """
    if target:
        plan_target(out, partitions, target, given)
        return
    settings = load_settings()
    with instance() as dagster:
        made = plan_anew(settings, dagster, partitions, given)
    if as_json:
        out.json(made.model_dump(mode="json"))
        return
    show_plan(out, made)
    if made.rewrites_final:
        out.say(f"{'final':14} {final_days_of(made)} would be rewritten: the launch asks first")
    out.say(f"Launch   backfill-assets backfill {made.id}")


def plan_anew(
    settings: Settings, dagster: dg.DagsterInstance, days: Window, given: dict[str, Any]
) -> BackfillPlan:
    """A new plan, kept in Dagster's storage.

    Args:
        settings: the deployment's settings.
        dagster: the instance.
        days: the days that are asked for.
        given: the options of `parameters`, by name.

    Raises:
        click.UsageError: what is asked for cannot be planned.
    """
    from backfill_assets.backfills import jobs
    from backfill_assets.backfills.plans import Parameters
    from backfill_assets.tables.code_version import running_code

    asked = Parameters(days=str(days), **given)
    _refuse_impossible(settings, asked)
    code = running_code(settings)
    return jobs.plan_anew(settings, graph(settings), dagster, code, asked)


def _refuse_impossible(settings: Settings, asked: Parameters) -> None:
    from backfill_assets.backfills.planning import refuse_impossible

    try:
        refuse_impossible(settings, asked)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def graph(settings: Settings) -> Any:
    """The assets of the deployment."""
    from backfill_assets.definitions import build_defs

    return build_defs(settings).get_repository_def().asset_graph


def show_plan(out: Output, made: BackfillPlan) -> None:
    """Print what becomes of each day, and what it costs."""
    from rich.table import Table as Grid

    from backfill_assets.backfills import plans

    grid = Grid(title=f"Plan {made.id}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("table", "what becomes of them", "why", "days"):
        grid.add_column(heading, no_wrap=True)
    rows = list(plans.in_lines(made))
    for row in rows:
        grid.add_row(*row)
    out.grid(grid)
    out.facts(plans.in_numbers(made))
    if any("other code" in why for _, _, why, _ in rows):
        out.note("If the other code makes the same rows: `backfill-assets accept-code`")


def final_days_of(made: BackfillPlan) -> str:
    """The final days that a plan rewrites, for a reader."""
    from backfill_assets.calendar.partitions import spelled

    return ", ".join(f"{name} [{spelled(days)}]" for name, days in made.rewrites_final.items())


@command("plans", "plans --json")
@json_option
def plans(out: Output, as_json: bool) -> None:
    """The plans that are kept, and how far each has come.

    The newest comes last.
    """
    from backfill_assets.backfills import undertakings
    from backfill_assets.delta.reading import read_ledgers

    ledgers = read_ledgers(load_settings())
    with instance() as dagster:
        lines = [_line(dagster, ledgers, id_) for id_ in undertakings.kept(dagster)]
    if as_json:
        out.json(lines)
        return
    if not lines:
        out.say("no plan is kept; make one with `backfill-assets plan`")
        return
    from rich.table import Table as Grid

    grid = Grid(box=None, padding=(0, 2, 0, 0))
    for heading in ("plan", "made", "days", "tables"):
        grid.add_column(heading, no_wrap=True)
    for heading in ("state", "reason"):
        grid.add_column(heading)
    for line in lines:
        tables = line["tables"]
        # As text: a reason is no markup.
        cells = [*list(line.values())[:3], tables[0] if len(tables) == 1 else str(len(tables))]
        grid.add_row(*cells, line["state"], line["reason"])
    out.grid(grid)


def _line(dagster: dg.DagsterInstance, ledgers: Ledgers, id_: str) -> dict[str, Any]:
    from backfill_assets.backfills import stages, undertakings
    from backfill_assets.backfills.undo import undone

    try:
        it = undertakings.find(dagster, id_)
    except (
        undertakings.BackfillRefusedError
    ) as error:  # kept by another version: the others are told
        unknown = {"made": "", "days": "", "tables": [], "state": str(error), "reason": ""}
        return {"plan": id_, **unknown}
    asked = it.plan.parameters
    made = f"{datetime.fromtimestamp(it.made).astimezone():%Y-%m-%d %H:%M}" if it.made else ""
    state = stages.progress(dagster, it) if it.attempt or it.ended else "not launched"
    if any(undone(ledgers, id_).values()):
        state += "; undone since, or days of it"
    return {
        "plan": id_,
        "made": made,
        "days": asked.days,
        "tables": list(asked.tables),
        "state": state,
        "reason": asked.reason,
    }
