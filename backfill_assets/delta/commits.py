"""The commit: days of one Delta table replaced or merged, unless another commit of ours came first.

How Delta is made to do that is known here and nowhere else. What is committed, and what the commit
says of itself, is decided by `publisher`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import uuid4

import pyspark.sql.types as T
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import any_of, windows
from backfill_assets.dagster_ext.retries import engine_lost
from backfill_assets.delta import evolution
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.logs import APPLICATION, load_log
from backfill_assets.delta.reading import read_ledger
from backfill_assets.engine.spark import SPARK_ERRORS
from backfill_assets.settings import UNDO_DAYS
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
    "DELTA_TABLE_ALREADY_EXISTS",
    "DELTA_CONSTRAINT_ALREADY_EXISTS",
    "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION",
    "FileAlreadyExistsException",
)
#: How long Delta keeps the commits. They are the record of what was published, and when; it would
#: drop them after a month.
LOG_RETENTION = {"delta.logRetentionDuration": "interval 36500 days"}


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


def in_sql(properties: Mapping[str, str]) -> str:
    """Properties as TBLPROPERTIES takes them."""
    return ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())


@dataclass(frozen=True)
class Writer:
    """Commits to one table.

    Attributes:
        spark: the session.
        url: where the table lives.
        table: which one it is.
        undo_days: for how many days a table that is created keeps the files that were replaced.
    """

    spark: SparkSession
    url: str
    table: Table
    undo_days: int = UNDO_DAYS

    def commit(
        self,
        frame: DataFrame,
        days: Sequence[date],
        metadata: Mapping[str, Any],
        since: Ledger,
        *,
        scattered: bool = False,
        merge: bool = False,
    ) -> int | None:
        """Make the days what the frame has, in one commit; with no days, it is for the record.

        Args:
            frame: rows of these days, and maybe of others, which are left out.
            days: the days to write.
            metadata: what the commit is to say of itself.
            since: the ledger on which all this rests.
            scattered: whether a day's rows lie in many Spark partitions.
            merge: change, add and leave rows by their natural key, rather than replace the days.

        Returns:
            The version that it made; none if another commit of ours came after that ledger.

        Raises:
            PublishError: the table is as it was.
        """
        found = windows(days)
        metadata = {**metadata, "days": [str(w) for w in found], "commit_id": uuid4().hex}
        try:
            # Also if a creation was killed before it was done. Where the log was cut, no record may
            # be left, but the number of the last commit is.
            if not since.records and since.transaction is None:
                self._create()
                since = read_ledger(self.url, self.table)
                if since.records or since.transaction is not None:
                    return None
            else:
                self._add_columns(since)
            self._write(frame, days, metadata, since, scattered=scattered, merge=merge)
        except SPARK_ERRORS as error:
            if engine_lost(error):
                raise
            if not is_conflict(error):
                shown = ", ".join(map(str, found)) or "for the record"
                raise PublishError(
                    f"{self.table.name} [{shown}]: the commit failed and the table is as it was "
                    f"({gist(error)}). Launch these days again."
                ) from error
        records = read_ledger(self.url, self.table).records
        ours = (r.version for r in reversed(records) if r.commit_id == metadata["commit_id"])
        return next(ours, None)

    def _write(
        self,
        frame: DataFrame,
        days: Sequence[date],
        metadata: Mapping[str, Any],
        since: Ledger,
        *,
        scattered: bool,
        merge: bool,
    ) -> None:
        """Write the days' rows into a table that is there, unless another commit came first."""
        # Delta passes over a write whose number is not above that of the last one: this is how
        # a commit depends on none of ours having come in between. The last one is that of the
        # snapshot that the ledger was read from, whatever records are left of it.
        number = (since.transaction or 0) + 1
        rows = frame.where(any_of(windows(days), self.table.partition)) if days else frame.limit(0)
        if days and merge:
            self._merge(rows, days, json.dumps(metadata), number)
        else:
            if days and scattered:
                rows = rows.hint("rebalance", self.table.partition)
            self._overwrite(rows, days, json.dumps(metadata), number)

    def _overwrite(self, rows: DataFrame, days: Sequence[date], metadata: str, number: int) -> None:
        writer = rows.write.format("delta").option("userMetadata", metadata)
        writer = writer.option("txnAppId", APPLICATION).option("txnVersion", number)
        if days:
            predicate = any_of(windows(days), self.table.partition)
            writer = writer.mode("overwrite").option("replaceWhere", predicate)
        else:
            writer = writer.mode("append")
        writer.save(self.url)

    def _merge(self, rows: DataFrame, days: Sequence[date], metadata: str, number: int) -> None:
        table, view = self.table, f"merge_{uuid4().hex}"
        columns = (table.partition, *table.key)
        same_key = " AND ".join(f"t.`{name}` = s.`{name}`" for name in dict.fromkeys(columns))
        # Literal days: a merge that may touch any day conflicts with the writers of every day.
        days_only = any_of(windows(days), table.partition, of="t")
        same = " AND ".join(f"t.`{name}` <=> s.`{name}`" for name in table.columns)
        rows.createOrReplaceTempView(view)
        with self._settings(
            {
                "spark.databricks.delta.commitInfo.userMetadata": metadata,
                "spark.databricks.delta.write.txnAppId": APPLICATION,
                "spark.databricks.delta.write.txnVersion": str(number),
            }
        ):
            self.spark.sql(
                f"MERGE INTO delta.`{self.url}` t USING `{view}` s "
                f"ON {same_key} AND ({days_only}) "
                f"WHEN MATCHED AND NOT ({same}) THEN UPDATE SET * "
                "WHEN NOT MATCHED THEN INSERT *"
            )
        self.spark.catalog.dropTempView(view)

    @contextmanager
    def _settings(self, values: Mapping[str, str]) -> Iterator[None]:
        """Settings of the session for one statement, which has no options of its own."""
        for name, value in values.items():
            self.spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in values:
                self.spark.conf.unset(name)

    def leftover(self, frame: DataFrame, days: Sequence[date], at: int) -> dict[date, int]:
        """By day, the rows of the table that a merge would leave although they do not belong there.

        Their key is not in the frame, or they are there more than once.

        Args:
            frame: the rows to merge.
            days: the days in question.
            at: the table's version.
        """
        table = self.table
        columns = list(dict.fromkeys((table.partition, *table.key)))
        there = self.spark.read.format("delta").option("versionAsOf", at).load(self.url)
        there = there.where(any_of(windows(days), table.partition))
        keys = frame.select(*columns).distinct().withColumn("_wanted", F.lit(1))
        copies = there.groupBy(*columns).agg(F.count(F.lit(1)).alias("copies"))
        wrong = copies.join(keys, columns, "left").select(
            table.partition,
            (F.col("copies") - F.coalesce("_wanted", F.lit(0))).alias("wrong"),
        )
        counts = wrong.groupBy(table.partition).agg(F.sum("wrong").alias("wrong")).collect()
        return {row[table.partition]: row["wrong"] for row in counts if row["wrong"]}

    def _create(self) -> None:
        """Create the empty table, constraints included; harmless if somebody else just did."""
        spark, table = self.spark, self.table
        columns = ", ".join(map(self._column, table.struct))
        target = f"delta.`{self.url}`"
        properties = table_properties(self.undo_days)
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {target} ({columns}) USING DELTA "
            f"PARTITIONED BY (`{table.partition}`) "
            f"TBLPROPERTIES ({in_sql(properties)})"
        )
        if load_log(self.url) is None:
            # A creation that was killed left a log without a commit; CREATE TABLE takes it for one.
            empty = spark.createDataFrame([], table.struct).write.format("delta")
            empty.partitionBy(table.partition).mode("append").save(self.url)
        log = load_log(self.url)
        assert log is not None
        # What a creation that was killed has not come to.
        there = log.metadata().configuration
        if not properties.keys() <= there.keys():
            spark.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ({in_sql(properties)})")
        nullable = {field.name for field in log.schema().fields if field.nullable}
        # Too late for NOT NULL, which only CREATE TABLE takes.
        required = {
            f"{field.name}_required": f"{field.name} IS NOT NULL"
            for field in table.struct
            if not field.nullable and field.name in nullable
        }
        self._add_constraints(there, {**required, **table.constraints})

    def _column(self, column: T.StructField) -> str:
        """A column as CREATE and ALTER TABLE take it."""
        required = "" if column.nullable else " NOT NULL"
        comment = _quoted(self.table.columns[column.name].description)
        return f"`{column.name}` {column.dataType.simpleString()}{required} COMMENT '{comment}'"

    def _add_constraints(self, there: Mapping[str, str], rules: Mapping[str, str]) -> None:
        for name, rule in rules.items():
            if f"delta.constraints.{name}" not in there:
                self.spark.sql(
                    f"ALTER TABLE delta.`{self.url}` ADD CONSTRAINT {name} CHECK ({rule})"
                )

    def _add_columns(self, since: Ledger) -> None:
        """Add the columns that the model has got since; no file is written.

        Harmless if somebody else does just that. The names are those of the model, and `evolution`
        says which may be added.
        """
        assert since.metadata is not None
        names = list(self.table.columns)
        new = evolution.lacking(self.table, since.metadata)
        for column in new:
            # Where the model has it: rows of both are compared by position.
            place = names.index(column.name)
            where = f"AFTER `{names[place - 1]}`" if place else "FIRST"
            try:
                self.spark.sql(
                    f"ALTER TABLE delta.`{self.url}` ADD COLUMNS ({self._column(column)} {where})"
                )
            except SPARK_ERRORS:
                log = load_log(self.url)
                if log is None or column.name not in {f.name for f in log.schema().fields}:
                    raise
        # Who added a column may have been killed before its rules.
        added = {*since.added, *(column.name for column in new)}
        rules = {
            name: rule
            for name, rule in self.table.constraints.items()
            if any(name.startswith(f"{column}_") for column in added)
        }
        if rules and (log := load_log(self.url)) is not None:
            self._add_constraints(log.metadata().configuration, rules)


def is_conflict(error: Exception) -> bool:
    """Whether a Spark error says that somebody else committed first."""
    text = str(error)
    return any(name in text for name in _CONFLICTS)


def gist(error: Exception) -> str:
    """The line of a Spark error that tells: the one with an error class, or else the first."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line for line in lines if re.search(r"\[[A-Z_]{6,}", line)), lines[0])[:300]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
