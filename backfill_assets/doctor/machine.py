"""The machine: Java and jars, names and ports, disks."""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from backfill_assets.doctor.examination import Found, note, ok, wrong
from backfill_assets.engine.jars import check_java, delta_coordinate, delta_jars, find_java
from backfill_assets.settings import Settings

#: Less free space than this ends runs; less than the second may, in a day of much data.
_LITTLE, _SOME = 1 << 30, 10 << 30
#: And so many files that can still be made.
_FEW_FILES = 10_000
#: Seconds for a UI to answer.
_ANSWERS = 5


def java(settings: Settings) -> Iterator[Found]:
    """The Java that the engine would run on."""
    if settings.spark_remote:
        yield ok("not needed here: SPARK_REMOTE is set")
        return
    check_java()
    yield ok(f"{find_java()}")


def jars(settings: Settings) -> Iterator[Found]:
    """The jars in the cache: there, and whole."""
    if settings.spark_remote:
        yield ok("not needed here: SPARK_REMOTE is set")
        return
    found = delta_jars(settings.jars)
    if not found:
        said = f"there is no {delta_coordinate()} in {settings.jars}"
        yield wrong(said, "backfill-assets jars downloads them; a run would do so as well")
        return
    broken = [jar for jar in found if not _whole(jar)]
    if broken:
        said = f"{', '.join(map(str, broken))}: broken, or cannot be read"
        yield wrong(said, f"remove {broken[0].parent}, then run backfill-assets jars")
        return
    yield ok(f"{len(found)} jars in {found[0].parent}")


def _whole(jar: Path) -> bool:
    try:
        with zipfile.ZipFile(jar) as opened:
            return opened.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False


def loopback() -> Iterator[Found]:
    """The name by which Spark and its clients find this machine."""
    addresses = {str(info[4][0]) for info in socket.getaddrinfo("localhost", None)}
    if strange := {one for one in addresses if not ip_address(one).is_loopback}:
        said = f"localhost is {', '.join(sorted(strange))}, which is not this machine's loopback"
        yield wrong(said, "mend the line of localhost in /etc/hosts")
        return
    yield ok(f"localhost is {', '.join(sorted(addresses))}")


def port(number: int) -> Iterator[Found]:
    """The port of the UI: free, or that of a UI."""
    with socket.socket() as wanted:
        wanted.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            wanted.bind(("127.0.0.1", number))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                yield wrong(f"{number} cannot be had ({error.strerror})", "give another: --port")
                return
        else:
            yield ok(f"{number} is free")
            return
    if version := _dagster_at(number):
        yield ok(f"a UI of Dagster {version} answers at {number}")
    else:
        mend = "end what uses it, or give another to `backfill-assets ui` with --port"
        yield note(f"{number} is used by something that does not answer as Dagster's UI", mend)


def _dagster_at(number: int) -> str:
    """The version of the UI at a port; empty if there is none, or it asks who we are."""
    try:
        with urlopen(f"http://127.0.0.1:{number}/server_info", timeout=_ANSWERS) as answer:
            return str(json.load(answer).get("dagster_version", ""))
    except (URLError, OSError, ValueError, AttributeError):
        return ""


def scratch(settings: Settings) -> Path:
    """Where an engine of this machine puts what does not fit into memory."""
    given = os.environ.get("SPARK_LOCAL_DIRS") or settings.spark_conf.get("spark.local.dir")
    return Path((given or tempfile.gettempdir()).split(",")[0])


def disk(folders: Mapping[str, Path]) -> Iterator[Found]:
    """Space on the disks, and whether they can be written.

    Args:
        folders: by what it is to the deployment.
    """
    disks: dict[int, tuple[str, os.statvfs_result]] = {}
    for name, folder in folders.items():
        there = existing(folder)
        if said := refuses(there):
            yield wrong(f"the {name} at {there} cannot be written: {said}", _mend_of(said, there))
        # Folders on one disk share its space.
        disks.setdefault(there.stat().st_dev, (f"{name} at {there}", os.statvfs(there)))
    free = []
    for name, state in disks.values():
        space, files = state.f_bavail * state.f_frsize, state.f_favail
        free.append(f"{space / (1 << 30):.1f} GiB for the {name}")
        if space < _LITTLE:
            yield wrong(f"{free[-1]} are left", "make room: runs fail when it is full")
        elif space < _SOME:
            yield note(f"{free[-1]} are left", "see docs/housekeeping.md for what grows")
        elif state.f_files and files < _FEW_FILES:
            yield wrong(f"{files} more files can be made for the {name}", "take files away there")
    yield ok(f"free: {'; '.join(free)}")


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def refuses(folder: Path) -> str:
    """Why a folder cannot be written; empty if it can. Nothing is left in it."""
    try:
        with tempfile.TemporaryFile(dir=folder) as tried:
            tried.write(b"x")
            tried.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _mend_of(said: str, folder: Path) -> str:
    if "space" in said or "quota" in said.lower():
        return "make room there"
    return f"let this user write to {folder}, or set another folder"
