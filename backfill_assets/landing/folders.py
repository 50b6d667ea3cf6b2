"""What lies in one local folder: files, other things, and where links lead; nothing is opened."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Stands for a name that is not UTF-8: neither Python nor Spark could open it.
UNDECODABLE_NAME = "(a file whose name is not UTF-8)"


@dataclass(frozen=True)
class FolderItem:
    """One thing in a folder.

    Attributes:
        name: its own name, or `UNDECODABLE_NAME`.
        path: for Arrow's file system.
        is_file: whether it is a file that can be opened: no folder, pipe, socket or device.
        size: bytes.
        mtime: when it was last changed, in nanoseconds since 1970.
        refused: why it must not be opened; empty if it may be.
    """

    name: str
    path: str
    is_file: bool = True
    size: int = 0
    mtime: int = 0
    refused: str = ""


def local_items(folder: str, *roots: str) -> Iterator[FolderItem]:
    """What lies in a local folder.

    Arrow's own listing follows links to wherever they lead, folders included.

    Args:
        folder: the folder.
        roots: the folders that no link may lead out of, without links themselves.

    Raises:
        OSError: it cannot be listed.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _is_text(entry.name):
                yield FolderItem(UNDECODABLE_NAME, "", refused="rename it")
                continue
            refused = link_problem(entry.path, *roots) if entry.is_symlink() else ""
            try:
                status = entry.stat()
            except FileNotFoundError:
                if refused:
                    yield FolderItem(entry.name, entry.path, refused=refused)
                continue  # it has gone meanwhile
            except OSError as error:
                yield FolderItem(entry.name, entry.path, refused=refused or error_text(error))
                continue
            if refused:
                yield FolderItem(entry.name, entry.path, refused=refused)
            else:
                regular = stat.S_ISREG(status.st_mode)
                yield FolderItem(
                    entry.name, entry.path, regular, status.st_size, status.st_mtime_ns
                )


def link_problem(link: str, *roots: str) -> str:
    """Why a link must not be followed; empty if it leads to something below one of the roots."""
    try:
        target = Path(link).resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return "a link that leads nowhere: remove it, or land the file itself"
    except (RuntimeError, OSError) as error:
        # Links that lead to each other are a RuntimeError before Python 3.13.
        if isinstance(error, RuntimeError) or error.errno == errno.ELOOP:
            return "a link that leads to itself: remove it"
        return error_text(error)
    if not any(map(target.is_relative_to, roots)):
        return "a link that leads out of the landing: land the file itself"
    return ""


def error_text(error: OSError) -> str:
    """An error of the file system in words, without the path."""
    return f"{type(error).__name__}: {error.strerror or error}"


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
