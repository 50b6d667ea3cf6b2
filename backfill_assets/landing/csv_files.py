"""CSV files of the landing: their header, their records in a source's dialect, and the fields."""

import codecs
import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow.fs as pafs
import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.escaping import escape_line
from backfill_assets.landing import formats
from backfill_assets.landing.formats import TEXT
from backfill_assets.landing.listing import LandingError
from backfill_assets.spark.filesystems import read_options
from backfill_assets.tables.arguments import NO_CHARACTER, UTF_8, UTF_16, high_characters
from backfill_assets.tables.sources import Source

#: By the marks that a file may begin with, its encoding, whatever that of the source.
_MARKS = {codecs.BOM_UTF8: UTF_8, codecs.BOM_UTF16_LE: UTF_16, codecs.BOM_UTF16_BE: UTF_16}
_IN_QUOTED_LINES = "it has text in quotes over several lines"
#: Why Spark reads a file whole, up to its size.
WHY_WHOLE = f"{_IN_QUOTED_LINES}, and"
#: The encoding in which each byte is a character of the same number.
_BYTES = "ISO-8859-1"


@dataclass(frozen=True)
class CsvHeader:
    """How the records of a CSV file are read.

    Attributes:
        text: the first record; empty if the source has files without a header.
        encoding: of the file: as its mark says, or as the source does.
        ends_in_delimiter: whether records of a file without a header have a delimiter after the
            last field, as those of TPC-H's `dbgen`: the first one tells.
    """

    text: str
    encoding: str = UTF_8
    ends_in_delimiter: bool = False


# A correctly quoted field; `*+` because Java recurses for each repetition of a plain `*`.
_QUOTED = r"(^|{0}){1}[^{1}]*+(?:{1}{1}[^{1}]*+)*+{1}(?={0}|\z)"
# The end of a text, in Java and Python.
_END = r"(?![\s\S])"
# A field in quotes up to what ends it.
_IN_QUOTES = r"{1}[^{1}]*+(?:{1}{1}[^{1}]*+)*+"
# Any field: in quotes, which may lack an end or be followed by what is out of place; or without.
_FIELD = rf"(?:{_IN_QUOTES}(?:{{1}}[^{{0}}\r\n]*+|{_END})|(?!{{1}})[^{{0}}\r\n]*+)"
_MARK_BYTES = r"(?:\xef\xbb\xbf)?+"
# Spark's CSV parser fails the whole job on a record with more fields than 20480.
_MOST_FIELDS = 20_000
# Maximum characters of a header in a message.
_EXCERPT_LENGTH = 120


def _quote(source: Source) -> str:
    """The character around text; NUL, which no record may have then, if there is none."""
    return source.quote or "\0"


def _in_dialect(pattern: str, source: Source) -> str:
    """A pattern with the delimiter as `{0}` and the quote as `{1}`."""
    return pattern.format(re.escape(source.delimiter), re.escape(_quote(source)))


def record_pattern(source: Source) -> str:
    """A pattern for a CSV record up to its end, of bytes as characters; the record is group 1.

    It matches any text, so that no byte is left out. A line break in quotes does not end a record.
    """
    field = _in_dialect(_FIELD, source)
    record = rf"{field}(?:{re.escape(source.delimiter)}{field})*+"
    if source.comment:
        record = rf"(?:{re.escape(source.comment)}[^\r\n]*+|{record})"
    return rf"({_MARK_BYTES}{record})(?:\r\n|[\r\n]|{_END})"


def open_line_pattern(source: Source) -> str:
    """A pattern for a line that ends in quotes: its record goes on in the next line."""
    return _in_dialect(rf"\A(?:{_FIELD}{{0}})*+{_IN_QUOTES}{_END}", source)


# --- records, by Spark ----------------------------------------------------------------------------


def csv_lines(
    spark: SparkSession, source: Source, urls: Sequence[str], max_bytes: int, header: CsvHeader
) -> DataFrame:
    """The lines of CSV files that are records, without their header and comments."""
    lines = formats.all_lines(spark, source, urls, max_bytes)
    if header.encoding != UTF_8:
        characters = F.decode(F.col(TEXT).cast("binary"), _BYTES)
        lines = lines.withColumn(TEXT, _decoded(characters, header))
    return _data_records(lines, source, header)


def multiline_records(
    spark: SparkSession, source: Source, urls: Sequence[str], header: CsvHeader
) -> DataFrame:
    """The records of CSV files that are read whole, as `csv_lines`.

    These are files in which text in quotes goes over several lines, or in UTF-16. Spark holds each
    file in memory, several times. (Its own reader of such files loses the text of a record, and
    takes bytes that are not UTF-8 for others.)
    """
    files = spark.read.options(**read_options(urls)).text([*urls], wholetext=True)
    # Each byte is a character of Latin-1, so text that is not UTF-8 stays as it is.
    encoding = "UTF-16" if header.encoding == UTF_16 else _BYTES
    characters = F.decode(F.col("value").cast("binary"), encoding)
    records = F.regexp_extract_all(characters, F.lit(record_pattern(source)), F.lit(1))
    exploded = files.select(*formats.origin_columns(source), F.explode(records).alias(TEXT))
    text = F.col(TEXT)
    if header.encoding == UTF_8:
        text = F.encode(text, _BYTES).cast("string")
    elif header.encoding != UTF_16:
        text = _decoded(text, header)
    return _data_records(exploded.withColumn(TEXT, text), source, header)


def _decoded(characters: Column, header: CsvHeader) -> Column:
    """Text of an encoding of one byte a character, of which each byte is a character of Latin-1."""
    high = "".join(map(chr, range(0x80, 0x100)))
    own = high_characters(header.encoding)
    return characters if own == high else F.translate(characters, high, own)


def _data_records(records: DataFrame, source: Source, header: CsvHeader) -> DataFrame:
    """The records without blank ones, comments and those that equal the header."""
    records = formats.nonblank_texts(records)
    if source.comment:
        records = records.where(~F.col(TEXT).startswith(source.comment))
    if header.text:
        records = records.where(F.make_valid_utf8(TEXT) != F.lit(header.text))
    return records


def doubtful_text(source: Source, max_bytes: int, *, multiline: bool) -> Column:
    """The beginning of a line or record that ends in quotes, so it may go on; null if it does not.

    Args:
        source: whose files they are.
        max_bytes: the length that no record may exceed.
        multiline: whether the texts are records: then one over several lines is doubtful, too, if
            a quote is out of place, as it may begin what is no text in quotes.
    """
    text = F.col(TEXT)
    if not source.quote:
        return F.lit(None).cast("string")
    doubtful = text.contains(source.quote) & text.rlike(open_line_pattern(source))
    if multiline:
        unsure = has_loose_quotes(source) | (F.octet_length(text) > max_bytes)
        doubtful |= text.rlike(r"[\r\n]") & unsure
    return F.when(doubtful, F.make_valid_utf8(F.substring(text, 1, _EXCERPT_LENGTH + 1)))


def describe_doubtful(text: str) -> str:
    """Why a file with a doubtful record over several lines cannot be read."""
    return (
        f"LandingError: {_IN_QUOTED_LINES}, but there is a quote out of place "
        "or without an end, or the text is longer than a line may be. Quote it as RFC 4180 says"
        f"{_header_excerpt(text)}"
    )


# --- headers and records, without Spark -----------------------------------------------------------


def read_header(filesystem: pafs.FileSystem, path: str, source: Source) -> CsvHeader | None:
    """The first record that is no comment, and the encoding; None if there is no record.

    Raises:
        LandingError: it is not a header with each required field once; or the source says that its
            files have none, and it is one; or the encoding is not that of the source.
    """
    compression = "gzip" if path.endswith(".gz") else None
    head, encoding = b"", ""
    with filesystem.open_input_stream(path, compression=compression) as stream:
        while chunk := stream.read(65536):
            head += chunk
            encoding = file_encoding(head, source)
            # The text after the last line end may continue in the next chunk.
            if next(csv_texts(head, source, encoding, end=False), None) or len(head) > 1 << 20:
                break
    # A record longer than 1 MiB may be cut.
    record = next(csv_texts(head, source, encoding), None)
    if record is None:
        return None
    if source.header:
        header = CsvHeader(record, encoding)
        header_columns(header, source)
        return header
    try:
        texts = split_record(record, source)
    except csv.Error:
        texts = []
    _raise_if_header(record, texts, source)
    return CsvHeader("", encoding, texts[len(source.fields) :] == [""])


def _raise_if_header(record: str, texts: Sequence[str], source: Source) -> None:
    """Raise if the first record of a file that is to have no header is one."""
    if {*source.fields} <= {*formats.match_fields(texts, source.fields, source.rename)}:
        raise LandingError(
            "its first line is a header, and the source is declared with header=False: leave that "
            f"out, or have the source send files without one{_header_excerpt(record)}"
        )


def file_encoding(head: bytes, source: Source) -> str:
    """The encoding of a file that begins with some bytes.

    Raises:
        LandingError: the source says that it is UTF-16, and it has no mark of that.
    """
    marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if marked is None and source.text_encoding == UTF_16:
        raise LandingError(
            "it does not begin with the mark of UTF-16 (FF FE or FE FF): have the source send it "
            f"with the mark, or declare its encoding, which is {source.encoding!r} now"
        )
    return marked or source.text_encoding


def csv_texts(
    data: bytes, source: Source, encoding: str = UTF_8, *, end: bool = True
) -> Iterator[str]:
    """The records of a part of a CSV file that begins with one, without blank ones and comments.

    Unless it is the end of the file, the last one, which may go on, is left out.
    """
    if encoding != UTF_8:
        whole = data[: len(data) // 2 * 2] if encoding == UTF_16 else data
        data = whole.decode(encoding, errors="replace").encode()
    mark = formats.BYTE_ORDER_MARK.encode()
    for match in re.finditer(record_pattern(source).encode("latin-1"), data):
        record = match[1].removeprefix(mark)
        if source.comment and record.startswith(source.comment.encode()):
            continue
        if record.strip() and (end or match.end() < len(data)):
            yield record.decode(errors="replace")


def split_record(record: str, source: Source) -> list[str]:
    """The texts of a record's fields.

    Raises:
        csv.Error: it is not of the source's dialect.
    """
    reader = csv.reader(
        [record],
        delimiter=source.delimiter,
        quotechar=source.quote or None,
        quoting=csv.QUOTE_MINIMAL if source.quote else csv.QUOTE_NONE,
        strict=True,
    )
    return next(reader)


def header_columns(header: CsvHeader, source: Source) -> list[str]:
    """The column names of a CSV file; the fields of the source if its files have no header.

    What is after a last delimiter is a column without a name.

    Raises:
        LandingError: the first line is not a header with each required field once. A file without a
            header would lose its first line, and all other lines would be rejected.
    """
    if not source.header:
        return [*source.fields, *[""] * header.ends_in_delimiter]
    try:
        record = split_record(header.text, source)
    except csv.Error as error:
        raise LandingError(
            f"its first line is not a header: {error}{_header_excerpt(header.text)}"
        ) from None
    names = formats.match_fields([name.strip() for name in record], source.fields, source.rename)
    required = [name for name in source.fields if name not in source.may_be_null]
    if missing := [name for name in required if name not in names]:
        separated = f", separated by {source.delimiter!r}" if len(names) == 1 else ""
        advice = "" if {*names} & {*source.fields} else _OTHER_HEADER
        raise LandingError(
            f"its first line is not a header with {', '.join(missing)}{separated}"
            f"{_header_excerpt(header.text)}{advice}"
        )
    if repeated := [name for name in source.fields if names.count(name) > 1]:
        raise LandingError(
            f"more than one column is named {', '.join(repeated)}{_header_excerpt(header.text)}"
        )
    if len(names) > _MOST_FIELDS:
        raise LandingError(f"its header has {len(names)} columns, more than {_MOST_FIELDS}")
    return names


#: What helps if none of a file's first texts is a field.
_OTHER_HEADER = (
    ". If the source sends no header, declare it with header=False; if it has other names for the "
    'fields, with rename={"Name in the file": "field"}'
)


def _header_excerpt(header: str) -> str:
    """The beginning of a header for a message, with invisible characters escaped."""
    text = escape_line(header)
    return f": it is {text[:_EXCERPT_LENGTH]}{' ...' if len(text) > _EXCERPT_LENGTH else ''}"


# --- fields ---------------------------------------------------------------------------------------


def csv_records(lines: DataFrame, header: CsvHeader, source: Source) -> DataFrame:
    """The fields of CSV records, found by the names in the header, in any order."""
    names = header_columns(header, source)
    places = {name: f"_csv.c{names.index(name)}" for name in source.fields if name in names}

    def cell(name: str) -> Column:
        value = F.col(places[name])
        return F.when(~value.isin(*source.null), value) if source.null else value

    def field_column(name: str) -> Column:
        if name not in places:
            return formats.missing_field(name)
        return _plain_number(cell(name), source, source.types[name]).alias(name)

    ddl = ", ".join(f"c{n} STRING" for n in range(len(names))) + ", _malformed STRING"
    options = {
        "sep": source.delimiter,
        "quote": _quote(source),
        "escape": _quote(source),
        "columnNameOfCorruptRecord": "_malformed",
    }
    text = F.col(TEXT)
    delimiters = F.regexp_count(_unquoted_text(source), F.lit(re.escape(source.delimiter)))
    narrow = (F.length(text) < _MOST_FIELDS) | (delimiters < _MOST_FIELDS)
    frame = lines.withColumn("_csv", F.from_csv(F.when(narrow, text), ddl, options))
    misfit = F.col("_csv").isNull() | F.col("_csv._malformed").isNotNull()
    is_encoded = F.is_valid_utf8(text)
    if header.encoding not in (UTF_8, UTF_16):
        is_encoded = ~text.contains(NO_CHARACTER)
    expected = "as in the header" if source.header else "as the source has"
    if header.ends_in_delimiter:
        misfit |= F.coalesce(F.col(f"_csv.c{len(source.fields)}") != "", F.lit(False))
        expected += f", each with {source.delimiter!r} after it, as in the first line"
    problem = (
        F.when(~is_encoded, f"not {header.encoding.upper()}")
        .when(has_loose_quotes(source), "a quote out of place")
        .when(_has_quoted_nul(source), "a NUL in quotes" if source.quote else "a NUL")
        .when(misfit, f"not {len(names) - header.ends_in_delimiter} fields {expected}")
    )
    wrong_numbers = (_number_problem(cell(name), source, name) for name in places)
    return frame.select(
        "arrival_date",
        "source_file",
        TEXT,
        *map(field_column, source.fields),
        F.coalesce(problem, *wrong_numbers).alias(formats.PROBLEM),
        formats.lacking_fields(source, places),
    )


def number_pattern_of(source: Source, *, whole: bool) -> str:
    """A pattern for a number in the source's CSV files, whose thousands are grouped or not."""
    groups = rf"\d{{1,3}}(?:{re.escape(source.thousands)}\d{{3}})+|" if source.thousands else ""
    decimals = "" if whole else rf"(?:{re.escape(source.decimal)}\d*)?(?:[eE][+-]?\d+)?"
    return rf"^[+-]?(?:{groups}\d*){decimals}\z"


def _plain_number(text: Column, source: Source, kind: T.DataType) -> Column:
    """A number with a point and without groups of thousands; any other text as it is."""
    is_whole = isinstance(kind, T.LongType)
    point, own_point = ("", "") if is_whole else (".", source.decimal)
    if not isinstance(kind, T.LongType | T.DecimalType) or own_point + source.thousands == point:
        return text
    plain = F.translate(text, own_point + source.thousands, point)
    return F.when(text.rlike(number_pattern_of(source, whole=is_whole)), plain).otherwise(text)


def _number_problem(text: Column, source: Source, name: str) -> Column:
    """Why a decimal is none, if its text would be another number with a point; else null."""
    if not isinstance(source.types[name], T.DecimalType) or source.decimal == ".":
        return F.lit(None).cast("string")
    is_number = text.rlike(number_pattern_of(source, whole=False))
    example = f"1{source.thousands}234{source.decimal}50"
    return F.when((text != "") & ~is_number, f"bad {name}: not a number as {example}")


def has_loose_quotes(source: Source) -> Column:
    """Whether a record has a quote that is not of a correctly quoted field."""
    quote = _quote(source)
    return F.col(TEXT).contains(quote) & _unquoted_text(source).contains(quote)


def _has_quoted_nul(source: Source) -> Column:
    """Whether a field in quotes has a NUL, which Spark's parser drops; any, if there are none."""
    text, nul = F.col(TEXT), F.lit(r"\x00")
    if not source.quote:
        return text.contains("\0")
    quoted_count = F.regexp_count(text, nul) - F.regexp_count(_unquoted_text(source), nul)
    return text.contains("\0") & text.contains(source.quote) & (quoted_count > 0)


def _unquoted_text(source: Source) -> Column:
    """A record without its correctly quoted fields."""
    return F.regexp_replace(TEXT, _in_dialect(_QUOTED, source), "$1")
