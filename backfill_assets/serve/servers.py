"""Servers of a deployment: started, watched, restarted; the Spark Connect server and its health.

A separate process runs the health query, as gRPC's threads conflict with the processes that a
supervisor starts.
"""

from __future__ import annotations

import errno
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from backfill_assets.spark.connect import ENGINE_VARIABLE, channel_builder, port_users
from backfill_assets.spark.jars import EngineError
from backfill_assets.spark.jvm_launch import ScratchDir
from backfill_assets.spark.processes import TOKEN_VARIABLE, ProcessGroup

#: Seconds between two probes of a server, and the timeout of a probe.
_PROBE_INTERVAL = 10.0
_PROBE_TIMEOUT = 3.0
#: After so many failed probes in a row (more than three minutes) a server hangs. A busy server
#: accepts a connection at once, as that needs none of Spark's threads.
_MAX_FAILED_PROBES = 60
#: A server that answers for fewer seconds died right after its start.
_STABLE_SECONDS = 60.0
_MAX_DEATHS = 3
#: A longer log is rotated.
_LOG_BYTES = 20 * 2**20
_NO_PROXY_VARIABLE = "no_grpc_proxy"

Say = Callable[[str], None]


class Server:
    """A gRPC server that is watched, and restarted at the same address.

    The address is a socket's path, or host and port. The output goes to the file `log`, in whose
    folder it runs, or to the terminal.

    Attributes:
        ready: whether it has answered since its last start.
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
        self.ready = False
        self._name, self._command, self._address = name, command, address
        self._environment, self._say, self._log = environment, say, log
        self._group: ProcessGroup | None = None
        self._replaced_groups: list[ProcessGroup] = []
        self._deaths = 0

    def keep_running(self) -> None:
        """Start the server if it does not run, restart it if it does not answer.

        Raises:
            EngineError: it died too often right after its start.
        """
        for group in [group for group in self._replaced_groups if not group.is_alive()]:
            group.terminate()
            self._replaced_groups.remove(group)
        if self._group is None:
            log = f", its log is {self._log}" if self._log else ""
            self._say(f"Starting the {self._name}{log} ...")
            self._start_group()
        elif (status := self._group.exit_status()) is not None:
            self._restart(f"ended with status {status}")
        elif time.monotonic() >= self._probe_at:
            self._probe_server()
        if self._log:
            _rotate_log(self._log)

    def stop(self) -> None:
        """Stop the server and all that it started, and wait for their end."""
        while self._replaced_groups:
            self._replaced_groups.pop().terminate()
        if self._group is not None:
            self._group.terminate()

    def _start_group(self) -> None:
        self.ready = False
        self._failed_probes = 0
        self._probe_at = 0.0
        self._group = ProcessGroup(self._command, self._environment, self._log)

    def _probe_server(self) -> None:
        """Called by `keep_running` at intervals: note that the server is ready, or restart it."""
        if not self._is_answering():
            # A start has no timeout: it ends with an answer or an exit.
            self._failed_probes += self.ready
            if self._failed_probes >= _MAX_FAILED_PROBES:
                self._restart("does not answer any more")
            return
        now = time.monotonic()
        self._failed_probes = 0
        self._probe_at = now + _PROBE_INTERVAL
        if not self.ready:
            self.ready, self._ready_at = True, now
            self._say(f"The {self._name} is ready.")
        if now - self._ready_at >= _STABLE_SECONDS:
            self._deaths = 0
        if reason := self._restart_reason():
            self._restart(reason)

    def _is_answering(self) -> bool:
        return _answers_grpc(self._address, _PROBE_TIMEOUT)

    def _restart_reason(self) -> str | None:
        """Why a server that answers must be restarted all the same; None if it need not."""
        return None

    def _restart(self, reason: str) -> None:
        """Kill the server but not its child processes, and start it again.

        Raises:
            EngineError: it died too often right after its start.
        """
        self._deaths += 1
        group, self._group = self._group, None
        assert group is not None
        # Its child processes live on: runs need no code server to finish.
        group.kill_command()
        self._replaced_groups.append(group)
        if self._deaths >= _MAX_DEATHS:
            raise EngineError(
                f"the {self._name} {reason}, {self._deaths} times in a row right after its start: "
                f"see {self._log or 'what it says above'}"
            )
        self._say(f"The {self._name} {reason}: restarting it ...")
        self._start_group()


class SparkServer(Server):
    """A Spark Connect server on loopback that answers only clients with its token.

    `command` gets a port; its process reads the token from its environment.

    Attributes:
        url: its URL with the name of the session that all clients share, see `session_url`.
        token: what a client must send. It is not part of the URL, which Dagster shows.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        environment: Mapping[str, str],
        log: Path,
        say: Say,
        scratch: ScratchDir | None = None,
    ) -> None:
        port, self._ipv6_socket = _reserve_port()
        self._port, self._scratch = port, scratch
        self.url = f"sc://localhost:{port}/;session_id={uuid4()}"
        self.token = secrets.token_urlsafe(32)
        self._health: HealthProbe | None = None
        server_environment = {**environment, TOKEN_VARIABLE: self.token}
        super().__init__(
            "Spark engine", command(port), ("127.0.0.1", port), server_environment, say, log
        )

    @property
    def client_environment(self) -> dict[str, str]:
        """The environment variables of a client of this server."""
        return {
            "SPARK_REMOTE": self.url,
            TOKEN_VARIABLE: self.token,
            ENGINE_VARIABLE: f"localhost:{self._port}",
            # Later clients use the same session.
            "SPARK_CONNECT_RELEASE_SESSION_ON_EXIT": "false",
            # On a machine with a proxy, gRPC would use it even for a local server.
            _NO_PROXY_VARIABLE: os.environ.get(_NO_PROXY_VARIABLE) or "localhost",
        }

    def stop(self) -> None:
        """Stop the server and all that it started, and wait for their end."""
        self._stop_health_probe()
        super().stop()

    def _start_group(self) -> None:
        """Clear the scratch folder first; the health probe does not use the shared session."""
        self._stop_health_probe()
        if self._scratch:
            self._scratch.recreate()
        super()._start_group()
        assert self._group is not None
        query_environment = {
            **self.client_environment,
            "SPARK_REMOTE": f"sc://localhost:{self._port}",
        }
        self._health = HealthProbe(query_environment, self._group.processor_seconds)

    def _stop_health_probe(self) -> None:
        if self._health:
            self._health.stop_query()

    def _is_answering(self) -> bool:
        # Runs would send the token to any other process that has taken the port.
        is_ours = port_users(self._port) in (None, {os.geteuid()})
        return is_ours and super()._is_answering()

    def _restart_reason(self) -> str | None:
        if self._scratch and not self._scratch.is_complete():
            return f"lost files on its disk (somebody cleared {self._scratch.folder})"
        if self._health and not self._health.is_good():
            return "takes connections and does not compute any more"
        return None


def _rotate_log(log: Path) -> None:
    """Copy a long log to `.1` and truncate it: the server keeps the file open and appends."""
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        shutil.copyfile(log, f"{log}.1")
        os.truncate(log, 0)


#: The first bytes of an HTTP/2 client (RFC 9113, 3.4): the preface, and an empty SETTINGS frame.
_GRPC_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)


def _answers_grpc(address: str | tuple[str, int], seconds: float) -> bool:
    """Whether a gRPC server answers the HTTP/2 preface with its own settings.

    Without a gRPC client: its threads conflict with the processes started here, and sometimes one
    would wait for its own end for ever.
    """
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    try:
        with socket.socket(family) as connection:
            connection.settimeout(seconds)
            connection.connect(address)
            connection.sendall(_GRPC_GREETING)
            return connection.recv(9)[3:4] == b"\x04"
    except OSError:
        return False


def _reserve_port() -> tuple[int, socket.socket | None]:
    """A port that is free on loopback, and a socket that blocks it on IPv6, if the machine has it.

    `localhost` means ::1 first: no other process may listen there and receive the token.
    """
    while True:
        # Below the range of ports of outgoing connections: one of those could have the port at a
        # restart, even a client's own attempt to reach the server.
        port = random.randint(15002, 32767)
        ipv6_socket = None
        try:
            with socket.socket() as candidate:
                candidate.bind(("127.0.0.1", port))
            ipv6_socket = socket.socket(socket.AF_INET6)
            ipv6_socket.bind(("::1", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
        return port, ipv6_socket


#: Seconds between two queries, and the timeout of a query.
_QUERY_INTERVAL = 300.0
_QUERY_TIMEOUT = 300.0
#: After so many failed queries in a row the engine does not compute any more.
_MAX_FAILURES = 3
#: An engine that used this share of a processor meanwhile is busy: its queries have to wait.
_BUSY_SHARE = 0.05
#: This module, run as a process.
_QUERY = ("-m", "backfill_assets.serve.servers")


class HealthProbe:
    """Runs a query on an engine from time to time, and counts failures.

    `processor_seconds` gives what the engine has used; infinite if unknown.
    """

    def __init__(self, environment: Mapping[str, str], processor_seconds: Callable[[], float]):
        self._environment, self._processor_seconds = environment, processor_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._next_query_at = time.monotonic() + _QUERY_INTERVAL

    def is_good(self) -> bool:
        """Start a query, or read its result; False after too many failures. Never waits."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._next_query_at:
                self._start_query(now)
            return True
        status = self._process.poll()
        if status is None and now < self._deadline:
            return True
        self.stop_query()
        self._next_query_at = now + _QUERY_INTERVAL
        # If unknown, the difference is NaN, and the engine is not idle.
        idle = self._processor_seconds() - self._seconds_before <= _BUSY_SHARE * _QUERY_TIMEOUT
        if status is not None or idle:
            self._failures = 0 if status == 0 else self._failures + 1
        return self._failures < _MAX_FAILURES

    def stop_query(self) -> None:
        """Kill the process of the query."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _start_query(self, now: float) -> None:
        """Run the query in its own process: `is_good` need not wait for it and can kill it."""
        self._deadline = now + _QUERY_TIMEOUT
        self._seconds_before = self._processor_seconds()
        self._process = subprocess.Popen(
            [sys.executable, *_QUERY, str(int(_QUERY_TIMEOUT) + 1)],
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _run_query(seconds: int) -> None:
    """Run a job on the engine, which needs its threads and its disk; release orphaned frames."""
    from pyspark.sql.connect.session import SparkSession

    from backfill_assets.spark.frames import release_orphaned_frames

    os.nice(10)
    signal.alarm(seconds)  # even if the parent process is gone
    channel = channel_builder(os.environ["SPARK_REMOTE"])
    session: Any = SparkSession.builder.channelBuilder(channel).create()
    (row,) = session.range(10).groupBy().sum("id").collect()
    if row[0] != 45:
        raise SystemExit(2)
    release_orphaned_frames(session)


if __name__ == "__main__":
    _run_query(int(sys.argv[1]))
