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
    from backfill_assets.doctor.examination import Check, CheckResult, ReportLine

_CHECK_SECONDS = 20.0
#: A session of a server, or an engine that is started, takes its time.
_ENGINE_SECONDS = 120.0


@command("doctor", "doctor --engine --json")
@port_option
@click.option("--engine", is_flag=True, help="Also start an embedded engine, and write with it.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=_CHECK_SECONDS,
    show_default=True,
    help="For so long each part may take to answer.",
)
@json_option
def doctor(out: Output, port: int, engine: bool, seconds: float, as_json: bool) -> Status:
    """What is wrong with this deployment, part by part, and the mend.

    It changes nothing, and starts no engine unless asked. It ends with 1 if a part is wrong.
    """
    from backfill_assets.doctor.examination import CheckRunner, Level

    runner = CheckRunner(list(_basic_checks(port, engine)), seconds)
    lines = []
    for line in runner.run_checks():
        lines.append(line)
        if not as_json and not (out.quiet and line.level is Level.OK):
            _print_line(out, line)
    wrong_lines = [line for line in lines if line.level is Level.WRONG]
    if as_json:
        out.print_json([{**asdict(line), "level": line.level.value} for line in lines])
    elif not wrong_lines:
        out.print_note("Nothing is wrong.")
    status = Status.FINDING if wrong_lines else Status.FINE
    if runner.hung:
        # What hangs in the system would keep the process from its end.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _print_line(out: Output, line: ReportLine) -> None:
    fix = f". Mend: {line.mend}" if line.mend else ""
    out.print_text(f"{line.level.value:6} {line.part:28} {line.said}{fix}")


def _basic_checks(port: int, start: bool) -> Iterator[Check]:
    """What is looked at, in this order."""
    from backfill_assets.doctor import home, machine
    from backfill_assets.doctor.examination import Check

    yield Check("DAGSTER_HOME", home.check_permissions)
    yield Check("dagster.yaml", home.check_configuration, ["DAGSTER_HOME"])
    yield Check("instance", home.check_instance, ["dagster.yaml"])
    yield Check("ticks", home.check_ticks, ["instance"])
    yield Check("localhost", machine.check_loopback)
    yield Check("port", partial(machine.check_port, port))
    try:
        settings = load_settings()
    except SettingsError as error:
        yield Check("settings", partial(_raise_error, error))
        return
    yield Check("java", partial(machine.check_java_version, settings))
    yield Check("environment", partial(machine.check_environment, settings))
    yield Check("jars", partial(machine.check_jars, settings))
    yield from _settings_checks(settings, start)


def _settings_checks(settings: Settings, start: bool) -> Iterator[Check]:
    from backfill_assets.doctor import data, home, machine
    from backfill_assets.doctor.engine import check_engine
    from backfill_assets.doctor.examination import Check

    def check_disks() -> Iterator[CheckResult]:
        folders = {"jars": settings.jars, "scratch space": machine.scratch_folder(settings)}
        if folder := home.home_folder():
            folders["home of Dagster"] = folder
        if "://" not in settings.warehouse:
            folders["warehouse"] = Path(settings.warehouse)
        yield from machine.check_disks(folders)

    yield Check("disk", check_disks)
    yield from data.data_checks(settings)
    needs = [] if settings.spark_remote else ["java"]
    run_engine_check = partial(check_engine, settings, start=start)
    yield Check("engine", run_engine_check, needs, seconds=_ENGINE_SECONDS)


def _raise_error(error: Exception) -> Iterator[CheckResult]:
    raise error
