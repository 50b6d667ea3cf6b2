"""The commands `plan`, `plans` and `backfill`: plan days, launch a plan, watch its stages."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from backfill_assets.cli import parameters
from backfill_assets.cli.output import CannotRunError, Output, Status, command
from backfill_assets.deployment import IO_MANAGER_KEY, Deployment
from backfill_assets.report import ReportTable
from backfill_assets.settings import find_ui_url, load_settings

if TYPE_CHECKING:
    import dagster as dg

    from backfill_assets.backfills.backfill_plan import BackfillPlan
    from backfill_assets.backfills.forecast import DayForecast
    from backfill_assets.backfills.state_store import BackfillState
    from backfill_assets.calendar.partitions import Window
    from backfill_assets.delta.ledgers import Ledgers
    from backfill_assets.publish.io_manager import DeltaIOManager
    from backfill_assets.shadow.build import StageResult


#: The headings of what becomes of days.
_OUTCOMES = ("table", "what becomes of them", "why", "days")
_TOTALS = ("what becomes of them", "why", "tables", "from...to")
#: So many rows of days fit a screen with the facts of a plan.
_SCREEN_ROWS = 10
#: Facts of a plan that only few readers need.
_DETAILS = ("also reads", "keys within a day", "code", "configuration")
#: Options that a shadow backfill does not support, by parameter name.
_UNSUPPORTED_OPTIONS = {
    "max_retries": "--max-retries",
    "rewrite": "--rewrite",
    "accept": "--accept",
}


_full_option = click.option(
    "--full", is_flag=True, help="Each table and all facts of the plan, also if they fill screens."
)


def backfill_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a backfill: the fields of `BackfillRequest`."""
    for option in reversed(
        (
            parameters.select_option,
            click.option(
                "--pilot-days",
                type=click.IntRange(min=0),
                default=0,
                help="So many days first, from the first change on, reconciled before the rest.",
            ),
            click.option(
                "--chunk-days",
                type=parameters.ChunkDays(),
                default="auto",
                show_default=True,
                help="Stages of so many days, each reconciled before the next; auto: of about the "
                "same work if days differ much, else one; none: one.",
            ),
            click.option(
                "--max-parallel",
                type=click.IntRange(1, 8),
                help="So many runs at a time; else what the run queue allows.",
            ),
            click.option(
                "--max-retries",
                type=click.IntRange(min=0),
                help="So many retries of a run that dies; else as dagster.yaml says.",
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
    "plan --from backfill.yaml",
)
@click.argument("partitions", type=parameters.Partitions(gaps=True), is_eager=True)
@backfill_options
@parameters.target_option
@_full_option
@parameters.options_file_option("partitions")
@parameters.json_option
def plan(out: Output, partitions: Window, target: str, full: bool, **options: Any) -> None:
    """What a backfill of these days would do, kept under an id.

    PARTITIONS are FIRST...LAST, or one day, or several with commas between them. Nothing is
    computed. Needs DAGSTER_HOME. With --target nothing is kept. With --from, what is not given here
    comes from a file: `days`, or `start` and `end`, and options by their names, as `max-parallel:
    2`.
    """
    if target:
        out.json = False  # it has no other form than text
        _plan_target(out, partitions, target, options)
        return
    deployment = Deployment(load_settings())
    with parameters.open_instance() as dagster:
        backfill_plan = create_plan(deployment, dagster, partitions, options)
    out.print_json(backfill_plan.model_dump(mode="json"))
    show_plan(out, deployment, backfill_plan, full=full)
    if final := backfill_plan.rewritten_final_days:
        days = parameters.format_days(final)
        out.print_text(f"{'final':14} {days} would be rewritten: the launch asks first")
    out.print_text(f"Launch   backfill-assets backfill {backfill_plan.id}")
    if command := backfill_plan.following_command:
        out.print_text(f"Then     {command}")


def create_plan(
    deployment: Deployment, dagster: dg.DagsterInstance, days: Window, options: dict[str, Any]
) -> BackfillPlan:
    """Create a plan with the values of `backfill_options`, and save it in Dagster's storage.

    Raises:
        click.UsageError: the request cannot be planned.
    """
    from backfill_assets.assets import backfill_jobs
    from backfill_assets.backfills.backfill_plan import BackfillRequest
    from backfill_assets.backfills.planner import refuse_invalid_request

    request = BackfillRequest(days=str(days), **options)
    try:
        refuse_invalid_request(deployment, request)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return backfill_jobs.create_plan(deployment, dagster, deployment.code, request)


def show_plan(
    out: Output, deployment: Deployment, backfill_plan: BackfillPlan, *, full: bool
) -> None:
    """Print the outcome of each day, the cost, and the weeks and months that are left out.

    Of a plan that does not fit a screen, totals and what is unusual; all of it with `full`.
    """
    from backfill_assets.backfills import backfill_plan as plans
    from backfill_assets.backfills import planner

    request, title = backfill_plan.parameters, f"Plan {backfill_plan.id}"
    rows, facts = list(plans.day_rows(backfill_plan)), list(plans.plan_facts(backfill_plan))
    left_out = list(
        planner.explain_left_out(deployment, backfill_plan.tables, request.window, deployment.today)
    )
    if full or len(rows) <= _SCREEN_ROWS:
        out.print_table(ReportTable.from_rows(_OUTCOMES, rows, title=title))
    else:
        totals = planner.total_rows(backfill_plan)
        out.print_table(ReportTable.from_rows(_TOTALS, totals, title=title))
        unusual = list(planner.unusual_rows(backfill_plan))
        if shown := unusual[:_SCREEN_ROWS]:
            out.print_table(ReportTable.from_rows(_OUTCOMES, shown, title="Look at"))
        facts = [(name, text) for name, text in facts if name not in _DETAILS]
        hidden = len(unusual[_SCREEN_ROWS:])
        more = f", {hidden} of them unusual" if hidden else ""
        if sentences := len(left_out[_SCREEN_ROWS:]):
            more += f", and {sentences} partitions that are left out"
        facts.append(
            ("not shown", f"{len(rows) - len(shown)} rows by table{more}: --full shows all")
        )
        left_out = left_out[:_SCREEN_ROWS]
    out.print_facts(facts)
    for sentence in left_out:
        out.print_note(f"Left out {sentence}")
    if any("other code" in reason for _, _, reason, _ in rows):
        out.print_note("If the other code makes the same rows: `backfill-assets accept-code`")


@command("plans", "plans --json")
@parameters.json_option
def plans(out: Output) -> None:
    """The plans that are kept, and how far each has come.

    The newest comes last.
    """
    from backfill_assets.backfills import state_store
    from backfill_assets.delta.ledger_reader import read_ledgers

    deployment = Deployment(load_settings())
    ledgers = read_ledgers(deployment)
    with parameters.open_instance() as dagster:
        ids = state_store.own_ids(deployment, dagster, state_store.list_ids(dagster))
        plan_rows = [_plan_row(dagster, ledgers, id_) for id_ in ids]
    out.print_json(plan_rows)
    if not plan_rows:
        out.print_text("no plan is kept; make one with `backfill-assets plan`")
        return
    headings = ("plan", "made", "days", "tables", "state", "reason")
    rows = []
    for row in plan_rows:
        tables = row["tables"]
        cells = {**row, "tables": tables[0] if len(tables) == 1 else str(len(tables))}
        rows.append([cells[heading] for heading in headings])
    out.print_table(ReportTable.from_rows(headings, rows, sentences=["state", "reason"]))


def _plan_row(dagster: dg.DagsterInstance, ledgers: Ledgers, id_: str) -> dict[str, Any]:
    """A row of `plans`; for a plan saved by another release, the state is the error message."""
    from backfill_assets.backfills import stages, state_store
    from backfill_assets.backfills.changes import reverted_by_table

    try:
        backfill_state = state_store.load(dagster, id_)
    except (
        state_store.BackfillRefusedError
    ) as error:  # saved by another version: show the other plans
        unknown = {"made": "", "days": "", "tables": [], "state": str(error), "reason": ""}
        return {"plan": id_, **unknown}
    request = backfill_state.plan.parameters
    created_at = (
        f"{datetime.fromtimestamp(backfill_state.made).astimezone():%Y-%m-%d %H:%M}"
        if backfill_state.made
        else ""
    )
    state = stages.describe_progress(dagster, backfill_state)
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


_POLL_SECONDS = 2  # seconds


@command(
    "backfill aecrkdop",
    "backfill 2024-01-10...2024-01-14 --chunk-days 2 --yes",
    "backfill 2024-01-10...2024-01-14 --target v2",
)
@click.argument("what", metavar="PLAN|PARTITIONS", is_eager=True, callback=parameters.split_part)
@backfill_options
@parameters.target_option
@click.option("--yes", is_flag=True, help="Rewrite final days without asking.")
@_full_option
@parameters.json_option
@click.pass_context
def backfill(
    ctx: click.Context,
    out: Output,
    what: str,
    target: str,
    yes: bool,
    full: bool,
    **options: Any,
) -> Status:
    """Launch a plan, or days, in stages, and watch it.

    PARTITIONS are FIRST...LAST, or one day, or several with commas between them: each range is a
    run. The deployment (`make ui`) must run. The backfill goes on if this command is stopped. It
    ends with 1 if a stage did not pass. With --target, this command itself builds the days beside
    production.
    """
    if target:
        if out.json:
            raise click.UsageError("--json cannot be given with --target")
        return _build_target(out, _parse_days(ctx, what), target, options)
    deployment = Deployment(load_settings())
    # An id may be a run's, whose characters may all be digits.
    days = _parse_days(ctx, what) if re.match(r"\d+-\d", what) or "..." in what else None
    if days is None:
        _refuse_options(ctx, what)
    with parameters.open_instance() as dagster:
        backfill_plan = (
            create_plan(deployment, dagster, days, options)
            if days
            else _load_state(dagster, what).plan
        )
        if not out.quiet:
            show_plan(out, deployment, backfill_plan, full=full)
        _confirm_final(backfill_plan, yes)
        state = _launch_plan(deployment, dagster, backfill_plan)
        ui_url = find_ui_url(deployment.settings, dagster.root_directory)
        out.print_note(f"Launched {ui_url}/runs/b/{state.backfill_id}")
        state = _watch_backfill(out, dagster, state)
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
        f"Next     backfill-assets reconcile {backfill_plan.id}, or backfill-assets undo "
        f"{backfill_plan.id}"
    )
    if command := backfill_plan.following_command:
        out.print_note(
            f"Then     {command}: days outside of the plan that read its days. Sensors build the "
            "open ones, and nobody but a person the final ones"
        )
    return Status.FINE if state.complete else Status.FINDING


def _parse_days(ctx: click.Context, what: str) -> Window:
    (argument,) = (param for param in ctx.command.params if param.name == "what")
    return parameters.Partitions(gaps=True).convert(what, argument, ctx)


def _refuse_options(ctx: click.Context, what: str) -> None:
    """Raise if options would change a saved plan, which is launched unchanged."""
    options = [
        param.opts[0]
        for param in ctx.command.params
        if isinstance(param, click.Option)
        and param.name not in ("yes", "full", None)
        and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
        and param.expose_value
    ]
    if options:
        raise click.UsageError(
            f"{', '.join(options)} cannot change plan {what}, which is launched as it was made: "
            "make a new plan with these options, or leave them out"
        )


def _load_state(dagster: dg.DagsterInstance, id_: str) -> BackfillState:
    """The state of a saved plan; `click.UsageError` with similar ids if there is no such plan."""
    from backfill_assets.backfills import state_store

    try:
        return state_store.load(dagster, id_)
    except state_store.BackfillRefusedError as error:
        known_ids = state_store.list_ids(dagster)
        if id_ in known_ids:
            raise
        message = (
            f"{parameters.unknown_name_message('plan', id_, known_ids)} `backfill-assets "
            "plans` lists them. "
            "Days would be FIRST...LAST or one day, as YYYY-MM-DD."
        )
        raise click.UsageError(message) from error


def _confirm_final(backfill_plan: BackfillPlan, yes: bool) -> None:
    """Ask before final days are rewritten: readers rely on final days not to change."""
    id_, final = backfill_plan.id, backfill_plan.rewritten_final_days
    if yes or not final:
        return
    try:
        parameters.confirm_final_days(f"plan {id_}", final, f"backfill-assets backfill {id_} --yes")
    except CannotRunError as error:
        raise CannotRunError(f"{error}; the plan is kept as {id_}") from None


def _launch_plan(
    deployment: Deployment, dagster: dg.DagsterInstance, backfill_plan: BackfillPlan
) -> BackfillState:
    """Launch a saved plan with the running code; raises if anything changed since planning."""
    from backfill_assets.assets import backfill_jobs

    # Read again: somebody may have deployed while this command waited for an answer.
    code = Deployment(deployment.settings).code
    return backfill_jobs.launch_plan(
        deployment, parameters.asset_graph(deployment.settings), dagster, code, backfill_plan.id
    )


def _watch_backfill(
    out: Output, dagster: dg.DagsterInstance, state: BackfillState
) -> BackfillState:
    """Print the progress until the backfill ends."""
    from backfill_assets.backfills import stages, state_store

    id_, previous = state.plan.id, ""
    hint = "`backfill-assets plans` tells how far it is"
    try:
        while not state.ended:
            time.sleep(_POLL_SECONDS)
            state = state_store.load(dagster, id_)
            if (current := stages.describe_progress(dagster, state)) != previous:
                previous = current
                (out.print_text if state.ended else out.print_note)(
                    f"{time.strftime('%X')}  {previous}"
                )
            if not state.ended and (missing_daemons := stages.missing_daemons(dagster)):
                raise CannotRunError(
                    f"the {' and the '.join(missing_daemons)} daemon fell silent, so backfill "
                    f"{id_} stands at: {previous}. What is published stays. Start the deployment "
                    f"again (`make ui`): the backfill goes on by itself, and {hint}"
                )
    except KeyboardInterrupt:
        out.print_text(f"Nobody watches backfill {id_} any more. It goes on, and {hint}")
        raise
    return state


def _plan_target(out: Output, days: Window, name: str, options: Mapping[str, Any]) -> None:
    """Print the outcome of each day of a shadow backfill; nothing is built."""
    from backfill_assets.delta import targets
    from backfill_assets.shadow.build import stale_days, target_tables

    _refuse_with_target(options)
    deployment = Deployment(load_settings())
    if name in targets.list_targets(deployment):
        target = targets.load_target(deployment, name)
        out.print_note(f"Target   {name}, which is there already")
    else:
        tables = target_tables(deployment, options["tables"])
        target = targets.new_target(deployment, name, tables, days, options["reason"])
    forecasts = stale_days(deployment, target, deployment.code, days)
    _print_forecasts(out, deployment, name, forecasts)


def _print_forecasts(
    out: Output,
    deployment: Deployment,
    name: str,
    forecasts: Mapping[str, Mapping[date, DayForecast]],
) -> None:
    """Print the stale days by table, outcome and reason; one sentence if there are none."""
    from backfill_assets.delta.history import format_windows

    rows = []
    for table, forecast_by_day in forecasts.items():
        days_by_forecast: dict[DayForecast, list[date]] = {}
        for day, forecast in forecast_by_day.items():
            days_by_forecast.setdefault(forecast, []).append(day)
        for forecast, days in days_by_forecast.items():
            ranges = deployment.tables[table].grain.gapless_ranges(days)
            rows.append((table, forecast.outcome.value, forecast.reason, format_windows(ranges)))
    out.print_table(ReportTable.from_rows(_OUTCOMES, rows, title=f"Target {name}"))
    if not forecasts:
        out.print_text("nothing to build: all days are as they would be made now")


def _build_target(out: Output, days: Window, name: str, options: Mapping[str, Any]) -> Status:
    """Build days into a target, stage by stage; `FINDING` if a stage did not pass."""
    import dagster as dg

    from backfill_assets.backfills.backfill_plan import BackfillRequest
    from backfill_assets.definitions import build_defs
    from backfill_assets.shadow.build import build_stages, prepare_target

    _refuse_with_target(options)
    deployment = Deployment(load_settings())
    request = BackfillRequest(days=str(days), **options)
    defs = build_defs(deployment.settings)
    assets = [asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition)]
    with _io_manager(deployment, defs) as io_manager:
        target = prepare_target(io_manager, deployment, name, request)
        out.print_note(f"Target   {name} with {', '.join(target.tables)}")
        for stage in build_stages(io_manager, deployment, assets, target, request):
            _show_stage(out, stage)
            if stage.failure:
                out.print_note(
                    "Production is as it was. Mend what failed, and ask for the same again."
                )
                return Status.FINDING
    out.print_note(f"Next     backfill-assets compare {name}, then backfill-assets switch {name}")
    return Status.FINE


@contextmanager
def _io_manager(deployment: Deployment, defs: dg.Definitions) -> Iterator[DeltaIOManager]:
    import dagster as dg

    key = deployment.resource_key(IO_MANAGER_KEY)
    with dg.build_resources({"it": (defs.resources or {})[key]}) as resources:
        yield resources.it


def _show_stage(out: Output, stage: StageResult) -> None:
    for table, counts in stage.counts_as_text.items():
        out.print_text(f"{stage.name:8} {stage.window}  {table}: {counts}")
    if stage.failure:
        out.print_text(f"{stage.name:8} {stage.window}  did not pass: {stage.failure}")


def _refuse_with_target(options: Mapping[str, Any]) -> None:
    unsupported = [
        option
        for name, option in _UNSUPPORTED_OPTIONS.items()
        if options[name] not in (None, False, ())
    ]
    if options["write_mode"] != "overwrite":
        unsupported.append("--write-mode")
    if unsupported:
        raise click.UsageError(f"{', '.join(unsupported)} cannot be given with --target")
