"""Locks that the processes of runs hold: whether a run's process lives, and which one it is.

A run's process holds a lock for as long as it lives, and nothing but its end gives the lock up. So
neither a process id that was used again, nor a clock that was set, a reboot, a container or a
restart of the daemon or the code server can make a dead run look alive or one that lives dead.
"""

from __future__ import annotations

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

#: The tag of a run whose process holds the run's lock, and in which file; the UI hides it.
PROCESS_TAG = f"{HIDDEN_TAG_PREFIX}backfill_assets/process"
#: In Dagster's home: one byte of it, by run, is what is locked.
RUN_LOCK_FILE = "runs.lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# A process that closes any handle of a file loses all its locks on it: those in which it holds one
# are never closed.
_open_files: dict[Path, int] = {}
#: Runs of this very process, whose own locks the system does not show it, by file.
_held_locks: dict[str, int] = {}
#: Held while a file is opened: of two handles of a file, one would be closed.
_opening = Lock()


def hold_run_lock(instance: dg.DagsterInstance, run_id: str) -> dict[str, str]:
    """Hold the run's lock until this process ends.

    Returns:
        The tag that says so; none where files cannot be locked, which is no reason for a run to
        fail: it is then not looked after, as with Dagster's own launcher.
    """
    with _opening:
        try:
            file, name = _open_lock_file(instance)
            # Shared, so that two never wait for each other.
            fcntl.lockf(file, fcntl.LOCK_SH, 1, _lock_byte(run_id))
        except OSError as error:
            _log.warning("run %s: nobody will notice if its process dies (%s)", run_id, error)
            return {}
        _held_locks[run_id] = file
    return {PROCESS_TAG: f"{os.getpid()}@{socket.gethostname()} {_machine()} {run_id} in {name}"}


def is_alive(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool | None:
    """Whether the run's process lives; none if that cannot be told from here."""
    if run.run_id in _held_locks:
        return True
    holder = _lock_holder(instance, run)
    return None if holder is None else holder != _NO_PROCESS


def run_pid(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int | None:
    """The process of a run, by its id as this process counts them.

    None if it is gone, or if it has no id here: on another machine, or in a container from which
    this process cannot see it.
    """
    if run.run_id in _held_locks:
        return os.getpid()
    holder = _lock_holder(instance, run)
    # A network's file system may tell an id of another machine.
    if holder is None or holder <= 0 or _parse_process_tag(run)[1] != _machine():
        return None
    return holder


def process_label(run: dg.DagsterRun) -> str:
    """The process of a run as it signed on: its id and its host."""
    return _parse_process_tag(run)[0]


def _parse_process_tag(run: dg.DagsterRun) -> tuple[str, str, str]:
    """What the run's tag says: process and host; machine; run and file."""
    process, _, rest = run.tags.get(PROCESS_TAG, "").partition(" ")
    machine, _, lock = rest.partition(" ")
    return process, machine, lock


def _machine() -> str:
    """What tells machines apart; containers of one share it, and after a reboot it is another."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:  # not on Linux
        return socket.gethostname()


#: The system's `struct flock`, and the order of its fields.
_FLOCK = "hhqqi0q" if sys.platform == "linux" else "qqihh"
#: No process holds the lock; or one does which has no id here.
_NO_PROCESS, _FOREIGN_PROCESS = -1, 0


def _lock_holder(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int | None:
    """Who holds the run's lock: a process id, `_FOREIGN_PROCESS` or `_NO_PROCESS`; none if it is not known.

    Asks the system, and takes no lock: of two that look at the same time, one would see the other.
    """
    if PROCESS_TAG not in run.tags:
        return None
    with _opening:
        try:
            file, name = _open_lock_file(instance)
            # A retry comes with the tags of the run before it, and another machine has another
            # file.
            if _parse_process_tag(run)[2] != f"{run.run_id} in {name}":
                return None
            return _locked_by(file, _lock_byte(run.run_id))
        except OSError:
            return None


def _locked_by(file: int, byte: int) -> int:
    start, exclusive = os.SEEK_SET, fcntl.F_WRLCK
    if sys.platform == "linux":
        request = struct.pack(_FLOCK, exclusive, start, byte, 1, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, request))
    else:
        request = struct.pack(_FLOCK, byte, 1, 0, exclusive, start)
        _, _, pid, kind, _ = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, request))
    return _NO_PROCESS if kind == fcntl.F_UNLCK else max(pid, _FOREIGN_PROCESS)


def _open_lock_file(instance: dg.DagsterInstance) -> tuple[int, str]:
    """The file of the locks, and its name: another one if the file is replaced or restored."""
    # As it is without links: a file has one handle here.
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
    # Not the folder's own id, which on a network's file system differs between machines.
    return file, f"{os.pread(file, 64, 0).decode()}.{os.fstat(file).st_ino}"


def _is_same_file(file: int, path: Path) -> bool:
    """Whether an open file is the one that lies there."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _create_lock_file(path: Path) -> None:
    """A new file, with its content from its first moment on."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    temporary.write_text(uuid.uuid4().hex)
    try:
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()


def _lock_byte(run_id: str) -> int:
    """Which byte of the file stands for a run; it need not exist to be locked."""
    digest = hashlib.sha256(run_id.encode()).digest()
    return 1 + int.from_bytes(digest[:7], "big")


def _after_fork() -> None:
    """A child holds no lock of its parent's."""
    _held_locks.clear()
    _opening.release()


# In a child, no other thread is there to let go of what it holds.
os.register_at_fork(
    before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_after_fork
)
