"""One machine's deployment: Dagster, and one warm Spark engine that all of its runs share.

The engine is a Spark Connect server on loopback. How it and Dagster's code server are watched is
for `servers`. Nothing of the deployment outlives the process that runs `run_deployment`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import dagster as dg

from backfill_assets.dagster_ext.instance_access import PasswordFile
from backfill_assets.settings import PREFIX, Settings
from backfill_assets.spark.configuration import connect_server_command, master_url
from backfill_assets.spark.jars import check_java
from backfill_assets.spark.jvm_launch import ScratchDir
from backfill_assets.spark.processes import ProcessGroup, jvm_environment
from backfill_assets.spark.servers import Say, Server, SparkServer

#: Seconds between two looks at what runs.
_TICK = 0.5
#: What Dagster and the runs find in their environment, unless the user has decided.
_DEFAULT_ENVIRONMENT = {
    # Sensors tick every few seconds, and each tick would be two lines.
    "DAGSTER_DAEMON_LOG_LEVEL": "warning",
    # Without it, Dagster gives a backfill up if its daemon looks while the code server is down.
    "DAGSTER_BACKFILL_RETRY_DEFINITION_CHANGED_ERROR": "1",
}
_DEFINITIONS = "backfill_assets.definitions"
_CODE_SERVER = "backfill_assets.code_server"
_WEB_SERVER = "backfill_assets.webserver"
_CODE_SERVER_OPTIONS = [
    *("-m", _DEFINITIONS, "--log-level", "warning"),
    *("--lazy-load-user-code", "--use-python-environment-entry-point"),
]


@dataclass(frozen=True)
class DagsterProcess:
    """A process of Dagster's own, whose end is that of the deployment.

    Attributes:
        name: what to call it.
        command: the command.
        inherits: the descriptors that it has of this process.
    """

    name: str
    command: Sequence[str]
    inherits: Sequence[int] = ()


def run_deployment(settings: Settings, listening: Sequence[socket.socket], say: Say) -> int:
    """Run the deployment until it is told to end, or a part of Dagster ends.

    Args:
        settings: the deployment's settings, beside DAGSTER_HOME in the environment. With
            `spark_remote`, no engine is started; without, the Delta jars have been fetched.
        listening: where the UI is to answer, see `claims`.
        say: prints a line for the person at the terminal.

    Returns:
        The exit status of the part that ended, or 0 if a signal ended the deployment.

    Raises:
        EngineError: there can be no engine here, or a server died too often.
        SettingsError: the file of passwords is not as it should be.
    """
    if settings.ui_passwords:
        PasswordFile.read_file(settings.ui_passwords)
    # Links lead to this UI, unless the user knows a better way to it.
    ui_url = "http://{}:{}".format(*listening[0].getsockname())
    defaults = {**_DEFAULT_ENVIRONMENT, f"{PREFIX}UI_URL": ui_url}
    environment = {**os.environ, **{k: os.environ.get(k) or v for k, v in defaults.items()}}
    servers: list[Server] = []
    if not settings.spark_remote:
        check_java()
        home = Path(os.environ["DAGSTER_HOME"]).resolve()
        scratch = ScratchDir(home)
        command = partial(connect_server_command, settings, folder=home, scratch=scratch)
        log = home / "spark-connect.log"
        engine = SparkServer(command, jvm_environment(master_url(settings)), log, say, scratch)
        environment |= engine.client_environment
        servers.append(engine)
    # An instance that is not as it should be is to fail here, and not in each of its processes.
    dg.DagsterInstance.get().dispose()
    with tempfile.TemporaryDirectory(prefix="backfill_assets-") as folder:
        address = f"{folder}/code.sock"  # a short path: that of a socket may have 100 characters
        code_command = [
            sys.executable,
            "-m",
            _CODE_SERVER,
            "api",
            "grpc",
            "-s",
            address,
            *_CODE_SERVER_OPTIONS,
        ]
        code_command += ["--location-name", settings.location]
        servers.append(Server("code server", code_command, address, environment, say))
        # In a place that nobody cleans up: Dagster reads it again and again.
        workspace = Path(os.environ["DAGSTER_HOME"], "deployment.workspace.yaml").resolve()
        location = {"grpc_server": {"socket": address, "location_name": settings.location}}
        workspace.write_text(json.dumps({"load_from": [location]}))
        return supervise(_dagster_processes(workspace, listening), environment, servers, say)


def _dagster_processes(workspace: Path, listening: Sequence[socket.socket]) -> list[DagsterProcess]:
    """What `dagster dev` starts, with the web server behind its door."""
    python, workspace_option = [sys.executable, "-m"], ["--workspace", str(workspace)]
    descriptors = [listener.fileno() for listener in listening]
    sockets = [word for number in descriptors for word in ("--listening", str(number))]
    return [
        DagsterProcess(
            "web server", [*python, _WEB_SERVER, *workspace_option, *sockets], descriptors
        ),
        DagsterProcess("daemon", [*python, "dagster._daemon", "run", *workspace_option]),
    ]


def supervise(
    parts: Sequence[DagsterProcess],
    environment: Mapping[str, str],
    servers: Sequence[Server],
    say: Say,
) -> int:
    """Start the servers, then the parts; look after all until one is over or a signal comes."""
    running: dict[str, ProcessGroup] = {}
    with _stop_signals() as received:
        try:
            while not received:
                for server in servers:
                    server.keep_running()
                if not running and all(server.ready for server in servers):
                    for part in parts:
                        inherits = part.inherits
                        running[part.name] = ProcessGroup(
                            part.command, environment, inherits=inherits
                        )
                for name, group in running.items():
                    if (status := group.exit_status()) is not None:
                        say(f"The {name} ended with status {status}: ending the deployment ...")
                        # As a shell tells it: one that a signal ended has 128 and the signal.
                        return status if status >= 0 else 128 - status
                time.sleep(_TICK)
            return 0
        finally:
            # What launches runs, then the runs, and then the engine that they talk to meanwhile.
            for group in reversed(running.values()):
                group.terminate()
            for server in reversed(servers):
                server.stop()


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """The signals received so far that tell a deployment to end."""
    received: list[int] = []
    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Also where SIGINT was ignored, as in a script's background: the children would ignore it
        # too, and not end. What `nohup` was asked for stays.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            previous[number] = signal.signal(number, lambda caught, _: received.append(caught))
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
