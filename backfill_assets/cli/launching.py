"""`backfill`: launch a plan, and watch it. Dagster does the work."""

from __future__ import annotations

import re
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from backfill_assets.cli.output import CannotRunError, Output, Status, command
from backfill_assets.cli.parameters import (
    Partitions,
    asset_graph,
    json_option,
    open_instance,
    unknown_name_message,
)
from backfill_assets.cli.plans import backfill_options, format_final_days, plan_anew, show_plan
from backfill_assets.cli.targets import build_target, target_option
from backfill_assets.settings import Settings, load_settings

if TYPE_CHECKING:
    import dagster as dg

    from backfill_assets.backfills.plans import BackfillPlan
    from backfill_assets.backfills.undertakings import BackfillState
    from backfill_assets.calendar.partitions import Window

_LOOK_EVERY = 2  # seconds


@command(
    "backfill aecrkdop",
    "backfill 2024-01-10...2024-01-14 --chunk-days 2 --yes",
    "backfill 2024-01-10...2024-01-14 --target v2",
)
@click.argument("what", metavar="PLAN|PARTITIONS")
@backfill_options
@target_option
@click.option("--yes", is_flag=True, help="Rewrite final days without asking.")
@json_option
@click.pass_context
def backfill(
    ctx: click.Context,
    out: Output,
    what: str,
    target: str,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> Status:
    """Launch a plan, or days, in stages, and watch it.

    PARTITIONS are FIRST...LAST, or one day. The deployment (`make ui`) must run. The backfill goes
    on if this command is stopped. It ends with 1 if a stage did not pass. With --target, this
    command itself builds the days beside production.
    """
    out.quiet |= as_json
    if target:
        if as_json:
            raise click.UsageError("--json cannot be given with --target")
        return build_target(out, _parse_days(ctx, what), target, options)
    settings = load_settings()
    # An id may be that of a run, whose characters may all be digits.
    days = _parse_days(ctx, what) if re.match(r"\d+-\d", what) or "..." in what else None
    if days is None:
        _refuse_options(ctx, what)
    with open_instance() as dagster:
        backfill_plan = (
            plan_anew(settings, dagster, days, options) if days else _load_state(dagster, what).plan
        )
        if not out.quiet:
            show_plan(out, backfill_plan)
        _confirm_final(backfill_plan, yes)
        state = _launched(settings, dagster, backfill_plan)
        out.print_note(f"Launched {_ui_url(settings, dagster)}/runs/b/{state.backfill_id}")
        state = _watch_backfill(out, dagster, state, quiet=as_json)
    if as_json:
        out.print_json(
            {
                "plan": backfill_plan.id,
                "backfill": state.backfill_id,
                "complete": state.complete,
                "ended": state.ended,
                "seconds": round(state.took, 1),
            }
        )
    out.print_note(f"Took     {timedelta(seconds=round(state.took))}")
    out.print_note(
        f"Next     backfill-assets reconcile {backfill_plan.id}, or backfill-assets undo {backfill_plan.id}"
    )
    return Status.FINE if state.complete else Status.FINDING


def _ui_url(settings: Settings, dagster: dg.DagsterInstance) -> str:
    """Where the UI is: as the settings say, else where the deployment of this machine has it."""
    from backfill_assets.dagster_ext.claims import read_ui_url

    local_url = (
        "" if "ui_url" in settings.model_fields_set else read_ui_url(Path(dagster.root_directory))
    )
    return local_url or settings.ui_url


def _parse_days(ctx: click.Context, what: str) -> Window:
    (argument,) = (param for param in ctx.command.params if param.name == "what")
    return Partitions().convert(what, argument, ctx)


def _refuse_options(ctx: click.Context, what: str) -> None:
    """A plan is launched as it was made: an option that says otherwise is not to be ignored."""
    options = [
        param.opts[0]
        for param in ctx.command.params
        if isinstance(param, click.Option)
        and param.name not in ("yes", "as_json", None)
        and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        and param.expose_value
    ]
    if options:
        raise click.UsageError(
            f"{', '.join(options)} cannot change plan {what}, which is launched as it was made: make "
            "a new plan with these options, or leave them out"
        )


def _load_state(dagster: dg.DagsterInstance, id_: str) -> BackfillState:
    from backfill_assets.backfills import undertakings

    try:
        return undertakings.load(dagster, id_)
    except undertakings.BackfillRefusedError as error:
        known_ids = undertakings.list_ids(dagster)
        if id_ in known_ids:
            raise
        message = (
            f"{unknown_name_message('plan', id_, known_ids)} `backfill-assets plans` lists them. Days would be "
            "FIRST...LAST or one day, as YYYY-MM-DD."
        )
        raise click.UsageError(message) from error


def _confirm_final(backfill_plan: BackfillPlan, yes: bool) -> None:
    """See that a person wants final days rewritten: readers count on it that they do not move."""
    if yes or not backfill_plan.rewritten_final_days:
        return
    message = f"plan {backfill_plan.id} rewrites final days, which readers count on: {format_final_days(backfill_plan)}"
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{message}. Nobody can be asked here, so nothing was launched. If that is meant: "
            f"backfill-assets backfill {backfill_plan.id} --yes"
        )
    if not click.confirm(f"{message[0].upper()}{message[1:]}. Rewrite them?"):
        raise CannotRunError(f"nothing was launched; the plan is kept as {backfill_plan.id}")


def _launched(
    settings: Settings, dagster: dg.DagsterInstance, backfill_plan: BackfillPlan
) -> BackfillState:
    from backfill_assets.backfills import jobs
    from backfill_assets.tables.code_version import running_code

    code = running_code(settings)
    return jobs.launch_plan(settings, asset_graph(settings), dagster, code, backfill_plan.id)


def _watch_backfill(
    out: Output, dagster: dg.DagsterInstance, state: BackfillState, *, quiet: bool
) -> BackfillState:
    """Tell how it comes along, and unless quiet how it ended, until it has."""
    from backfill_assets.backfills import stages, undertakings

    id_, previous = state.plan.id, ""
    hint = "`backfill-assets plans` tells how far it is"
    try:
        while not state.ended:
            time.sleep(_LOOK_EVERY)
            state = undertakings.load(dagster, id_)
            if (current := stages.describe_progress(dagster, state)) != previous:
                previous = current
                (out.print_text if state.ended and not quiet else out.print_note)(
                    f"{time.strftime('%X')}  {previous}"
                )
            if not state.ended and (missing_daemons := stages.missing_daemons(dagster)):
                raise CannotRunError(
                    f"the {' and the '.join(missing_daemons)} daemon fell silent, so backfill {id_} stands "
                    f"at: {previous}. What is published stays. Start the deployment again (`make ui`): "
                    f"the backfill goes on by itself, and {hint}"
                )
    except KeyboardInterrupt:
        out.print_text(f"Nobody watches backfill {id_} any more. It goes on, and {hint}")
        raise
    return state
