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

from backfill_assets.backfills.planning import target_days
from backfill_assets.backfills.plans import BackfillPlan, Parameters
from backfill_assets.backfills.undertakings import (
    OPEN,
    BackfillRefusedError,
    Undertaking,
    find,
    keep,
    under_way,
)
from backfill_assets.calendar.cadences import Cadence
from backfill_assets.calendar.partitions import DAY, Window, spelled, unpacked, windows
from backfill_assets.dagster_ext.internals import (
    BULK_ACTION_TERMINAL_STATUSES,
    BackfillDaemon,
    BaseAssetGraph,
    BulkActionStatus,
    PartitionBackfill,
    PartitionRangeSelector,
    PartitionsByAssetSelector,
    PartitionsSelector,
    SensorDaemon,
    get_daemon_statuses,
    longest_tag,
)
from backfill_assets.publish.run_tags import (
    ACCEPT_TAG,
    CODE_TAG,
    REASON_TAG,
    REWRITE_TAG,
    WRITE_MODE_TAG,
    pinned,
)

#: A daemon tells Dagster every 30 seconds that it lives. Dagster counts it as alive for half an
#: hour after its last word; a backfill that is launched in that time would wait for nobody.
_SILENT = 300.0  # seconds
#: The tag of a run that reconciles a stage: the id of the stage's backfill.
RECONCILES_TAG = "backfill_assets/reconciles"
#: How many runs of a backfill the queue lets go at a time: `dagster.yaml` has a limit for each.
PARALLEL_TAG = "backfill_assets/max_parallel"


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
    for table, outlook in it.plan.tables.items():
        asked = _meant(graph, it.plan, table)
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
    _refuse_many_names(instance, it)
    it.attempt += 1
    it.ended, it.began = "", it.began or time.time()
    keep(instance, it)
    instance.add_dynamic_partitions(OPEN, [id_])
    _add(instance, graph, it)
    return it


def _meant(graph: BaseAssetGraph, plan: BackfillPlan, table: str) -> set[date]:
    """The days of a table that were asked for: not those that only follow by mapping.

    Of a table by week that follows others of the plan, the weeks all of whose days are asked for.
    """
    node, window = graph.get(dg.AssetKey(table)), plan.parameters.window
    cadence = Cadence.of(node.partitions_def)
    follows = {key.to_user_string() for key in node.parent_keys} & plan.tables.keys()
    return {*(cadence.whole(window) if follows else cadence.touched(window))}


def _refuse_many_names(instance: dg.DagsterInstance, it: Undertaking) -> None:
    """Refuse what Dagster's daemon would try to launch for ever."""
    limit, names = longest_tag(instance), it.plan.parameters.accept
    if limit is not None and len(",".join(names).encode()) > limit:
        raise BackfillRefusedError(
            f"backfill {it.plan.id} is not launched: it accepts {len(names)} files by name, and "
            f"Dagster's storage takes names of {limit:,} bytes in all for a run. Nothing was "
            "written; make a plan for fewer days at a time."
        )


def _add(instance: dg.DagsterInstance, graph: BaseAssetGraph, it: Undertaking) -> None:
    """Hand the stage to Dagster's backfill daemon, unless it has it already."""
    if instance.get_backfill(it.backfill_id) is not None:
        return
    asked = it.plan.parameters
    name, window = it.plan.stages[it.stage]
    days = dict(_possible(it, _of_stage(graph, asked, window)))
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
                        for found in windows(of)
                    ]
                ),
            )
            for table, of in days.items()
        ],
        backfill_timestamp=time.time(),
        tags={key: value for key, value in tags.items() if value},
        dynamic_partitions_store=instance,
        title=f"{it.plan.id} {name}: {window}",
        description=asked.reason or None,
        run_config=None,
    )
    # Nothing is the daemon's to do where no week ends with the stage.
    stage = stage if days else stage.with_status(BulkActionStatus.COMPLETED_SUCCESS)
    try:
        instance.add_backfill(stage)
    except Exception:
        # The sensor and a person may come to it at once, and Dagster takes each id but once.
        if instance.get_backfill(it.backfill_id) is None:
            raise


def _of_stage(graph: BaseAssetGraph, asked: Parameters, window: Window) -> dict[str, list[date]]:
    """The days of a stage. A week comes with the stage of the last of its days that are asked for.

    Args:
        graph: the assets.
        asked: what the backfill is for.
        window: the days of the stage.
    """
    found = target_days(graph, asked.tables, window)
    for table, days in found.items():
        days_of = Cadence.of(graph.get(dg.AssetKey(table)).partitions_def).days_of
        end = asked.window.end
        found[table] = [day for day in days if min(days_of(day).end, end) <= window.end]
    return found


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
    if gone := [name for name in it.plan.parameters.tables if not graph.has(dg.AssetKey(name))]:
        said = f"this version of the project has no table {', '.join(gone)}"
        return _end(instance, it, f"{said}; {it.backfill_id} and what follows it is not built")
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
    stages = it.plan.stages
    if run.status is not dg.DagsterRunStatus.SUCCESS:
        left = [str(window) for _, window in stages[it.stage + 1 :]]
        rest = f"; not launched: {', '.join(left)}" if left else ""
        return _end(
            instance,
            it,
            f"{it.backfill_id} did not pass (run {run.run_id[:8]} says why){rest}",
        )
    if backfill.status not in (BulkActionStatus.COMPLETED, BulkActionStatus.COMPLETED_SUCCESS):
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
    instance.delete_dynamic_partition(OPEN, it.plan.id)
    return Step(text)


def progress(instance: dg.DagsterInstance, it: Undertaking) -> str:
    """Where a backfill stands, in a line."""
    if it.ended:
        return it.ended
    stages = it.plan.stages
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
