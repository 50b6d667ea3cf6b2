"""The columns of a table: types, checks as SQL conditions, bounds on nulls, JSON, schema changes.

A condition is a CHECK constraint of the Delta table, and the audit counts the rows that break it.
A line of a source that breaks it is rejected. `delta.migrate` changes a table on disk to the
columns of its model.

A rule of a row is a SQL condition: Delta has it as a CHECK constraint, and the audit counts the
rows that break it. A condition over several rows is a function that returns the forbidden rows.
"""

import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.spark.frames import quote_name
from backfill_assets.tables.arguments import Argument, check_arguments, is_date, is_share, is_text

#: The option in the metadata of a column that holds JSON text.
_JSON = "json"


def nullable_column(warn: float, error: float, description: str) -> Any:
    """A column that may be null: the *rate* of nulls in a day is bounded instead.

    Args:
        warn: a day with a larger share of nulls (0 to 1) is published with a warning.
        error: a day with a larger share of nulls is not published.
        description: the meaning of the column.

    Raises:
        DeclarationError: a value is not a share, or `warn` is larger than `error`.
    """
    check_arguments("nullable_column", bounds_arguments(warn, error, description))
    return Field(
        nullable=True, description=description, metadata={"null_warn": warn, "null_error": error}
    )


def bounds_arguments(warn: Any, error: Any, description: Any) -> list[Argument]:
    """The arguments that every nullable column has."""
    return [
        Argument("warn", warn, is_share, "a share of nulls from 0 to 1"),
        Argument(
            "error",
            error,
            lambda x: is_share(x) and (not is_share(warn) or x >= warn),
            "a share of nulls from 0 to 1, no smaller than that of the warning",
        ),
        Argument("the description", description, lambda x: isinstance(x, str), "a text"),
    ]


@dataclass(frozen=True)
class NullBounds:
    """The largest shares of nulls (0 to 1) without a warning, and without an error."""

    warn: float
    error: float


def nullable_bounds(column: Any) -> NullBounds:
    """The bounds of a nullable pandera column; any share, if it has none."""
    metadata = column.metadata or {}
    return NullBounds(metadata.get("null_warn", 1.0), metadata.get("null_error", 1.0))


def json_column(description: str, *, optional: bool = False) -> Any:
    """A string column of a line that holds a nested value as JSON text, as the line has it.

    Args:
        description: the meaning of the column.
        optional: whether it may be null, in any share of the lines.
    """
    bounds = {"null_warn": 1.0, "null_error": 1.0} if optional else {}
    return Field(nullable=optional, description=description, metadata={**bounds, _JSON: True})


def holds_json(column: Any) -> bool:
    """Whether a pandera column was declared by `json_column`."""
    return bool((column.metadata or {}).get(_JSON))


def count_items(text: Column) -> Column:
    """The number of items of a JSON array; 0 of null, and 1 of other text, so that it counts."""
    is_empty = F.trim(text).rlike(r"\A\[\s*\]\z")
    counted = F.greatest(F.coalesce(F.json_array_length(text), F.lit(1)), F.lit(1))
    return F.when(text.isNull() | is_empty, F.lit(0)).otherwise(counted)


#: By type of a column, the Python types of a value that it can be compared with.
_VALUE_TYPES: Mapping[type[T.DataType], tuple[tuple[type, ...], str]] = {
    T.IntegralType: ((int, float, Decimal), "a number"),
    T.DecimalType: ((int, float, Decimal), "a number"),
    T.FractionalType: ((int, float, Decimal), "a number"),
    T.StringType: ((str,), "a text"),
    T.DateType: ((date,), "a date"),
    T.TimestampType: ((datetime,), "a datetime"),
    T.BooleanType: ((bool,), "true or false"),
}


def _comparison_condition(sign: str, value: str) -> Callable[[str, Mapping[str, Any]], str]:
    return lambda name, statistics: f"{name} {sign} {_sql_literal(statistics[value])}"


def _range_condition(name: str, statistics: Mapping[str, Any]) -> str:
    lower_sign = ">=" if statistics.get("include_min", True) else ">"
    upper_sign = "<=" if statistics.get("include_max", True) else "<"
    low, high = _sql_literal(statistics["min_value"]), _sql_literal(statistics["max_value"])
    return f"{name} {lower_sign} {low} AND {name} {upper_sign} {high}"


def _membership_condition(sign: str, values: str) -> Callable[[str, Mapping[str, Any]], str]:
    return lambda name, statistics: (
        f"{name} {sign} ({', '.join(_sql_literals(statistics[values]))})"
    )


def _match_condition(name: str, statistics: Mapping[str, Any]) -> str:
    # As in pandera, the pattern must match at the start of the value.
    return f"{name} RLIKE {_sql_literal(f'^(?:{_pattern_text(statistics)})')}"


def _length_condition(name: str, statistics: Mapping[str, Any]) -> str:
    signs = {"exact_value": "=", "min_value": ">=", "max_value": "<="}
    return " AND ".join(
        f"length({name}) {sign} {statistics[value]}"
        for value, sign in signs.items()
        if statistics.get(value) is not None
    )


#: A part of a pattern; it is a group if Java reads it otherwise than Python, or not at all.
_PATTERN_PART = re.compile(
    # Escapes: the end, `\v` (to Java any vertical space), and numbers that are octal to one alone.
    r"(\\(?:[ZvU]|0(?![0-7]{1,2}(?![0-7]))|[1-7][0-7]{2}))|\\(?:N\{[^}]*\}|.)"
    # Classes of characters: to Java, `[` begins one within, and `&&` is the intersection.
    r"|(\[\^?\]?(?:\\.|[^]\\])*?(?:\[|&&|\\[bvU1-9]|\\0(?![0-7]))(?:\\.|[^]\\])*\])"
    r"|\[\^?\]?(?:\\.|[^]\\])*\]"
    # Groups that begin otherwise than those that both have.
    r"|(\(\?(?!:|<?[=!]|>|[imsu]*(?:-[imsx]+)?[:)])P?\w*.)"
    # A brace that is no repetition to Java.
    r"|(\{(?!\d+(?:,\d*)?\})[^}]*\}?)|.",
    re.DOTALL,
)
#: By pandera check, its SQL condition for a column.
_CONDITIONS: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    "greater_than": _comparison_condition(">", "min_value"),
    "greater_than_or_equal_to": _comparison_condition(">=", "min_value"),
    "less_than": _comparison_condition("<", "max_value"),
    "less_than_or_equal_to": _comparison_condition("<=", "max_value"),
    "equal_to": _comparison_condition("=", "value"),
    "not_equal_to": _comparison_condition("<>", "value"),
    "in_range": _range_condition,
    "isin": _membership_condition("IN", "allowed_values"),
    "notin": _membership_condition("NOT IN", "forbidden_values"),
    "str_matches": _match_condition,
    "str_contains": lambda name, statistics: (
        f"{name} RLIKE {_sql_literal(_pattern_text(statistics))}"
    ),
    "str_startswith": lambda name, statistics: (
        f"startswith({name}, {_sql_literal(statistics['string'])})"
    ),
    "str_endswith": lambda name, statistics: (
        f"endswith({name}, {_sql_literal(statistics['string'])})"
    ),
    "str_length": _length_condition,
}
#: The supported checks, as a declaration writes them.
ALLOWED_CHECKS = (
    "gt, ge, lt, le, eq, ne, in_range, isin, notin, str_matches, str_contains, str_startswith, "
    "str_endswith and str_length"
)


#: Words that SQL takes for something else than the name of a column; delta-rs, too, for the times.
_CURRENT = ("current_path", "current_date", "current_time", "current_timestamp")
_SQL_WORDS = ("null", "true", "false", "not", "from", "select", "values", *_CURRENT)


def _sql_name(name: str) -> str:
    """The name of a column in a condition: as it is where SQL reads it so, else quoted."""
    is_plain = name.isidentifier() and name.isascii() and name.lower() not in _SQL_WORDS
    return name if is_plain else quote_name(name)


def sql_conditions(name: str, column: Any) -> dict[str, str]:
    """The checks of a pandera column as SQL conditions, by the name of the constraint."""
    sql_name = _sql_name(name)
    # A condition that is null does not hold.
    null = f"{sql_name} IS NULL OR " if column.nullable else ""
    return {
        f"{name}_{check.name}": f"{null}{_sql_condition(sql_name, column.dtype.type, check)}"
        for check in column.checks
    }


def _sql_condition(name: str, kind: T.DataType, check: Any) -> str:
    """A check as a SQL condition; NaN is within no bounds and equals no value."""
    statistics = check.statistics
    if isinstance(kind, T.FloatType):
        statistics = {option: _as_float(value) for option, value in statistics.items()}
    condition = _CONDITIONS[check.name](name, statistics)
    # For Spark, NaN is greater than any number.
    lower_bound = check.name in ("greater_than", "greater_than_or_equal_to")
    is_floating = isinstance(kind, T.FloatType | T.DoubleType)
    return f"{condition} AND NOT isnan({name})" if lower_bound and is_floating else condition


def _as_float(value: Any) -> Any:
    """A number, or a list of them, as a FLOAT column has it, with which Spark compares as doubles.

    So 0.1 is 0.10000000149011612, as it is in a row.
    """
    if isinstance(value, float | Decimal):
        return struct.unpack("f", struct.pack("f", value))[0]
    is_list = isinstance(value, Iterable) and not isinstance(value, str)
    return [_as_float(item) for item in value] if is_list else value


def wrong_checks(columns: Mapping[str, Any]) -> list[str]:
    """The checks of a model's columns that are not supported, one sentence each."""
    return [
        sentence
        for name, column in columns.items()
        for check in column.checks
        for sentence in _wrong_check(name, column.dtype.type, check)
    ]


def _wrong_check(name: str, kind: T.DataType, check: Any) -> Iterable[str]:
    """Yield the errors in one check of a column, one sentence each; nothing if it is supported."""
    if check.name not in _CONDITIONS:
        yield (
            f"{name} has the check {check.name}, and a column has {ALLOWED_CHECKS}: write it as "
            "one of the table's rules={...}"
        )
        return
    if getattr(check, "raise_warning", False):
        yield f"{name} has raise_warning, and a row that breaks a check is no warning: leave it out"
    statistics = check.statistics
    if check.name.startswith("str_"):
        if not isinstance(kind, T.StringType):
            yield f"{name} has the check {check.name}, and is {kind.simpleString()}, not a string"
        if problem := _wrong_text(statistics):
            yield f"{name} has the check {check.name} with {problem}"
        return
    texts = [
        text
        for name, text in statistics.items()
        if name.endswith("_values") and isinstance(text, str)
    ]
    if texts:
        yield f"{name} has the check {check.name} with {texts[0]!r}: give a list of values"
        return
    if not _compared_values(statistics):
        yield f"{name} has the check {check.name} of no value"
    for value in _compared_values(statistics):
        if wrong := wrong_value(kind, value):
            yield f"{name} has the check {check.name} with {value!r}: {wrong}"


def wrong_value(kind: T.DataType, value: Any) -> str:
    """Why a column of a type cannot have a value; empty if it can."""
    types, allowed = next(
        (allowed for column_type, allowed in _VALUE_TYPES.items() if isinstance(kind, column_type)),
        ((), ""),
    )
    if not allowed:
        return f"the column is {kind.simpleString()}, for which no value can be given"
    # Python counts a bool as an int, and a datetime as a date.
    fits = isinstance(value, types) and (bool in types or not isinstance(value, bool))
    fits = fits and (datetime in types or not isinstance(value, datetime))
    finite = not isinstance(value, float | Decimal) or math.isfinite(value)
    return "" if fits and finite else f"the column is {kind.simpleString()}: give {allowed}"


def _compared_values(statistics: Mapping[str, Any]) -> list[Any]:
    value_lists = [values for name, values in statistics.items() if name.endswith("_values")]
    single = ("min_value", "max_value", "value")
    return [x for values in value_lists for x in values] + [
        statistics[n] for n in single if n in statistics
    ]


def _pattern_text(statistics: Mapping[str, Any]) -> Any:
    return getattr(statistics["pattern"], "pattern", statistics["pattern"])


def _wrong_text(statistics: Mapping[str, Any]) -> str:
    """Why a check of texts cannot be evaluated; empty if it can."""
    if "string" in statistics and not isinstance(statistics["string"], str):
        return f"{statistics['string']!r}: give a text"
    if lengths := [
        n for name, n in statistics.items() if name.endswith("_value") and n is not None
    ]:
        wrong = [n for n in lengths if type(n) is not int or n < 0]
        return f"{wrong[0]!r}: give a whole number of characters" if wrong else ""
    if "pattern" not in statistics:
        return ""
    pattern, text = statistics["pattern"], _pattern_text(statistics)
    if not isinstance(text, str):
        return f"{text!r}: give a pattern of text"
    if isinstance(pattern, re.Pattern) and pattern.flags & ~re.UNICODE:
        return f"the flags of {pattern.pattern!r}: write them into the pattern, as (?i)"
    parts = _PATTERN_PART.finditer(text)
    if construct := next((part[0] for part in parts if part.lastindex), ""):
        return (
            f"{construct!r} in a pattern, which Java reads otherwise than Python: write it so that "
            "both take it for the same"
        )
    return ""


#: The most digits of a literal that is a DECIMAL for Spark.
_MOST_DIGITS = 38


def _sql_literals(values: Iterable[Any]) -> list[str]:
    """Values as SQL literals; those of a set are sorted."""
    literals = map(_sql_literal, values)
    return sorted(literals) if isinstance(values, Set) else [*literals]


def _sql_literal(value: Any) -> str:
    """Return a Python value as a SQL literal; a datetime without a zone counts as UTC."""
    if isinstance(value, str):
        escaped = str.__str__(value).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value
        return f"TIMESTAMP'{moment.replace(tzinfo=None)}+00:00'"
    if isinstance(value, date):
        return f"DATE'{value}'"
    if isinstance(value, float | Decimal):
        text = f"{Decimal(str(value)):f}"
        digits = text.lstrip("-0").replace(".", "")
        return text if len(digits) <= _MOST_DIGITS else f"{float(value)!r}D"
    return str(value)


#: Integer types, the narrowest first.
_WHOLE_TYPES = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
#: Options in the metadata of a column.
_RENAMED, _GAP = "renamed_from", "gap"


@dataclass(frozen=True)
class ColumnGap:
    """The days before the source had a column, and the value of the column on them.

    `since` is the first day with values of the source; a `default` of None means null.
    """

    since: date
    default: Any

    @property
    def description_text(self) -> str:
        """The gap in one sentence, for the description of the column."""
        value = "null" if self.default is None else repr(self.default)
        return f"The source has it since {self.since}; on the days before it is {value}."


def added_column(
    default: Any, since: date, description: str, *, warn: float = 1.0, error: float = 1.0
) -> Any:
    """A column that the source has since a day; on the days before, a default replaces null.

    A value that the table's function returns for the days before is not replaced.

    Args:
        default: the value in place of null on the days before; None if it stays null.
        since: the first day of the table with values of the source.
        description: the meaning of the column. A sentence about the gap is appended.
        warn: a day with a larger share of nulls (0 to 1) is published with a warning.
        error: a day with a larger share of nulls is not published.

    Raises:
        DeclarationError: `since` is not a date, or a value is not a share.
    """
    since_date = Argument("since", since, is_date, "a date, as date(2025, 3, 20)")
    check_arguments("added_column", [since_date, *bounds_arguments(warn, error, description)])
    gap = ColumnGap(since, default)
    return Field(
        nullable=True,
        description=f"{description} {gap.description_text}",
        metadata={"null_warn": warn, "null_error": error, _GAP: gap},
    )


def gap_of(column: Any) -> ColumnGap | None:
    """The gap of a pandera column that was declared by `added_column`."""
    return (column.metadata or {}).get(_GAP)


def gaps_of(columns: Mapping[str, Any]) -> dict[str, ColumnGap]:
    """The gaps by column, without columns that have none."""
    return {name: gap for name, column in columns.items() if (gap := gap_of(column))}


def renamed_from(column: Any) -> str | None:
    """The previous name of a pandera column; None if its metadata has no `renamed_from`."""
    return (column.metadata or {}).get(_RENAMED)


def wrong_schema(columns: Mapping[str, Any]) -> list[str]:
    """The errors in a model's renames and gaps, one sentence each."""
    problems = []
    for name, column in columns.items():
        default = gap.default if (gap := gap_of(column)) else None
        if isinstance(default, str) and not _parses_as(default, column.dtype.type):
            kind = column.dtype.type.simpleString()
            problems.append(f"{name} is added with the default {default!r}, which is no {kind}")
        if (old := renamed_from(column)) is not None and (not isinstance(old, str) or old == name):
            problems.append(f'"{_RENAMED}" of {name} is {old!r}, not the name that it had before')
        elif old in columns:
            problems.append(f'"{_RENAMED}" of {name} is {old!r}, which the model still has')
    return problems


def _parses_as(text: str, kind: T.DataType) -> bool:
    """Whether a cast of a text to a type succeeds; true also if that is not known."""
    try:
        if isinstance(kind, T.NumericType):
            Decimal(text)
        elif isinstance(kind, T.DateType):
            date.fromisoformat(text)
    except (ArithmeticError, ValueError):
        return False
    return True


def with_defaults(frame: DataFrame, partition: str, columns: Mapping[str, Any]) -> DataFrame:
    """A frame with the defaults of its columns on the days before their source had them."""
    filled = {
        name: fill_default(F.col(name), partition, gap, column.dtype.type)
        for name, column in columns.items()
        if (gap := gap_of(column)) and gap.default is not None
    }
    return frame.withColumns(filled) if filled else frame


def fill_default(column: Column, partition: str, gap: ColumnGap, kind: Any) -> Column:
    """A column with its default where it is null on a day of its gap."""
    before = F.col(partition) < F.lit(gap.since)
    return F.when(before, F.coalesce(column, F.lit(gap.default).cast(kind))).otherwise(column)


def convert_columns(frame: DataFrame, partition: str, columns: Mapping[str, Any]) -> DataFrame:
    """Rows that were written before schema changes, in the current columns.

    Renamed columns get their new names and widened ones their new types. A nullable column that is
    missing is null, or its default on the days of its gap.
    """
    types = {column.name: column.dataType for column in frame.schema}

    def convert_column(name: str, column: Any) -> Column:
        kind, old = column.dtype.type, renamed_from(column)
        source = name if name in types or old not in types else old
        if source not in types:
            return F.lit(None).cast(kind) if column.nullable else F.col(name)
        value = F.col(f"`{source}`")
        return value.cast(kind) if is_wider_type(types[source], kind) else value

    rows = frame.select(
        *(convert_column(name, column).alias(name) for name, column in columns.items())
    )
    return with_defaults(rows, partition, columns)


def files_match_schema(stored: T.StructType, columns: Mapping[str, Any]) -> bool:
    """Whether rows with the `stored` columns need no conversion by `convert_columns`.

    A column that is missing is null in the converted rows. The files may still hold it: it may have
    been dropped before.
    """
    types = {column.name: column.dataType.simpleString() for column in stored}
    for name, column in columns.items():
        if name in types:
            if types[name] != column.dtype.type.simpleString():
                return False
        elif not column.nullable or renamed_from(column) in types or gap_of(column):
            return False
    return types.keys() <= columns.keys()


def is_wider_type(old: T.DataType, new: T.DataType) -> bool:
    """Whether the new type holds all values of the old one without loss."""
    if isinstance(old, T.DecimalType) and isinstance(new, T.DecimalType):
        whole = new.precision - new.scale >= old.precision - old.scale
        return whole and new.scale >= old.scale
    if type(old) in _WHOLE_TYPES and type(new) in _WHOLE_TYPES:
        return _WHOLE_TYPES.index(type(old)) < _WHOLE_TYPES.index(type(new))
    if isinstance(old, T.ArrayType) and isinstance(new, T.ArrayType):
        parts = (old.elementType, new.elementType)
        return parts[0] == parts[1] or is_wider_type(*parts)
    return isinstance(old, T.FloatType) and isinstance(new, T.DoubleType)


class Rule(NamedTuple):
    """A condition in SQL that must be true for each row of a table, and its meaning in a sentence.

    A row for which the condition is null breaks it, as in Delta: cover null columns in it.
    """

    condition: str
    description: str


@dataclass(frozen=True)
class Forbidden:
    """A check between the rows of a day, see `forbids_rows`."""

    name: str
    find: Callable[[DataFrame], DataFrame]
    description: str


def forbids_rows(name: str, find: Callable[[DataFrame], DataFrame], description: str) -> Forbidden:
    """A check that a function finds no forbidden row.

    Use it for conditions over several rows, such as two versions that overlap. A day with such a
    row is not published; the finding has their number, and the keys of up to three of them. Each
    is an asset check of its own::

        @table(
            Customers,
            partition="run_date",
            key=["customer_id", "valid_from"],
            checks=[forbids_rows("overlap", overlaps, "No two versions overlap.")],
        )

    Args:
        name: of the check.
        find: a pure function of the rows that are about to be published, of all days of the run;
            it returns the forbidden rows, with the partition column and the columns of the key.
        description: what must hold, in one sentence.

    Raises:
        DeclarationError: the name is empty, or `find` is not a function.
    """
    check_arguments(
        "forbids_rows",
        [
            Argument("the name", name, is_text, "a name"),
            Argument("find", find, callable, "a function of a DataFrame"),
            Argument("the description", description, is_text, "a sentence"),
        ],
    )
    return Forbidden(name, find, description)


def no_leaks(at: str, *, carries: Sequence[str], began: str, known: str) -> dict[str, Rule]:
    """Row rules: no value that a row carries began, or became known, after the row's moment.

    They are for a table that is joined by `as_of_join`::

        @table(
            Order,
            partition="run_date",
            key=["order_id"],
            rules=no_leaks("order_ts", carries=["segment"], began="valid_from", known="known_at"),
        )

    A carried value without `began` and `known` is a leak as well.

    Args:
        at: the column with the moment of the row.
        carries: the columns whose values come from elsewhere; null if there is no value.
        began: the column with the time since which these values hold.
        known: the column with the time since which they are known.
    """
    sql_at, sql_began, sql_known = map(_sql_name, (at, began, known))
    both_set = f"({sql_began} IS NOT NULL AND {sql_known} IS NOT NULL)"
    nothing = " AND ".join(f"{_sql_name(name)} IS NULL" for name in carries)
    return {
        f"{began}_by_{at}": Rule(
            f"{sql_began} IS NULL OR {sql_began} <= {sql_at}",
            f"What the row carries began no later than {at}.",
        ),
        f"{known}_by_{at}": Rule(
            f"{sql_known} IS NULL OR {sql_known} <= {sql_at}",
            f"What the row carries was known no later than {at}.",
        ),
        f"{known}_told": Rule(
            f"{both_set} OR ({nothing})",
            f"What the row carries comes with {began} and {known}.",
        ),
    }
