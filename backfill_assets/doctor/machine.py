"""The machine: Java and jars, names and ports, disks."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from backfill_assets.dagster_ext.claims import TakenError, claimed_port
from backfill_assets.doctor.examination import Found, note, ok, wrong
from backfill_assets.engine import known_jars
from backfill_assets.engine.configuration import master_of, spark_config
from backfill_assets.engine.environment import ignored_variables
from backfill_assets.engine.jars import (
    check_java,
    delta_coordinate,
    delta_jars,
    find_java,
)
from backfill_assets.engine.known_jars import unknown_jars
from backfill_assets.settings import Settings

#: Less free space than this ends runs; less than the second may, in a day of much data.
_LITTLE, _SOME = 1 << 30, 10 << 30
#: And so many files that can still be made.
_FEW_FILES = 10_000
#: What the names of Delta's own jars begin with.
_DELTA = "delta-"
#: Seconds for a UI to answer.
_ANSWERS = 5
#: What an answer has for a status where nobody is logged in.
_LOGIN = 401


def java(settings: Settings) -> Iterator[Found]:
    """The Java that the engine would run on."""
    if settings.spark_remote:
        yield ok("not needed here: SPARK_REMOTE is set")
        return
    check_java()
    yield ok(f"{find_java()}")


def environment(settings: Settings) -> Iterator[Found]:
    """The variables of Spark and Java that are set here, and do not reach the engine."""
    if settings.spark_remote:
        yield ok("not needed here: SPARK_REMOTE is set")
        return
    if names := ignored_variables(master_of(settings)):
        message = f"{', '.join(names)}: set here, and the engine is not given them"
        advice = "nothing, or say what they are to do in BACKFILL_ASSETS_SPARK_CONF"
        yield note(message, f"{advice}: see docs/deployments.md")
        return
    yield ok("it has nothing that the engine is not given")


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
    loaded = map(Path, spark_config(settings)["spark.jars"].split(","))
    if strange := unknown_jars(jar for jar in loaded if settings.jars in jar.parents):
        said = f"{', '.join(map(str, strange))}: not the jars of this version, by their SHA-256"
        yield wrong(said, f"remove {strange[0].parent}, then run backfill-assets jars")
        return
    if len(found) < sum(name.startswith(_DELTA) for name in known_jars.SHA256):
        said = f"{found[0].parent} lacks some of Delta's jars"
        yield wrong(said, f"remove {found[0].parent}, then run backfill-assets jars")
        return
    yield ok(f"{len(found)} jars in {found[0].parent}, with the SHA-256 that they must have")


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
    try:
        with claimed_port(number):
            pass
    except TakenError as error:
        if said := _ui_at(number):
            yield ok(said)
        else:
            said, _, mend = str(error).removesuffix(" Nothing was started.").partition(": ")
            yield note(f"{said}, and no UI answers there", mend)
        return
    yield ok(f"{number} is free")


def _ui_at(number: int) -> str:
    """What is said of a UI at a port; empty if there is none."""
    try:
        with urlopen(f"http://127.0.0.1:{number}/server_info", timeout=_ANSWERS) as answer:
            version = json.load(answer).get("dagster_version")
    except HTTPError as error:
        return f"a UI at {number} asks for a login" if error.code == _LOGIN else ""
    except (OSError, ValueError, AttributeError):
        return ""
    return f"a UI of Dagster {version} answers at {number}" if version else ""


def scratch(settings: Settings) -> Path:
    """Where an engine of this machine puts what does not fit into memory."""
    given = os.environ.get("SPARK_LOCAL_DIRS") or settings.spark_conf.get("spark.local.dir")
    if not given and (home := os.environ.get("DAGSTER_HOME")):
        return Path(home, "scratch")
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
