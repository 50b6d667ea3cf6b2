"""CSV files: the header, read before Spark reads the file, and records as fields of text."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable

import pyarrow.fs as pafs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.escaping import escape_line
from backfill_assets.landing.listing import LandingError
from backfill_assets.landing.text import BYTE_ORDER_MARK, PROBLEM, TEXT, missing_field
from backfill_assets.tables.sources import Source

# A field in quotes as it should be; `*+` because Java would recurse for each turn of a plain `*`.
_QUOTED = r'(^|,)"[^"]*+(?:""[^"]*+)*+"(?=,|\z)'
# Spark's CSV parser fails the whole job on a record with more fields than 20480.
_MOST_FIELDS = 20_000
# Characters of a header in a message.
_EXCERPT_LENGTH = 120


def read_header(filesystem: pafs.FileSystem, path: str, source: Source) -> str | None:
    """The first line that is not blank, cut where Spark's text reader cuts; none if all are.

    Raises:
        LandingError: it is not a header with each required field once.
    """
    header = _first_line(filesystem, path)
    if header is not None:
        header_columns(header, source)
    return header


def _first_line(filesystem: pafs.FileSystem, path: str) -> str | None:
    compression = "gzip" if path.endswith(".gz") else None
    head = b""
    with filesystem.open_input_stream(path, compression=compression) as stream:
        while chunk := stream.read(65536):
            head += chunk
            # What follows the last line end may go on in the next chunk.
            if (line := _first_nonblank(_split_lines(head)[:-1])) is not None:
                return line
            if len(head) > 1 << 20:
                break
    return _first_nonblank(_split_lines(head))


def _split_lines(data: bytes) -> list[bytes]:
    return re.split(rb"\r\n|\n|\r", data)


def _first_nonblank(lines: Iterable[bytes]) -> str | None:
    mark = BYTE_ORDER_MARK.encode()
    unmarked = (line.removeprefix(mark) for line in lines)
    return next((line.decode(errors="replace") for line in unmarked if line.strip()), None)


def header_columns(header: str, source: Source) -> list[str]:
    """The column names of a CSV file.

    Raises:
        LandingError: its first line is not a header with each required field once. Without a
            header a file would lose its first line, and all others would be rejected.
    """
    try:
        names = [name.strip() for name in next(csv.reader([header], strict=True))]
    except csv.Error as error:
        raise LandingError(
            f"its first line is not a header: {error}{_header_excerpt(header)}"
        ) from None
    required = [name for name in source.fields if name not in source.may_be_null]
    if missing := [name for name in required if name not in names]:
        raise LandingError(
            f"its first line is not a header with {', '.join(missing)}{_header_excerpt(header)}"
        )
    if repeated := [name for name in source.fields if names.count(name) > 1]:
        raise LandingError(
            f"more than one column is named {', '.join(repeated)}{_header_excerpt(header)}"
        )
    if len(names) > _MOST_FIELDS:
        raise LandingError(f"its header has {len(names)} columns, more than {_MOST_FIELDS}")
    return names


def _header_excerpt(header: str) -> str:
    """The first line as a message shows it: the beginning, with what cannot be seen spelled out."""
    text = escape_line(header)
    return f": it is {text[:_EXCERPT_LENGTH]}{' ...' if len(text) > _EXCERPT_LENGTH else ''}"


def csv_records(lines: DataFrame, header: str, source: Source) -> DataFrame:
    """The fields of CSV records, found by the header's names in whatever order."""
    names = header_columns(header, source)
    places = {name: f"_csv.c{names.index(name)}" for name in source.fields if name in names}

    def field_column(name: str) -> Column:
        return F.col(places[name]).alias(name) if name in places else missing_field(name)

    ddl = ", ".join(f"c{n} STRING" for n in range(len(names))) + ", _malformed STRING"
    options = {"escape": '"', "columnNameOfCorruptRecord": "_malformed"}
    text = F.col(TEXT)
    narrow = (F.length(text) < _MOST_FIELDS) | (F.regexp_count(text, F.lit(",")) < _MOST_FIELDS)
    frame = lines.withColumn("_csv", F.from_csv(F.when(narrow, text), ddl, options))
    loose_quotes = text.contains('"') & F.regexp_replace(text, _QUOTED, "$1").contains('"')
    misfit = F.col("_csv").isNull() | F.col("_csv._malformed").isNotNull()
    problem = (
        F.when(~F.is_valid_utf8(text), "not UTF-8")
        .when(loose_quotes, "a quote out of place")
        .when(misfit, f"not {len(names)} fields as in the header")
    )
    return frame.select(
        "arrival_date",
        "source_file",
        TEXT,
        *map(field_column, source.fields),
        problem.alias(PROBLEM),
    )
