"""Commands of the deployment: `init`, `ui`, `engine`, `doctor`, `settings`, `jars` and others."""

from __future__ import annotations

import json
import keyword
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator
from functools import partial
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.output import CannotRunError, Output, Status, command
from backfill_assets.cli.parameters import dagster_home, json_option, port_option
from backfill_assets.deployment import Deployment
from backfill_assets.settings import (
    PREFIX,
    Settings,
    SettingsError,
    find_dagster_home,
    list_variables,
    load_settings,
    require_extra,
    variable_origin,
)

if TYPE_CHECKING:
    from backfill_assets.doctor.checks import Check, CheckResult


@command("ui", "ui --port 3001")
@port_option
def ui(out: Output, port: int) -> Status:
    """The Dagster UI, daemon and runs on one warm Spark engine.

    Needs DAGSTER_HOME. It runs until Ctrl-C, and ends with 3 if a part of it cannot run.
    """
    settings = load_settings()
    if not (folder := dagster_home(out.print_note)):
        raise CannotRunError("DAGSTER_HOME is not set: it names the folder of Dagster's own data")
    require_extra("serve", "dagster_webserver", "the UI")
    from backfill_assets.doctor.machine import describe_configuration
    from backfill_assets.serve.supervisor import listen_on_port, lock_home, run_deployment

    if message := describe_configuration(folder):
        out.print_note(message)
    # Before anything is started or downloaded.
    with lock_home(folder, port), listen_on_port(port) as listening:
        _fetch_jars(out, settings)
        if status := run_deployment(settings, listening, out.print_text):
            raise CannotRunError(f"a part of it ended with status {status}; see above")
    return Status.FINE


@command("password anna")
@click.argument("name")
def password(out: Output, name: str) -> None:
    """Let somebody use the UI, with a password.

    It is asked for, or read from standard input, and what it makes is kept in the file that
    BACKFILL_ASSETS_UI_PASSWORDS names. The UI knows it from its next start on.
    """
    path = load_settings().ui_passwords
    if path is None:
        raise CannotRunError(
            f"{PREFIX}UI_PASSWORDS is not set: set it to the file that is to hold who may use the "
            "UI, for this command and for `backfill-assets ui`"
        )
    if not re.fullmatch(r"[\w.@-]+", name):
        raise click.UsageError(f"{name!r} is no name: letters, digits and . _ @ - are allowed")
    if sys.stdin.isatty():
        secret = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        secret = sys.stdin.readline().rstrip("\n")
    if not secret:
        raise CannotRunError("an empty password is none; nothing was changed")
    from backfill_assets.serve.supervisor import write_password

    write_password(path, name, secret)
    out.print_note(f"{name} may use the UI, from its next start on: {path}")


@command("engine", "engine --port 15002")
@click.option("--port", type=click.IntRange(1, 65535), default=15002, show_default=True)
def engine(out: Output, port: int) -> None:
    """The Spark engine alone, on 127.0.0.1, for runs that others start.

    Needs SPARK_CONNECT_AUTHENTICATE_TOKEN: what its clients have to show.
    """
    from backfill_assets.spark.configuration import connect_server_command, master_url
    from backfill_assets.spark.jars import check_java
    from backfill_assets.spark.processes import TOKEN_VARIABLE, jvm_environment

    if not os.environ.get(TOKEN_VARIABLE):
        raise CannotRunError(
            f"{TOKEN_VARIABLE} is not set: give the engine and those who use it the same long "
            "random text, or everybody on this machine could run code as you"
        )
    check_java()
    settings = load_settings()
    _fetch_jars(out, settings)
    # Spark reads its settings there; this process becomes the server and cannot clean up.
    command = connect_server_command(settings, port, Path(tempfile.mkdtemp(prefix="engine-")))
    os.execve(command[0], command, jvm_environment(master_url(settings)))


@command("jars")
@click.option("--s3", is_flag=True, help="Also those of s3a://, though no setting names it.")
@click.option("--gs", is_flag=True, help="Also those of gs://, though no setting names it.")
@click.option("--azure", is_flag=True, help="Also those of abfss://, though no setting names it.")
def jars(out: Output, **stores: bool) -> None:
    """Download the Delta jars into their cache and prepare the engine's start, once.

    And the jars of s3a://, gs:// or abfss://, where the landing or the warehouse is there.
    """
    options = {f"--{name}" for name, is_set in stores.items() if is_set}
    _fetch_jars(out, load_settings(), options)


def _fetch_jars(out: Output, settings: Settings, options: Collection[str] = ()) -> None:
    """Prepare the jars and the class archive once; does nothing with a Spark Connect server."""
    if settings.spark_remote:
        out.print_note("SPARK_REMOTE is set: the server has the Delta jars, none are needed here.")
        return
    from backfill_assets.spark.configuration import used_stores
    from backfill_assets.spark.jars import (
        delta_coordinate,
        delta_jars,
        fetch_delta_jars,
        fetch_store_jars,
        store_jars,
    )
    from backfill_assets.spark.jvm_launch import class_archive_path, make_class_archive
    from backfill_assets.spark.stores import STORES
    from backfill_assets.spark.tasks import build_task_times

    if not delta_jars(settings.jars):
        out.print_note(f"Downloading the Delta jars ({delta_coordinate()}) ...")
    fetch_delta_jars(settings.jars)
    stores = [store for store in STORES if store.jars_option in options]
    for store in dict.fromkeys([*stores, *used_stores(settings)]):
        if not store_jars(settings.jars, store):
            out.print_note(f"Downloading the jars of {store.schemes[0]}:// ...")
        fetch_store_jars(settings.jars, store)
    build_task_times(settings.jars)
    archive = class_archive_path(settings.jars)
    if archive and not archive.exists():
        out.print_note("Putting the engine's classes together, once, so that it starts faster ...")
        make_class_archive(settings.jars)


@command("progress < run.log")
def progress(out: Output) -> Status:
    """Condense a run's log (standard input) into progress.

    It ends with 1 if the run did not succeed.
    """
    from backfill_assets.cli.runs import condense_log

    return condense_log(sys.stdin, out)


#: The files of a project, each with its template. `{name}` is the name of its package.
_PROJECT_FILES = {
    "pyproject.toml": "pyproject.toml.j2",
    "Makefile": "Makefile.j2",
    ".env": "env.j2",
    ".gitignore": "gitignore",
    "README.md": "README.md.j2",
    "workspace.yaml": "workspace.yaml.j2",
    # Not in the project folder: without DAGSTER_HOME, Dagster would take it for its own
    # configuration.
    "deployment/dagster.yaml": "dagster.yaml",
    "{name}/sources.py": "sources.py.j2",
    "{name}/tables.py": "tables.py.j2",
    "{name}/sample.py": "sample.py.j2",
    "tests/test_tables.py": "test_tables.py.j2",
}


@command("init shop", "init --into shop/lake")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--into", is_flag=True, help="DIRECTORY is a new folder in a package of yours.")
def init(out: Output, directory: Path, into: bool) -> Status:
    """Write a project of your own: a source, a table, a test, sample data.

    DIRECTORY is a new or an empty folder; its name is that of the project. With --into it gets the
    declarations, their test and sample data alone: your project has the rest.
    """
    if directory.exists() and any(directory.iterdir()):
        remedy = f"; name a new folder in it, as {directory / 'lake'}" if into else ""
        raise click.BadParameter(f"{directory} is not empty; nothing was written{remedy}")
    # Not at the top: it imports Dagster and PySpark.
    from backfill_assets.definitions import (
        render_scaffold,
        write_declarations,
        write_scaffold,
    )

    if into:
        try:
            values = write_declarations(directory)
        except ValueError as error:
            raise click.BadParameter(f"{error}; nothing was written") from error
        text = render_scaffold("definitions.txt.j2", values | {"folder": directory})
        out.print_text(text.rstrip())
        return Status.FINE
    name = directory.resolve().name.replace("-", "_")
    if not name.isidentifier():
        raise click.BadParameter(f"{directory.name} cannot name a Python package: use letters")
    # A folder without files is not another module.
    if keyword.iskeyword(name) or ((spec := find_spec(name)) and spec.origin):
        raise click.BadParameter(
            f"Python has {name} already, and would import that: take another name, as {name}_tables"
        )
    files = {path.format(name=name): template for path, template in _PROJECT_FILES.items()}
    write_scaffold(directory, files, name=name, requirement=_pip_requirement())
    (directory / name / "__init__.py").write_text(f'"""The tables of {name}."""\n')
    out.print_text(f"{directory} is a project now. See it work: make -C {directory} demo")
    return Status.FINE


def _pip_requirement() -> str:
    """The package as a pip requirement: where it was installed from, or its version."""
    package = distribution("backfill-assets")
    install_source = json.loads(package.read_text("direct_url.json") or "{}")
    if url := install_source.get("url"):
        return f"backfill-assets[serve,lookups] @ {url}"
    return f"backfill-assets[serve,lookups]=={package.version}"


@command("settings", "settings --json")
@json_option
def settings(out: Output) -> None:
    """All settings, with the value of each and where it comes from.

    The `.env` of the current folder is read as Dagster reads it, and wins over the environment.
    """
    rows = [
        {"name": name, "value": value, "origin": variable_origin(name)}
        for name, value in list_variables(load_settings())
    ]
    out.print_json(rows)
    if file := _ignored_env_file():
        out.print_note(
            f"# {file} is not read: commands read the .env of the folder they are called in."
        )
    widths = [max(len(row[column]) for row in rows) for column in ("name", "value")]
    for row in rows:
        out.print_text(
            f"{row['name']:{widths[0]}}  {row['value']:{widths[1]}}  {row['origin']}".rstrip()
        )


def _ignored_env_file() -> Path | None:
    """The `.env` of a parent folder, if the current folder has none."""
    current = Path.cwd()
    if (current / ".env").is_file():
        return None
    return next(
        (folder / ".env" for folder in current.parents if (folder / ".env").is_file()), None
    )


_CHECK_SECONDS = 20.0
#: Seconds: connecting a server session or starting an engine takes time.
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
def doctor(out: Output, port: int, engine: bool, seconds: float) -> Status:
    """What is wrong with this deployment, part by part, and the mend.

    It changes nothing, and starts no engine unless asked. It ends with 1 if a part is wrong.
    """
    from backfill_assets.doctor.checks import CheckRunner, Level

    runner = CheckRunner(list(_basic_checks(port, engine)), seconds)
    lines = []
    for line in runner.run_checks():
        lines.append(line)
        if not (out.quiet and line.level is Level.OK):
            fix = f". Mend: {line.fix}" if line.fix else ""
            out.print_text(f"{line.level.value:6} {line.part:28} {line.message}{fix}")
    wrong_lines = [line for line in lines if line.level is Level.WRONG]
    out.print_json(
        [
            {"part": line.part, "level": line.level.value, "message": line.message, "fix": line.fix}
            for line in lines
        ]
    )
    if not wrong_lines:
        out.print_note("Nothing is wrong.")
    status = Status.FINDING if wrong_lines else Status.FINE
    if runner.hung:
        # A hanging system call would prevent the process's exit.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _basic_checks(port: int, start: bool) -> Iterator[Check]:
    """All checks; those that need settings are left out if the settings are invalid."""
    from backfill_assets.doctor import machine
    from backfill_assets.doctor.checks import Check

    yield Check("DAGSTER_HOME", machine.check_permissions)
    yield Check("dagster.yaml", machine.check_configuration, ["DAGSTER_HOME"])
    yield Check("instance", machine.check_instance, ["dagster.yaml"])
    yield Check("ticks", machine.check_ticks, ["instance"])
    yield Check("localhost", machine.check_loopback)
    yield Check("port", partial(machine.check_port, port))
    try:
        deployment = Deployment(load_settings())
    except SettingsError as error:
        yield Check("settings", partial(_raise_error, error))
        return
    yield Check("java", partial(machine.check_java_version, deployment.settings))
    yield Check("environment", partial(machine.check_environment, deployment.settings))
    yield Check("jars", partial(machine.check_jars, deployment.settings))
    yield from _settings_checks(deployment, start)


def _settings_checks(deployment: Deployment, start: bool) -> Iterator[Check]:
    """The checks of disks, data and engine; `start` also starts an embedded engine."""
    from backfill_assets.doctor import data, machine
    from backfill_assets.doctor.checks import Check
    from backfill_assets.doctor.data import check_engine

    def check_disks() -> Iterator[CheckResult]:
        """Find the folders when the check runs: a bad DAGSTER_HOME fails only this check."""
        folders = {
            "jars": deployment.settings.jars,
            "scratch space": machine.scratch_folder(deployment.settings),
        }
        if folder := find_dagster_home():
            folders["home of Dagster"] = folder
        if "://" not in deployment.settings.warehouse:
            folders["warehouse"] = Path(deployment.settings.warehouse)
        yield from machine.check_disks(folders)

    yield Check("disk", check_disks)
    yield from data.data_checks(deployment)
    needs = [] if deployment.settings.spark_remote else ["java"]
    run_engine_check = partial(check_engine, deployment, start=start)
    yield Check("engine", run_engine_check, needs, seconds=_ENGINE_SECONDS)


def _raise_error(error: Exception) -> Iterator[CheckResult]:
    raise error
