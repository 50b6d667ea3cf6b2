"""Days of a table as of a version that need not be the last: their data files, and their rows.

Delta's own time travel puts together the table's whole state for each version that is read, which
for a few days of a long history takes longer than all the rest.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.calendar.partitions import any_of, windows
from backfill_assets.delta.logs import delta_log
from backfill_assets.engine.frames import frame_of
from backfill_assets.tables.table import Table

#: Spark looks for each file that it is given. With more than these, Delta's state costs less.
_FEW = 500


def data_files(url: str, table: Table, days: Iterable[date], version: int) -> pa.Table:
    """The data files of days as of a version, from the log: their `day` and `path`."""
    return _files(delta_log(url, version).load(), table, days)


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
    if len(files) > _FEW or not _is_plain(log, table, files):
        rows = spark.read.format("delta").option("versionAsOf", version).load(url)
        if days is not None:
            rows = rows.where(any_of(windows(days), table.partition))
        return table.filled(rows)
    # Spark takes what it is given for patterns.
    literal = re.sub(r"([\\*?\[\]{}])", r"\\\1", url)
    paths = [f"{literal}/{file['path']}" for file in files]
    rows = spark.read.schema(table.struct).option("basePath", url).parquet(*paths)
    return rows.select(*table.columns)


def _is_plain(log: DeltaTable, table: Table, files: Iterable[Mapping[str, Any]]) -> bool:
    """Whether files hold the rows as they are, each in the folder of its day.

    Otherwise rows may be deleted without a new file, columns renamed or not there yet, and paths
    may be of any form: all that is for Delta to know.
    """
    there = {field.name for field in log.schema().fields}
    return (
        log.protocol().min_reader_version == 1
        and there.issuperset(table.columns)
        and all(
            re.fullmatch(rf"{table.partition}={file['day']}/[\w.-]+", file["path"])
            for file in files
        )
    )
