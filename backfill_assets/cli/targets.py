"""The commands `targets`, `compare`, `switch` and `drop`, and the option `--target`."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli import parameters
from backfill_assets.cli.outcomes import run_job
from backfill_assets.cli.output import Output, Status, command
from backfill_assets.deployment import Deployment
from backfill_assets.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import date

    import dagster as dg

    from backfill_assets.backfills.forecast import DayForecast
    from backfill_assets.calendar.partitions import Window
    from backfill_assets.delta.targets import ShadowTarget
    from backfill_assets.publish.io_manager import DeltaIOManager
    from backfill_assets.shadow.build import StageResult

#: Options that a shadow backfill does not support, by parameter name.
_UNSUPPORTED_OPTIONS = {
    "max_parallel": "--max-parallel",
    "rewrite": "--rewrite",
    "accept": "--accept",
}


def target_option(function: Any) -> Any:
    """The option --target."""
    return click.option(
        "--target", metavar="NAME", default="", help="Beside production: in the target NAME."
    )(function)


def plan_target(out: Output, days: Window, name: str, options: Mapping[str, Any]) -> None:
    """Print the outcome of each day of a shadow backfill; nothing is built."""
    from backfill_assets.delta import targets
    from backfill_assets.shadow.days import stale_days, target_tables
    from backfill_assets.tables.code_version import running_code

    _refuse_options(options)
    deployment = Deployment(load_settings())
    if name in targets.list_targets(deployment):
        target = targets.load_target(deployment, name)
        out.print_note(f"Target   {name}, which is there already")
    else:
        tables = target_tables(deployment, options["tables"])
        target = targets.new_target(deployment, name, tables, days, options["reason"])
    forecasts = stale_days(
        deployment,
        parameters.asset_graph(deployment.settings),
        target,
        running_code(deployment.settings),
        days,
    )
    _print_forecasts(out, deployment, name, forecasts)


def _print_forecasts(
    out: Output,
    deployment: Deployment,
    name: str,
    forecasts: Mapping[str, Mapping[date, DayForecast]],
) -> None:
    """Print the stale days by table, outcome and reason; one sentence if there are none."""
    from rich.table import Table as Grid

    from backfill_assets.delta.history import format_windows

    grid = Grid(title=f"Target {name}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("table", "what becomes of them", "why", "days"):
        grid.add_column(heading, no_wrap=True)
    for table, forecast_by_day in forecasts.items():
        days_by_forecast: dict[DayForecast, list[date]] = {}
        for day, forecast in forecast_by_day.items():
            days_by_forecast.setdefault(forecast, []).append(day)
        for forecast, days in days_by_forecast.items():
            ranges = deployment.tables[table].grain.gapless_ranges(days)
            grid.add_row(table, forecast.outcome.value, forecast.reason, format_windows(ranges))
    out.print_grid(grid)
    if not forecasts:
        out.print_text("nothing to build: all days are as they would be made now")


def build_target(out: Output, days: Window, name: str, options: Mapping[str, Any]) -> Status:
    """Build days into a target, stage by stage; `FINDING` if a stage did not pass."""
    import dagster as dg

    from backfill_assets.backfills.backfill_plan import BackfillRequest
    from backfill_assets.definitions import build_defs
    from backfill_assets.shadow.build import build_stages, prepare_target

    _refuse_options(options)
    deployment = Deployment(load_settings())
    request = BackfillRequest(
        days=str(days),
        tables=options["tables"],
        pilot_days=options["pilot_days"],
        chunk_days=options["chunk_days"],
        reason=options["reason"],
    )
    defs = build_defs(deployment.settings)
    assets = [asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition)]
    with _io_manager(defs) as io_manager:
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
def _io_manager(defs: dg.Definitions) -> Iterator[DeltaIOManager]:
    import dagster as dg

    with dg.build_resources({"it": (defs.resources or {})["io_manager"]}) as resources:
        yield resources.it


def _show_stage(out: Output, stage: StageResult) -> None:
    for table, counts in stage.counts.items():
        text = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
        out.print_text(f"{stage.name:8} {stage.window}  {table}: {text}")
    if stage.failure:
        out.print_text(f"{stage.name:8} {stage.window}  did not pass: {stage.failure}")


def _refuse_options(options: Mapping[str, Any]) -> None:
    unsupported = [option for name, option in _UNSUPPORTED_OPTIONS.items() if options[name]]
    if options["write_mode"] != "overwrite":
        unsupported.append("--write-mode")
    if unsupported:
        raise click.UsageError(f"{', '.join(unsupported)} cannot be given with --target")


@command("targets", "targets --json")
@parameters.json_option
def targets(out: Output, as_json: bool) -> None:
    """The targets that there are, and how far each has come."""
    from backfill_assets.delta import targets as known

    deployment = Deployment(load_settings())
    rows = [target_row(deployment, name) for name in known.list_targets(deployment)]
    if as_json:
        out.print_json(rows)
        return
    if not rows:
        out.print_text(
            "there is no target; make one with `backfill-assets backfill DAYS --target NAME`"
        )
        return
    from rich.table import Table as Grid

    grid = Grid(box=None, padding=(0, 2, 0, 0))
    for heading in ("target", "made", "days", "tables", "state", "comparison"):
        grid.add_column(heading, no_wrap=True)
    grid.add_column("reason")
    for row in rows:
        row.pop("paths")
        grid.add_row(*map(str, row.values()))
    out.print_grid(grid)


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
        "days": ", ".join(target.asked),
        "tables": ", ".join(target.tables),
        "state": _describe_state(deployment, target),
        "comparison": _describe_comparison(target),
        "reason": target.reason,
        "paths": {table: target.table_url(deployment, table) for table in target.tables},
    }


def _describe_comparison(target: ShadowTarget) -> str:
    """The result of the last comparison, and whether a switch-over needs one."""
    text = "none"
    if target.compared:
        count = len(target.compared.problems)
        text = f"{count} problem(s)" if count else "passed"
    return text if target.required is None else f"{text} (required {target.required})".rstrip()


def _describe_state(deployment: Deployment, target: ShadowTarget) -> str:
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
    as_json: bool,
) -> Status:
    """Compare a target with production.

    By table and day: rows, keys, totals, SHA-256; drift, and rows that differ. It ends with 1 if a
    day does not add up, or a bound is not kept. Bounds are those given, or else those that a
    switch-over requires.
    """
    from backfill_assets.backfills.diff import as_grid
    from backfill_assets.backfills.diff import as_json as reports_as_json
    from backfill_assets.delta.targets import ComparisonLimits
    from backfill_assets.shadow.compare import compare_target, require_comparison
    from backfill_assets.spark.session import Engine
    from backfill_assets.tables.code_version import running_code

    deployment = Deployment(load_settings())
    shadow_target = _find_target(deployment, target)
    given_limits = ComparisonLimits(most_drift=most_drift, most_rows=most_rows)
    limits = given_limits if str(given_limits) else shadow_target.required or given_limits
    if require is not None:
        shadow_target = require_comparison(deployment, shadow_target, limits if require else None)
    spark = Engine.from_settings(deployment.settings).spark_session
    comparison = compare_target(
        deployment,
        spark,
        parameters.asset_graph(deployment.settings),
        shadow_target,
        running_code(deployment.settings),
        limits,
    )
    if as_json:
        out.print_json({"problems": comparison.problems, **reports_as_json(comparison.reports)})
    else:
        out.print_text("\n".join(comparison.problems) or f"{target}: all days add up")
        for report in comparison.reports:
            out.print_grid(as_grid(report))
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
        level = "DEBUG" if out.verbose else "CRITICAL"
        run_id = run_job(dagster, "switch_over", "adopt_days", op_config, level)
    shadow_target = _find_target(deployment, target)
    out.print_text(f"Switched {shadow_target.switch_id} by run {run_id[:8]}")
    out.print_note(f"Back     backfill-assets undo {shadow_target.switch_id}")


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


def _find_target(deployment: Deployment, name: str) -> ShadowTarget:
    from backfill_assets.delta import targets as known

    names = known.list_targets(deployment)
    if name not in names:
        raise click.UsageError(parameters.unknown_name_message("target", name, names))
    return known.load_target(deployment, name)
