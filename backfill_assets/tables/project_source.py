"""The source of a project: its modules, and the syntax trees of functions and classes as text.

The text leaves out what cannot change a result, and is the same in all versions of Python.
"""

import ast
import importlib.metadata
import importlib.util
import linecache
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from backfill_assets.spark.processes import pause_gc

_PACKAGE = __name__.partition(".")[0]
#: In the same distribution as this package, but it counts as a project.
_GUIDE = "backfill_assets_guide"
#: Libraries that a Spark distribution puts on the path outside of `site-packages`.
_SPARK_LIBRARIES = ("pyspark", "py4j")
#: Syntax trees of functions.
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*FUNCTIONS, ast.ClassDef)
#: What a module has by itself.
_MODULE_NAMES = ("__name__", "__file__", "__package__", "__spec__", "__loader__", "__path__")
#: Functions that reach names which no text tells.
_REACH_ALL = {"eval", "exec", "globals"}
_READ_DOCS = {"__doc__", "getdoc"}
#: Stands for what a name refers to where that does not exist.
MISSING = object()


class DeadEndError(Exception):
    """An object that is reached has no text; the message names the way to it, and what to do."""


# --- the project ----------------------------------------------------------------------------------


class Project:
    """Which modules are the project: neither installed from elsewhere, nor of this package.

    All packages of an installed distribution that declares a table are the project as well.

    Attributes:
        roots: the folders that have the packages which declare tables.
    """

    def __init__(self) -> None:
        self._packages: dict[str, bool] = {}
        self.roots: set[str] = set()

    def add_declaring(self, module: str) -> None:
        """Count a module that declares a table, and its distribution, as the project."""
        top = module.partition(".")[0]
        if top in self._packages or top == _PACKAGE:
            return
        self._packages[top] = True
        paths = _module_paths(top)
        self.roots |= {str(path.parent) for path in paths}
        if any(map(_is_installed, paths)):
            by_package = distributions()
            own_names = {*by_package.get(top, ())}
            for other, names in by_package.items():
                if own_names & {*names}:
                    self._packages[other] = True

    def has(self, module: str) -> bool:
        """Whether a module is of the project."""
        top = module.partition(".")[0]
        if top in (_PACKAGE, _GUIDE):
            return top == _GUIDE
        if top not in self._packages:
            paths = [] if top in _SPARK_LIBRARIES else _module_paths(top)
            self._packages[top] = bool(paths) and not any(map(_is_installed, paths))
        return self._packages[top]


def _module_paths(top: str) -> list[Path]:
    """The folders of a package, or the file of a top-level module; empty if built in."""
    try:
        spec = importlib.util.find_spec(top) if top else None
    except (ValueError, ImportError):  # `__main__` of a script
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


@cache
def distributions() -> Mapping[str, list[str]]:
    """The installed distributions by top-level module; cached, as it takes 0.2 s."""
    return importlib.metadata.packages_distributions()


# --- source ---------------------------------------------------------------------------------------


class _SourceFile:
    """The syntax tree of a file, with the code that it compiles to."""

    def __init__(self, file: str, module_globals: Mapping[str, Any]) -> None:
        linecache.checkcache(file)
        text = "".join(linecache.getlines(file, dict(module_globals)))
        # Python 3.11 fails if a finalizer prints a traceback while `ast.parse` runs.
        with pause_gc():
            self.tree = ast.parse(text, file)
        self.is_empty = not text
        self._codes = {*inner_codes(compile(text, file, "exec", dont_inherit=True))}
        self._scopes: dict[tuple[str, int], list[ast.AST]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, _SCOPES):
                name = getattr(node, "name", "<lambda>")
                self._scopes.setdefault((name, first_line(node)), []).append(node)

    def compiles_to(self, code: CodeType) -> bool:
        """Whether the file has this code, as it is now."""
        return code in self._codes

    def functions_at(self, code: CodeType) -> list[ast.AST]:
        """The functions with a name and first line; several lambdas may share a line."""
        nodes = self._scopes.get((code.co_name, code.co_firstlineno), [])
        if len(nodes) > 1:
            lines = [p for p in code.co_positions() if p[2] is not None and p[3] != p[2]]
            columns = {(p[0], p[2]) for p in lines}
            nodes = [
                node
                for node in nodes
                if not isinstance(node, ast.Lambda) or _spans(node.body, columns)
            ] or nodes
        return nodes

    def classes_named(self, qualname: str) -> list[ast.AST]:
        """The classes with a qualified name."""
        bodies: list[ast.AST] = [self.tree]
        for part in qualname.split("."):
            if part != "<locals>":
                bodies = [
                    node
                    for body in bodies
                    for node in _inner_scopes(body)
                    if getattr(node, "name", "") == part
                ]
        return [node for node in bodies if isinstance(node, ast.ClassDef)]


def first_line(node: Any) -> int:
    """The first line of a function or a class, which may be that of a decorator."""
    return min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))


def _spans(node: ast.expr, positions: Iterable[tuple[int | None, int | None]]) -> bool:
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    return all(start <= position < end for position in positions)


def inner_codes(code: CodeType) -> Iterator[CodeType]:
    """The code of all functions and classes within code."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from inner_codes(constant)


def _inner_scopes(scope: ast.AST) -> Iterator[ast.AST]:
    """The functions and classes that are written directly in a scope."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, _SCOPES):
            yield node
        else:
            yield from _inner_scopes(node)


#: By file, its source, and the import of the module for which it was read.
_SOURCE_FILES: dict[str, tuple[object, _SourceFile]] = {}


def source_file(file: str, module_globals: Mapping[str, Any]) -> _SourceFile | None:
    """The parsed file, read once for each import of its module; None if there is no source."""
    spec = module_globals.get("__spec__")
    if file not in _SOURCE_FILES or _SOURCE_FILES[file][0] is not spec:
        try:
            _SOURCE_FILES[file] = spec, _SourceFile(file, module_globals)
        except (SyntaxError, ValueError):
            return None
    source = _SOURCE_FILES[file][1]
    return None if source.is_empty else source


def function_trees(function: FunctionType) -> list[ast.AST]:
    """The syntax trees of a function.

    Raises:
        DeadEndError: there is no source of it, or the file has changed since it was imported.
    """
    code, names = function.__code__, function.__globals__
    source = source_file(code.co_filename, names)
    nodes = source.functions_at(code) if source else []
    # Other loaders, as that of pytest, change the code that they compile.
    is_plain = type(names.get("__loader__")) is SourceFileLoader
    if source and nodes and (not is_plain or source.compiles_to(code)):
        return nodes
    if not source:
        raise DeadEndError("has no source that could be read: write it in a file")
    raise DeadEndError(
        f"is not what {code.co_filename}, line {code.co_firstlineno}, has now: the file has "
        "changed since it was imported. Start the process again"
    )


# --- syntax trees ---------------------------------------------------------------------------------


class TreeReader:
    """Writes a syntax tree as text, and notes what its names refer to.

    What cannot change a result is left out: docstrings, annotations of functions, imports, and code
    for type checkers. The text is the same in all versions of Python.
    """

    def __init__(
        self, names: Mapping[str, Any], used_names: set[str] | None, project: Project
    ) -> None:
        self.references: dict[str, Any] = {}
        self.reads_docs = False
        self.reaches_all = False
        self._names, self._used, self._project = names, used_names, project
        self._imports: dict[str, Any] = {}

    def text_of(self, tree: ast.AST) -> str:
        """The text of a function, class or module."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and not isinstance(tree, ast.Module):
                self._add_imports(node)
        if isinstance(tree, FUNCTIONS):
            body = tree.body if isinstance(tree.body, list) else [tree.body]
            return f"({_parameter_names(tree.args)}){self._block(body)}"
        if isinstance(tree, ast.Module):
            return self._block(tree.body)
        return self._write(tree)

    def _block(self, body: Iterable[ast.AST]) -> str:
        return "[" + ",".join(filter(None, map(self._statement, body))) + "]"

    def _statement(self, node: ast.AST) -> str:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom() | ast.Pass():
                return ""
            case ast.If() if _is_type_checking(node.test):
                return ",".join(filter(None, map(self._statement, node.orelse)))
            case ast.AnnAssign() if not getattr(node, "in_class", False):
                if node.value is None:
                    return ""
                return self._write(ast.Assign(targets=[node.target], value=node.value))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                decorators = [self._write(part) for part in node.decorator_list]
                arguments = self._write(_without_annotations(node.args))
                kind = type(node).__name__
                return f"{kind}({node.name},{decorators},{arguments},{self._block(node.body)})"
        return self._write(node)

    def _write(self, node: Any) -> str:
        match node:
            case [ast.stmt(), *_]:
                return self._block(node)
            case list():
                return "[" + ",".join(map(self._write, node)) + "]"
            case ast.Name() | ast.Attribute():
                return self._name_text(node)
            case ast.Call() if (module := self._imported_by_call(node)) is not None:
                return self._refer([module.__name__], module)
            case ast.JoinedStr():
                return f"f({','.join(self._joined_parts(node))})"
            case ast.AST():
                return self._write_fields(node)
        return repr(node)

    def _write_fields(self, node: ast.AST) -> str:
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign):
                    statement.in_class = True  # type: ignore[attr-defined]
        texts = [type(node).__name__]
        for name, child in ast.iter_fields(node):
            # Whether a name is read or written follows from where it is.
            if child is None or child == [] or name in ("ctx", "kind", "type_comment", "simple"):
                continue
            texts.append(f"{name}={self._write(child)}")
        return f"({' '.join(texts)})"

    def _joined_parts(self, node: ast.JoinedStr) -> Iterator[str]:
        """The parts of an f-string; versions of Python divide its texts otherwise."""
        text = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
                continue
            if text:
                yield repr(text)
            text = ""
            yield self._write(part)
        if text:
            yield repr(text)

    def _name_text(self, node: ast.Name | ast.Attribute) -> str:
        names: list[str] = []
        base: ast.expr = node
        while isinstance(base, ast.Attribute):
            names.insert(0, base.attr)
            base = base.value
        self.reads_docs |= bool(_READ_DOCS & {*names})
        if isinstance(base, ast.Call) and (module := self._imported_by_call(base)) is not None:
            return self._refer([module.__name__, *names], module)
        if not isinstance(base, ast.Name):
            return ".".join([self._write(base), *names])
        first = base.id
        self.reads_docs |= first in _READ_DOCS
        is_used = self._used is None or first in self._used
        if first in self._imports:
            return self._refer([first, *names], self._imports[first])
        if is_used and first in self._names and first not in _MODULE_NAMES:
            return self._refer([first, *names], self._names[first])
        self.reaches_all |= is_used and first in _REACH_ALL
        return ".".join([first, *names])

    def _refer(self, names: Sequence[str], value: Any) -> str:
        """Note what a name refers to, as far as it leads through modules."""
        label, *rest = names
        while isinstance(value, ModuleType) and rest:
            if not self._project.has(value.__name__):
                return f"{value.__name__}.{'.'.join(rest)}"
            label, *rest = rest
            value = _module_attribute(value, label)
        if label in self.references and self.references[label] is not value:
            label = f"{label} ({'.'.join(names)})"
        self.references[label] = value
        return ".".join([f"@{label}", *rest])

    def _add_imports(self, node: ast.Import | ast.ImportFrom) -> None:
        """Note what an import within a function binds; modules of the project are imported."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name if alias.asname else alias.name.partition(".")[0]
                self._imports[alias.asname or top] = self._import(alias.name, top)
            return
        package = self._names.get("__package__") or ""
        name = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        module = self._import(name, name)
        for alias in node.names:
            value = _module_attribute(module, alias.name) if module is not MISSING else MISSING
            self._imports[alias.asname or alias.name] = value

    def _import(self, name: str, bound: str) -> Any:
        try:
            import_module(name)
        except ImportError:
            return MISSING
        return sys.modules.get(bound, MISSING)

    def _imported_by_call(self, node: ast.Call) -> ModuleType | None:
        """The module of the project that a call of `import_module` with a text imports."""
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name not in ("import_module", "__import__") or not node.args:
            return None
        argument = node.args[0]
        if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
            return None
        text = argument.value
        try:
            text = importlib.util.resolve_name(text, self._names.get("__package__") or "")
        except ImportError:
            return None
        module = self._import(text, text) if self._project.has(text) else None
        return module if isinstance(module, ModuleType) else None


def _module_attribute(module: ModuleType, name: str) -> Any:
    """An attribute of a module, which may be a module in it that is not imported yet."""
    try:
        return getattr(module, name)
    except AttributeError:
        try:
            return import_module(f"{module.__name__}.{name}")
        except ImportError:
            return MISSING


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _parameter_names(arguments: ast.arguments) -> str:
    """The parameters of a function; the values of its defaults count, not how they are written."""
    parts = [arguments.posonlyargs, arguments.args, arguments.kwonlyargs]
    others = [part and part.arg for part in (arguments.vararg, arguments.kwarg)]
    return f"{[[part.arg for part in group] for group in parts]} {others}"


def _without_annotations(arguments: ast.arguments) -> ast.arguments:
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return arguments
