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

from backfill_assets.calendar.partitions import any_of, windows
from backfill_assets.delta.data_files import DataFiles
from backfill_assets.delta.forks import added_files, located
from backfill_assets.delta.logs import delta_log, metadata_of
from backfill_assets.engine.frames import frame_of
from backfill_assets.tables.schemas import as_they_are
from backfill_assets.tables.table import Table

#: Spark looks for each file that it is given. With more than these, Delta's state costs less.
_FEW = 500


def data_files(url: str, table: Table, days: Iterable[date], version: int) -> pa.Table:
    """The data files of days as of a version, from the log: their `day` and `path`."""
    return _files(delta_log(url, version).load(), table, days)


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
    held: dict[date, list[str]] = defaultdict(list)
    log = delta_log(url, version).load()
    if not as_they_are(metadata_of(log).struct, table.columns):
        return {}
    for file in _files(log, table, days).to_pylist():
        held[file["day"]].append(located(url, file["path"]))
    wanted = {place for of in held.values() for place in of}
    added = added_files(url, since)
    if not wanted <= added.keys():
        added = added_files(url, -1)
    known = {
        place
        for place in wanted
        if '"numRecords"' in (added.get(place, {}).get("stats") or "")
        if not added[place].get("deletionVector")
    }
    return {
        day: [_as_added(place, added[place]) for place in of]
        for day, of in held.items()
        if known.issuperset(of)
    }


def _as_added(place: str, added: Mapping[str, Any]) -> AddAction:
    path = unquote(added["path"])
    if "://" in path:  # of a fork; its files lie with those of the table, each in that of its day
        path = "/".join(place.rsplit("/", 2)[1:])
    size, at = added["size"], added["modificationTime"]
    return AddAction(path, size, added["partitionValues"], at, True, added["stats"])


def _files(log: DeltaTable, table: Table, days: Iterable[date] | None) -> pa.Table:
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
    files = _files(log, table, days).to_pylist()
    if not files:
        return frame_of(spark, table.struct)
    root = _root(url, log, table, files) if len(files) <= _FEW else None
    if root is None:
        rows = spark.read.format("delta").option("versionAsOf", version).load(url)
        if days is not None:
            rows = rows.where(any_of(windows(days), table.partition))
        return table.filled(rows)
    paths = [literal(located(url, file["path"])) for file in files]
    rows = spark.read.schema(table.struct).option("basePath", root).parquet(*paths)
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
    paths = [literal(f"{url}/{file.path}") for day in days for file in files.get(day, ())]
    if not paths:
        return frame_of(spark, table.struct)
    rows = spark.read.schema(table.struct).option("basePath", url).parquet(*paths)
    return rows.select(*table.columns)


def literal(path: str) -> str:
    """A path as Spark takes it, which takes what it is given for a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def _same_types(there: T.StructType, table: Table) -> bool:
    types = {column.name: column.dataType.simpleString() for column in there}
    return all(types.get(of.name) == of.dataType.simpleString() for of in table.struct)


def _root(
    url: str, log: DeltaTable, table: Table, files: Iterable[Mapping[str, Any]]
) -> str | None:
    """The folder in which files lie that hold the rows as they are, each in the folder of its day.

    None if there is no such folder: rows may be deleted without a new file, columns renamed or not
    there yet, and paths may be of any form: all that is for Delta to know.
    """
    there = metadata_of(log).struct
    whole = set(there.names).issuperset(table.columns) and _same_types(there, table)
    if log.protocol().min_reader_version > 1 or not whole:
        return None
    found = set()
    for file in files:
        own = re.fullmatch(
            rf"(.*)/{table.partition}={file['day']}/[\w.-]+", located(url, file["path"]), re.DOTALL
        )
        found.add(own and own[1])
    return found.pop() if len(found) == 1 else None
