"""Whether the process of a run is still there, and Dagster's run launcher that asks.

A run's process holds a lock for as long as it lives, and nothing but its end gives the lock up. So
neither a process id that was used again, nor a clock that was set, a reboot, a container or a
restart of the daemon or the code server can make a dead run look alive or one that lives dead.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import dagster as dg
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus
from dagster._core.storage.tags import HIDDEN_TAG_PREFIX
from dagster._serdes import ConfigurableClassData

_log = logging.getLogger(__name__)

#: The tag of a run whose process holds the run's lock, and in which file; the UI hides it.
PROCESS_TAG = f"{HIDDEN_TAG_PREFIX}backfill_assets/process"
#: In Dagster's home: one byte of it, by run, is what is locked.
LOCKS = "runs.lock"

# A process that closes any handle of a file loses all its locks on it: one each, never closed.
_files: dict[Path, BinaryIO] = {}
#: Runs of this very process, whose own locks the system does not show it.
_own: set[str] = set()


def sign_on(instance: dg.DagsterInstance, run_id: str) -> dict[str, str]:
    """Hold the run's lock until this process ends.

    Returns:
        The tag that says so; none where files cannot be locked, which is no reason for a run to
        fail: it is then not looked after, as with Dagster's own launcher.
    """
    try:
        file, name = _open(instance)
        # Shared, so that two never wait for each other; only a look at it is exclusive.
        fcntl.lockf(file, fcntl.LOCK_SH, 1, _byte(run_id))
    except OSError as error:
        _log.warning("run %s: nobody will notice if its process dies (%s)", run_id, error)
        return {}
    _own.add(run_id)
    return {PROCESS_TAG: f"{_process()} {run_id} in {name}"}


def _process() -> str:
    return f"{os.getpid()}@{socket.gethostname()}"


def is_alive(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool | None:
    """Whether the run's process lives; none if that cannot be told from here."""
    if run.run_id in _own:
        return True
    if PROCESS_TAG not in run.tags:
        return None
    file, name = _open(instance)
    # A retry comes with the tags of the run before it, and another machine has another file.
    if run.tags[PROCESS_TAG].partition(" ")[2] != f"{run.run_id} in {name}":
        return None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte(run.run_id))
    except (BlockingIOError, PermissionError):  # what "held" is called differs between systems
        return True
    fcntl.lockf(file, fcntl.LOCK_UN, 1, _byte(run.run_id))
    return False


def _open(instance: dg.DagsterInstance) -> tuple[BinaryIO, str]:
    """The file of the locks, and the name that it was given when it was made."""
    path = Path(instance.root_directory, LOCKS)
    if path not in _files:
        _files[path] = path.open("a+b")
    file = _files[path]
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
    try:
        file.seek(0)
        name = file.read()
        if not name:
            name = uuid.uuid4().hex.encode()
            file.write(name)
            file.flush()
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, 0)
    return file, name.decode()


def _byte(run_id: str) -> int:
    """Which byte of the file stands for a run; it need not exist to be locked."""
    digest = hashlib.sha256(run_id.encode()).digest()
    return 1 + int.from_bytes(digest[:7], "big")


class WatchingRunLauncher(DefaultRunLauncher):
    """Dagster's launcher for one machine, which also tells the daemon that a process is gone.

    The code server that started a process reports its death at once, but only while it lives
    itself; after that Dagster's own launcher leaves the run "started" for ever.
    """

    def __init__(
        self, grace_seconds: int = 90, inst_data: ConfigurableClassData | None = None
    ) -> None:
        super().__init__(inst_data)
        self._grace = grace_seconds
        self._gone: dict[str, float] = {}

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """What dagster.yaml may say."""
        return {
            "grace_seconds": dg.Field(
                int,
                default_value=90,
                description="How long a process must be gone before its run is given up. Dagster "
                "retries a run at that moment or never, and needs a code server for it: where the "
                "run's own has died, there is another within a minute.",
            )
        }

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]
    ) -> WatchingRunLauncher:
        """As dagster.yaml asks."""
        return cls(config_value["grace_seconds"], inst_data)

    def terminate(self, run_id: str) -> bool:
        """Tell the run's process to end, also if another code server started it."""
        if super().terminate(run_id):
            return True
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished or not is_alive(self._instance, run):
            return False
        process = run.tags[PROCESS_TAG].partition(" ")[0]
        pid, _, host = process.partition("@")
        if host != socket.gethostname():  # a container of its own, where ids mean something else
            return False
        # While it holds its lock, the process of that id is no other.
        os.kill(int(pid), signal.SIGINT)
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Yes; Dagster's run monitoring then asks about every started run."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Whether the run's process is there; in doubt, it is.

        The daemon looks at the run's status once more before it believes that the process is gone:
        what ended properly has said so before it went.
        """
        if is_alive(self._instance, run) is not False:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        since = self._gone.setdefault(run.run_id, time.monotonic())
        if time.monotonic() - since < self._grace:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "its process is gone")
        return CheckRunHealthResult(
            WorkerStatus.NOT_FOUND, "the process of the run is gone: it was killed, or crashed"
        )
