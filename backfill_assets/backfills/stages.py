"""Run a planned backfill: launch its stages one after another as backfills of Dagster.

Nothing waits here: a sensor calls `advance`, which reads the stored state, Dagster's backfills and
the runs that reconcile them.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import dagster as dg

from backfill_assets.audit.raw_expectations import ACCEPT_TAG
from backfill_assets.backfills import state_store
from backfill_assets.backfills.backfill_plan import BackfillPlan, BackfillRequest
from backfill_assets.backfills.planner import days_by_table
from backfill_assets.calendar import partitions
from backfill_assets.dagster_ext import internals
from backfill_assets.dagster_ext.failures import awaits_retry
from backfill_assets.deployment import Deployment
from backfill_assets.publish import types

#: A daemon sends a heartbeat every 30 seconds. Dagster tolerates half an hour without one; a
#: backfill launched in that time would wait for a daemon that has stopped.
_HEARTBEAT_TOLERANCE = 300.0  # seconds
#: The job that reconciles a backfill: it reads tables, and fails if something is missing.
RECONCILE_JOB = "reconcile"
#: Tag of a run that reconciles a stage; its value is the id of the stage's backfill.
RECONCILES_TAG = "backfill_assets/reconciles"
#: Tag with the most parallel runs of a backfill: `dagster.yaml` has a limit for each value.
PARALLEL_TAG = "backfill_assets/max_parallel"


def launch_stage(
    deployment: Deployment,
    instance: dg.DagsterInstance,
    graph: internals.BaseAssetGraph,
    id_: str,
    current: BackfillPlan,
) -> state_store.BackfillState:
    """Launch a plan's first stage, or launch the stage that it ended with again.

    `current` is the plan made again as of now.

    Raises:
        BackfillRefusedError: something has changed since planning (the message names it), days
            cannot be built, too many files are accepted, or the backfill is active or complete.
    """
    state = state_store.load(instance, id_)
    status = state_store.read_status(instance, id_, state)
    if status in (state_store.BackfillStatus.ACTIVE, state_store.BackfillStatus.COMPLETED):
        raise state_store.BackfillRefusedError(
            f"backfill {id_} is {status.value}; make a new plan for another"
        )
    changes = state.plan.changes_since_planning(current)
    if instance.get_backfill(state.backfill_id) is None:
        state.attempt = max(state.attempt - 1, 0)  # saved, but never launched
    if state.attempt:  # its own commits have changed the tables
        planned_by = (state.plan.code_version, state.plan.config_digest)
        changes = changes if planned_by != (current.code_version, current.config_digest) else []
    if changes:
        raise state_store.BackfillRefusedError(
            f"backfill {id_} is not launched, as what it was planned on has moved: "
            f"{'; '.join(changes)}. Nothing was written; make a new plan."
        )
    for table, forecast in state.plan.tables.items():
        requested = _requested_days(deployment, graph, state.plan, table)
        if missing := requested & {*partitions.from_ranges(forecast.lacking)}:
            raise state_store.BackfillRefusedError(
                f"backfill {id_} is not launched: {table} "
                f"[{partitions.format_ranges(missing)}] cannot be built, as what these days "
                "are made of has never been published. Make a plan that has the input tables too."
            )
        if other_settings := requested & {*partitions.from_ranges(forecast.other_settings)}:
            raise state_store.BackfillRefusedError(
                f"backfill {id_} is not launched: {table} "
                f"[{partitions.format_ranges(other_settings)}] cannot be built, as what these "
                "days are made of was made under other settings. Nothing was written; make a plan "
                "that has the input tables and days too, or put the settings back."
            )
    _refuse_long_tag(instance, state)
    state.attempt += 1
    state.ended, state.began = "", state.began or time.time()
    state_store.save(instance, state)
    instance.add_dynamic_partitions(state_store.ACTIVE, [id_])
    _submit_stage(deployment, instance, graph, state)
    return state


def _requested_days(
    deployment: Deployment, graph: internals.BaseAssetGraph, plan: BackfillPlan, table: str
) -> set[date]:
    """The requested days of a table, without days that only follow by partition mapping.

    Of a table by week with inputs in the plan: weeks whose days are all requested.
    """
    node, window = graph.get(deployment.asset_key(table)), plan.parameters.window
    cadence = partitions.Grain.from_partitions_def(node.partitions_def)
    inputs = {*map(deployment.asset_key, plan.tables)} & node.parent_keys
    return {*(cadence.whole_partitions(window) if inputs else cadence.partitions_of(window))}


def _refuse_long_tag(instance: dg.DagsterInstance, state: state_store.BackfillState) -> None:
    """Raise if a tag is too long, as Dagster's daemon would retry the launch forever."""
    limit, names = internals.max_tag_bytes(instance), state.plan.parameters.accept
    if limit is not None and len(",".join(names).encode()) > limit:
        raise state_store.BackfillRefusedError(
            f"backfill {state.plan.id} is not launched: it accepts {len(names)} files by name, and "
            f"Dagster's storage takes names of {limit:,} bytes in all for a run. Nothing was "
            "written; make a plan for fewer days at a time."
        )


def _submit_stage(
    deployment: Deployment,
    instance: dg.DagsterInstance,
    graph: internals.BaseAssetGraph,
    state: state_store.BackfillState,
) -> None:
    """Submit the stage to Dagster's backfill daemon, unless it is submitted already."""
    if instance.get_backfill(state.backfill_id) is not None:
        return
    request = state.plan.parameters
    name, window = state.plan.stages[state.stage]
    days = dict(_buildable_days(state, _stage_days(deployment, graph, request, window)))
    tags = {
        types.CODE_TAG: types.format_code_pin(state.plan.code_version, state.plan.config_digest),
        types.REASON_TAG: request.reason,
        types.WRITE_MODE_TAG: request.write_mode,
        types.REWRITE_TAG: str(request.rewrite).lower(),
    }
    if request.accept:
        tags[ACCEPT_TAG] = ",".join(request.accept)
    if request.max_parallel:
        tags[PARALLEL_TAG] = str(request.max_parallel)
    if request.max_retries is not None:
        tags["dagster/max_retries"] = str(request.max_retries)
    add_backfill(
        deployment,
        instance,
        graph,
        state.backfill_id,
        days,
        {key: value for key, value in tags.items() if value},
        title=_stage_title(state.plan.id, name, window),
        reason=request.reason,
    )


def add_backfill(
    deployment: Deployment,
    instance: dg.DagsterInstance,
    graph: internals.BaseAssetGraph,
    id_: str,
    days: Mapping[str, Collection[date]],
    tags: Mapping[str, str],
    *,
    title: str,
    reason: str,
) -> None:
    """Submit days of tables to Dagster's backfill daemon, unless the id is submitted already."""
    if instance.get_backfill(id_) is not None:
        return
    backfill = internals.PartitionBackfill.from_partitions_by_assets(
        backfill_id=id_,
        asset_graph=graph,
        partitions_by_assets=[
            internals.PartitionsByAssetSelector(
                asset_key=deployment.asset_key(table),
                partitions=internals.PartitionsSelector(
                    [
                        internals.PartitionRangeSelector(
                            str(part.start), str(part.end - partitions.DAY)
                        )
                        for part in partitions.to_windows(table_days)
                    ]
                ),
            )
            for table, table_days in days.items()
        ],
        backfill_timestamp=time.time(),
        tags=dict(tags),
        dynamic_partitions_store=instance,
        title=title,
        description=reason or None,
        run_config=None,
    )
    # The daemon has nothing to do if no week ends in the days.
    backfill = (
        backfill if days else backfill.with_status(internals.BulkActionStatus.COMPLETED_SUCCESS)
    )
    try:
        instance.add_backfill(backfill)
    except Exception:
        # The sensor and a person may submit at the same time; Dagster accepts each id only once.
        if instance.get_backfill(id_) is None:
            raise


def _stage_title(id_: str, name: str, days: partitions.Window) -> str:
    """The title of a stage in Dagster, which takes 100 characters."""
    title = f"{id_} {name}: {days}"
    ends = partitions.Window(days.start, days.end)
    return title if len(title) <= 100 else f"{id_} {name}: {len(days)} days of {ends}"


def _stage_days(
    deployment: Deployment,
    graph: internals.BaseAssetGraph,
    request: BackfillRequest,
    window: partitions.Window,
) -> dict[str, list[date]]:
    """The days of a stage; a week belongs to the stage of its last requested day.

    A week without one, which follows from another table's days, belongs to the stage that has them.
    """
    stage_days = days_by_table(deployment, graph, request.tables, window)
    for table, days in stage_days.items():
        definition = graph.get(deployment.asset_key(table)).partitions_def
        days_of = partitions.Grain.from_partitions_def(definition).days_of
        last_days = {day: [d for d in days_of(day) if d in request.window][-1:] for day in days}
        stage_days[table] = [day for day in days if all(d in window for d in last_days[day])]
    return stage_days


def _buildable_days(
    state: state_store.BackfillState, days: Mapping[str, Sequence[date]]
) -> Iterator[tuple[str, list[date]]]:
    """Days by table, without those before its first, those not due, and those that lack an input.

    The latter follow by mapping only.
    """
    for table, requested in days.items():
        forecast = state.plan.tables[table]
        buildable = {*partitions.from_ranges(forecast.identical), *forecast.days_to_compute}
        if stage_days := [day for day in requested if day in buildable]:
            yield table, stage_days


@dataclass(frozen=True)
class NextAction:
    """The next action for a backfill.

    Attributes:
        text: its current state.
        stage_to_reconcile: id of the stage's backfill to reconcile now; empty if none.
    """

    text: str
    stage_to_reconcile: str = ""


def advance(
    deployment: Deployment,
    instance: dg.DagsterInstance,
    graph: internals.BaseAssetGraph,
    state: state_store.BackfillState,
) -> NextAction:
    """Check the current stage, and launch the next one once this one is reconciled."""
    if missing_tables := [
        name for name in state.plan.parameters.tables if not graph.has(deployment.asset_key(name))
    ]:
        message = f"this version of the project has no table {', '.join(missing_tables)}"
        return _end_backfill(
            instance, state, f"{message}; {state.backfill_id} and what follows it is not built"
        )
    _submit_stage(deployment, instance, graph, state)  # an earlier launch may have been interrupted
    backfill = instance.get_backfill(state.backfill_id)
    assert backfill is not None
    if backfill.status not in internals.BULK_ACTION_TERMINAL_STATUSES:
        return NextAction(f"{state.backfill_id} is under way")
    runs = instance.get_runs(dg.RunsFilter(tags={RECONCILES_TAG: state.backfill_id}), limit=1)
    if not runs:
        return NextAction(f"{state.backfill_id} is to be reconciled", state.backfill_id)
    (run,) = runs
    # One that lost its process or its engine decides nothing; its retry does.
    if not run.is_finished or awaits_retry(instance, run):
        return NextAction(f"{state.backfill_id} is being reconciled")
    stages = state.plan.stages
    if run.status is not dg.DagsterRunStatus.SUCCESS:
        not_launched = [str(window) for _, window in stages[state.stage + 1 :]]
        rest = f"; not launched: {', '.join(not_launched)}" if not_launched else ""
        return _end_backfill(
            instance,
            state,
            f"{state.backfill_id} did not pass (run {run.run_id[:8]} says why){rest}",
        )
    if backfill.status not in state_store.SUCCEEDED:
        message = f"{state.backfill_id} ended as {backfill.status.value.lower()} in Dagster"
        return _end_backfill(
            instance, state, f"{message}, although what it was to publish is there"
        )
    if state.stage + 1 == len(stages):
        return _end_backfill(instance, state, "complete and reconciled", complete=True)
    state.stage, state.attempt = state.stage + 1, 1
    state_store.save(instance, state)
    _submit_stage(deployment, instance, graph, state)
    return NextAction(f"{state.backfill_id} is launched")


def _end_backfill(
    instance: dg.DagsterInstance,
    state: state_store.BackfillState,
    text: str,
    *,
    complete: bool = False,
) -> NextAction:
    """Save the final state, and remove the backfill from those that a sensor advances."""
    state.ended, state.complete, state.took = text, complete, time.time() - state.began
    state_store.save(instance, state)
    instance.delete_dynamic_partition(state_store.ACTIVE, state.plan.id)
    return NextAction(text)


def describe_progress(instance: dg.DagsterInstance, state: state_store.BackfillState) -> str:
    """The current state of a backfill, in one line."""
    if state.ended:
        return state.ended
    status = state_store.read_status(instance, state.plan.id, state)
    if status is not state_store.BackfillStatus.ACTIVE:
        return status.value
    stages = state.plan.stages
    prefix = f"stage {state.stage + 1} of {len(stages)} ({state.backfill_id})"
    backfill = instance.get_backfill(state.backfill_id)
    if backfill is None or backfill.asset_backfill_data is None:
        return f"{prefix}: about to be launched"
    if backfill.status in internals.BULK_ACTION_TERMINAL_STATUSES:
        return f"{prefix}: reconciling"
    data = backfill.asset_backfill_data
    built, failed, all_ = (
        subset.num_partitions_and_non_partitioned_assets
        for subset in (
            data.materialized_subset,
            data.failed_and_downstream_subset,
            data.target_subset,
        )
    )
    bad = f", {failed} failed" if failed else ""
    return f"{prefix}: {built} of {all_} days of tables{bad}"


def refuse_without_daemons(instance: dg.DagsterInstance) -> None:
    """Raise if a backfill would not begin.

    Raises:
        BackfillRefusedError: a daemon that it needs is not running.
    """
    if missing := missing_daemons(instance):
        raise state_store.BackfillRefusedError(
            f"no {' and no '.join(missing)} daemon is at work in this DAGSTER_HOME, so "
            "nothing would happen: start the deployment (`make ui`, or dagster-daemon) first. "
            "Nothing was launched."
        )


def missing_daemons(instance: dg.DagsterInstance) -> list[str]:
    """The daemons that a backfill needs and that are not running."""
    required = [internals.BackfillDaemon.daemon_type(), internals.SensorDaemon.daemon_type()]
    statuses: Mapping = internals.get_daemon_statuses(
        instance, required, ignore_errors=True, heartbeat_tolerance_seconds=_HEARTBEAT_TOLERANCE
    )
    return [kind for kind in required if not statuses[kind].healthy]
