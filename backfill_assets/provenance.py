"""Which code runs here: a digest of its source, its git commit, and the engine's versions."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGE = Path(__file__).parent
_TIMEOUT = 10  # seconds: a repository on a network drive must not keep a run from starting


@dataclass(frozen=True)
class Code:
    """The code that computes the tables.

    Attributes:
        version: digest of the package's source: two runs with one version ran the same code.
        commit: the git commit that is checked out; empty if unknown.
        dirty: whether the source differs from that commit; none if unknown.
    """

    version: str
    commit: str = ""
    dirty: bool | None = None

    def __str__(self) -> str:
        if not self.commit:
            return f"{self.version} (commit unknown)"
        state = {True: ", with uncommitted changes", False: "", None: ", as the deployment says"}
        return f"{self.version} (commit {self.commit[:10]}{state[self.dirty]})"


def running_code(given_commit: str | None = None, package: Path = _PACKAGE) -> Code:
    """The code of the package as it is on disk now.

    Args:
        given_commit: the commit it was built from, where it is installed without its repository.
        package: the package's folder.
    """
    version = _digest(package)
    # A package that git does not track lies in somebody else's repository, as in a `.venv`.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return Code(version, given_commit or "")
    commit = (_git(package, "rev-parse", "HEAD") or "").strip()
    changes = _git(package, "status", "--porcelain", "--", ".")
    return Code(version, commit, None if changes is None else bool(changes.strip()))


@cache
def engine_versions() -> dict[str, str]:
    """The versions of Spark and Delta, by package."""
    return {name: version(name) for name in ("pyspark", "delta-spark")}


def time_zone_data() -> str:
    """The version of the time-zone data that days are cut by, such as `2025a`.

    That of the Java that Spark runs on here; without one, that of the Python package.
    """
    java = shutil.which("java")
    home = os.environ.get("JAVA_HOME") or (java and str(Path(java).resolve().parent.parent))
    if home and (told := _java_time_zones(Path(home, "lib", "tzdb.dat"))):
        return told
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


def _digest(package: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says; none if it cannot say, or is not there."""
    try:
        said = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout if said.returncode == 0 else None
