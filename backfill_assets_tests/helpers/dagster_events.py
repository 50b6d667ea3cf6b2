"""Events of a run as Dagster logs them: planned, materialized, checked."""

from __future__ import annotations

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationPlanned,
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.events import (
    AssetMaterializationPlannedData,
    AssetObservationData,
    DagsterEvent,
    DagsterEventType,
    StepMaterializationData,
)
from dagster._core.events.log import EventLogEntry

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-03-01")
RUN = "11111111-1111-1111-1111-111111111111"


def asset_event(kind: DagsterEventType, data: object) -> EventLogEntry:
    event = DagsterEvent(kind.value, "job", event_specific_data=data, step_key="step")
    return EventLogEntry(
        error_info=None,
        level=10,
        user_message="said",
        run_id=RUN,
        timestamp=1_700_000_000.0,
        step_key="step",
        job_name="job",
        dagster_event=event,
    )


def make_run_events() -> tuple[list[EventLogEntry], list[EventLogEntry], list[EventLogEntry]]:
    """What is planned for two assets and a check, what comes of them, and what the check says."""
    days = DAYS.get_partition_keys()[:3]
    subset = DAYS.subset_with_partition_keys(days).to_serializable_subset()
    kind = DagsterEventType
    keys = [dg.AssetKey("numbers"), dg.AssetKey("others")]
    planned = [
        *(
            asset_event(
                kind.ASSET_MATERIALIZATION_PLANNED,
                AssetMaterializationPlannedData(key, partition=d),
            )
            for key in keys
            for d in days
        ),
        asset_event(
            kind.ASSET_CHECK_EVALUATION_PLANNED,
            AssetCheckEvaluationPlanned(
                asset_key=keys[0], check_name="counted", partitions_subset=subset
            ),
        ),
    ]
    tags = {"dagster/data_version": "x", "mine": "y"}
    asset_events = [
        *(
            asset_event(
                kind.ASSET_MATERIALIZATION,
                StepMaterializationData(
                    dg.AssetMaterialization(key, partition=d, metadata={"rows": n}, tags=tags)
                ),
            )
            for n, d in enumerate(days)
            for key in keys
        ),
        asset_event(
            kind.ASSET_OBSERVATION,
            AssetObservationData(dg.AssetObservation(keys[1], partition=days[0], tags=tags)),
        ),
    ]
    target = AssetCheckEvaluationTargetMaterializationData(
        storage_id=7, run_id=RUN, timestamp=1_700_000_000.0
    )
    check_events = [
        asset_event(
            kind.ASSET_CHECK_EVALUATION,
            dg.AssetCheckEvaluation(
                asset_key=key,
                check_name=name,
                passed=n != 1,
                partition=d,
                target_materialization_data=target if n else None,
            ),
        )
        # The second one was not planned, the third is of no day.
        for key, name, check_days in ((keys[0], "counted", days), (keys[1], "new", [*days, None]))
        for n, d in enumerate(check_days)
    ]
    return planned, asset_events, check_events


#: The tables of the event log.
OF_EVENTS = ("event_logs", "asset_keys", "asset_event_tags", "asset_check_executions")
