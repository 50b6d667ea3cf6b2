"""What `dagster.yaml` names; homes of Dagster outlive a release. See `dagster_ext.postgres`."""

from backfill_assets.dagster_ext.postgres import PostgresStorage

__all__ = ["PostgresStorage"]
