"""Repeatable functions of tables: no clock, and no random values.

The source of a function is read, and all of the project that it reaches: functions, methods,
lambdas, UDFs, constants of modules, and texts that Spark takes as SQL. Nothing of it is called.
"""

import ast
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import resolve_name
from typing import Any, NamedTuple

from backfill_assets.tables.project_source import FUNCTIONS, Project, first_line, source_file

#: Functions that read the clock, and the number of arguments with which they do not.
_CLOCKS: Mapping[str, float] = {
    "time.asctime": 1,
    "time.clock_gettime": math.inf,
    "time.clock_gettime_ns": math.inf,
    "time.ctime": 1,
    "time.gmtime": 1,
    "time.localtime": 1,
    "time.strftime": 2,
    "time.time": math.inf,
    "time.time_ns": math.inf,
}
#: Names of functions that read the clock, in whatever library: `datetime.now`, `Timestamp.now`.
_CLOCK_NAMES = {"now", "today", "utcnow"}
#: Classes and functions of pandas and NumPy for which the texts `now` and `today` are times.
_TAKE_TIMES = {"DatetimeIndex", "Timestamp", "datetime64", "to_datetime"}
#: Random values of Python, by the beginnings of names.
_RANDOM = (
    *("numpy.random.", "os.getrandom", "os.urandom", "random.", "secrets."),
    *("uuid.getnode", "uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7", "uuid.uuid8"),
)
#: What makes a generator of random numbers.
_GENERATORS = {"Generator", "Random", "RandomState", "SystemRandom", "default_rng"}
#: Functions of Spark that read the clock.
_SPARK_CLOCKS = {
    *("curdate", "current_date", "current_time", "current_timestamp", "localtimestamp", "now"),
}
#: Functions of Spark whose values depend on where a row lies, with a seed too.
_SPARK_RANDOM = {
    *("monotonically_increasing_id", "rand", "randn", "random", "randstr", "shuffle"),
    *("spark_partition_id", "uniform", "uuid"),
}
#: Methods of frames that draw rows by where they lie.
_DRAW_ROWS = {"randomSplit", "sample", "sampleBy"}
#: Functions and methods of Spark that take SQL.
_TAKE_SQL = {"expr", "filter", "selectExpr", "sql", "where"}
_SQL_CALL = re.compile(r"\b(\w+)\s*\(\s*(\)?)")
_SQL_WORD = re.compile(
    r"\b(current_(?:date|time|timestamp)|localtimestamp|(tablesample))\b", re.IGNORECASE
)
_SQL_TIME = re.compile(
    r"\b(?:date|timestamp\w*)\s*['\"]\s*(?:now|today|tomorrow|yesterday)\b", re.IGNORECASE
)
#: Texts, names in backticks, and comments in SQL.
_SQL_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|--[^\n]*")
_NO_CLOCK = "take the day from the column `for_day` of an input"
_NO_RANDOM = "take a hash of the key and a seed, as `F.xxhash64('id', F.lit(7))`"

_PACKAGE = __name__.partition(".")[0]
#: Expressions that are SQL if their parts are.
_COMPOUNDS = (
    *(ast.IfExp, ast.BoolOp, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.NamedExpr),
    *(ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.Starred, ast.Subscript),
)


class RepeatableCode:
    """The code of a project's tables, each module parsed once."""

    def __init__(self) -> None:
        self._modules: dict[str, _Scope | None] = {}
        self._project = Project()

    def find_unrepeatable_call(self, functions: Iterable[Callable[..., Any]]) -> str:
        """Where functions read the clock or take random values; empty if they do not.

        A run of the same day would give other rows.

        Returns:
            The call, its file and line, and what to do instead.
        """
        definitions = [pair for function in functions for pair in self._definitions_of(function)]
        take_sql = {*_TAKE_SQL}
        while True:
            reader = _Reader(self, take_sql)
            if (problem := reader.read(definitions)) or reader.take_sql == take_sql:
                return problem
            # A function gives a parameter to Spark as SQL: its calls take SQL, too.
            take_sql = reader.take_sql

    def module_scope(self, name: str, file: str = "") -> "_Scope | None":
        """The names of a module; None if it is none of the project, or its source is not known.

        With `file` it declares tables, and its package is of the project, if it is not this one.
        """
        if file:
            self._project.add_declaring(name)
        if name not in self._modules or (file and self._modules[name] is None):
            module = sys.modules.get(name)
            path = file or getattr(module, "__file__", None) or ""
            is_followed = path and (file or self._project.has(name))
            source = source_file(path, vars(module) if module else {}) if is_followed else None
            self._modules[name] = _Scope(source.tree, name, path) if source else None
        return self._modules[name]

    def _definitions_of(self, function: Callable[..., Any]) -> "Iterator[_Definition]":
        """The definitions of a function, or of the method that is called in its place."""
        while isinstance(function, partial):
            function = function.func
        if not inspect.isroutine(function):
            function = type(function).__call__
        function = inspect.unwrap(getattr(function, "__func__", function))
        code = getattr(function, "__code__", None)
        if code and (module := self.module_scope(function.__module__, code.co_filename)):
            yield from module.find_functions(code.co_name, code.co_firstlineno)


class _Definition(NamedTuple):
    """What a name stands for, and the scope in which it was written."""

    node: ast.AST
    scope: "_Scope"


class _Scope:
    """A module, class, function or lambda: definitions and imports by name; the scope around it."""

    def __init__(self, node: Any, module: str, file: str, outer: "_Scope | None" = None) -> None:
        self.node, self.module, self.file, self.outer = node, module, file, outer
        self.names: dict[str, list[_Definition | str]] = {}
        self.parameters: set[str] = set()
        self.stars: list[str] = outer.stars if outer else []
        if isinstance(node, FUNCTIONS) and outer:
            self._add_parameters(node.args, outer)
        self.body: list[ast.AST] = node.body if isinstance(node.body, list) else [node.body]
        for child in _walk_scope(self.body):
            self._add_names(child)

    @property
    def is_function(self) -> bool:
        """Whether its code runs each time the table is computed, not once in a process."""
        return isinstance(self.node, FUNCTIONS)

    def inner(self, node: Any) -> "_Scope":
        """The scope of a class, function or lambda that is written in this one."""
        return _Scope(node, self.module, self.file, self)

    def owner_of(self, name: str) -> "_Scope | None":
        """The scope that binds a name which is used in this one."""
        scope: _Scope | None = self
        while scope and name not in scope.names:
            scope = scope.outer
            while scope and isinstance(scope.node, ast.ClassDef):
                scope = scope.outer
        return scope

    def find_definitions(self, name: str) -> "Sequence[_Definition | str]":
        """What a name stands for that is used in this scope; empty if that is not known."""
        if scope := self.owner_of(name):
            return scope.names[name]
        return [star + name for star in self.stars if hasattr(sys.modules.get(star[:-1]), name)]

    def find_functions(self, name: str, line: int) -> Iterator[_Definition]:
        """The functions with a name whose first line, which may be a decorator, is this one."""
        for node in _walk_scope(self.body):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                first = first_line(node)
                if first == line and getattr(node, "name", "<lambda>") == name:
                    yield _Definition(node, self)
                elif first <= line <= (node.end_lineno or 0):
                    yield from self.inner(node).find_functions(name, line)

    def _add(self, name: str, value: ast.AST) -> None:
        self.names.setdefault(name, []).append(_Definition(value, self))

    def _add_parameters(self, arguments: ast.arguments, outer: "_Scope") -> None:
        positional = [*arguments.posonlyargs, *arguments.args]
        others = filter(None, [*arguments.kwonlyargs, arguments.vararg, arguments.kwarg])
        defaults: dict[ast.arg, ast.expr | None] = {}
        defaults |= zip(positional[::-1], arguments.defaults[::-1], strict=False)
        defaults |= zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        for parameter in [*positional, *others]:
            default = defaults.get(parameter)
            self.names[parameter.arg] = [_Definition(default, outer)] if default else []
        self.parameters = {*self.names}

    def _add_names(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self._add_imports(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._add(node.name, node)
        elif isinstance(node, ast.If | ast.While) and not self.is_function:
            # What a name stands for may depend on the condition.
            for part in _walk_scope([*node.body, *node.orelse]):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    self._add(part.id, node.test)
        else:
            value, targets = _assignment(node)
            for part in (part for target in targets for part in ast.walk(target)):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    self._add(part.id, value)
                elif isinstance(part, ast.Subscript) and not self.is_function:
                    for name in _dotted_names(part.value)[:1]:  # `TEXTS["now"] = ...`
                        self._add(name, value)

    def _add_imports(self, node: ast.Import | ast.ImportFrom) -> None:
        prefix = ""
        if isinstance(node, ast.ImportFrom):
            package = getattr(sys.modules.get(self.module), "__package__", None)
            prefix = resolve_name("." * node.level + (node.module or ""), package) + "."
        for alias in node.names:
            top = alias.name if prefix or alias.asname else alias.name.partition(".")[0]
            if alias.name == "*":
                self.stars.append(prefix)
            else:
                self.names.setdefault(alias.asname or top, []).append(prefix + top)


def _assignment(node: Any) -> tuple[Any, list[Any]]:
    """The value of an assignment, loop, or `with`, and what it is assigned to."""
    fields = dict(ast.iter_fields(node))
    value = fields.get("value") or fields.get("iter") or fields.get("context_expr")
    targets = fields.get("targets") or [fields.get("target") or fields.get("optional_vars")]
    return value, [target for target in targets if target and value]


def _walk_scope(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Nodes and their parts, without the bodies of functions and classes."""
    for node in nodes:
        yield node
        yield from _walk_scope(_outer_parts(node))


def _outer_parts(node: ast.AST) -> Iterable[ast.AST]:
    """The parts of a node that the scope around it evaluates; no annotations."""
    if isinstance(node, ast.ClassDef):
        values = [keyword.value for keyword in node.keywords]
        return [*node.decorator_list, *node.bases, *values]
    if isinstance(node, FUNCTIONS):
        defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        return [*getattr(node, "decorator_list", ()), *defaults]
    if isinstance(node, ast.AnnAssign):
        return [node.target, *filter(None, [node.value])]
    return ast.iter_child_nodes(node)


def _base_of(node: ast.AST) -> ast.AST:
    """The expression on whose methods, attributes and items another one is built."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def _dotted_names(node: ast.AST) -> list[str]:
    """The names of `a.b.c`; empty if it is another expression."""
    if isinstance(node, ast.Attribute):
        names = _dotted_names(node.value)
        return [*names, node.attr] if names else []
    return [node.id] if isinstance(node, ast.Name) else []


def _argument_values(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _count_arguments(call: ast.Call) -> float:
    """The arguments of a call that are not None; infinite if their number is not known."""
    values = _argument_values(call)
    starred = [value for value in values if isinstance(value, ast.Starred)]
    if starred or any(keyword.arg is None for keyword in call.keywords):
        return math.inf
    return sum(not (isinstance(value, ast.Constant) and value.value is None) for value in values)


class _Reader:
    """Reads definitions, and those that they reach, up to the first unrepeatable call."""

    def __init__(self, code: RepeatableCode, take_sql: Iterable[str]) -> None:
        self.take_sql = {*take_sql}
        self._code = code
        self._problem = ""
        self._remaining: list[tuple[_Definition, bool]] = []
        self._read: set[tuple[int, bool]] = set()
        self._attributes: set[str] = set()
        self._methods: dict[str, list[_Definition]] = {}
        self._method_names: set[str] = set()
        self._draws: list[tuple[ast.Call, _Scope]] = []

    def read(self, definitions: Iterable[_Definition]) -> str:
        """Where a call is unrepeatable, and what to do instead; empty if none is."""
        for definition in definitions:
            self._reach(definition)
        while self._remaining and not self._problem:
            (node, scope), as_sql = self._remaining.pop(0)
            (self._visit_sql if as_sql else self._visit)(node, scope)
        for node, scope in self._draws:
            # The project may have classes with such a method.
            if (name := _last_name(node.func)) not in self._method_names:
                self._report(f"{name}()", _NO_RANDOM, node, scope)
        return self._problem

    def _reach(self, definition: _Definition, *, as_sql: bool = False) -> None:
        key = id(definition.node), as_sql
        if key not in self._read:
            self._read.add(key)
            self._remaining.append((definition, as_sql))

    def _report(self, call: str, advice: str, node: Any, scope: _Scope) -> None:
        self._problem = self._problem or (
            f"`{call}` in {scope.file}, line {node.lineno}, "
            f"gives other rows when a day is computed again: {advice}"
        )

    # --- code ---

    def _visit(self, node: ast.AST, scope: _Scope) -> None:
        """Read what runs when a node is evaluated; of a function, its body."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
                self._visit_definition(node, scope)
            case ast.Call():
                self._visit_call(node, scope)
            case ast.Name() | ast.Attribute():
                self._visit_name(node, scope)
            case _:
                for part in _outer_parts(node):
                    self._visit(part, scope)

    def _visit_definition(self, node: Any, scope: _Scope) -> None:
        for part in _outer_parts(node):
            # `table` and `version_of` declare; they change nothing in the function.
            called = self._library_names(part.func, scope) if isinstance(part, ast.Call) else []
            if not any(name.startswith(f"{_PACKAGE}.") for name in called):
                self._visit(part, scope)
        inner = scope.inner(node)
        for part in inner.body:
            is_method = isinstance(node, ast.ClassDef) and isinstance(part, FUNCTIONS)
            name = getattr(part, "name", "")
            self._method_names |= {name} if is_method else set()
            if not is_method or name.startswith("__") or name in self._attributes:
                self._visit(part, inner)
            else:
                self._methods.setdefault(name, []).append(_Definition(part, inner))

    def _visit_name(self, node: ast.AST, scope: _Scope, arguments: float | None = None) -> None:
        """Read what a name stands for; `arguments` is the number of those that it is called with.

        Methods are read if an attribute of their name is used anywhere.
        """
        base = node
        while isinstance(base, ast.Attribute):
            self._attributes.add(base.attr)
            for method in self._methods.pop(base.attr, ()):
                self._reach(method)
            base = base.value
        if not isinstance(base, ast.Name):
            self._visit(base, scope)
        for target in self._resolve(_dotted_names(node), scope):
            if isinstance(target, str):
                if advice := _unrepeatable_name(target, arguments):
                    shown = target.split(".")[-1 if target.startswith("pyspark.") else -2 :]
                    self._report(f"{'.'.join(shown)}()", advice, node, scope)
                continue
            self._reach(target)
            if scope.is_function and not target.scope.is_function and self._is_generator(target):
                # Its next value depends on what was computed before in the process.
                self._report(ast.unparse(node), _NO_RANDOM, node, scope)

    def _visit_call(self, node: ast.Call, scope: _Scope) -> None:
        values = _argument_values(node)
        self._visit_name(node.func, scope, _count_arguments(node))
        for value in values:
            self._visit(value, scope)
        for name in self._library_names(node.func, scope) if node.args else ():
            self._visit_first_argument(name, node, scope)
        if {_last_name(part) for part in (node.func, *values)} & self.take_sql:
            for value in values:
                self._reach(_Definition(value, scope), as_sql=True)
        if self._draws_rows(node, scope):
            self._draws.append((node, scope))

    def _visit_first_argument(self, name: str, node: ast.Call, scope: _Scope) -> None:
        """Read the function that another one will call, or the text that stands for a time."""
        first, others = node.args[0], _count_arguments(node) - 1
        text = str(first.value) if isinstance(first, ast.Constant) else ""
        top, last = name.partition(".")[0], name.rpartition(".")[2]
        if name == "functools.partial":
            self._visit_name(first, scope, others)
        elif top == "pyspark" and last == "call_function":
            if advice := _unrepeatable_name(f"pyspark.sql.functions.{text}", others):
                self._report(f"{text}()", advice, node, scope)
        elif top in ("numpy", "pandas") and last in _TAKE_TIMES and text in ("now", "today"):
            self._report(ast.unparse(node), _NO_CLOCK, node, scope)

    def _draws_rows(self, node: ast.Call, scope: _Scope) -> bool:
        """Whether a call draws rows of a frame, as far as one can tell without its type."""
        keywords = {keyword.arg for keyword in node.keywords}
        if getattr(node.func, "attr", "") not in _DRAW_ROWS or "random_state" in keywords:
            return False
        if _last_name(node.func) == "sample" and len(node.args) + len(keywords) > 1:
            # `Random.sample` takes a population and a number.
            firsts = self._definitions(node.args[0], scope) if node.args else []
            shares = [part for part, _ in firsts if isinstance(part, ast.Constant)]
            if not any(
                isinstance(share.value, int | float) for share in shares
            ) and not keywords & {"fraction", "frac", "seed", "withReplacement"}:
                return False
        base = _last_name(_base_of(node))
        owner = scope.owner_of(base)
        if owner is None or not owner.is_function:
            return False  # no variable of a module is a frame
        values = owner.names[base]
        return not any(isinstance(value, str) or self._is_generator(value) for value in values)

    # --- names ---

    def _resolve(
        self, names: Sequence[str], scope: _Scope, path: tuple[str, ...] = ()
    ) -> Iterator[_Definition | str]:
        """The definitions that `a.b.c` leads to, and dotted names of libraries."""
        step = f"{id(scope.node)} {names[:1]}"
        if not names or step in path:
            return
        path = (*path, step)
        first, *rest = names
        for target in scope.find_definitions(first):
            if isinstance(target, str):
                yield from self._resolve_import([*target.split("."), *rest], path)
                continue
            yield target
            node, owner = target
            others = [node]
            if isinstance(node, ast.ClassDef) and rest:
                inner = owner.inner(node)
                others = [*node.bases]
                if rest[0] in inner.names:
                    yield from self._resolve(rest, inner, path)
            for names_of_other in filter(None, map(_dotted_names, others)):
                yield from self._resolve([*names_of_other, *rest], owner, path)

    def _resolve_import(
        self, names: Sequence[str], path: tuple[str, ...]
    ) -> Iterator[_Definition | str]:
        for length in range(len(names) - 1, 0, -1):
            module = self._code.module_scope(".".join(names[:length]))
            if module and module.find_definitions(names[length]):
                yield from self._resolve(names[length:], module, path)
                return
        yield ".".join(names)

    def _library_names(self, node: ast.AST, scope: _Scope) -> list[str]:
        """The dotted names of libraries that an expression stands for."""
        targets = self._resolve(_dotted_names(node), scope)
        return [target for target in targets if isinstance(target, str)]

    def _definitions(self, node: ast.AST, scope: _Scope) -> list[_Definition]:
        """The definitions in the project that an expression stands for, and itself."""
        targets = self._resolve(_dotted_names(node), scope)
        definitions = [target for target in targets if not isinstance(target, str)]
        return [_Definition(node, scope), *definitions]

    def _is_generator(self, definition: _Definition) -> bool:
        """Whether it makes a generator of random numbers, or a method of one."""
        node, scope = definition
        while isinstance(node, ast.Attribute):
            node = node.value
        names = self._library_names(node.func, scope) if isinstance(node, ast.Call) else ()
        return any(n.startswith(_RANDOM) and n.rpartition(".")[2] in _GENERATORS for n in names)

    # --- SQL ---

    def _visit_sql(self, node: ast.AST, scope: _Scope) -> None:
        """Read the texts that make up an expression which Spark takes as SQL."""
        pieces = [*_sql_pieces(node)]
        text = "".join(piece if isinstance(piece, str) else "?" for piece in pieces)
        for call, advice in _unrepeatable_sql(text):
            self._report(call, advice, node, scope)
        for piece in pieces:
            match piece:
                case ast.Name() | ast.Attribute():
                    self._visit_sql_name(piece, scope)
                case ast.Call():
                    self._visit_sql_call(piece, scope)
                case ast.expr() if isinstance(piece, _COMPOUNDS):
                    for part in ast.iter_child_nodes(piece):
                        self._visit_sql(part, scope)

    def _visit_sql_name(self, node: ast.AST, scope: _Scope) -> None:
        base = _last_name(_base_of(node))
        owner = scope.owner_of(base)
        if owner and base in owner.parameters:
            self.take_sql |= _names_of(owner)
            if owner.outer and isinstance(owner.outer.node, ast.ClassDef):
                # An attribute of `self`: of the class, or of what an object is made of.
                self.take_sql |= _names_of(owner.outer)
                node, scope = ast.copy_location(ast.Name(_last_name(node)), node), owner.outer
        for definition in self._definitions(node, scope)[1:]:
            self._reach(definition, as_sql=True)
            value = getattr(sys.modules.get(definition.scope.module), _last_name(node), None)
            if isinstance(value, str):  # read from a file, say
                self._visit_sql(ast.copy_location(ast.Constant(value), node), scope)

    def _visit_sql_call(self, node: ast.Call, scope: _Scope) -> None:
        """Read a call that makes a text: a method of one, or a function of the project."""
        names = self._library_names(_base_of(node), scope)
        if any(name.startswith("pyspark.") for name in names):
            return  # a column, with values in it
        if isinstance(node.func, ast.Attribute):
            self._visit_sql(node.func.value, scope)
        for function, outer in self._definitions(node.func, scope)[1:]:
            if isinstance(function, FUNCTIONS):
                inner = outer.inner(function)
                for value in _returned_values(inner):
                    self._reach(_Definition(value, inner), as_sql=True)
        for value in _argument_values(node):
            self._visit_sql(value, scope)


def _returned_values(scope: _Scope) -> list[ast.AST]:
    """The expressions that a function returns."""
    if isinstance(scope.node, ast.Lambda):
        return scope.body
    returns = [part for part in _walk_scope(scope.body) if isinstance(part, ast.Return)]
    return [part.value for part in returns if part.value]


def _last_name(node: ast.AST) -> str:
    """The name of a function or method, without what it belongs to."""
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _names_of(scope: _Scope) -> set[str]:
    """The names of a function or a class in the scope around it."""
    return {
        name
        for name, targets in (scope.outer.names.items() if scope.outer else ())
        if any(not isinstance(target, str) and target.node is scope.node for target in targets)
    }


def _unrepeatable_name(name: str, arguments: float | None) -> str:
    """What to do instead of a function of a library that gives other values each time.

    `arguments` is the number of those that it is called with, None if it is not called here.
    """
    last = name.rpartition(".")[2]
    if name.startswith("pyspark."):
        if last in _SPARK_CLOCKS or (last == "unix_timestamp" and arguments == 0):
            return _NO_CLOCK
        return _NO_RANDOM if last in _SPARK_RANDOM | _DRAW_ROWS else ""
    is_random = name.startswith(_RANDOM)
    limit = _CLOCKS.get(name, math.inf)
    if is_random and last != "SystemRandom" and (last[0].isupper() or last == "default_rng"):
        limit = 1  # a class of generators, or of their states, takes a seed
    elif not is_random and name not in _CLOCKS and ("." not in name or last not in _CLOCK_NAMES):
        return ""
    if limit < math.inf if arguments is None else arguments >= limit:
        return ""
    return _NO_RANDOM if is_random else _NO_CLOCK


def _sql_pieces(node: ast.AST) -> Iterator[str | ast.AST]:
    """The texts of an expression that makes a text, and the expressions between them."""
    if isinstance(node, ast.JoinedStr | ast.FormattedValue | ast.BinOp):
        for part in ast.iter_child_nodes(node):
            yield from _sql_pieces(part) if isinstance(part, ast.expr) else ()
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    else:
        yield node


def _unrepeatable_sql(text: str) -> Iterator[tuple[str, str]]:
    """What reads the clock or takes random values in SQL, and what to do instead."""
    sql = _SQL_QUOTED.sub("''", text)
    for name, is_empty in _SQL_CALL.findall(sql):
        if advice := _unrepeatable_name(f"pyspark.{name.lower()}", 0 if is_empty else 1):
            yield f"{name}()", advice
    for word, is_sample in _SQL_WORD.findall(sql):
        yield word, _NO_RANDOM if is_sample else _NO_CLOCK
    for time in _SQL_TIME.findall(text):
        yield f"{time}'", _NO_CLOCK
