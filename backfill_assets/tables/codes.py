"""Which code makes the tables: by table a digest of its source, and the git commit.

What counts for a table are the modules that make it, the write path, and whatever of the package
these import, directly or not: its transform and its model. What no table is made by, as alerts or
the command line, counts for none.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from backfill_assets.engine.garbage import no_collection
from backfill_assets.settings import Settings, SettingsError
from backfill_assets.tables.catalog import tables_of
from backfill_assets.tables.table import Table

_PACKAGE = Path(__file__).parents[1]
#: What writes every table, whoever makes its rows.
_WRITE_PATH = "backfill_assets.publish.publisher"
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


def running_code(settings: Settings) -> Code:
    """The code of a deployment's tables as it is on disk now.

    Args:
        settings: name the tables, and the commit, where the code is installed without its
            repository.
    """
    return code_of(made_by(tables_of(settings)), settings.git_commit)


def made_by(tables: Mapping[str, Table]) -> dict[str, tuple[str, ...]]:
    """By table, the modules that make its rows and write them; only those where they are known."""
    return {name: (*t.made_in, _WRITE_PATH) for name, t in tables.items() if t.made_in}


def code_of(
    made_in: Mapping[str, tuple[str, ...]],
    given_commit: str | None = None,
    package: Path = _PACKAGE,
) -> Code:
    """The code of tables as it is on disk now.

    Args:
        made_in: by table, the modules that make it, by their full names.
        given_commit: the commit it was built from, where it is installed without its repository.
        package: the folder of the package that publishes the tables.
    """
    files = _Files(package, {module for modules in made_in.values() for module in modules})
    modules = {of: files.closure(of) for of in {*made_in.values()}}
    digests = {of: files.digest(found) for of, found in modules.items()}
    tables = {table: digests[of] for table, of in made_in.items()}
    version = files.digest(set().union(*modules.values()))
    # A package that git does not track lies in somebody else's repository, as in a `.venv`.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return Code(version, given_commit or "", tables=tables)
    commit = (_git(package, "rev-parse", "HEAD") or "").strip()
    changes = _git(package, "status", "--porcelain", "--", ".")
    dirty = None if changes is None else bool(changes.strip())
    return Code(version, commit, dirty, tables)


class _Files:
    """The source files of the package and of the modules that make tables.

    Each is parsed once, as this is done at the start of every process.
    """

    def __init__(self, package: Path, modules: Iterable[str]) -> None:
        """From the package's folder, and the modules that make tables, by their full names."""
        #: By name of a package (or of a module in none), the folder that holds it.
        self._roots = {package.name: package.parent}
        for module in modules:
            root = module.partition(".")[0]
            if root not in self._roots:
                self._roots[root] = _holder(root)
        self._imports = cache(self._parsed)

    def closure(self, modules: Iterable[str]) -> set[str]:
        """Modules and those that they import, directly or not, as far as they have a root here."""
        found: set[str] = set()
        left = {*modules}
        while left:
            found |= left
            left = set().union(*map(self._imports, left)) - found
        return found

    def digest(self, modules: Iterable[str]) -> str:
        """A digest of the source of modules."""
        digest = hashlib.sha256()
        for module in sorted(modules):
            digest.update(module.encode())
            digest.update(self._file(module).read_bytes())
        return digest.hexdigest()[:16]

    def _parsed(self, module: str) -> set[str]:
        """The modules of the roots that a module imports."""
        named: set[str] = set()
        # Python 3.11 fails if a finalizer that prints a traceback comes in between.
        with no_collection():
            tree = ast.parse(self._file(module).read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                # A module, or a name within one.
                of = self._absolute(module, node)
                named |= {of, *(f"{of}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
        return {name for name in named if self._has(name)}

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        """The module that is imported from, which may be named from where the other one is."""
        above = module.split(".")[: -node.level] if node.level else []
        return ".".join([*above, *([node.module] if node.module else [])])

    def _has(self, module: str) -> bool:
        return module.partition(".")[0] in self._roots and self._file(module).exists()

    def _file(self, module: str) -> Path:
        root = self._roots[module.partition(".")[0]]
        return root.joinpath(*module.split(".")).with_suffix(".py")


def _holder(root: str) -> Path:
    """The folder that holds a package, or a module that is in none."""
    spec = importlib.util.find_spec(root)
    if spec is None or spec.origin is None:
        raise SettingsError(f"bad settings: {root}, which makes tables, has no source file")
    file = Path(spec.origin)
    return file.parent.parent if file.name == "__init__.py" else file.parent


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
