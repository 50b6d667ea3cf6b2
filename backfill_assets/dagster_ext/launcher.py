"""The launcher and queue of runs, and the lock by which a run's process is known to live.

A run's process holds the lock as long as it lives, and only its end releases it. So a reused
process id, a changed clock, a reboot, a container or a restart of the daemon or the code server can
make neither a dead run look alive nor a live run look dead.
"""

import fcntl
import hashlib
import logging
import os
import signal
import socket
import struct
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Self

import dagster as dg
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.tags import HIDDEN_TAG_PREFIX
from dagster._serdes import ConfigurableClassData

_log = logging.getLogger(__name__)

#: The tag that says which process holds the run's lock, and in which file; hidden in the UI.
PROCESS_TAG = f"{HIDDEN_TAG_PREFIX}backfill_assets/process"
#: File in DAGSTER_HOME; each run locks one byte of it.
RUN_LOCK_FILE = "runs.lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# A process that closes any handle of a file loses all its locks on it: files with a held lock are
# never closed.
_open_files: dict[Path, int] = {}
#: The locks' files by run of this process: the system does not report a process's own locks.
_held_locks: dict[str, int] = {}
#: Held while a file is opened: a second handle would have to be closed.
_opening = Lock()


def hold_run_lock(instance: dg.DagsterInstance, run_id: str) -> dict[str, str]:
    """Hold the run's lock until this process ends.

    Returns:
        The tag that says so. Empty where files cannot be locked, which must not fail a run: its
            process is then not watched, as with Dagster's own launcher.
    """
    with _opening:
        try:
            file, name = _open_lock_file(instance)
            # A shared lock, so that two processes never wait for each other.
            fcntl.lockf(file, fcntl.LOCK_SH, 1, _lock_byte(run_id))
        except OSError as error:
            _log.warning("run %s: nobody will notice if its process dies (%s)", run_id, error)
            return {}
        _held_locks[run_id] = file
    return {PROCESS_TAG: f"{os.getpid()}@{socket.gethostname()} {_machine()} {run_id} in {name}"}


def is_run_alive(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool | None:
    """Whether the run's process lives; None if unknown from here."""
    if run.run_id in _held_locks:
        return True
    holder = _lock_holder(instance, run)
    return None if holder is None else holder != _NO_PROCESS


def run_pid(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int | None:
    """The process id of a run in this process's namespace.

    None if the process has ended, or has no id here: on another machine, or in a container that
    this process cannot see.
    """
    if run.run_id in _held_locks:
        return os.getpid()
    holder = _lock_holder(instance, run)
    # A network file system may report a process id of another machine.
    if holder is None or holder <= 0 or _parse_process_tag(run)[1] != _machine():
        return None
    return holder


def process_label(run: dg.DagsterRun) -> str:
    """The id and host of a run's process, as in its tag."""
    return _parse_process_tag(run)[0]


def _parse_process_tag(run: dg.DagsterRun) -> tuple[str, str, str]:
    """The parts of the run's tag: process and host; machine; run and file."""
    process, _, rest = run.tags.get(PROCESS_TAG, "").partition(" ")
    machine, _, lock = rest.partition(" ")
    return process, machine, lock


def _machine() -> str:
    """The machine's boot id: containers of one machine share it, and a reboot changes it."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:  # not on Linux
        return socket.gethostname()


#: The layout of the system's `struct flock`.
_FLOCK = "hhqqi0q" if sys.platform == "linux" else "qqihh"
#: No process holds the lock; or a process without an id here holds it.
_NO_PROCESS, _FOREIGN_PROCESS = -1, 0


def _lock_holder(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int | None:
    """The lock's holder: a process id, `_FOREIGN_PROCESS` or `_NO_PROCESS`; None if unknown.

    It queries the lock without taking it: otherwise two callers would see each other's locks.
    """
    if PROCESS_TAG not in run.tags:
        return None
    with _opening:
        try:
            file, name = _open_lock_file(instance)
            # A retry inherits the tags of the failed run, and another machine has another file.
            if _parse_process_tag(run)[2] != f"{run.run_id} in {name}":
                return None
            return _query_lock_holder(file, _lock_byte(run.run_id))
        except OSError:
            return None


def _query_lock_holder(file: int, byte: int) -> int:
    """The id of the process that locks the byte; else `_NO_PROCESS` or `_FOREIGN_PROCESS`."""
    start, exclusive = os.SEEK_SET, fcntl.F_WRLCK
    # The fields of `struct flock` have another order on Linux than on BSD and macOS.
    if sys.platform == "linux":
        request = struct.pack(_FLOCK, exclusive, start, byte, 1, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, request))
    else:
        request = struct.pack(_FLOCK, byte, 1, 0, exclusive, start)
        _, _, pid, kind, _ = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, request))
    return _NO_PROCESS if kind == fcntl.F_UNLCK else max(pid, _FOREIGN_PROCESS)


def _open_lock_file(instance: dg.DagsterInstance) -> tuple[int, str]:
    """The file of the locks, and its identity, which changes if it is replaced or restored."""
    # Resolved, as each file must have only one handle here.
    path = Path(instance.root_directory).resolve() / RUN_LOCK_FILE
    file = _open_files.get(path)
    while file is None or not _is_same_file(file, path):
        if file is not None and file not in _held_locks.values():
            os.close(file)
        _open_files.pop(path, None)
        try:
            file = _open_files[path] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            file = None
            _create_lock_file(path)
    # Not the device's id, which differs between machines on a network file system.
    return file, f"{os.pread(file, 64, 0).decode()}.{os.fstat(file).st_ino}"


def _is_same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _create_lock_file(path: Path) -> None:
    """Create the file atomically with its content."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    temporary.write_text(uuid.uuid4().hex)
    try:
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()


def _lock_byte(run_id: str) -> int:
    """The offset of a run's byte in the file; a byte beyond the end can be locked as well."""
    digest = hashlib.sha256(run_id.encode()).digest()
    return 1 + int.from_bytes(digest[:7], "big")


def _after_fork() -> None:
    """Forget the parent's locks: a child does not hold them."""
    _held_locks.clear()
    _opening.release()


# In a child, no other thread would release a lock that is held at the fork.
os.register_at_fork(
    before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_after_fork
)


class WatchingRunLauncher(DefaultRunLauncher):
    """Dagster's launcher for one machine, which also tells the daemon of dead run processes.

    The code server that started a process reports its death, but only while the server itself
    lives; after that, Dagster's own launcher leaves the run "started" for ever.
    """

    def __init__(
        self, grace_seconds: int = 90, inst_data: ConfigurableClassData | None = None
    ) -> None:
        super().__init__(inst_data)
        self._grace = grace_seconds
        self._missing_since: dict[str, float] = {}

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """The launcher's configuration in dagster.yaml."""
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
    ) -> Self:
        """The launcher of the configuration."""
        return cls(config_value["grace_seconds"], inst_data)

    def terminate(self, run_id: str) -> bool:
        """Terminate the run's process, even if another code server started it."""
        try:
            if super().terminate(run_id):
                return True
        except DagsterUserCodeUnreachableError:
            pass  # its code server is gone; the process may live on
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished or not is_run_alive(self._instance, run):
            return False
        if not _interrupt_process(self._instance, run):
            self._instance.report_engine_event(
                f"The run's process ({process_label(run)}) cannot be told to end from here: it is "
                "on another machine or in a container of its own. It goes on, whatever this run is "
                "said to be: end it there, or give it to a launcher of Dagster's for several hosts "
                "the next time.",
                run,
                cls=type(self),
            )
            return False
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: Dagster's run monitoring then checks every started run."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Whether the run's process lives; if unknown, it counts as alive.

        The daemon reads the run's status again before it acts on a missing process: a run that
        ended properly recorded that before its process ended.
        """
        if is_run_alive(self._instance, run) is not False:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        since = self._missing_since.setdefault(run.run_id, time.monotonic())
        if time.monotonic() - since < self._grace:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "its process is gone")
        return CheckRunHealthResult(
            WorkerStatus.NOT_FOUND, "the process of the run is gone: it was killed, or crashed"
        )


def _interrupt_process(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Send an interrupt to the run's process, and to no other; whether it was sent."""
    pid = run_pid(instance, run)
    if pid is None:
        return False
    if not hasattr(os, "pidfd_open"):  # not on Linux
        os.kill(pid, signal.SIGINT)
        return True
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # While it holds the lock, its process id is not reused.
        if run_pid(instance, run) != pid:
            return False
        signal.pidfd_send_signal(process, signal.SIGINT)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(process)


#: Libraries whose launchers start runs without access to this machine's files.
_REMOTE_LAUNCHERS = ("dagster_aws", "dagster_celery", "dagster_docker", "dagster_k8s")
#: Dagster's own seconds between two evaluations of backfills.
_DAGSTER_INTERVAL = 30


class DaemonInterval(int):
    """Seconds between two evaluations of the backfills.

    Dagster's loop subtracts the duration of an evaluation and waits for the rest. If an evaluation
    of a large backfill takes longer than the interval, the daemon waits as long as it took, so that
    it is busy half of the time at most.
    """

    def __sub__(self, took: float) -> float:  # type: ignore[override]
        """The seconds to wait."""
        return max(float(self) - took, min(took, _DAGSTER_INTERVAL))


class PromptRunCoordinator(QueuedRunCoordinator):
    """Dagster's queue; `dequeue_interval_seconds` is also the interval of backfill evaluation.

    Dagster evaluates backfills every 30 seconds, a constant without a setting (its issue 11649):
    the next runs of a backfill wait that long although the runs before them have ended.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        # The daemon creates its queue before its loops start and read the constant. Other processes
        # have nothing to set.
        if controller := sys.modules.get("dagster._daemon.controller"):
            interval = DaemonInterval(self.dequeue_interval_seconds)
            vars(controller)["DEFAULT_DAEMON_INTERVAL_SECONDS"] = interval

    def register_instance(self, instance: dg.DagsterInstance) -> None:
        """Attach the coordinator to an instance.

        Raises:
            DagsterInvariantViolationError: runs start on other machines, and the storage is on this
                one.
        """
        _raise_if_sqlite_for_remote_runs(instance)
        super().register_instance(instance)


def _raise_if_sqlite_for_remote_runs(instance: dg.DagsterInstance) -> None:
    """Called when Dagster opens the instance; its default launcher (None) starts runs locally."""
    launcher = instance.get_ref().run_launcher_data
    if not isinstance(instance.event_log_storage, SqliteEventLogStorage) or launcher is None:
        return
    if launcher.module_name.startswith(_REMOTE_LAUNCHERS):
        raise dg.DagsterInvariantViolationError(
            f"{launcher.class_name} starts runs in other containers or on other machines, and the "
            "storage in dagster.yaml is SQLite: files of this machine. A run would find an empty "
            "storage and not itself in it. Use Postgres: set `storage` as in the package's "
            "deploy/dagster.postgres.yaml. No run was launched."
        )
