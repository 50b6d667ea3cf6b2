"""The file of those who may use the UI: a line each, with a name and what their password makes.

The passwords themselves are not in it: scrypt is slow to compute, and cannot be turned around.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from backfill_assets.settings import PREFIX, SettingsError

#: What OWASP asks of scrypt in 16 MB of memory.
_COST = {"n": 1 << 14, "r": 8, "p": 5}
_VARIABLE = f"{PREFIX}UI_PASSWORDS"


class PasswordFile:
    """Names, each with a salt and what that and the password make."""

    def __init__(self, entries: Mapping[str, tuple[bytes, bytes]]) -> None:
        self._entries = dict(entries)
        # Whether there is a name must not show in how long the answer takes.
        self._unknown_user = (secrets.token_bytes(16), b"")

    @classmethod
    def read_file(cls, path: Path) -> PasswordFile:
        """Those of a file.

        Raises:
            SettingsError: it cannot be read, or by others as well, or has no or bad lines.
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
        """Whether the header of HTTP's Basic authentication has a name and its password."""
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
        SettingsError: the file is there and is none of passwords.
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
