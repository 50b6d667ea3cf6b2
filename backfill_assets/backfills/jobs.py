"""The jobs that a person launches, and the sensor that leads planned backfills on.

What is planned, compared or undone is decided elsewhere; here it meets Dagster.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from backfill_assets.backfills import stages as backfills
from backfill_assets.backfills import target_undo, undertakings
from backfill_assets.backfills.accounts import Account, account, in_lines
from backfill_assets.backfills.asked import asked_for
from backfill_assets.backfills.footprints import belongs
from backfill_assets.backfills.plan_samples import with_samples
from backfill_assets.backfills.planning import make_plan, refuse_impossible
from backfill_assets.backfills.plans import BackfillPlan, Parameters, in_numbers
from backfill_assets.backfills.plans import in_lines as plan_in_lines
from backfill_assets.backfills.reports import as_markdown
from backfill_assets.backfills.stages import RECONCILES_TAG, Step
from backfill_assets.backfills.undertakings import (
    BackfillRefusedError,
    PlanUnreadableError,
    Undertaking,
)
from backfill_assets.backfills.undo import undone
from backfill_assets.calendar.days import days_asked
from backfill_assets.calendar.partitions import Window, spelled
from backfill_assets.dagster_ext.internals import AssetGraph, BaseAssetGraph, make_new_backfill_id
from backfill_assets.dagster_ext.retries import first_attempt, is_retry
from backfill_assets.dagster_ext.run_failures import failed_runs
from backfill_assets.delta import maintenance
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.escaping import markdown_table
from backfill_assets.publish.run_tags import REASON_TAG
from backfill_assets.settings import Settings
from backfill_assets.tables.code_version import Code


class BackfillConfig(dg.Config):
    """What to plan, or to launch."""

    days: str = Field("", description="FIRST...LAST, both included.")
    tables: list[str] = Field([], description="All tables if empty.")
    pilot_days: int = Field(0, description="So many days first; the rest if they pass.")
    chunk_days: int | None = Field(
        None,
        description="Stages of so many days, each reconciled; 0 for one. If it is left out: one, "
        "or stages of about the same work if the days differ much.",
    )
    max_parallel: int = Field(0, description="Runs at a time, 1 to 7; 0 for the queue's limit.")
    write_mode: Literal["overwrite", "merge"] = "overwrite"
    rewrite: bool = Field(False, description="Compute and write also what would be identical.")
    accept: list[str] = Field([], description="Landing files by name that may take lines away.")
    reason: str = Field("", description="Why, for the record.")

    def parameters(self) -> Parameters:
        """The same, as a plan takes it."""
        return Parameters(
            days=self.days,
            tables=tuple(self.tables),
            pilot_days=self.pilot_days,
            chunk_days="auto" if self.chunk_days is None else self.chunk_days or None,
            max_parallel=self.max_parallel or None,
            write_mode=self.write_mode,
            rewrite=self.rewrite,
            accept=tuple(self.accept),
            reason=self.reason,
        )


class LaunchConfig(BackfillConfig):
    """What to launch: days, or a plan that was made before."""

    plan: str = Field("", description="Id of a plan: launch it, if nothing has moved since.")


class ReconcileConfig(dg.Config):
    """What to give an account of."""

    backfill: str = Field(description="Id of the backfill; or of a run, its first 8 characters.")


class UndoConfig(dg.Config):
    """What to undo."""

    backfill: str = Field(description="Id of the backfill; or of a run, its first 8 characters.")
    days: str = Field("", description="Only these days: FIRST...LAST; with what is made of them.")
    reason: str = Field("", description="Why, for the record.")


def plan_anew(
    settings: Settings,
    graph: BaseAssetGraph,
    instance: dg.DagsterInstance,
    code: Code,
    asked: Parameters,
    id_: str | None = None,
) -> BackfillPlan:
    """A new plan, kept in Dagster's storage, under an id if one is given.

    Raises:
        ValueError: a parameter is not possible, and why.
    """
    refuse_impossible(settings, asked)
    plan = make_plan(settings, graph, instance, asked, code, id_ or make_new_backfill_id())
    plan = with_samples(settings, plan)
    undertakings.keep(instance, Undertaking(plan=plan, made=time.time()))
    return plan


def launch(
    settings: Settings, graph: BaseAssetGraph, instance: dg.DagsterInstance, code: Code, id_: str
) -> Undertaking:
    """Launch a plan, if nothing has moved since it was made.

    Raises:
        BackfillRefusedError: something has; or it would go on where stages that it has built were
            taken back; or no daemon would do the work.
        ValueError: a table of it is retired since.
    """
    if lacking := backfills.lacking_daemons(instance):
        raise BackfillRefusedError(
            f"no {' and no '.join(lacking)} daemon is at work in this DAGSTER_HOME, so nothing "
            "would happen: start the deployment (`make ui`, or dagster-daemon) first. Nothing was "
            "launched."
        )
    it = undertakings.find(instance, id_)
    refuse_impossible(settings, it.plan.parameters)
    if it.stage and not it.complete:
        stage, _ = it.plan.stages[it.stage]
        for table, days in undone(read_ledgers(settings), id_).items():
            if gone := [day for day, by in days.items() if not belongs(by, f"{id_}-{stage}")]:
                raise BackfillRefusedError(
                    f"backfill {id_} does not go on from its stage {stage}, as {table} "
                    f"[{spelled(gone)}], which the stages before it had written, has been undone. "
                    "Nothing was launched; make a new plan."
                )
    now = make_plan(settings, graph, instance, it.plan.parameters, code, id_)
    return backfills.launch(instance, graph, id_, now)


def give_account(
    settings: Settings,
    graph: BaseAssetGraph,
    instance: dg.DagsterInstance,
    spark: Any,
    name: str,
) -> Account:
    """The account of a backfill, of a stage of one, or of a run."""
    id_, _, stage = name.partition("-")
    try:
        plan = undertakings.find(instance, id_).plan
    except BackfillRefusedError as error:
        asked = asked_for(instance, read_ledgers(settings), name)
        unreadable = str(error) if isinstance(error, PlanUnreadableError) else ""
        return account(settings, spark, name, asked=asked, unreadable=unreadable)
    windows = {f"{id_}-{n}": window for n, window in plan.stages}
    of = next((w for n, w in windows.items() if f"{name}-".startswith(f"{n}-")), None)
    parameters = plan.parameters.model_copy(update={"rewrite": False})
    if of:
        parameters = parameters.model_copy(update={"days": str(of)})
    # By the code of the plan: a deploy afterwards does not make the backfill a lesser one.
    code = Code(plan.code_version, tables=plan.code_versions)
    again = make_plan(settings, graph, instance, parameters, code, id_)
    return account(settings, spark, name, None if stage else plan, again)


def _table(rows: Iterable[tuple[str, ...]], *headings: str) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md(markdown_table(headings, rows))


def _plan_metadata(plan: BackfillPlan) -> dict[str, Any]:
    return {
        "backfill": plan.id,
        "days": _table(plan_in_lines(plan), "table", "what", "why", "days"),
        "plan": _table(in_numbers(plan), "", ""),
    }


def _planning(settings: Settings, graph: AssetGraph, code: Code) -> dg.JobDefinition:
    """The job that makes a plan."""

    @dg.op(out=dg.Out(dg.Nothing))
    def plan_days(context: dg.OpExecutionContext, config: BackfillConfig) -> None:
        try:
            plan = plan_anew(settings, graph, context.instance, code, config.parameters())
        except ValueError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        context.add_output_metadata(_plan_metadata(plan))

    @dg.job(
        description="Says what a backfill would do, and keeps that as a plan. Nothing is computed."
    )
    def plan_backfill() -> None:
        plan_days()

    return plan_backfill


def _launching(settings: Settings, graph: AssetGraph, code: Code) -> dg.JobDefinition:
    """The job that launches a plan, or days."""

    @dg.op(out=dg.Out(dg.Nothing))
    def launch_stages(context: dg.OpExecutionContext, config: LaunchConfig) -> None:
        try:
            id_ = config.plan or first_attempt(context.instance, context.run).run_id[:8]
            # One that is run again, as its process was lost, launches no second backfill.
            it = undertakings.launched(context.instance, id_) if is_retry(context.run) else None
            if it is None:
                if not config.plan:
                    asked = config.parameters()
                    plan_anew(settings, graph, context.instance, code, asked, id_)
                it = launch(settings, graph, context.instance, code, id_)
        except ValueError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        context.add_output_metadata(
            {**_plan_metadata(it.plan), "first stage": f"/runs/b/{it.backfill_id}"}
        )

    @dg.job(
        description="Launches a plan, or days, in stages: a pilot, then the rest or chunk by "
        "chunk, each reconciled before the next. The days are built by Dagster's own backfills."
    )
    def backfill() -> None:
        launch_stages()

    return backfill


def _reconciling(settings: Settings, graph: AssetGraph) -> dg.JobDefinition:
    """The job that gives an account."""

    @dg.op(required_resource_keys={"engine"}, out=dg.Out(dg.Nothing))
    def compare_days(context: dg.OpExecutionContext, config: ReconcileConfig) -> None:
        spark = context.resources.engine.spark_session
        found = give_account(settings, graph, context.instance, spark, config.backfill)
        reports = {f"{r.table.name}": dg.MetadataValue.md(as_markdown(r)) for r in found.reports}
        metadata = {"account": _table(in_lines(found), "", ""), **reports}
        if found.problems:
            why = [*found.problems, *failed_runs(context.instance, config.backfill)]
            said = f"{config.backfill} is not reconciled: {'; '.join(why)}"
            raise dg.Failure(said, metadata=metadata, allow_retries=False)
        context.add_output_metadata(metadata)

    @dg.job(
        name="reconcile",
        description="Compares what a backfill published with what was there before, and with its "
        "plan; fails if anything is missing or does not add up.",
    )
    def reconcile_job() -> None:
        compare_days()

    return reconcile_job


def _undoing(settings: Settings) -> dg.JobDefinition:
    """The job that takes a backfill back."""

    @dg.op(required_resource_keys={"io_manager"}, out=dg.Out(dg.Nothing))
    def put_back(context: dg.OpExecutionContext, config: UndoConfig) -> Iterator[Any]:
        io = context.resources.io_manager
        tags = {**context.run.tags, REASON_TAG: config.reason}
        try:
            asked = target_undo.names_of(settings, config.backfill)
            if config.days:
                days_asked(config.days, settings)
            days = Window.parse(config.days) if config.days else None
            target_undo.refuse(settings, context.instance, asked, days)
            for table, done in target_undo.undo(
                io, settings, context.instance, asked, context.run.run_id, tags, days
            ):
                context.log.info(f"{table.name}: {len(done)} day(s) put back")
                for told in io.events(context.instance, table, done):
                    yield from told
        except ValueError as refused:
            raise dg.Failure(str(refused), allow_retries=False) from refused
        yield dg.Output(None)

    @dg.job(
        description="Puts the days that one backfill wrote, and what was made of them since, back "
        "to what they were before it, in every table; refuses where others have written since."
    )
    def undo() -> None:
        put_back()

    return undo


def _leading(graph: AssetGraph, reconcile_job: dg.JobDefinition) -> dg.SensorDefinition:
    """The sensor that leads planned backfills on; it has their stages reconciled by that job."""

    @dg.sensor(
        job_name=reconcile_job.name,
        minimum_interval_seconds=4,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Leads planned backfills through their stages: reconciles a stage that has "
        "ended, and launches the next if it passed.",
    )
    def planned_backfills(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        said, requests = [], []
        for id_ in undertakings.under_way(context.instance):
            try:
                it = undertakings.find(context.instance, id_)
            except BackfillRefusedError as error:  # it cannot go on, and the others do
                ended = undertakings.close(context.instance, id_)
                step = Step(f"{error}; {'closed' if ended else 'Dagster works at its last stage'}")
            else:
                step = backfills.advance(context.instance, graph, it)
            said.append(step.text)
            if name := step.reconcile:
                request = dg.RunRequest(
                    run_key=name,
                    run_config={"ops": {"compare_days": {"config": {"backfill": name}}}},
                    tags={RECONCILES_TAG: name, "dagster/priority": "1"},
                )
                requests.append(request)
        if requests:
            return dg.SensorResult(requests)
        text = "; ".join(said) or "no planned backfill is under way"
        return dg.SensorResult(skip_reason=text)

    return planned_backfills


def build(
    settings: Settings, assets: Iterable[dg.AssetsDefinition], code: Code
) -> tuple[list[dg.JobDefinition], dg.SensorDefinition]:
    """The deployment's jobs, and the sensor of planned backfills."""
    graph = AssetGraph.from_assets(list(assets))
    reconcile = _reconciling(settings, graph)
    jobs = [
        _planning(settings, graph, code),
        _launching(settings, graph, code),
        reconcile,
        _undoing(settings),
        maintenance.job(settings),
    ]
    return jobs, _leading(graph, reconcile)
