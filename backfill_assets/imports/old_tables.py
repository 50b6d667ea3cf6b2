"""A table of somebody else's, as it is read: all of it as of a version, or what was appended since.

Nothing is written to it. Of a Delta table, the commits say what was appended; of a folder of
Parquet files, the files that are new.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.delta.commit_files import CommitLog
from backfill_assets.delta.forks import file_uri
from backfill_assets.delta.logs import delta_log, load_log
from backfill_assets.engine.stores import on_s3, open_store
from backfill_assets.imports.manifests import ImportRefusedError, ParquetFile, TableImport
from backfill_assets.imports.parquet_folders import list_parquet_files, read_files


@dataclass(frozen=True)
class NewData:
    """What a table holds that has not been imported.

    Attributes:
        version: up to which version.
        since: after which version; none for all of it.
        size: in bytes, of its files.
        files: the files, of a Parquet folder.
        add_actions: what the commits say of the files, of a Delta table.
        skipped: the versions that are passed over.
    """

    version: int
    since: int | None
    size: int
    files: list[ParquetFile]
    add_actions: Sequence[Mapping[str, Any]] = ()
    skipped: Sequence[int] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to land."""
        return not (self.since is None or self.files or self.add_actions)


class ExternalTable(Protocol):
    """A table of somebody else's."""

    @property
    def kind(self) -> str:
        """`delta` or `parquet`."""

    @property
    def table_id(self) -> str:
        """Delta's identifier of it; empty if it has none."""

    def find_new_data(self, table_import: TableImport) -> NewData:
        """What it holds that has not been imported.

        Raises:
            ImportRefusedError: what was imported is not in it any more, or cannot be told.
        """

    def read_rows(self, spark: SparkSession, new_data: NewData, scratch: str) -> DataFrame:
        """The rows of a step.

        Args:
            spark: the session.
            new_data: which ones.
            scratch: a folder that may be written, and is removed afterwards.
        """


def normalize_url(table: str) -> str:
    """The folder or URL of a table, as it is written down."""
    return table.rstrip("/") if on_s3(table) else str(Path(table).expanduser().resolve())


def open_external_table(url: str) -> ExternalTable:
    """The table that lies in a folder.

    Raises:
        ImportRefusedError: there is none.
    """
    log = load_log(url)
    if log is not None:
        return _DeltaTable(url, str(log.metadata().id), log.version())
    if not list_parquet_files(url):
        raise ImportRefusedError(
            f"{url} holds no Delta table and no Parquet files. Nothing was written. Give the "
            "folder of the table, as a path or as s3a://."
        )
    return _ParquetFolder(url)


@dataclass(frozen=True)
class _DeltaTable:
    url: str
    table_id: str
    version: int
    kind: str = "delta"

    def find_new_data(self, table_import: TableImport) -> NewData:
        if table_import.version < 0:
            return NewData(
                self.version, None, _total_bytes(delta_log(self.url, self.version).load()), []
            )
        if table_import.table_id != self.table_id or table_import.version > self.version:
            raise ImportRefusedError(
                f"{self.url} is another table than the one that was imported up to version "
                f"{table_import.version}: it was made again. Nothing was written. What was imported stays. "
                "Give the new table a folder of its own, and import that."
            )
        adds = list(self._added_files(table_import.version, self.version, table_import.skipped))
        return NewData(
            self.version,
            table_import.version,
            sum(add["size"] for add in adds),
            [],
            adds,
            table_import.skipped,
        )

    def _added_files(
        self, since: int, upto: int, skipped: Sequence[int] = ()
    ) -> Iterator[Mapping[str, Any]]:
        """What the commits after a version say of the files that they add with new rows."""
        commits = CommitLog(self.url)
        for version in range(since + 1, upto + 1):
            if version in skipped:
                continue
            text = commits.read_commit(version)
            if text is None:
                raise ImportRefusedError(
                    f"{self.url}: the commit of version {version} is gone from the log, so nobody "
                    f"can tell what was appended since version {since}. Nothing was written. Land "
                    "the rows since then as files of the source, and pass over with --skip "
                    f"{version}. Follow the table more often than its log is kept "
                    "(delta.logRetentionDuration)."
                )
            actions = [json.loads(line) for line in text.splitlines()]
            _refuse_removed(self.url, version, actions)
            for action in actions:
                if (add := action.get("add")) and add.get("dataChange", True):
                    yield add

    def read_rows(self, spark: SparkSession, new_data: NewData, scratch: str) -> DataFrame:
        reader = spark.read.format("delta")
        if new_data.since is None:
            return reader.option("versionAsOf", new_data.version).load(self.url)
        # Delta itself knows best how to read its files: it is given a log that has these alone.
        log_folder = f"{scratch}/appended"
        log = delta_log(self.url, new_data.version).load()
        adds = new_data.add_actions or self._added_files(
            new_data.since, new_data.version, new_data.skipped
        )
        _write_log(
            log_folder, [*_log_header(log), *(_with_absolute_path(self.url, add) for add in adds)]
        )
        return reader.load(log_folder)


def _refuse_removed(url: str, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
    removed = [a["remove"] for a in actions if a.get("remove", {}).get("dataChange")]
    marked = [a["add"] for a in actions if a.get("add", {}).get("deletionVector")]
    if removed or any(add.get("dataChange", True) for add in marked):
        commit_info: Mapping[str, Any] = next(
            (a["commitInfo"] for a in actions if "commitInfo" in a), {}
        )
        raise ImportRefusedError(
            f"{url}: version {version} ({commit_info.get('operation', 'unknown')}) took rows away or "
            "changed them. A raw log only grows, so this cannot be followed. Nothing was written. "
            "Land what has changed as newer versions of the keys, in files of the source, and pass "
            f"over this version with --skip {version}."
        )


def _total_bytes(log: DeltaTable) -> int:
    actions = pa.table(log.get_add_actions(flatten=True))
    return int(pc.sum(actions["size_bytes"]).as_py() or 0) if actions.num_rows else 0


def _log_header(log: DeltaTable) -> list[dict[str, Any]]:
    """What a log says of the table itself: the features that a reader needs, and the columns."""
    protocol, metadata = log.protocol(), log.metadata()
    protocol_fields: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": protocol.reader_features,
        "writerFeatures": protocol.writer_features,
    }
    names = {
        name: value
        for name, value in metadata.configuration.items()
        if name.startswith("delta.columnMapping.")
    }
    columns = {
        "id": str(metadata.id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": log.schema().to_json(),
        "partitionColumns": list(metadata.partition_columns),
        "configuration": names,
    }
    return [{"protocol": {k: v for k, v in protocol_fields.items() if v}}, {"metaData": columns}]


def _with_absolute_path(url: str, add: Mapping[str, Any]) -> dict[str, Any]:
    """What a commit says of a file, for the log of another table."""
    path = str(add["path"])
    if "://" not in path and not path.startswith("file:"):
        path = file_uri(url, path)
    return {"add": {**add, "path": path}}


def _write_log(folder: str, actions: Sequence[Mapping[str, Any]]) -> None:
    filesystem, path = open_store(folder)
    filesystem.create_dir(f"{path}/_delta_log", recursive=True)
    with filesystem.open_output_stream(f"{path}/_delta_log/{0:020d}.json") as stream:
        stream.write("".join(f"{json.dumps(action)}\n" for action in actions).encode())


@dataclass(frozen=True)
class _ParquetFolder:
    url: str
    table_id: str = ""
    kind: str = "parquet"

    def find_new_data(self, table_import: TableImport) -> NewData:
        known = {file.path: file for step in table_import.steps for file in step.read}
        current = {file.path: file for file in list_parquet_files(self.url)}
        if other := sorted(path for path, file in known.items() if current.get(path) != file):
            raise ImportRefusedError(
                f"{self.url}: {len(other)} file(s) that were imported are gone or changed, such as "
                f"{other[0]}. A raw log only grows, so this cannot be followed. Nothing was "
                "written. Put the files back, or import the folder as it is now into a landing and "
                "a warehouse of its own."
            )
        new = [file for path, file in current.items() if path not in known]
        since = table_import.version if table_import.version >= 0 else None
        size = sum(file.size for file in new)
        return NewData(table_import.version + bool(new), since, size, new)

    def read_rows(self, spark: SparkSession, new_data: NewData, scratch: str) -> DataFrame:
        return read_files(spark, self.url, new_data.files)
