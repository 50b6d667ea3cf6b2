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
from backfill_assets.cli.parameters import Partitions, instance, json_option, nearest
from backfill_assets.cli.plans import final_days_of, graph, parameters, plan_anew, show_plan
from backfill_assets.cli.targets import build_target, target_option
from backfill_assets.settings import Settings, load_settings

if TYPE_CHECKING:
    import dagster as dg

    from backfill_assets.backfills.plans import BackfillPlan
    from backfill_assets.backfills.undertakings import Undertaking
    from backfill_assets.calendar.partitions import Window

_LOOK_EVERY = 2  # seconds


@command(
    "backfill aecrkdop",
    "backfill 2024-01-10...2024-01-14 --chunk-days 2 --yes",
    "backfill 2024-01-10...2024-01-14 --target v2",
)
@click.argument("what", metavar="PLAN|PARTITIONS")
@parameters
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
    **given: Any,
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
        return build_target(out, _days(ctx, what), target, given)
    settings = load_settings()
    # An id may be that of a run, whose characters may all be digits.
    days = _days(ctx, what) if re.match(r"\d+-\d", what) or "..." in what else None
    if days is None:
        _refuse_options(ctx, what)
    with instance() as dagster:
        made = plan_anew(settings, dagster, days, given) if days else _kept(dagster, what).plan
        if not out.quiet:
            show_plan(out, made)
        _confirm_final(made, yes)
        it = _launched(settings, dagster, made)
        out.note(f"Launched {_ui_url(settings, dagster)}/runs/b/{it.backfill_id}")
        it = _watched(out, dagster, it, quiet=as_json)
    if as_json:
        out.json(
            {
                "plan": made.id,
                "backfill": it.backfill_id,
                "complete": it.complete,
                "ended": it.ended,
                "seconds": round(it.took, 1),
            }
        )
    out.note(f"Took     {timedelta(seconds=round(it.took))}")
    out.note(f"Next     backfill-assets reconcile {made.id}, or backfill-assets undo {made.id}")
    return Status.FINE if it.complete else Status.FINDING


def _ui_url(settings: Settings, dagster: dg.DagsterInstance) -> str:
    """Where the UI is: as the settings say, else where the deployment of this machine has it."""
    from backfill_assets.dagster_ext.claims import ui_of

    here = "" if "ui_url" in settings.model_fields_set else ui_of(Path(dagster.root_directory))
    return here or settings.ui_url


def _days(ctx: click.Context, what: str) -> Window:
    (argument,) = (param for param in ctx.command.params if param.name == "what")
    return Partitions().convert(what, argument, ctx)


def _refuse_options(ctx: click.Context, what: str) -> None:
    """A plan is launched as it was made: an option that says otherwise is not to be ignored."""
    given = [
        param.opts[0]
        for param in ctx.command.params
        if isinstance(param, click.Option)
        and param.name not in ("yes", "as_json", None)
        and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        and param.expose_value
    ]
    if given:
        raise click.UsageError(
            f"{', '.join(given)} cannot change plan {what}, which is launched as it was made: make "
            "a new plan with these options, or leave them out"
        )


def _kept(dagster: dg.DagsterInstance, id_: str) -> Undertaking:
    from backfill_assets.backfills import undertakings

    try:
        return undertakings.find(dagster, id_)
    except undertakings.BackfillRefusedError as error:
        known = undertakings.kept(dagster)
        if id_ in known:
            raise
        said = (
            f"{nearest('plan', id_, known)} `backfill-assets plans` lists them. Days would be "
            "FIRST...LAST or one day, as YYYY-MM-DD."
        )
        raise click.UsageError(said) from error


def _confirm_final(made: BackfillPlan, yes: bool) -> None:
    """See that a person wants final days rewritten: readers count on it that they do not move."""
    if yes or not made.rewrites_final:
        return
    said = f"plan {made.id} rewrites final days, which readers count on: {final_days_of(made)}"
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{said}. Nobody can be asked here, so nothing was launched. If that is meant: "
            f"backfill-assets backfill {made.id} --yes"
        )
    if not click.confirm(f"{said[0].upper()}{said[1:]}. Rewrite them?"):
        raise CannotRunError(f"nothing was launched; the plan is kept as {made.id}")


def _launched(settings: Settings, dagster: dg.DagsterInstance, made: BackfillPlan) -> Undertaking:
    from backfill_assets.backfills import jobs
    from backfill_assets.tables.code_version import running_code

    code = running_code(settings)
    return jobs.launch(settings, graph(settings), dagster, code, made.id)


def _watched(
    out: Output, dagster: dg.DagsterInstance, it: Undertaking, *, quiet: bool
) -> Undertaking:
    """Tell how it comes along, and unless quiet how it ended, until it has."""
    from backfill_assets.backfills import stages, undertakings

    id_, said = it.plan.id, ""
    how = "`backfill-assets plans` tells how far it is"
    try:
        while not it.ended:
            time.sleep(_LOOK_EVERY)
            it = undertakings.find(dagster, id_)
            if (now := stages.progress(dagster, it)) != said:
                said = now
                (out.say if it.ended and not quiet else out.note)(f"{time.strftime('%X')}  {said}")
            if not it.ended and (lacking := stages.lacking_daemons(dagster)):
                raise CannotRunError(
                    f"the {' and the '.join(lacking)} daemon fell silent, so backfill {id_} stands "
                    f"at: {said}. What is published stays. Start the deployment again (`make ui`): "
                    f"the backfill goes on by itself, and {how}"
                )
    except KeyboardInterrupt:
        out.say(f"Nobody watches backfill {id_} any more. It goes on, and {how}")
        raise
    return it
