"""What `dagster.yaml` names; homes of Dagster outlive a release. See `dagster_ext.coordinator`."""

from backfill_assets.dagster_ext.launcher import PromptRunCoordinator

__all__ = ["PromptRunCoordinator"]
