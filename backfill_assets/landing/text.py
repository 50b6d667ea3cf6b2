"""Lines of text files as Spark reads them, and what the readers of all formats share."""

from __future__ import annotations

from collections.abc import Sequence

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.tables.columns import holds_json
from backfill_assets.tables.sources import Source

BYTE_ORDER_MARK = "\ufeff"
#: The line as it landed (a Parquet row as JSON), and why it has no fields; no field is named so.
TEXT, PROBLEM = "_text", "_problem"


def lines_schema(source: Source) -> T.StructType:
    """The columns of what the readers give: origin and text of a line, its fields, its problem."""
    texts = ("source_file", TEXT, *source.fields, PROBLEM)
    return T.StructType(
        [
            T.StructField("arrival_date", T.DateType()),
            *(T.StructField(name, T.StringType()) for name in texts),
        ]
    )


def origin_columns(source: Source) -> tuple[Column, Column]:
    """Arrival day and file of a row, from the path that Spark read it from.

    Asked for every row, hence plain cuts rather than patterns.
    """
    tail = F.substring_index("_metadata.file_path", "/", -3 if source.hourly else -2)
    # A file path is percent-encoded, but a plus sign in it is a plus sign.
    decoded = F.url_decode(F.replace(tail, F.lit("+"), F.lit("%2B")))
    name = F.when(tail.contains("%"), decoded).otherwise(tail)
    return F.substring(tail, 14, 10).cast("date").alias("arrival_date"), name.alias("source_file")


def text_lines(
    spark: SparkSession,
    source: Source,
    urls: Sequence[str],
    max_bytes: int,
    header: str | None = None,
) -> DataFrame:
    """The non-blank lines of text files; a line equal to the header is not data.

    Args:
        spark: the session.
        source: whose files they are.
        urls: the files.
        max_bytes: no line has more bytes. Of a file that was put in the place of the one which was
            looked at, longer lines are skipped rather than held in memory.
        header: the first line of the files.
    """
    # Hadoop's reader counts the end of a line, and takes what is shorter than this.
    reader = spark.read.option("mapreduce.input.linerecordreader.line.maxlength", max_bytes + 3)
    lines = reader.text([*urls])
    value, text = F.col("value"), F.col(TEXT)
    # Files that were put together from several have a byte-order mark within. (Not `ltrim`, which
    # takes the bytes of half a mark for a whole one.)
    marked = F.when(value.startswith(BYTE_ORDER_MARK), F.expr("substring(value, 2)"))
    lines = lines.select(*origin_columns(source), marked.otherwise(value).alias(TEXT))
    # What begins with more than a space needs no trimming, which is slow.
    starts_with_text, trimmed = text >= "!", F.trim(text, F.lit(" \t\v\f"))
    lines = lines.where(starts_with_text | (trimmed != ""))
    return lines if header is None else lines.where(F.make_valid_utf8(text) != F.lit(header))


def identifier_fields(source: Source) -> tuple[str, ...]:
    """The fields that are text verbatim: a string, or a whole number as it is written."""
    return tuple(
        name
        for name, kind in source.types.items()
        if isinstance(kind, T.StringType) and not holds_json(source.columns[name])
    )


def json_fields(source: Source) -> tuple[str, ...]:
    """The fields that hold JSON text."""
    return tuple(name for name, column in source.columns.items() if holds_json(column))


def decimal_fields(source: Source) -> tuple[str, ...]:
    """The fields that are exact numbers with decimals."""
    return tuple(name for name, kind in source.types.items() if isinstance(kind, T.DecimalType))


def missing_field(name: str) -> Column:
    """A field that a file does not have."""
    return F.lit(None).cast("string").alias(name)
