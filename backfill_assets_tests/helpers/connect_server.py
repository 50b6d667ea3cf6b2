"""A Spark Connect server of one's own, on loopback, stopped by who started it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from backfill_assets.serve.servers import SparkServer
from backfill_assets.settings import Settings, load_settings
from backfill_assets.spark.configuration import connect_server_command, master_url
from backfill_assets.spark.processes import jvm_environment
from backfill_assets.spark.tasks import build_task_times


@contextmanager
def connect_server(folder: Path, conf: dict[str, str], **more: Any) -> Iterator[str]:
    """The URL, with its token, of a server that runs in `folder` with these Spark settings.

    Args:
        folder: its own.
        conf: the settings of Spark.
        more: other settings, such as the warehouse or the master.
    """
    settings = load_settings(**{"spark_master": "local[2]", "spark_conf": conf, **more})
    build_task_times(settings.jars)  # as the commands that start one do
    command = partial(connect_server_command, settings, folder=folder)
    environment = jvm_environment(master_url(settings))
    server = SparkServer(command, environment, folder / "connect-server.log", print)
    try:
        while not server.ready:
            server.keep_running()
        yield f"{server.url};token={server.token}"
    finally:
        server.stop()


#: Code that prints the session of `run_attached`.
SESSION_ID = "print(spark.session_id)\n"


def run_attached(server: str, code: str, **environment: str) -> list[str]:
    """The words that a process prints which has a session of the server, as `spark`."""
    start = (
        "from backfill_assets.spark.session import Engine\n"
        "from backfill_assets.settings import load_settings\n"
        "spark = Engine.from_settings(load_settings()).spark_session\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", start + code],
        env={**os.environ, "SPARK_REMOTE": server, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return process.stdout.split()


def server_settings(settings: Settings, folder: Path) -> dict[str, str]:
    """The settings that a Connect server's command gives it by file, none by argument."""
    command = connect_server_command(settings, 15099, folder)
    assert Path(command[0]).is_file()
    assert "--conf" not in command
    file = Path(command[command.index("--properties-file") + 1])
    lines = (line.split("=", 1) for line in file.read_text().splitlines())
    read = lambda text: re.sub(r"\\u(....)", lambda match: chr(int(match[1], 16)), text)  # noqa: E731
    return {read(name): read(value) for name, value in lines}
