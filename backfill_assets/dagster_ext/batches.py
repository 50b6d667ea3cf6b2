"""Many events of a run stored at once, in the tables that Dagster has for one at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
import sqlalchemy as db
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationPlanned,
)
from dagster._core.events import ASSET_EVENTS
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetKeyTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from sqlalchemy.engine import Connection

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
