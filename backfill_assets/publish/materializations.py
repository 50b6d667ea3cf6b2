"""What Dagster has been told of the days of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, timezone

import dagster as dg

from backfill_assets.calendar.partitions import days_of_run
from backfill_assets.publish.candidates import Done
from backfill_assets.tables.table import Table

#: Records fetched at once: SQLite takes no more than some hundred values in one condition.
_QUERY_SIZE = 500


def latest_materializations(
    instance: dg.DagsterInstance, asset: str, days: Iterable[date]
) -> dict[date, dg.EventLogRecord]:
    """The latest materialization of each day; of a day that was not published, an older one.

    An evaluation names it, or the UI counts it as missing: it compares the two by storage id.
    """
    key, wanted_days = dg.AssetKey(asset), {day.isoformat() for day in days}
    if not wanted_days:  # which would ask for all days
        return {}
    ids = instance.event_log_storage.get_latest_storage_id_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, wanted_days
    )
    found = {}
    for first in range(0, len(ids), _QUERY_SIZE):
        wanted = list(ids.values())[first : first + _QUERY_SIZE]
        records = instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=key, storage_ids=wanted), limit=len(wanted)
        ).records
        for record in records:
            found[date.fromisoformat(str(record.partition_key))] = record
    return found


def days_reported(instance: dg.DagsterInstance, table: Table, done: Sequence[Done]) -> set[date]:
    """The days of which Dagster knows that they are published as they are, and how.

    It does not if a run was lost between its commit and its events, and it takes a day for failed
    if a run that was for that day failed since, whatever became of the day itself.
    """
    records = latest_materializations(instance, table.name, [d.day for d in done])
    known = {}
    for one in done:
        record = records.get(one.day)
        told = record.asset_materialization if record else None
        version = told.metadata.get("delta version") if told else None
        if record and version is not None and version.value == one.version:
            known[one.day] = record.timestamp
    if not known:
        return set()
    failed = dg.RunsFilter(
        statuses=[dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED],
        updated_after=datetime.fromtimestamp(min(known.values()), timezone.utc),
    )
    for run in instance.get_run_records(failed):
        days = days_of_run(run.dagster_run.tags) or ()
        ended = run.update_timestamp.timestamp()
        known = {d: when for d, when in known.items() if d not in days or when > ended}
    return set(known)
