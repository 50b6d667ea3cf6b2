"""What an object reaches: the code of the project that it calls, and the values that it uses.

A walk starts at objects in memory and follows names, closures, defaults, attributes, decorated
functions, classes and imports within functions. Functions of the project count by their syntax
tree, constants by their value, and objects of libraries by their name.
"""

import ast
import builtins
import copyreg
import enum
import hashlib
import inspect
import logging
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from pathlib import PurePath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pyspark.sql.types as T
from pyspark.sql import Column
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from backfill_assets.runtime_versions import is_secret
from backfill_assets.tables import project_source
from backfill_assets.tables.project_source import MISSING, DeadEndError, Project

#: What to do about an object that cannot be followed.
_NAME_IT = (
    "make it within the function, or put it in a module of its own and name that in depends_on, so "
    "that the source of the module counts"
)
#: Types whose `repr` tells their values.
_PLAIN = (
    *(type(None), bool, int, float, complex, bytes, type(...), type(NotImplemented), range),
    *(Decimal, date, datetime, time, timedelta, UUID, ZoneInfo),
)
#: Objects that are code.
_CODE_TYPES = (
    *(types.FunctionType, type, types.ModuleType, types.MethodType, types.BuiltinFunctionType),
)
#: The kinds of UDFs that get the values of a row.
_BY_ROW = (PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF)
#: The most characters of the text of a value; a longer one is a digest.
_MOST_CHARS = 500
#: The most characters of a value that is shown as it is.
_SHOWN = 40
_DIGEST_LENGTH = 12


def text_digest(text: str) -> str:
    """A short digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


# --- the walk -------------------------------------------------------------------------------------


class ReachedCode(NamedTuple):
    """What objects reach.

    Attributes:
        digest: of all that decides what they do.
        parts: by function, class, constant or field, its value or a digest; to name what differs.
    """

    digest: str
    parts: Mapping[str, str]


@dataclass
class _Node:
    """A function, class or module that is reached: its text, and those that it reaches itself."""

    name: str
    text: str = ""
    doc: str = ""
    edges: list[int] = field(default_factory=list)


def reach(
    roots: Mapping[str, object],
    project: Project,
    *,
    counted_modules: Sequence[types.ModuleType] = (),
    declare: Callable[[object], object] = lambda _: None,
    by_source: bool = False,
) -> ReachedCode:
    """Follow what objects reach, given by name.

    Args:
        roots: the objects by name; the names count, and their order does not.
        project: whose code is followed.
        counted_modules: modules that count otherwise: what they have is not followed.
        declare: what stands for an object, or None if nothing does.
        by_source: whether values that cannot be followed count by the source that makes them.

    Raises:
        DeadEndError: an object cannot be followed.
    """
    walk = _Walk(project, counted_modules, declare, by_source=by_source)
    for name in sorted(roots):
        walk.add_root(name, roots[name])
    return walk.result()


class _Walk:
    def __init__(
        self,
        project: Project,
        counted_modules: Sequence[types.ModuleType],
        declare: Callable[[object], object],
        *,
        by_source: bool,
    ) -> None:
        self._project, self._declare, self._by_source = project, declare, by_source
        self._counted = {module.__name__ for module in counted_modules}
        self._counted_ids = {
            id(value)
            for module in counted_modules
            for value in vars(module).values()
            if not isinstance(value, (*_PLAIN, str))
        }
        self._nodes: list[_Node] = []
        self._numbers: dict[int, int] = {}
        self._objects: list[object] = []  # so that no id is used twice
        self._open: list[int] = []
        self._texts: dict[int, tuple[str, list[int]]] = {}
        self._path: list[str] = []
        self._reads_docs = False
        #: The texts of the roots, and of the values that functions, classes and modules use.
        self._roots: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._edges: list[int] = []

    def result(self) -> ReachedCode:
        """All that was added so far."""
        lines = [f"{name}={text}" for name, text in self._roots.items()]
        lines += [f"{self._edges}", *(f"{node.text} {node.edges}" for node in self._nodes)]
        if self._reads_docs:
            lines += [node.doc for node in self._nodes]
        lines += self._values.values()
        parts = {name: _shown(text) for name, text in self._roots.items() if text != "@"}
        for name, text in self._values.items():
            parts[name] = text_digest(text) if is_secret(f"{name}={text}") else _shown(text)
        for node in self._nodes:
            text = node.text + (node.doc if self._reads_docs else "")
            parts[_free_name(node.name, parts)] = text_digest(text)
        return ReachedCode(text_digest("\n".join(lines)), parts)

    def add_root(self, name: str, root: object) -> None:
        """Add an object by name."""
        self._path = [name]
        self._roots[name] = self._text(root, self._edges)

    # --- values ---

    def _text(self, value: Any, edges: list[int]) -> str:
        """The text of a value; functions, classes and modules are numbers in `edges`."""
        kind = type(value)
        if kind is str:
            return repr(self._without_root(value))
        if kind in _PLAIN:
            return repr(value)
        if kind in (list, tuple):
            brackets = "[]" if kind is list else "()"
            return self._within(
                value, edges, lambda: f"{brackets[0]}{self._joined(value, edges)}{brackets[1]}"
            )
        if kind in (set, frozenset):
            items = sorted(value, key=_sort_key)
            return self._within(value, edges, lambda: f"{{{self._joined(items, edges)}}}")
        if kind in (dict, types.MappingProxyType):
            return self._within(value, edges, lambda: self._dict_text(value, edges))
        if (declared := self._declare(value)) is not None:
            return self._within(value, edges, lambda: self._text(declared, edges))
        if id(value) in self._counted_ids:
            return "@counted"
        return self._object_text(value, edges)

    def _joined(self, values: Iterable[Any], edges: list[int]) -> str:
        texts = []
        for number, value in enumerate(values):
            with _Step(self._path, f"[{number}]"):
                texts.append(self._text(value, edges))
        return ",".join(texts)

    def _dict_text(self, values: Mapping[Any, Any], edges: list[int]) -> str:
        texts = []
        for key, value in values.items():
            with _Step(self._path, f"[{key!r}]" if isinstance(key, str) else ""):
                texts.append(f"{self._text(key, edges)}:{self._text(value, edges)}")
        return f"{{{','.join(texts)}}}"

    def _within(self, value: object, edges: list[int], make_text: Callable[[], str]) -> str:
        """The text of a value that may contain itself, or be in others many times."""
        key, start = id(value), len(edges)
        if key in self._open:
            return f"^{len(self._open) - self._open.index(key)}"
        if key not in self._texts:
            self._open.append(key)
            try:
                text = make_text()
            finally:
                self._open.pop()
            is_whole = "^" not in text
            if len(text) > _MOST_CHARS:
                text = text_digest(f"{text} {edges[start:]}")
                del edges[start:]
            if not is_whole:
                return text
            self._objects.append(value)
            self._texts[key] = text, edges[start:]
        else:
            edges += self._texts[key][1]
        return self._texts[key][0]

    def _object_text(self, value: Any, edges: list[int]) -> str:
        if isinstance(value, _CODE_TYPES):
            return self._code_text(value, edges)
        if (text := self._known_text(value, edges)) is not None:
            return text
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:
            return f"{_library_name(type(value))}({self._text(wrapped, edges)})"
        if inspect.isroutine(value):
            return _library_name(value)
        return self._within(value, edges, lambda: self._reduced_text(value, edges))

    def _code_text(self, value: Any, edges: list[int]) -> str:
        match value:
            case types.FunctionType():
                return self._function_text(value, edges)
            case type():
                own = self._is_own(value.__module__)
                return self._reference(value, edges) if own else _library_name(value)
            case types.ModuleType():
                own = self._is_own(value.__name__)
                return self._reference(value, edges) if own else f"module {value.__name__}"
            case types.MethodType():
                return f"{self._text(value.__func__, edges)} of {self._text(value.__self__, edges)}"
        if self._is_own(value.__module__ or ""):
            raise self._dead_end(f"is compiled, and its source cannot be read: {_NAME_IT}")
        owner = value.__self__
        if owner is None or isinstance(owner, types.ModuleType | type):
            return _library_name(value)
        return f"{value.__name__} of {self._text(owner, edges)}"

    def _known_text(self, value: Any, edges: list[int]) -> str | None:
        """The text of objects that have a better one than `pickle` would give; else None."""
        match value:
            case enum.Enum():
                members = self._text(type(value), edges)
                return f"{members}.{value.name}={self._text(value.value, edges)}"
            case PurePath():
                return f"path {self._without_root(str(value))!r}"
            case T.DataType():
                return f"type {value.json()}"
            case Column():
                return f"column {value!r}"
            case logging.Logger():
                return "logger"
            case _ if _is_session(value):
                return repr(None)
        if value is os.environ:
            return "environ"
        return self._udf_text(value, edges) if isinstance(value, UserDefinedFunction) else None

    def _reduced_text(self, value: Any, edges: list[int]) -> str:
        """The text of any other object: what `pickle` would make it of."""
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        except Exception as error:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise self._dead_end(f"is of {kind}, which has no value: {_NAME_IT}") from error
        if isinstance(reduced, str):
            return f"{_library_name(type(value))}:{reduced}"
        make, args, *others = reduced
        state, items, pairs = (*others, None, None, None)[:3]
        texts = [self._text(make, edges), self._text(args, edges)]
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            state = {**(state[0] or {}), **state[1]} if isinstance(state[0], dict | None) else state
        if isinstance(state, dict):
            for name, part in state.items():
                if _is_session(part) and _is_cached_property(type(value), name):
                    continue
                with _Step(self._path, f".{name}"):
                    texts.append(f"{name}={self._text(part, edges)}")
        else:
            texts.append(self._text(state, edges))
        texts.append(self._text([*(items or ())], edges))
        texts.append(self._text([*(pairs or ())], edges))
        return f"object({','.join(texts)})"

    def _udf_text(self, value: Any, edges: list[int]) -> str:
        kind = value.returnType
        type_text = kind if isinstance(kind, str) else kind.json()
        # Unless it is given, a setting of the session says whether rows are passed by Arrow.
        by_row = value.evalType in _BY_ROW
        parts = ["by row" if by_row else value.evalType, value.deterministic, type_text]
        with _Step(self._path, ".func"):
            return f"udf({parts},{self._text(value.func, edges)})"

    def _function_text(self, value: types.FunctionType, edges: list[int]) -> str:
        if self._is_own(value.__globals__.get("__name__", "")):
            return self._reference(value, edges)
        if hasattr(value, "evalType"):
            return self._udf_text(value, edges)
        if "<locals>" not in value.__code__.co_qualname:
            return _library_name(value)
        # A function that a library made, as a decorator does; `singledispatch` has a registry.
        wrapped = getattr(value, "__wrapped__", None)
        made_of = [wrapped] if wrapped is not None else [*_closure(value).values()]
        made_of += [*getattr(value, "registry", {}).items()]
        # By `functools.wraps`, its own name is that of what it wraps.
        maker = f"{value.__globals__['__name__']}:{value.__code__.co_qualname}"
        return f"{maker}({self._joined(made_of, edges)})"

    def _is_own(self, module: str) -> bool:
        return module not in self._counted and self._project.has(module)

    def _without_root(self, text: str) -> str:
        """A text without the folder of the project at its beginning: that is where it runs."""
        for root in self._project.roots:
            if text.startswith(root):
                return f"<project>{text[len(root) :]}"
        return text

    def _dead_end(self, reason: str) -> DeadEndError:
        return DeadEndError(f"{''.join(self._path)} {reason}")

    # --- functions, classes and modules ---

    def _reference(self, value: Any, edges: list[int]) -> str:
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._nodes)
            self._objects.append(value)
            node = _Node(getattr(value, "__qualname__", value.__name__))
            self._nodes.append(node)
            outer, self._path = self._path, [f"{self._path[0]} → {node.name}"]
            opened, self._open = self._open, []
            try:
                self._fill_node(node, value)
            finally:
                self._path, self._open = outer, opened
        edges.append(number)
        return "@"

    def _fill_node(self, node: _Node, value: Any) -> None:
        if isinstance(value, types.FunctionType):
            try:
                trees, names = project_source.function_trees(value), _function_names(value)
            except DeadEndError as error:
                raise self._dead_end(str(error)) from error
            tree_names = {*_used_names(value.__code__)}
        else:
            # A module that was loaded from a path need not be among those that are imported.
            is_module = isinstance(value, types.ModuleType)
            module = value if is_module else sys.modules.get(value.__module__, builtins)
            names, tree_names = vars(module), None
            source = project_source.source_file(
                getattr(module, "__file__", None) or "", vars(module)
            )
            trees = []
            if source and is_module:
                trees = [source.tree]
            elif source:
                trees = source.classes_named(value.__qualname__)
                for function in filter(inspect.isfunction, vars(value).values()):
                    names = {**names, **_closure(function)}
        reader = project_source.TreeReader(names, tree_names, self._project)
        texts = [reader.text_of(tree) for tree in trees]
        self._reads_docs |= reader.reads_docs
        node.doc = "".join(map(_docstring, trees))
        if reader.reaches_all:
            reader.references["globals"] = sys.modules.get(names.get("__name__", ""))
        for label, target in reader.references.items():
            texts.append(self._named_text(node, label, target))
        for label, target in _own_values(value, trees):
            texts.append(self._named_text(node, label, target))
        node.text = "\n".join(texts)

    def _named_text(self, node: _Node, label: str, target: Any) -> str:
        """The text of a value by the name that a node has for it."""
        if target is MISSING:
            return f"{label} is missing"
        edges: list[int] = []
        try:
            with _Step(self._path, f".{label}"):
                text = self._text(target, edges)
        except DeadEndError:
            if not self._by_source:
                raise
            text = ""
        node.edges += edges
        if text == "@":
            return ""
        is_library = isinstance(
            target, type | types.ModuleType | types.BuiltinFunctionType | types.FunctionType
        )
        if not is_library:
            self._values[_free_name(f"{node.name} → {label}", self._values)] = text
            return ""
        return f"{label}={text}"


class _Step:
    """A step on the way to a value, for messages."""

    def __init__(self, path: list[str], step: str) -> None:
        self._path, self._step = path, step

    def __enter__(self) -> None:
        self._path.append(self._step)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._path.pop()


def _free_name(name: str, names: Mapping[str, Any]) -> str:
    number = 2
    free = name
    while free in names:
        free, number = f"{name} ({number})", number + 1
    return free


def _shown(text: str) -> str:
    """A value as commits and messages show it: a long one by its digest."""
    return text_digest(text) if len(text) > _SHOWN else text


def _sort_key(item: object) -> tuple[str, str]:
    """An order of the items of a set that does not depend on the process."""
    return type(item).__qualname__, str(getattr(item, "__qualname__", "")) or repr(item)


def _library_name(value: Any) -> str:
    """The name of an object of a library, after that of its package or of Python's module."""
    owner = getattr(value, "__objclass__", None)
    module = str(getattr(value, "__module__", None) or getattr(owner, "__module__", "builtins"))
    top = module.partition(".")[0].lstrip("_")
    if top in sys.stdlib_module_names:
        top = module.lstrip("_")
    return f"{top}:{getattr(value, '__qualname__', getattr(value, '__name__', ''))}"


def _closure(function: types.FunctionType) -> dict[str, Any]:
    """The values of a function's closure by name; those that are not set yet are missing."""
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:
            values[name] = MISSING
    return values


def _function_names(function: types.FunctionType) -> dict[str, Any]:
    return {**function.__globals__, **_closure(function)}


def _used_names(code: types.CodeType) -> Iterator[str]:
    """The names that code uses and does not bind itself, and its attributes."""
    yield from code.co_names
    yield from code.co_freevars
    for inner in project_source.inner_codes(code):
        yield from inner.co_names


def _own_values(value: Any, trees: Sequence[ast.AST]) -> Iterator[tuple[str, Any]]:
    """What an object has besides its syntax tree, by name."""
    if isinstance(value, types.FunctionType):
        defaults = inspect.signature(value, follow_wrapped=False).parameters.items()
        yield from ((n, part.default) for n, part in defaults if part.default is not part.empty)
        yield from ((n, part) for n, part in vars(value).items() if n != "__wrapped__")
    elif trees:
        values = {name: vars(value).get(name, MISSING) for name in sorted(_assigned_names(trees))}
        yield from ((name, part) for name, part in values.items() if _is_plain(part))
        if isinstance(value, enum.EnumMeta):
            members: Mapping[str, Any] = value.__members__
            yield "members", {name: member.value for name, member in members.items()}
    else:
        # A class that a call has made.
        yield "bases", value.__bases__ if isinstance(value, type) else ()
        for name, part in sorted(vars(value).items()):
            is_made = isinstance(part, types.FunctionType) and part.__code__.co_filename.startswith(
                "<"
            )
            if not (is_made or name.startswith("__")):
                yield name, part


def _assigned_names(trees: Iterable[ast.AST]) -> set[str]:
    return {
        node.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, (*value.keys(), *value.values())))
    return isinstance(value, (*_PLAIN, str)) or _is_session(value)


def _is_session(value: object) -> bool:
    """Whether a value is a Spark session, of Connect or not.

    It counts as None, which is what stands for it until it starts.
    """
    # By name: Connect is not imported where it is not used, and is no subclass.
    return any(
        cls.__name__ == "SparkSession" and cls.__module__.startswith("pyspark.sql.")
        for cls in type(value).__mro__
    )


def _is_cached_property(cls: type, name: str) -> bool:
    return isinstance(inspect.getattr_static(cls, name, None), cached_property)


def _docstring(tree: Any) -> str:
    return "" if isinstance(tree, ast.Lambda) else ast.get_docstring(tree) or ""
