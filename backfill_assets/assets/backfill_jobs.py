"""The jobs that plan, launch and reconcile backfills, and the sensor of their stages."""

import time
from collections.abc import Iterable
from typing import Any, Literal

import click
import dagster as dg
from pydantic import Field

from backfill_assets.backfills import backfill_plan, reconcile, stages, state_store
from backfill_assets.backfills.changes import is_commit_of, reverted_by_table
from backfill_assets.backfills.planner import add_sampled_skews, make_plan, refuse_invalid_request
from backfill_assets.backfills.stages import RECONCILES_TAG, NextAction
from backfill_assets.backfills.state_store import BackfillRefusedError, BackfillState
from backfill_assets.calendar.partitions import format_ranges
from backfill_assets.dagster_ext import internals
from backfill_assets.dagster_ext.failures import failed_run_messages, first_attempt, is_retry
from backfill_assets.dagster_ext.internals import AssetGraph, BaseAssetGraph, one_op_job
from backfill_assets.delta import maintenance
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.deployment import ENGINE_KEY, Deployment
from backfill_assets.escaping import markdown_table
from backfill_assets.publish.types import closing_tags
from backfill_assets.settings import PREFIX
from backfill_assets.staleness.unloaded import AFTER_CLOSING, refuse_closing
from backfill_assets.tables.code_version import Code

#: Dagster's commands that take a range as one run: `dagster asset materialize`, `dg launch`. They
#: refuse a range of assets whose runs are limited in days.
_COMMANDS = ("materialize", "launch")
#: For so long after its last tick, a sensor of another code location counts as running.
_TWIN_SECONDS = 60.0


def backfill_policy(partitions_per_run: int) -> dg.BackfillPolicy:
    """Return the policy of all assets; ranges of several assets need the same one.

    A range that is given to a command is one run.
    """
    if range_of_command():
        return dg.BackfillPolicy.single_run()
    return dg.BackfillPolicy.multi_run(partitions_per_run)


def range_of_command() -> str:
    """Return the range given to one of `_COMMANDS` that loads the definitions; empty if none."""
    return option_of_command("partition_range")


def option_of_command(*names: str) -> str:
    """Return the first of some options that one of `_COMMANDS` is given; empty if none."""
    context = click.get_current_context(silent=True)
    if context is None or context.info_name not in _COMMANDS:
        return ""
    return next(filter(None, map(context.params.get, names)), "")


class BackfillConfig(dg.Config):
    """What to plan, or to launch."""

    days: str = Field("", description="FIRST...LAST, both included; or several, with commas.")
    tables: list[str] = Field([], description="All tables if empty.")
    pilot_days: int = Field(
        0, description="So many days first, from the first change on; the rest if they pass."
    )
    chunk_days: int | None = Field(
        None,
        description="Stages of so many days, each reconciled; 0 for one. If it is left out: one, "
        "or stages of about the same work if the days differ much.",
    )
    max_parallel: int = Field(0, description="Runs at a time, 1 to 8; 0 for the queue's limit.")
    max_retries: int | None = Field(
        None, description="Retries of a run that dies; if left out: as dagster.yaml says."
    )
    write_mode: Literal["overwrite", "merge"] = "overwrite"
    rewrite: bool = Field(False, description="Compute and write also what would be identical.")
    accept: list[str] = Field([], description="Landing files by name that may take lines away.")
    reason: str = Field("", description="Why, for the record.")

    def to_request(self) -> backfill_plan.BackfillRequest:
        """Return the request of a plan."""
        values = {name: getattr(self, name) for name in BackfillConfig.model_fields}
        values["chunk_days"] = "auto" if self.chunk_days is None else self.chunk_days or None
        values["max_parallel"] = self.max_parallel or None
        return backfill_plan.BackfillRequest(**values)


class LaunchConfig(BackfillConfig):
    """What to launch: days, or a plan that was made before."""

    plan: str = Field("", description="Id of a plan: launch it, if nothing has moved since.")


class ReconcileConfig(dg.Config):
    """What to reconcile."""

    backfill: str = Field(description="Id of the backfill; or of a run, its first 8 characters.")
    details: bool = Field(False, description="Record the figures of each day as JSON as well.")


#: The metadata of a reconciliation that a program reads.
RECONCILE_RESULT = "result"


class CloseConfig(dg.Config):
    """Which arrival days to close."""

    source: str = Field(description="Name of the source.")
    days: str = Field(description="FIRST...LAST, both included; or several, with commas.")
    reason: str = Field(description="Why nothing will come, for the record.")
    reopen: bool = Field(False, description="Wait for folders of closed days again.")


def create_plan(
    deployment: Deployment,
    instance: dg.DagsterInstance,
    code: Code,
    request: backfill_plan.BackfillRequest,
    id_: str | None = None,
) -> backfill_plan.BackfillPlan:
    """Create a plan and save it in Dagster's storage, under the given id or a new one.

    Raises:
        ValueError: a parameter is invalid.
    """
    refuse_invalid_request(deployment, request)
    plan = make_plan(deployment, instance, request, code, id_ or internals.make_new_backfill_id())
    plan = add_sampled_skews(deployment, plan)
    state = BackfillState(plan=plan, made=time.time(), key_prefix=deployment.key_prefix)
    state_store.save(instance, state)
    return plan


def launch_plan(
    deployment: Deployment,
    graph: BaseAssetGraph,
    instance: dg.DagsterInstance,
    code: Code,
    id_: str,
) -> BackfillState:
    """Launch a plan, or again the stage that it ended with, if nothing changed since planning.

    Raises:
        BackfillRefusedError: something has changed; or days that earlier stages wrote were
            reverted; or a daemon that the backfill needs is not running.
        ValueError: one of its tables has been retired since.
    """
    stages.refuse_without_daemons(instance)
    state_store.refuse_of_others(deployment, instance, id_)
    backfill_state = state_store.load(instance, id_)
    refuse_invalid_request(deployment, backfill_state.plan.parameters)
    if backfill_state.stage and not backfill_state.complete:
        stage, _ = backfill_state.plan.stages[backfill_state.stage]
        for table, days in reverted_by_table(read_ledgers(deployment), id_).items():
            if undone_days := [
                day for day, record in days.items() if not is_commit_of(record, f"{id_}-{stage}")
            ]:
                raise BackfillRefusedError(
                    f"backfill {id_} does not go on from its stage {stage}, as {table} "
                    f"[{format_ranges(undone_days)}], which the stages before it had written, has "
                    "been undone. Nothing was launched; make a new plan."
                )
    current_plan = make_plan(deployment, instance, backfill_state.plan.parameters, code, id_)
    return stages.launch_stage(deployment, instance, graph, id_, current_plan)


def _markdown_table(rows: Iterable[tuple[str, ...]], *headings: str) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md(markdown_table(headings, rows))


def _plan_metadata(plan: backfill_plan.BackfillPlan) -> dict[str, Any]:
    return {
        "backfill": plan.id,
        "days": _markdown_table(backfill_plan.day_rows(plan), "table", "what", "why", "days"),
        "plan": _markdown_table(backfill_plan.plan_facts(plan), "", ""),
    }


def _build_plan_job(deployment: Deployment, code: Code) -> dg.JobDefinition:
    """Build the job `plan_backfill`, which saves a plan in Dagster's storage and runs nothing."""

    @dg.op(name=deployment.automation_name("plan_days"), out=dg.Out(dg.Nothing))
    def plan_days(context: dg.OpExecutionContext, config: BackfillConfig) -> None:
        try:
            plan = create_plan(deployment, context.instance, code, config.to_request())
        except ValueError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        context.add_output_metadata(_plan_metadata(plan))

    return one_op_job(
        plan_days,
        deployment.automation_name("plan_backfill"),
        "Says what a backfill would do, and keeps that as a plan. Nothing is computed.",
    )


def _is_launched_by(
    instance: dg.DagsterInstance, run: dg.DagsterRun, backfill: state_store.Backfill
) -> bool:
    """Return whether a stage of a backfill is active, or was launched since a run was created.

    A stage that failed before is launched again by the run.
    """
    if backfill.status is state_store.BackfillStatus.ACTIVE:
        return True
    record = instance.get_run_record_by_id(run.run_id)
    created = record.create_timestamp.timestamp() if record else 0
    return any(launch.backfill_timestamp >= created for launch in backfill.launches)


def _build_launch_job(deployment: Deployment, graph: AssetGraph, code: Code) -> dg.JobDefinition:
    """Build the job `backfill`, which launches one stage; the sensor launches the next ones."""

    @dg.op(name=deployment.automation_name("launch_stages"), out=dg.Out(dg.Nothing))
    def launch_stages(context: dg.OpExecutionContext, config: LaunchConfig) -> None:
        try:
            first_run = first_attempt(context.instance, context.run)
            id_ = config.plan or first_run.run_id[:8]
            backfill_state = None
            if is_retry(context.run):  # of a lost process: it launches no second backfill
                stored = state_store.find_backfill(context.instance, id_)
                if _is_launched_by(context.instance, first_run, stored):
                    backfill_state = stored.state
            if backfill_state is None:
                if not config.plan:
                    request = config.to_request()
                    create_plan(deployment, context.instance, code, request, id_)
                backfill_state = launch_plan(deployment, graph, context.instance, code, id_)
        except ValueError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        context.add_output_metadata(
            {
                **_plan_metadata(backfill_state.plan),
                "first_stage": f"/runs/b/{backfill_state.backfill_id}",
            }
        )

    return one_op_job(
        launch_stages,
        deployment.automation_name("backfill"),
        "Launches a plan, or days, in stages: a pilot, then the rest or chunk by chunk, each "
        "reconciled before the next. The days are built by Dagster's own backfills.",
    )


def _build_reconcile_job(deployment: Deployment) -> dg.JobDefinition:
    """Build the job `reconcile`, which a person launches, or the stage sensor after each stage."""

    @dg.op(
        name=deployment.automation_name("compare_days"),
        required_resource_keys={deployment.resource_key(ENGINE_KEY)},
        out=dg.Out(dg.Nothing),
    )
    def compare_days(context: dg.OpExecutionContext, config: ReconcileConfig) -> None:
        spark = deployment.spark_session(context.resources)
        result = reconcile.reconcile_backfill(deployment, context.instance, spark, config.backfill)
        report = reconcile.reconcile_report(result)
        names = [table_diff.table.name for table_diff in result.reports]
        values = reconcile.encode_result(result, report, details=config.details)
        metadata = {
            # First, as the UI cuts long messages.
            "account": dg.MetadataValue.md(report.facts_table.to_markdown()),
            **{
                name: dg.MetadataValue.md(table.to_markdown())
                for name, table in zip(names, report.tables, strict=True)
            },
            RECONCILE_RESULT: dg.MetadataValue.json(values),
        }
        if result.problems:
            problems = [*result.problems, *failed_run_messages(context.instance, config.backfill)]
            message = f"{config.backfill} is not reconciled: {'; '.join(problems)}"
            raise dg.Failure(message, metadata=metadata, allow_retries=False)
        context.add_output_metadata(metadata)

    return one_op_job(
        compare_days,
        deployment.automation_name(stages.RECONCILE_JOB),
        "Compares what a backfill published with what was there before, and with its plan; fails "
        "if anything is missing or does not add up.",
    )


def _build_close_job(deployment: Deployment, graph: AssetGraph) -> dg.JobDefinition:
    """Build the job `close`, which launches the load of arrival days without a folder."""

    @dg.op(name=deployment.automation_name("close_days"), out=dg.Out(dg.Nothing))
    def close_days(context: dg.OpExecutionContext, config: CloseConfig) -> None:
        id_ = first_attempt(context.instance, context.run).run_id[:8]
        try:
            stages.refuse_without_daemons(context.instance)
            source = deployment.graph.find_source(config.source)
            days = deployment.parse_days(config.days)
            refuse_closing(deployment, source, days, reopen=config.reopen)
        except ValueError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        tables = deployment.graph.loaded_with(source.raw.name)
        verb = "reopen" if config.reopen else "close"
        stages.add_backfill(
            deployment,
            context.instance,
            graph,
            id_,
            dict.fromkeys(tables, days),
            closing_tags(config.reason, reopen=config.reopen),
            title=f"{verb} {source.full_name}: {len(days)} day(s)",
            reason=config.reason,
        )
        context.add_output_metadata({"load": f"/runs/b/{id_}", "next": AFTER_CLOSING})

    return one_op_job(
        close_days,
        deployment.automation_name("close"),
        "Says that nothing will come for arrival days of a source: they are loaded as empty days, "
        "and no window waits for their folders any more. Or waits for them again.",
    )


def _build_stage_sensor(
    deployment: Deployment, graph: AssetGraph, reconcile_job: dg.JobDefinition
) -> dg.SensorDefinition:
    """Build the sensor that advances planned backfills; the job reconciles their stages."""

    @dg.sensor(
        name=deployment.automation_name("planned_backfills"),
        job_name=reconcile_job.name,
        minimum_interval_seconds=4,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Leads planned backfills through their stages: reconciles a stage that has "
        "ended, and launches the next if it passed.",
    )
    def planned_backfills(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        messages, requests, op = [], [], deployment.automation_name("compare_days")
        active_ids = state_store.active_ids(context.instance)
        own_ids = state_store.own_ids(deployment, context.instance, active_ids)
        if own_ids and (locations := internals.other_locations(context, _TWIN_SECONDS)):
            raise BackfillRefusedError(
                f"the code location(s) {', '.join(locations)} have the sensor "
                f"{context.sensor_name} as well: whose plans they are is not known, and none goes "
                "on. Give each deployment on this instance a key_prefix of its own "
                f"({PREFIX}KEY_PREFIX), or turn the sensor off in the others."
            )
        for id_ in own_ids:
            try:
                backfill_state = state_store.load(context.instance, id_)
            except BackfillRefusedError as error:  # this backfill stops, the others continue
                ended = state_store.close_by_id(context.instance, id_)
                action = NextAction(
                    f"{error}; {'closed' if ended else 'Dagster works at its last stage'}"
                )
            else:
                action = stages.advance(deployment, context.instance, graph, backfill_state)
            messages.append(action.text)
            if name := action.stage_to_reconcile:
                request = dg.RunRequest(
                    run_key=name,
                    run_config={"ops": {op: {"config": {"backfill": name}}}},
                    tags={RECONCILES_TAG: name, "dagster/priority": "1"},
                )
                requests.append(request)
        if requests:
            return dg.SensorResult(requests)
        text = "; ".join(messages) or "no planned backfill is under way"
        return dg.SensorResult(skip_reason=text)

    return planned_backfills


def build_backfill_jobs(
    deployment: Deployment, assets: Iterable[dg.AssetsDefinition], code: Code
) -> tuple[list[dg.JobDefinition], dg.SensorDefinition]:
    """Build the jobs of backfills, and the sensor of planned backfills."""
    graph = AssetGraph.from_assets(list(assets))
    reconcile = _build_reconcile_job(deployment)
    jobs = [
        _build_plan_job(deployment, code),
        _build_launch_job(deployment, graph, code),
        reconcile,
        _build_close_job(deployment, graph),
        maintenance.maintenance_job(deployment),
    ]
    return jobs, _build_stage_sensor(deployment, graph, reconcile)
