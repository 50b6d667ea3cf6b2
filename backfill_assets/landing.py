"""The landing folder: which files an arrival day has, and their lines as text fields.

The only module that touches landing files. What a field *means* (a timestamp, money, a log day) is
decided in `assets.raw`; here every field is still text.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal, InvalidOperation
from functools import reduce
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.partitions import Window

FIELDS = ("order_id", "customer_id", "order_ts", "amount", "ingestion_ts")
CONTROL_FILE = "_control.json"
_LINES_DDL = (
    "arrival_date DATE, source_file STRING, text STRING, "
    + ", ".join(f"{name} STRING" for name in FIELDS)
    + ", problem STRING"
)
_KNOWN = re.compile(r"\.(jsonl|json|csv)(\.gz)?$|\.parquet$")
# A Spark file name pattern would take the brackets of `part[1].json` for a glob.
_VERBATIM = {"__globPaths__": "false"}


class LandingError(RuntimeError):
    """The landing folder as a whole is not what the settings say."""


@dataclass(frozen=True)
class LandingFile:
    """One landing file.

    Attributes:
        arrival_date: day of the folder it lies in.
        name: file name.
        url: what Spark opens.
        size: bytes.
    """

    arrival_date: date
    name: str
    url: str
    size: int

    @property
    def source_file(self) -> str:
        """The file's name in the tables: relative, so that moving the landing changes no row."""
        return f"arrival_date={self.arrival_date}/{self.name}"

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


@dataclass
class Landing:
    """What lies in the folders of some arrival days.

    Attributes:
        files: the readable files.
        broken: why a file cannot be read at all, by file.
        unknown: files of no known format; not read, worth a warning.
        controls: the source's own totals by arrival day, where it sends them.
        bad_controls: why a control file cannot be used, by arrival day.
        lines: non-blank data lines found in each file, headers not counted.
    """

    files: list[LandingFile] = field(default_factory=list)
    broken: dict[LandingFile, str] = field(default_factory=dict)
    unknown: dict[date, list[str]] = field(default_factory=lambda: defaultdict(list))
    controls: dict[date, Control] = field(default_factory=dict)
    bad_controls: dict[date, str] = field(default_factory=dict)
    lines: dict[date, int] = field(default_factory=lambda: defaultdict(int))
    _headers: dict[LandingFile, str] = field(default_factory=dict)
    _schemas: dict[LandingFile, pa.Schema] = field(default_factory=dict)

    def broken_on(self, day: date) -> list[str]:
        """The unreadable files of an arrival day, each with its reason."""
        return [
            f"{f.source_file} ({why})" for f, why in self.broken.items() if f.arrival_date == day
        ]

    def drop(self, file: LandingFile, why: str) -> None:
        """Take a file out that turned out to be unreadable."""
        self.files.remove(file)
        self.broken[file] = why


def survey(spark: SparkSession, landing: str, days: Window) -> Landing:
    """Find the files of the arrival days, see that each can be read to its end, count its lines.

    A file that Spark cannot read is taken out and named, and the others are tried again; so one
    broken file never hides the rest.

    Raises:
        LandingError: there is no `orders` folder at all: a wrong setting, not an empty day.
    """
    found = _list(landing, days)
    while True:
        try:
            found.lines = _count(spark, found)
        except Exception as error:  # noqa: BLE001 - re-raised unless Spark names a file of ours
            file = _named_in(str(error), found.files)
            if file is None:
                raise
            found.drop(file, _cause(str(error)))
        else:
            return found


def _list(landing: str, days: Window) -> Landing:
    filesystem, root = _open(landing)
    base = f"{root}/orders"
    if filesystem.get_file_info(base).type != pafs.FileType.Directory:
        raise LandingError(
            f"there is no folder {landing}/orders: set BACKFILL_ASSETS_LANDING to the folder that "
            "holds orders/arrival_date=YYYY-MM-DD/. Nothing was written."
        )
    found = Landing()
    for day in days:
        folder = pafs.FileSelector(f"{base}/arrival_date={day}", allow_not_found=True)
        for info in sorted(filesystem.get_file_info(folder), key=lambda i: i.base_name):
            url = f"{landing}/orders/arrival_date={day}/{info.base_name}"
            file = LandingFile(day, info.base_name, url, info.size or 0)
            if info.base_name == CONTROL_FILE:
                _read_control(filesystem, info.path, day, found)
            elif info.base_name.startswith(("_", ".")):
                continue
            elif info.type != pafs.FileType.File or not _KNOWN.search(info.base_name):
                found.unknown[day].append(file.source_file)
            elif info.size:
                _look_into(filesystem, info.path, file, found)
    return found


def _open(landing: str) -> tuple[pafs.FileSystem, str]:
    # Hadoop's names of the schemes; Arrow has its own for the same stores.
    url = re.sub(r"^s3[an]://", "s3://", landing)
    if "://" not in url:
        return pafs.LocalFileSystem(), url
    filesystem, path = pafs.FileSystem.from_uri(url)
    return filesystem, path


def _read_control(filesystem: pafs.FileSystem, path: str, day: date, found: Landing) -> None:
    with filesystem.open_input_stream(path) as stream:
        text = stream.read()
    try:
        said = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        rows, amount = Decimal(said["rows"]), Decimal(said["amount"])
        if rows != int(rows) or not amount.is_finite():
            raise ValueError("rows must be a whole number and amount a finite one")
        found.controls[day] = Control(int(rows), amount)
    except (ValueError, KeyError, TypeError, InvalidOperation) as error:
        found.bad_controls[day] = (
            f"{CONTROL_FILE} is not {{'rows': N, 'amount': '0.00'}} ({type(error).__name__}: {error})"
        )


def _look_into(filesystem: pafs.FileSystem, path: str, file: LandingFile, found: Landing) -> None:
    """Read what must be known before Spark reads the file: Parquet types, the CSV header."""
    try:
        if file.format == "parquet":
            found._schemas[file] = pq.read_schema(path, filesystem=filesystem)
        elif file.format == "csv":
            header = _first_line(filesystem, path)
            if header is None:
                return
            found._headers[file] = header
    except (OSError, pa.ArrowException, EOFError) as error:
        found.broken[file] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        return
    found.files.append(file)


def _first_line(filesystem: pafs.FileSystem, path: str) -> str | None:
    compression = "gzip" if path.endswith(".gz") else None
    head = b""
    with filesystem.open_input_stream(path, compression=compression) as stream:
        while chunk := stream.read(65536):
            head += chunk
            lines = head.decode("utf-8-sig", errors="replace").splitlines(keepends=True)
            whole = [x.rstrip("\r\n") for x in lines if x.strip()]
            if whole and (len(lines) > 1 or len(head) > 1 << 20):
                return whole[0]
    text = head.decode("utf-8-sig", errors="replace").strip("\r\n")
    return text if text.strip() else None


def _named_in(message: str, files: Iterable[LandingFile]) -> LandingFile | None:
    """The file that Spark's FAILED_READ_FILE (or a Parquet type error) tells of."""
    if "FAILED_READ_FILE" not in message and "PARQUET" not in message:
        return None
    plain = unquote(message)
    return next((file for file in files if f"/{file.source_file}" in plain), None)


def _cause(message: str) -> str:
    causes = re.findall(r"Caused by: (?:[\w.$]+\.)?([\w$]+(?:: [^\n]+)?)", message)
    return causes[-1][:200] if causes else "unreadable"


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def _by_header(found: Landing) -> Mapping[str, list[LandingFile]]:
    grouped: dict[str, list[LandingFile]] = defaultdict(list)
    for file, header in found._headers.items():
        if file in found.files:
            grouped[header].append(file)
    return grouped


def _by_schema(found: Landing) -> list[tuple[pa.Schema, list[LandingFile]]]:
    grouped: list[tuple[pa.Schema, list[LandingFile]]] = []
    for file, schema in found._schemas.items():
        if file not in found.files:
            continue
        bare = schema.remove_metadata()
        same = next((files for known, files in grouped if known.equals(bare)), None)
        if same is None:
            grouped.append((bare, [file]))
        else:
            same.append(file)
    return grouped


def _origin() -> tuple[Column, Column]:
    """Arrival day and file of a row, from the path that Spark read it from."""
    path = F.col("_metadata.file_path")
    tail = F.regexp_extract(path, r"(arrival_date=(\d{4}-\d{2}-\d{2})/[^/]+)$", 1)
    # A file path is percent-encoded, but a plus sign in it is a plus sign.
    name = F.url_decode(F.regexp_replace(tail, r"\+", "%2B"))
    return F.substring(tail, 14, 10).cast("date").alias("arrival_date"), name.alias("source_file")


def _text(
    spark: SparkSession, files: Sequence[LandingFile], header: str | None = None
) -> DataFrame:
    """The non-blank lines of text files; a line equal to the header is not data."""
    lines = spark.read.options(**_VERBATIM).text([file.url for file in files])
    lines = lines.select(*_origin(), F.ltrim(F.col("value"), F.lit("\ufeff")).alias("text"))
    lines = lines.where(F.col("text").rlike(r"\S"))
    return lines if header is None else lines.where(F.col("text") != F.lit(header))


def _count(spark: SparkSession, found: Landing) -> dict[date, int]:
    """Lines by arrival day, from a scan of its own that knows nothing of how lines are parsed.

    Conservation is measured against these counts. Every byte is read, so a file that breaks off in
    the middle is found here.
    """
    frames = []
    json_files = [file for file in found.files if file.format == "json"]
    if json_files:
        frames.append(_text(spark, json_files).select("arrival_date"))
    for header, files in _by_header(found).items():
        frames.append(_text(spark, files, header).select("arrival_date"))
    for _, files in _by_schema(found):
        rows = spark.read.options(**_VERBATIM).parquet(*[file.url for file in files])
        # Hashing all columns makes Spark decode every page, not just the footer.
        touched = rows.select(_origin()[0], F.xxhash64(*rows.columns).alias("h"))
        frames.append(touched.where(F.col("h").isNotNull()).select("arrival_date"))
    counts: dict[date, int] = defaultdict(int)
    if frames:
        for row in _union(frames).groupBy("arrival_date").count().collect():
            counts[row["arrival_date"]] = row["count"]
    return counts


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
    for schema, files in _by_schema(found):
        frames.append(_parquet_fields(spark, schema, files))
    if not frames:
        return spark.createDataFrame([], _LINES_DDL)
    return _union(frames)


def _json_fields(lines: DataFrame) -> DataFrame:
    """The fields of JSON lines: strings verbatim, numbers as they were written.

    The line is parsed inside an envelope that only closes if the line is one whole value: Spark's
    parser otherwise ignores whatever follows the first one, and an order would be lost in silence.
    Identifiers and amounts go through VARIANT, which keeps decimals exact and tells a string from
    a boolean; a STRING field would pass numbers through a double.
    """
    envelope = F.concat(F.lit('{"line":'), F.col("text"), F.lit(',"closed":true}'))
    parsed = F.from_json(
        envelope,
        "line STRUCT<order_id VARIANT, customer_id VARIANT, order_ts STRING, amount VARIANT, "
        "ingestion_ts STRING>, closed BOOLEAN",
        {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"},
    )
    frame = lines.withColumn("_json", parsed)
    whole = F.col("_json.closed") & F.col("_json.line").isNotNull()
    problem = (
        F.when(~F.is_valid_utf8("text"), "not UTF-8")
        .when(~F.coalesce(whole, F.lit(False)), "not one JSON object")
        .otherwise(F.coalesce(_not_an_id("order_id"), _not_an_id("customer_id")))
    )
    return frame.select(
        "arrival_date",
        "source_file",
        "text",
        _variant_text("order_id").alias("order_id"),
        _variant_text("customer_id").alias("customer_id"),
        F.col("_json.line.order_ts").alias("order_ts"),
        _json_amount().alias("amount"),
        F.col("_json.line.ingestion_ts").alias("ingestion_ts"),
        problem.alias("problem"),
    )


def _variant_text(name: str) -> Column:
    return F.try_variant_get(f"_json.line.{name}", "$", "string")


def _not_an_id(name: str) -> Column:
    """The problem of an identifier that is neither a string nor a whole number, else null."""
    text, kind = _variant_text(name), F.schema_of_variant(F.col(f"_json.line.{name}"))
    doubtful = text.rlike(r"^(true$|false$|[\[{]|-?[0-9])")
    # Whole numbers beyond 64 bits come as wide decimals without a fraction.
    fine = kind.isin("STRING", "BIGINT") | kind.rlike(r"^DECIMAL\((19|[23]\d),0\)$")
    return F.when(doubtful, F.when(~fine, F.lit(f"bad {name}: not a string")))


def _json_amount() -> Column:
    """The amount's text; where the number was read as a double, the digits as they stand."""
    amount = F.col("_json.line.amount")
    key = r'"amount"\s*:\s*'
    literal = F.regexp_extract("text", key + r"(-?[0-9.]+(?:[eE][+-]?[0-9]+)?)", 1)
    exact = F.when(F.regexp_count("text", F.lit(key)) == 1, literal).otherwise(F.lit("ambiguous"))
    # Only an exponent or very many digits make a double; for all other lines the type is not asked.
    may_be_double = F.col("text").rlike(r"[0-9.][eE][+-]?[0-9]|[0-9.]{30}")
    return F.when(may_be_double & (F.schema_of_variant(amount) == "DOUBLE"), exact).otherwise(
        _variant_text("amount")
    )


def _csv_fields(lines: DataFrame, header: str) -> DataFrame:
    """The fields of CSV records, found by the header's names in whatever order."""
    names = [name.strip() for name in next(csv.reader([header]))]
    places = {name: f"_csv.c{names.index(name)}" for name in FIELDS if name in names}
    ddl = ", ".join(f"c{n} STRING" for n in range(len(names))) + ", _malformed STRING"
    options = {"escape": '"', "columnNameOfCorruptRecord": "_malformed"}
    frame = lines.withColumn("_csv", F.from_csv("text", ddl, options))
    odd_quotes = (F.length(F.regexp_replace("text", '[^"]', "")) % 2) == 1
    problem = (
        F.when(~F.is_valid_utf8("text"), "not UTF-8")
        .when(odd_quotes, "unbalanced quotes")
        .when(F.col("_csv._malformed").isNotNull(), f"not {len(names)} fields as in the header")
    )
    return frame.select(
        "arrival_date",
        "source_file",
        "text",
        *[F.col(places[n]).alias(n) if n in places else _none(n) for n in FIELDS],
        problem.alias("problem"),
    )


def _parquet_fields(
    spark: SparkSession, schema: pa.Schema, files: Sequence[LandingFile]
) -> DataFrame:
    """The fields of Parquet rows by value, written out as text that reads back the same."""
    rows = spark.read.options(**_VERBATIM).parquet(*[file.url for file in files])
    return rows.select(
        *_origin(),
        F.to_json(F.struct(*[_parquet_text(schema, n).alias(n) for n in schema.names])).alias(
            "text"
        )
        if schema.names
        else _none("text"),
        *[_parquet_text(schema, n).alias(n) if n in schema.names else _none(n) for n in FIELDS],
        _none("problem"),
    )


def _parquet_text(schema: pa.Schema, name: str) -> Column:
    kind = schema.field(name).type
    column = F.col(f"`{name}`")
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        # Read as an integer (see `spark.sql.legacy.parquet.nanosAsLong`); floor, also before 1970.
        column = F.timestamp_micros(F.floor(column / F.lit(1000).cast("decimal(4,0)")).cast("long"))
    return F.to_json(column) if pa.types.is_nested(kind) else column.cast("string")


def _none(name: str) -> Column:
    return F.lit(None).cast("string").alias(name)
