"""Days of a table as of a version that need not be the last: their data files, and their rows.

Delta's own time travel puts together the table's whole state for each version that is read, which
for a few days of a long history takes longer than all the rest.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as T
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.calendar.partitions import any_window_condition, to_windows
from backfill_assets.delta.data_files import DataFiles
from backfill_assets.delta.forks import added_files, resolve_path
from backfill_assets.delta.logs import delta_log, read_metadata
from backfill_assets.engine.frames import create_frame
from backfill_assets.tables.schemas import files_match_schema
from backfill_assets.tables.table import Table

#: Spark looks for each file that it is given. With more than these, Delta's state costs less.
_MAX_LISTED_FILES = 500


def list_data_files(url: str, table: Table, days: Iterable[date], version: int) -> pa.Table:
    """The data files of days as of a version, from the log: their `day` and `path`."""
    return _list_files(delta_log(url, version).load(), table, days)


def files_as_of(
    url: str, table: Table, days: Iterable[date], version: int, since: int = -1
) -> DataFiles:
    """The data files of days as of a version, as a commit to the table is to name them.

    Days with a file of which no commit tells any more, or not how many rows it has, or that has
    rows taken away by a deletion vector, are left out. So are all if the columns were others, as
    the files do not hold the rows of now then.

    Args:
        url: where the table lives, or a fork of it.
        table: which one it is.
        days: the days.
        version: the version.
        since: a version after which most of the files came: these commits are looked at first.
    """
    locations_by_day: dict[date, list[str]] = defaultdict(list)
    log = delta_log(url, version).load()
    if not files_match_schema(read_metadata(log).struct, table.columns):
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
    return {
        day: [_to_add_action(location, added[location]) for location in locations]
        for day, locations in locations_by_day.items()
        if usable.issuperset(locations)
    }


def _to_add_action(location: str, added: Mapping[str, Any]) -> AddAction:
    path = unquote(added["path"])
    if "://" in path:  # of a fork; its files lie with those of the table, each in that of its day
        path = "/".join(location.rsplit("/", 2)[1:])
    size, at = added["size"], added["modificationTime"]
    return AddAction(path, size, added["partitionValues"], at, True, added["stats"])


def _list_files(log: DeltaTable, table: Table, days: Iterable[date] | None) -> pa.Table:
    actions = pa.table(log.get_add_actions(flatten=True))
    partition = f"partition.{table.partition}"
    if not actions.num_rows:
        return pa.table({"day": [], "path": []})
    if days is not None:
        actions = actions.filter(pc.is_in(pc.field(partition), pa.array(sorted(days), pa.date32())))
    return actions.select([partition, "path"]).rename_columns(["day", "path"])


def rows_as_of(
    spark: SparkSession, url: str, table: Table, version: int, days: Collection[date] | None
) -> DataFrame:
    """The rows of days as of a version, as a reader of Delta had them then.

    Args:
        spark: the session.
        url: where the table lives.
        table: which one it is.
        version: the version.
        days: the days; all if none are given.

    Raises:
        DeltaError, OSError: there is no such version (any more), or it cannot be read.
        AnalysisException: a data file is gone; with Spark Connect when the rows are asked for.
    """
    log = delta_log(url, version).load()
    files = _list_files(log, table, days).to_pylist()
    if not files:
        return create_frame(spark, table.struct_type)
    folder = _common_root(url, log, table, files) if len(files) <= _MAX_LISTED_FILES else None
    if folder is None:
        rows = spark.read.format("delta").option("versionAsOf", version).load(url)
        if days is not None:
            rows = rows.where(any_window_condition(to_windows(days), table.partition))
        return table.with_current_columns(rows)
    paths = [escape_glob(resolve_path(url, file["path"])) for file in files]
    rows = spark.read.schema(table.struct_type).option("basePath", folder).parquet(*paths)
    return rows.select(*table.columns)


def rows_of_files(
    spark: SparkSession, url: str, table: Table, files: DataFiles, days: Iterable[date]
) -> DataFrame:
    """The rows of data files of a table, whether a version of it names them or not.

    Args:
        spark: the session.
        url: where the table lives.
        table: which one it is.
        files: by day, in the columns of the table.
        days: the days.
    """
    paths = [escape_glob(f"{url}/{file.path}") for day in days for file in files.get(day, ())]
    if not paths:
        return create_frame(spark, table.struct_type)
    rows = spark.read.schema(table.struct_type).option("basePath", url).parquet(*paths)
    return rows.select(*table.columns)


def escape_glob(path: str) -> str:
    """A path as Spark takes it, which takes what it is given for a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def _same_types(stored: T.StructType, table: Table) -> bool:
    types = {column.name: column.dataType.simpleString() for column in stored}
    return all(
        types.get(field.name) == field.dataType.simpleString() for field in table.struct_type
    )


def _common_root(
    url: str, log: DeltaTable, table: Table, files: Iterable[Mapping[str, Any]]
) -> str | None:
    """The folder in which files lie that hold the rows as they are, each in the folder of its day.

    None if there is no such folder: rows may be deleted without a new file, columns renamed or not
    there yet, and paths may be of any form: all that is for Delta to know.
    """
    struct = read_metadata(log).struct
    complete = set(struct.names).issuperset(table.columns) and _same_types(struct, table)
    if log.protocol().min_reader_version > 1 or not complete:
        return None
    roots = set()
    for file in files:
        match = re.fullmatch(
            rf"(.*)/{table.partition}={file['day']}/[\w.-]+",
            resolve_path(url, file["path"]),
            re.DOTALL,
        )
        roots.add(match and match[1])
    return roots.pop() if len(roots) == 1 else None
