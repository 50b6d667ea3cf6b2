"""The deployment of one machine: Dagster, and one warm Spark engine that all of its runs share.

The engine is a Spark Connect server on loopback; `spark.servers` watches it and Dagster's code
server. No process of the deployment outlives the process that runs `run_deployment`.
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

#: Seconds between two looks at the processes.
_TICK = 0.5
#: Environment variables of Dagster and the runs, unless the user has set them.
_DEFAULT_ENVIRONMENT = {
    # Sensors tick every few seconds, and each tick would log two lines.
    "DAGSTER_DAEMON_LOG_LEVEL": "warning",
    # Without it, Dagster fails a backfill if its daemon evaluates it while the code server is down.
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
    """A process of Dagster and its inherited descriptors; when it ends, the deployment ends."""

    name: str
    command: Sequence[str]
    inherits: Sequence[int] = ()


def run_deployment(settings: Settings, listening: Sequence[socket.socket], say: Say) -> int:
    """Run the deployment until a signal ends it, or a Dagster process ends; return the exit status.

    DAGSTER_HOME is in the environment. With `spark_remote`, no engine is started; without, the
    Delta jars have been fetched. `listening` are the UI's sockets, see `listen_on_port`.

    Raises:
        EngineError: no engine can run here, or a server died too often.
        SettingsError: the password file is not valid.
    """
    if settings.ui_passwords:
        PasswordFile.read_file(settings.ui_passwords)
    # Links lead to this UI, unless the user has set another URL.
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
    # A broken instance must fail here, not in each of its processes.
    dg.DagsterInstance.get().dispose()
    with tempfile.TemporaryDirectory(prefix="backfill_assets-") as folder:
        address = f"{folder}/code.sock"  # a short path: a socket's path has 100 characters at most
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
        # In DAGSTER_HOME, where no cleaner removes it: Dagster reads it again and again.
        workspace = Path(os.environ["DAGSTER_HOME"], "deployment.workspace.yaml").resolve()
        location = {"grpc_server": {"socket": address, "location_name": settings.location}}
        workspace.write_text(json.dumps({"load_from": [location]}))
        return supervise(_dagster_processes(workspace, listening), environment, servers, say)


def _dagster_processes(workspace: Path, listening: Sequence[socket.socket]) -> list[DagsterProcess]:
    """The processes that `dagster dev` starts, with the web server behind its guard."""
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
    """Start the servers, then the parts; watch them until a part ends or a signal comes."""
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
                        # As in a shell: after a signal, 128 plus the signal's number.
                        return status if status >= 0 else 128 - status
                time.sleep(_TICK)
            return 0
        finally:
            # First the processes that launch runs, then the runs, then the engine that the runs
            # use.
            for group in reversed(running.values()):
                group.terminate()
            for server in reversed(servers):
                server.stop()


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """The signals received so far that end a deployment."""
    received: list[int] = []
    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Also where SIGINT was ignored, as in a script's background: the children would ignore it
        # too, and not end. The effect of `nohup` stays.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            previous[number] = signal.signal(number, lambda caught, _: received.append(caught))
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
