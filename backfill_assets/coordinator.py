"""The name in `dagster.yaml`, which outlives a release. See `serve.launcher`."""

from backfill_assets.serve.launcher import PromptRunCoordinator

__all__ = ["PromptRunCoordinator"]
