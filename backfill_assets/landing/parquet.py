"""Parquet files of the landing: the columns to read, and their values as fields of a source."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.landing import formats
from backfill_assets.landing.formats import TEXT
from backfill_assets.landing.listing import LandingError
from backfill_assets.spark.filesystems import read_options
from backfill_assets.spark.frames import quote_name
from backfill_assets.tables.sources import Source

_SPARK_TYPES: Mapping[pa.DataType, T.DataType] = {
    pa.null(): T.IntegerType(),
    pa.bool_(): T.BooleanType(),
    pa.int8(): T.ByteType(),
    pa.int16(): T.ShortType(),
    pa.int32(): T.IntegerType(),
    pa.int64(): T.LongType(),
    pa.uint8(): T.ShortType(),
    pa.uint16(): T.IntegerType(),
    pa.uint32(): T.LongType(),
    pa.uint64(): T.DecimalType(20, 0),
    pa.float32(): T.FloatType(),
    pa.float64(): T.DoubleType(),
    pa.string(): T.StringType(),
    pa.large_string(): T.StringType(),
    pa.string_view(): T.StringType(),
    pa.date32(): T.DateType(),
    pa.date64(): T.DateType(),
}
#: Between these are the dates that Python has.
_FIRST_MOMENT, _LAST_MOMENT = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
_NESTED = (T.StructType, T.ArrayType, T.MapType)


@dataclass(frozen=True)
class ParquetColumns:
    """The columns to read of a Parquet file.

    Spark gets the types instead of inferring them: otherwise one column that it cannot read (a half
    float, a time, a name in two spellings) fails every file of the run.

    Attributes:
        types: the columns that Spark can read, with the types of their values. Those of fields are
            named as the fields, whatever their name or case in the file.
        nanoseconds: the timestamps that Spark reads as numbers of nanoseconds.
        unreadable: columns that are wanted and cannot be read, with their types.
        renamed: the fields that have another name in the file, with that name.
    """

    types: tuple[tuple[str, T.DataType], ...]
    nanoseconds: frozenset[str]
    unreadable: tuple[tuple[str, str], ...]
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def spark_schema(self) -> T.StructType:
        """The columns for Spark's reader (see `spark.sql.legacy.parquet.nanosAsLong`)."""
        file_names = dict(self.renamed)
        return T.StructType(
            [
                T.StructField(
                    file_names.get(name, name), T.LongType() if name in self.nanoseconds else kind
                )
                for name, kind in self.types
            ]
        )


def footer_columns(footer: pq.FileMetaData, source: Source) -> ParquetColumns:
    """The columns of a file, from its footer.

    Raises:
        LandingError: the file has a field of the source twice.
    """
    schema = footer.schema.to_arrow_schema()
    leaves = [footer.schema.column(n) for n in range(len(footer.schema))]
    # Timestamps of Impala, Hive and older Spark; Arrow shows them as nanoseconds.
    int96 = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    names = formats.match_fields(schema.names, source.fields, source.rename)
    # Spark ignores upper and lower case; `_metadata` is its own column.
    spellings = Counter([*(name.lower() for name in names), "_metadata"])
    types, nanoseconds, unreadable, renamed = {}, set(), {}, {}
    for column, name, kind in zip(schema.names, names, schema.types, strict=True):
        if spellings[name.lower()] > 1:
            if name in source.fields:
                raise LandingError(f"more than one column is named {name}")
            continue
        spark_type = T.TimestampType() if column in int96 else value_type(kind)
        if spark_type is None and name in formats.json_fields(source):
            spark_type = _nested_type(kind)
        if spark_type is not None:
            types[name] = spark_type
            if column.lower() != name.lower():
                renamed[name] = column
            if is_nanoseconds(kind) and column not in int96:
                nanoseconds.add(name)
        elif name in source.fields:
            unreadable[name] = str(kind)
    return ParquetColumns(
        tuple(types.items()),
        frozenset(nanoseconds),
        tuple(unreadable.items()),
        tuple(renamed.items()),
    )


def value_type(kind: pa.DataType) -> T.DataType | None:
    """The type of the values of a Parquet column; None for nested and unsupported types."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_decimal(kind) and kind.precision <= 38:
        return T.DecimalType(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return T.TimestampType() if kind.tz else T.TimestampNTZType()
    return _SPARK_TYPES.get(kind)


def _nested_type(kind: pa.DataType) -> T.DataType | None:
    """The type that Spark reads a nested column as; None if a part cannot be read."""
    if pa.types.is_struct(kind):
        parts = [(field.name, _nested_type(field.type)) for field in kind]
        # Spark fails on two spellings of a name, as for columns.
        if not parts or len({name.lower() for name, _ in parts}) < len(parts):
            return None
        read = [T.StructField(name, part) for name, part in parts if part is not None]
        return T.StructType(read) if len(read) == len(parts) else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        part = _nested_type(kind.value_type)
        return T.ArrayType(part) if part is not None else None
    if pa.types.is_map(kind):
        key, part = value_type(kind.key_type), _nested_type(kind.item_type)
        return T.MapType(key, part) if isinstance(key, T.StringType) and part is not None else None
    # Nested nanoseconds would be integers in the JSON.
    return None if is_nanoseconds(kind) else value_type(kind)


def is_nanoseconds(kind: pa.DataType) -> bool:
    """Whether a type is a timestamp in nanoseconds."""
    return pa.types.is_timestamp(kind) and kind.unit == "ns"


def parquet_rows(spark: SparkSession, urls: Sequence[str], columns: ParquetColumns) -> DataFrame:
    """The rows of Parquet files with these columns, named as the fields."""
    reader = spark.read.options(**read_options(urls)).schema(columns.spark_schema)
    return reader.parquet(*urls).withColumnsRenamed({old: new for new, old in columns.renamed})


def decoding_hash(columns: ParquetColumns) -> Column:
    """A hash over all columns: makes Spark decode every page, not just the footer."""
    return F.xxhash64(
        F.lit(0),
        *(
            _json_column(F.col(quote_name(n))) if _is_nested(t) else F.col(quote_name(n))
            for n, t in columns.types
        ),
    )


def parquet_fields(
    rows: DataFrame, columns: ParquetColumns, source: Source, *, as_text: bool
) -> DataFrame:
    """The fields of Parquet rows, and all their columns as `TEXT`, see `original_line`.

    Args:
        rows: of `parquet_rows`.
        columns: of the files.
        source: whose fields they are.
        as_text: whether all fields are text that parses to the same value, and `TEXT` is JSON, as
            `lines_schema` says; otherwise fields have their type where the column has it, and
            `TEXT` is a struct, which takes a third of the time.
    """
    types = dict(columns.types)
    cells = {name: column_value(columns, name, kind) for name, kind in types.items()}
    texts = {name: _value_text(cells[name], kind, source) for name, kind in types.items()}
    row = F.struct(*[cell.alias(name) for name, cell in (texts if as_text else cells).items()])
    problems = [F.lit(f"bad {name}: a column of type {kind}") for name, kind in columns.unreadable]
    all_problems = [*problems, *_identifier_column_problems(columns, source)]
    for name in _dates_in_timestamps(types, source):
        cells[name], problem = _date_at_midnight(name, cells[name], types[name], source)
        types[name], texts[name] = T.DateType(), cells[name].cast("string")
        all_problems.append(problem)

    def field_column(name: str) -> Column:
        if name not in types:
            return formats.missing_field(name)
        if as_text or not _fits_type(types[name], source.types[name], source.timezone):
            return texts[name].alias(name)
        return cells[name].cast(source.types[name]).alias(name)

    return rows.select(
        *formats.origin_columns(source),
        (F.lit("{}") if not types else F.to_json(row) if as_text else row).alias(TEXT),
        *map(field_column, source.fields),
        (
            F.coalesce(*all_problems).cast("string") if all_problems else F.lit(None).cast("string")
        ).alias(formats.PROBLEM),
        formats.lacking_fields(source, types),
    )


def column_value(columns: ParquetColumns, name: str, kind: T.DataType) -> Column:
    """The values of a column; a number of nanoseconds as a timestamp."""
    column = F.col(quote_name(name))
    if name not in columns.nanoseconds:
        return column
    # Floor, also before 1970.
    micros = F.floor(column / F.lit(1000).cast("decimal(4,0)")).cast("long")
    return F.timestamp_micros(micros).cast(kind)


def _fits_type(kind: T.DataType, field_type: T.DataType, timezone: str) -> bool:
    """Whether a cast to the type of a field keeps each value of a column.

    Not of another decimal: a value of more digits than the column declares becomes null in it.
    """
    if isinstance(field_type, T.LongType):
        return isinstance(kind, T.IntegralType)
    if isinstance(kind, T.TimestampNTZType):
        return isinstance(field_type, T.TimestampType) and timezone == "UTC"
    return kind == field_type and not isinstance(field_type, T.StringType)


def _dates_in_timestamps(types: Mapping[str, T.DataType], source: Source) -> list[str]:
    """The fields that are dates of columns that are timestamps: pandas and Oracle have no dates."""
    return [
        name
        for name, kind in types.items()
        if isinstance(kind, T.TimestampType | T.TimestampNTZType)
        and isinstance(source.types.get(name), T.DateType)
    ]


def _date_at_midnight(
    name: str, moment: Column, kind: T.DataType, source: Source
) -> tuple[Column, Column]:
    """The date that a timestamp at midnight is; null, and the problem, if it is another time."""
    first, last = (F.lit(text).cast(kind) for text in (_FIRST_MOMENT, _LAST_MOMENT))
    local = moment.cast("timestamp")
    if isinstance(kind, T.TimestampType) and source.timezone != "UTC":
        local = F.from_utc_timestamp(local, source.timezone)
    # Spark fails the whole job on what is far from these years.
    local = F.when(moment.between(first, last), local)
    is_date = F.coalesce(F.date_trunc("day", local) == local, F.lit(False))
    problem = f"bad {name}: not at midnight in {source.timezone}, and it is to be a date"
    return F.when(is_date, local.cast("date")), F.when(moment.isNotNull() & ~is_date, problem)


def _identifier_column_problems(columns: ParquetColumns, source: Source) -> list[Column]:
    """The problems of identifiers that are neither strings nor whole numbers, null if none."""
    problems = []
    for name, kind in columns.types:
        whole = isinstance(kind, T.IntegralType) or getattr(kind, "scale", None) == 0
        if name in formats.identifier_fields(source) and not (
            whole or isinstance(kind, T.StringType)
        ):
            text = F.lit(f"bad {name}: a column of type {kind.simpleString()}")
            problems.append(F.when(F.col(quote_name(name)).isNotNull(), text))
    return problems


def original_line(kind: T.DataType, source: Source) -> Column:
    """The column `TEXT`, of a type, as text: a line as it landed, a Parquet row as JSON."""
    if not isinstance(kind, T.StructType):
        return F.make_valid_utf8(TEXT)
    texts = [
        _value_text(F.col(TEXT)[field.name], field.dataType, source).alias(field.name)
        for field in kind
    ]
    return F.make_valid_utf8(F.to_json(F.struct(*texts)))


def _value_text(value: Column, kind: T.DataType, source: Source) -> Column:
    """A value as text: a nested one as JSON, a moment with an offset unless that is the default."""
    if _is_nested(kind):
        return _json_column(value)
    text = value.cast("string")
    if isinstance(kind, T.TimestampType) and source.timezone != "UTC":
        return F.concat(text, F.lit("Z"))
    return text


def _is_nested(kind: T.DataType) -> bool:
    return isinstance(kind, _NESTED)


def _json_column(column: Column) -> Column:
    return F.to_json(column, {"ignoreNullFields": "false"})
