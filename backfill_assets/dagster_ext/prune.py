"""Old runs' logs and superseded events removed from Dagster's storage.

Dagster can delete a run with all of its events. With them goes what it knows of the days that the
run made last: the UI would show them as missing. So events are told apart here: of each day, table
and check the latest ones stay, however old they are. Dagster has no way of its own to do that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as db
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.tags import BACKFILL_ID_TAG
from sqlalchemy.engine import Connection

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
