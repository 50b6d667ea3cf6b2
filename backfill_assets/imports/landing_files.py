"""Rows of an external table as lines of a source, written as landing files.

What a value means is decided when the line is loaded; here it is refused by name what can be no
value of its field at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import reduce

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyspark.sql.types as T
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DaySet, format_ranges
from backfill_assets.imports.import_state import ImportMapping, ImportRefusedError, ImportStep
from backfill_assets.landing.formats import json_fields
from backfill_assets.landing.listing import folder_name
from backfill_assets.spark.filesystems import open_store
from backfill_assets.spark.session import first_line
from backfill_assets.tables.sources import Source
from backfill_assets.transforms.dedup import business_day

#: The arrival day that a row tells; no field is named so.
ARRIVAL_DAY = "_told"
_NESTED = (T.StructType, T.ArrayType, T.MapType)
_NUMBERS = (T.StringType, T.IntegralType, T.DecimalType)
#: What the reader of landing files takes for a field of a type.
_READABLE_TYPES: dict[type[T.DataType], tuple[type[T.DataType], ...]] = {
    T.StringType: (T.StringType, T.IntegralType, T.DecimalType),
    T.LongType: _NUMBERS,
    T.BooleanType: (T.StringType, T.BooleanType),
    T.DateType: (T.StringType, T.DateType),
    T.TimestampType: (T.TimestampType, T.TimestampNTZType, T.DateType),
    T.DecimalType: (*_NUMBERS, T.FractionalType),
}


@dataclass(frozen=True)
class SourceLines:
    """Rows as lines.

    Attributes:
        rows: the fields of the source, in their own types, and `ARRIVAL_DAY`.
        absent: fields that may be null, and that the table does not have.
        unused: columns of the table that no field is named like.
    """

    rows: DataFrame
    absent: list[str]
    unused: list[str]


def map_rows(rows: DataFrame, source: Source, mapping: ImportMapping, timezone: str) -> SourceLines:
    """Rows as lines of a source.

    Raises:
        ImportRefusedError: columns do not fit; the message has all of them.
    """
    if unknown_fields := sorted(mapping.fields.keys() - {*source.fields}):
        raise ImportRefusedError(
            f"the source {source.name} has no field {', '.join(unknown_fields)}; it has "
            f"{', '.join(source.fields)}. Nothing was written."
        )
    column_names = {name.lower() for name in rows.columns}
    fields, absent, problems = [], [], []
    for name in source.fields:
        expression = mapping.fields.get(name)
        if expression is None and name.lower() not in column_names:
            absent.append(name)
            fields.append(F.lit(None).cast(source.types[name]).alias(name))
            continue
        column = _quote_name(name) if expression is None else expression
        kind, problem = _expression_type(rows, column)
        problem = problem or _type_problem(source, name, kind)
        problems += [f"{name}: {problem}"] if problem else []
        fields.append(_landing_value(F.expr(column), kind).alias(name))
    problems += [
        f"{name}: the table has no such column" for name in absent if name not in source.may_be_null
    ]
    arrival, problem = _arrival_expression(rows, source, mapping, timezone)
    problems += [problem] if problem else []
    if problems:
        raise ImportRefusedError(
            f"the table does not fit the source {source.name}: {'; '.join(problems)}. Nothing was "
            "written. Say how a field is made of the table's columns with --field "
            "NAME=EXPRESSION, in Spark's SQL."
        )
    # A day that is made of fields is made of what they are, and not of the columns of these names.
    if mapping.arrived:
        lines = rows.select(arrival.alias(ARRIVAL_DAY), *fields)
    else:
        lines = rows.select(*fields).withColumn(ARRIVAL_DAY, arrival)
    unused = [name for name in rows.columns if name.lower() not in _lower_names(source)]
    return SourceLines(lines.select(*source.fields, ARRIVAL_DAY), absent, unused)


def _lower_names(source: Source) -> set[str]:
    return {name.lower() for name in source.fields}


def _quote_name(name: str) -> str:
    return f"`{name}`"


def _expression_type(rows: DataFrame, expression: str) -> tuple[T.DataType, str]:
    """The type of an expression, or why it is none."""
    try:
        return rows.select(F.expr(expression)).schema[0].dataType, ""
    except (AnalysisException, ParseException) as error:
        return T.NullType(), f"{expression} cannot be computed: {first_line(error)}"


def _type_problem(source: Source, name: str, kind: T.DataType) -> str:
    """Why no value of a type can be one of a field; empty if it can."""
    field_type = source.types[name]
    if name in json_fields(source):
        fits = isinstance(kind, (T.StringType, *_NESTED))
    elif isinstance(kind, T.NullType):
        fits = name in source.may_be_null
    else:
        fits = isinstance(kind, _READABLE_TYPES[type(field_type)])
        if isinstance(kind, T.DecimalType) and isinstance(field_type, (T.StringType, T.LongType)):
            fits = kind.scale == 0
    expected = "JSON text" if name in json_fields(source) else field_type.simpleString()
    return "" if fits else f"it is {kind.simpleString()} in the table, and must be {expected}"


def _landing_value(column: Column, kind: T.DataType) -> Column:
    """A value as it lands; what is nested as JSON text, which can be sorted and compared."""
    nested = isinstance(kind, _NESTED)
    return F.to_json(column, {"ignoreNullFields": "false"}) if nested else column


def _arrival_expression(
    rows: DataFrame, source: Source, mapping: ImportMapping, timezone: str
) -> tuple[Column, str]:
    """The day on which a row arrived, or why that is none."""
    if not mapping.arrived:
        times = (F.col(name).cast("timestamp") for name in (source.event_time, source.version_time))
        return business_day(F.greatest(*times), timezone), ""
    kind, problem = _expression_type(rows, mapping.arrived)
    column = F.expr(mapping.arrived)
    if isinstance(kind, T.DateType):
        return column, ""
    if isinstance(kind, (T.TimestampType, T.TimestampNTZType)):
        return business_day(column.cast("timestamp"), timezone), ""
    problem = problem or f"it is {kind.simpleString()}, and must be a date or a timestamp"
    return column, f"the arrival day {mapping.arrived}: {problem}"


def log_day(source: Source, timezone: str) -> tuple[Column, Column]:
    """The day of a line's version time, and the day it would be logged on, by `ARRIVAL_DAY`."""
    times = (F.col(name).cast("timestamp") for name in (source.event_time, source.version_time))
    version_day = business_day(F.greatest(*times), timezone)
    return version_day, F.greatest(F.col(ARRIVAL_DAY), version_day)


def counts_by_day(rows: DataFrame, source: Source, policy: Policy, timezone: str) -> DataFrame:
    """By the arrival day that rows tell: how many there are, and how many are of doubtful kinds."""
    version_day, log_date = log_day(source, timezone)
    event_day = business_day(F.col(source.event_time).cast("timestamp"), timezone)
    ahead = F.datediff(version_day, F.col(ARRIVAL_DAY)) > 1
    late = ~ahead & (F.datediff(log_date, event_day) > policy.window_days)
    no_key = F.lit(False)
    for name in source.key:
        no_key = no_key | F.col(name).isNull()
    return rows.groupBy(ARRIVAL_DAY).agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(no_key).alias("no_key"),
        F.count_if(late).alias("late"),
        F.count_if(ahead).alias("ahead"),
    )


#: Beside the folders of the arrival days; who lists those passes over it.
_SCRATCH = "_imports"
#: A day of more rows has several files.
ROWS_PER_FILE = 2_000_000
_DAY, _PART = "_day", "_part"
#: So many tasks write a chunk at most.
_WRITERS = 200


def arrival_day(policy: Policy, stray: date | None) -> Column:
    """The arrival day of a row: the one that it tells, if that is on the calendar."""
    arrival = F.col(ARRIVAL_DAY)
    known = arrival >= F.lit(policy.start)
    if policy.end is not None:
        known = known & (arrival < F.lit(policy.end))
    return F.when(known, arrival).otherwise(F.lit(stray).cast("date"))


def split_chunks(rows: Mapping[date, int], most: int) -> Iterator[list[date]]:
    """Days in ascending order, in groups of at most so many rows, or of one day."""
    group: list[date] = []
    for day in sorted(rows):
        if group and sum(rows[grouped_day] for grouped_day in group) + rows[day] > most:
            yield group
            group = []
        group.append(day)
    if group:
        yield group


def scratch_folder(landing: str, source: Source, name: str) -> str:
    """A folder for what a step writes before it lands."""
    return f"{landing}/{source.name}/{_SCRATCH}/{name}"


def clear_folder(scratch: str) -> None:
    """Remove what a step has left there."""
    filesystem, path = open_store(scratch)
    if filesystem.get_file_info(path).type == pafs.FileType.Directory:
        filesystem.delete_dir(path)


def land_files(
    lines: DataFrame,
    source: Source,
    step: ImportStep,
    days: Collection[date],
    arrival: Column,
    landing: str,
) -> dict[str, int]:
    """Write the lines of some days into their folders.

    The names follow from the step, and what is in a file from the rows: who does it again puts the
    same files in the place of those that are there.

    Args:
        lines: as `lines.map_rows` gives them.
        source: whose lines they are.
        step: the step.
        days: the arrival days.
        arrival: the arrival day of a line.
        landing: the landing folder.

    Returns:
        Number of rows by file.

    Raises:
        ImportRefusedError: they are not as many rows as were counted; none of them landed.
    """
    chunk_folder = f"{scratch_folder(landing, source, step.name)}/chunk"
    parts = {day: -(-step.rows[day] // ROWS_PER_FILE) for day in days}
    large_days = ((day, n) for day, n in parts.items() if n > 1)
    bucket = reduce(
        lambda else_, day_parts: F.when(
            F.col(_DAY) == F.lit(day_parts[0]), F.lit(day_parts[1])
        ).otherwise(else_),
        large_days,
        F.lit(1),
    )
    placed = (
        lines.withColumn(_DAY, arrival)
        .where(DaySet.from_days(days).sql_condition(_DAY))
        .withColumn(_PART, F.pmod(F.xxhash64(*source.fields), bucket))
        .select(*source.fields, _DAY, _PART)
        .repartition(min(sum(parts.values()), _WRITERS), _DAY, _PART)
        .sortWithinPartitions(_DAY, _PART, *source.fields)
    )
    writer = placed.write.mode("overwrite").option("maxRecordsPerFile", 0)
    writer.partitionBy(_DAY, _PART).parquet(chunk_folder)
    filesystem, root = open_store(chunk_folder)
    files = {}
    for info in filesystem.get_file_info(pafs.FileSelector(root, recursive=True)):
        if info.is_file and info.base_name.startswith("part-"):
            day, part, _ = info.path.removeprefix(f"{root}/").split("/")
            name = f"{step.name}-{part.partition('=')[2]}.parquet"
            file = f"{folder_name(date.fromisoformat(day.partition('=')[2]))}/{name}"
            files[file] = info.path, _count_rows(filesystem, info.path)
    _raise_if_rows_differ({file: rows for file, (_, rows) in files.items()}, step, days)
    base = f"{open_store(landing)[1]}/{source.name}"
    for file, (path, _) in sorted(files.items()):
        filesystem.create_dir(f"{base}/{file.partition('/')[0]}", recursive=True)
        filesystem.move(path, f"{base}/{file}")
    return {file: rows for file, (_, rows) in sorted(files.items())}


def _count_rows(filesystem: pafs.FileSystem, path: str) -> int:
    with filesystem.open_input_file(path) as file:
        return int(pq.read_metadata(file).num_rows)


def _raise_if_rows_differ(
    files: Mapping[str, int], step: ImportStep, days: Collection[date]
) -> None:
    written: dict[str, int] = {}
    for file, rows in files.items():
        folder = file.partition("/")[0]
        written[folder] = written.get(folder, 0) + rows
    if wrong_days := [day for day in days if written.get(folder_name(day), 0) != step.rows[day]]:
        raise ImportRefusedError(
            f"the rows that arrived on {format_ranges(wrong_days)} are not as many as were "
            "counted. None of these days landed by this attempt. An expression may depend on the "
            "clock or on chance, or files of the table were changed: mend that, and import again."
        )
