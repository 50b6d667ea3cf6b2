"""A served deployment: its processes, one per home and port, and the passwords for the UI.

The password file holds scrypt hashes, which are slow to compute and cannot be reversed.

The engine is a Spark Connect server on loopback; `serve.servers` watches it and Dagster's code
server. No process of the deployment outlives the process that runs `run_deployment`.
"""

import base64
import binascii
import contextlib
import errno
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from backfill_assets.settings import DEPLOYMENT_LOCK, PREFIX, Settings, SettingsError, parse_ui_url
from backfill_assets.spark.processes import ProcessGroup, jvm_environment

if TYPE_CHECKING:
    from backfill_assets.serve.servers import Say, Server


class TakenError(Exception):
    """The home or the port is taken; the message says why and what to do."""


@contextlib.contextmanager
def lock_home(home: Path, port: int) -> Iterator[None]:
    """Hold a Dagster home for this process; the system releases it when the process ends.

    Two deployments of one home would have two daemons, and each would launch the same runs. The
    lock file has the UI's port, for the message to a second deployment.

    Raises:
        TakenError: another deployment holds it, or it cannot be locked.
    """
    with contextlib.ExitStack() as stack:
        try:
            # Not truncated: another deployment may have written its process and port.
            descriptor = os.open(home / DEPLOYMENT_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            lock = stack.enter_context(os.fdopen(descriptor, "r+"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TakenError(
                f"DAGSTER_HOME={home} is that of another deployment{_describe_owner(lock.read())}. "
                "End that one first, or give this one a DAGSTER_HOME of its own. Nothing was "
                "started."
            ) from None
        except OSError as error:
            raise TakenError(
                f"DAGSTER_HOME={home} cannot be locked ({error.strerror}): a deployment must have "
                "it to itself, on a file system with locks. Nothing was started."
            ) from error
        lock.truncate()
        lock.write(json.dumps({"pid": os.getpid(), "port": port}))
        lock.flush()
        yield


def _describe_owner(text: str) -> str:
    try:
        return f": process {int(json.loads(text)['pid'])}, its UI at {parse_ui_url(text)}"
    except (ValueError, LookupError, TypeError):  # locked, but not written yet
        return ""


@contextlib.contextmanager
def listen_on_port(port: int) -> Iterator[list[socket.socket]]:
    """Listen on a port of this machine with sockets for the web server.

    Connections wait until the web server runs. `localhost` may mean ::1: where the machine has
    IPv6, no other process may answer there.

    Raises:
        TakenError: the port is in use, or not allowed for this user.
    """
    with contextlib.ExitStack() as stack:
        sockets = []
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                listener = stack.enter_context(socket.socket(family))
                # A recently closed socket must not block the port.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((host, port))
                listener.listen()  # else another process with this option could bind it
            except OSError as error:
                if family == socket.AF_INET6 and error.errno != errno.EADDRINUSE:
                    continue  # a machine without IPv6
                raise TakenError(
                    f"port {port} of {host} cannot be had ({error.strerror}): end what uses it, or "
                    "give another with --port. Nothing was started."
                ) from error
            sockets.append(listener)
        yield sockets


def make_home_private(home: Path) -> str:
    """Close a Dagster home to other users of the machine.

    Plans, logs and run events contain settings, files and rows. A group with write access keeps it:
    its members work on the deployment.

    Returns:
        A sentence on what was changed, or could not be; empty if nothing was readable by others.
    """
    mode = stat.S_IMODE(home.stat().st_mode)
    others = mode & (0o007 if mode & stat.S_IWGRP else 0o077)
    if not others:
        return ""
    try:
        home.chmod(mode & ~others)
    except OSError as error:
        return (
            f"Other users of this machine may read DAGSTER_HOME={home}, and that cannot be changed "
            f"({error.strerror}): plans, logs and events are in it."
        )
    return f"DAGSTER_HOME={home} was open to other users of this machine: now it is not."


#: OWASP's parameters of scrypt for 16 MB of memory.
_COST = {"n": 1 << 14, "r": 8, "p": 5}
_VARIABLE = f"{PREFIX}UI_PASSWORDS"


class PasswordFile:
    """The users' names, each with a salt and a password hash."""

    def __init__(self, entries: Mapping[str, tuple[bytes, bytes]]) -> None:
        self._entries = dict(entries)
        # The time of an answer must not show whether a name exists.
        self._unknown_user = (secrets.token_bytes(16), b"")

    @classmethod
    def read_file(cls, path: Path) -> Self:
        """The entries of a file.

        Raises:
            SettingsError: it cannot be read, is readable by others, or has no valid lines.
        """
        try:
            mode = path.stat().st_mode
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"{_VARIABLE}={path} cannot be read ({type(error).__name__}): `backfill-assets "
                "password NAME` writes it"
            ) from None
        if mode & 0o077:
            raise SettingsError(f"{_VARIABLE}={path} may be read by others: chmod 600 {path}")
        entries = {}
        for number, line in enumerate(text.splitlines(), 1):
            try:
                name, salt, digest = line.split(":")
                entries[name] = bytes.fromhex(salt), bytes.fromhex(digest)
            except ValueError:
                raise SettingsError(
                    f"{_VARIABLE}={path}: line {number} is none that `backfill-assets password "
                    "NAME` has written"
                ) from None
        if not entries:
            raise SettingsError(f"{_VARIABLE}={path} is empty: nobody could use the UI")
        return cls(entries)

    def is_valid(self, authorization: str) -> bool:
        """Whether an HTTP Basic authorization header has a known name and its password."""
        scheme, _, credentials = authorization.partition(" ")
        try:
            name, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return False
        salt, digest = self._entries.get(name, self._unknown_user)
        return (
            hmac.compare_digest(_hash_password(password, salt), digest)
            and scheme.lower() == "basic"
        )


def write_password(path: Path, name: str, password: str) -> None:
    """Add a name and its password to a file, or replace the password.

    Raises:
        SettingsError: the existing file is not a password file.
    """
    previous_lines = path.read_text().splitlines() if path.exists() else []
    if previous_lines:
        PasswordFile.read_file(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    salt = secrets.token_bytes(16)
    other_lines = [line for line in previous_lines if not line.startswith(f"{name}:")]
    line = f"{name}:{salt.hex()}:{_hash_password(password, salt).hex()}"
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "w") as out:
        out.write("".join(f"{text}\n" for text in (*other_lines, line)))
    temporary.replace(path)


def _hash_password(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, **_COST)


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
_CODE_SERVER = "backfill_assets.dagster_ext.code_server"
_WEB_SERVER = "backfill_assets.serve.webserver"
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


def run_deployment(settings: Settings, listening: Sequence[socket.socket], say: "Say") -> int:
    """Run the deployment until a signal ends it, or a Dagster process ends; return the exit status.

    DAGSTER_HOME is in the environment. With `spark_remote`, no engine is started; without, the
    Delta jars have been fetched. `listening` are the UI's sockets, see `listen_on_port`.

    Raises:
        EngineError: no engine can run here, or a server died too often.
        SettingsError: the password file is not valid.
    """
    # Not at the top: the web server, and the command `password`, need neither.
    import dagster as dg

    from backfill_assets.serve.servers import Server, SparkServer
    from backfill_assets.spark.configuration import connect_server_command, master_url
    from backfill_assets.spark.jars import check_java
    from backfill_assets.spark.jvm_launch import ScratchDir

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
            *(sys.executable, "-m", _CODE_SERVER, "api", "grpc", "-s", address),
            *_CODE_SERVER_OPTIONS,
            *("--location-name", settings.location),
        ]
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
    servers: "Sequence[Server]",
    say: "Say",
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
                        running[part.name] = ProcessGroup(
                            part.command, environment, inherits=part.inherits
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
