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


AssetEvent = dg.AssetMaterialization | dg.AssetCheckEvaluation


def stored_events(
    step: StepExecutionContext, asset_events: Sequence[AssetEvent]
) -> list[DagsterEvent]:
    """What a step tells Dagster of, as events that are stored.

    As one batch where batches are turned on (`DAGSTER_EVENT_BATCH_SIZE`) and the storage takes
    such events in a batch: see `LocalEventLog`.
    """
    batch = generate_event_batch_id()
    checks_too = getattr(step.instance.event_log_storage, "batches_take_checks", False)
    batched = [
        asset_event
        for asset_event in asset_events
        if checks_too or not isinstance(asset_event, dg.AssetCheckEvaluation)
    ]
    events = []
    for asset_event in asset_events:
        position = DagsterEventBatchMetadata(batch, asset_event is batched[-1]) if batched else None
        if isinstance(asset_event, dg.AssetMaterialization):
            events.append(DagsterEvent.asset_materialization(step, asset_event, position))
        elif not checks_too:
            events.append(DagsterEvent.asset_check_evaluation(step, asset_event))
        else:
            # As Dagster's own, which is not made for batches.
            outcome = "passed." if asset_event.passed else "did not pass."
            description = (
                ""
                if asset_event.description is None
                else f" Description: '{asset_event.description}'"
            )
            message = f"Asset check '{asset_event.check_name}' on '{asset_event.asset_key.to_user_string()}' {outcome}"
            events.append(
                DagsterEvent.from_step(
                    DagsterEventType.ASSET_CHECK_EVALUATION,
                    step,
                    asset_event,
                    message + description,
                    position,
                )
            )
    return events
