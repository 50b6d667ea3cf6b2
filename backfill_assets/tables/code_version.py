"""The code version of a table: a promise about rows, not about source text.

It has two parts. `ROWS_VERSION` stands for the code of this package: it is raised by hand when a
release gives other rows for the same input; a test compares the rows of every kind of table.
The digest stands for the project that declares the table: the fields of the declaration that decide
rows, and what its functions reach, see `reached_code`.
"""

import dataclasses
import hashlib
import importlib.metadata
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pandera.pyspark as pa

from backfill_assets.calendar.reach import Reach
from backfill_assets.settings import Settings, SettingsError
from backfill_assets.tables import derived
from backfill_assets.tables.columns import (
    Forbidden,
    gap_of,
    holds_json,
    nullable_bounds,
    renamed_from,
    sql_conditions,
)
from backfill_assets.tables.project_source import DeadEndError, Project, distributions
from backfill_assets.tables.reached_code import ReachedCode, reach, text_digest
from backfill_assets.tables.sources import Source, SourceTable
from backfill_assets.tables.table import Table, asset_name
from backfill_assets.tables.table_options import DRIFT
from backfill_assets.tables.unpartitioned import Lookup, LookupAnswers, Unpartitioned

#: By kind of table, the version of the rows that this package computes. Raise a number if, and only
#: if, a change of this package gives other rows of that kind for the same input; `package` stands
#: for the tables that this package declares.
ROWS_VERSION: Mapping[str, int] = {
    "raw": 2,  # 2: text in quotes over several lines; JSON text as written; names in any case
    # 2: the reason has the number of surplus decimals; 3: the form of a field; 4: text in quotes,
    # and names in any case
    "rejected": 4,
    "staging": 1,
    "late": 1,
    "lateness": 1,
    "current": 1,
    "corrections": 1,
    "derived": 1,
    "asset": 1,
    "package": 1,
}

_PACKAGE = __name__.partition(".")[0]
_DIGEST = re.compile(r"[0-9a-f]{12}|[0-9a-f]{64}")
_TIMEOUT = 10  # seconds: a repository on a network drive must not keep a run from starting

#: By declaration, the fields that decide rows, or whether they are published; each is a part of the
#: code version of the table.
_OPTIONS = ("partition", "key", "totals", "rules", "notices", "merge", "schema_version")
_TABLE = ("model", *_OPTIONS, "forbidden", "depends_on")
DECIDING: Mapping[type, tuple[str, ...]] = {
    Source: (
        *("name", "lines", "key", "event_time", "version_time", "amount", "start"),
        *("window_days", "late_lines", "arrives_after", "timezone", "ambiguous"),
        *("rename", "delimiter", "quote", "header", "comment", "null", "decimal", "thousands"),
        "encoding",
    ),
    SourceTable: ("source",),
    derived.Derived: (
        *(*_TABLE, "transform", "reads", "unpartitioned", "published", "answers"),
        *("conserved", "version"),
    ),
    derived.Current: ("base", "source"),
    derived.Corrections: ("model", *_OPTIONS),
    Table: _TABLE,
    derived.Reads: ("table", "reach", "as_known", "each_row_once"),
    derived.PublishedDays: ("table", "reach"),
    LookupAnswers: ("lookup", "of"),
    derived.Conserved: ("parameter", "column", "total"),
    Forbidden: ("name", "find"),
    Unpartitioned: ("name", "url"),
    Lookup: ("name", "model", "request", "path", "url", "read", "none_at"),
}
#: Fields of a source, and the settings: they decide only the tables that the setting decides.
_LATE_DATA = {
    "window_days": "window_days",
    "arrives_after": "window_days",
    "late_lines": "late_lines",
}


@dataclass(frozen=True)
class Code:
    """The code that computes the tables.

    Attributes:
        version: covers the versions of all tables; a backfill is pinned to it.
        commit: the git commit that is checked out; empty if unknown.
        dirty: whether the source differs from that commit; None if unknown.
        tables: the code version by table.
    """

    version: str
    commit: str = ""
    dirty: bool | None = None
    tables: Mapping[str, str] = field(default_factory=dict)

    def table_version(self, table: str) -> str:
        """The code version of a table; that of all tables, if the table is not declared."""
        return self.tables.get(table, self.version)

    def __str__(self) -> str:
        if not self.commit:
            return f"{self.version} (commit unknown)"
        state = {True: ", with uncommitted changes", False: "", None: ", as the deployment says"}
        return f"{self.version} (commit {self.commit[:10]}{state[self.dirty]})"


def running_code(settings: Settings, declared: Mapping[str, Table], module: str) -> Code:
    """The code of the tables that a module declares, by name, as it was imported.

    Raises:
        SettingsError: what a table reaches cannot be followed, or a dependency is missing.
    """
    tables = table_codes(declared)
    versions = {name: code.digest for name, code in tables.items()}
    commit, dirty = git_state(settings.git_commit, _declaring_package(module))
    return Code(_version_of_all(versions), commit, dirty, versions)


def table_codes(tables: Mapping[str, Table]) -> dict[str, ReachedCode]:
    """The code version of each table and its parts, by name.

    Raises:
        SettingsError: what a table reaches cannot be followed, or a dependency is missing.
    """
    project = Project()
    for table in tables.values():
        for module in table.modules:
            project.add_declaring(module)
    codes = {name: _table_code(table, project) for name, table in tables.items()}
    _PARTS.update({code.digest: code.parts for code in codes.values()})
    return codes


def asset_version(function: Callable[..., Any], table: Table) -> str:
    """The code version of the table of an asset; empty if its function is not of a project.

    Raises:
        SettingsError: what it reaches cannot be followed.
    """
    project = Project()
    if not project.has(function.__module__):
        return ""
    code = _reach(table.name, {"function": function, **_declaration_fields(table)}, project, ())
    return f"asset-{ROWS_VERSION['asset']}-{code.digest}"


def rows_version(table: Table) -> str:
    """The part of a table's code version that stands for the code of this package."""
    version = f"{table.kind}-{ROWS_VERSION[table.kind]}"
    if any(module.partition(".")[0] == _PACKAGE for module in table.modules):
        version += f"-package-{ROWS_VERSION['package']}"
    return version


def _version_of_all(versions: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return f"tables-{text_digest(text)}"


#: By code version that was computed in this process, what it is made of.
_PARTS: dict[str, Mapping[str, str]] = {}
#: The most differences of two versions that a message names.
_MOST_DIFFERENCES = 3


def parts_of_version(version: str) -> Mapping[str, str]:
    """What a code version of this process is made of, by function, constant and field.

    The values are those of constants and fields, or digests; empty if it is no such version.
    """
    return _PARTS.get(version, {})


def format_code_change(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """The parts that differ between two code versions: `summarize → RATE: 0.21 → 0.19`.

    Empty if one of them is not known.
    """
    if not old or not new:
        return ""
    names = [name for name in {**new, **old} if old.get(name) != new.get(name)]
    texts = [_format_part_change(name, old.get(name), new.get(name)) for name in names]
    more = [f"and {len(texts) - _MOST_DIFFERENCES} more"] * (len(texts) > _MOST_DIFFERENCES)
    return ", ".join([*texts[:_MOST_DIFFERENCES], *more])


def _format_part_change(name: str, old: str | None, new: str | None) -> str:
    if old is None or new is None:
        return f"{name} is {'new' if old is None else 'gone'}"
    if _DIGEST.fullmatch(old) or _DIGEST.fullmatch(new):
        return name
    return f"{name}: {old} → {new}"


#: The code of tables that are imported, which does not change in a process, and `depends_on`.
_REACHED: dict[int, tuple[Table, ReachedCode]] = {}


def _table_code(table: Table, project: Project) -> ReachedCode:
    modules = tuple(name for name in table.depends_on if isinstance(name, str))
    own_modules = tuple(name for name in modules if project.has(name))
    if _REACHED.get(id(table), (None,))[0] is not table:
        code = _reach(table.name, _declaration_fields(table), project, own_modules)
        _REACHED[id(table)] = table, code
    code = _REACHED[id(table)][1]
    files = {
        f"depends_on {getattr(dependency, 'name', dependency)}": _dependency_text(dependency)
        for dependency in table.depends_on
        if dependency not in own_modules
    }
    digest = text_digest("\n".join([code.digest, *files.values()])) if files else code.digest
    rows = rows_version(table)
    parts = {"rows of this package": rows, **code.parts, **files}
    return ReachedCode(f"{rows}-{digest}", parts)


def _reach(
    name: str, roots: Mapping[str, Any], project: Project, counted_names: tuple[str, ...]
) -> ReachedCode:
    try:
        counted = [_import_dependency(module) for module in counted_names]
        modules = {f"depends_on {module.__name__}": module for module in counted}
        listed = reach(modules, project, declare=declare, by_source=True) if modules else None
        code = reach(roots, project, counted_modules=counted, declare=declare)
    except DeadEndError as error:
        raise SettingsError(f"bad settings: {name}: {error}") from error
    if listed is None:
        return code
    return ReachedCode(text_digest(code.digest + listed.digest), {**code.parts, **listed.parts})


# --- declarations ---------------------------------------------------------------------------------


def declare(value: object) -> object:
    """What stands for a declaration in the digest of what reaches it; None if it is none."""
    if isinstance(value, type) and issubclass(value, pa.DataFrameModel):
        return _model_fields(value)
    if isinstance(value, Table | Source):
        return _declaration_fields(value)
    if type(value) in DECIDING:
        parts = _other_than_default(value)
        return {name: _input_name(parts[name]) for name in DECIDING[type(value)] if name in parts}
    if isinstance(value, Reach):
        return [type(value).__name__, _other_than_default(value)]
    return None


def _declaration_fields(value: Table | Source) -> dict[str, Any]:
    """The fields of a table or source that decide rows, in parts that can be told apart."""
    cls = type(value) if type(value) in DECIDING else Table
    fields: dict[str, Any] = {}
    for name, part in _other_than_default(value).items():
        if name not in DECIDING[cls] or name == "depends_on":
            continue
        if name == "model":
            fields |= _model_fields(part)
        elif name == "rules":
            fields[name] = {rule: part[rule].condition for rule in part}
        elif name == "notices":
            fields |= {name: others} if (others := [n for n in part if n != DRIFT]) else {}
        elif name == "lines":
            fields |= {f"lines {n}": v for n, v in _model_fields(part).items()}
        elif name in ("reads", "unpartitioned", "published", "answers"):
            # An input of several parts is one: which parts a day has is in its input digest.
            fields |= {f"{name} {asset_name(parameter)}": read for parameter, read in part.items()}
        elif name == "source":
            settings = getattr(value, "decided_by", ())
            late_data = {name for name, setting in _LATE_DATA.items() if setting not in settings}
            source = _declaration_fields(part)
            fields |= {f"source {n}": v for n, v in source.items() if n not in late_data}
        elif name == "base":
            fields |= _declaration_fields(part)
        else:
            fields[name] = part
    return fields


def _other_than_default(value: Any) -> dict[str, Any]:
    """The fields of a declaration with their values; one that a release adds changes no version."""
    missing = dataclasses.MISSING
    parts = {
        part.name: part.default if part.default_factory is missing else part.default_factory()
        for part in dataclasses.fields(value)
    }
    values = {name: getattr(value, name) for name in parts}
    return {name: part for name, part in values.items() if part != parts[name]}


def _input_name(value: object) -> object:
    """The name of an input: its code is not that of the table which reads it."""
    return f"table {value.asset_name}" if isinstance(value, Table) else value


def _model_fields(model: type[pa.DataFrameModel]) -> dict[str, Any]:
    columns = dict(model.to_schema().columns)
    return {f"column {name}": _column_fields(name, column) for name, column in columns.items()}


def _column_fields(name: str, column: Any) -> list[Any]:
    """What decides the values of a column, or whether a day with them is published."""
    gap = gap_of(column)
    fields = [
        column.dtype.type,
        bool(column.nullable),
        [*sql_conditions(name, column).values()],
        nullable_bounds(column).error if column.nullable else None,
        holds_json(column),
        renamed_from(column),
        gap and (gap.since, gap.default),
    ]
    while fields and not fields[-1]:
        fields.pop()
    return fields


# --- dependencies ---------------------------------------------------------------------------------


def _import_dependency(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        raise SettingsError(f"bad settings: depends_on={module!r}: {error}") from error


def _dependency_text(dependency: str | Path) -> str:
    """What stands for a data file, a folder of files, or a library that decides rows."""
    if isinstance(dependency, Path):
        return _files_digest(dependency)
    for name in distributions().get(dependency.partition(".")[0], ()):
        return importlib.metadata.version(name)
    raise SettingsError(
        f"bad settings: depends_on={dependency!r}: it is neither a module of the project nor one "
        "of an installed distribution"
    )


def _files_digest(path: Path) -> str:
    """A digest of a file; of a folder, of all files in it and their names."""
    try:
        if not path.is_dir():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        files = sorted(file for file in path.rglob("*") if file.is_file())
        lines = [f"{file.relative_to(path).as_posix()} {_files_digest(file)}" for file in files]
    except OSError as error:
        raise SettingsError(f"bad settings: depends_on={str(path)!r}: {error.strerror}") from error
    return text_digest("\n".join(lines))


# --- git ------------------------------------------------------------------------------------------


def _declaring_package(module: str) -> Path:
    """The package of a module that declares a table: its folder, or a top-level module's file."""
    source = Path(str(import_module(module).__file__))
    while (source.parent / "__init__.py").is_file():
        source = source.parent
    return source


def git_state(given_commit: str | None, source: Path) -> tuple[str, bool | None]:
    """The git commit of a package or module, empty if unknown; and whether its source differs.

    If the code is installed without its repository, the commit is `given_commit`. None means that
    it is unknown whether the source differs.
    """
    package, file = (source, "__init__.py") if source.is_dir() else (source.parent, source.name)
    # Untracked code, such as a `.venv`, lies in a repository that is not its own.
    if _run_git(package, "ls-files", "--error-unmatch", file) is None:
        return given_commit or "", None
    commit = (_run_git(package, "rev-parse", "HEAD") or "").strip()
    changes = _run_git(package, "status", "--porcelain", "--", "." if source.is_dir() else file)
    return commit, None if changes is None else bool(changes.strip())


def _run_git(folder: Path, *arguments: str) -> str | None:
    """The output of git; None if it fails or is not installed."""
    try:
        process = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout if process.returncode == 0 else None
