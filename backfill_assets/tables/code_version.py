"""The code version of a table: a promise about rows, not about source text.

It has two parts. `ROWS_VERSION` stands for the code of this package: it is raised by hand when a
release gives other rows for the same input; a test compares the rows of every kind of table.
The digest stands for the code of the project that declares the table: the modules of its function
and its model, and the modules of the project that these import, over a normalized syntax tree.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from backfill_assets.settings import Settings, SettingsError
from backfill_assets.spark.processes import pause_gc
from backfill_assets.tables.graph import tables_of
from backfill_assets.tables.table import Table

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

_PACKAGE = Path(__file__).parents[1]
#: In the same distribution as this package, but it counts as a project.
_GUIDE = "backfill_assets_guide"
#: Libraries that a Spark distribution puts on the path outside of `site-packages`.
_SPARK_LIBRARIES = ("pyspark", "py4j")
_DIGEST_LENGTH = 12
_TIMEOUT = 10  # seconds: a repository on a network drive must not keep a run from starting


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


def running_code(settings: Settings) -> Code:
    """The code of a deployment's tables, as it is on disk now.

    Raises:
        SettingsError: a module that declares a table has no source file.
    """
    versions = table_versions(tables_of(settings))
    commit, dirty = git_state(settings.git_commit, _declaring_package(settings.tables))
    return Code(_version_of_all(versions), commit, dirty, versions)


def table_versions(tables: Mapping[str, Table]) -> dict[str, str]:
    """The code version of each table, by name.

    Raises:
        SettingsError: a module that declares a table, or a dependency in `depends_on`, is missing.
    """
    files = SourceFiles()
    return {name: _table_version(table, files) for name, table in tables.items()}


def asset_version(module: str) -> str:
    """The code version of an ordinary asset; empty if the module has no source in a project."""
    files = SourceFiles()
    if not files.has_source(module):
        return ""
    return f"asset-{ROWS_VERSION['asset']}-{files.modules_digest([module])}"


def rows_version(table: Table) -> str:
    """The part of a table's code version that stands for the code of this package."""
    version = f"{table.kind}-{ROWS_VERSION[table.kind]}"
    if any(_is_of_this_package(module) for module in table.modules):
        version += f"-package-{ROWS_VERSION['package']}"
    return version


def _table_version(table: Table, files: "SourceFiles") -> str:
    version = rows_version(table)
    own_modules = [module for module in table.modules if not _is_of_this_package(module)]
    if own_modules or table.depends_on:
        version += f"-{files.modules_digest(own_modules, table.depends_on)}"
    return version


def _version_of_all(versions: Mapping[str, str]) -> str:
    text = "\n".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return f"tables-{_text_digest(text)}"


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


# --- the source of a project ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Module:
    text: str
    imports: frozenset[str]


class SourceFiles:
    """The source files of the project that declares tables, each parsed once.

    The project is all that is neither in the standard library, nor in this package, nor installed
    from another distribution.
    """

    def __init__(self) -> None:
        self._modules: dict[str, _Module | None] = {}
        self._project_packages: dict[str, bool] = {}
        self._distributions: set[str] = set()

    def modules_digest(self, modules: Iterable[str], depends_on: Sequence[str | Path] = ()) -> str:
        """A digest of modules (full names), their imports from the project, and `depends_on`.

        Raises:
            SettingsError: a module or file is missing.
        """
        declared = {*modules}
        for module in declared:
            self._add_distribution(module)
        texts = []
        for dependency in depends_on:
            if isinstance(dependency, Path):
                texts.append(f"file {_file_digest(dependency)}")
            elif self._load_module(dependency) is not None:
                declared.add(dependency)
            else:
                texts.append(f"{dependency} {_installed_version(dependency)}")
        for module in declared:
            if self._load_module(module) is None:
                raise SettingsError(
                    f"bad settings: {module}, which declares a table, has no source file"
                )
        # With the names: if two modules swap their contents, rows may change.
        sources = {name: self._load_module(name) for name in self.import_closure(declared)}
        texts += [f"{name} {module.text}" for name, module in sources.items() if module]
        return _text_digest("\n".join(sorted(texts)))

    def has_source(self, module: str) -> bool:
        """Whether a module belongs to the project, and its source can be read."""
        return bool(module) and self._load_module(module) is not None

    def import_closure(self, modules: Iterable[str]) -> set[str]:
        """The modules, and those of the project that they import, directly or indirectly."""
        closure: set[str] = set()
        remaining = {*modules}
        while remaining:
            closure |= remaining
            imports = (m.imports for name in remaining if (m := self._load_module(name)))
            remaining = {name for names in imports for name in names if self._load_module(name)}
            remaining -= closure
        return closure

    def _add_distribution(self, module: str) -> None:
        """Count all packages of an installed module's distribution as the project."""
        top = module.partition(".")[0]
        if top in self._project_packages:
            return
        self._project_packages[top] = True
        if any(map(_is_installed, _module_paths(top))):
            by_package = _distributions()
            self._distributions |= {*by_package.get(top, ())}
            for other, names in by_package.items():
                if self._distributions & {*names}:
                    self._project_packages[other] = True

    def _is_project(self, module: str) -> bool:
        """Return whether a module's source counts for code versions; this package's does not."""
        top = module.partition(".")[0]
        if top in (_PACKAGE.name, _GUIDE):
            return top == _GUIDE
        if top not in self._project_packages:
            paths = [] if top in _SPARK_LIBRARIES else _module_paths(top)
            self._project_packages[top] = bool(paths) and not any(map(_is_installed, paths))
        return self._project_packages[top]

    def _load_module(self, name: str) -> _Module | None:
        """A module of the project; None if it is not one, or has no source."""
        name = _current_name(name)
        if name not in self._modules:
            file = _source_file(name) if self._is_project(name) else None
            self._modules[name] = None if file is None else _parse_module(name, file)
        return self._modules[name]


def _module_paths(top: str) -> list[Path]:
    """The folders of a package, or the file of a top-level module; empty if built in."""
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # `__main__` of a script
        file = getattr(sys.modules.get(top), "__file__", None)
        return [Path(file)] if file else []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [*map(Path, spec.submodule_search_locations)]
    return [Path(spec.origin)] if spec.has_location and spec.origin else []


def _is_installed(place: Path) -> bool:
    if {"site-packages", "dist-packages"} & {*place.parts}:
        return True
    return place.is_relative_to(sysconfig.get_path("stdlib"))


def _source_file(module: str) -> Path | None:
    """The source file of a module, found without importing it; None if it has none."""
    top, *inner = module.split(".")
    for folder in _module_paths(top):
        path = folder.joinpath(*inner)
        candidates = [path / "__init__.py", path.with_suffix(".py")] if folder.is_dir() else [path]
        for file in candidates:
            if file.suffix == ".py" and file.is_file():
                return file
    return None


@cache
def _distributions() -> Mapping[str, list[str]]:
    """The installed distributions by top-level module; cached, as it takes 0.2 s."""
    return importlib.metadata.packages_distributions()


def _installed_version(module: str) -> str:
    for name in _distributions().get(module.partition(".")[0], ()):
        return importlib.metadata.version(name)
    raise SettingsError(
        f"bad settings: depends_on={module!r}: it is neither a module of the project nor one of an "
        "installed distribution"
    )


def _file_digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise SettingsError(f"bad settings: depends_on={str(file)!r}: {error.strerror}") from error


# --- normalized source ----------------------------------------------------------------------------


def _parse_module(module: str, file: Path) -> _Module:
    """Return the normalized source of a module and its imports; the module is not imported."""
    # Python 3.11 fails if a finalizer prints a traceback while `ast.parse` runs.
    with pause_gc():
        tree = ast.parse(file.read_bytes(), str(file))
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        statements = [*_Normalizer().normalized_statements(tree.body)]
        imports = {*_with_parents(package), *_imported_modules(module, package, statements)}
        return _Module("".join(_serialize_tree(statements)), frozenset(imports))


class _Normalizer(ast.NodeTransformer):
    """Drops what cannot change rows: docstrings, annotations, code only for type checkers.

    The annotations of a decorated function stay, as its decorator may read them: `table` takes the
    inputs from them. Annotations in the body of a class stay too: they are the columns of a model.
    """

    _in_class = False

    def normalized_statements(self, body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
        """The statements that can change rows, each normalized."""
        for statement in body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            if isinstance(statement, ast.If) and _is_type_checking(statement.test):
                yield from self.normalized_statements(statement.orelse)
                continue
            if (normalized := self.visit(statement)) is not None:
                yield normalized

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Normalize the blocks and the expressions of a node."""
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, name, [*self.normalized_statements(value)])
            elif isinstance(value, list):
                setattr(node, name, [self._visit_value(item) for item in value])
            else:
                setattr(node, name, self._visit_value(value))
        return node

    def _visit_value(self, value: Any) -> Any:
        return self.visit(value) if isinstance(value, ast.AST) else value

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Normalize a class, and keep its annotations."""
        return self._visit_scope(node, in_class=True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Normalize a function; drop its annotations, unless a decorator may read them."""
        if not node.decorator_list:
            _drop_annotations(node)
        return self._visit_scope(node, in_class=False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """As `visit_FunctionDef`."""
        if not node.decorator_list:
            _drop_annotations(node)
        return self._visit_scope(node, in_class=False)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """Make an annotated variable an assignment, or drop it; unchanged in a class."""
        if self._in_class:
            return self.generic_visit(node)
        if node.value is None:
            return None
        return self.generic_visit(ast.Assign(targets=[node.target], value=node.value))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """Replace a module of this package by the package: moving a name changes no rows."""
        if not node.level:
            node.module = _normalized_name(node.module or "")
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        """As `visit_ImportFrom`."""
        for alias in node.names:
            alias.name = _normalized_name(alias.name)
        return node

    def _visit_scope(self, node: ast.AST, *, in_class: bool) -> ast.AST:
        outer, self._in_class = self._in_class, in_class
        try:
            return self.generic_visit(node)
        finally:
            self._in_class = outer


def _current_name(module: str) -> str:
    """The name of a module; of one of the examples the present one, if it is given by the old."""
    old = f"{_PACKAGE.name}.examples"
    is_old = module == old or module.startswith(f"{old}.")
    return module.replace(_PACKAGE.name, _GUIDE, 1) if is_old else module


def _normalized_name(module: str) -> str:
    """The name of an imported module in a digest: the package for all modules of this one."""
    module = _current_name(module)
    return _PACKAGE.name if _is_of_this_package(module) else module


def _is_of_this_package(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE.name


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _drop_annotations(node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    node.returns = None
    arguments = node.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for argument in [*parameters, arguments.vararg, arguments.kwarg]:
        if argument is not None:
            argument.annotation = None


def _serialize_tree(value: Any) -> Iterator[str]:
    """A syntax tree as text that is the same in all versions of Python, unlike `ast.dump`."""
    if isinstance(value, list):
        yield "["
        for item in value:
            yield from _serialize_tree(item)
            yield ","
        yield "]"
    elif isinstance(value, ast.AST):
        yield f"{type(value).__name__}("
        for name, child in ast.iter_fields(value):
            # Whether a name is read or written follows from where it is.
            if child is None or child == [] or name in ("ctx", "kind", "type_comment"):
                continue
            yield f"{name}="
            yield from _serialize_tree(child)
        yield ")"
    else:
        yield repr(value)


def _imported_modules(module: str, package: str, statements: Iterable[ast.stmt]) -> Iterator[str]:
    """The modules that normalized statements import, with the packages that contain them."""
    for node in (node for statement in statements for node in ast.walk(statement)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level else []
            parts = parts[: len(parts) - node.level + 1] if node.level else []
            source = ".".join([*parts, *([node.module] if node.module else [])])
            yield from _with_parents(source)
            for alias in node.names:
                yield f"{source}.{alias.name}"
                yield from _lazy_module(module, source, alias)


def _with_parents(module: str) -> Iterator[str]:
    """A module, and the packages whose `__init__.py` runs before it."""
    parts = module.split(".")
    return (".".join(parts[: n + 1]) for n in range(len(parts)))


def _lazy_module(module: str, source: str, alias: ast.alias) -> Iterator[str]:
    """The module of a name that a package provides by its own `__getattr__`."""
    if not hasattr(sys.modules.get(source), "__getattr__"):
        return
    value = getattr(sys.modules.get(module), alias.asname or alias.name, None)
    if isinstance(name := getattr(value, "__module__", None), str):
        yield from _with_parents(name)


# --- git ------------------------------------------------------------------------------------------


def _declaring_package(place: str) -> Path:
    """The package that declares the tables: its folder, or the file of a top-level module."""
    module = import_module(place.partition(":")[0])
    source = Path(str(module.__file__))
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
