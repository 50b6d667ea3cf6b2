"""Housekeeping: the job and its schedule, off by default, that keep what grows from growing."""

from datetime import datetime, timedelta, timezone

import dagster as dg
from pydantic import Field

from backfill_assets.backfills import undertakings
from backfill_assets.dagster_ext.forgetting import prune_runs
from backfill_assets.delta.maintained import as_markdown, format_notes
from backfill_assets.delta.maintenance import run_maintenance
from backfill_assets.settings import Settings

#: Sundays at noon, in the business time zone: long after the night, and before the next.
_CRON = "0 12 * * 0"
_DAY_SECONDS = 86400.0


class HousekeepingConfig(dg.Config):
    """What to do."""

    tables: bool = Field(True, description="Maintain the tables, as `maintenance` does.")


def build_housekeeping(settings: Settings) -> dg.ScheduleDefinition:
    """The schedule, with its job."""

    @dg.op(out=dg.Out(dg.Nothing))
    def forget_old_runs(context: dg.OpExecutionContext) -> None:
        # What an undo may still take back is still to be told of.
        days = max(settings.keep_runs_days, settings.undo_days)
        before = datetime.now(timezone.utc) - timedelta(days=days)
        deleted = prune_runs(context.instance, before, undertakings.list_ids(context.instance))
        context.log.info(f"{days} days: {deleted}")
        context.add_output_metadata({"runs": str(deleted)})

    @dg.op(ins={"before": dg.In(dg.Nothing)}, out=dg.Out(dg.Nothing))
    def forget_old_plans(context: dg.OpExecutionContext) -> None:
        days = max(settings.keep_plans_days, settings.undo_days)
        deleted_plans = undertakings.delete_older(
            context.instance, datetime.now(timezone.utc).timestamp() - days * _DAY_SECONDS
        )
        context.log.info(f"{days} days: {len(deleted_plans)} plan(s) were taken away")
        context.add_output_metadata({"plans": ", ".join(deleted_plans) or "none"})

    @dg.op(
        required_resource_keys={"engine"},
        ins={"before": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
    )
    def maintain_all_tables(context: dg.OpExecutionContext, config: HousekeepingConfig) -> None:
        if not config.tables:
            return
        results = list(run_maintenance(context.resources.engine.spark_session, settings))
        context.log.info("; ".join(format_notes(results, dry_run=False)))
        metadata = {"maintenance": dg.MetadataValue.md(as_markdown(results))}
        if problems := [text for result in results for text in result.problems]:
            raise dg.Failure("; ".join(problems), metadata, allow_retries=False)
        context.add_output_metadata(metadata)

    @dg.job(
        name="housekeeping",
        description="Takes away what nobody needs of old runs and old plans, then maintains the "
        "tables. What Dagster shows of each day stays, and so does what can still be undone.",
    )
    def housekeeping() -> None:
        maintain_all_tables(forget_old_plans(forget_old_runs()))

    return dg.ScheduleDefinition(
        name="housekeeping",
        job=housekeeping,
        cron_schedule=_CRON,
        execution_timezone=settings.timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Off by default: turn it on under *Automation*.",
    )
