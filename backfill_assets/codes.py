"""Which code makes the tables: by table a digest of its source, and the git commit.

What counts for a table is the module that makes it and whatever of the package that imports,
directly or not: its transform, its model, and the write path. What no table is made by, as alerts
or the command line, counts for none.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

from backfill_assets.graph import MADE_IN

_PACKAGE = Path(__file__).parent
_TIMEOUT = 10  # seconds: a repository on a network drive must not keep a run from starting


@dataclass(frozen=True)
class Code:
    """The code that computes the tables.

    Attributes:
        version: digest of all source that makes a table: two runs with one version ran the same.
        commit: the git commit that is checked out; empty if unknown.
        dirty: whether the source differs from that commit; none if unknown.
        tables: the same digest for each table alone.
    """

    version: str
    commit: str = ""
    dirty: bool | None = None
    tables: Mapping[str, str] = field(default_factory=dict)

    def of(self, table: str) -> str:
        """The version of what makes a table; that of everything, where it is not known apart."""
        return self.tables.get(table, self.version)

    def __str__(self) -> str:
        if not self.commit:
            return f"{self.version} (commit unknown)"
        state = {True: ", with uncommitted changes", False: "", None: ", as the deployment says"}
        return f"{self.version} (commit {self.commit[:10]}{state[self.dirty]})"


def running_code(
    given_commit: str | None = None,
    package: Path = _PACKAGE,
    made_in: Mapping[str, str] = MADE_IN,
) -> Code:
    """The code of the package as it is on disk now.

    Args:
        given_commit: the commit it was built from, where it is installed without its repository.
        package: the package's folder.
        made_in: by table, the module of the package that makes it.
    """
    modules = _imported(package, made_in.values())
    digests = {module: _digest(package, of) for module, of in modules.items()}
    tables = {table: digests[module] for table, module in made_in.items()}
    version = _digest(package, set().union(*modules.values()))
    # A package that git does not track lies in somebody else's repository, as in a `.venv`.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return Code(version, given_commit or "", tables=tables)
    commit = (_git(package, "rev-parse", "HEAD") or "").strip()
    changes = _git(package, "status", "--porcelain", "--", ".")
    dirty = None if changes is None else bool(changes.strip())
    return Code(version, commit, dirty, tables)


def _imported(package: Path, modules: Iterable[str]) -> dict[str, set[str]]:
    """By module of the package: itself, and those of it that it imports, directly or not.

    Each file is parsed once, as this is done at the start of every process.
    """
    imports = cache(partial(_imports, package))

    def closure(module: str) -> set[str]:
        found: set[str] = set()
        left = {f"{package.name}.{module}"}
        while left:
            found |= left
            left = set().union(*map(imports, left)) - found
        return found

    return {module: closure(module) for module in set(modules)}


def _imports(package: Path, module: str) -> set[str]:
    """The modules of the package that a module of it imports."""
    named: set[str] = set()
    for node in ast.walk(ast.parse(_file(package, module).read_bytes())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package.name):
            # A module, or a name within one.
            named |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            named |= {a.name for a in node.names if a.name.startswith(f"{package.name}.")}
    return {name for name in named if _file(package, name).exists()}


def _file(package: Path, module: str) -> Path:
    path = package.parent.joinpath(*module.split("."))
    return path.with_suffix(".py")


def _digest(package: Path, modules: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for module in sorted(modules):
        digest.update(module.encode())
        digest.update(_file(package, module).read_bytes())
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
