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

from backfill_assets.tables.lookups import ANSWER_CHECKS, Lookup

#: What a message shows of a value at most.
_SHOWN = 40


class WrongAnswerError(ValueError):
    """An answer is none: it is not kept, and the request is tried again."""


def parse_answer(lookup: Lookup, request: Mapping[str, Any], body: bytes) -> dict[str, Any]:
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
        content = json.loads(body, parse_float=Decimal, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise WrongAnswerError("an answer that is no JSON") from error
    try:
        fields = lookup.read(content) if lookup.read else content
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise WrongAnswerError(f"an answer in another form ({type(error).__name__})") from error
    if not isinstance(fields, Mapping):
        raise WrongAnswerError("an answer that is no JSON object")
    values = {
        name: _parse_column(lookup, name, fields.get(name))
        for name in lookup.columns.keys() & fields
    }
    for name in lookup.request:
        if name in values and values[name] != request[name]:
            raise WrongAnswerError(
                f"an answer to another request: {name} is {_shorten_value(fields[name])}"
            )
    answer = {n: values.get(n) for n in lookup.columns if n not in lookup.request}
    for column in lookup.struct:
        if column.name in answer and answer[column.name] is None and not column.nullable:
            raise WrongAnswerError(f"an answer without {column.name}")
    return answer


def empty_answer(lookup: Lookup) -> dict[str, None]:
    """What is kept where the service knows of no answer."""
    return {name: None for name in lookup.columns if name not in lookup.request}


def _reject_constant(text: str) -> Any:
    raise ValueError(text)


def _parse_column(lookup: Lookup, name: str, raw_value: Any) -> Any:
    """A value as its column has it."""
    if raw_value is None:
        return None
    column = lookup.columns[name]
    kind = column.dtype.type
    try:
        value = _PARSERS[type(kind)](raw_value, kind)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise WrongAnswerError(
            f"{name} is {_shorten_value(raw_value)}, which is no {kind.simpleString()}"
        ) from error
    for check in column.checks:
        parameter, sign, passes = ANSWER_CHECKS[check.name]
        bound = check.statistics[parameter]
        if not passes(value, bound):
            raise WrongAnswerError(
                f"{name} is {_shorten_value(raw_value)}, which is not {sign} {bound}"
            )
    return value


def _shorten_value(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _parse_text(raw_value: Any, _: Any) -> str:
    if not isinstance(raw_value, str):
        raise TypeError
    raw_value.encode()  # a lone surrogate is no text
    return raw_value


def _parse_long(raw_value: Any, _: Any) -> int:
    if (
        isinstance(raw_value, bool)
        or not isinstance(raw_value, int)
        or not -(2**63) <= raw_value < 2**63
    ):
        raise TypeError
    return raw_value


def _parse_boolean(raw_value: Any, _: Any) -> bool:
    if not isinstance(raw_value, bool):
        raise TypeError
    return raw_value


def _parse_decimal(raw_value: Any, kind: T.DecimalType) -> Decimal:
    """A number that has no more decimals than its column: nothing is rounded in silence."""
    if isinstance(raw_value, bool) or not isinstance(raw_value, str | int | Decimal):
        raise TypeError
    if isinstance(raw_value, str) and not re.fullmatch(r"-?\d+(\.\d+)?", raw_value, re.ASCII):
        raise ValueError
    try:
        value = Decimal(raw_value)
        rounded = value.quantize(Decimal(1).scaleb(-kind.scale))
    except InvalidOperation as error:
        raise ValueError from error
    if rounded != value or len(rounded.as_tuple().digits) > kind.precision:
        raise ValueError
    return rounded


def _parse_double(raw_value: Any, _: Any) -> float:
    if isinstance(raw_value, bool) or not isinstance(raw_value, int | Decimal):
        raise TypeError
    value = float(raw_value)
    if not math.isfinite(value):
        raise ValueError
    return value


def _parse_date(raw_value: Any, _: Any) -> date:
    if not isinstance(raw_value, str) or not re.fullmatch(
        r"\d{4}-\d{2}-\d{2}", raw_value, re.ASCII
    ):
        raise ValueError
    return date.fromisoformat(raw_value)


def _parse_timestamp(raw_value: Any, _: Any) -> datetime:
    """In UTC; without an offset it is UTC already, as in the landing."""
    if not isinstance(raw_value, str):
        raise TypeError
    value = datetime.fromisoformat(raw_value)
    return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)


_PARSERS: Mapping[type, Callable[[Any, Any], Any]] = {
    T.StringType: _parse_text,
    T.LongType: _parse_long,
    T.BooleanType: _parse_boolean,
    T.DecimalType: _parse_decimal,
    T.DoubleType: _parse_double,
    T.DateType: _parse_date,
    T.TimestampType: _parse_timestamp,
}
