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

from backfill_assets.dagster_ext.claims import TakenError, listen_on_port
from backfill_assets.doctor.examination import CheckResult, note, ok, wrong
from backfill_assets.engine import known_jars
from backfill_assets.engine.configuration import master_url, spark_config
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
_DELTA_PREFIX = "delta-"
#: Seconds for a UI to answer.
_ANSWERS = 5
#: What an answer has for a status where nobody is logged in.
_LOGIN_STATUS = 401


def check_java_version(settings: Settings) -> Iterator[CheckResult]:
    """The Java that the engine would run on."""
    if settings.spark_remote:
        yield ok("not needed here: SPARK_REMOTE is set")
        return
    check_java()
    yield ok(f"{find_java()}")


def check_environment(settings: Settings) -> Iterator[CheckResult]:
    """The variables of Spark and Java that are set here, and do not reach the engine."""
    if settings.spark_remote:
        yield ok("not needed here: SPARK_REMOTE is set")
        return
    if names := ignored_variables(master_url(settings)):
        message = f"{', '.join(names)}: set here, and the engine is not given them"
        advice = "nothing, or say what they are to do in BACKFILL_ASSETS_SPARK_CONF"
        yield note(message, f"{advice}: see docs/deployments.md")
        return
    yield ok("it has nothing that the engine is not given")


def check_jars(settings: Settings) -> Iterator[CheckResult]:
    """The jars in the cache: there, and whole."""
    if settings.spark_remote:
        yield ok("not needed here: SPARK_REMOTE is set")
        return
    cached_jars = delta_jars(settings.jars)
    if not cached_jars:
        message = f"there is no {delta_coordinate()} in {settings.jars}"
        yield wrong(message, "backfill-assets jars downloads them; a run would do so as well")
        return
    loaded = map(Path, spark_config(settings)["spark.jars"].split(","))
    if changed_jars := unknown_jars(jar for jar in loaded if settings.jars in jar.parents):
        message = (
            f"{', '.join(map(str, changed_jars))}: not the jars of this version, by their SHA-256"
        )
        yield wrong(message, f"remove {changed_jars[0].parent}, then run backfill-assets jars")
        return
    if len(cached_jars) < sum(name.startswith(_DELTA_PREFIX) for name in known_jars.SHA256):
        message = f"{cached_jars[0].parent} lacks some of Delta's jars"
        yield wrong(message, f"remove {cached_jars[0].parent}, then run backfill-assets jars")
        return
    yield ok(
        f"{len(cached_jars)} jars in {cached_jars[0].parent}, with the SHA-256 that they must have"
    )


def check_loopback() -> Iterator[CheckResult]:
    """The name by which Spark and its clients find this machine."""
    addresses = {str(info[4][0]) for info in socket.getaddrinfo("localhost", None)}
    if foreign_addresses := {
        address for address in addresses if not ip_address(address).is_loopback
    }:
        message = f"localhost is {', '.join(sorted(foreign_addresses))}, which is not this machine's loopback"
        yield wrong(message, "mend the line of localhost in /etc/hosts")
        return
    yield ok(f"localhost is {', '.join(sorted(addresses))}")


def check_port(number: int) -> Iterator[CheckResult]:
    """The port of the UI: free, or that of a UI."""
    try:
        with listen_on_port(number):
            pass
    except TakenError as error:
        if message := _ui_at(number):
            yield ok(message)
        else:
            message, _, fix = str(error).removesuffix(" Nothing was started.").partition(": ")
            yield note(f"{message}, and no UI answers there", fix)
        return
    yield ok(f"{number} is free")


def _ui_at(number: int) -> str:
    """What is said of a UI at a port; empty if there is none."""
    try:
        with urlopen(f"http://127.0.0.1:{number}/server_info", timeout=_ANSWERS) as answer:
            version = json.load(answer).get("dagster_version")
    except HTTPError as error:
        return f"a UI at {number} asks for a login" if error.code == _LOGIN_STATUS else ""
    except (OSError, ValueError, AttributeError):
        return ""
    return f"a UI of Dagster {version} answers at {number}" if version else ""


def scratch_folder(settings: Settings) -> Path:
    """Where an engine of this machine puts what does not fit into memory."""
    setting = os.environ.get("SPARK_LOCAL_DIRS") or settings.spark_conf.get("spark.local.dir")
    if not setting and (home := os.environ.get("DAGSTER_HOME")):
        return Path(home, "scratch")
    return Path((setting or tempfile.gettempdir()).split(",")[0])


def check_disks(folders: Mapping[str, Path]) -> Iterator[CheckResult]:
    """Space on the disks, and whether they can be written.

    Args:
        folders: by what it is to the deployment.
    """
    disks: dict[int, tuple[str, os.statvfs_result]] = {}
    for name, folder in folders.items():
        path = nearest_folder(folder)
        if reason := refuses(path):
            yield wrong(f"the {name} at {path} cannot be written: {reason}", _fix_for(reason, path))
        # Folders on one disk share its space.
        disks.setdefault(path.stat().st_dev, (f"{name} at {path}", os.statvfs(path)))
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


def nearest_folder(folder: Path) -> Path:
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


def _fix_for(reason: str, folder: Path) -> str:
    if "space" in reason or "quota" in reason.lower():
        return "make room there"
    return f"let this user write to {folder}, or set another folder"
