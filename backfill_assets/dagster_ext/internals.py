"""Names of Dagster that it does not publish, for the other rooms: what an upgrade may move."""

from dagster import DagsterInstance
from dagster._core.definitions.asset_checks.asset_check_spec import AssetCheckKey
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.partitions.subset import PartitionsSubset
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.definitions.selector import (
    PartitionRangeSelector,
    PartitionsByAssetSelector,
    PartitionsSelector,
)
from dagster._core.errors import DagsterError
from dagster._core.execution.backfill import (
    BULK_ACTION_TERMINAL_STATUSES,
    BulkActionsFilter,
    BulkActionStatus,
    PartitionBackfill,
)
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.daemon_cursor import DaemonCursorStorage
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from dagster._core.storage.runs import InMemoryRunStorage, SqliteRunStorage
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    AUTO_RETRY_RUN_ID_TAG,
    BACKFILL_ID_TAG,
    PARTITION_NAME_TAG,
    RETRY_NUMBER_TAG,
    RUN_KEY_TAG,
    SCHEDULE_NAME_TAG,
    SENSOR_NAME_TAG,
    WILL_RETRY_TAG,
)
from dagster._core.utils import make_new_backfill_id
from dagster._daemon.controller import get_daemon_statuses
from dagster._daemon.daemon import BackfillDaemon, SensorDaemon

__all__ = [
    "SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION",
    "AssetCheckEvaluationTargetMaterializationData",
    "AssetEvent",
    "DagsterEvent",
    "stored_events",
    "ASSET_PARTITION_RANGE_END_TAG",
    "ASSET_PARTITION_RANGE_START_TAG",
    "AUTO_RETRY_RUN_ID_TAG",
    "BACKFILL_ID_TAG",
    "BULK_ACTION_TERMINAL_STATUSES",
    "FINISHED_STATUSES",
    "PARTITION_NAME_TAG",
    "RETRY_NUMBER_TAG",
    "RUN_KEY_TAG",
    "SCHEDULE_NAME_TAG",
    "SENSOR_NAME_TAG",
    "WILL_RETRY_TAG",
    "AssetCheckExecutionRecordStatus",
    "AssetCheckKey",
    "AssetGraph",
    "BackfillDaemon",
    "BaseAssetGraph",
    "BulkActionStatus",
    "BulkActionsFilter",
    "DaemonCursorStorage",
    "DagsterError",
    "PartitionBackfill",
    "PartitionRangeSelector",
    "PartitionsByAssetSelector",
    "PartitionsSelector",
    "PartitionsSubset",
    "ReconstructableRepository",
    "SensorDaemon",
    "get_and_update_asset_status_cache_value",
    "get_daemon_statuses",
    "make_new_backfill_id",
    "max_tag_bytes",
]


def max_tag_bytes(instance: DagsterInstance) -> int | None:
    """How many bytes the value of a run's tag may have; none if it may have any number.

    Dagster indexes them, and an entry of an index in Postgres has 2,704 bytes at most.
    """
    is_local = isinstance(instance.run_storage, SqliteRunStorage | InMemoryRunStorage)
    return None if is_local else 2000
