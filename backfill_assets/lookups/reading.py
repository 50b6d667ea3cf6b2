"""From the text of an answer to the values of its columns, or to what is wrong with it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal, InvalidOperation
from typing import Any

import pyspark.sql.types as T

from backfill_assets.tables.lookups import CHECKS, Lookup

#: What a message shows of a value at most.
_SHOWN = 40


class WrongAnswerError(ValueError):
    """An answer is none: it is not kept, and the request is tried again."""


def answer_of(lookup: Lookup, request: Mapping[str, Any], body: bytes) -> dict[str, Any]:
    """The columns of the answer.

    Args:
        lookup: whose model the answer must have.
        request: the values that were asked for.
        body: what came.

    Raises:
        WrongAnswerError: it is no JSON, lacks a column, breaks the model, or answers another
            request.
    """
    try:
        said = json.loads(body, parse_float=Decimal, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise WrongAnswerError("an answer that is no JSON") from error
    try:
        found = lookup.read(said) if lookup.read else said
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise WrongAnswerError(f"an answer in another form ({type(error).__name__})") from error
    if not isinstance(found, Mapping):
        raise WrongAnswerError("an answer that is no JSON object")
    values = {
        name: _column(lookup, name, found.get(name)) for name in lookup.columns.keys() & found
    }
    for name in lookup.request:
        if name in values and values[name] != request[name]:
            raise WrongAnswerError(f"an answer to another request: {name} is {_shown(found[name])}")
    answer = {n: values.get(n) for n in lookup.columns if n not in lookup.request}
    for column in lookup.struct:
        if column.name in answer and answer[column.name] is None and not column.nullable:
            raise WrongAnswerError(f"an answer without {column.name}")
    return answer


def nothing(lookup: Lookup) -> dict[str, None]:
    """What is kept where the service knows of no answer."""
    return {name: None for name in lookup.columns if name not in lookup.request}


def _no_number(text: str) -> Any:
    raise ValueError(text)


def _column(lookup: Lookup, name: str, given: Any) -> Any:
    """A value as its column has it."""
    if given is None:
        return None
    column = lookup.columns[name]
    kind = column.dtype.type
    try:
        value = _READERS[type(kind)](given, kind)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise WrongAnswerError(
            f"{name} is {_shown(given)}, which is no {kind.simpleString()}"
        ) from error
    for check in column.checks:
        parameter, sign, passes = CHECKS[check.name]
        bound = check.statistics[parameter]
        if not passes(value, bound):
            raise WrongAnswerError(f"{name} is {_shown(given)}, which is not {sign} {bound}")
    return value


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _text(given: Any, _: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    given.encode()  # a lone surrogate is no text
    return given


def _long(given: Any, _: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not -(2**63) <= given < 2**63:
        raise TypeError
    return given


def _boolean(given: Any, _: Any) -> bool:
    if not isinstance(given, bool):
        raise TypeError
    return given


def _decimal(given: Any, kind: T.DecimalType) -> Decimal:
    """A number that has no more decimals than its column: nothing is rounded in silence."""
    if isinstance(given, bool) or not isinstance(given, str | int | Decimal):
        raise TypeError
    if isinstance(given, str) and not re.fullmatch(r"-?\d+(\.\d+)?", given, re.ASCII):
        raise ValueError
    try:
        value = Decimal(given)
        placed = value.quantize(Decimal(1).scaleb(-kind.scale))
    except InvalidOperation as error:
        raise ValueError from error
    if placed != value or len(placed.as_tuple().digits) > kind.precision:
        raise ValueError
    return placed


def _double(given: Any, _: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | Decimal):
        raise TypeError
    value = float(given)
    if not math.isfinite(value):
        raise ValueError
    return value


def _date(given: Any, _: Any) -> date:
    if not isinstance(given, str) or not re.fullmatch(r"\d{4}-\d{2}-\d{2}", given, re.ASCII):
        raise ValueError
    return date.fromisoformat(given)


def _timestamp(given: Any, _: Any) -> datetime:
    """In UTC; without an offset it is UTC already, as in the landing."""
    if not isinstance(given, str):
        raise TypeError
    value = datetime.fromisoformat(given)
    return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)


_READERS: Mapping[type, Callable[[Any, Any], Any]] = {
    T.StringType: _text,
    T.LongType: _long,
    T.BooleanType: _boolean,
    T.DecimalType: _decimal,
    T.DoubleType: _double,
    T.DateType: _date,
    T.TimestampType: _timestamp,
}
