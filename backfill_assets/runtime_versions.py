"""Versions that rows depend on besides code and settings: engine and time zones."""

from __future__ import annotations

import os
import shutil
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@cache
def package_version() -> str:
    """The release of this package; empty if it runs without being installed."""
    try:
        return version("backfill-assets")
    except PackageNotFoundError:
        return ""


@cache
def engine_versions() -> dict[str, str]:
    """The versions of Spark and Delta, by package."""
    return {name: version(name) for name in ("pyspark", "delta-spark")}


def time_zone_data() -> str:
    """The version of the time-zone data that days are cut by, such as `2025a`.

    That of the Java that Spark runs on here; without one, that of the Python package.
    """
    java = shutil.which("java")
    java_home = os.environ.get("JAVA_HOME") or (java and str(Path(java).resolve().parent.parent))
    if java_home and (java_data := _java_time_zones(Path(java_home, "lib", "tzdb.dat"))):
        return java_data
    try:
        return version("tzdata")
    except PackageNotFoundError:
        return "unknown"


def _java_time_zones(path: Path) -> str:
    """The version in the header of Java's time-zone file; empty if there is none to read.

    A byte 1, the text `TZDB`, the number of versions, and the first as text; each text after its
    length in two bytes.
    """
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError:
        return ""
    if head[:7] != b"\x01\x00\x04TZDB":
        return ""
    return head[11 : 11 + int.from_bytes(head[9:11], "big")].decode("ascii", "replace")
