"""Parquet files: the columns that Spark is to read, from the footer, and rows as fields of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.landing.listing import LandingError
from backfill_assets.landing.text import (
    PROBLEM,
    TEXT,
    identifier_fields,
    json_fields,
    missing_field,
    origin_columns,
)
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
_NESTED = (T.StructType, T.ArrayType, T.MapType)


@dataclass(frozen=True)
class ParquetColumns:
    """What is read of a Parquet file.

    Spark is told the types instead of finding them: one column that it cannot read (a half float, a
    time, a name in two spellings) would otherwise fail every file of the run.

    Attributes:
        types: the columns that Spark can read, by name.
        nanoseconds: those of them that are timestamps in nanoseconds.
        unreadable: the types of the source's fields that cannot be read, by name.
    """

    types: tuple[tuple[str, T.DataType], ...]
    nanoseconds: frozenset[str]
    unreadable: tuple[tuple[str, str], ...]

    @property
    def spark_schema(self) -> T.StructType:
        """The columns for Spark's reader."""
        return T.StructType([T.StructField(name, kind) for name, kind in self.types])


def footer_columns(footer: pq.FileMetaData, source: Source) -> ParquetColumns:
    """The columns of a file, from its footer.

    Raises:
        LandingError: a field of the source is there twice.
    """
    schema = footer.schema.to_arrow_schema()
    leaves = [footer.schema.column(n) for n in range(len(footer.schema))]
    # The timestamps of Impala, Hive and older Spark; Arrow shows them as nanoseconds.
    int96 = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    # Spark does not tell upper from lower case; `_metadata` is its own column.
    spellings = Counter([*(name.lower() for name in schema.names), "_metadata"])
    types, nanoseconds, unreadable = {}, set(), {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        if spellings[name.lower()] > 1:
            if name in source.fields:
                raise LandingError(f"more than one column is named {name}")
            continue
        spark_type = _spark_type(kind, name in int96)
        if spark_type is None and name in json_fields(source):
            spark_type = _nested_type(kind)
        if spark_type is not None:
            types[name] = spark_type
            if isinstance(spark_type, T.LongType) and pa.types.is_timestamp(kind):
                nanoseconds.add(name)
        elif name in source.fields:
            unreadable[name] = str(kind)
    return ParquetColumns(tuple(types.items()), frozenset(nanoseconds), tuple(unreadable.items()))


def _spark_type(kind: pa.DataType, int96: bool = False) -> T.DataType | None:
    """The type that Spark reads a Parquet column as; none for what is no single value."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_decimal(kind) and kind.precision <= 38:
        return T.DecimalType(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        if int96:
            return T.TimestampType()
        if kind.unit == "ns":  # as integers (see `spark.sql.legacy.parquet.nanosAsLong`)
            return T.LongType()
        return T.TimestampType() if kind.tz else T.TimestampNTZType()
    return _SPARK_TYPES.get(kind)


def _nested_type(kind: pa.DataType) -> T.DataType | None:
    """The same for what is nested, whose text is JSON; none where a part cannot be read."""
    if pa.types.is_struct(kind):
        parts = [(field.name, _nested_type(field.type)) for field in kind]
        # As of the columns, Spark fails on two spellings of a name.
        if not parts or len({name.lower() for name, _ in parts}) < len(parts):
            return None
        read = [T.StructField(name, part) for name, part in parts if part is not None]
        return T.StructType(read) if len(read) == len(parts) else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        part = _nested_type(kind.value_type)
        return T.ArrayType(part) if part is not None else None
    if pa.types.is_map(kind):
        key, part = _spark_type(kind.key_type), _nested_type(kind.item_type)
        return T.MapType(key, part) if isinstance(key, T.StringType) and part is not None else None
    # Of nanoseconds within something else, JSON would have the integers.
    nanos = pa.types.is_timestamp(kind) and kind.unit == "ns"
    return None if nanos else _spark_type(kind)


def parquet_rows(spark: SparkSession, urls: Sequence[str], columns: ParquetColumns) -> DataFrame:
    """The rows of Parquet files that have these columns."""
    return spark.read.schema(columns.spark_schema).parquet(*urls)


def decoding_hash(columns: ParquetColumns) -> Column:
    """A hash that needs every column: Spark decodes every page for it, not just the footer."""
    return F.xxhash64(
        F.lit(0),
        *(
            _json_column(_quoted_column(n)) if _is_nested(t) else _quoted_column(n)
            for n, t in columns.types
        ),
    )


def parquet_fields(rows: DataFrame, columns: ParquetColumns, source: Source) -> DataFrame:
    """The fields of Parquet rows by value, written out as text that reads back the same."""
    texts = {name: _text_column(columns, name, kind) for name, kind in columns.types}
    problems = [F.lit(f"bad {name}: a column of type {kind}") for name, kind in columns.unreadable]
    all_problems = [*problems, *_identifier_column_problems(columns, source)]
    return rows.select(
        *origin_columns(source),
        F.to_json(F.struct(*[text.alias(name) for name, text in texts.items()])).alias(TEXT)
        if texts
        else F.lit("{}").alias(TEXT),
        *[
            texts[name].alias(name) if name in texts else missing_field(name)
            for name in source.fields
        ],
        (
            F.coalesce(*all_problems).cast("string") if all_problems else F.lit(None).cast("string")
        ).alias(PROBLEM),
    )


def _identifier_column_problems(columns: ParquetColumns, source: Source) -> list[Column]:
    """The problems of identifiers that are neither strings nor whole numbers, null where null."""
    problems = []
    for name, kind in columns.types:
        whole = isinstance(kind, T.IntegralType) or getattr(kind, "scale", None) == 0
        fine = whole and name not in columns.nanoseconds
        if name in identifier_fields(source) and not (fine or isinstance(kind, T.StringType)):
            text = F.lit(f"bad {name}: a column of type {kind.simpleString()}")
            problems.append(F.when(_quoted_column(name).isNotNull(), text))
    return problems


def _text_column(columns: ParquetColumns, name: str, kind: T.DataType) -> Column:
    column = _quoted_column(name)
    if _is_nested(kind):
        return _json_column(column)
    if name in columns.nanoseconds:
        # Floor, also before 1970.
        column = F.timestamp_micros(F.floor(column / F.lit(1000).cast("decimal(4,0)")).cast("long"))
    return column.cast("string")


def _is_nested(kind: T.DataType) -> bool:
    return isinstance(kind, _NESTED)


def _json_column(column: Column) -> Column:
    return F.to_json(column, {"ignoreNullFields": "false"})


def _quoted_column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")
