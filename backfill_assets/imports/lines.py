"""Rows of somebody else's table as lines of a source: each field by an expression, the arrival day.

What a value means is decided when the line is loaded; here it is refused by name what can be no
value of its field at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyspark.sql.types as T
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.calendar.policy import Policy
from backfill_assets.engine.spark import first_line
from backfill_assets.imports.manifests import How, ImportRefusedError
from backfill_assets.landing.text import json_fields
from backfill_assets.tables.sources import Source
from backfill_assets.tables.versions import business_day

#: The arrival day that a row tells; no field is named so.
TOLD = "_told"
_NESTED = (T.StructType, T.ArrayType, T.MapType)
_NUMBERS = (T.StringType, T.IntegralType, T.DecimalType)
#: What the reader of landing files takes for a field of a type.
_TAKEN: dict[type[T.DataType], tuple[type[T.DataType], ...]] = {
    T.StringType: (T.StringType, T.IntegralType, T.DecimalType),
    T.LongType: _NUMBERS,
    T.BooleanType: (T.StringType, T.BooleanType),
    T.DateType: (T.StringType, T.DateType),
    T.TimestampType: (T.TimestampType, T.TimestampNTZType, T.DateType),
    T.DecimalType: (*_NUMBERS, T.FractionalType),
}


@dataclass(frozen=True)
class Lines:
    """Rows as lines.

    Attributes:
        rows: the fields of the source, in their own types, and `TOLD`.
        absent: fields that may be null, and that the table does not have.
        unused: columns of the table that no field is named like.
    """

    rows: DataFrame
    absent: list[str]
    unused: list[str]


def lines_of(rows: DataFrame, source: Source, how: How, timezone: str) -> Lines:
    """Rows as lines of a source.

    Raises:
        ImportRefusedError: columns do not fit; the message has all of them.
    """
    if strange := sorted(how.fields.keys() - {*source.fields}):
        raise ImportRefusedError(
            f"the source {source.name} has no field {', '.join(strange)}; it has "
            f"{', '.join(source.fields)}. Nothing was written."
        )
    there = {name.lower() for name in rows.columns}
    fields, absent, problems = [], [], []
    for name in source.fields:
        told = how.fields.get(name)
        if told is None and name.lower() not in there:
            absent.append(name)
            fields.append(F.lit(None).cast(source.types[name]).alias(name))
            continue
        column = _quoted(name) if told is None else told
        kind, problem = _kind(rows, column)
        problem = problem or _unfit(source, name, kind)
        problems += [f"{name}: {problem}"] if problem else []
        fields.append(_value(F.expr(column), kind).alias(name))
    problems += [
        f"{name}: the table has no such column" for name in absent if name not in source.may_be_null
    ]
    arrived, problem = _arrived(rows, source, how, timezone)
    problems += [problem] if problem else []
    if problems:
        raise ImportRefusedError(
            f"the table does not fit the source {source.name}: {'; '.join(problems)}. Nothing was "
            "written. Say how a field is made of the table's columns with --field "
            "NAME=EXPRESSION, in Spark's SQL."
        )
    # A day that is made of fields is made of what they are, and not of the columns of these names.
    if how.arrived:
        found = rows.select(arrived.alias(TOLD), *fields)
    else:
        found = rows.select(*fields).withColumn(TOLD, arrived)
    unused = [name for name in rows.columns if name.lower() not in _lower(source)]
    return Lines(found.select(*source.fields, TOLD), absent, unused)


def _lower(source: Source) -> set[str]:
    return {name.lower() for name in source.fields}


def _quoted(name: str) -> str:
    return f"`{name}`"


def _kind(rows: DataFrame, expression: str) -> tuple[T.DataType, str]:
    """The type of an expression, or why it is none."""
    try:
        return rows.select(F.expr(expression)).schema[0].dataType, ""
    except (AnalysisException, ParseException) as error:
        return T.NullType(), f"{expression} cannot be computed: {first_line(error)}"


def _unfit(source: Source, name: str, kind: T.DataType) -> str:
    """Why no value of a type can be one of a field; empty if it can."""
    wanted = source.types[name]
    if name in json_fields(source):
        fits = isinstance(kind, (T.StringType, *_NESTED))
    elif isinstance(kind, T.NullType):
        fits = name in source.may_be_null
    else:
        fits = isinstance(kind, _TAKEN[type(wanted)])
        if isinstance(kind, T.DecimalType) and isinstance(wanted, (T.StringType, T.LongType)):
            fits = kind.scale == 0
    said = "JSON text" if name in json_fields(source) else wanted.simpleString()
    return "" if fits else f"it is {kind.simpleString()} in the table, and must be {said}"


def _value(column: Column, kind: T.DataType) -> Column:
    """A value as it lands; what is nested as JSON text, which can be sorted and compared."""
    nested = isinstance(kind, _NESTED)
    return F.to_json(column, {"ignoreNullFields": "false"}) if nested else column


def _arrived(rows: DataFrame, source: Source, how: How, timezone: str) -> tuple[Column, str]:
    """The day on which a row arrived, or why that is none."""
    if not how.arrived:
        times = (F.col(name).cast("timestamp") for name in (source.event_time, source.version_time))
        return business_day(F.greatest(*times), timezone), ""
    kind, problem = _kind(rows, how.arrived)
    column = F.expr(how.arrived)
    if isinstance(kind, T.DateType):
        return column, ""
    if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
        return business_day(column.cast("timestamp"), timezone), ""
    problem = problem or f"it is {kind.simpleString()}, and must be a date or a timestamp"
    return column, f"the arrival day {how.arrived}: {problem}"


def log_day(source: Source, timezone: str) -> tuple[Column, Column]:
    """The day of a line's version time, and the day on which it would be logged, by `TOLD`."""
    times = (F.col(name).cast("timestamp") for name in (source.event_time, source.version_time))
    version = business_day(F.greatest(*times), timezone)
    return version, F.greatest(F.col(TOLD), version)


def counts_by_day(rows: DataFrame, source: Source, policy: Policy, timezone: str) -> DataFrame:
    """By the arrival day that rows tell: how many there are, and how many are of doubtful kinds."""
    version, logged = log_day(source, timezone)
    event = business_day(F.col(source.event_time).cast("timestamp"), timezone)
    ahead = F.datediff(version, F.col(TOLD)) > 1
    late = ~ahead & (F.datediff(logged, event) > policy.window_days)
    no_key = F.lit(False)
    for name in source.key:
        no_key = no_key | F.col(name).isNull()
    return rows.groupBy(TOLD).agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(no_key).alias("no_key"),
        F.count_if(late).alias("late"),
        F.count_if(ahead).alias("ahead"),
    )
