"""Windows of Delta tables: pruned reads, and the one write path (audit, then one commit).

Every row that reaches a table passes `DeltaIOManager.handle_output`. What a verdict means is
`audit`'s business; what a table looks like is `schemas`'.
"""

import json
import logging
import random
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.events import DagsterEvent
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.audit import (
    TRAILING_DAYS,
    Book,
    Measured,
    Verdict,
    judge,
    measure,
    refuse_strays,
)
from backfill_assets.checks import day_metadata, evaluations
from backfill_assets.partitions import Window, any_of, one_window, windows
from backfill_assets.records import (
    Ledger,
    launched_by,
    load_log,
    packed,
    read_ledger,
)
from backfill_assets.schemas import TABLES, Table
from backfill_assets.spark import SPARK_ERRORS, Engine

_log = logging.getLogger(__name__)

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
_ATTEMPTS = 12
#: The commits are the record of what was published, and when; Delta would drop them after a month.
_PROPERTIES = "'delta.logRetentionDuration' = 'interval 36500 days'"
#: Records fetched at once: SQLite takes no more than some hundred values in one condition.
_QUERY_SIZE = 500


class PublishError(RuntimeError):
    """A commit did not come about; the table is as it was."""


@dataclass(frozen=True)
class Source:
    """An input as an asset gets it.

    Attributes:
        ledger: what the table's log says, as of the version that the rows are read at.
        window: the input's days; none if it depends on no day in particular.
        whole: the rows of all days.
    """

    ledger: Ledger
    window: Window | None
    whole: DataFrame

    @property
    def table(self) -> Table:
        """The table it comes from."""
        return self.ledger.table

    @property
    def frame(self) -> DataFrame:
        """The rows of the input's days."""
        if self.window is None:
            return self.whole
        return self.whole.where(self.window.predicate(self.table.partition))


@dataclass(frozen=True)
class Remarks:
    """What an asset adds to the record of its commit.

    Attributes:
        final: days that only a person may rebuild from now on.
        said: by name, anything that JSON can hold.
    """

    final: Collection[date] = ()
    said: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Candidate:
    """A frame that an asset proposes for publication.

    Attributes:
        table: the table it is meant for.
        frame: the rows, with the partition column.
        books: what the inputs say about each day.
        sources: what it was computed from; the same day must have been published in each that
            depends on days.
        scattered: whether each day's rows lie in many Spark partitions, as after a shuffle; they
            are then gathered, for a file a day rather than one for each task and day.
        numbers: figures for the UI by day, besides those of the audit.
        remarks: what the commit is to say of itself besides, given the table as it is (none while
            there is none) and the verdicts of all days.
        verdicts: what the audit made of it; filled in by the IO manager.
    """

    table: Table
    frame: DataFrame
    books: Mapping[date, Book]
    sources: Sequence[Source] = ()
    scattered: bool = False
    numbers: Mapping[date, Mapping[str, Any]] = field(default_factory=dict)
    remarks: Callable[[Source | None, Sequence[Verdict]], Remarks] | None = None
    verdicts: Sequence[Verdict] = ()


class DeltaIOManager(dg.ConfigurableIOManager):
    """Reads and replaces whole days of the Delta tables under one warehouse.

    Attributes:
        engine: where the Spark session comes from.
        warehouse: each table lives at `<warehouse>/<asset name>`.
        code_version: of the code that computes the tables, for the commit's record.
        config_digest: of the settings that decide what is in them, for the commit's record.
    """

    engine: Engine
    warehouse: str
    code_version: str
    config_digest: str

    def load_input(self, context: dg.InputContext) -> Source:
        """The rows of the input's days, from the table's version of this moment.

        The version is pinned: the audit and the write evaluate the frame at different times, and a
        commit in between must not come between them.
        """
        table = TABLES[context.asset_key.path[-1]]
        ledger = self.ledger(table)
        if ledger.version is None:
            raise dg.Failure(
                f"{table.name} has no table yet at {self.url(table)}: materialize it first. "
                "Nothing was written.",
                allow_retries=False,
            )
        keys = context.asset_partition_keys
        return self._source(ledger, one_window(keys) if keys else None)

    # Dagster takes a generator as well, though its base class says None.
    def handle_output(  # type: ignore[override]
        self, context: dg.OutputContext, obj: Candidate
    ) -> Iterator[DagsterEvent]:
        """Audit the candidate, publish the days that pass in one commit, and record every day.

        Raises:
            SchemaError: a column is missing or of another type.
            RefusedError: rows outside the run's days, rows without a day, or none where some are
                due.
            NotContiguousError: the run's days have a gap.
            PublishError: the commit failed.
        """
        if not isinstance(obj, Candidate):
            raise TypeError(
                f"{context.asset_key}: an asset hands over a Candidate, not {type(obj)}"
            )
        window = one_window(context.asset_partition_keys)
        step = context.step_context
        record = {
            "run_id": context.run_id,
            "backfill_id": step.dagster_run.tags.get("dagster/backfill"),
            "launched_by": launched_by(step.dagster_run.tags),
            "asset": obj.table.name,
            "code_version": self.code_version,
            "config_digest": self.config_digest,
            "inputs": {source.table.name: source.ledger.version for source in obj.sources},
        }
        obj.books = _with_sources(obj, window)
        verdicts, version = self.publish(obj, window, record)
        for verdict in verdicts:
            if verdict.passed:
                yield DagsterEvent.asset_materialization(step, self._event(obj, verdict, version))
        # Afterwards, as an evaluation names the materialization that it speaks of.
        targets = _latest_materializations(step.instance, obj.table, window)
        for verdict in verdicts:
            for evaluation in evaluations(obj.table, verdict, targets.get(verdict.day)):
                yield DagsterEvent.asset_check_evaluation(step, evaluation)

    def publish(
        self, candidate: Candidate, window: Window, record: Mapping[str, Any]
    ) -> tuple[Sequence[Verdict], int | None]:
        """Audit and commit, without Dagster: the verdicts, and the version that was committed.

        The version is none if no day passed; then nothing was written.
        """
        table = candidate.table
        frame = table.conform(candidate.frame)
        found = measure(frame, table)
        refuse_strays(found, table, window, candidate.books)
        ledger = self.ledger(table)
        verdicts = judge(table, window, found, candidate.books, _trailing(ledger, window))
        candidate.verdicts = verdicts
        passed = [verdict.day for verdict in verdicts if verdict.passed]
        if not passed:
            return verdicts, None
        if candidate.scattered:
            frame = frame.hint("rebalance", table.partition)
        remarks = Remarks()
        if candidate.remarks:
            before = None if ledger.version is None else self._source(ledger, None)
            remarks = candidate.remarks(before, verdicts)
        said = {"final": packed(remarks.final), "said": remarks.said}
        return verdicts, self._commit(
            table, frame, window, passed, {**record, **_summary(verdicts), **said}
        )

    def url(self, table: Table) -> str:
        """Where a table lives."""
        return f"{self.warehouse}/{table.name}"

    def ledger(self, table: Table) -> Ledger:
        """What the table's log says, as of now."""
        return read_ledger(self.url(table), table)

    def version(self, table: Table) -> int | None:
        """The table's latest version; none while there is no table."""
        log = load_log(self.url(table))
        return log.version() if log else None

    def _source(self, ledger: Ledger, window: Window | None) -> Source:
        """A table at the version of its ledger."""
        reader = self.engine.spark_session.read.format("delta")
        reader = reader.option("versionAsOf", ledger.version)
        return Source(ledger, window, reader.load(self.url(ledger.table)))

    def _commit(
        self,
        table: Table,
        frame: DataFrame,
        window: Window,
        passed: Sequence[date],
        record: Mapping[str, Any],
    ) -> int:
        found = windows(passed)
        predicate = any_of(found, table.partition)
        rows = frame if len(passed) == len(window) else frame.where(predicate)
        writer = (
            rows.write.format("delta")
            .mode("overwrite")
            .option("replaceWhere", predicate)
            .option("userMetadata", json.dumps({**record, "days": [str(w) for w in found]}))
        )
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                if self.version(table) is None:
                    self._create(table)
                writer.save(self.url(table))
                break
            except SPARK_ERRORS as error:
                if not _is_conflict(error) or attempt == _ATTEMPTS:
                    raise PublishError(
                        f"{table.name} [{window}]: the commit failed and the table is as it was "
                        f"({_gist(error)}). Launch these days again."
                    ) from error
                _log.info("%s [%s]: another writer was first, trying again", table.name, window)
                # Two writers that collided once must not collide for ever.
                time.sleep(random.uniform(0.1, 0.5) * attempt)
        return self._version_of(table, record["run_id"])

    def _version_of(self, table: Table, run_id: str) -> int:
        """The version that a run committed: matched by its own record, as others commit too."""
        ledger = self.ledger(table)
        ours = [record.version for record in ledger.records if record.run_id == run_id]
        assert ledger.version is not None
        return ours[-1] if ours else ledger.version

    def _create(self, table: Table) -> None:
        """Create the empty table, constraints included; harmless if somebody else just did."""
        spark: SparkSession = self.engine.spark_session
        columns = ", ".join(
            f"`{f.name}` {f.dataType.simpleString()}{'' if f.nullable else ' NOT NULL'} "
            f"COMMENT '{_quoted(table.columns[f.name].description)}'"
            for f in table.struct
        )
        target = f"delta.`{self.url(table)}`"
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {target} ({columns}) USING DELTA "
            f"PARTITIONED BY (`{table.partition}`) "
            f"TBLPROPERTIES ({_PROPERTIES})"
        )
        if self.version(table) is None:
            # A creation that was killed left a log without a commit; CREATE TABLE takes it for one.
            empty = spark.createDataFrame([], table.struct).write.format("delta")
            empty.partitionBy(table.partition).mode("append").save(self.url(table))
            spark.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ({_PROPERTIES})")
            for field in table.struct:
                if not field.nullable:  # too late for NOT NULL, which only CREATE TABLE takes
                    rule = f"{field.name} IS NOT NULL"
                    spark.sql(
                        f"ALTER TABLE {target} ADD CONSTRAINT {field.name}_required CHECK ({rule})"
                    )
        for name, rule in table.constraints.items():
            spark.sql(f"ALTER TABLE {target} ADD CONSTRAINT {name} CHECK ({rule})")

    def _event(
        self, candidate: Candidate, verdict: Verdict, version: int | None
    ) -> dg.AssetMaterialization:
        table = candidate.table
        return dg.AssetMaterialization(
            asset_key=table.name,
            partition=verdict.day.isoformat(),
            metadata={
                **day_metadata(verdict),
                **candidate.numbers.get(verdict.day, {}),
                "dagster/uri": self.url(table),
                "delta version": version,
                "code version": self.code_version,
                "config digest": self.config_digest,
                **{f"input version {s.table.name}": s.ledger.version for s in candidate.sources},
            },
            tags={
                "dagster/data_version": verdict.measured.digest,
                "dagster/data_version_is_user_provided": "true",
            },
        )


def _trailing(ledger: Ledger, window: Window) -> dict[date, Measured]:
    """The days before the window in numbers, from the statistics in the table's log."""
    days = Window(window.start - timedelta(days=TRAILING_DAYS), window.start)
    return {day: measured for day, measured in ledger.measured.items() if day in days}


def _with_sources(candidate: Candidate, window: Window) -> dict[date, Book]:
    """The books, with a problem for every day that a source has never published.

    Such a day has no rows to read, but that does not make it an empty day.
    """
    books = {day: candidate.books.get(day, Book()) for day in window}
    for source in candidate.sources:
        if source.window is None:
            continue
        for day in sorted(set(window) - source.ledger.published):
            said = f"{source.table.name}[{day}] has never been published"
            books[day] = replace(books[day], problems=[*books[day].problems, said])
    return books


def _latest_materializations(
    instance: dg.DagsterInstance, table: Table, window: Window
) -> dict[date, AssetCheckEvaluationTargetMaterializationData]:
    """The latest materialization of each day; of a day that was not published, an older one.

    Without it the UI counts a day's evaluation as missing: it compares the two by storage id.
    """
    key = dg.AssetKey(table.name)
    ids = instance.event_log_storage.get_latest_storage_id_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, {day.isoformat() for day in window}
    )
    found = {}
    for first in range(0, len(ids), _QUERY_SIZE):
        wanted = list(ids.values())[first : first + _QUERY_SIZE]
        records = instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=key, storage_ids=wanted), limit=len(wanted)
        ).records
        for record in records:
            found[date.fromisoformat(str(record.partition_key))] = (
                AssetCheckEvaluationTargetMaterializationData(
                    storage_id=record.storage_id, run_id=record.run_id, timestamp=record.timestamp
                )
            )
    return found


def _summary(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "audit": {
            str(v.day): {
                "rows": v.measured.rows,
                "digest": v.measured.digest,
                "verdict": v.severity.value,
                "totals": {name: str(total) for name, total in v.measured.totals.items()},
            }
            for v in verdicts
            if v.passed
        },
        "not_published": {str(v.day): v.reasons for v in verdicts if not v.passed},
    }


def _is_conflict(error: Exception) -> bool:
    text = str(error)
    return any(name in text for name in _CONFLICTS)


def _gist(error: Exception) -> str:
    """The line of a Spark error that tells: the one with an error class, or else the first."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line for line in lines if re.search(r"\[[A-Z_]{6,}", line)), lines[0])[:300]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
