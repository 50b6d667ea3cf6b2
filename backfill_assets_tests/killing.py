"""The processes of a Dagster deployment, found by its home and killed by kind."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

#: What each kind of process has in its command line.
KINDS = {
    "run worker": "spawn_main",
    "engine": "SparkConnectServer",
    "daemon": "dagster._daemon",
    "code server": "dagster api grpc",
}


def processes(home: Path) -> dict[int, str]:
    """The command lines of what runs for this test, by process id."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
        if f"DAGSTER_HOME={home}".encode() in environment:
            found[int(folder.name)] = command
    return found


def kill(home: Path, *kinds: str) -> None:
    for pid, command in processes(home).items():
        if not kinds or any(kind in command for kind in kinds):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def kill_one(home: Path, kind: str, chance: random.Random) -> bool:
    """Kill one process of a kind; whether there was one."""
    found = [
        pid
        for pid, command in processes(home).items()
        if KINDS[kind] in command and "os.fork" not in command  # which is a group's guard
    ]
    if not found:
        return False
    try:
        os.kill(chance.choice(found), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
