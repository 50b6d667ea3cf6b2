"""The lock by which a run's process is known to live.

A run's process holds the lock as long as it lives, and only its end releases it. So a reused
process id, a changed clock, a reboot, a container or a restart of the daemon or the code server can
make neither a dead run look alive nor a live run look dead.
"""

import fcntl
import hashlib
import logging
import os
import socket
import struct
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from threading import Lock

import dagster as dg
from dagster._core.storage.tags import HIDDEN_TAG_PREFIX

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
    """Hold the run's lock until it is released, or this process ends.

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


def release_run_lock(run_id: str) -> None:
    """Release the lock of a run that has ended, in a process that does others after it."""
    with _opening:
        if (file := _held_locks.pop(run_id, None)) is not None:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, _lock_byte(run_id))


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
