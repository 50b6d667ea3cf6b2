"""The jobs that build, compare and switch targets, and undo; the sensor that finishes a switch."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from backfill_assets.backfills.backfill_plan import BackfillRequest
from backfill_assets.backfills.diff import as_table
from backfill_assets.backfills.undo import NothingToUndoError
from backfill_assets.dagster_ext.failures import is_retry
from backfill_assets.dagster_ext.internals import one_op_job
from backfill_assets.delta import targets
from backfill_assets.delta.targets import ComparisonLimits, TargetError
from backfill_assets.deployment import ENGINE_KEY, IO_MANAGER_KEY, Deployment
from backfill_assets.escaping import markdown_table
from backfill_assets.publish.types import REASON_TAG
from backfill_assets.shadow import build, compare, switch
from backfill_assets.tables.code_version import Code

#: Key prefix of the assets whose observations are comparisons.
COMPARISONS = "comparisons"
#: The tag with the id of the switch-over that a run finishes.
TARGET_TAG = "backfill_assets/switch_over"
#: The most runs that are requested to finish one; then a person must find out why they fail.
_MAX_RUNS = 5


class ShadowConfig(dg.Config):
    """What to build beside production."""

    target: str = Field(description="Name of the target; it is made if there is none.")
    days: str = Field(description="FIRST...LAST, both included; or several, with commas.")
    tables: list[str] = Field([], description="With what follows from them; all if empty.")
    pilot_days: int = Field(0, description="So many days first; the rest if they pass.")
    chunk_days: int = Field(0, description="Stages of so many days; 0 for one.")
    max_parallel: int = Field(0, description="Runs at a time, 1 to 8; 0 for one.")
    reason: str = Field("", description="Why, for the record.")


class CompareConfig(dg.Config):
    """What to compare with production."""

    target: str = Field(description="Name of the target.")
    most_drift: float | None = Field(None, description="No column may drift by more (PSI).")
    most_rows: float | None = Field(
        None, description="No table may have more or fewer rows by a larger share."
    )
    require: bool | None = Field(
        None,
        description="True: from now on, no switch-over without a passed comparison with these "
        "bounds. False: none is required any more.",
    )

    @property
    def limits(self) -> ComparisonLimits | None:
        """The given limits; None if no limit is given."""
        limits = ComparisonLimits(most_drift=self.most_drift, most_rows=self.most_rows)
        return limits if str(limits) else None


class SwitchConfig(dg.Config):
    """What to switch over."""

    target: str = Field(description="Name of the target.")
    days: str = Field("", description="Only these days, FIRST...LAST, and what follows from them.")
    reason: str = Field("", description="Why, for the record.")


class UndoConfig(dg.Config):
    """What to undo."""

    backfill: str = Field(description="Id of the backfill; or of a run, its first 8 characters.")
    days: str = Field("", description="Only these days: FIRST...LAST; with what is made of them.")
    reason: str = Field("", description="Why, for the record.")


def _build_shadow_job(
    deployment: Deployment, assets: Sequence[dg.AssetsDefinition]
) -> dg.JobDefinition:
    """Build the job `shadow_backfill`, whose single run builds all stages of a target."""

    @dg.op(
        name=deployment.automation_name("build_days"),
        required_resource_keys={deployment.resource_key(IO_MANAGER_KEY)},
        out=dg.Out(dg.Nothing),
    )
    def build_days(context: dg.OpExecutionContext, config: ShadowConfig) -> None:
        request = BackfillRequest(
            days=config.days,
            tables=tuple(config.tables),
            pilot_days=config.pilot_days,
            chunk_days=config.chunk_days or None,
            max_parallel=config.max_parallel or None,
            reason=config.reason,
        )
        stages = []
        try:
            deployment.parse_days(config.days)
            publisher = deployment.io_manager(context.resources)
            target = build.prepare_target(publisher, deployment, config.target, request)
            for stage in build.build_stages(publisher, deployment, assets, target, request):
                context.log.info(f"stage {stage.name} [{stage.window}] has ended")
                stages.append(stage)
        except ValueError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        metadata = {"stages": _stages_table(stages)}
        if stages and stages[-1].failure:
            raise dg.Failure(stages[-1].failure, metadata=metadata, allow_retries=False)
        context.add_output_metadata(metadata)

    return one_op_job(
        build_days,
        deployment.automation_name("shadow_backfill"),
        "Builds days into a target, beside production: nobody who reads production notices. What "
        "has been built already is left alone.",
    )


def _stages_table(stages: list[build.StageResult]) -> dg.MarkdownMetadataValue:
    rows = [
        (stage.name, str(stage.window), table, counts)
        for stage in stages
        for table, counts in stage.counts_as_text.items()
    ]
    headings = ("stage", "days", "table", "days by outcome")
    return dg.MetadataValue.md(markdown_table(headings, rows))


def _build_compare_job(deployment: Deployment, code: Code) -> dg.JobDefinition:
    """Build the job `compare_target`, which fails if the comparison finds problems."""

    @dg.op(
        name=deployment.automation_name("compare_tables"),
        required_resource_keys={deployment.resource_key(ENGINE_KEY)},
        out=dg.Out(dg.Nothing),
    )
    def compare_tables(context: dg.OpExecutionContext, config: CompareConfig) -> Iterator[Any]:
        try:
            target = targets.load_target(deployment, config.target)
            if config.require is not None:
                required = config.limits or target.required or ComparisonLimits()
                target = compare.require_comparison(
                    deployment, target, required if config.require else None
                )
            spark = deployment.spark_session(context.resources)
            comparison = compare.compare_target(deployment, spark, target, code, config.limits)
        except TargetError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        metadata = _comparison_metadata(comparison)
        # Dagster plots numbers of observations. They belong to a separate asset, as the production
        # asset has not changed.
        for report in comparison.reports:
            numbers = {"target": config.target, **compare.comparison_metrics(report)}
            yield dg.AssetObservation(
                _comparison_key(deployment, report.table.name), metadata=numbers
            )
        if comparison.problems:
            message = f"{config.target} does not hold: {'; '.join(comparison.problems)}"
            raise dg.Failure(message, metadata=metadata, allow_retries=False)
        yield dg.Output(None, metadata=metadata)

    return one_op_job(
        compare_tables,
        deployment.automation_name("compare_target"),
        "Compares the days that a target has with those of production: rows, keys, totals, "
        "SHA-256, drift, and rows that differ.",
    )


def _comparison_metadata(comparison: compare.Comparison) -> dict[str, Any]:
    """Return the result of a comparison as metadata: numbers first, then each table."""
    tables = {
        r.table.name: dg.MetadataValue.md(as_table(r).to_markdown()) for r in comparison.reports
    }
    numbers = {
        f"{report.table.name}/{name}": value
        for report in comparison.reports
        for name, value in compare.comparison_metrics(report).items()
    }
    return {**numbers, **tables}


def _build_switch_job(deployment: Deployment, code: Code) -> dg.JobDefinition:
    """Build the job `switch_over`, which a person launches, or the sensor to resume a lost run."""

    @dg.op(
        name=deployment.automation_name("adopt_days"),
        required_resource_keys={deployment.resource_key(IO_MANAGER_KEY)},
        out=dg.Out(dg.Nothing),
    )
    def adopt_days(context: dg.OpExecutionContext, config: SwitchConfig) -> Iterator[Any]:
        publisher, run = deployment.io_manager(context.resources), context.run
        tags = {**run.tags, REASON_TAG: config.reason}
        try:
            only = deployment.parse_days(config.days) if config.days else None
            for table, results in switch.switch_over(
                publisher, deployment, code, config.target, run.run_id, tags, only
            ):
                context.log.info(f"{table.name}: {len(results)} day(s) switched over")
                for events in publisher.events(context.instance, [(table, results)]):
                    yield from events
                publisher.report_commits(context, run, table, results)
        except ValueError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        yield dg.Output(None)

    return one_op_job(
        adopt_days,
        deployment.automation_name(switch.SWITCH_JOB),
        "Makes the days of a target production, one metadata commit a table; refuses a target that "
        "is behind. One that was interrupted is finished.",
    )


def _build_undo_job(deployment: Deployment) -> dg.JobDefinition:
    """Build the job `undo`, which reverts a backfill, a switch-over or a run in every table."""

    @dg.op(
        name=deployment.automation_name("put_back"),
        required_resource_keys={deployment.resource_key(IO_MANAGER_KEY)},
        out=dg.Out(dg.Nothing),
    )
    def put_back(context: dg.OpExecutionContext, config: UndoConfig) -> Iterator[Any]:
        publisher = deployment.io_manager(context.resources)
        tags = {**context.run.tags, REASON_TAG: config.reason}
        try:
            names = switch.resolve_names(deployment, config.backfill)
            days, part = deployment.parse_days_and_part(config.days)
            switch.refuse_undo(deployment, context.instance, names, days)
            for table, day_results in switch.undo_backfill_or_switch(
                publisher, deployment, context.instance, names, context.run.run_id, tags, days, part
            ):
                context.log.info(f"{table.name}: {len(day_results)} day(s) put back")
                for events in publisher.events(context.instance, [(table, day_results)]):
                    yield from events
                publisher.report_commits(context, context.run, table, day_results)
        except ValueError as error:
            # A retry whose first attempt lost its process after the last commit is done.
            if not (isinstance(error, NothingToUndoError) and is_retry(context.run)):
                raise dg.Failure(str(error), allow_retries=False) from error
            context.log.info("The attempt before had put all days back.")
        yield dg.Output(None)

    return one_op_job(
        put_back,
        deployment.automation_name("undo"),
        "Puts the days that one backfill wrote, and what was made of them since, back to what they "
        "were before it, in every table; refuses where others have written since.",
    )


def _build_resume_sensor(deployment: Deployment, job: dg.JobDefinition) -> dg.SensorDefinition:
    """Build the sensor that finishes switch-overs whose run was lost."""

    @dg.sensor(
        name=deployment.automation_name("switch_overs"),
        job_name=job.name,
        minimum_interval_seconds=10,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Finishes switch-overs whose run was killed: production must not stay with "
        "some tables of a target and others not.",
    )
    def switch_overs(context: dg.SensorEvaluationContext) -> Iterator[dg.RunRequest]:
        for target in targets.interrupted_switches(deployment):
            tags = {TARGET_TAG: target.switch_id}
            if switch.active_switch_runs(deployment, context.instance):
                continue
            attempts = context.instance.get_runs_count(dg.RunsFilter(tags=tags))
            if attempts < _MAX_RUNS:
                op_config = {"target": target.name, "reason": target.switch_reason}
                op = deployment.automation_name("adopt_days")
                config = {"ops": {op: {"config": op_config}}}
                key = f"{target.switch_id} {attempts}"
                yield dg.RunRequest(run_key=key, run_config=config, tags=tags)

    return switch_overs


def _comparison_key(deployment: Deployment, name: str) -> dg.AssetKey:
    *prefix, name = deployment.asset_key(name).path
    return dg.AssetKey([*prefix, COMPARISONS, name])


def comparison_assets(deployment: Deployment) -> list[dg.AssetsDefinition]:
    """Return an asset for each table, whose observations compare targets with production.

    Dagster plots numbers only of assets that are defined. Nobody materializes these. Empty if there
    is no target when the definitions are loaded, or the targets cannot be read.
    """
    try:
        if not targets.any_targets(deployment):
            return []
    except (OSError, ValueError):
        return []
    landed = deployment.graph.landed_tables
    specs = [
        dg.AssetSpec(
            _comparison_key(deployment, name),
            group_name=COMPARISONS,
            owners=deployment.settings.asset_owners,
            description=f"Each comparison of {name}, as a target has it, with production.",
        )
        for name, parts in deployment.graph.assets.items()
        if parts[0].name not in landed
    ]
    return [dg.AssetsDefinition(specs=specs)]


def build_shadow_jobs(
    deployment: Deployment, assets: Sequence[dg.AssetsDefinition], code: Code
) -> tuple[list[dg.JobDefinition], dg.SensorDefinition]:
    """Build the jobs of targets and the job `undo`, and the sensor that finishes switch-overs."""
    switch_job = _build_switch_job(deployment, code)
    jobs = [
        _build_shadow_job(deployment, assets),
        _build_compare_job(deployment, code),
        switch_job,
        _build_undo_job(deployment),
    ]
    return jobs, _build_resume_sensor(deployment, switch_job)
