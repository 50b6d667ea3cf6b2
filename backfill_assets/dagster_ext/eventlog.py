"""Dagster's storage: SQLite without waits, events in batches, runs with gaps, and pruning.

Pruning: Dagster can only delete a run with all of its events, and with them the latest state of the
days that the run published: the UI would show them as missing. Here the latest events of each day,
table and check stay, however old they are.

Runs: Dagster expects all days of a run's range, and shows those that were not built as failed. Here
it expects the days that the run's tag has.

Storage: Dagster's SQLite storage creates its tables in whichever process comes first, and two at
once corrupt them or fail. For each event of a day or check it opens, syncs and closes up to three
connections (15 to 20 ms on a small machine) and lists the tables: for a year of days that took
longer than Spark. Here connections stay open, and a batch of events is two transactions.
"""

import fcntl
import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, Self

import dagster as dg
import sqlalchemy as db
from dagster import EventLogEntry
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationPlanned,
)
from dagster._core.definitions.partitions.subset import TimeWindowPartitionsSubset
from dagster._core.events import ASSET_EVENTS
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    AssetKeyTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.event_log.sqlite.sqlite_event_log import (
    INDEX_SHARD_NAME,
    SqliteEventLogStorage,
)
from dagster._core.storage.runs.sql_run_storage import SqlRunStorage
from dagster._core.storage.runs.sqlite.sqlite_run_storage import SqliteRunStorage
from dagster._core.storage.schedules.sqlite.sqlite_schedule_storage import SqliteScheduleStorage
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._core.storage.tags import BACKFILL_ID_TAG
from dagster._record import copy
from dagster._serdes import ConfigurableClassData
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import QueuePool

from backfill_assets.calendar.partitions import DaySet, days_of_run

_EVENTS, _CHECKS = SqlEventLogStorageTable.c, AssetCheckExecutionsTable.c
#: Runs in one batch; and ids in one condition, as SQLite takes no more than some hundred.
_RUN_BATCH, _ID_BATCH = 1000, 500
#: Whether this Dagster stores an event in a given transaction: since 1.13.13.
STORES_IN_TRANSACTIONS = hasattr(SqlEventLogStorage, "_store_asset_event_tags")
#: Seconds that a statement waits for another process's transaction.
_BUSY_SECONDS = 30
_MATERIALIZED = dg.DagsterEventType.ASSET_MATERIALIZATION.value
_OBSERVED = dg.DagsterEventType.ASSET_OBSERVATION.value
_PLANNED = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED.value


@dataclass(frozen=True)
class PruneResult:
    """The numbers of runs whose logs were deleted, of deleted events, and of deleted runs."""

    logs: int = 0
    events: int = 0
    runs: int = 0

    def __str__(self) -> str:
        return (
            f"{self.logs} run(s) older than that: {self.events} events and their logs were taken "
            f"away; {self.runs} of them made nothing that still counts, and are gone"
        )


def prune_runs(
    instance: dg.DagsterInstance,
    before: datetime,
    spared: Collection[str] = (),
    owns_run: Callable[[dg.DagsterRun], bool] = lambda _: True,
) -> PruneResult:
    """Delete the events and logs of runs that ended before a moment, except the latest of each day.

    Only of runs that are owned.

    The latest materialization, observation and check evaluation of each day stay, and a failed
    attempt at a day until the day is materialized. Runs with remaining events stay in the list of
    runs, and so do those of the spared planned backfills.

    Raises:
        ValueError: the event log is not a SQL database.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        raise ValueError(f"events cannot be taken out of a {type(storage).__name__}")
    with storage.index_connection() as index:
        retained_checks, retained_events = _latest_check_ids(index)
        retained_events |= _latest_event_ids(index)
    logs = events = runs = 0
    for ended in _ended_runs(instance, before):
        batch = [*filter(owns_run, ended)]
        ids = [run.run_id for run in batch]
        with storage.index_connection() as index:
            _delete_checks(index, ids, retained_checks)
            events += _delete_events(index, ids, retained_events)
            runs_with_rows = _runs_with_rows(index, ids)
        for run in batch:
            logs += _delete_logs(instance, storage, run.run_id)
            owner = run.tags.get(BACKFILL_ID_TAG, "").partition("-")[0]
            if run.run_id not in runs_with_rows and owner not in spared:
                instance.delete_run(run.run_id)
                _drop_shard(storage, run.run_id)
                runs += 1
    return PruneResult(logs, events, runs)


def _latest_event_ids(index: Connection) -> set[int]:
    """Ids of each day's latest events, and of planned materializations without a later success."""
    day = (_EVENTS.asset_key, _EVENTS.partition, _EVENTS.dagster_event_type)
    latest = (
        db.select(*day, db.func.max(_EVENTS.id))
        .where(_EVENTS.dagster_event_type.in_([_MATERIALIZED, _OBSERVED, _PLANNED]))
        .group_by(*day)
    )
    latest_ids = {tuple(row[:3]): row[3] for row in index.execute(latest)}
    return {
        id_
        for (asset, partition, kind), id_ in latest_ids.items()
        if kind != _PLANNED or id_ > latest_ids.get((asset, partition, _MATERIALIZED), 0)
    }


def _latest_check_ids(index: Connection) -> tuple[set[int], set[int]]:
    """Ids of the rows of each check's latest execution by day, and of their events."""
    latest = db.select(db.func.max(_CHECKS.id)).group_by(
        _CHECKS.asset_key, _CHECKS.check_name, _CHECKS.partition
    )
    rows = set(index.execute(latest).scalars())
    events = db.select(_CHECKS.id, _CHECKS.evaluation_event_storage_id)
    return rows, {event for id_, event in index.execute(events) if id_ in rows and event}


def _ended_runs(instance: dg.DagsterInstance, before: datetime) -> Iterator[list[dg.DagsterRun]]:
    """The runs that ended before a moment, in batches, the newest first."""
    run_filter = dg.RunsFilter(statuses=FINISHED_STATUSES, updated_before=before)
    runs = instance.get_runs(run_filter, limit=_RUN_BATCH)
    while runs:
        batch = runs
        # Read first: a deleted run is no valid cursor.
        runs = instance.get_runs(run_filter, cursor=batch[-1].run_id, limit=_RUN_BATCH)
        yield list(batch)


def _split_ids(ids: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (ids[first : first + _ID_BATCH] for first in range(0, len(ids), _ID_BATCH))


def _delete_events(index: Connection, run_ids: Sequence[str], retained: Collection[int]) -> int:
    """Delete the runs' events from the index, except retained ids; return their number."""
    event_ids = [
        id_
        for part in _split_ids(run_ids)
        for id_ in index.execute(db.select(_EVENTS.id).where(_EVENTS.run_id.in_(part))).scalars()
        if id_ not in retained
    ]
    for part in _split_ids(event_ids):
        tags = AssetEventTagsTable.c.event_id.in_(part)
        index.execute(AssetEventTagsTable.delete().where(tags))
        index.execute(SqlEventLogStorageTable.delete().where(_EVENTS.id.in_(part)))
    return len(event_ids)


def _delete_checks(index: Connection, run_ids: Sequence[str], retained: Collection[int]) -> None:
    for runs in _split_ids(run_ids):
        of_runs = db.select(_CHECKS.id).where(_CHECKS.run_id.in_(runs))
        check_ids = [id_ for id_ in index.execute(of_runs).scalars() if id_ not in retained]
        for part in _split_ids(check_ids):
            index.execute(AssetCheckExecutionsTable.delete().where(_CHECKS.id.in_(part)))


def _runs_with_rows(index: Connection, run_ids: Sequence[str]) -> set[str]:
    remaining: Iterable[str] = ()
    for part in _split_ids(run_ids):
        for column in (_EVENTS.run_id, _CHECKS.run_id):
            query = db.select(column).where(column.in_(part)).distinct()
            remaining = {*remaining, *index.execute(query).scalars()}
    return set(remaining)


def _delete_logs(instance: dg.DagsterInstance, storage: SqlEventLogStorage, run_id: str) -> bool:
    """Delete a run's own log; whether there was one."""
    folder = Path(instance.storage_directory(), run_id)
    had_folder = folder.is_dir()
    instance.compute_log_manager.delete_logs(prefix=[run_id, "compute_logs"])
    with suppress(OSError):  # other programs may have files there
        folder.rmdir()
    return _drop_shard(storage, run_id) or had_folder


def _drop_shard(storage: SqlEventLogStorage, run_id: str) -> bool:
    """Delete SQLite's database of a run; whether there was one."""
    if not isinstance(storage, SqliteEventLogStorage):
        return False
    file = Path(storage.path_for_shard(run_id))
    existed = file.exists()
    for ending in ("", "-wal", "-shm"):
        file.with_name(file.name + ending).unlink(missing_ok=True)
    return existed


#: Dagster's own variable: the maximum size of a batch. Unless it is set, Dagster writes no batches
#: and stores each planned day by itself.
_BATCH_SIZE_VARIABLE = "DAGSTER_EVENT_BATCH_SIZE"
#: The key of a check within a run.
_CHECK_KEY = ("asset_key", "check_name", "partition")


class BatchedEventLog(SqlEventLogStorage):
    """A SQL event log that can store many events about assets and checks at once."""

    #: Whether `store_event_batch` takes evaluations of asset checks.
    batches_take_checks = True

    def __init__(self, *args: Any, **named: Any) -> None:
        if not STORES_IN_TRANSACTIONS:
            raise dg.DagsterInvariantViolationError(
                f"{type(self).__name__} needs dagster 1.13.13 or later and {dg.__version__} is "
                "installed: upgrade dagster, or take it out of dagster.yaml. Dagster's own storage "
                "then reads the same database."
            )
        self._known_tables: set[str] = set()
        os.environ.setdefault(_BATCH_SIZE_VARIABLE, "1000")
        super().__init__(*args, **named)

    def has_table(self, table_name: str) -> bool:
        """Whether a table exists; an existing table is not looked up again."""
        if table_name not in self._known_tables and super().has_table(table_name):  # type: ignore[safe-super]
            self._known_tables.add(table_name)
        return table_name in self._known_tables

    def _has_asset_key_index_cols_on_connection(self, conn: Connection) -> bool:
        entry = f"{AssetKeyTable.name}: index columns"
        if entry not in self._known_tables and super()._has_asset_key_index_cols_on_connection(
            conn
        ):
            self._known_tables.add(entry)
        return entry in self._known_tables

    def _store_events(
        self, index: Connection, events: Sequence[EventLogEntry]
    ) -> list[dict[str, Any]]:
        """Store one run's events about assets and checks like `store_event`; return their rows.

        `index` is a transaction on the database with the events of all runs.
        """
        (run_id,) = {event.run_id for event in events}
        rows = [self._event_to_row(event) for event in events]
        insert = SqlEventLogStorageTable.insert()
        insert_returning = insert.returning(
            SqlEventLogStorageTable.c.id, sort_by_parameter_order=True
        )
        ids = index.execute(insert_returning, rows).scalars().all()
        stored = [_StoredEvent(*entry) for entry in zip(events, ids, rows, strict=True)]
        asset_entries = [
            entry for entry in stored if entry.event.dagster_event_type in ASSET_EVENTS
        ]
        self._store_asset_event_tags(
            index, [entry.event for entry in asset_entries], [entry.id for entry in asset_entries]
        )
        # Only an asset's last event of each kind; in a fixed order, so that parallel writers do not
        # deadlock on each other's rows.
        latest = {
            (entry.row["asset_key"], entry.event.dagster_event_type): entry
            for entry in asset_entries
        }
        for entry in sorted(latest.values(), key=lambda entry: (entry.row["asset_key"], entry.id)):
            self._store_asset_event(index, entry.event, entry.id)
        _store_checks(index, run_id, stored)
        return rows


@dataclass(frozen=True)
class _StoredEvent:
    """An event, with its id in the index and its row."""

    event: EventLogEntry
    id: int
    row: Mapping[str, Any]

    def check_row(self, data: Any, partition: str | None, **columns: Any) -> dict[str, Any]:
        """A row of Dagster's table of check executions; `columns` differ by kind of event."""
        return {
            "asset_key": data.asset_key.to_string(),
            "check_name": data.check_name,
            "partition": partition,
            "run_id": self.event.run_id,
            "evaluation_event": self.row["event"],
            "evaluation_event_timestamp": self.row["timestamp"],
            "evaluation_event_storage_id": self.id,
            **columns,
        }


def _store_checks(index: Connection, run_id: str, stored: Sequence[_StoredEvent]) -> None:
    """Write the index's rows of check executions: of each day, the last evaluation of a run."""
    table = AssetCheckExecutionsTable
    status = AssetCheckExecutionRecordStatus
    planned, evaluated = [], {}
    for entry in stored:
        data = entry.event.get_dagster_event().event_specific_data
        if isinstance(data, AssetCheckEvaluationPlanned):
            subset = data.partitions_subset
            planned += [
                entry.check_row(data, key, execution_status=status.PLANNED.value)
                for key in (subset.get_partition_keys() if subset else [None])
            ]
        elif isinstance(data, dg.AssetCheckEvaluation):
            target = data.target_materialization_data
            row = entry.check_row(
                data,
                data.partition,
                execution_status=(status.SUCCEEDED if data.passed else status.FAILED).value,
                materialization_event_storage_id=target.storage_id if target else None,
            )
            evaluated[tuple(row[name] for name in _CHECK_KEY)] = row
    if planned:
        index.execute(table.insert(), planned)
    if not evaluated:
        return
    run_checks = db.select(*(table.c[name] for name in _CHECK_KEY)).where(
        table.c.run_id == run_id, table.c.asset_key.in_({key[0] for key in evaluated})
    )
    existing = {tuple(row) for row in index.execute(run_checks)} & evaluated.keys()
    if new := [row for key, row in evaluated.items() if key not in existing]:
        index.execute(table.insert(), new)
    if existing:
        conditions = [
            table.c[name].is_not_distinct_from(db.bindparam(f"its_{name}")) for name in _CHECK_KEY
        ]
        changes = [
            {**evaluated[key], **{f"its_{name}": evaluated[key][name] for name in _CHECK_KEY}}
            for key in existing
        ]
        columns = next(iter(evaluated.values()))
        values: dict[str, Any] = {name: db.bindparam(name) for name in columns}
        update = table.update().where(table.c.run_id == run_id, *conditions).values(values)
        index.execute(update, changes)


class RunStorageWithGaps(SqlRunStorage):
    """Run storage that has exactly the days of a run, also if they have gaps.

    Dagster's runs have no sets of partitions of two dimensions: of these, it plans the whole range.
    """

    def add_run(self, dagster_run: dg.DagsterRun) -> dg.DagsterRun:
        """Add a run; Dagster plans the materializations of the days that the result has."""
        subset, days = dagster_run.partitions_subset, days_of_run(dagster_run.tags)
        if isinstance(subset, TimeWindowPartitionsSubset) and isinstance(days, DaySet):
            keys = [key for key in subset.get_partition_keys() if date.fromisoformat(key) in days]
            planned = subset.partitions_def.subset_with_partition_keys(keys)
            dagster_run = copy(dagster_run, partitions_subset=planned.to_serializable_subset())
        return super().add_run(dagster_run)


class LocalRunStorage(RunStorageWithGaps, SqliteRunStorage):
    """The runs of `LocalStorage`."""


#: Databases that stay open: the index of all runs, and those of the most recent runs.
_OPEN = 16
_CONFIG = {"base_dir": dg.Field(dg.StringSource, is_required=False)}


class LocalEventLog(BatchedEventLog, SqliteEventLogStorage):
    """The event log of one machine: `event_log_storage` in `dagster.yaml`.

    Its files are those of Dagster's default storage, in the default place unless `base_dir` is
    configured, so each can replace the other at any time. SQLite syncs at checkpoints, not at each
    event: a power failure may lose events, the end of a process does not; a run that is launched
    again restores them from the tables' commits.
    """

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._engines: OrderedDict[str, Engine] = OrderedDict()
        #: Device and inode of each database file that was created or opened.
        self._file_ids: dict[str, tuple[int, int] | None] = {}
        with _lock_folder(Path(base_dir)):
            super().__init__(base_dir, inst_data)

    @classmethod
    def config_type(cls) -> Any:
        """An optional `base_dir`."""
        return _CONFIG

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        """The storage of the configuration.

        Raises:
            DagsterInvariantViolationError: neither the configuration nor the environment has a
                folder.
        """
        base_dir = config_value.get("base_dir") or str(
            _dagster_home("event log") / "history" / "runs"
        )
        return cls(base_dir=base_dir, inst_data=inst_data)

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        self._recreate_index()
        with self._db_lock, self._begin_transaction(shard) as connection:
            yield connection

    def _recreate_index(self) -> None:
        """Create the index again if its file was deleted while this process had it open."""
        if INDEX_SHARD_NAME in self._file_ids and not self._file_id(INDEX_SHARD_NAME):
            with _lock_folder(Path(self._base_dir)):
                SqliteEventLogStorage(self._base_dir).dispose()  # creates the file

    def _file_id(self, shard: str) -> tuple[int, int] | None:
        """Device and inode of a shard's database file; None if there is none."""
        try:
            status = Path(self.path_for_shard(shard)).stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    @contextmanager
    def _begin_transaction(self, shard: str) -> Iterator[Connection]:
        """Open a transaction on a shard, with its tables created; the caller holds `_db_lock`."""
        if shard in self._file_ids and self._file_ids[shard] != self._file_id(shard):
            # Deleted, or restored from a backup: writes through an open connection would be lost.
            self._close_engine(shard)
        engine = self._open_engine(shard)
        if shard not in self._initialized_dbs:
            self._initdb(engine)
            self._initialized_dbs.add(shard)
            self._file_ids[shard] = self._file_id(shard)
        with engine.begin() as connection:
            yield connection

    def _open_engine(self, shard: str) -> Engine:
        """The cached engine of a shard; of more than `_OPEN`, the least recently used is closed."""
        if shard not in self._engines:
            engine = create_engine(
                self.conn_string_for_shard(shard),
                poolclass=QueuePool,
                # `_db_lock` allows one thread at a time, but not always the same one.
                connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
            )
            event.listen(engine, "connect", _sync_at_checkpoints)
            self._engines[shard] = engine
            while len(self._engines) > _OPEN:
                self._engines.popitem(last=False)[1].dispose()
        self._engines.move_to_end(shard)
        return self._engines[shard]

    def _close_engine(self, shard: str) -> None:
        if engine := self._engines.pop(shard, None):
            engine.dispose()
        del self._file_ids[shard]
        self._initialized_dbs.discard(shard)
        if shard == INDEX_SHARD_NAME:
            self._known_tables.clear()

    def dispose(self) -> None:
        """Close all connections."""
        while self._engines:
            self._engines.popitem()[1].dispose()
        super().dispose()

    def store_event_batch(self, events: Sequence[EventLogEntry]) -> None:
        """Store all of one run's events about assets and checks, or none of them.

        Like `store_event` of each, with one transaction for the run's database and one for the
        index.
        """
        (run_id,) = {event.run_id for event in events}
        self._recreate_index()
        with (
            self._db_lock,
            self._begin_transaction(INDEX_SHARD_NAME) as index,
            self._begin_transaction(run_id) as run,
        ):
            run.execute(SqlEventLogStorageTable.insert(), self._store_events(index, events))


def _sync_at_checkpoints(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous=NORMAL")


class LocalStorage(DagsterSqliteStorage):
    """All storages of one machine's Dagster: `storage` in `dagster.yaml`.

    Its files are those of Dagster's default storage, in the default places unless `base_dir` is
    configured. One process at a time opens them, so that only one creates them.
    """

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        with _lock_folder(Path(base_dir)):
            history = Path(base_dir, "history")
            self.base_dir = base_dir
            self._run_storage = LocalRunStorage.from_local(str(history))
            self._event_log_storage = LocalEventLog(str(history / "runs"))
            self._schedule_storage = SqliteScheduleStorage.from_local(
                str(Path(base_dir, "schedules"))
            )
        self._inst_data = inst_data
        super(DagsterSqliteStorage, self).__init__()  # the parent's would open them again

    @classmethod
    def config_type(cls) -> Any:
        """An optional `base_dir`."""
        return _CONFIG

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> Self:
        """The storage of the configuration.

        Raises:
            DagsterInvariantViolationError: neither the configuration nor the environment has a
                folder.
        """
        return cls(config_value.get("base_dir") or str(_dagster_home("storage")), inst_data)


#: Lock file beside the databases, held while they are opened or created.
STORAGE_LOCK_FILE = "storage.lock"


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock file of an existing folder: one process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / STORAGE_LOCK_FILE).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released at close
        yield


def _dagster_home(purpose: str) -> Path:
    """The folder in DAGSTER_HOME, where dagster.yaml has no `base_dir`; raises if it is not set."""
    home = os.environ.get("DAGSTER_HOME")
    if not home:
        raise dg.DagsterInvariantViolationError(
            f"The {purpose} that dagster.yaml names needs DAGSTER_HOME, or a base_dir there: "
            "export DAGSTER_HOME=$PWD/.dagster. In a folder without a dagster.yaml, no history is "
            "kept."
        )
    return Path(home)
