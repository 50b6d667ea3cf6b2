"""The deployment and its data: `ui`, `engine`, `password`, `jars`, samples; `progress` of a run."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import click
from click.core import ParameterSource

from backfill_assets.cli.output import CannotRunError, Output, Status, command
from backfill_assets.cli.parameters import dagster_home, port_option
from backfill_assets.dagster_ext.claims import listen_on_port, lock_home
from backfill_assets.settings import PREFIX, Settings, load_settings

_SAMPLE_DAYS = 28


@command("ui", "ui --port 3001")
@port_option
def ui(out: Output, port: int) -> Status:
    """The Dagster UI, daemon and runs on one warm Spark engine.

    Needs DAGSTER_HOME. It runs until Ctrl-C, and ends with 3 if a part of it cannot run.
    """
    settings = load_settings()
    if not (folder := dagster_home(out.print_note)):
        raise CannotRunError("DAGSTER_HOME is not set: it names the folder of Dagster's own data")
    from backfill_assets.doctor.home import describe_configuration

    if message := describe_configuration(Path(folder)):
        out.print_note(message)
    # Before anything is started, or fetched.
    with lock_home(Path(folder), port), listen_on_port(port) as listening:
        _fetch_jars(out, settings)
        from backfill_assets.dagster_ext.deployment import run_deployment

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
    from backfill_assets.dagster_ext.passwords import write_password

    write_password(path, name, secret)
    out.print_note(f"{name} may use the UI, from its next start on: {path}")


@command("engine", "engine --port 15002")
@click.option("--port", type=click.IntRange(1, 65535), default=15002, show_default=True)
def engine(out: Output, port: int) -> None:
    """The Spark engine alone, on 127.0.0.1, for runs that others start.

    Needs SPARK_CONNECT_AUTHENTICATE_TOKEN: what its clients have to show.
    """
    from backfill_assets.engine.configuration import connect_server_command, master_url
    from backfill_assets.engine.environment import TOKEN_VARIABLE, jvm_environment
    from backfill_assets.engine.jars import check_java

    if not os.environ.get(TOKEN_VARIABLE):
        raise CannotRunError(
            f"{TOKEN_VARIABLE} is not set: give the engine and those who use it the same long random text, "
            "or everybody on this machine could run code as you"
        )
    check_java()
    settings = load_settings()
    _fetch_jars(out, settings)
    # Spark reads its settings there; this process becomes the server, and cannot clean up.
    command = connect_server_command(settings, port, Path(tempfile.mkdtemp(prefix="engine-")))
    os.execve(command[0], command, jvm_environment(master_url(settings)))


@command("jars")
@click.option("--s3", is_flag=True, help="Also those of s3a://, though no setting names it.")
def jars(out: Output, s3: bool) -> None:
    """Download the Delta jars into their cache and prepare the engine's start, once.

    And the jars of s3a://, where the landing or the warehouse is there.
    """
    _fetch_jars(out, load_settings(), s3=s3)


def _fetch_jars(out: Output, settings: Settings, *, s3: bool = False) -> None:
    if settings.spark_remote:
        out.print_note("SPARK_REMOTE is set: the server has the Delta jars, none are needed here.")
        return
    from backfill_assets.engine.class_archive import class_archive_path, make_class_archive
    from backfill_assets.engine.configuration import uses_s3
    from backfill_assets.engine.jars import (
        delta_coordinate,
        delta_jars,
        fetch_delta_jars,
        fetch_s3_jars,
        s3_jars,
    )
    from backfill_assets.engine.task_times import build_task_times

    if not delta_jars(settings.jars):
        out.print_note(f"Downloading the Delta jars ({delta_coordinate()}) ...")
    fetch_delta_jars(settings.jars)
    if s3 or uses_s3(settings):
        if not s3_jars(settings.jars):
            out.print_note("Downloading the jars of s3a:// ...")
        fetch_s3_jars(settings.jars)
    build_task_times(settings.jars)
    archive = class_archive_path(settings.jars)
    if archive and not archive.exists():
        out.print_note("Putting the engine's classes together, once, so that it starts faster ...")
        make_class_archive(settings.jars)


@command("sample --days 28")
@click.option(
    "--days",
    type=click.IntRange(min=1),
    default=_SAMPLE_DAYS,
    show_default=True,
    help="So many arrival days, from BACKFILL_ASSETS_START on.",
)
@click.pass_context
def sample(ctx: click.Context, out: Output, days: int) -> None:
    """Write sample landing data, unless there is some."""
    settings = load_settings()
    if "://" in settings.landing:
        out.print_text(
            f"{settings.landing} is no local folder: no sample orders are written there."
        )
        return
    from backfill_assets.sample.lines import SOURCE

    landing = Path(settings.landing)
    if (landing / SOURCE).exists():
        if ctx.get_parameter_source("days") is ParameterSource.COMMANDLINE:
            out.print_text(
                f"{landing} has orders already: it stays as it is, whatever --days says."
            )
        return
    from backfill_assets.sample.clearing import write_file_list
    from backfill_assets.sample.generator import write_invented_landing

    others = landing.is_dir() and any(landing.iterdir())
    out.print_note(f"Writing {days} days of sample orders to {landing} ...")
    write_invented_landing(
        landing, start=settings.start, days=days, window_days=settings.window_days
    )
    if not others:
        write_file_list(landing)


@command("cdnow CDNOW_master.txt")
@click.argument("master", type=click.Path(path_type=Path))
def cdnow(out: Output, master: Path) -> None:
    """Turn CDNOW_master.txt into landing data.

    MASTER is the path of that file.
    """
    settings = load_settings()
    if "://" in settings.landing:
        raise CannotRunError(f"{PREFIX}LANDING={settings.landing} is no local folder")
    from backfill_assets.sample.cdnow import write_cdnow_landing

    rows = write_cdnow_landing(master, Path(settings.landing))
    out.print_text(f"{rows} purchases written to {settings.landing}")


@command("progress < run.log")
def progress(out: Output) -> Status:
    """Condense a run's log (standard input) into progress.

    It ends with 1 if the run did not succeed.
    """
    from backfill_assets.cli.progress import condense_log

    return condense_log(sys.stdin, out)
