"""What Dagster has been told of the days of a table."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

import dagster as dg

#: Records fetched at once: SQLite takes no more than some hundred values in one condition.
_QUERY_SIZE = 500


def latest_materializations(
    instance: dg.DagsterInstance, asset: str, days: Iterable[date]
) -> dict[date, dg.EventLogRecord]:
    """The latest materialization of each day; of a day that was not published, an older one.

    An evaluation names it, or the UI counts it as missing: it compares the two by storage id.
    """
    key, partition_keys = dg.AssetKey(asset), {day.isoformat() for day in days}
    if not partition_keys:  # which would ask for all days
        return {}
    ids = instance.event_log_storage.get_latest_storage_id_by_partition(
        key, dg.DagsterEventType.ASSET_MATERIALIZATION, partition_keys
    )
    latest = {}
    for first in range(0, len(ids), _QUERY_SIZE):
        storage_ids = list(ids.values())[first : first + _QUERY_SIZE]
        records = instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=key, storage_ids=storage_ids), limit=len(storage_ids)
        ).records
        for record in records:
            latest[date.fromisoformat(str(record.partition_key))] = record
    return latest
