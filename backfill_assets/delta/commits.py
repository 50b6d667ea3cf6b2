"""The commit: days of a table replaced, merged, or deleted as it retires, unless another was first.

How Delta is made to do that is known here and nowhere else. What is committed, and what the commit
says of itself, is decided by `publisher`.

The log stays. So readers find an empty table instead of none, `history` tells what it was, and
nobody takes it for one that is still to be made.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from backfill_assets.audit.verdicts import digest_sums, digest_text
from backfill_assets.calendar.partitions import (
    DAY,
    any_window_condition,
    format_ranges,
    to_ranges,
    to_windows,
)
from backfill_assets.dagster_ext.executor import raise_if_interrupted
from backfill_assets.dagster_ext.failures import is_engine_lost
from backfill_assets.delta.commit_log import folder_uri
from backfill_assets.delta.data_files import (
    DataFiles,
    delete_files,
    rows_as_of,
    rows_of_files,
    write_files,
)
from backfill_assets.delta.delta_rs import APPLICATION, delta_log, load_log
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import RETIREMENT
from backfill_assets.delta.table_schema import SessionFactory, add_columns, create_table, is_empty
from backfill_assets.settings import UNDO_DAYS
from backfill_assets.spark.filesystems import open_store
from backfill_assets.spark.frames import read_observation
from backfill_assets.spark.session import SPARK_ERRORS, commit_session
from backfill_assets.tables.table import Table

#: Delta's names for "somebody else committed first"; over Connect only the message carries them.
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
    "RemoteFileChangedException",  # a conditional PUT of Hadoop's S3A that came second
)
#: How long Delta keeps the commits. They are the record of what was published, and when; it would
#: drop them after a month.
LOG_RETENTION = {"delta.logRetentionDuration": "interval 36500 days"}
#: After so many commits the log is put together, as Delta does it.
CHECKPOINT_INTERVAL = 10

_log = logging.getLogger(__name__)


class PublishError(RuntimeError):
    """A commit did not come about; the table is as it was."""


def table_properties(undo_days: int) -> dict[str, str]:
    """Delta's properties of our tables, by name.

    Args:
        undo_days: for how many days VACUUM must keep the files that were replaced.
    """
    return {
        **LOG_RETENTION,
        "delta.deletedFileRetentionDuration": f"interval {undo_days} days",
    }


def format_properties(properties: Mapping[str, str]) -> str:
    """Properties as TBLPROPERTIES takes them."""
    return ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())


class WrittenFiles(NamedTuple):
    """Data files that were written, and that no commit names yet.

    Attributes:
        files: by day.
        digest: of all rows in them together.
    """

    files: DataFiles
    digest: str


@dataclass(frozen=True)
class Writer:
    """Commits to one table.

    Attributes:
        session: gives the session, which starts when it is first needed: a commit of files that are
            there needs none.
        url: where the table lives.
        table: which one it is.
        undo_days: for how many days a table that is created keeps the files that were replaced.
        files: of a fork, the table that it is a fork of, with whose files its own lie.
    """

    session: SessionFactory
    url: str
    table: Table
    undo_days: int = UNDO_DAYS
    files: str = ""

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self.session()

    def write_rows(
        self, frame: DataFrame, days: Sequence[date], *, scattered: bool
    ) -> WrittenFiles:
        """Write days' rows as data files that no version of the table names, see `commit`.

        Args:
            frame: rows of these days, and maybe of others, which are left out.
            days: the days.
            scattered: whether a day's rows lie in many Spark partitions.

        Raises:
            PublishError: the table is as it was.
        """
        rows = frame.where(any_window_condition(to_windows(days), self.table.partition))
        if scattered:
            rows = rows.hint("rebalance", self.table.partition)
        # Digested by the write itself: the rows that are in the files, and not those of another
        # computation.
        sums = Observation()
        named_sums = (
            column.alias(name) for name, column in digest_sums(self.table.struct_type).items()
        )
        rows = rows.observe(sums, *named_sums)
        try:
            files = write_files(rows, self.files or self.url, self.table.partition)
            return WrittenFiles(files, digest_text(read_observation(sums), self.table.struct_type))
        except SPARK_ERRORS as error:
            if is_engine_lost(error):
                raise
            raise self._publish_error(days, error) from error
        except (OSError, pa.ArrowException) as error:
            raise self._publish_error(days, error) from error

    def remove_files(self, files: Iterable[AddAction]) -> None:
        """Remove data files that no commit will name; what cannot be removed is left to VACUUM."""
        try:
            delete_files(self.files or self.url, files)
        except OSError as error:
            _log.warning("%s: files that no commit names are left: %s", self.url, error)

    def commit(
        self,
        files: DataFiles,
        days: Sequence[date],
        metadata: Mapping[str, Any],
        since: Ledger,
    ) -> int | None:
        """Make the days what their files have, in one commit; with no days, it is for the record.

        A day without files has no rows.

        Args:
            files: of these days, as `write_rows` gives them.
            days: the days to replace.
            metadata: what the commit is to say of itself.
            since: the ledger on which all this rests.

        Returns:
            The version that it made; none if another commit came after that ledger.

        Raises:
            PublishError: the table is as it was.
        """
        ready = self._prepare_table(since, days)
        if ready is None:
            return None
        full_metadata = _commit_metadata(metadata, days)
        failure: Exception | None = None
        try:
            self._replace(files, days, full_metadata, ready)
        except (DeltaError, OSError) as error:
            failure = error
        # A commit whose answer was lost has come about; and one that another engine has written
        # over, as it may on a store without a lock that both know, has not.
        version, last = self._find_own_commit(full_metadata)
        if version is None and failure and last == ready.version:
            raise self._publish_error(days, failure) from failure
        if version and version % CHECKPOINT_INTERVAL == 0:
            self._write_checkpoint(version)
        return version

    def _replace(
        self, files: DataFiles, days: Sequence[date], metadata: Mapping[str, Any], ready: Ledger
    ) -> None:
        """Commit the version that comes after the ledger's, or none."""
        log = delta_log(self.url, ready.version).load()
        column = self.table.partition
        log.create_write_transaction(
            [self._with_log_path(file) for day in days for file in files.get(day, ())],
            "overwrite" if days else "append",
            log.schema(),
            [column],
            [(column, "in", [str(day) for day in days])] if days else None,
            commit_properties=CommitProperties(
                {"userMetadata": json.dumps(metadata)},
                max_commit_retries=0,
                app_transactions=[Transaction(APPLICATION, (ready.transaction or 0) + 1)],
            ),
            post_commithook_properties=PostCommitHookProperties(
                create_checkpoint=False, cleanup_expired_logs=False
            ),
        )

    def _with_log_path(self, file: AddAction) -> AddAction:
        """A data file as the log names it."""
        return replace(file, path=f"{folder_uri(self.files)}/{file.path}") if self.files else file

    def _find_own_commit(self, metadata: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """The version that has a commit of ours, none if there is none; and the last version."""
        ledger = read_ledger(self.url, self.table)
        own_versions = (
            r.version for r in reversed(ledger.records) if r.commit_id == metadata["commit_id"]
        )
        return next(own_versions, None), ledger.version

    def merge(
        self, files: DataFiles, days: Sequence[date], metadata: Mapping[str, Any], since: Ledger
    ) -> int | None:
        """As `commit`, by changing, adding and leaving rows by their natural key.

        The files are those of the rows to merge: no commit names them.
        """
        ready = self._prepare_table(since, days)
        if ready is None:
            return None
        full_metadata = _commit_metadata(metadata, days)
        # Delta passes over a write whose number is not above that of the last one: this is how
        # a commit depends on none of ours having come in between. The last one is that of the
        # snapshot that the ledger was read from, whatever records are left of it.
        number = (ready.transaction or 0) + 1
        rows = rows_of_files(self.spark, self.url, self.table, files, days)
        try:
            self._run_merge(rows, days, json.dumps(full_metadata), number)
        except SPARK_ERRORS as error:
            if is_engine_lost(error):
                raise
            if not is_conflict(error):
                raise self._publish_error(days, error) from error
        return self._find_own_commit(full_metadata)[0]

    def _prepare_table(self, since: Ledger, days: Sequence[date]) -> Ledger | None:
        """The ledger of a table that can take the rows; none if somebody else came first.

        Raises:
            PublishError: it is retired, it cannot be made, or its columns not be added.
            DagsterExecutionInterruptedError: the run was terminated; nothing is committed.
        """
        raise_if_interrupted()
        if message := retired_message(since, self.url, days):
            raise PublishError(message)
        # Also if a creation was killed before it was done. Where the log was cut, no record may be
        # left, but the number of the last commit is.
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
                raise self._publish_error(days, error) from error
        current = read_ledger(self.url, self.table)
        # What was judged must be what is published: with other columns, one looks again.
        return current if current.version == since.version or (new and is_empty(current)) else None

    def _publish_error(self, days: Sequence[date], error: Exception) -> PublishError:
        shown = ", ".join(map(str, to_windows(days))) or "for the record"
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
        """Put the log together for readers, who otherwise read every commit."""
        try:
            delta_log(self.url, version).load().create_checkpoint()
        except (DeltaError, OSError) as error:
            _log.warning("%s: no checkpoint of version %s: %s", self.url, version, error)

    def _run_merge(self, rows: DataFrame, days: Sequence[date], metadata: str, number: int) -> None:
        table, view = self.table, f"merge_{uuid4().hex}"
        columns = (table.partition, *table.key)
        same_key = " AND ".join(f"t.`{name}` = s.`{name}`" for name in dict.fromkeys(columns))
        # Literal days: a merge that may touch any day conflicts with the writers of every day.
        days_only = any_window_condition(to_windows(days), table.partition, relation="t")
        same = " AND ".join(f"t.`{name}` <=> s.`{name}`" for name in table.columns)
        rows.createOrReplaceTempView(view)
        try:
            with commit_session(
                self.spark,
                {
                    "spark.databricks.delta.commitInfo.userMetadata": metadata,
                    "spark.databricks.delta.write.txnAppId": APPLICATION,
                    "spark.databricks.delta.write.txnVersion": str(number),
                },
            ) as session:
                session.sql(
                    f"MERGE INTO delta.`{self.url}` t USING `{view}` s "
                    f"ON {same_key} AND ({days_only}) "
                    f"WHEN MATCHED AND NOT ({same}) THEN UPDATE SET * "
                    "WHEN NOT MATCHED THEN INSERT *"
                )
        finally:
            # The session may outlive this process.
            with suppress(*SPARK_ERRORS):
                self.spark.catalog.dropTempView(view)

    def count_leftover_rows(
        self, frame: DataFrame, days: Sequence[date], at: int
    ) -> dict[date, int]:
        """By day, the rows of the table that a merge would leave although they do not belong there.

        Their key is not in the frame, or they are there more than once.

        Args:
            frame: the rows to merge.
            days: the days in question.
            at: the table's version.
        """
        table = self.table
        columns = list(dict.fromkeys((table.partition, *table.key)))
        existing = rows_as_of(self.spark, self.url, table, at, days)
        keys = frame.select(*columns).distinct().withColumn("_wanted", F.lit(1))
        copies = existing.groupBy(*columns).agg(F.count(F.lit(1)).alias("copies"))
        wrong = copies.join(keys, columns, "left").select(
            table.partition,
            (F.col("copies") - F.coalesce("_wanted", F.lit(0))).alias("wrong"),
        )
        counts = wrong.groupBy(table.partition).agg(F.sum("wrong").alias("wrong")).collect()
        return {row[table.partition]: row["wrong"] for row in counts if row["wrong"]}


def _commit_metadata(metadata: Mapping[str, Any], days: Sequence[date]) -> dict[str, Any]:
    """What a commit is to say of itself, with the days that it writes and a name of its own."""
    return {**metadata, "days": [str(w) for w in to_windows(days)], "commit_id": uuid4().hex}


def is_conflict(error: Exception) -> bool:
    """Whether a Spark error says that somebody else committed first."""
    text = str(error)
    return any(name in text for name in _CONFLICTS)


def summarize_error(error: Exception) -> str:
    """The line of a Spark error that tells: the one with an error class, or else the first."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line for line in lines if re.search(r"\[[A-Z_]{6,}", line)), lines[0])[:300]


#: Who makes the commit.
_LAUNCHED_BY = "maintenance"


def can_delete_rows(table: Table, undo_days: int, today: date) -> bool:
    """Whether a table has been retired for so long that nothing of it can be undone any more.

    Args:
        table: the table.
        undo_days: for how many days a backfill can be undone.
        today: the business day.
    """
    return table.is_retired(today - undo_days * DAY)


def retired_message(ledger: Ledger, url: str, days: Iterable[date]) -> str:
    """Why days cannot be published in a table that has given up its rows; empty if it has not."""
    if ledger.retirement_commit is None:
        return ""
    return (
        f"{ledger.table.name} [{format_ranges(days)}]: the table is retired, and maintenance has "
        f"taken its rows away (version {ledger.retirement_commit.version}). Nothing was written. "
        f"To make it anew, take `retired` out of its declaration, move its folder {url} away, and "
        "launch its days."
    )


def delete_all_rows(writer: Writer, ledger: Ledger) -> bool:
    """Commit that a table has no rows any more; whether no other commit came first.

    Args:
        writer: commits to it.
        ledger: what its log says.

    Raises:
        PublishError: the table is as it was.
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
        "withdrawn": to_ranges(days),
        "said": {"kind": RETIREMENT},
    }
    return writer.commit({}, days, record, ledger) is not None


def delete_data_files(url: str, table: Table, *, dry_run: bool) -> int:
    """Remove the data files of a table that has given up its rows; how many these are.

    Nobody writes to it any more, so none of them is still to be named. (VACUUM, without a time to
    keep files, makes two commits each time, and delta-rs counts files that are gone.)

    Args:
        url: where it lives.
        table: the table.
        dry_run: whether to count them only, as if it had given up its rows.
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
            filesystem.delete_dir(folder.path)
    return removed
