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
_BATCHES = "DAGSTER_EVENT_BATCH_SIZE"
#: What tells the checks of a run apart.
_CHECK = ("asset_key", "check_name", "partition")


class Batching(SqlEventLogStorage):
    """An event log of Dagster's that can store many events about assets and checks at once."""

    #: Whether `store_event_batch` takes evaluations of asset checks.
    batches_take_checks = True

    def __init__(self, *args: Any, **named: Any) -> None:
        self._there: set[str] = set()
        os.environ.setdefault(_BATCHES, "1000")
        super().__init__(*args, **named)

    def has_table(self, table_name: str) -> bool:
        """Whether there is a table; what was there once is not looked for again."""
        if table_name not in self._there and super().has_table(table_name):  # type: ignore[safe-super]
            self._there.add(table_name)
        return table_name in self._there

    def _has_asset_key_index_cols_on_connection(self, conn: Connection) -> bool:
        mark = f"{AssetKeyTable.name}: index columns"
        if mark not in self._there and super()._has_asset_key_index_cols_on_connection(conn):
            self._there.add(mark)
        return mark in self._there

    def _store_in(self, index: Connection, events: Sequence[EventLogEntry]) -> list[dict[str, Any]]:
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
        in_order = insert.returning(SqlEventLogStorageTable.c.id, sort_by_parameter_order=True)
        ids = index.execute(in_order, rows).scalars().all()
        told = [_Told(*one) for one in zip(events, ids, rows, strict=True)]
        of_assets = [one for one in told if one.event.dagster_event_type in ASSET_EVENTS]
        self._store_asset_event_tags(
            index, [one.event for one in of_assets], [one.id for one in of_assets]
        )
        # Of an asset, only the last event of each kind; in an order that is the same for all who do
        # so at the same time, or two would wait for each other's rows for ever.
        last = {(one.row["asset_key"], one.event.dagster_event_type): one for one in of_assets}
        for one in sorted(last.values(), key=lambda one: (one.row["asset_key"], one.id)):
            self._store_asset_event(index, one.event, one.id)
        _store_of_checks(index, run_id, told)
        return rows


@dataclass(frozen=True)
class _Told:
    """An event that is stored, with its id in the index and its row."""

    event: EventLogEntry
    id: int
    row: Mapping[str, Any]

    def of_check(self, data: Any, partition: str | None, **more: Any) -> dict[str, Any]:
        """A row of the index's table of checks."""
        return {
            "asset_key": data.asset_key.to_string(),
            "check_name": data.check_name,
            "partition": partition,
            "run_id": self.event.run_id,
            "evaluation_event": self.row["event"],
            "evaluation_event_timestamp": self.row["timestamp"],
            "evaluation_event_storage_id": self.id,
            **more,
        }


def _store_of_checks(index: Connection, run_id: str, told: Sequence[_Told]) -> None:
    """What the index keeps of checks besides their events: of each day, the last of a run."""
    table = AssetCheckExecutionsTable
    status = AssetCheckExecutionRecordStatus
    planned, evaluated = [], {}
    for one in told:
        data = one.event.get_dagster_event().event_specific_data
        if isinstance(data, AssetCheckEvaluationPlanned):
            subset = data.partitions_subset
            planned += [
                one.of_check(data, key, execution_status=status.PLANNED.value)
                for key in (subset.get_partition_keys() if subset else [None])
            ]
        elif isinstance(data, dg.AssetCheckEvaluation):
            target = data.target_materialization_data
            row = one.of_check(
                data,
                data.partition,
                execution_status=(status.SUCCEEDED if data.passed else status.FAILED).value,
                materialization_event_storage_id=target.storage_id if target else None,
            )
            evaluated[tuple(row[name] for name in _CHECK)] = row
    if planned:
        index.execute(table.insert(), planned)
    if not evaluated:
        return
    of_run = db.select(*(table.c[name] for name in _CHECK)).where(
        table.c.run_id == run_id, table.c.asset_key.in_({key[0] for key in evaluated})
    )
    there = {tuple(row) for row in index.execute(of_run)} & evaluated.keys()
    if new := [row for key, row in evaluated.items() if key not in there]:
        index.execute(table.insert(), new)
    if there:
        same = [table.c[name].is_not_distinct_from(db.bindparam(f"its_{name}")) for name in _CHECK]
        changes = [
            {**evaluated[key], **{f"its_{name}": evaluated[key][name] for name in _CHECK}}
            for key in there
        ]
        columns = next(iter(evaluated.values()))
        values: dict[str, Any] = {name: db.bindparam(name) for name in columns}
        update = table.update().where(table.c.run_id == run_id, *same).values(values)
        index.execute(update, changes)
