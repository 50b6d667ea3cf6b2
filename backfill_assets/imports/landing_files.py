"""Landing files of an import: rows of an external table as lines of a source.

Values are parsed when the lines are loaded. Here, only columns are refused whose type can never be
a value of the field.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial, reduce
from types import MappingProxyType
from uuid import uuid4

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
from backfill_assets.landing.listing import folder_day, folder_name, folder_of
from backfill_assets.runtime_versions import SESSION_ZONE
from backfill_assets.spark.filesystems import delete_folder, open_store
from backfill_assets.spark.frames import quote_name
from backfill_assets.spark.session import first_error_line
from backfill_assets.tables.sources import Source
from backfill_assets.transforms.dedup import business_day, event_day, version_day

#: Column with the arrival day of a row; no field can have this name.
ARRIVAL_DAY = "_told"
#: In an expression of Spark's SQL: text in quotes, a name in back-ticks, or a word.
_WORDS = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|`((?:[^`]|``)+)`|(\w+)""")
_NESTED = (T.StructType, T.ArrayType, T.MapType)
_NUMBERS = (T.StringType, T.IntegralType, T.DecimalType)
#: By type of a field, the column types that the reader of landing files accepts.
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
    """Rows as lines of a source.

    Attributes:
        rows: the fields of the source, in the types of the table, and `ARRIVAL_DAY`.
        absent: nullable fields that the table does not have.
        unused: columns of the table that no field is made of.
    """

    rows: DataFrame
    absent: list[str]
    unused: list[str]


def map_rows(
    rows: DataFrame,
    source: Source,
    mapping: ImportMapping,
    timezone: str,
    unreadable: Mapping[str, str] = MappingProxyType({}),
) -> SourceLines:
    """Map rows to lines of a source.

    Args:
        rows: of the table.
        source: whose lines they become.
        mapping: how.
        timezone: of business days.
        unreadable: columns that `rows` lacks because they cannot be read, with their types.

    Raises:
        ImportRefusedError: columns do not fit; the message names all of them.
    """
    if unknown_fields := sorted(mapping.fields.keys() - {*source.fields}):
        raise ImportRefusedError(
            f"the source {source.name} has no field {', '.join(unknown_fields)}; it has "
            f"{', '.join(source.fields)}. Nothing was written."
        )
    column_names = {name.lower() for name in (*rows.columns, *unreadable)}
    expressions = {
        name: mapping.fields.get(name, quote_name(name))
        for name in source.fields
        if name in mapping.fields or name.lower() in column_names
    }
    absent = [name for name in source.fields if name not in expressions]
    _raise_if_unfit(rows, source, expressions, mapping.arrived, unreadable)
    if mapping.arrived:
        expressions[ARRIVAL_DAY] = mapping.arrived
    values = _evaluate(rows, expressions, source.timezone)
    lines = values.select(
        *(_landing_value(values, source, name) for name in source.fields),
        _arrival_day(values, source, timezone).alias(ARRIVAL_DAY),
    )
    used = {name for expression in expressions.values() for name in names_in(expression)}
    unused = [name for name in rows.columns if name.lower() not in used]
    return SourceLines(lines, absent, unused)


def names_in(expression: str) -> set[str]:
    """The words of an expression in lower case, no text in quotes: its columns are among them."""
    words = _WORDS.findall(expression.lower())
    return {quoted.replace("``", "`") or word for quoted, word in words if quoted or word}


def _raise_if_unfit(
    rows: DataFrame,
    source: Source,
    expressions: Mapping[str, str],
    arrived: str,
    unreadable: Mapping[str, str],
) -> None:
    """Raise if a required field has no expression, or an expression cannot be a value of its field.

    Raises:
        ImportRefusedError: it names all of them.
    """
    by_lower = {name.lower(): kind for name, kind in unreadable.items()}
    problems = []
    for name in source.fields:
        expression = expressions.get(name)
        if expression is None:
            problem = "" if name in source.may_be_null else "the table has no such column"
        elif expression == quote_name(name) and name.lower() in by_lower:
            problem = f"it is {by_lower[name.lower()]} in the table, which Spark cannot read"
        else:
            kind, problem = _expression_type(rows, expression)
            problem = problem or _type_problem(source, name, kind)
        problems += [f"{name}: {problem}"] if problem else []
    problems += _arrival_problems(rows, arrived)
    if not problems:
        return
    if unreadable:
        columns = ", ".join(f"{name} ({kind})" for name, kind in unreadable.items())
        problems.append(f"no expression can use the columns that Spark cannot read: {columns}")
    raise ImportRefusedError(
        f"the table does not fit the source {source.name}: {'; '.join(problems)}. Nothing was "
        "written. Say how a field is made of the table's columns with --field "
        "NAME=EXPRESSION, in Spark's SQL; it reads a time without an offset as one of "
        f"{source.timezone}."
    )


def _evaluate(rows: DataFrame, expressions: Mapping[str, str], timezone: str) -> DataFrame:
    """Select expressions that read and write local times of a zone.

    Spark takes the zone of an expression from the session when it analyzes the query. Over Spark
    Connect, it does so whenever the query runs; but once for a view, which ends with the session.
    """
    spark = rows.sparkSession
    columns = [F.expr(expression).alias(name) for name, expression in expressions.items()]
    session_zone = str(spark.conf.get(SESSION_ZONE))
    if timezone == session_zone:
        return rows.select(*columns)
    views = [f"import_{uuid4().hex}" for _ in range(2)]
    rows.createTempView(views[0])
    spark.conf.set(SESSION_ZONE, timezone)
    try:
        spark.table(views[0]).select(*columns).createTempView(views[1])
    finally:
        spark.conf.set(SESSION_ZONE, session_zone)
    return spark.table(views[1])


def _expression_type(rows: DataFrame, expression: str) -> tuple[T.DataType, str]:
    """The type of an expression, or why it cannot be computed."""
    try:
        return rows.select(F.expr(expression)).schema[0].dataType, ""
    except (AnalysisException, ParseException) as error:
        return T.NullType(), f"{expression} cannot be computed: {first_error_line(error)}"


def _type_problem(source: Source, name: str, kind: T.DataType) -> str:
    """Why a type does not fit a field; empty if it fits."""
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


def _landing_value(values: DataFrame, source: Source, name: str) -> Column:
    """A value as it lands: nested values as JSON text, which can be sorted and compared.

    A time without an offset lands as it is: the loader reads it in the zone of the source, and
    counts ambiguous ones.
    """
    kind = values.schema[name].dataType if name in values.columns else T.NullType()
    if isinstance(kind, T.NullType):
        return F.lit(None).cast(source.types[name]).alias(name)
    column = F.col(name)
    if isinstance(kind, _NESTED):
        column = F.to_json(column, {"ignoreNullFields": "false"})
    return column.alias(name)


def _moment(values: DataFrame, source: Source, name: str) -> Column:
    """A date or a timestamp as a moment; without an offset, in the zone of the source."""
    moment = F.col(name).cast("timestamp")
    if isinstance(values.schema[name].dataType, T.TimestampType):
        return moment
    return F.to_utc_timestamp(moment, source.timezone)


def _arrival_problems(rows: DataFrame, arrived: str) -> list[str]:
    """Why the expression of the arrival day is none, if it is."""
    if not arrived:
        return []
    kind, problem = _expression_type(rows, arrived)
    if isinstance(kind, (T.DateType, T.TimestampType, T.TimestampNTZType)):
        return []
    problem = problem or f"it is {kind.simpleString()}, and must be a date or a timestamp"
    return [f"the arrival day {arrived}: {problem}"]


def _arrival_day(values: DataFrame, source: Source, timezone: str) -> Column:
    """The arrival day of a row: as given, or that of its version time."""
    if ARRIVAL_DAY not in values.columns:
        return _version_day(values, source, timezone)
    if isinstance(values.schema[ARRIVAL_DAY].dataType, T.DateType):
        return F.col(ARRIVAL_DAY)
    return business_day(_moment(values, source, ARRIVAL_DAY), timezone)


def _version_day(values: DataFrame, source: Source, timezone: str) -> Column:
    """The day of the later one of event and version time."""
    return version_day(source, timezone, partial(_time_column, values, source))


def _time_column(values: DataFrame, source: Source, name: str) -> Column:
    """The event time or version time of a row as its field will have it; null if it is none."""
    if name in source.dated_times:
        return F.col(name).try_cast("date")
    return _moment(values, source, name)


def counts_by_day(rows: DataFrame, source: Source, policy: Policy, timezone: str) -> DataFrame:
    """By arrival day, the number of rows, and of rows without key, late, or ahead."""
    latest_day = _version_day(rows, source, timezone)
    log_date = F.greatest(F.col(ARRIVAL_DAY), latest_day)
    event_date = event_day(source, timezone, partial(_time_column, rows, source))
    ahead = F.datediff(latest_day, F.col(ARRIVAL_DAY)) > 1
    late = ~ahead & (F.datediff(log_date, event_date) > policy.window_days)
    no_key = F.lit(False)
    for name in source.key:
        no_key = no_key | F.col(name).isNull()
    return rows.groupBy(ARRIVAL_DAY).agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(no_key).alias("no_key"),
        F.count_if(late).alias("late"),
        F.count_if(ahead).alias("ahead"),
    )


#: Beside the folders of arrival days; a listing of the landing ignores it.
_SCRATCH = "_imports"
#: A day with more rows gets several files.
ROWS_PER_FILE = 2_000_000
_DAY, _PART = "_day", "_part"
#: Maximum number of tasks that write a chunk.
_WRITERS = 200


def arrival_day(policy: Policy, stray: date | None) -> Column:
    """The arrival day of a row if it is on the calendar, else `stray`."""
    arrival = F.col(ARRIVAL_DAY)
    known = arrival >= F.lit(policy.start)
    if policy.end is not None:
        known = known & (arrival < F.lit(policy.end))
    return F.when(known, arrival).otherwise(F.lit(stray).cast("date"))


def arrival_days(files: Iterable[str]) -> set[date]:
    """The arrival days of landing files, by the folders in their names."""
    return {day for file in files if (day := folder_day(folder_of(file)))}


def split_chunks(rows: Mapping[date, int], most: int) -> Iterator[list[date]]:
    """Days in ascending order, in groups of at most `most` rows or of one day."""
    group: list[date] = []
    for day in sorted(rows):
        if group and sum(rows[grouped_day] for grouped_day in group) + rows[day] > most:
            yield group
            group = []
        group.append(day)
    if group:
        yield group


def scratch_folder(landing: str, source: Source, name: str) -> str:
    """The temporary folder of a step, before its files land."""
    return f"{landing}/{source.name}/{_SCRATCH}/{name}"


def clear_folder(scratch: str) -> None:
    """Remove a temporary folder, if it exists."""
    filesystem, path = open_store(scratch)
    if filesystem.get_file_info(path).type == pafs.FileType.Directory:
        delete_folder(filesystem, path)


def land_files(
    lines: DataFrame,
    source: Source,
    step: ImportStep,
    days: Collection[date],
    arrival: Column,
    landing: str,
) -> dict[str, int]:
    """Write the lines of some days into their landing folders; returns the number of rows by file.

    File names depend only on the step, and contents only on the rows: a repeated call replaces the
    files with equal ones.

    Raises:
        ImportRefusedError: the number of rows differs from the counted one; none of them landed.
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
    """Called before any file is moved to the landing; `files` has the rows by file path."""
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
