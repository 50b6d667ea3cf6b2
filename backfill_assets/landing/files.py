"""Landing files: checks that each can be read, counts its lines, and reads their fields.

`listing` lists the files, `formats` reads JSON lines, `csv_files` CSV and `parquet` Parquet files.
Fields are text, or values of a Parquet column; what they mean (a timestamp, money, a log day) is
decided in `transforms.raw_rows`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from functools import partial, reduce
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import Window
from backfill_assets.dagster_ext.failures import raise_if_engine_failed
from backfill_assets.landing import csv_files, formats, parquet
from backfill_assets.landing.csv_files import CsvHeader
from backfill_assets.landing.listing import (
    CONTROL_FILE,
    GLOB,
    LandingError,
    ListedFile,
    Listing,
    folder_name,
    list_landing,
)
from backfill_assets.landing.parquet import ParquetColumns
from backfill_assets.landing.size_limits import SizeLimits
from backfill_assets.spark.filesystems import open_store, read_options
from backfill_assets.spark.frames import create_frame
from backfill_assets.spark.jars import EngineError
from backfill_assets.spark.session import SPARK_ERRORS
from backfill_assets.tables.arguments import UTF_16
from backfill_assets.tables.sources import Source

_UNUSABLE = (
    OSError,
    LandingError,
    ValueError,
    KeyError,
    TypeError,
    ArithmeticError,
    RecursionError,
)
#: Maximum characters of the reason why a control file cannot be used.
_MOST_REASON = 200


@dataclass(frozen=True)
class LandingFile:
    """One landing file.

    Attributes:
        arrival_date: the day of its folder.
        name: file name, with the hour folder if the source lands hourly.
        url: path or URL for Spark, with glob characters escaped.
        path: path for Arrow's file system.
        part_folder: the folder of its part, see `Source.part_folder`.
    """

    arrival_date: date
    name: str
    url: str
    size: int
    path: str = ""
    part_folder: str = ""

    @property
    def source_file(self) -> str:
        """The file's name in the tables; relative, so that moving the landing changes no row."""
        return f"{folder_name(self.arrival_date)}/{self.name}"

    @property
    def full_name(self) -> str:
        """The file's name in the landing, with the folder of the part."""
        return f"{folder_name(self.arrival_date)}{self.part_folder}/{self.name}"

    @property
    def format(self) -> str:
        """`json`, `csv` or `parquet`."""
        suffix = self.name.removesuffix(".gz").rsplit(".", 1)[1]
        return {"jsonl": "json", "tbl": "csv"}.get(suffix, suffix)


@dataclass
class LandingFiles:
    """The landing files of some arrival days.

    Attributes:
        files: the readable files.
        broken: by unreadable file, the reason.
        unknown_files: by arrival day, files of unknown formats; not read, worth a warning.
        hours: by arrival day, the existing hour folders.
        strays: by arrival day, items beside its folder that may belong to it; not read.
        controls: by arrival day, the source's own totals, if sent.
        control_problems: by arrival day, why its control file cannot be used.
        line_counts: non-blank data lines, without headers, by the file's full name.
        headers: of CSV files.
        multiline: the CSV files that Spark reads whole: text in quotes goes over several lines, or
            they are in UTF-16.
        columns: the columns of Parquet files.
        limits: size limits of the files.
    """

    files: list[LandingFile] = field(default_factory=list)
    broken: dict[LandingFile, str] = field(default_factory=dict)
    unknown_files: dict[date, list[str]] = field(default_factory=lambda: defaultdict(list))
    hours: dict[date, frozenset[str]] = field(default_factory=dict)
    strays: dict[date, list[str]] = field(default_factory=dict)
    controls: dict[date, formats.Control] = field(default_factory=dict)
    control_problems: dict[date, str] = field(default_factory=dict)
    line_counts: Mapping[str, int] = field(default_factory=dict)
    headers: dict[LandingFile, CsvHeader] = field(default_factory=dict)
    multiline: set[LandingFile] = field(default_factory=set)
    columns: dict[LandingFile, ParquetColumns] = field(default_factory=dict)
    limits: SizeLimits = field(default_factory=SizeLimits.default_limits)

    @property
    def broken_names(self) -> set[str]:
        """The names in the tables of the unreadable files."""
        return {file.source_file for file in self.broken}

    def broken_by_day(self) -> Mapping[date, list[str]]:
        """The unreadable files by arrival day, each with its reason."""
        by_day: dict[date, list[str]] = defaultdict(list)
        for file, reason in self.broken.items():
            by_day[file.arrival_date].append(f"{file.source_file} ({reason})")
        return by_day

    def exclude_files(self, names: Collection[str]) -> bool:
        """Remove files that are still being written; return whether any of them was readable."""
        for file in [file for file in self.broken if file.source_file in names]:
            del self.broken[file]
        for day in [d for d in self.controls | self.control_problems if _control_name(d) in names]:
            self.controls.pop(day, None)
            self.control_problems.pop(day, None)
        stale = [file for file in self.files if file.source_file in names]
        self.files = [file for file in self.files if file.source_file not in names]
        return bool(stale)

    def join(self, others: "Iterable[LandingFiles]") -> "LandingFiles":
        """The files of several parts, to be read together."""
        joined = replace(self, files=[], broken={}, headers={}, multiline=set(), columns={})
        for part in (self, *others):
            joined.files += part.files
            joined.headers |= part.headers
            joined.multiline |= part.multiline
            joined.columns |= part.columns
        return joined

    def drop_file(self, file: LandingFile, reason: str) -> None:
        """Move a file that turned out to be unreadable to `broken`."""
        self.files.remove(file)
        self.broken[file] = reason


def _control_name(day: date) -> str:
    return f"{folder_name(day)}/{CONTROL_FILE}"


def escape_glob(url: str) -> str:
    """Escape a path for Spark, which would read the brackets of `part[1].json` as a glob.

    Spark's option to turn globs off is no alternative: with it, each such path stands for all paths
    of the read, and each line is counted that many times.
    """
    return GLOB.sub(r"\\\g<0>", url)


def read_control(
    filesystem: pafs.FileSystem,
    entry: ListedFile,
    source: Source,
    day: date,
    landing_files: LandingFiles,
) -> None:
    """Read the control file of a day into `landing_files`, or the reason why it cannot be used."""
    if entry.refused:
        landing_files.control_problems[day] = f"{CONTROL_FILE} cannot be used: {entry.refused}"
        return
    try:
        text = landing_files.limits.read_control_file(filesystem, entry)
        content = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        landing_files.controls[day] = formats.parse_control(content, source)
    except _UNUSABLE as error:
        amount = ", 'amount': '0.00'" if source.amount else ""
        reason = f"{type(error).__name__}: {error}"[:_MOST_REASON]
        landing_files.control_problems[day] = (
            f"{CONTROL_FILE} is not {{'rows': N{amount}}} ({reason})"
        )


Result = TypeVar("Result")
Kind = TypeVar("Kind")
#: Maximum number of sets of Parquet columns whose values are not read as text. Spark plans the
#: parsing of each frame apart, which takes a second.
MOST_TYPED_FRAMES = 2
#: Maximum number of different headers and sets of columns in one folder.
_MOST_KINDS = 100


def probe_files(
    spark: SparkSession,
    landing: str,
    source: Source,
    days: Window,
    listing: Listing | None = None,
    limits: SizeLimits | None = None,
) -> LandingFiles:
    """Check that each file of the arrival days can be read to its end, and count its lines.

    A listing of the days is made if none is given.

    Raises:
        LandingError: the source has no folder: a wrong setting, not an empty day.
    """
    listing = listing or list_landing(landing, source, days)
    landing_files = open_files(
        landing, source, days, listing, limits or SizeLimits.default_limits()
    )
    count_lines(spark, source, landing_files)
    return landing_files


def count_lines(spark: SparkSession, source: Source, landing_files: LandingFiles) -> None:
    """Count the lines of files, which may be those of several parts; drop what is unreadable."""
    count_part = partial(_count_lines, spark, source)
    counts = retry_without_bad_files(spark, landing_files, count_part)
    doubtful_files = set()
    for file in [*landing_files.files]:
        row = counts.get(file.full_name)
        if row is None or row["doubtful"] is None:
            continue
        if reason := landing_files.limits.whole_file_problem(row["bytes"], csv_files.WHY_WHOLE):
            landing_files.drop_file(file, reason)
        else:
            doubtful_files.add(file)
    landing_files.multiline |= doubtful_files
    if doubtful_files:
        records = replace(landing_files, files=[*doubtful_files])
        counts |= retry_without_bad_files(spark, records, count_part)
        for file in doubtful_files - landing_files.broken.keys():
            if text := counts[file.full_name]["doubtful"]:
                landing_files.broken[file] = csv_files.describe_doubtful(text)
        landing_files.files = [f for f in landing_files.files if f not in landing_files.broken]
    landing_files.line_counts = {name: row["lines"] for name, row in counts.items()}


def retry_without_bad_files(
    spark: SparkSession, landing_files: LandingFiles, work: Callable[[LandingFiles], Result]
) -> Result:
    """Run work on the files, without those that make Spark fail.

    A bad file is dropped with a reason, and the work runs again with the others, so one broken file
    never hides the rest. If Spark does not name the file, it is found by bisection: N files take
    log2(N) + 1 attempts besides the first and the last.

    Raises:
        EngineError: the engine's own disk failed, or it can open none of the files.
        Exception: the failure has another cause than a file.
    """
    while True:
        try:
            return work(landing_files)
        except SPARK_ERRORS as error:
            raise_if_engine_failed(error)
            if not landing_files.files:
                raise
            file = _file_named_in(str(error), landing_files.files) or _bisect_bad_file(
                landing_files, work
            )
            if file is None:
                raise
            cause = _root_cause(str(error))
            _raise_if_none_opens(spark, landing_files.files, cause)
            landing_files.drop_file(file, cause)


def _bisect_bad_file(
    landing_files: LandingFiles, work: Callable[[LandingFiles], Any]
) -> LandingFile | None:
    """The first file that makes the work fail; None if only several files together do."""

    def work_fails(files: list[LandingFile]) -> bool:
        try:
            work(replace(landing_files, files=files))
        except SPARK_ERRORS as error:
            raise_if_engine_failed(error)
            return True
        return False

    files, first_half_fails = sorted(landing_files.files, key=lambda file: file.full_name), False
    while len(files) > 1:
        half, rest = files[: len(files) // 2], files[len(files) // 2 :]
        first_half_fails = work_fails(half)
        files = half if first_half_fails else rest
    return files[0] if first_half_fails or work_fails(files) else None


#: Number of files, of all sizes, that are opened to check whether the engine can open any; and the
#: bytes beyond which only the length of a file is read.
_MOST_OPENED, _MOST_BYTES = 20, 1 << 26
#: Hadoop's error of a single file: its checksum file is of another content.
_CHECKSUM_ERROR = "ChecksumException"


def _raise_if_none_opens(spark: SparkSession, files: Collection[LandingFile], cause: str) -> None:
    """Raise if the engine can open none of the files although this process can.

    Bytes are read but not decoded, so the content of a file cannot be the cause.
    """
    by_size = sorted(files, key=lambda file: file.size)
    sample = by_size[:: -(-len(by_size) // _MOST_OPENED)]
    if _CHECKSUM_ERROR in cause:
        return
    if any(_is_readable_by_spark(spark, file) for file in sample):
        return
    if readable_here := [file for file in sample if _is_readable_here(file)]:
        raise EngineError(
            f"the engine can open none of {len(sample)} landing file(s) that were tried, such as "
            f"{readable_here[0].url}, and this process can: {cause}. It is not the files. "
            "Where another machine is the engine, let it have the landing under the same path, "
            "with UTF-8 as its encoding of names and file:/// as its default file system "
            "(spark.hadoop.fs.defaultFS), and let its user read it. Nothing was written."
        )


def _is_readable_by_spark(spark: SparkSession, file: LandingFile) -> bool:
    """Whether Spark reads the bytes of a file; of a large one, only its length."""
    column = F.length("content") if file.size <= _MOST_BYTES else F.col("length")
    try:
        reader = spark.read.format("binaryFile").options(**read_options([file.url]))
        reader.load(file.url).select(column).collect()
    except SPARK_ERRORS as error:
        raise_if_engine_failed(error)
        return False
    return True


def _is_readable_here(file: LandingFile) -> bool:
    """Whether this process reads the first byte of a file, without Spark."""
    filesystem, _ = open_store(file.url)
    try:
        with filesystem.open_input_stream(file.path, compression=None) as stream:
            stream.read(1)
    except OSError:
        return False
    return True


def open_files(
    landing: str, source: Source, days: Window, listing: Listing, limits: SizeLimits
) -> LandingFiles:
    """Take the files from the listing and probe each that is not empty, in threads; no Spark."""
    filesystem, _ = open_store(landing)
    landing_files = LandingFiles(limits=limits)
    opened: list[tuple[ListedFile, LandingFile]] = []
    for day in days:
        landing_files.strays[day] = listing.strays_of(day)
        folder = listing.folders.get(day)
        if folder is None:
            continue
        within = f"{landing}/{source.name}/{folder_name(day)}{source.part_folder}"
        if folder.unknown_files:
            landing_files.unknown_files[day] += folder.unknown_files
        landing_files.hours[day] = folder.hours
        for entry in folder.files.values():
            url = escape_glob(f"{within}/{entry.name}")
            file = LandingFile(day, entry.name, url, entry.size, entry.path, source.part_folder)
            if entry.name == CONTROL_FILE:
                read_control(filesystem, entry, source, day, landing_files)
            elif entry.refused:
                landing_files.broken[file] = entry.refused
            elif entry.size:
                opened.append((entry, file))
    with ThreadPoolExecutor(4) as pool:
        probes = pool.map(partial(_probe_file, filesystem, source, limits), opened)
        for (_, file), probe in zip(opened, probes, strict=True):
            _add_probed_file(landing_files, file, probe)
    _limit_kinds(landing_files)
    return landing_files


def _limit_kinds(landing_files: LandingFiles) -> None:
    """Drop the files of a folder beyond `_MOST_KINDS` headers or sets of columns.

    Spark plans one read for each; it cannot handle thousands.
    """
    kinds: dict[date, set[CsvHeader | ParquetColumns]] = defaultdict(set)
    for file, kind in sorted(
        (landing_files.headers | landing_files.columns).items(),
        key=lambda pair: pair[0].source_file,
    ):
        day_kinds = kinds[file.arrival_date]
        if kind in day_kinds or len(day_kinds) < _MOST_KINDS:
            day_kinds.add(kind)
        else:
            landing_files.broken[file] = (
                f"LandingError: its folder has more than {_MOST_KINDS} headers"
            )
    landing_files.files = [file for file in landing_files.files if file not in landing_files.broken]


@dataclass(frozen=True)
class _Unreadable:
    """Why a file cannot be read."""

    reason: str


#: The result of a probe: the Parquet columns, the CSV header (None if there is no record), None for
#: JSON, or why the file cannot be read.
_Probe = ParquetColumns | CsvHeader | None | _Unreadable


def _probe_file(
    filesystem: pafs.FileSystem,
    source: Source,
    limits: SizeLimits,
    opened: tuple[ListedFile, LandingFile],
) -> _Probe:
    """Read the footer or header of a file; an error is returned, as it concerns only this file."""
    entry, file = opened
    try:
        if file.format == "parquet":
            return parquet.footer_columns(limits.read_footer(filesystem, entry), source)
        size = limits.check_text(filesystem, entry)
        if file.format == "json":
            return None
        header = csv_files.read_header(filesystem, entry.path, source)
        is_whole = header is not None and header.encoding == UTF_16
        problem = limits.whole_file_problem(size, "it is in UTF-16 and has") if is_whole else ""
        return _Unreadable(problem) if problem else header
    # Arrow decodes the names of Parquet columns lazily.
    except (OSError, pa.ArrowException, EOFError, LandingError, UnicodeDecodeError) as error:
        reason = (str(error) or "?").splitlines()[0][:200]
        return _Unreadable(f"{type(error).__name__}: {reason}")


def _add_probed_file(landing_files: LandingFiles, file: LandingFile, probe: _Probe) -> None:
    """Add a file by the result of its probe; a CSV file without a line is not read at all."""
    if isinstance(probe, _Unreadable):
        landing_files.broken[file] = probe.reason
        return
    if isinstance(probe, ParquetColumns):
        landing_files.columns[file] = probe
    elif file.format == "csv":
        if probe is None:
            return  # only blank lines and comments
        landing_files.headers[file] = probe
        if probe.encoding == UTF_16:
            landing_files.multiline.add(file)
    landing_files.files.append(file)


def _file_named_in(message: str, files: Iterable[LandingFile]) -> LandingFile | None:
    """The file that Spark's error message names as unreadable or not found."""
    if "FAILED_READ_FILE" not in message and "PATH_NOT_FOUND" not in message:
        return None
    plain = unquote(message)
    named = [file for file in files if f"/{file.full_name}" in plain]
    # `a.json` is also the beginning of `a.jsonl`.
    return max(named, key=lambda file: len(file.name), default=None)


def _root_cause(message: str) -> str:
    causes = re.findall(r"Caused by: (?:[\w.$]+\.)?([\w$]+(?:: [^\n]+)?)", message)
    return causes[-1][:200] if causes else message.splitlines()[0][:200]


def _union_all(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)


def _json_files(landing_files: LandingFiles) -> list[LandingFile]:
    return [file for file in landing_files.files if file.format == "json"]


def _group_files(
    kinds: Mapping[LandingFile, Kind], files: Iterable[LandingFile]
) -> Mapping[Kind, list[LandingFile]]:
    """The usable files by CSV header or Parquet columns; files of other formats are left out."""
    grouped: dict[Kind, list[LandingFile]] = defaultdict(list)
    for file in files:
        if file in kinds:
            grouped[kinds[file]].append(file)
    return grouped


def _file_urls(files: Iterable[LandingFile]) -> list[str]:
    return [file.url for file in files]


def _csv_texts(
    spark: SparkSession, source: Source, landing_files: LandingFiles
) -> Iterator[tuple[CsvHeader, bool, DataFrame]]:
    """Yield the texts of CSV files: header, whether they are multi-line records, and the frame."""
    max_bytes = landing_files.limits.max_line
    for header, files in _group_files(landing_files.headers, landing_files.files).items():
        if multiline := _file_urls(file for file in files if file in landing_files.multiline):
            yield header, True, csv_files.multiline_records(spark, source, multiline, header)
        if lines := _file_urls(file for file in files if file not in landing_files.multiline):
            yield header, False, csv_files.csv_lines(spark, source, lines, max_bytes, header)


def _count_lines(
    spark: SparkSession, source: Source, landing_files: LandingFiles
) -> dict[str, Row]:
    """Lines by file, from a separate scan that does not parse the lines.

    These counts check that no line is lost. Every byte is read, so a truncated file is found here.

    Returns:
        By file `lines`, their `bytes`, and of a CSV file the `doubtful` text, see `doubtful_text`.
    """
    frames = []
    max_bytes = landing_files.limits.max_line
    nothing = F.lit(None).cast("string").alias("doubtful")
    size, untouched = F.octet_length(formats.TEXT).alias("bytes"), F.lit(0).alias("touched")
    if json_files := _json_files(landing_files):
        lines = formats.text_lines(spark, source, _file_urls(json_files), max_bytes)
        frames.append(lines.select("source_file", untouched, size, nothing))
    for _, multiline, texts in _csv_texts(spark, source, landing_files):
        doubtful = csv_files.doubtful_text(source, max_bytes, multiline=multiline)
        frames.append(texts.select("source_file", untouched, size, doubtful.alias("doubtful")))
    for columns, files in _group_files(landing_files.columns, landing_files.files).items():
        rows = parquet.parquet_rows(spark, _file_urls(files), columns)
        frames.append(
            rows.select(
                formats.origin_columns(source)[1],
                parquet.decoding_hash(columns).alias("touched"),
                F.lit(0).alias("bytes"),
                nothing,
            )
        )
    if not frames:
        return {}
    by_file = _union_all(frames).groupBy("source_file")
    counts = by_file.agg(
        F.count(F.lit(1)).alias("lines"),
        F.max("touched"),
        F.sum("bytes").alias("bytes"),
        F.min("doubtful").alias("doubtful"),
    ).collect()
    return {row["source_file"]: row for row in counts}


def read_lines(spark: SparkSession, landing_files: LandingFiles, source: Source) -> list[DataFrame]:
    """Every line of the probed files, with its fields.

    Returns:
        A frame of the lines of text, and one for each set of Parquet columns; if there are more
        than `MOST_TYPED_FRAMES` of these, they are text too. Columns: `arrival_date`,
        `source_file`, `_text` (the line, or the columns of a Parquet row), the fields of the source
        as text (of a Parquet row some in their types), `_problem` (why the line has no fields, or
        null) and `_lacking` (the fields that it does not have).
    """
    text_frames: list[DataFrame] = []
    typed_frames: list[DataFrame] = []
    if json_files := _json_files(landing_files):
        max_bytes = landing_files.limits.max_line
        lines = formats.text_lines(spark, source, _file_urls(json_files), max_bytes)
        text_frames.append(formats.json_lines(lines, source))
    for header, _, texts in _csv_texts(spark, source, landing_files):
        text_frames.append(csv_files.csv_records(texts, header, source))
    files_by_columns = _group_files(landing_files.columns, landing_files.files)
    as_text = len(files_by_columns) > MOST_TYPED_FRAMES
    for columns, files in files_by_columns.items():
        rows = parquet.parquet_rows(spark, _file_urls(files), columns)
        frame = parquet.parquet_fields(rows, columns, source, as_text=as_text)
        (text_frames if as_text else typed_frames).append(frame)
    if text_frames:
        return [_union_all(text_frames), *typed_frames]
    return typed_frames or [create_frame(spark, formats.lines_schema(source))]
