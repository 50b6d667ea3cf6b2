"""Private names of Dagster about events, for the write path: few, as they count as its code."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION
from dagster._core.events import (
    DagsterEvent,
    DagsterEventBatchMetadata,
    DagsterEventType,
    generate_event_batch_id,
)
from dagster._core.execution.context.system import StepExecutionContext

__all__ = [
    "SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION",
    "AssetCheckEvaluationTargetMaterializationData",
    "AssetEvent",
    "DagsterEvent",
    "stored_together",
]

AssetEvent = dg.AssetMaterialization | dg.AssetCheckEvaluation


def stored_together(step: StepExecutionContext, told: Sequence[AssetEvent]) -> list[DagsterEvent]:
    """What a step tells Dagster of, as events that are stored.

    As one batch where batches are turned on (`DAGSTER_EVENT_BATCH_SIZE`) and the storage takes
    such events in a batch: see `LocalEventLog`.
    """
    batch = generate_event_batch_id()
    checks_too = getattr(step.instance.event_log_storage, "batches_take_checks", False)
    batched = [one for one in told if checks_too or not isinstance(one, dg.AssetCheckEvaluation)]
    events = []
    for one in told:
        place = DagsterEventBatchMetadata(batch, one is batched[-1]) if batched else None
        if isinstance(one, dg.AssetMaterialization):
            events.append(DagsterEvent.asset_materialization(step, one, place))
        elif not checks_too:
            events.append(DagsterEvent.asset_check_evaluation(step, one))
        else:
            # As Dagster's own, which is not made for batches.
            said = "passed." if one.passed else "did not pass."
            more = "" if one.description is None else f" Description: '{one.description}'"
            message = f"Asset check '{one.check_name}' on '{one.asset_key.to_user_string()}' {said}"
            events.append(
                DagsterEvent.from_step(
                    DagsterEventType.ASSET_CHECK_EVALUATION, step, one, message + more, place
                )
            )
    return events
