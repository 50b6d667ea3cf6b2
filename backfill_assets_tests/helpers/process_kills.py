"""The processes of a Dagster deployment: found by its home, waited for, and killed by kind."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

#: What each kind of process has in its command line.
KINDS = {
    "run worker": "forkserver",
    "engine": "SparkConnectServer",
    "embedded engine": "pyspark-shell",
    "daemon": "dagster._daemon",
    "code server": "backfill_assets.dagster_ext.code_server",
    "fork server": "forkserver",
}
#: Of the kinds with the same command line, whether the parent of the process has it, too.
_FORKED = {"run worker": True, "fork server": False}


def find_processes(home: Path) -> dict[int, str]:
    """The command lines of what runs for this test, by process id."""
    commands = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
            command = _read_command(folder)
        except OSError:  # it has ended
            continue
        if f"DAGSTER_HOME={home}".encode() in environment:
            commands[int(folder.name)] = command
    return commands


def _read_command(folder: Path) -> str:
    return (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()


def find_pids(home: Path, kind: str) -> list[int]:
    """The processes of a kind, without the guards of groups."""
    pids = [
        pid
        for pid, command in find_processes(home).items()
        if KINDS[kind] in command and "os.fork" not in command
    ]
    if kind in _FORKED:
        return [pid for pid in pids if _is_forked(pid) is _FORKED[kind]]
    return pids


def _is_forked(pid: int) -> bool:
    """Whether a process is what its parent is."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        parent = status.rpartition(")")[2].split()[1]
        return _read_command(Path("/proc", parent)) == _read_command(Path(f"/proc/{pid}"))
    except OSError:  # it has ended
        return False


def is_alive(pid: int | str) -> bool:
    """Whether a process runs; one that only nobody has asked for has ended."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def wait_for(condition: Callable[[], object]) -> None:
    """The suite's time limit ends what never comes."""
    while not condition():
        time.sleep(0.02)


def kill_kinds(home: Path, *kinds: str) -> None:
    for pid, command in find_processes(home).items():
        if not kinds or any(kind in command for kind in kinds):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def kill_random_process(home: Path, kind: str, chance: random.Random) -> bool:
    """Kill one process of a kind; whether there was one."""
    pids = find_pids(home, kind)
    if not pids:
        return False
    try:
        os.kill(chance.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
