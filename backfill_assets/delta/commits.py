"""Commits to a table: replaces, merges or deletes days, if no other commit came first.

A retired table keeps its log: readers find an empty table, `history` still works, and no run takes
the table for a new one.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, NamedTuple, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, Observation, SparkSession

from backfill_assets.audit.verdicts import digest_sums, digest_text
from backfill_assets.calendar import partitions
from backfill_assets.dagster_ext.failures import is_engine_lost, raise_if_interrupted
from backfill_assets.delta import data_files
from backfill_assets.delta.commit_log import folder_uri
from backfill_assets.delta.delta_rs import APPLICATION, NO_HOOKS, delta_log, load_log
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import RETIREMENT
from backfill_assets.delta.table_schema import (
    SessionFactory,
    add_columns,
    create_table,
    is_empty,
    raise_if_schema_differs,
)
from backfill_assets.settings import UNDO_DAYS, Settings
from backfill_assets.spark.filesystems import delete_folder, open_store
from backfill_assets.spark.frames import gather_rows, read_observation
from backfill_assets.spark.session import SPARK_ERRORS, Engine, commit_session
from backfill_assets.tables.code_version import parts_of_version
from backfill_assets.tables.table import Table

#: Delta's names of commit conflicts; over Spark Connect only the error message has them.
_CONFLICTS = (
    "ConcurrentAppend",
    "ConcurrentDelete",
    "ConcurrentWrite",
    "ConcurrentTransaction",
    "MetadataChanged",
    "ProtocolChanged",
    "DELTA_CONCURRENT",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
    "DELTA_CONSTRAINT_ALREADY_EXISTS",
    "FileAlreadyExistsException",
    "RemoteFileChangedException",  # Hadoop's S3A: a conditional PUT that lost
)
#: Commits are our record of what was published; by default Delta deletes them after a month.
LOG_RETENTION = {"delta.logRetentionDuration": "interval 36500 days"}
#: A day that no table has, for a commit that changes columns and replaces no day.
_NO_DAY = "0001-01-01"
#: Number of commits between two checkpoints, as in Delta.
CHECKPOINT_INTERVAL = 10

_log = logging.getLogger(__name__)


class PublishError(RuntimeError):
    """A commit failed; the table is unchanged."""


def table_properties(undo_days: int) -> dict[str, str]:
    """The Delta properties of our tables: VACUUM keeps replaced files for `undo_days`."""
    return {
        **LOG_RETENTION,
        "delta.deletedFileRetentionDuration": f"interval {undo_days} days",
    }


def format_properties(properties: Mapping[str, str]) -> str:
    """The properties in the syntax of TBLPROPERTIES."""
    return ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())


class PartRecord(NamedTuple):
    """What a commit records of another part of the table, and the ledger that it was made from."""

    metadata: Mapping[str, Any]
    since: Ledger


@dataclass(frozen=True)
class Writer:
    """Commits to one table.

    Attributes:
        session: starts the Spark session on first use; a commit of existing files needs none.
        undo_days: for how many days a newly created table keeps replaced files.
        files: of a shallow clone, the URL of the cloned table; new data files are written there.
    """

    session: SessionFactory
    url: str
    table: Table
    undo_days: int = UNDO_DAYS
    files: str = ""

    @classmethod
    def from_settings(cls, settings: Settings, table: Table) -> Self:
        """A writer of a table of a deployment; Spark starts only if rows are written."""
        return cls(
            lambda: Engine.from_settings(settings).spark_session,
            settings.table(table.asset_name),
            table,
            settings.undo_days,
        )

    @property
    def spark(self) -> SparkSession:
        """The Spark session, started on first use."""
        return self.session()

    def read_ledger(self) -> Ledger:
        """Read the current ledger of the table."""
        return read_ledger(self.url, self.table)

    def write_rows(
        self, frame: DataFrame, days: Sequence[date], audited_digest: str | None, *, rebalance: bool
    ) -> data_files.DataFiles:
        """Write rows of the days as data files, see `write_parts`."""
        files = self.write_parts(frame, [(self.table, days)], audited_digest, rebalance=rebalance)
        return files.get(self.table.part, {})

    def write_parts(
        self,
        frame: DataFrame,
        days_by_table: Sequence[tuple[Table, Sequence[date]]],
        audited_digest: str | None,
        *,
        rebalance: bool,
    ) -> dict[str, data_files.DataFiles]:
        """Write rows of days as data files that no commit names yet, see `commit`; by part.

        Rows of other days are left out.

        Args:
            frame: the rows.
            days_by_table: the days of this table, or of parts that share its location.
            audited_digest: the digest that the written rows must have; None for any.
            rebalance: whether the rows of a day are in many Spark partitions.

        Raises:
            PublishError: the write failed, or Spark computed other rows than those of the digest;
                the table is unchanged.
        """
        days = sorted({day for _, part_days in days_by_table for day in part_days})
        conditions = [table.days_condition(part_days) for table, part_days in days_by_table]
        rows = frame.where(" OR ".join(f"({condition})" for condition in conditions))
        if rebalance:
            rows = gather_rows(rows, *self.table.partition_columns)
        # The write computes the digest, so it covers the rows in the files and not those of a
        # second computation.
        sums, struct = Observation(), self.table.struct_type
        rows = rows.observe(sums, *(c.alias(name) for name, c in digest_sums(struct).items()))
        try:
            files = data_files.write_files(
                rows, self.files or self.url, self.table.partition_columns
            )
            digest = digest_text(read_observation(sums), struct)
        except (*SPARK_ERRORS, OSError, pa.ArrowException) as error:
            if is_engine_lost(error):
                raise
            raise self._to_publish_error(days, error) from error
        if audited_digest is not None and digest != audited_digest:
            self.remove_files(
                file
                for part_files in files.values()
                for day_files in part_files.values()
                for file in day_files
            )
            raise PublishError(
                f"{self.table.name} [{partitions.format_ranges(days)}]: the rows that were written "
                f"have the digest {digest}, and those that were audited {audited_digest}: computed "
                "twice, the days have not the same rows. Nothing was published. Let the table's "
                "transform give the same rows each time."
            )
        return files

    def remove_files(self, files: Iterable[AddAction]) -> None:
        """Remove data files that no commit names; what cannot be removed is left to VACUUM."""
        try:
            data_files.delete_files(self.files or self.url, files)
        except OSError as error:
            _log.warning("%s: files that no commit names are left: %s", self.url, error)

    def commit(
        self,
        files: data_files.DataFiles,
        days: Sequence[date],
        metadata: Mapping[str, Any],
        since: Ledger,
        others: Sequence[PartRecord] = (),
    ) -> int | None:
        """Replace the days by files in one commit; without days, only the record is committed.

        Args:
            files: the new files of the days, of all parts; a day without files gets no rows.
            days: the days to replace.
            metadata: the record of the commit.
            since: the ledger that the rows were computed from.
            others: of other parts of the table whose days are replaced as well.

        Returns:
            The new version; None if another commit came after one of the ledgers, or between them.

        Raises:
            PublishError: the commit failed; the table is unchanged.
            SchemaError: the table has had other columns since, so that the files do not fit.
        """
        if files:
            raise_if_schema_differs(since, self.url)
        ledgers = [since, *(other.since for other in others)]
        current = self._prepare_table(ledgers, days)
        if current is None:
            return None
        try:
            full_metadata = _commit_metadata(metadata, days, [current, *ledgers[1:]])
            full_metadata = with_other_parts(full_metadata, others)
            return self.commit_files(files, days, full_metadata, current)
        except (DeltaError, OSError) as error:
            raise self._to_publish_error(days, error) from error

    def commit_files(
        self,
        files: data_files.DataFiles,
        days: Sequence[date],
        metadata: Mapping[str, Any],
        since: Ledger,
        schema: Schema | None = None,
    ) -> int | None:
        """Commit files as the version right after a ledger's; the table must exist.

        Args:
            files: as in `commit`.
            days: as in `commit`.
            metadata: the record of the commit, with a `commit_id`, and in `other_parts` the
                records of other parts whose days are replaced as well.
            since: the ledger.
            schema: columns that replace those of the table.

        Returns:
            The new version; None if another commit came after that ledger.

        Raises:
            DeltaError, OSError: the commit failed; the table is unchanged.
        """
        failure: Exception | None = None
        try:
            self._write_version(files, days, metadata, since, schema)
        except (DeltaError, OSError) as error:
            failure = error
        # Look for the commit in the log: it may be there although its response was lost, or be
        # overwritten by another engine, on a store without a lock that both use.
        version, last = self._find_own_commit(metadata)
        if version is None and failure and last == since.version:
            raise failure
        if version and version % CHECKPOINT_INTERVAL == 0:
            self._write_checkpoint(version)
        return version

    def _write_version(
        self,
        files: data_files.DataFiles,
        days: Sequence[date],
        metadata: Mapping[str, Any],
        since: Ledger,
        schema: Schema | None,
    ) -> None:
        """Commit the version right after the ledger's; fail if it exists."""
        log = delta_log(self.url, since.version).load()
        column = self.table.partition
        replaced = ("in", [str(day) for day in days]) if days else ("=", _NO_DAY)
        others = [record["part"] for record in metadata.get("other_parts", ())]
        of_part = [(name, "in", [part, *others]) for name, part in self.table.part_values.items()]
        # Only an overwrite may change the columns.
        overwrites = bool(days) or schema is not None
        log.create_write_transaction(
            [self._with_log_path(file) for day in days for file in files.get(day, ())],
            "overwrite" if overwrites else "append",
            schema or log.schema(),
            [*self.table.partition_columns],
            [(column, *replaced), *of_part] if overwrites else None,
            commit_properties=CommitProperties(
                {"userMetadata": json.dumps(self._with_part(metadata))},
                max_commit_retries=0,
                app_transactions=[Transaction(APPLICATION, (since.transaction or 0) + 1)],
            ),
            post_commithook_properties=NO_HOOKS,
        )

    def _with_part(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """The record of a commit, with the part of the table if it is one."""
        return {**metadata, "part": self.table.part} if self.table.part else metadata

    def _with_log_path(self, file: AddAction) -> AddAction:
        return replace(file, path=f"{folder_uri(self.files)}/{file.path}") if self.files else file

    def _find_own_commit(self, metadata: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """The version of our commit, None if it is not in the log; and the latest version."""
        ledger = self.read_ledger()
        own_versions = (
            r.version for r in reversed(ledger.records) if r.commit_id == metadata["commit_id"]
        )
        return next(own_versions, None), ledger.version

    def merge(
        self,
        files: data_files.DataFiles,
        days: Sequence[date],
        metadata: Mapping[str, Any],
        since: Ledger,
    ) -> int | None:
        """Like `commit`, but merges the rows of the files by natural key; other rows stay."""
        raise_if_schema_differs(since, self.url)
        current = self._prepare_table([since], days)
        if current is None:
            return None
        full_metadata = _commit_metadata(metadata, days, [current])
        # Delta skips a write whose transaction number is not above the last one: so the commit
        # fails if one of ours came in between. The last number is taken from the snapshot of the
        # ledger, as records may be missing.
        transaction_number = (current.transaction or 0) + 1
        rows = data_files.rows_of_files(self.spark, self.url, self.table, files, days)
        try:
            encoded = json.dumps(self._with_part(full_metadata))
            self._run_merge(rows, days, encoded, transaction_number)
        except SPARK_ERRORS as error:
            if is_engine_lost(error):
                raise
            if not is_conflict(error):
                raise self._to_publish_error(days, error) from error
        return self._find_own_commit(full_metadata)[0]

    def _prepare_table(self, ledgers: Sequence[Ledger], days: Sequence[date]) -> Ledger | None:
        """Create the table or add its new columns; None if another commit came first.

        The ledgers are of this table and of other parts of it.

        Raises:
            PublishError: the table is retired, or cannot be created or extended.
            DagsterExecutionInterruptedError: the run was terminated; nothing is committed.
        """
        raise_if_interrupted()
        since = ledgers[0]
        for ledger in ledgers:
            if message := retired_message(ledger, self.url, days):
                raise PublishError(message)
            if ledger.version != since.version:
                return None
        # True also if an earlier creation was killed. Where the log was cut, records may be
        # missing, but the number of the last commit is still known.
        new = not since.records and since.transaction is None
        try:
            if new:
                create_table(self.session, self.url, self.table, table_properties(self.undo_days))
            elif not add_columns(self.session, self.url, since):
                return since
        except (*SPARK_ERRORS, DeltaError, OSError) as error:
            if is_engine_lost(error):
                raise
            if not is_conflict(error):
                raise self._to_publish_error(days, error) from error
        current = self.read_ledger()
        # The audited rows must be the published ones: with other columns, the caller starts again.
        return current if current.version == since.version or (new and is_empty(current)) else None

    def _to_publish_error(self, days: Sequence[date], error: Exception) -> PublishError:
        """The error for the caller to raise; without days, the commit was of a record only."""
        shown = partitions.format_ranges(days) or "for the record"
        message, advice = summarize_error(error), "Launch these days again."
        if "Unsupported table features" in message:
            advice = (
                "Somebody has turned on features of Delta that commits are not made with here. "
                f"Drop them (ALTER TABLE delta.`{self.url}` DROP FEATURE) and launch these days "
                "again; or, where Delta cannot drop them, move the table's folder away and launch "
                "all of its days."
            )
        return PublishError(
            f"{self.table.name} [{shown}]: the commit failed and the table is as it was "
            f"({message}). {advice}"
        )

    def _write_checkpoint(self, version: int) -> None:
        """Write a checkpoint, so that readers need not read every commit."""
        try:
            delta_log(self.url, version).load().create_checkpoint()
        except (DeltaError, OSError) as error:
            _log.warning("%s: no checkpoint of version %s: %s", self.url, version, error)

    def _run_merge(
        self, rows: DataFrame, days: Sequence[date], metadata: str, transaction_number: int
    ) -> None:
        """Run MERGE by key within the days; rows that are equal in all columns are not rewritten.

        Delta skips it if the transaction number is not above the last one of the table.
        """
        table, view = self.table, f"merge_{uuid4().hex}"
        # Days as literals: a merge without them conflicts with writers of all other days.
        days_condition = table.days_condition(days, relation="t")
        same_values = " AND ".join(f"t.`{name}` <=> s.`{name}`" for name in table.columns)
        rows.createOrReplaceTempView(view)
        try:
            with commit_session(
                self.spark,
                {
                    "spark.databricks.delta.commitInfo.userMetadata": metadata,
                    "spark.databricks.delta.write.txnAppId": APPLICATION,
                    "spark.databricks.delta.write.txnVersion": str(transaction_number),
                },
            ) as session:
                session.sql(
                    f"MERGE INTO delta.`{self.url}` t USING `{view}` s "
                    f"ON {table.same_key('t', 's')} AND ({days_condition}) "
                    f"WHEN MATCHED AND NOT ({same_values}) THEN UPDATE SET * "
                    "WHEN NOT MATCHED THEN INSERT *"
                )
        finally:
            # The session may outlive this process, so drop the view.
            with suppress(*SPARK_ERRORS):
                self.spark.catalog.dropTempView(view)


def _commit_metadata(
    metadata: Mapping[str, Any], days: Sequence[date], ledgers: Sequence[Ledger]
) -> dict[str, Any]:
    """The record of a commit; the first one by a code version tells what that is made of."""
    version = metadata["code_version"]
    is_known = all(version in ledger.code_parts for ledger in ledgers)
    parts = {} if is_known else parts_of_version(version)
    return {
        **metadata,
        "days": [str(w) for w in partitions.to_windows(days)],
        "commit_id": uuid4().hex,
        **({"code_parts": parts} if parts else {}),
    }


def with_other_parts(metadata: dict[str, Any], others: Sequence[PartRecord]) -> dict[str, Any]:
    """The record of a commit, with those of other parts: they have its days, or their own."""
    common = {name: metadata[name] for name in ("days", "commit_id")}
    records = [{**common, **record, "part": since.table.part} for record, since in others]
    return {**metadata, "other_parts": records} if others else metadata


def is_conflict(error: Exception) -> bool:
    """Whether a Spark error means that another commit came first."""
    text = str(error)
    return any(name in text for name in _CONFLICTS)


def summarize_error(error: BaseException) -> str:
    """The line of a Spark error with an error class, or else the first line."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line for line in lines if re.search(r"\[[A-Z_]{6,}", line)), lines[0])[:300]


#: `launched_by` of the commit that deletes the rows of a retired table.
_LAUNCHED_BY = "maintenance"


def can_delete_rows(table: Table, undo_days: int, today: date) -> bool:
    """Whether a table has been retired for longer than a backfill can be undone."""
    return table.is_retired(today - undo_days * partitions.DAY)


def retired_message(ledger: Ledger, url: str, days: Iterable[date]) -> str:
    """Why days of a retired table without rows cannot be published; empty if they can."""
    if ledger.retirement_commit is None:
        return ""
    return (
        f"{ledger.table.name} [{partitions.format_ranges(days)}]: the table is retired, and "
        "maintenance has "
        f"taken its rows away (version {ledger.retirement_commit.version}). Nothing was written. "
        f"To make it anew, take `retired` out of its declaration, move its folder {url} away, and "
        "launch its days."
    )


def delete_all_rows(writer: Writer, ledger: Ledger) -> bool:
    """Delete all rows of a table in one commit; return False if another commit came first.

    Raises:
        PublishError: the commit failed; the table is unchanged.
    """
    days = sorted(ledger.published_days)
    record = {
        "run_id": "",
        "launched_by": _LAUNCHED_BY,
        "reason": f"retired since {ledger.table.retired}",
        "asset": ledger.table.name,
        "code_version": "",
        "config_digest": "",
        "since": ledger.version,
        "audit": {},
        "withdrawn": partitions.to_ranges(days),
        "details": {"kind": RETIREMENT},
    }
    return writer.commit({}, days, record, ledger) is not None


def delete_data_files(url: str, table: Table, *, dry_run: bool) -> int:
    """Remove the data files of a table whose rows were deleted, and return their number.

    A dry run counts them as if the rows were deleted. Nobody writes to the table any more, so no
    file is about to be named by a commit. (VACUUM with retention 0 makes two commits each time, and
    delta-rs counts files that are already removed.)
    """
    log = load_log(url)
    assert log is not None
    named_paths = set() if dry_run else {*log.get_add_actions().column("path").to_pylist()}
    filesystem, path = open_store(url)
    folders = [
        info
        for info in filesystem.get_file_info(pafs.FileSelector(path))
        if info.base_name.startswith(f"{table.partition}=")
    ]
    removed = 0
    for folder in folders:
        infos = filesystem.get_file_info(pafs.FileSelector(folder.path, recursive=True))
        files = [info for info in infos if info.is_file]
        unnamed_files = [
            file for file in files if file.path.removeprefix(f"{path}/") not in named_paths
        ]
        removed += sum(file.extension == "parquet" for file in unnamed_files)
        if len(unnamed_files) == len(files) and not dry_run:
            delete_folder(filesystem, folder.path)
    return removed
