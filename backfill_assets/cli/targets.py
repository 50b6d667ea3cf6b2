"""Targets, built beside production: `targets`, `compare`, `switch`, `drop`, and `--target`."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from backfill_assets.cli.outcomes import run_job
from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.parameters import Partitions, instance, json_option, nearest
from backfill_assets.settings import Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import date

    import dagster as dg

    from backfill_assets.backfills.fates import Fate
    from backfill_assets.backfills.shadow import Stage
    from backfill_assets.calendar.partitions import Window
    from backfill_assets.delta.targets import Target
    from backfill_assets.publish.io_manager import DeltaIOManager

#: What a shadow backfill has no use for, by the name of its parameter.
_OF_NO_USE = {
    "max_parallel": "--max-parallel",
    "rewrite": "--rewrite",
    "accept": "--accept",
}


def target_option(function: Any) -> Any:
    """The option --target."""
    return click.option(
        "--target", metavar="NAME", default="", help="Beside production: in the target NAME."
    )(function)


def plan_target(out: Output, days: Window, name: str, given: Mapping[str, Any]) -> None:
    """Print what a shadow backfill would do with each day. Nothing is made."""
    from backfill_assets.backfills.target_days import behind, tables_for
    from backfill_assets.cli.plans import graph
    from backfill_assets.delta import target_forks, targets
    from backfill_assets.tables.code_version import running_code

    _refuse_options(given)
    settings = load_settings()
    if name in targets.names(settings):
        target = targets.find(settings, name)
        out.note(f"Target   {name}, which is there already")
    else:
        tables = tables_for(settings, given["tables"])
        target = target_forks.described(settings, name, tables, days, given["reason"])
    found = behind(settings, graph(settings), target, running_code(settings), days)
    _show_fates(out, settings, name, found)


def _show_fates(
    out: Output, settings: Settings, name: str, found: Mapping[str, Mapping[date, Fate]]
) -> None:
    from rich.table import Table as Grid

    from backfill_assets.delta.history import spans
    from backfill_assets.tables.catalog import tables_of

    grid = Grid(title=f"Target {name}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("table", "what becomes of them", "why", "days"):
        grid.add_column(heading, no_wrap=True)
    for table, of in found.items():
        alike: dict[Fate, list[date]] = {}
        for day, fate in of.items():
            alike.setdefault(fate, []).append(day)
        for fate, days in alike.items():
            ranges = tables_of(settings)[table].cadence.ranges(days)
            grid.add_row(table, fate.expected.value, fate.why, spans(ranges))
    out.grid(grid)
    if not found:
        out.say("nothing to build: all days are as they would be made now")


def build_target(out: Output, days: Window, name: str, given: Mapping[str, Any]) -> Status:
    """Build days into a target, stage after stage; 1 if a stage did not pass."""
    import dagster as dg

    from backfill_assets.backfills.plans import Parameters
    from backfill_assets.backfills.shadow import build, prepare
    from backfill_assets.definitions import build_defs

    _refuse_options(given)
    settings = load_settings()
    asked = Parameters(
        days=str(days),
        tables=given["tables"],
        pilot_days=given["pilot_days"],
        chunk_days=given["chunk_days"],
        reason=given["reason"],
    )
    defs = build_defs(settings)
    assets = [of for of in defs.assets or () if isinstance(of, dg.AssetsDefinition)]
    with _io_manager(defs) as io:
        target = prepare(io, settings, name, asked)
        out.note(f"Target   {name} with {', '.join(target.tables)}")
        for stage in build(io, settings, assets, target, asked):
            _show_stage(out, stage)
            if stage.why:
                out.note("Production is as it was. Mend what failed, and ask for the same again.")
                return Status.FINDING
    out.note(f"Next     backfill-assets compare {name}, then backfill-assets switch {name}")
    return Status.FINE


@contextmanager
def _io_manager(defs: dg.Definitions) -> Iterator[DeltaIOManager]:
    import dagster as dg

    with dg.build_resources({"it": (defs.resources or {})["io_manager"]}) as resources:
        yield resources.it


def _show_stage(out: Output, stage: Stage) -> None:
    for table, counts in stage.counts.items():
        said = ", ".join(f"{n} {outcome.value}" for outcome, n in counts.items())
        out.say(f"{stage.name:8} {stage.window}  {table}: {said}")
    if stage.why:
        out.say(f"{stage.name:8} {stage.window}  did not pass: {stage.why}")


def _refuse_options(given: Mapping[str, Any]) -> None:
    found = [option for name, option in _OF_NO_USE.items() if given[name]]
    if given["write_mode"] != "overwrite":
        found.append("--write-mode")
    if found:
        raise click.UsageError(f"{', '.join(found)} cannot be given with --target")


@command("targets", "targets --json")
@json_option
def targets(out: Output, as_json: bool) -> None:
    """The targets that there are, and how far each has come."""
    from backfill_assets.delta import targets as known

    settings = load_settings()
    lines = [line_for(settings, name) for name in known.names(settings)]
    if as_json:
        out.json(lines)
        return
    if not lines:
        out.say("there is no target; make one with `backfill-assets backfill DAYS --target NAME`")
        return
    from rich.table import Table as Grid

    grid = Grid(box=None, padding=(0, 2, 0, 0))
    for heading in ("target", "made", "days", "tables", "state", "comparison"):
        grid.add_column(heading, no_wrap=True)
    grid.add_column("reason")
    for line in lines:
        line.pop("paths")
        grid.add_row(*map(str, line.values()))
    out.grid(grid)


def line_for(settings: Settings, name: str) -> dict[str, Any]:
    """What `targets` says of a target, by the names of its columns."""
    from backfill_assets.delta import targets as known

    try:
        target = known.find(settings, name)
    except known.TargetError as error:  # made by another version: the others are told
        unknown = {"made": "", "days": "", "tables": "", "state": str(error), "comparison": ""}
        return {"target": name, **unknown, "reason": "", "paths": {}}
    return {
        "target": target.name,
        "made": f"{datetime.fromtimestamp(target.made).astimezone():%Y-%m-%d %H:%M}",
        "days": ", ".join(target.asked),
        "tables": ", ".join(target.tables),
        "state": _state(settings, target),
        "comparison": _comparison(target),
        "reason": target.reason,
        "paths": {of: target.url(settings, of) for of in target.tables},
    }


def _comparison(target: Target) -> str:
    """What the last comparison came to, and whether a switch-over needs one."""
    said = "none"
    if target.compared:
        count = len(target.compared.problems)
        said = f"{count} problem(s)" if count else "passed"
    return said if target.required is None else f"{said} (required {target.required})".rstrip()


def _state(settings: Settings, target: Target) -> str:
    from backfill_assets.backfills.target_undo import has_days_in_production

    state = "built beside production"
    if target.dropping:
        state = "being dropped"
    elif target.undoing:
        state = f"undo of {target.undoing} has not ended"
    elif target.switching:
        state = f"switch-over {target.switch_id} has not ended"
    elif target.switches:
        state = f"switched over: {target.switch_id}"
        if not has_days_in_production(settings, target):
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
@json_option
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
    from backfill_assets.backfills.comparing import compare as compared
    from backfill_assets.backfills.reports import as_grid
    from backfill_assets.backfills.reports import as_json as reports_as_json
    from backfill_assets.backfills.target_bounds import require as required
    from backfill_assets.cli.plans import graph
    from backfill_assets.delta.targets import Bounds
    from backfill_assets.engine.spark import Engine
    from backfill_assets.tables.code_version import running_code

    settings = load_settings()
    it = _found(settings, target)
    given = Bounds(most_drift=most_drift, most_rows=most_rows)
    bounds = given if str(given) else it.required or given
    if require is not None:
        it = required(settings, it, bounds if require else None)
    spark = Engine.of(settings).spark_session
    found = compared(settings, spark, graph(settings), it, running_code(settings), bounds)
    if as_json:
        out.json({"problems": found.problems, **reports_as_json(found.reports)})
    else:
        out.say("\n".join(found.problems) or f"{target}: all days add up")
        for report in found.reports:
            out.grid(as_grid(report))
    return Status.FINDING if found.problems else Status.FINE


@command("switch v2", "switch v2 --days 2024-01-12...2024-01-14 --reason canary")
@click.argument("target", metavar="TARGET")
@click.option(
    "--partitions",
    "--days",
    type=Partitions(),
    help="Only these days, FIRST...LAST or one, with what follows from them.",
)
@click.option("--reason", default="", help="Why, for the record.")
def switch(out: Output, target: str, partitions: Window | None, reason: str) -> None:
    """Make the days of a target production.

    One metadata commit a table; nothing is copied. One that was interrupted is finished.
    """
    settings = load_settings()
    _found(settings, target)
    with instance() as dagster:
        said = {"target": target, "days": str(partitions or ""), "reason": reason}
        level = "DEBUG" if out.verbose else "CRITICAL"
        run_id = run_job(dagster, "switch_over", "adopt_days", said, level)
    done = _found(settings, target)
    out.say(f"Switched {done.switch_id} by run {run_id[:8]}")
    out.note(f"Back     backfill-assets undo {done.switch_id}")


@command("drop v2")
@click.argument("target", metavar="TARGET")
def drop(out: Output, target: str) -> None:
    """Remove a target, with the files that it alone has.

    Production keeps what was switched over.
    """
    from backfill_assets.delta import target_forks

    settings = load_settings()
    _found(settings, target)
    count = target_forks.drop(settings, target)
    out.say(f"Dropped  {target}, with {count:,} data file(s) of its own")


def _found(settings: Settings, name: str) -> Target:
    from backfill_assets.delta import targets as known

    there = known.names(settings)
    if name not in there:
        raise click.UsageError(nearest("target", name, there))
    return known.find(settings, name)
