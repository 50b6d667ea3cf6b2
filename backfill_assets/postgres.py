"""The name in `dagster.yaml`, which outlives a release. See `dagster_ext.postgres`."""

from backfill_assets.dagster_ext.postgres import PostgresStorage

__all__ = ["PostgresStorage"]
