"""Access to an instance: one deployment per home and port, and passwords for the UI.

The password file holds scrypt hashes, which are slow to compute and cannot be reversed.
"""

from __future__ import annotations

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
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from backfill_assets.settings import PREFIX, SettingsError

_LOCK_FILE = "deployment.lock"


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
            descriptor = os.open(home / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
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
        return f": process {int(json.loads(text)['pid'])}, its UI at {_parse_ui_url(text)}"
    except (ValueError, LookupError, TypeError):  # locked, but not written yet
        return ""


def _parse_ui_url(text: str) -> str:
    return f"http://127.0.0.1:{int(json.loads(text)['port'])}"


def read_ui_url(home: Path) -> str:
    """The UI's URL of a home's latest deployment; empty if there was none on this machine."""
    try:
        return _parse_ui_url((home / _LOCK_FILE).read_text())
    except (OSError, ValueError, LookupError, TypeError):
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
    def read_file(cls, path: Path) -> PasswordFile:
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
