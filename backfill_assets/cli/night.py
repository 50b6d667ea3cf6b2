"""`night`: what schedule and sensors would run, without Dagster's daemon."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.parameters import Day, home
from backfill_assets.settings import load_settings

if TYPE_CHECKING:
    from backfill_assets.monitoring.night import Night, Result
    from backfill_assets.monitoring.run_requests import Request


@command("night", "night --run --as-of 2024-01-22")
@click.option("--run", is_flag=True, help="Run them, until nothing is left to do.")
@click.option("--as-of", metavar="DAY", type=Day(), help="The business day; else today.")
def night(out: Output, run: bool, as_of: date | None) -> Status:
    """What tonight's runs would be, as commands; with --run, run them.

    In the order in which schedule and sensors would. It ends with 1 if a run failed.
    """
    settings = load_settings()
    import dagster as dg

    from backfill_assets.backfills import undertakings
    from backfill_assets.backfills.stages import lacking_daemons
    from backfill_assets.backfills.target_undo import keep_settled_versions
    from backfill_assets.monitoring.night import Night, busy, run_night

    now = datetime.now(settings.zone).date()
    nights, today = Night(settings, now), as_of or now
    with _home_or_none() as folder, dg.DagsterInstance.from_config(folder) as instance:
        look = partial(busy, instance, nights.tables, daemon=not lacking_daemons(instance))
        for log, said in () if out.quiet else nights.silences(today).items():
            # As a shell's comment: the commands that follow may be piped into one.
            out.command_line(f"# {log}: {said}.")
        if not run:
            _print_commands(out, nights, today, *nights.wave(today, look(), list))
            return Status.FINE
        result = run_night(nights, today, look, partial(_run_one, out, nights, folder))
        if not look() and not undertakings.under_way(instance):
            keep_settled_versions(settings, now)
        return _reported(out, today, result)


def _print_commands(
    out: Output, nights: Night, today: date, kind: str, requests: Sequence[Request]
) -> None:
    out.command_line(_outlook(today, kind, requests))
    for request in requests:
        out.command_line(shlex.join(nights.command(request)))


def _outlook(today: date, kind: str, requests: Sequence[Request]) -> str:
    """What the commands are that follow, as a shell's comment."""
    from backfill_assets.monitoring.night import LOAD

    if not requests:
        return f"# As of {today} all that has landed is loaded, and every open day is built."
    if kind == LOAD:
        return f"# As of {today}: load, in this order. Then ask again: what it changed is rebuilt."
    return f"# As of {today}: rebuild. Then ask again, until nothing is left."


def _reported(out: Output, today: date, result: Result) -> Status:
    for request in result.waiting:
        out.say(f"Left     {request.tables[0]} [{request.window}] to a run under way")
    for request in result.failed:
        out.say(f"FAILED   {', '.join(request.tables)} [{request.window}]")
    if result.failed:
        out.say("Next     mend what the runs above say and ask again: only what is not built")
        out.say("         as it should be is run. The days that passed are published.")
        return Status.FINDING
    out.say(f"Night    {today}: {len(result.done)} run(s), nothing is left to do")
    return Status.FINE


@contextlib.contextmanager
def _home_or_none() -> Iterator[str]:
    """Dagster's home; where there is none, one that lasts as long as the command.

    Dagster would make one for each run, and configure it by whatever dagster.yaml lies around.
    """
    if folder := home():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="backfill_assets-") as temporary:
        Path(temporary, "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        yield temporary


def _run_one(out: Output, nights: Night, folder: str, kind: str, request: Request) -> bool:
    """Run a request as a process of its own; whether it succeeded."""
    from backfill_assets.cli.progress import condense
    from backfill_assets.monitoring.night import LOAD
    from backfill_assets.publish.run_tags import NIGHT_VARIABLE

    doing = "Loading" if kind == LOAD else "Building"
    out.note(f"{doing} {', '.join(request.tables)} for {request.window} ...")
    dagster, *arguments = nights.command(request)
    with subprocess.Popen(
        [str(Path(sys.executable).with_name(dagster)), *arguments],
        env={**os.environ, NIGHT_VARIABLE: "1", "DAGSTER_HOME": folder},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        said = condense(process.stdout, out)
    return said is Status.FINE and process.returncode == 0
