"""Dagster's event log: in SQLite without waits, events in batches, old records deleted.

Dagster can delete a run with all of its events. With them goes what it knows of the days that the
run made last: the UI would show them as missing. So events are told apart here: of each day, table
and check the latest ones stay, however old they are. Dagster has no way of its own to do that.

Dagster's own makes its tables in whichever process comes first, and two that come at once spoil
them or fail. And a range run tells Dagster of every day and check by itself, for which Dagster's
own opens, syncs and closes up to three database connections each (15 to 20 ms on a small machine),
and asks each time which tables there are: for a year of days that was more than Spark's part. Here
connections stay open, and a batch of events is two transactions.
"""

from __future__ import annotations

import fcntl
import os
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as db
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationPlanned,
)
from dagster._core.events import ASSET_EVENTS
from dagster._core.events.log import EventLogEntry
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
    SQLITE_BUSY_TIMEOUT_SECONDS,
    SqliteEventLogStorage,
)
from dagster._core.storage.runs.sqlite.sqlite_run_storage import SqliteRunStorage
from dagster._core.storage.schedules.sqlite.sqlite_schedule_storage import SqliteScheduleStorage
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage
from dagster._core.storage.tags import BACKFILL_ID_TAG
from dagster._serdes import ConfigurableClassData
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import QueuePool

_EVENTS, _CHECKS = SqlEventLogStorageTable.c, AssetCheckExecutionsTable.c
#: Runs at once; and ids in one condition: SQLite takes no more than some hundred.
_RUN_BATCH, _ID_BATCH = 1000, 500
_MATERIALIZED, _OBSERVED, _PLANNED = (
    kind.value
    for kind in (
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        dg.DagsterEventType.ASSET_OBSERVATION,
        dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED,
    )
)


@dataclass(frozen=True)
class PruneResult:
    """What was taken away.

    Attributes:
        logs: runs whose logs are gone.
        events: so many events.
        runs: runs that are gone altogether, as nothing of them was left.
    """

    logs: int = 0
    events: int = 0
    runs: int = 0

    def __str__(self) -> str:
        return (
            f"{self.logs} run(s) older than that: {self.events} events and their logs were taken "
            f"away; {self.runs} of them made nothing that still counts, and are gone"
        )


def prune_runs(
    instance: dg.DagsterInstance, before: datetime, spared: Collection[str] = ()
) -> PruneResult:
    """Take away what nobody needs of runs that ended before a moment.

    What stays: the latest materialization, observation and evaluation of each check, of each day;
    and the attempt to make a day that failed, until the day is made. Runs of which something is
    left stay in the list of runs, and so do those of the backfills that are spared.

    Args:
        instance: Dagster's.
        before: runs that were last changed before it.
        spared: ids of planned backfills.

    Raises:
        ValueError: Dagster's events are not in a database that can be told apart so.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        raise ValueError(f"events cannot be taken out of a {type(storage).__name__}")
    with storage.index_connection() as index:
        retained_checks, retained_events = _latest_check_ids(index)
        retained_events |= _latest_event_ids(index)
    logs = events = runs = 0
    for batch in _ended_runs(instance, before):
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
    """Ids of the events that say what Dagster knows of a day, and of attempts without success."""
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
    """Ids of the rows of the latest execution of each check of each day, and of their events."""
    latest = db.select(db.func.max(_CHECKS.id)).group_by(
        _CHECKS.asset_key, _CHECKS.check_name, _CHECKS.partition
    )
    rows = set(index.execute(latest).scalars())
    events = db.select(_CHECKS.id, _CHECKS.evaluation_event_storage_id)
    return rows, {event for id_, event in index.execute(events) if id_ in rows and event}


def _ended_runs(instance: dg.DagsterInstance, before: datetime) -> Iterator[list[dg.DagsterRun]]:
    """The runs that ended before a moment, some at a time, the newest first."""
    run_filter = dg.RunsFilter(statuses=FINISHED_STATUSES, updated_before=before)
    runs = instance.get_runs(run_filter, limit=_RUN_BATCH)
    while runs:
        batch = runs
        # Looked for first: a run that is gone is no cursor any more.
        runs = instance.get_runs(run_filter, cursor=batch[-1].run_id, limit=_RUN_BATCH)
        yield list(batch)


def _split_ids(ids: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (ids[first : first + _ID_BATCH] for first in range(0, len(ids), _ID_BATCH))


def _delete_events(index: Connection, run_ids: Sequence[str], retained: Collection[int]) -> int:
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
    """The runs of which an event or an evaluation is left."""
    remaining: Iterable[str] = ()
    for part in _split_ids(run_ids):
        for column in (_EVENTS.run_id, _CHECKS.run_id):
            query = db.select(column).where(column.in_(part)).distinct()
            remaining = {*remaining, *index.execute(query).scalars()}
    return set(remaining)


def _delete_logs(instance: dg.DagsterInstance, storage: SqlEventLogStorage, run_id: str) -> bool:
    """Take away a run's own log; whether there was one."""
    folder = Path(instance.storage_directory(), run_id)
    had_folder = folder.is_dir()
    instance.compute_log_manager.delete_logs(prefix=[run_id, "compute_logs"])
    with suppress(OSError):  # others may keep something there
        folder.rmdir()
    return _drop_shard(storage, run_id) or had_folder


def _drop_shard(storage: SqlEventLogStorage, run_id: str) -> bool:
    """Remove the database that SQLite has for each run; whether there was one."""
    if not isinstance(storage, SqliteEventLogStorage):
        return False
    file = Path(storage.path_for_shard(run_id))
    existed = file.exists()
    for ending in ("", "-wal", "-shm"):
        file.with_name(file.name + ending).unlink(missing_ok=True)
    return existed


#: Dagster's own switch: so many events at once, at the most. It makes no batches unless it is told
#: to, and tells of each planned day by itself.
_BATCH_SIZE_VARIABLE = "DAGSTER_EVENT_BATCH_SIZE"
#: What tells the checks of a run apart.
_CHECK_KEY = ("asset_key", "check_name", "partition")


class BatchedEventLog(SqlEventLogStorage):
    """An event log of Dagster's that can store many events about assets and checks at once."""

    #: Whether `store_event_batch` takes evaluations of asset checks.
    batches_take_checks = True

    def __init__(self, *args: Any, **named: Any) -> None:
        self._known_tables: set[str] = set()
        os.environ.setdefault(_BATCH_SIZE_VARIABLE, "1000")
        super().__init__(*args, **named)

    def has_table(self, table_name: str) -> bool:
        """Whether there is a table; what was there once is not looked for again."""
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
        """Store events of a run that are about assets and checks, as `store_event` of each would.

        Args:
            index: a transaction on the database that has the events of all runs.
            events: of one run.

        Returns:
            The rows of the events, in their order.
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
        # Of an asset, only the last event of each kind; in an order that is the same for all who do
        # so at the same time, or two would wait for each other's rows for ever.
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
    """An event that is stored, with its id in the index and its row."""

    event: EventLogEntry
    id: int
    row: Mapping[str, Any]

    def check_row(self, data: Any, partition: str | None, **columns: Any) -> dict[str, Any]:
        """A row of the index's table of checks."""
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
    """What the index keeps of checks besides their events: of each day, the last of a run."""
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


#: Databases that stay open: the index of all runs, and those of the runs that were used last.
_OPEN = 16
_CONFIG = {"base_dir": dg.Field(dg.StringSource, is_required=False)}


class LocalEventLog(BatchedEventLog, SqliteEventLogStorage):
    """The event log of one machine: `event_log_storage` in `dagster.yaml`.

    Its files are those of Dagster's default storage, in the default place unless `base_dir` is
    configured, so that one can be exchanged for the other at any time. Synchronised are the files
    at checkpoints rather than at each event: an event may be lost with the power, but not with a
    process; and what the tables' commits say, a run that is launched again restores.
    """

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._engines: OrderedDict[str, Engine] = OrderedDict()
        #: The files of the databases that were made or found, as the system tells files apart.
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
    ) -> LocalEventLog:
        """The storage that the configuration asks for.

        Raises:
            DagsterInvariantViolationError: neither it nor the environment says where.
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
        """An index where there was one; somebody took it away, with all that it kept."""
        if INDEX_SHARD_NAME in self._file_ids and not self._file_id(INDEX_SHARD_NAME):
            with _lock_folder(Path(self._base_dir)):
                SqliteEventLogStorage(self._base_dir).dispose()  # only to have it made

    def _file_id(self, shard: str) -> tuple[int, int] | None:
        """Which file is the database of a shard; none if there is none."""
        try:
            status = Path(self.path_for_shard(shard)).stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    @contextmanager
    def _begin_transaction(self, shard: str) -> Iterator[Connection]:
        if shard in self._file_ids and self._file_ids[shard] != self._file_id(shard):
            # Deleted, or restored from a backup: what an open connection writes nobody would read.
            self._close_engine(shard)
        engine = self._open_engine(shard)
        if shard not in self._initialized_dbs:
            self._initdb(engine)
            self._initialized_dbs.add(shard)
            self._file_ids[shard] = self._file_id(shard)
        with engine.begin() as connection:
            yield connection

    def _open_engine(self, shard: str) -> Engine:
        if shard not in self._engines:
            engine = create_engine(
                self.conn_string_for_shard(shard),
                poolclass=QueuePool,
                # One at a time has it, as `_db_lock` sees to, but not always the same thread.
                connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS, "check_same_thread": False},
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
        """Store events of a run that are about assets and checks; if one cannot be, none is.

        As `store_event` of each, with one transaction for the run's database and one for the index.
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
    """All that one machine's Dagster keeps: `storage` in `dagster.yaml`.

    Its files are those of Dagster's default storage, in the default places unless `base_dir` is
    configured. One process at a time opens them, so that a new instance is made by one.
    """

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        with _lock_folder(Path(base_dir)):
            history = Path(base_dir, "history")
            self.base_dir = base_dir
            self._run_storage = SqliteRunStorage.from_local(str(history))
            self._event_log_storage = LocalEventLog(str(history / "runs"))
            self._schedule_storage = SqliteScheduleStorage.from_local(
                str(Path(base_dir, "schedules"))
            )
        self._inst_data = inst_data
        super(DagsterSqliteStorage, self).__init__()  # the parent's would open them once more

    @classmethod
    def config_type(cls) -> Any:
        """An optional `base_dir`."""
        return _CONFIG

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> LocalStorage:
        """The storage that the configuration asks for.

        Raises:
            DagsterInvariantViolationError: neither it nor the environment says where.
        """
        return cls(config_value.get("base_dir") or str(_dagster_home("storage")), inst_data)


#: Beside databases: who opens or makes them holds it.
STORAGE_LOCK_FILE = "storage.lock"


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """One process at a time, in a folder that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / STORAGE_LOCK_FILE).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        yield


def _dagster_home(purpose: str) -> Path:
    home = os.environ.get("DAGSTER_HOME")
    if not home:
        raise dg.DagsterInvariantViolationError(
            f"The {purpose} that dagster.yaml names needs DAGSTER_HOME, or a base_dir there: "
            "export DAGSTER_HOME=$PWD/.dagster. In a folder without a dagster.yaml, no history is "
            "kept."
        )
    return Path(home)
