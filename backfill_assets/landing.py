"""Landing files: whether each can be read, and their lines as text fields.

The only module that parses landing files; which there are is told by `listing`. What a field
*means* (a timestamp, money, a log day) is decided in `assets.raw`; here every field is still text.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from functools import reduce
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.listing import (
    CONTROL_FILE,
    NAMELESS,
    Entry,
    LandingError,
    Listing,
    folder_name,
    list_landing,
)
from backfill_assets.partitions import Window
from backfill_assets.retries import engine_lost
from backfill_assets.spark import SPARK_ERRORS
from backfill_assets.stores import open_store

Result = TypeVar("Result")

FIELDS = ("order_id", "customer_id", "order_ts", "amount", "ingestion_ts")
#: A file without one of these columns is no file of orders.
REQUIRED = ("order_id", "order_ts", "amount", "ingestion_ts")
_LINES_DDL = (
    "arrival_date DATE, source_file STRING, text STRING, "
    + ", ".join(f"{name} STRING" for name in FIELDS)
    + ", problem STRING"
)
_GLOB = re.compile(r"[\\{}\[\]*?]")
_BYTE_ORDER_MARK = "\ufeff"

# A number where an order has an identifier or an amount; an identifier takes whole numbers only.
_NUMBER = (
    r'((?<!\\)"(?:(?:order_id|customer_id)"[ \t]*:[ \t]*(?=-?[0-9]+[ \t]*[,}])'
    r'|amount"[ \t]*:[ \t]*))'
    r"(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(?=[ \t]*[,}])"
)
# An identifier or the amount is not simply a string, or a key may be escaped. One pattern a field:
# one that begins with plain text is found several times as fast as one with a choice.
_NOT_PLAIN = (
    r'"order_id"\s*:\s*(?!"|null\b|\s)',
    r'"customer_id"\s*:\s*(?!"|null\b|\s)',
    r'"amount"\s*:\s*(?!"|\s)',
    r"\\u",
)
# Half of a surrogate pair, as only a JSON escape can spell it. No text can hold it, so Spark makes
# the identifier null, and a null customer would pass.
_HALF_A_PAIR = (
    r"(?i)\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f][0-9a-f]{2})"
    r"|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2}"
)
# A field in quotes as it should be; `*+` because Java would recurse for each turn of a plain `*`.
_QUOTED = r'(^|,)"[^"]*+(?:""[^"]*+)*+"(?=,|\z)'
# Spark's CSV parser fails the whole job on a record with more fields than 20480.
_MOST_FIELDS = 20_000

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


@dataclass(frozen=True)
class LandingFile:
    """One landing file.

    Attributes:
        arrival_date: day of the folder it lies in.
        name: file name.
        url: what Spark opens, escaped where it would see a pattern.
        size: bytes.
    """

    arrival_date: date
    name: str
    url: str
    size: int

    @property
    def source_file(self) -> str:
        """The file's name in the tables: relative, so that moving the landing changes no row."""
        return f"{folder_name(self.arrival_date)}/{self.name}"

    @property
    def format(self) -> str:
        """`json`, `csv` or `parquet`."""
        suffix = self.name.removesuffix(".gz").rsplit(".", 1)[1]
        return "json" if suffix == "jsonl" else suffix


@dataclass(frozen=True)
class Control:
    """What the source says that it delivered on an arrival day.

    Attributes:
        rows: number of order lines.
        amount: sum of their amounts.
    """

    rows: int
    amount: Decimal


@dataclass(frozen=True)
class _Columns:
    """What is read of a Parquet file.

    Spark is told the types instead of finding them: one column that it cannot read (a half float, a
    time, a name in two spellings) would otherwise fail every file of the run.

    Attributes:
        types: the columns that Spark can read, by name.
        nanos: those of them that are timestamps in nanoseconds.
        odd: the types of the landing contract's fields that cannot be read, by name.
    """

    types: tuple[tuple[str, T.DataType], ...]
    nanos: frozenset[str]
    odd: tuple[tuple[str, str], ...]

    @property
    def schema(self) -> T.StructType:
        return T.StructType([T.StructField(name, kind) for name, kind in self.types])


@dataclass
class Landing:
    """What lies in the folders of some arrival days.

    Attributes:
        files: the readable files.
        broken: why a file cannot be read at all, by file.
        unknown: files of no known format; not read, worth a warning.
        controls: the source's own totals by arrival day, where it sends them.
        bad_controls: why a control file cannot be used, by arrival day.
        counts: non-blank data lines found, headers not counted, by the file's name in the tables.
    """

    files: list[LandingFile] = field(default_factory=list)
    broken: dict[LandingFile, str] = field(default_factory=dict)
    unknown: dict[date, list[str]] = field(default_factory=lambda: defaultdict(list))
    controls: dict[date, Control] = field(default_factory=dict)
    bad_controls: dict[date, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    _headers: dict[LandingFile, str] = field(default_factory=dict)
    _columns: dict[LandingFile, _Columns] = field(default_factory=dict)

    @property
    def unreadable(self) -> set[str]:
        """The names in the tables of the files that cannot be read."""
        return {file.source_file for file in self.broken}

    def broken_on(self, day: date) -> list[str]:
        """The unreadable files of an arrival day, each with its reason."""
        return [
            f"{f.source_file} ({why})" for f, why in self.broken.items() if f.arrival_date == day
        ]

    def leave_out(self, names: Collection[str]) -> bool:
        """Take out files that are not at rest, readable or not; whether any would have been read.

        Args:
            names: their names in the tables.
        """
        for file in [file for file in self.broken if file.source_file in names]:
            del self.broken[file]
        for day in [d for d in self.controls | self.bad_controls if _control(d) in names]:
            self.controls.pop(day, None)
            self.bad_controls.pop(day, None)
        stale = [file for file in self.files if file.source_file in names]
        self.files = [file for file in self.files if file.source_file not in names]
        return bool(stale)

    def drop(self, file: LandingFile, why: str) -> None:
        """Take a file out that turned out to be unreadable."""
        self.files.remove(file)
        self.broken[file] = why


def _control(day: date) -> str:
    return f"{folder_name(day)}/{CONTROL_FILE}"


def survey(
    spark: SparkSession, landing: str, days: Window, listing: Listing | None = None
) -> Landing:
    """See that each file of the arrival days can be read to its end, and count its lines.

    Args:
        spark: the session.
        landing: the landing folder.
        days: the arrival days.
        listing: of these days at least; made now if not given.

    Raises:
        LandingError: there is no `orders` folder at all: a wrong setting, not an empty day.
    """
    found = _look(landing, days, listing or list_landing(landing, days))
    found.counts = readable(found, lambda part: _count(spark, part))
    return found


def readable(found: Landing, work: Callable[[Landing], Result]) -> Result:
    """Do something with the files, without those that make Spark fail.

    Such a file is taken out and named, and the others are tried again; so one broken file never
    hides the rest. Where Spark does not say which one it is, it is found by halves: N files take
    log2(N) + 1 attempts besides the first and the last.

    Args:
        found: the files; those that cannot be read are dropped from it.
        work: anything that reads them all.

    Raises:
        Exception: what failed is not the files' doing.
    """
    while True:
        try:
            return work(found)
        except SPARK_ERRORS as error:
            if not found.files or engine_lost(error):
                raise
            file = _named_in(str(error), found.files) or _poisoned(found, work)
            if file is None:
                raise
            found.drop(file, _cause(str(error)))


def _poisoned(found: Landing, work: Callable[[Landing], Any]) -> LandingFile | None:
    """The first of the files that make the work fail; none if it is not one of them by itself.

    So it is when all of them are too much, or when there is no space left.
    """

    def fails(files: list[LandingFile]) -> bool:
        try:
            work(replace(found, files=files))
        except SPARK_ERRORS as error:
            if engine_lost(error):
                raise
            return True
        return False

    files, alone = sorted(found.files, key=lambda file: file.source_file), False
    while len(files) > 1:
        half, rest = files[: len(files) // 2], files[len(files) // 2 :]
        alone = fails(half)
        files = half if alone else rest
    return files[0] if alone or fails(files) else None


def _look(landing: str, days: Window, listing: Listing) -> Landing:
    filesystem, _ = open_store(landing)
    found = Landing()
    for day in days:
        folder = listing.folders.get(day)
        if folder is None:
            continue
        if folder.nameless:
            url = f"{landing}/orders/{folder_name(day)}/{NAMELESS}"
            found.broken[LandingFile(day, NAMELESS, url, 0)] = "rename it"
        if folder.unknown:
            found.unknown[day] += folder.unknown
        for entry in folder.files.values():
            if entry.name == CONTROL_FILE:
                _read_control(filesystem, entry.path, day, found)
            elif entry.size:
                _look_into(filesystem, entry, _file(landing, day, entry), found)
    return found


def _file(landing: str, day: date, entry: Entry) -> LandingFile:
    url = _literal(f"{landing}/orders/{folder_name(day)}/{entry.name}")
    return LandingFile(day, entry.name, url, entry.size)


def _literal(url: str) -> str:
    """A path for Spark, which would take the brackets of `part[1].json` for a glob.

    Not its option to turn globs off: with that, each such path stands for all paths that are read
    with it, and every order would count as often.
    """
    return _GLOB.sub(r"\\\g<0>", url)


def _read_control(filesystem: pafs.FileSystem, path: str, day: date, found: Landing) -> None:
    try:
        with filesystem.open_input_stream(path) as stream:
            said = json.loads(stream.read(), parse_float=Decimal, parse_int=Decimal)
        rows, amount = Decimal(said["rows"]), Decimal(said["amount"])
        # Size before value: the whole number of `1e999999999` would never be done.
        if not rows.is_finite() or rows.adjusted() > 18 or rows != int(rows):
            raise ValueError("rows must be a whole number")
        if not amount.is_finite():
            raise ValueError("amount must be a finite number")
        found.controls[day] = Control(int(rows), amount)
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError) as error:
        found.bad_controls[day] = (
            f"{CONTROL_FILE} is not {{'rows': N, 'amount': '0.00'}} "
            f"({type(error).__name__}: {error})"
        )


def _look_into(
    filesystem: pafs.FileSystem, entry: Entry, file: LandingFile, found: Landing
) -> None:
    """Read what must be known before Spark reads the file: Parquet types, the CSV header."""
    try:
        if file.format == "parquet":
            footer = pq.read_metadata(entry.path, filesystem=filesystem)
            found._columns[file] = _parquet_columns(footer)
        elif file.format == "csv":
            header = _first_line(filesystem, entry.path)
            if header is None:
                return
            _csv_names(header)
            found._headers[file] = header
    except (OSError, pa.ArrowException, EOFError, LandingError) as error:
        found.broken[file] = f"{type(error).__name__}: {(str(error) or '?').splitlines()[0][:200]}"
        return
    found.files.append(file)


def _parquet_columns(footer: pq.FileMetaData) -> _Columns:
    schema = footer.schema.to_arrow_schema()
    leaves = [footer.schema.column(n) for n in range(len(footer.schema))]
    # The timestamps of Impala, Hive and older Spark; Arrow shows them as nanoseconds.
    int96 = {leaf.path for leaf in leaves if leaf.physical_type == "INT96"}
    # Spark does not tell upper from lower case; `_metadata` is its own column.
    spellings = Counter([*(name.lower() for name in schema.names), "_metadata"])
    types, nanos, odd = {}, set(), {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        if spellings[name.lower()] > 1:
            if name in FIELDS:
                raise LandingError(f"more than one column is named {name}")
            continue
        spark_type = _spark_type(kind, name in int96)
        if spark_type is not None:
            types[name] = spark_type
            if isinstance(spark_type, T.LongType) and pa.types.is_timestamp(kind):
                nanos.add(name)
        elif name in FIELDS:
            odd[name] = str(kind)
    return _Columns(tuple(types.items()), frozenset(nanos), tuple(odd.items()))


def _spark_type(kind: pa.DataType, int96: bool) -> T.DataType | None:
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


def _first_line(filesystem: pafs.FileSystem, path: str) -> str | None:
    """The first line that is not blank, cut where Spark's text reader cuts."""
    compression = "gzip" if path.endswith(".gz") else None
    head = b""
    with filesystem.open_input_stream(path, compression=compression) as stream:
        while chunk := stream.read(65536):
            head += chunk
            # What follows the last line end may go on in the next chunk.
            if (line := _first_of(_lines_of(head)[:-1])) is not None:
                return line
            if len(head) > 1 << 20:
                break
    return _first_of(_lines_of(head))


def _lines_of(data: bytes) -> list[bytes]:
    return re.split(rb"\r\n|\n|\r", data)


def _first_of(lines: Iterable[bytes]) -> str | None:
    mark = _BYTE_ORDER_MARK.encode()
    whole = (line.removeprefix(mark) for line in lines)
    return next((line.decode(errors="replace") for line in whole if line.strip()), None)


def _named_in(message: str, files: Iterable[LandingFile]) -> LandingFile | None:
    """The file that Spark cannot read, or cannot find."""
    if "FAILED_READ_FILE" not in message and "PATH_NOT_FOUND" not in message:
        return None
    plain = unquote(message)
    named = [file for file in files if f"/{file.source_file}" in plain]
    # `a.json` is also the beginning of `a.jsonl`.
    return max(named, key=lambda file: len(file.name), default=None)


def _cause(message: str) -> str:
    causes = re.findall(r"Caused by: (?:[\w.$]+\.)?([\w$]+(?:: [^\n]+)?)", message)
    return causes[-1][:200] if causes else message.splitlines()[0][:200]


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def _by_header(found: Landing) -> Mapping[str, list[LandingFile]]:
    grouped: dict[str, list[LandingFile]] = defaultdict(list)
    for file, header in found._headers.items():
        if file in found.files:
            grouped[header].append(file)
    return grouped


def _by_columns(found: Landing) -> Mapping[_Columns, list[LandingFile]]:
    grouped: dict[_Columns, list[LandingFile]] = defaultdict(list)
    for file, columns in found._columns.items():
        if file in found.files:
            grouped[columns].append(file)
    return grouped


def _origin() -> tuple[Column, Column]:
    """Arrival day and file of a row, from the path that Spark read it from.

    Asked for every row, hence plain cuts rather than patterns.
    """
    tail = F.substring_index("_metadata.file_path", "/", -2)
    # A file path is percent-encoded, but a plus sign in it is a plus sign.
    decoded = F.url_decode(F.replace(tail, F.lit("+"), F.lit("%2B")))
    name = F.when(tail.contains("%"), decoded).otherwise(tail)
    return F.substring(tail, 14, 10).cast("date").alias("arrival_date"), name.alias("source_file")


def _text(
    spark: SparkSession, files: Sequence[LandingFile], header: str | None = None
) -> DataFrame:
    """The non-blank lines of text files; a line equal to the header is not data."""
    lines = spark.read.text([file.url for file in files])
    value = F.col("value")
    # Files that were put together from several have a byte-order mark within. (Not `ltrim`, which
    # takes the bytes of half a mark for a whole one.)
    text = F.when(value.startswith(_BYTE_ORDER_MARK), F.expr("substring(value, 2)"))
    lines = lines.select(*_origin(), text.otherwise(value).alias("text"))
    # What begins with more than a space needs no trimming, which is slow.
    begins, trimmed = F.col("text") >= "!", F.trim(F.col("text"), F.lit(" \t\v\f"))
    lines = lines.where(begins | (trimmed != ""))
    return lines if header is None else lines.where(F.make_valid_utf8("text") != F.lit(header))


def _rows(spark: SparkSession, files: Sequence[LandingFile], columns: _Columns) -> DataFrame:
    reader = spark.read.schema(columns.schema)
    return reader.parquet(*[file.url for file in files])


def _count(spark: SparkSession, found: Landing) -> dict[str, int]:
    """Lines by file, from a scan of its own that knows nothing of how lines are parsed.

    Conservation is measured against these counts. Every byte is read, so a file that breaks off in
    the middle is found here.
    """
    frames = []
    json_files = [file for file in found.files if file.format == "json"]
    if json_files:
        frames.append(_text(spark, json_files).select("source_file", F.lit(0).alias("touched")))
    for header, files in _by_header(found).items():
        lines = _text(spark, files, header)
        frames.append(lines.select("source_file", F.lit(0).alias("touched")))
    for columns, files in _by_columns(found).items():
        rows = _rows(spark, files, columns)
        # Asking for a hash of all columns makes Spark decode every page, not just the footer.
        touched = F.xxhash64(F.lit(0), *[_column(name) for name, _ in columns.types])
        frames.append(rows.select(_origin()[1], touched.alias("touched")))
    if not frames:
        return {}
    by_file = _union(frames).groupBy("source_file")
    counts = by_file.agg(F.count(F.lit(1)).alias("lines"), F.max("touched")).collect()
    return {row["source_file"]: row["lines"] for row in counts}


def read_lines(spark: SparkSession, found: Landing) -> DataFrame:
    """Every line of the surveyed files, with its fields as text.

    Columns: `arrival_date`, `source_file`, `text` (the line; a Parquet row as JSON), the five
    fields of the landing contract as text, and `problem` (why the line has no fields, or null).
    """
    frames = []
    json_files = [file for file in found.files if file.format == "json"]
    if json_files:
        frames.append(_json_fields(_text(spark, json_files)))
    for header, files in _by_header(found).items():
        frames.append(_csv_fields(_text(spark, files, header), header))
    for columns, files in _by_columns(found).items():
        frames.append(_parquet_fields(_rows(spark, files, columns), columns))
    if not frames:
        return spark.createDataFrame([], _LINES_DDL)
    return _union(frames)


def _json_fields(lines: DataFrame) -> DataFrame:
    """The fields of JSON lines: strings verbatim, numbers as they were written.

    A line is parsed as the only element of an array, in an envelope that only closes if the line is
    one whole value: Spark's parser otherwise ignores whatever follows the first one, and an order
    would be lost in silence. (Without the array, `{...},"x":{...}` would be more of the envelope.)
    Where identifiers and amount are plain strings, as nearly always, they are read as such; only
    the other lines pay for care. There, numbers are put in quotes before, as the parser would pass
    some of them through a double, and fields go through VARIANT, which tells a string from a
    boolean or an object.
    """
    text, careful = F.col("text"), F.col("_careful")
    quoted = F.regexp_replace("text", _NUMBER, '$1"$2"')
    kinds = "order_id {0}, customer_id {0}, order_ts STRING, amount {0}, ingestion_ts STRING"
    not_plain = reduce(Column.__or__, map(text.rlike, _NOT_PLAIN))
    frame = lines.withColumn("_careful", not_plain).withColumns(
        {
            "_plain": F.when(~careful, _from_json(text, kinds.format("STRING"))),
            "_json": F.when(careful, _from_json(quoted, kinds.format("VARIANT"))),
        }
    )

    def field(name: str) -> Column:
        cared_for = _variant_text(name) if "_ts" not in name else _only("_json")[name]
        return F.when(careful, cared_for).otherwise(_only("_plain")[name]).alias(name)

    whole = (
        F.coalesce("_json.closed", "_plain.closed")
        & (F.coalesce(F.array_size("_json.lines"), F.array_size("_plain.lines")) == 1)
        & (_only("_json").isNotNull() | _only("_plain").isNotNull())
    )
    nameless = _variant_text("order_id").isNull() | _variant_text("customer_id").isNull()
    problem = (
        F.when(~F.is_valid_utf8("text"), "not UTF-8")
        .when(~F.coalesce(whole, F.lit(False)), "not one JSON object")
        .when(careful & nameless & text.rlike(_HALF_A_PAIR), "half a surrogate pair")
        .when(careful, F.coalesce(_not_an_id("order_id"), _not_an_id("customer_id")))
    )
    return frame.select(
        "arrival_date", "source_file", "text", *map(field, FIELDS), problem.alias("problem")
    )


def _from_json(text: Column, fields: str) -> Column:
    envelope = F.concat(F.lit('{"lines":['), text, F.lit('],"closed":true}'))
    options = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
    return F.from_json(envelope, f"lines ARRAY<STRUCT<{fields}>>, closed BOOLEAN", options)


def _only(parsed: str) -> Column:
    return F.get(f"{parsed}.lines", F.lit(0))


def _variant_text(name: str) -> Column:
    return F.try_variant_get(_only("_json")[name], "$", "string")


def _not_an_id(name: str) -> Column:
    """The problem of an identifier that is neither a string nor a whole number, else null."""
    # Only text that could come of something else is asked for its type.
    doubtful = _variant_text(name).rlike(r"^(true\z|false\z|[\[{]|-?[0-9])")
    kind = F.schema_of_variant(_only("_json")[name])
    return F.when(doubtful, F.when(kind != "STRING", F.lit(f"bad {name}: not a string")))


def _csv_fields(lines: DataFrame, header: str) -> DataFrame:
    """The fields of CSV records, found by the header's names in whatever order."""
    names = _csv_names(header)
    places = {name: f"_csv.c{names.index(name)}" for name in FIELDS if name in names}
    ddl = ", ".join(f"c{n} STRING" for n in range(len(names))) + ", _malformed STRING"
    options = {"escape": '"', "columnNameOfCorruptRecord": "_malformed"}
    text = F.col("text")
    narrow = (F.length(text) < _MOST_FIELDS) | (F.regexp_count(text, F.lit(",")) < _MOST_FIELDS)
    frame = lines.withColumn("_csv", F.from_csv(F.when(narrow, text), ddl, options))
    loose_quotes = text.contains('"') & F.regexp_replace(text, _QUOTED, "$1").contains('"')
    misfit = F.col("_csv").isNull() | F.col("_csv._malformed").isNotNull()
    problem = (
        F.when(~F.is_valid_utf8("text"), "not UTF-8")
        .when(loose_quotes, "a quote out of place")
        .when(misfit, f"not {len(names)} fields as in the header")
    )
    return frame.select(
        "arrival_date",
        "source_file",
        "text",
        *[F.col(places[n]).alias(n) if n in places else _none(n) for n in FIELDS],
        problem.alias("problem"),
    )


def _csv_names(header: str) -> list[str]:
    """The column names of a CSV file.

    Raises:
        LandingError: its first line is not a header with each required field once. Without a
            header a file would lose its first line, and all others would be rejected.
    """
    try:
        names = [name.strip() for name in next(csv.reader([header], strict=True))]
    except csv.Error as error:
        raise LandingError(f"its first line is not a header: {error}") from None
    if missing := [name for name in REQUIRED if name not in names]:
        raise LandingError(f"its first line is not a header with {', '.join(missing)}")
    if twice := [name for name in FIELDS if names.count(name) > 1]:
        raise LandingError(f"more than one column is named {', '.join(twice)}")
    if len(names) > _MOST_FIELDS:
        raise LandingError(f"its header has {len(names)} columns, more than {_MOST_FIELDS}")
    return names


def _parquet_fields(rows: DataFrame, columns: _Columns) -> DataFrame:
    """The fields of Parquet rows by value, written out as text that reads back the same."""
    texts = {name: _parquet_text(columns, name) for name, _ in columns.types}
    odd = [F.lit(f"bad {name}: a column of type {kind}") for name, kind in columns.odd]
    doubts = [*odd, *_parquet_ids(columns)]
    return rows.select(
        *_origin(),
        F.to_json(F.struct(*[text.alias(name) for name, text in texts.items()])).alias("text")
        if texts
        else F.lit("{}").alias("text"),
        *[texts[name].alias(name) if name in texts else _none(name) for name in FIELDS],
        (F.coalesce(*doubts).cast("string") if doubts else F.lit(None).cast("string")).alias(
            "problem"
        ),
    )


def _parquet_ids(columns: _Columns) -> list[Column]:
    """The problems of identifiers that are neither strings nor whole numbers, null where null."""
    problems = []
    for name, kind in columns.types:
        whole = isinstance(kind, T.IntegralType) or getattr(kind, "scale", None) == 0
        fine = whole and name not in columns.nanos
        if name in ("order_id", "customer_id") and not (fine or isinstance(kind, T.StringType)):
            text = F.lit(f"bad {name}: a column of type {kind.simpleString()}")
            problems.append(F.when(_column(name).isNotNull(), text))
    return problems


def _parquet_text(columns: _Columns, name: str) -> Column:
    column = _column(name)
    if name in columns.nanos:
        # Floor, also before 1970.
        column = F.timestamp_micros(F.floor(column / F.lit(1000).cast("decimal(4,0)")).cast("long"))
    return column.cast("string")


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _none(name: str) -> Column:
    return F.lit(None).cast("string").alias(name)
