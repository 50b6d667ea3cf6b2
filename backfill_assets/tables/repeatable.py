"""Repeatable functions of tables: no clock, and no random values without a seed."""

import ast
import inspect
import re
import textwrap
import time
from collections.abc import Callable, Iterator
from datetime import date, datetime
from typing import Any

from backfill_assets.spark.processes import pause_gc
from backfill_assets.tables.arguments import is_user_code

#: Functions of Python that read the clock.
_CLOCKS = (date.today, datetime.now, datetime.today, datetime.utcnow, time.time, time.time_ns)
#: Functions of Spark that read the clock.
_SPARK_CLOCKS = {"curdate", "current_date", "current_timestamp", "localtimestamp", "now"}
#: Functions of Spark that return other values each time, by the number of arguments with a seed.
_SPARK_RANDOM = {"rand": 1, "randn": 1, "randstr": 2, "shuffle": 2, "uniform": 3, "uuid": 1}
#: Modules of Python whose functions return other values each time.
_RANDOM_MODULES = ("random", "secrets", "uuid")
#: Functions and methods of Spark that take SQL.
_TAKE_SQL = {"expr", "filter", "selectExpr", "sql", "where"}
_SQL_CLOCK = re.compile(
    rf"\b({'|'.join(sorted(_SPARK_CLOCKS))})\s*\(\s*\)|\bcurrent_(date|timestamp)\b", re.IGNORECASE
)
_SQL_RANDOM = re.compile(r"\b(rand|randn|random|uuid)\s*\(\s*\)", re.IGNORECASE)
_NO_CLOCK = "take the day from the column `for_day` of an input"
_NO_RANDOM = "take a hash of the key and a seed, as `F.xxhash64('id', F.lit(7))`"


def find_unrepeatable_call(function: Callable[..., Any]) -> str:
    """Where a function reads the clock or takes random values without a seed; empty if it does not.

    A run of the same day would give other rows. Functions of the user that it calls by their name
    are read as well.

    Returns:
        The call, its file and line, and what to do instead.
    """
    functions = [function]
    for called_function in functions:
        for node in _list_calls(called_function):
            callee = _resolve_callee(node, called_function)
            if problem := _unrepeatable_call(node, callee):
                call, advice = problem
                code = called_function.__code__
                return (
                    f"{call} in {code.co_filename}, line {code.co_firstlineno + node.lineno - 1}, "
                    f"gives other rows each time a day is computed: {advice}"
                )
            if (
                inspect.isfunction(callee)
                and callee not in functions
                and is_user_code(callee.__code__.co_filename)
            ):
                functions.append(callee)
    return ""


def _list_calls(function: Callable[..., Any]) -> Iterator[ast.Call]:
    """The calls in a function's body; none if its source is not known."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
        # Python 3.11 fails if a finalizer prints a traceback while `ast.parse` runs.
        with pause_gc():
            (definition,) = ast.parse(source).body
    except (OSError, SyntaxError, ValueError):
        return
    for statement in getattr(definition, "body", ()):
        yield from (node for node in ast.walk(statement) if isinstance(node, ast.Call))


def _resolve_callee(node: ast.Call, function: Callable[..., Any]) -> Any:
    """What a call calls, if its name leads there from the module; else None."""
    names, callee = [], node.func
    while isinstance(callee, ast.Attribute):
        names.append(callee.attr)
        callee = callee.value
    if not isinstance(callee, ast.Name):
        return None
    value = function.__globals__.get(callee.id)
    for name in reversed(names):
        # Only where nothing is computed: an attribute may be a property.
        is_namespace = inspect.ismodule(value) or inspect.isclass(value)
        value = getattr(value, name, None) if is_namespace else None
    return value


def _unrepeatable_call(node: ast.Call, callee: Any) -> tuple[str, str] | None:
    """The name of a call that gives other values each time, and what to do instead."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name in _TAKE_SQL:
        return _unrepeatable_sql(node)
    if inspect.isbuiltin(callee) and callee in _CLOCKS:
        return f"`{callee.__qualname__}()`", _NO_CLOCK
    module = (
        getattr(callee, "__module__", None) or type(getattr(callee, "__self__", None)).__module__
    )
    if module in _RANDOM_MODULES and not inspect.isclass(callee):
        return f"`{module}.{callee.__name__}()`", _NO_RANDOM
    if not module.startswith("pyspark.sql"):
        return None
    name, arguments = callee.__name__, len(node.args) + len(node.keywords)
    if name in _SPARK_CLOCKS or (name == "unix_timestamp" and not arguments):
        return f"`{name}()`", _NO_CLOCK
    if arguments < _SPARK_RANDOM.get(name, 0):
        return f"`{name}` without a seed", _NO_RANDOM
    return None


def _unrepeatable_sql(node: ast.Call) -> tuple[str, str] | None:
    """The same of the SQL that a call is given as text."""
    for argument in node.args:
        for part in ast.walk(argument):
            text = part.value if isinstance(part, ast.Constant) else ""
            for pattern, advice in ((_SQL_CLOCK, _NO_CLOCK), (_SQL_RANDOM, _NO_RANDOM)):
                if isinstance(text, str) and (match := pattern.search(text)):
                    return f"`{match[0]}`", advice
    return None
