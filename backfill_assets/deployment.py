"""One machine's deployment: Dagster, and one warm Spark engine that all of its runs share.

The engine is a Spark Connect server on loopback. It and Dagster's code server are restarted when
they die, and nothing of the deployment outlives the process that runs `deploy`. How a session
attaches to the engine is for `spark.py`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import dagster as dg

from backfill_assets.settings import PREFIX, Settings, SettingsError
from backfill_assets.spark import (
    EngineError,
    check_java,
    connect_server_command,
)

#: Seconds between two looks at what runs, between two probes of a server, and until one failed.
_TICK = 0.5
_PROBE_EVERY = 10.0
_PATIENCE = 3.0
#: So many failed probes in a row (more than three minutes) are a server that hangs. A busy one
#: takes a connection at once, as that needs none of Spark's threads.
_MOST_UNHEARD = 60
#: A server that does not answer for so many seconds died right after its start.
_STEADY = 60.0
_MOST_DEATHS = 3
#: What ends a process group, and the seconds that it has for it; what is left then is killed.
#: To Dagster SIGINT is Ctrl-C; run workers then record their runs as failed.
_END = ((signal.SIGINT, 60.0), (signal.SIGTERM, 15.0))
#: What Dagster and the runs find in their environment, unless the user has decided.
_DEFAULTS = {
    # Days in a run: all runs share one engine, and its memory.
    f"{PREFIX}PARTITIONS_PER_RUN": "31",
    # Without it, Dagster gives a backfill up if its daemon looks while the code server is down.
    "DAGSTER_BACKFILL_RETRY_DEFINITION_CHANGED_ERROR": "1",
}
#: The code location, by the name that it has in workspace.yaml: Dagster's history goes by it.
_LOCATION = "backfill_assets.definitions"
_CODE = [
    *("-m", _LOCATION, "--location-name", _LOCATION, "--log-level", "warning"),
    *("--lazy-load-user-code", "--use-python-environment-entry-point"),
]
#: Spark's own name; both its server and its client read the token from there.
_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_NO_PROXY = "no_grpc_proxy"

Say = Callable[[str], None]


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
        log = Path(os.environ["DAGSTER_HOME"], "spark-connect.log").resolve()
        engine = SparkServer(partial(connect_server_command, settings), log, say)
        environment |= engine.environment
        servers.append(engine)
    # An instance that is not as it should be is to fail here, and not in each of its processes.
    dg.DagsterInstance.get().dispose()
    with tempfile.TemporaryDirectory(prefix="backfill_assets-") as folder:
        dagster = str(Path(sys.executable).with_name("dagster"))
        address = f"{folder}/code.sock"  # a short path: that of a socket may have 100 characters
        code = [dagster, "api", "grpc", "-s", address, *_CODE]
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


#: Becomes the command, and leaves a guard behind, outside of the command's process group. The guard
#: waits for a byte; the end of the pipe instead means that nobody is left to end the group.
_GUARDED = """
import os, signal, sys
group = os.getpid()
if os.fork() == 0:
    os.setsid()
    if not os.read(0, 1):
        os.killpg(group, signal.SIGKILL)
    os._exit(0)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Group:
    """A command and all that it starts: a process group that does not outlive this process.

    (The kernel's own way, PR_SET_PDEATHSIG, reaches the command alone, and not what it started.)
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path | None = None
    ) -> None:
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(log.open("ab")) if log else None
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _GUARDED, *command],
                env=environment,
                cwd=log.parent if log else None,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def status(self) -> int | None:
        """The exit status of the command, or none while it runs."""
        return self._process.poll()

    def kill_command(self) -> None:
        """Kill the command itself; what it started lives on."""
        self._process.kill()
        self._process.wait()

    def lives(self) -> bool:
        """Whether anything of the group still runs."""
        return self._send(0)

    def end(self) -> None:
        """End what still runs of the group, and wait until it has ended."""
        for number, seconds in (*_END, (signal.SIGKILL, 5.0)):
            deadline = time.monotonic() + seconds
            if self._send(number):
                while self.lives() and time.monotonic() < deadline:
                    time.sleep(0.1)
        self._process.wait()
        assert self._process.stdin is not None
        # Closing the pipe is enough where the guard was killed.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b".")
            self._process.stdin.close()

    def _send(self, number: int) -> bool:
        """Send a signal to the group; whether anything is left of it."""
        self._process.poll()  # what has ended and nobody asked for still counts as running
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):  # the latter is macOS's word for it
            return False
        return True


class Server:
    """A gRPC server that is watched, and restarted at the same address.

    Attributes:
        ready: whether it has answered since it was last started.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        address: str | tuple[str, int],
        environment: Mapping[str, str],
        say: Say,
        log: Path | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            name: what to call it.
            command: the command that serves.
            address: where it serves: a socket's path, or a host and a port.
            environment: that of the command.
            say: prints a line for the person at the terminal.
            log: the file that takes its output, rather than the terminal; it runs in that folder.
        """
        self.ready = False
        self._name, self._command, self._address = name, command, address
        self._environment, self._say, self._log = environment, say, log
        self._group: Group | None = None
        self._left: list[Group] = []
        self._deaths = 0

    def tend(self) -> None:
        """See whether it runs and answers; if not, start it.

        Raises:
            EngineError: it died too often right after its start.
        """
        for group in [group for group in self._left if not group.lives()]:
            group.end()
            self._left.remove(group)
        if self._group is None:
            log = f", its log is {self._log}" if self._log else ""
            self._say(f"Starting the {self._name}{log} ...")
            self._start()
        elif (status := self._group.status()) is not None:
            self._restart(f"ended with status {status}")
        elif time.monotonic() >= self._probe_at:
            self._probe()

    def end(self) -> None:
        """Stop it and what it started, and wait until that has ended."""
        while self._left:
            self._left.pop().end()
        if self._group is not None:
            self._group.end()

    def _start(self) -> None:
        self.ready = False
        self._unheard = 0
        self._probe_at = 0.0
        self._group = Group(self._command, self._environment, self._log)

    def _probe(self) -> None:
        if not _answers(self._address, _PATIENCE):
            # How long a start takes is the machine's affair: it ends with an answer or a death.
            self._unheard += self.ready
            if self._unheard >= _MOST_UNHEARD:
                self._restart("does not answer any more")
            return
        now = time.monotonic()
        self._unheard = 0
        self._probe_at = now + _PROBE_EVERY
        if not self.ready:
            self.ready, self._ready_at = True, now
            self._say(f"The {self._name} is ready.")
        if now - self._ready_at >= _STEADY:
            self._deaths = 0

    def _restart(self, why: str) -> None:
        self._deaths += 1
        group, self._group = self._group, None
        assert group is not None
        # What it started lives on: runs need no code server to get to their end.
        group.kill_command()
        self._left.append(group)
        if self._deaths >= _MOST_DEATHS:
            raise EngineError(
                f"the {self._name} {why}, {self._deaths} times in a row right after its start: see "
                f"{self._log or 'what it says above'}"
            )
        self._say(f"The {self._name} {why}: restarting it ...")
        self._start()


class SparkServer(Server):
    """A Spark Connect server on loopback that answers only those who show its token.

    Attributes:
        url: where it is.
        token: what a client must show. It is no part of the URL, which Dagster shows.
    """

    def __init__(self, command: Callable[[int], Sequence[str]], log: Path, say: Say) -> None:
        """Nothing is started yet.

        Args:
            command: the command that serves on a port; it finds the token in its environment.
            log: the file that takes its output; it runs in that folder.
            say: prints a line for the person at the terminal.
        """
        port, self._held = _free_port()
        self.url = f"sc://localhost:{port}"
        self.token = secrets.token_urlsafe(32)
        # To Spark, a SPARK_REMOTE that is empty is a server, too.
        own = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
        own[_TOKEN] = self.token
        super().__init__("Spark engine", command(port), ("127.0.0.1", port), own, say, log)

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to attach to it."""
        return {
            "SPARK_REMOTE": self.url,
            _TOKEN: self.token,
            # Spark's client leaves its session to a timeout of an hour otherwise.
            "SPARK_CONNECT_RELEASE_SESSION_ON_EXIT": "true",
            # Where the machine has a proxy, gRPC would ask that even for a server on the machine.
            _NO_PROXY: os.environ.get(_NO_PROXY) or "localhost",
        }


#: What an HTTP/2 client begins with (RFC 9113, 3.4): the preface, and settings that set nothing.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)


def _answers(address: str | tuple[str, int], seconds: float) -> bool:
    """Whether a gRPC server answers a greeting with its own settings.

    Without a gRPC client: its threads do not go together with the processes started here, and now
    and then one would wait for ever for its own end.
    """
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    try:
        with socket.socket(family) as connection:
            connection.settimeout(seconds)
            connection.connect(address)
            connection.sendall(_HELLO)
            return connection.recv(9)[3:4] == b"\x04"
    except OSError:
        return False


def _free_port() -> tuple[int, socket.socket | None]:
    """A port that is free on loopback, and what keeps it free on that of IPv6, where there is one.

    `localhost` means ::1 first: nobody else is to listen there, and be shown the token.
    """
    while True:
        # Below the range that outgoing connections take theirs of: one of those could have the port
        # when the server is restarted, even a client's own attempt to reach it.
        port = random.randint(15002, 32767)
        held = None
        try:
            with socket.socket() as candidate:
                candidate.bind(("127.0.0.1", port))
            held = socket.socket(socket.AF_INET6)
            held.bind(("::1", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
        return port, held
