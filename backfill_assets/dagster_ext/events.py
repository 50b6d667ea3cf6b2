"""Private names of Dagster about events, for the write path: few, as they count as its code."""

from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION
from dagster._core.events import DagsterEvent

__all__ = [
    "SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION",
    "AssetCheckEvaluationTargetMaterializationData",
    "DagsterEvent",
]
