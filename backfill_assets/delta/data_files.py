"""Data files: written before a commit names them, and read as of any version.

Spark writes Parquet into a staging folder; from there the files move to the folders of their days.
Statistics come from the Parquet footers.

Rows as of a version are read from their Parquet files directly: Delta's time travel loads the whole
state of the table for each version, which takes longest for a few days of a long history.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from itertools import compress
from typing import Any, NamedTuple, Self
from urllib.parse import unquote
from uuid import uuid4

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pyspark.sql.types as T
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import Window, days_condition
from backfill_assets.delta.commit_log import added_files, resolve_path
from backfill_assets.delta.delta_rs import delta_log, files_of_part, read_metadata
from backfill_assets.delta.ledgers import Ledger, TableMetadata
from backfill_assets.delta.table_schema import SessionFactory, unfilled_columns
from backfill_assets.spark.filesystems import delete_folder, in_object_store, open_store
from backfill_assets.spark.frames import create_frame
from backfill_assets.spark.jars import LOCAL_FILES_SETTING, RAW_LOCAL_FILES_CLASS
from backfill_assets.tables.columns import files_match_schema
from backfill_assets.tables.table import Table

#: Prefix of staging folders. Maintenance removes those of killed runs.
STAGING_PREFIX = "writing-"
#: Longer texts get no bounds, as in Delta.
_MAX_TEXT = 32
_THREADS = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

#: By day, the data files for a commit.
DataFiles = Mapping[date, list[AddAction]]


def write_files(
    rows: DataFrame, url: str, partition_columns: Sequence[str]
) -> dict[str, DataFiles]:
    """Write rows as data files that no version of the table names yet.

    The result is by part, and has only the days with rows.
    """
    filesystem, root = open_store(url)
    staging = f"{STAGING_PREFIX}{uuid4().hex}"
    write = _write_directly if in_object_store(url) else _write_parquet
    written = write(rows, f"{url}/{staging}", partition_columns)
    if not in_object_store(url):  # which has no folders
        for folder in {file.path.rpartition("/")[0] for file in written}:
            filesystem.create_dir(f"{root}/{folder}")

    def place_file(file: _StagedFile) -> AddAction:
        values = dict(folder.split("=", 1) for folder in file.path.split("/")[:-1])
        stats = read_statistics(filesystem, f"{root}/{staging}/{file.path}", partition_columns)
        filesystem.move(f"{root}/{staging}/{file.path}", f"{root}/{file.path}")
        return AddAction(file.path, file.size, values, file.modified_at, True, json.dumps(stats))

    files: dict[str, dict[date, list[AddAction]]] = defaultdict(lambda: defaultdict(list))
    with ThreadPoolExecutor(_THREADS) as pool:
        for action in pool.map(place_file, written):
            day, *part = (str(action.partition_values[name]) for name in partition_columns)
            files["".join(part)][date.fromisoformat(day)].append(action)
    with suppress(OSError):  # maintenance removes it later
        delete_folder(filesystem, f"{root}/{staging}")
    return {part: dict(part_files) for part, part_files in files.items()}


class _StagedFile(NamedTuple):
    """A file of a write: its folders and name, bytes, time of the write in ms since 1970."""

    path: str
    size: int
    modified_at: int


def _write_parquet(
    rows: DataFrame, folder: str, partition_columns: Sequence[str]
) -> list[_StagedFile]:
    """Write rows with Spark's own committer, which renames each file twice."""
    # Only the Parquet files are used, so no _SUCCESS file is needed.
    options = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
    # With algorithm 2, a task that dies during its commit leaves some files as committed.
    options["mapreduce.fileoutputcommitter.algorithm.version"] = "1"
    configured = rows.sparkSession.conf.get(LOCAL_FILES_SETTING, None)
    options["fs.file.impl"] = configured or RAW_LOCAL_FILES_CLASS
    options["fs.file.impl.disable.cache"] = "true"
    rows.write.options(**options).partitionBy(*partition_columns).parquet(folder)
    filesystem, root = open_store(folder)
    listing = pafs.FileSelector(root, allow_not_found=True, recursive=True)
    candidates = (
        (info, info.path.removeprefix(f"{root}/")) for info in filesystem.get_file_info(listing)
    )
    return [
        _StagedFile(path, info.size, int(info.mtime.timestamp() * 1000))
        for info, path in candidates
        # No leftovers of aborted attempts.
        if re.fullmatch(r"([^/]+=[^/]+/)+[^/]+\.parquet", path)
    ]


def _write_directly(
    rows: DataFrame, folder: str, partition_columns: Sequence[str]
) -> list[_StagedFile]:
    """Write rows as a Delta table, which saves two copies of each file in an object store.

    A rename is a copy there, and Spark's own committer renames one file after the other. Delta gets
    the list of valid files from the tasks, and writes it to the log.
    """
    rows.write.format("delta").partitionBy(*partition_columns).save(folder)
    filesystem, root = open_store(folder)
    with filesystem.open_input_stream(f"{root}/_delta_log/{0:020d}.json") as log:
        actions = map(json.loads, log.read().splitlines())
    added = (action["add"] for action in actions if "add" in action)
    return [
        _StagedFile(unquote(file["path"]), file["size"], file["modificationTime"]) for file in added
    ]


def delete_files(url: str, files: Iterable[AddAction]) -> None:
    """Remove data files that no commit will name; files already removed are ignored."""
    filesystem, root = open_store(url)
    for file in files:
        try:
            filesystem.delete_file(f"{root}/{file.path}")
        except FileNotFoundError:
            continue


def abandoned_folders(url: str, cutoff: datetime) -> list[str]:
    """The staging folders without writes since `cutoff`: their runs were killed."""
    filesystem, root = open_store(url)
    top = filesystem.get_file_info(pafs.FileSelector(root))
    folders = []
    for folder in top:
        if folder.base_name.startswith(STAGING_PREFIX):
            listing = pafs.FileSelector(folder.path, allow_not_found=True, recursive=True)
            within = filesystem.get_file_info(listing)
            times = [info.mtime for info in (folder, *within) if info.mtime]
            if times and max(times) < cutoff:
                folders.append(folder.path)
    return folders


def count_rows(files: Iterable[AddAction]) -> int:
    """The number of rows of data files, from their statistics."""
    return sum(json.loads(file.stats)["numRecords"] for file in files)


def read_statistics(
    filesystem: pafs.FileSystem, path: str, partition_columns: Collection[str]
) -> dict[str, Any]:
    """The statistics of a data file from its footer, in Delta's form.

    Number of rows; by column nulls, and bounds where the footer has them and they are short. The
    partition columns are left out, although Delta's own statistics have them.
    """
    with filesystem.open_input_file(path) as source:
        file = pq.ParquetFile(source)
        footer = file.metadata
        nested = {f.name: f.type for f in file.schema_arrow if pa.types.is_nested(f.type)}
        # Footers count nulls by leaf, inner ones included, so count those of arrays and maps here.
        nulls: dict[str, int] = {
            name: file.read([name]).column(0).null_count
            for name, kind in nested.items()
            if not pa.types.is_struct(kind)
        }
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    for n in range(footer.num_columns):
        name = footer.schema.column(n).path
        parts = [footer.row_group(g).column(n) for g in range(footer.num_row_groups)]
        if name in partition_columns or name.partition(".")[0] in nested:
            continue
        if not all(part.is_stats_set for part in parts):
            continue
        # Parquet's writer leaves out the statistics of long texts.
        if not all(part.statistics.has_null_count for part in parts):
            continue
        nulls[name] = sum(part.statistics.null_count for part in parts)
        if bounds := _min_max([part.statistics for part in parts]):
            least[name], most[name] = bounds
    return {
        "numRecords": footer.num_rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": nulls,
    }


def _min_max(parts: Sequence[pq.Statistics]) -> tuple[Any, Any] | None:
    """The minimum and maximum as in JSON; None if they cannot be given exactly."""
    filled = [part for part in parts if part.num_values]
    if not filled or not all(part.has_min_max for part in filled):
        return None
    try:
        low = _encode_bound(min(part.min for part in filled), _floor_millis)
        high = _encode_bound(max(part.max for part in filled), _ceiling_millis)
    except (ValueError, OverflowError, NotImplementedError):
        return None  # a date or text that Python cannot represent
    return None if low is None or high is None else (low, high)


def _floor_millis(micros: int) -> int:
    return micros // 1000


def _ceiling_millis(micros: int) -> int:
    return -(-micros // 1000)


def _encode_bound(value: Any, to_millis: Callable[[int], int]) -> Any:
    """A bound as in JSON; None if it cannot be given exactly.

    `to_millis` rounds microseconds outwards to milliseconds, the precision of Delta.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None
        micros = (value - _EPOCH) // timedelta(microseconds=1)
        at = _EPOCH + timedelta(milliseconds=to_millis(micros))
        return f"{at.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        # JSON gets the shortest text of the double.
        return float(value) if Decimal(repr(float(value))) == value else None
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int) else None


#: Spark checks each given path. With more paths, Delta's time travel is faster.
_MAX_LISTED_FILES = 500


def list_data_files(url: str, table: Table, days: Iterable[date], version: int) -> pa.Table:
    """The `day` and `path` of the data files of days as of a version, from the log."""
    return _list_files(delta_log(url, version).load(), table, days)


@dataclass(frozen=True)
class OldFiles:
    """Files of days at an old version.

    Attributes:
        days_with_files: days that had files at that version.
        days_with_missing_files: days of which files are deleted since.
    """

    days_with_files: frozenset[date]
    days_with_missing_files: frozenset[date]


def find_old_files(url: str, table: Table, version: int, days: Iterable[date]) -> OldFiles:
    """List the files of days as of a version, and check which of them still exist."""
    files = list_data_files(url, table, days, version).to_pylist()
    filesystem, base = open_store(url)
    infos = filesystem.get_file_info([f"{base}/{file['path']}" for file in files])
    missing_days = {
        file["day"] for file, info in zip(files, infos, strict=True) if not info.is_file
    }
    return OldFiles(frozenset(file["day"] for file in files), frozenset(missing_days))


def files_as_of(
    url: str, table: Table, days: Iterable[date], version: int, since: int = -1
) -> DataFiles:
    """The data files of days as of a version, for a commit to the same table.

    A day is left out if a file of it has no commit any more, no row count, or a deletion vector; or
    if it holds a column that the table lacked then and has now, whose values would come back. All
    days are left out if the rows of then have to be converted to the columns of now. `url` may be
    that of a shallow clone. The commits after `since` are read first: pass a version after which
    most of the files were added.
    """
    locations_by_day: dict[date, list[str]] = defaultdict(list)
    log = delta_log(url, version).load()
    metadata = read_metadata(log)
    if not _gives_current_rows(metadata, table):
        return {}
    for file in _list_files(log, table, days).to_pylist():
        locations_by_day[file["day"]].append(resolve_path(url, file["path"]))
    all_locations = {location for locations in locations_by_day.values() for location in locations}
    added = added_files(url, since)
    if not all_locations <= added.keys():
        added = added_files(url, -1)
    usable = {
        location
        for location in all_locations
        if '"numRecords"' in (added.get(location, {}).get("stats") or "")
        if not added[location].get("deletionVector")
    }
    if lacking := table.columns.keys() - set(metadata.struct.names):
        with ThreadPoolExecutor(_THREADS) as pool:
            holds_none = pool.map(partial(_holds_no_column, names=lacking), usable)
            usable = {*compress(usable, holds_none)}
    return {
        day: [_to_add_action(location, added[location]) for location in locations]
        for day, locations in locations_by_day.items()
        if usable.issuperset(locations)
    }


def _gives_current_rows(metadata: TableMetadata, table: Table) -> bool:
    """Whether the rows of a table of these columns and properties need no conversion."""
    return (
        files_match_schema(metadata.struct, table.columns)
        and not unfilled_columns(table, metadata)
        and metadata.properties.get("delta.columnMapping.mode", "none") == "none"
    )


def _holds_no_column(location: str, names: Collection[str]) -> bool:
    """Whether a data file can be read, and has none of the columns, as its footer says.

    Spark takes a column for another one whose name differs in case only.
    """
    filesystem, path = open_store(location)
    try:
        with filesystem.open_input_file(path) as source:
            stored = pq.read_schema(source).names
    except (OSError, pa.ArrowException):
        return False
    return {name.lower() for name in names}.isdisjoint(name.lower() for name in stored)


def _to_add_action(location: str, added: Mapping[str, Any]) -> AddAction:
    path = unquote(added["path"])
    if "://" in path:  # of a shallow clone: its files are in the day folders of the table
        path = "/".join(location.rsplit("/", 1 + len(added["partitionValues"]))[1:])
    size, at = added["size"], added["modificationTime"]
    return AddAction(path, size, added["partitionValues"], at, True, added["stats"])


def _list_files(log: DeltaTable, table: Table, days: Iterable[date] | None) -> pa.Table:
    """The `day` and `path` of the files in the log; `days` None means all days."""
    actions = files_of_part(log, table)
    partition = f"partition.{table.partition}"
    if not actions.num_rows:
        return pa.table({"day": [], "path": []})
    if days is not None:
        actions = actions.filter(pc.is_in(pc.field(partition), pa.array(sorted(days), pa.date32())))
    return actions.select([partition, "path"]).rename_columns(["day", "path"])


def rows_as_of(
    spark: SparkSession,
    url: str,
    table: Table,
    version: int,
    days: Collection[date] | None,
    parts: Sequence[Table] = (),
) -> DataFrame:
    """The rows of days (all if None) as of a version, as Delta's time travel reads them.

    Of a table with a second dimension, the rows are those of its part, or of other `parts`.

    Raises:
        DeltaError, OSError: the version does not exist (any more), or cannot be read.
        AnalysisException: a data file is missing; with Spark Connect only when rows are read.
    """
    log = delta_log(url, version).load()
    tables = [*parts] or [table]
    files = [file for part in tables for file in _list_files(log, part, days).to_pylist()]
    if not files:
        return create_frame(spark, table.struct_type)
    folder = _common_root(url, log, tables, files) if len(files) <= _MAX_LISTED_FILES else None
    if folder is not None:
        paths = [escape_glob(resolve_path(url, file["path"])) for file in files]
        rows = spark.read.schema(table.struct_type).option("basePath", folder).parquet(*paths)
        return rows.select(*table.columns)
    rows = spark.read.format("delta").option("versionAsOf", version).load(url)
    if days is not None:
        rows = rows.where(days_condition(days, table.partition))
    if table.part:
        rows = rows.where(F.col(table.part_column).isin([part.part for part in tables]))
    return table.with_current_columns(rows)


def rows_of_files(
    spark: SparkSession, url: str, table: Table, files: DataFiles, days: Iterable[date]
) -> DataFrame:
    """The rows of data files of a table, committed or not; files must have its current columns."""
    paths = [escape_glob(f"{url}/{file.path}") for day in days for file in files.get(day, ())]
    if not paths:
        return create_frame(spark, table.struct_type)
    rows = spark.read.schema(table.struct_type).option("basePath", url).parquet(*paths)
    return rows.select(*table.columns)


def escape_glob(path: str) -> str:
    """Escape a path for Spark, which reads paths as glob patterns."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def _same_types(stored: T.StructType, table: Table) -> bool:
    types = {column.name: column.dataType.simpleString() for column in stored}
    return all(
        types.get(field.name) == field.dataType.simpleString() for field in table.struct_type
    )


def _common_root(
    url: str, log: DeltaTable, tables: Sequence[Table], files: Iterable[Mapping[str, Any]]
) -> str | None:
    """The folder of the files, if each file is in its day folder and has the rows of the table.

    None if only Delta can read them: rows may be deleted by deletion vectors, columns renamed,
    missing or without their default, or paths have another form.
    """
    table, metadata = tables[0], read_metadata(log)
    struct = metadata.struct
    complete = set(struct.names).issuperset(table.columns) and _same_types(struct, table)
    if log.protocol().min_reader_version > 1 or not complete or unfilled_columns(table, metadata):
        return None
    roots = set()
    folders = [re.escape(f"{n}={v}") for part in tables for n, v in part.part_values.items()]
    part_folder = f"(?:{'|'.join(folders)})/" if folders else ""
    for file in files:
        match = re.fullmatch(
            rf"(.*)/{table.partition}={file['day']}/{part_folder}[\w.-]+",
            resolve_path(url, file["path"]),
            re.DOTALL,
        )
        roots.add(match and match[1])
    return roots.pop() if len(roots) == 1 else None


@dataclass(frozen=True)
class TableSnapshot:
    """A table at one version.

    Attributes:
        ledger: of the version that the rows are read at.
        needs_same_day: whether a day that is built from the table needs the same day of it.
        read: reads the rows of some days, of all days if None; of other parts if tables are given.
        input_days: returns the days of the table that a day is built from; days not published are
            not read. Default: the same day if `needs_same_day`.
        find_required_days: returns the days of the table without which a day cannot be built.
            Default: the same day.
    """

    ledger: Ledger
    needs_same_day: bool
    read: Callable[..., DataFrame]
    input_days: Callable[[date], Iterable[date]] | None = None
    find_required_days: Callable[[date], Sequence[date]] | None = None

    @classmethod
    def at_version(
        cls, url: str, ledger: Ledger, session: SessionFactory, *, by_day: bool = False
    ) -> Self:
        """Return the table at a URL at the version of its ledger; rows are read on demand.

        The version is pinned: the audit and the write evaluate a frame at different times, and must
        not see a commit that comes in between.
        """
        table = ledger.table

        def read(days: Collection[date] | None, parts: Sequence[Table] = ()) -> DataFrame:
            """Read days at the ledger's version; `None` reads all days."""
            if ledger.version is None:
                raise dg.Failure(
                    f"{table.name} has no table yet at {url}: materialize it first. Nothing was "
                    "written.",
                    allow_retries=False,
                )
            return rows_as_of(session(), url, table, ledger.version, days, parts)

        return cls(ledger, by_day, read)

    @property
    def table(self) -> Table:
        """The declaration of the table: columns, key, inputs. Its rows are in `read`."""
        return self.ledger.table

    @property
    def all_rows(self) -> DataFrame:
        """The rows of all days."""
        return self.read(None)

    def read_days(self, days: Iterable[date]) -> DataFrame:
        """Read the rows of some days."""
        return self.read(frozenset(days))

    @staticmethod
    def read_together(snapshots: "Sequence[TableSnapshot]", days: Iterable[date]) -> DataFrame:
        """Read the rows of some days of parts of a table that are at the same version."""
        tables = {snapshot.table.name: snapshot.table for snapshot in snapshots}
        if len(tables) == 1:
            return snapshots[0].read_days(days)
        return snapshots[0].read(frozenset(days), [*tables.values()])

    def with_reach(
        self,
        input_days: Callable[[date], Iterable[date]],
        required_days_of: Callable[[date], Sequence[date]] | None = None,
    ) -> Self:
        """Return a copy with other input days and required days."""
        return replace(self, input_days=input_days, find_required_days=required_days_of)

    def required_days(self, day: date) -> Sequence[date]:
        """Return the days of the table without which a day cannot be built."""
        if not self.needs_same_day:
            return []
        return self.find_required_days(day) if self.find_required_days else [day]

    def count_input_rows(self, window: Window, *, each_once: bool = False) -> int:
        """Estimate how many rows decide the days of a window.

        A row that decides two days counts twice, as a table's function gets it twice, unless it
        gets `each_once`.
        """
        counts = Counter(day for built in window for day in self._find_input_days(built))
        return sum(
            self.ledger.estimate_rows(day) * (1 if each_once else count)
            for day, count in counts.items()
        )

    def days_read_for(self, days: Iterable[date]) -> frozenset[date]:
        """Return the days of the table that some days are built from."""
        return frozenset(d for day in days for d in self._find_input_days(day))

    def _find_input_days(self, day: date) -> Iterable[date]:
        if self.input_days:
            return self.input_days(day)
        return [day] if self.needs_same_day else []
