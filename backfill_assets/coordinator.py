"""The name in `dagster.yaml`, which outlives a release. See `dagster_ext.launcher`."""

from backfill_assets.dagster_ext.launcher import PromptRunCoordinator

__all__ = ["PromptRunCoordinator"]
