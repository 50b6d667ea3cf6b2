"""One machine's deployment: Dagster, and one warm Spark engine that all of its runs share.

The engine is a Spark Connect server on loopback. How it and Dagster's code server are watched is
for `servers`. Nothing of the deployment outlives the process that runs `deploy`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import dagster as dg

from backfill_assets.engine.configuration import connect_server_command
from backfill_assets.engine.jars import check_java
from backfill_assets.engine.process_groups import Group
from backfill_assets.engine.servers import Say, Server, SparkServer
from backfill_assets.settings import PREFIX, Settings, SettingsError

#: Seconds between two looks at what runs.
_TICK = 0.5
#: What Dagster and the runs find in their environment, unless the user has decided.
_DEFAULTS = {
    # Days in a run: all runs share one engine, and its memory.
    f"{PREFIX}PARTITIONS_PER_RUN": "31",
    # Without it, Dagster gives a backfill up if its daemon looks while the code server is down.
    "DAGSTER_BACKFILL_RETRY_DEFINITION_CHANGED_ERROR": "1",
}
#: The code location, by the name that it has in workspace.yaml: Dagster's history goes by it.
_LOCATION = "backfill_assets.definitions"
_CODE_SERVER = "backfill_assets.code_server"
_CODE = [
    *("-m", _LOCATION, "--location-name", _LOCATION, "--log-level", "warning"),
    *("--lazy-load-user-code", "--use-python-environment-entry-point"),
]


def deploy(settings: Settings, port: int, say: Say) -> int:
    """Run the deployment until it is told to end, or `dagster dev` ends.

    Args:
        settings: the deployment's settings; with `spark_remote`, no engine is started. Without,
            the Delta jars have been fetched.
        port: the port of the Dagster UI.
        say: prints a line for the person at the terminal.

    Returns:
        The exit status of `dagster dev`, or 0 if a signal ended the deployment.

    Raises:
        EngineError: there can be no engine here, or a server died too often.
        SettingsError: Dagster has no home.
    """
    if not os.environ.get("DAGSTER_HOME"):
        raise SettingsError("DAGSTER_HOME is not set: it names the folder of Dagster's own data")
    # Links lead to this UI, unless the user knows a better way to it.
    defaults = {**_DEFAULTS, f"{PREFIX}UI_URL": f"http://127.0.0.1:{port}"}
    environment = {**os.environ, **{k: os.environ.get(k) or v for k, v in defaults.items()}}
    servers: list[Server] = []
    if not settings.spark_remote:
        check_java()
        home = Path(os.environ["DAGSTER_HOME"]).resolve()
        command = partial(connect_server_command, settings, folder=home)
        engine = SparkServer(command, home / "spark-connect.log", say)
        environment |= engine.environment
        servers.append(engine)
    # An instance that is not as it should be is to fail here, and not in each of its processes.
    dg.DagsterInstance.get().dispose()
    with tempfile.TemporaryDirectory(prefix="backfill_assets-") as folder:
        dagster = str(Path(sys.executable).with_name("dagster"))
        address = f"{folder}/code.sock"  # a short path: that of a socket may have 100 characters
        code = [sys.executable, "-m", _CODE_SERVER, "api", "grpc", "-s", address, *_CODE]
        servers.append(Server("code server", code, address, environment, say))
        # In a place that nobody cleans up: Dagster reads it again and again.
        workspace = Path(os.environ["DAGSTER_HOME"], "deployment.workspace.yaml").resolve()
        location = {"grpc_server": {"socket": address, "location_name": _LOCATION}}
        workspace.write_text(json.dumps({"load_from": [location]}))
        # "Legacy" takes the workspace as it is, rather than a copy in a temporary place.
        theirs = ["--use-legacy-code-server-behavior", "-w", str(workspace)]
        ui = [dagster, "dev", *theirs, "-h", "127.0.0.1", "-p", str(port)]
        return supervise(ui, environment, servers)


def supervise(ui: Sequence[str], environment: Mapping[str, str], servers: Sequence[Server]) -> int:
    """Start the servers, then the UI; look after all until one is over or a signal comes."""
    running = None
    with _signals() as received:
        try:
            while not received:
                for server in servers:
                    server.tend()
                if running is None and all(server.ready for server in servers):
                    running = Group(ui, environment)
                if running is not None and (status := running.status()) is not None:
                    # As a shell tells it: a process that a signal ended has 128 and the signal.
                    return status if status >= 0 else 128 - status
                time.sleep(_TICK)
            return 0
        finally:
            # What launches runs, then the runs, and then the engine that they talk to meanwhile.
            if running is not None:
                running.end()
            for server in reversed(servers):
                server.end()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals received so far that tell a deployment to end."""
    received: list[int] = []
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Also where SIGINT was ignored, as in a script's background: the children would ignore it
        # too, and not end. What `nohup` was asked for stays.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, lambda found, _: received.append(found))
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
