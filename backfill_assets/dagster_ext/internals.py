"""The private names of Dagster that other rooms use: an upgrade may move them.

docs/architecture.md says of each what it is for, and what there is not without it.
"""

import time
from collections.abc import Sequence

import dagster as dg
from dagster import DagsterEvent, DagsterEventType, DagsterInstance, StepExecutionContext
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.partitions.subset import PartitionsSubset
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.definitions.selector import (
    PartitionRangeSelector,
    PartitionsByAssetSelector,
    PartitionsSelector,
)
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.events import DagsterEventBatchMetadata, generate_event_batch_id
from dagster._core.execution.backfill import (
    BULK_ACTION_TERMINAL_STATUSES,
    BulkActionsFilter,
    BulkActionStatus,
    PartitionBackfill,
)
from dagster._core.launcher import CheckRunHealthResult, WorkerStatus
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.daemon_cursor import DaemonCursorStorage
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from dagster._core.storage.runs import InMemoryRunStorage, SqliteRunStorage
from dagster._core.storage.tags import (
    AUTO_RETRY_RUN_ID_TAG,
    BACKFILL_ID_TAG,
    RETRY_NUMBER_TAG,
    RUN_KEY_TAG,
    SCHEDULE_NAME_TAG,
    SENSOR_NAME_TAG,
    WILL_RETRY_TAG,
)
from dagster._core.utils import make_new_backfill_id
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster._daemon.controller import get_daemon_statuses
from dagster._daemon.daemon import BackfillDaemon, SensorDaemon
from dagster._serdes import ConfigurableClassData
from dagster._utils.log import configure_loggers


def one_op_job(op: dg.OpDefinition, name: str, description: str) -> dg.JobDefinition:
    """A job that runs one op."""

    @dg.job(name=name, description=description)
    def job() -> None:
        op()

    return job


def other_locations(context: dg.SensorEvaluationContext, seconds: float) -> list[str]:
    """Other code locations whose sensor of the same name has ticked in the last so many seconds."""
    origin, names = context.code_location_origin, set[str]()
    for state in context.instance.all_instigator_state() if origin else ():
        ticked = getattr(state.instigator_data, "last_tick_timestamp", None) or 0
        if state.instigator_name == context.sensor_name and ticked > time.time() - seconds:
            names.add(state.origin.repository_origin.code_location_origin.location_name)
    return sorted(names - {origin.location_name if origin else ""})


def max_tag_bytes(instance: DagsterInstance) -> int | None:
    """The maximum bytes of a run tag's value; None for no limit.

    Dagster indexes tags, and an index entry in Postgres has 2,704 bytes at most.
    """
    is_local = isinstance(instance.run_storage, SqliteRunStorage | InMemoryRunStorage)
    return None if is_local else 2000


AssetEvent = dg.AssetMaterialization | dg.AssetCheckEvaluation


def stored_events(
    step: StepExecutionContext, asset_events: Sequence[AssetEvent]
) -> list[DagsterEvent]:
    """Dagster events for a step's materializations and checks, ready to be stored.

    As one batch where batches are turned on (`DAGSTER_EVENT_BATCH_SIZE`) and the storage takes such
    events in a batch: see `LocalEventLog`.
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
            # Like Dagster's own message, whose function does not support batches.
            outcome = "passed." if asset_event.passed else "did not pass."
            description = (
                ""
                if asset_event.description is None
                else f" Description: '{asset_event.description}'"
            )
            message = (
                f"Asset check '{asset_event.check_name}' on "
                f"'{asset_event.asset_key.to_user_string()}' {outcome}"
            )
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
