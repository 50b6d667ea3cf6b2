"""The name in `dagster.yaml`, which outlives a release. See `dagster_ext.eventlog`."""

from backfill_assets.dagster_ext.eventlog import LocalEventLog, LocalStorage

__all__ = ["LocalEventLog", "LocalStorage"]
