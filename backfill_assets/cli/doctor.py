"""`doctor`: what is wrong with a deployment, one line for each part, with the mend."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.parameters import json_option, port_option
from backfill_assets.settings import Settings, SettingsError, load_settings

if TYPE_CHECKING:
    from backfill_assets.doctor.examination import Check, Found, Line

_SECONDS = 20.0
#: A session of a server, or an engine that is started, takes its time.
_ENGINE_SECONDS = 120.0


@command("doctor", "doctor --engine --json")
@port_option
@click.option("--engine", is_flag=True, help="Also start an embedded engine, and write with it.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=_SECONDS,
    show_default=True,
    help="For so long each part may take to answer.",
)
@json_option
def doctor(out: Output, port: int, engine: bool, seconds: float, as_json: bool) -> Status:
    """What is wrong with this deployment, part by part, and the mend.

    It changes nothing, and starts no engine unless asked. It ends with 1 if a part is wrong.
    """
    from backfill_assets.doctor.examination import Examination, Level

    examination = Examination(list(_checks(port, engine)), seconds)
    found = []
    for line in examination.lines():
        found.append(line)
        if not as_json and not (out.quiet and line.level is Level.OK):
            _say(out, line)
    bad = [line for line in found if line.level is Level.WRONG]
    if as_json:
        out.json([{**asdict(line), "level": line.level.value} for line in found])
    elif not bad:
        out.note("Nothing is wrong.")
    status = Status.FINDING if bad else Status.FINE
    if examination.hung:
        # What hangs in the system would keep the process from its end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _say(out: Output, line: Line) -> None:
    mend = f". Mend: {line.mend}" if line.mend else ""
    out.say(f"{line.level.value:6} {line.part:28} {line.said}{mend}")


def _checks(port: int, start: bool) -> Iterator[Check]:
    """What is looked at, in this order."""
    from backfill_assets.doctor import home, machine
    from backfill_assets.doctor.examination import Check

    yield Check("DAGSTER_HOME", home.permissions)
    yield Check("dagster.yaml", home.configuration, ["DAGSTER_HOME"])
    yield Check("instance", home.instance, ["dagster.yaml"])
    yield Check("ticks", home.ticks, ["instance"])
    yield Check("localhost", machine.loopback)
    yield Check("port", partial(machine.port, port))
    try:
        settings = load_settings()
    except SettingsError as error:
        yield Check("settings", partial(_raise, error))
        return
    yield Check("java", partial(machine.java, settings))
    yield Check("environment", partial(machine.environment, settings))
    yield Check("jars", partial(machine.jars, settings))
    yield from _of_data(settings, start)


def _of_data(settings: Settings, start: bool) -> Iterator[Check]:
    from backfill_assets.doctor import data, engine, home, machine
    from backfill_assets.doctor.examination import Check

    def disk() -> Iterator[Found]:
        folders = {"jars": settings.jars, "scratch space": machine.scratch(settings)}
        if folder := home.home_folder():
            folders["home of Dagster"] = folder
        if "://" not in settings.warehouse:
            folders["warehouse"] = Path(settings.warehouse)
        yield from machine.disk(folders)

    yield Check("disk", disk)
    yield from data.checks(settings)
    needs = [] if settings.spark_remote else ["java"]
    look = partial(engine.engine, settings, start=start)
    yield Check("engine", look, needs, seconds=_ENGINE_SECONDS)


def _raise(error: Exception) -> Iterator[Found]:
    raise error
