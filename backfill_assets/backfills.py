"""Planned backfills under way: their stages, launched one after another as Dagster's own backfills.

Nothing is loaded here and nobody waits here. What is kept of a plan lies in Dagster's storage; a
sensor looks at it, and at how Dagster's backfills and the runs that reconcile them have ended.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import dagster as dg
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.selector import (
    PartitionRangeSelector,
    PartitionsByAssetSelector,
    PartitionsSelector,
)
from dagster._core.execution.backfill import BULK_ACTION_TERMINAL_STATUSES, PartitionBackfill
from dagster._core.execution.backfill import BulkActionStatus as Status
from dagster._core.storage.daemon_cursor import DaemonCursorStorage
from dagster._daemon.controller import get_daemon_statuses
from dagster._daemon.daemon import BackfillDaemon, SensorDaemon
from pydantic import BaseModel, ValidationError

from backfill_assets.partitions import DAY, spelled, unpacked, windows
from backfill_assets.planning import BackfillPlan, target_days
from backfill_assets.run_tags import (
    ACCEPT_TAG,
    CODE_TAG,
    REASON_TAG,
    REWRITE_TAG,
    WRITE_MODE_TAG,
    pinned,
)

#: Where Dagster keeps the plans for us.
_PLAN = "backfill_assets/plan/{}"
#: The ids of those that are under way: dynamic partitions, as these are what Dagster adds and takes
#: away one by one, whoever else does so at the same moment.
_OPEN = "backfill_assets_plans_under_way"
#: The ids of all plans, the oldest first: Dagster's storage does not list what it keeps.
_KEPT = "backfill_assets_plans"
#: A daemon tells Dagster every 30 seconds that it lives. Dagster counts it as alive for half an
#: hour after its last word; a backfill that is launched in that time would wait for nobody.
_SILENT = 300.0  # seconds
#: The tag of a run that reconciles a stage: the id of the stage's backfill.
RECONCILES_TAG = "backfill_assets/reconciles"
#: How many runs of a backfill the queue lets go at a time: `dagster.yaml` has a limit for each.
PARALLEL_TAG = "backfill_assets/max_parallel"


class BackfillRefusedError(ValueError):
    """A backfill was not launched; nothing was written."""


class Undertaking(BaseModel):
    """A plan and how far it has come.

    Attributes:
        plan: the plan.
        stage: number of the stage that is under way, from 0.
        attempt: how often that stage has been launched, from 1; 0 if nothing has been yet.
        ended: how it ended, in a sentence; empty until then.
        complete: whether it ended well.
        made: when it was planned, in seconds since 1970; 0 if nobody recorded it.
        began: when it was launched, in seconds since 1970.
        took: seconds from then to its end.
    """

    plan: BackfillPlan
    stage: int = 0
    attempt: int = 0
    ended: str = ""
    complete: bool = False
    made: float = 0
    began: float = 0
    took: float = 0

    @property
    def backfill_id(self) -> str:
        """Of the stage that is under way, as a backfill of Dagster's."""
        name, _ = list(self.plan.parameters.stages())[self.stage]
        again = f"-{self.attempt}" if self.attempt > 1 else ""
        return f"{self.plan.id}-{name}{again}"


def keep(instance: dg.DagsterInstance, it: Undertaking) -> None:
    """Put a plan, or how far it has come, into Dagster's storage."""
    _store(instance).set_cursor_values({_PLAN.format(it.plan.id): it.model_dump_json()})
    instance.add_dynamic_partitions(_KEPT, [it.plan.id])


def kept(instance: dg.DagsterInstance) -> list[str]:
    """The ids of the plans that are kept, the oldest first."""
    return list(instance.get_dynamic_partitions(_KEPT))


def find(instance: dg.DagsterInstance, id_: str) -> Undertaking:
    """A plan that was kept.

    Raises:
        BackfillRefusedError: there is none.
    """
    key = _PLAN.format(id_)
    said = _store(instance).get_cursor_values({key}).get(key)
    if said is None:
        raise BackfillRefusedError(
            f"there is no plan {id_} in this DAGSTER_HOME; make one with `backfill-assets plan`"
        )
    try:
        return Undertaking.model_validate_json(said)
    except ValidationError as error:
        raise BackfillRefusedError(
            f"plan {id_} was kept by another version of this project and cannot be read "
            f"({error.error_count()} error(s)); make a new one"
        ) from error


def launched(instance: dg.DagsterInstance, id_: str) -> Undertaking | None:
    """What has been launched under an id; none if nothing has."""
    try:
        it = find(instance, id_)
    except BackfillRefusedError:
        return None
    there = id_ in under_way(instance) or instance.get_backfill(it.backfill_id) is not None
    return it if it.attempt and there else None


def under_way(instance: dg.DagsterInstance) -> list[str]:
    """The ids of the backfills that have been launched and have not ended."""
    return sorted(instance.get_dynamic_partitions(_OPEN))


def _store(instance: dg.DagsterInstance) -> DaemonCursorStorage:
    """What Dagster keeps for its own daemons: texts by key."""
    store = instance.daemon_cursor_storage
    assert store is not None
    return store


def launch(
    instance: dg.DagsterInstance,
    graph: BaseAssetGraph,
    id_: str,
    now: BackfillPlan,
) -> Undertaking:
    """Launch a plan's first stage; or once more the stage that it ended with.

    Args:
        instance: where it runs.
        graph: the assets.
        id_: of the plan.
        now: the same plan made anew.

    Raises:
        BackfillRefusedError: what it was planned on has moved, naming what; or it is under way, or
            complete.
    """
    it = find(instance, id_)
    if it.complete or id_ in under_way(instance):
        state = "complete" if it.complete else "under way"
        raise BackfillRefusedError(f"backfill {id_} is {state}; make a new plan for another")
    moved = it.plan.moved(now)
    if it.attempt and instance.get_backfill(it.backfill_id) is None:
        it.attempt = 0  # it was kept, and nothing came of it
    if it.attempt:  # its own commits have moved the tables
        mine = (it.plan.code_version, it.plan.config_digest)
        moved = moved if mine != (now.code_version, now.config_digest) else []
    if moved:
        raise BackfillRefusedError(
            f"backfill {id_} is not launched, as what it was planned on has moved: "
            f"{'; '.join(moved)}. Nothing was written; make a new plan."
        )
    asked = {*it.plan.parameters.window}
    for table, outlook in it.plan.tables.items():
        if lacking := asked & {*unpacked(outlook.lacking)}:
            raise BackfillRefusedError(
                f"backfill {id_} is not launched: {table} "
                f"[{spelled(lacking)}] cannot be built, as what these days "
                "are made of has never been published. Make a plan that has the input tables too."
            )
        if unlike := asked & {*unpacked(outlook.other_settings)}:
            raise BackfillRefusedError(
                f"backfill {id_} is not launched: {table} [{spelled(unlike)}] cannot be built, as "
                "what these days are made of was made under other settings. Nothing was written; "
                "make a plan that has the input tables and days too, or put the settings back."
            )
    it.attempt += 1
    it.ended, it.began = "", it.began or time.time()
    keep(instance, it)
    instance.add_dynamic_partitions(_OPEN, [id_])
    _add(instance, graph, it)
    return it


def refuse_under_way(instance: dg.DagsterInstance, name: str) -> None:
    """Keep a person from undoing what is still being written.

    Raises:
        BackfillRefusedError: a planned backfill or one of Dagster's of that name has not ended.
    """
    backfill = instance.get_backfill(name)
    running = backfill and backfill.status not in BULK_ACTION_TERMINAL_STATUSES
    if running or name.partition("-")[0] in under_way(instance):
        raise BackfillRefusedError(
            f"backfill {name} is under way; cancel it, or let it end, and ask again. Nothing was "
            "written."
        )


def _add(instance: dg.DagsterInstance, graph: BaseAssetGraph, it: Undertaking) -> None:
    """Hand the stage to Dagster's backfill daemon, unless it has it already."""
    if instance.get_backfill(it.backfill_id) is not None:
        return
    asked = it.plan.parameters
    name, window = list(asked.stages())[it.stage]
    tags = {
        CODE_TAG: pinned(it.plan.code_version, it.plan.config_digest),
        REASON_TAG: asked.reason,
        WRITE_MODE_TAG: asked.write_mode,
        REWRITE_TAG: str(asked.rewrite).lower(),
    }
    if asked.accept:
        tags[ACCEPT_TAG] = ",".join(asked.accept)
    if asked.max_parallel:
        tags[PARALLEL_TAG] = str(asked.max_parallel)
    stage = PartitionBackfill.from_partitions_by_assets(
        backfill_id=it.backfill_id,
        asset_graph=graph,
        partitions_by_assets=[
            PartitionsByAssetSelector(
                asset_key=dg.AssetKey(table),
                partitions=PartitionsSelector(
                    [
                        PartitionRangeSelector(str(found.start), str(found.end - DAY))
                        for found in windows(days)
                    ]
                ),
            )
            for table, days in _possible(it, target_days(graph, asked.tables, window))
        ],
        backfill_timestamp=time.time(),
        tags={key: value for key, value in tags.items() if value},
        dynamic_partitions_store=instance,
        title=f"{it.plan.id} {name}: {window}",
        description=asked.reason or None,
        run_config=None,
    )
    try:
        instance.add_backfill(stage)
    except Exception:
        # The sensor and a person may come to it at once, and Dagster takes each id but once.
        if instance.get_backfill(it.backfill_id) is None:
            raise


def _possible(
    it: Undertaking, days: Mapping[str, Sequence[date]]
) -> Iterator[tuple[str, list[date]]]:
    """The days without those that only follow by mapping, and whose input is not there."""
    for table, wanted in days.items():
        outlook = it.plan.tables[table]
        lacking = {*unpacked([*outlook.lacking, *outlook.other_settings])}
        if found := [day for day in wanted if day not in lacking]:
            yield table, found


@dataclass(frozen=True)
class Step:
    """What is to be done about a backfill next.

    Attributes:
        text: where it stands.
        reconcile: the backfill of a stage that is to be reconciled now; empty if none.
    """

    text: str
    reconcile: str = ""


def advance(instance: dg.DagsterInstance, graph: BaseAssetGraph, it: Undertaking) -> Step:
    """Look how a stage has come along, and launch the next when it has been reconciled."""
    _add(instance, graph, it)  # it may have been interrupted before
    backfill = instance.get_backfill(it.backfill_id)
    assert backfill is not None
    if backfill.status not in BULK_ACTION_TERMINAL_STATUSES:
        return Step(f"{it.backfill_id} is under way")
    runs = instance.get_runs(dg.RunsFilter(tags={RECONCILES_TAG: it.backfill_id}), limit=1)
    if not runs:
        return Step(f"{it.backfill_id} is to be reconciled", it.backfill_id)
    (run,) = runs
    if not run.is_finished:
        return Step(f"{it.backfill_id} is being reconciled")
    stages = list(it.plan.parameters.stages())
    if run.status is not dg.DagsterRunStatus.SUCCESS:
        left = [str(window) for _, window in stages[it.stage + 1 :]]
        rest = f"; not launched: {', '.join(left)}" if left else ""
        return _end(
            instance,
            it,
            f"{it.backfill_id} did not pass (run {run.run_id[:8]} says why){rest}",
        )
    if backfill.status not in (Status.COMPLETED, Status.COMPLETED_SUCCESS):
        said = f"{it.backfill_id} ended as {backfill.status.value.lower()} in Dagster"
        return _end(instance, it, f"{said}, although what it was to publish is there")
    if it.stage + 1 == len(stages):
        return _end(instance, it, "complete and reconciled", complete=True)
    it.stage, it.attempt = it.stage + 1, 1
    keep(instance, it)
    _add(instance, graph, it)
    return Step(f"{it.backfill_id} is launched")


def _end(
    instance: dg.DagsterInstance, it: Undertaking, text: str, *, complete: bool = False
) -> Step:
    it.ended, it.complete, it.took = text, complete, time.time() - it.began
    keep(instance, it)
    instance.delete_dynamic_partition(_OPEN, it.plan.id)
    return Step(text)


def progress(instance: dg.DagsterInstance, it: Undertaking) -> str:
    """Where a backfill stands, in a line."""
    if it.ended:
        return it.ended
    stages = list(it.plan.parameters.stages())
    said = f"stage {it.stage + 1} of {len(stages)} ({it.backfill_id})"
    backfill = instance.get_backfill(it.backfill_id)
    if backfill is None or backfill.asset_backfill_data is None:
        return f"{said}: about to be launched"
    if backfill.status in BULK_ACTION_TERMINAL_STATUSES:
        return f"{said}: reconciling"
    data = backfill.asset_backfill_data
    done, failed, all_ = (
        subset.num_partitions_and_non_partitioned_assets
        for subset in (
            data.materialized_subset,
            data.failed_and_downstream_subset,
            data.target_subset,
        )
    )
    bad = f", {failed} failed" if failed else ""
    return f"{said}: {done} of {all_} days of tables{bad}"


def lacking_daemons(instance: dg.DagsterInstance) -> list[str]:
    """The daemons that a backfill needs and that do not run."""
    wanted = [BackfillDaemon.daemon_type(), SensorDaemon.daemon_type()]
    statuses: Mapping = get_daemon_statuses(
        instance, wanted, ignore_errors=True, heartbeat_tolerance_seconds=_SILENT
    )
    return [kind for kind in wanted if not statuses[kind].healthy]
