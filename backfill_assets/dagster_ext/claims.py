"""What a deployment has to itself on a machine: its home and its port, until its process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

_LOCK_FILE = "deployment.lock"


class TakenError(Exception):
    """Home or port cannot be had; the message says why and what to do."""


@contextlib.contextmanager
def lock_home(home: Path, port: int) -> Iterator[None]:
    """Have a home of Dagster to this process; the system gives it free however the process ends.

    Two deployments of one home would have two daemons: each launches what the other has launched.

    Args:
        home: DAGSTER_HOME.
        port: of the UI, for whoever comes second.

    Raises:
        TakenError: another deployment has it, or it cannot be locked.
    """
    with contextlib.ExitStack() as stack:
        try:
            # Not emptied: as long as another one has it, it says who that is.
            descriptor = os.open(home / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
            lock = stack.enter_context(os.fdopen(descriptor, "r+"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TakenError(
                f"DAGSTER_HOME={home} is that of another deployment{_describe_owner(lock.read())}. End that "
                "one first, or give this one a DAGSTER_HOME of its own. Nothing was started."
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
        return f": process {int(json.loads(text)['pid'])}, its UI at {_parse_ui_url(text)}"
    except (ValueError, LookupError, TypeError):  # it has the lock, and has not said yet
        return ""


def _parse_ui_url(text: str) -> str:
    return f"http://127.0.0.1:{int(json.loads(text)['port'])}"


def read_ui_url(home: Path) -> str:
    """Where the UI of a home's newest deployment is; empty if there was none on this machine."""
    try:
        return _parse_ui_url((home / _LOCK_FILE).read_text())
    except (OSError, ValueError, LookupError, TypeError):
        return ""


@contextlib.contextmanager
def listen_on_port(port: int) -> Iterator[list[socket.socket]]:
    """Have a port of this machine: sockets that nobody else can have, for the web server.

    Whoever calls before that runs is not refused, but waits. `localhost` may mean ::1, where there
    is one: nobody else is to answer there.

    Raises:
        TakenError: somebody listens there, or this user may not.
    """
    with contextlib.ExitStack() as stack:
        sockets = []
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            try:
                listener = stack.enter_context(socket.socket(family))
                # What was closed just now is no hindrance.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((host, port))
                listener.listen()  # else another one with the same option could have it as well
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
    """Close a home of Dagster to the other users of the machine.

    Plans, logs and the events of runs tell of settings, files and rows. A group that may write is
    meant to: its members work on the deployment.

    Returns:
        The sentence on what was changed, or could not be; empty if others could not read it.
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
