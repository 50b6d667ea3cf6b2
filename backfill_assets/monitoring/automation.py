"""Automation: jobs, schedules, sensors, and the asset checks on the states of days.

`states` decides the state of a day and `next_runs` what to run. Every requested run uses the same
assets as one that a person starts.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta, timezone
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
from pydantic import Field

from backfill_assets.audit.checks import evaluated_failures, failure_text, metadata_keys
from backfill_assets.backfills import state_store
from backfill_assets.backfills.reconcile import find_mixed_backfills
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, Grain, Window, format_ranges, to_windows
from backfill_assets.dagster_ext.failures import launch_lost_retries
from backfill_assets.delta.consistent_versions import save_versions
from backfill_assets.delta.ledgers import own_ledgers
from backfill_assets.delta.maintenance import as_table, format_notes, run_maintenance
from backfill_assets.deployment import ENGINE_KEY, IO_MANAGER_KEY, Deployment
from backfill_assets.escaping import escape_markdown, markdown_table
from backfill_assets.monitoring import alerts, next_runs, states
from backfill_assets.monitoring.incidents import Clock, Monitor
from backfill_assets.publish.types import LATER_DAYS_TAG
from backfill_assets.settings import PREFIX
from backfill_assets.shadow.switch import is_mixed
from backfill_assets.tables.table import Table, asset_name, run_tags, table_name

_DAYS, _FINAL_DAYS, _ONE_CODE = "days", "final_days", "one_code"
#: The check of every table, then those of frozen tables alone, with their descriptions.
_STATE_CHECKS = {
    _DAYS: "Every day that is due is published, from the input as it is now.",
    _FINAL_DAYS: "No final day has changed but by a run that a person launched.",
    _ONE_CODE: "All days that one backfill made, in all tables, were made by one code and one "
    "configuration.",
}


def _check_specs(deployment: Deployment) -> list[dg.AssetCheckSpec]:
    """Return the check `days` for every table, and two more for each frozen table."""
    return [
        dg.AssetCheckSpec(check, asset=deployment.asset_key(name), description=description)
        for check, description in _STATE_CHECKS.items()
        for name, parts in deployment.graph.assets.items()
        if check == _DAYS or parts[0].frozen
    ]


def _evaluate_checks(
    deployment: Deployment, snapshot: states.MonitoringSnapshot
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the evaluations of all state checks; the step `check_days` and the sensor use them."""
    in_order = "every day is in order"
    if snapshot.later_days:
        in_order += f", and later runs build {format_ranges(snapshot.later_days)}"
    for asset, parts in deployment.graph.assets.items():
        tables = [table for table in parts if table.name in snapshot.ledgers]
        states_by_part = {table.part: snapshot.states_of(table.name) for table in tables}
        all_states = [state for by_day in states_by_part.values() for state in by_day.values()]
        newest = [max(snapshot.ledgers[t.name].published_days, default=None) for t in tables]
        texts = {part: states.describe_states(days) for part, days in states_by_part.items()}
        counts = Counter[str]()
        for by_day in states_by_part.values():
            counts.update(states.count_states(by_day))
        yield dg.AssetCheckEvaluation(
            asset_key=deployment.asset_key(asset),
            check_name=_DAYS,
            passed=all(state.is_good for state in all_states),
            description=_join_parts(texts) or in_order,
            metadata={
                **metadata_keys(counts),
                "newest_day": str(max(filter(None, newest), default=None)),
                "as_of": str(snapshot.today),
                "days": dg.MetadataValue.md(_state_table(states_by_part)),
            },
        )
    mixed = find_mixed_backfills(snapshot.ledgers)
    frozen = {*snapshot.frozen_tables}
    for asset, parts in deployment.graph.assets.items():
        names = {table.part: table.name for table in parts if table.name in frozen}
        if not names:
            continue
        changed = {part: states.changed_final_days(name, snapshot) for part, name in names.items()}
        texts = {
            part: "\n".join(f"{day} {escape_markdown(how)}" for day, how in days.items())
            for part, days in changed.items()
        }
        final_count = sum(len(snapshot.final_by_table[name]) for name in names.values())
        yield dg.AssetCheckEvaluation(
            asset_key=deployment.asset_key(asset),
            check_name=_FINAL_DAYS,
            passed=not any(changed.values()),
            description=_join_parts(texts) or "no final day has changed",
            metadata={"final_days": final_count, "changed": sum(map(len, changed.values()))},
        )
        yield dg.AssetCheckEvaluation(
            asset_key=deployment.asset_key(asset),
            check_name=_ONE_CODE,
            passed=not mixed,
            description="\n".join(map(escape_markdown, mixed))
            or "every backfill was made by one code and configuration",
        )


def _join_parts(texts: Mapping[str, str]) -> str:
    """Return the texts of the parts of an asset that have some, each with its part."""
    return "\n".join(f"{part}: {text}" if part else text for part, text in texts.items() if text)


def _state_table(states_by_part: Mapping[str, Mapping[date, states.DayState]]) -> str:
    """Return the states as a Markdown table, a row for each gapless range of days in one state."""
    spans = [
        (window, table_name(str(window), part), state.value)
        for part, state_by_day in states_by_part.items()
        for state, days in states.days_by_state(state_by_day).items()
        for window in to_windows(days)
    ]
    spans.sort(key=lambda span: span[0].start)
    return markdown_table(("days", "state"), [(days, state) for _, days, state in spans[-200:]])


def build_state_checks(monitor: Monitor) -> dg.AssetChecksDefinition:
    """Build the checks as a step of a run, after all of its assets."""

    @dg.multi_asset_check(
        name=monitor.deployment.automation_name("check_days"),
        specs=_check_specs(monitor.deployment),
        can_subset=True,
        required_resource_keys={monitor.deployment.resource_key(IO_MANAGER_KEY)},
        description="Looks at the states of all days, and fails the run if one of its days was "
        "not published. It comes last, so that no bad day keeps a good one from being built.",
    )
    def check_days(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        selected_keys = context.op_execution_context.selected_asset_check_keys
        snapshot = monitor.read_snapshot(context.instance)
        if later_days := context.run.tags.get(LATER_DAYS_TAG):
            # Of the tables of this run: it reports no other ones.
            snapshot = replace(snapshot, later_days=[*Window.parse(later_days)])
        for evaluation in _evaluate_checks(monitor.deployment, snapshot):
            if evaluation.asset_check_key in selected_keys:
                yield dg.AssetCheckResult(
                    asset_key=evaluation.asset_key,
                    check_name=evaluation.check_name,
                    passed=evaluation.passed,
                    description=evaluation.description,
                    metadata=evaluation.metadata,
                )
        selected_assets = {key.asset_key for key in selected_keys}
        keys = {name: monitor.deployment.asset_key(name) for name in monitor.deployment.tables}
        if failed := _failed_days(
            context,
            monitor.deployment.io_manager(context.resources).failed_days(context.run.run_id),
            {name: key for name, key in keys.items() if key in selected_assets},
        ):
            raise dg.Failure(failure_text(failed), allow_retries=False)

    return check_days


def _failed_days(
    context: dg.AssetCheckExecutionContext,
    failed: dict[str, dict[date, str]],
    keys: Mapping[str, dg.AssetKey],
) -> dict[str, dict[date, str]]:
    """Return, by table, the days that a run did not publish, with the reasons.

    `failed` are those that this process knows of, `keys` those of the assets of the run. A run that
    repeats another one from its failed step computes only some tables, or none. The days that
    earlier runs did not publish in the other tables must not look as if they were published.
    """
    run: dg.DagsterRun | None = context.run

    def unreported_keys() -> set[dg.AssetKey]:
        reported = {asset_name(name) for name in failed}
        return {key for name, key in keys.items() if asset_name(name) not in reported}

    while run and (unreported := unreported_keys()):
        evaluated = evaluated_failures(context.instance, run.run_id, unreported)
        if run.run_id != context.run.run_id:
            reason = (
                f"failed in run {run.run_id}, which this one repeats; materialize the day itself"
            )
            evaluated = {name: dict.fromkeys(days, reason) for name, days in evaluated.items()}
        failed |= evaluated
        run = context.instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None
    return {name: days for name, days in failed.items() if days}


def _is_quiet(instance: dg.DagsterInstance, monitor: Monitor) -> bool:
    """Return whether no run, backfill or switch-over is in progress, canaries included.

    Day states do not tell: the days of a backfill may be in order between two of its stages, and
    final days that are behind their inputs within a backfill are not open.
    """
    return not (
        state_store.own_ids(monitor.deployment, instance, state_store.active_ids(instance))
        or next_runs.tables_in_progress(instance, monitor.deployment)
        or is_mixed(monitor.deployment)
    )


def build_state_sensor(monitor: Monitor) -> dg.SensorDefinition:
    """Build the sensor that evaluates the state checks outside of runs."""

    @dg.sensor(
        name=monitor.deployment.automation_name("watch_days"),
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Evaluates the checks on the states of the days whenever a state has changed. "
        "Keeps which versions of the tables belong together.",
    )
    def watch_days(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        previous = json.loads(context.cursor or "{}")
        current, events = {}, []
        quiet = _is_quiet(context.instance, monitor)
        with monitor.lock_reads():
            snapshot = monitor.read_snapshot(context.instance)
        settled = snapshot.ledgers and not snapshot.stale.any_open
        # Nothing was written before the look, nor after it.
        if settled and quiet and _is_quiet(context.instance, monitor):
            current_ledgers = own_ledgers(snapshot.ledgers)
            save_versions(monitor.deployment.settings.warehouse, current_ledgers)
        if monitor.deployment.settings.metrics_file:
            _write_metrics(context, monitor.deployment, snapshot)
        for evaluation in _evaluate_checks(monitor.deployment, snapshot):
            name = evaluation.asset_check_key.to_user_string()
            shown = json.dumps([str(evaluation.description), repr(evaluation.metadata)])
            current[name] = hashlib.sha256(shown.encode()).hexdigest()[:16]
            if previous.get(name) != current[name]:
                events.append(evaluation)
        if not events:
            return dg.SkipReason("no state has changed")
        return dg.SensorResult(asset_events=events, cursor=json.dumps(current))

    return watch_days


def _write_metrics(
    context: dg.SensorEvaluationContext, deployment: Deployment, snapshot: states.MonitoringSnapshot
) -> None:
    """Write the metrics of a look; a file that cannot be written must not end the look."""
    # Not at the top: a deployment without metrics loads no client of Prometheus.
    from backfill_assets.monitoring.metrics import read_metrics, write_metrics

    path = deployment.settings.metrics_file
    assert path is not None
    try:
        write_metrics(path, read_metrics(deployment, snapshot, context.instance))
    except OSError as error:
        context.log.warning(f"{PREFIX}METRICS_FILE={path} cannot be written: {error}")


#: Sundays at noon, in the business time zone: far from the nightly runs.
_CRON = "0 12 * * 0"
_DAY_SECONDS = 86400.0


class HousekeepingConfig(dg.Config):
    """What to do."""

    tables: bool = Field(True, description="Maintain the tables, as `maintenance` does.")


def build_housekeeping(deployment: Deployment) -> dg.ScheduleDefinition:
    """Build the weekly schedule, with its job."""

    @dg.op(name=deployment.automation_name("forget_old_runs"), out=dg.Out(dg.Nothing))
    def forget_old_runs(context: dg.OpExecutionContext) -> None:
        from backfill_assets.dagster_ext.eventlog import prune_runs

        # Keep the runs that an undo may still revert.
        days = max(deployment.settings.keep_runs_days, deployment.settings.undo_days)
        before = datetime.now(timezone.utc) - timedelta(days=days)
        plans = state_store.list_ids(context.instance)
        deleted = prune_runs(context.instance, before, plans, deployment.owns_run)
        context.log.info(f"{days} days: {deleted}")
        context.add_output_metadata({"runs": str(deleted)})

    @dg.op(
        name=deployment.automation_name("forget_old_plans"),
        ins={"before": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
    )
    def forget_old_plans(context: dg.OpExecutionContext) -> None:
        days = max(deployment.settings.keep_plans_days, deployment.settings.undo_days)
        deleted_plans = state_store.delete_older(
            deployment,
            context.instance,
            datetime.now(timezone.utc).timestamp() - days * _DAY_SECONDS,
        )
        context.log.info(f"{days} days: {len(deleted_plans)} plan(s) were taken away")
        context.add_output_metadata({"plans": ", ".join(deleted_plans) or "none"})

    @dg.op(
        name=deployment.automation_name("maintain_all_tables"),
        required_resource_keys={deployment.resource_key(ENGINE_KEY)},
        ins={"before": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
    )
    def maintain_all_tables(context: dg.OpExecutionContext, config: HousekeepingConfig) -> None:
        if not config.tables:
            return
        spark = deployment.spark_session(context.resources)
        results = list(run_maintenance(spark, deployment))
        context.log.info("; ".join(format_notes(results, dry_run=False)))
        metadata = {"maintenance": dg.MetadataValue.md(as_table(results).to_markdown())}
        if problems := [text for result in results for text in result.problems]:
            raise dg.Failure("; ".join(problems), metadata, allow_retries=False)
        context.add_output_metadata(metadata)

    @dg.job(
        name=deployment.automation_name("housekeeping"),
        description="Takes away what nobody needs of old runs and old plans, then maintains the "
        "tables. What Dagster shows of each day stays, and so does what can still be undone.",
    )
    def housekeeping() -> None:
        maintain_all_tables(forget_old_plans(forget_old_runs()))

    return dg.ScheduleDefinition(
        name=deployment.automation_name("housekeeping"),
        job=housekeeping,
        cron_schedule=_CRON,
        execution_timezone=deployment.settings.timezone,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Off by default: turn it on under *Automation*.",
    )


@dataclass(frozen=True)
class Automation:
    """The jobs, schedules, sensors and checks of a deployment."""

    jobs: Sequence[Any]
    schedules: Sequence[dg.ScheduleDefinition]
    sensors: Sequence[dg.SensorDefinition]
    checks: Sequence[dg.AssetChecksDefinition]


def build_automation(deployment: Deployment, clock: Clock | None = None) -> Automation:
    """Build the deployment's automation.

    `clock` is that of the sensors; Dagster gives schedules the time.
    """
    monitor = Monitor(deployment, clock or (lambda: datetime.now(deployment.settings.zone)))
    jobs_by_name = dict(_build_jobs(monitor))
    daily = {n: job for n, job in jobs_by_name.items() if Grain.of_job(n) is Grain.DAILY}
    jobs = [*jobs_by_name.values()]
    return Automation(
        jobs,
        [_build_nightly_schedule(name, job, monitor) for name, job in daily.items()],
        [
            _build_landed_files_sensor([*daily.values()], monitor),
            _build_touched_days_sensor(jobs, monitor),
            build_state_sensor(monitor),
            _build_lost_retries_sensor(deployment),
            alerts.build_alerts_sensor(deployment, monitor.find_incidents),
        ],
        [build_state_checks(monitor)],
    )


def _build_jobs(monitor: Monitor) -> Iterator[tuple[str, Any]]:
    """Yield a job for the tables of each grain, by name: it has one partitions definition.

    Tables with a second dimension have jobs of their own.
    """
    fed_tables = monitor.planner.fed_tables(monitor.today).values()
    for cadence in Grain:
        for job_name in dict.fromkeys(t.job_name for t in fed_tables if t.grain is cadence):
            tables = [table for table in fed_tables if table.job_name == job_name]
            names = dict.fromkeys(table.asset_name for table in tables)
            pages = [page for table in tables for page in table.page_assets]
            job = dg.define_asset_job(
                monitor.deployment.automation_name(job_name),
                selection=dg.AssetSelection.assets(
                    *map(monitor.deployment.asset_key, [*names, *pages])
                ),
                description="Any of these assets for a range of partitions; what the schedule and "
                "the sensors run.",
            )
            yield job_name, job


def freshness_policy(deployment: Deployment, policy: Policy) -> dg.FreshnessPolicy | None:
    """Return Dagster's own freshness: a materialization between midnight and the deadline.

    For a table by week or month, on the day on which a partition is first published. It looks at
    the last materialization, whichever day that was of: the check `days` looks at every day. None
    for a calendar with an end, after which nothing is ever fresh, for months that are first
    published after the 28th, where some days publish nothing, as no folder is expected, and where
    folders are complete after the deadline only.

    `policy` is that of the table, or of the deployment for assets without days.
    """
    if deployment.settings.end is not None:
        return None
    deadline = time.fromisoformat(deployment.settings.deadline)
    grain, lag = policy.grain, policy.lag_days
    if (grain is Grain.MONTHLY and lag > 28) or -policy.hours_ahead >= deadline.hour:
        return None
    # Lines wait for the next arrival day, so on some days nothing is published.
    if policy.arrives_after and policy.arrival_days.rules:
        return None
    day_of_month = lag if grain is Grain.MONTHLY else "*"
    # A week that begins on Monday is over on Monday, which cron calls 1, with a lag of 1.
    weekday = "*" if grain.first_weekday is None else (grain.first_weekday + lag) % 7
    return dg.FreshnessPolicy.cron(
        deadline_cron=f"{deadline.minute} {deadline.hour} {day_of_month} * {weekday}",
        lower_bound_delta=_since_midnight(deadline, deployment.settings.zone),
        timezone=deployment.settings.timezone,
    )


def _since_midnight(moment: time, zone: ZoneInfo) -> timedelta:
    """Return the time from midnight to a moment, on the day of a year on which it is longest.

    Not the time since the nightly run: `landed_files` loads a day as soon as it is over. Dagster
    takes one length for all days. Where clocks are set back in the night, the interval of other
    days begins an hour early; that is better than a false alarm. Dagster takes at most 24 hours.
    """
    today = datetime.now(zone).date()
    longest = max(
        datetime.combine(day, moment, zone).replace(fold=fold).timestamp()
        - datetime.combine(day, time.min, zone).timestamp()
        for day in Window(today, today + 366 * DAY)
        for fold in (0, 1)
    )
    return min(timedelta(seconds=longest), DAY)


def _run_request(
    monitor: Monitor, request: next_runs.Request, kind: str, night: date
) -> dg.RunRequest:
    """Return Dagster's run request; with `night` in its run key, it runs once a night."""
    tables = monitor.deployment.tables
    return dg.RunRequest(
        run_key=monitor.run_key(request, night),
        job_name=monitor.deployment.automation_name(_first_table(monitor, request).job_name),
        asset_selection=[
            *dict.fromkeys(
                monitor.deployment.asset_key(name)
                for name in next_runs.assets_of(request.tables, tables)
            )
        ],
        tags={
            **run_tags([tables[name] for name in request.tables], request.window),
            # Before backfills in the queue, which have no priority.
            "dagster/priority": "1",
            next_runs.BATCH_TAG: kind,
        },
    )


def _first_table(monitor: Monitor, request: next_runs.Request) -> Table:
    return monitor.deployment.tables[request.tables[0]]


def _build_nightly_schedule(job_name: str, job: Any, monitor: Monitor) -> dg.ScheduleDefinition:
    """Build the schedule of a job of daily tables; the sensor launches the jobs of the others."""
    hour, minute = monitor.deployment.settings.nightly_at.split(":")
    by_hour = any(t.by_hour for t in monitor.deployment.tables.values() if t.job_name == job_name)
    name = f"nightly{job_name.removeprefix(Grain.DAILY.job_name)}"

    @dg.schedule(
        name=monitor.deployment.automation_name(name),
        job=job,
        cron_schedule=f"{int(minute)} {'*' if by_hour else int(hour)} * * *",
        execution_timezone=monitor.deployment.settings.timezone,
        default_status=dg.DefaultScheduleStatus[monitor.deployment.automation_status],
        description="Loads what has landed since, also for days on which nothing ran; if there is "
        "nothing, retries open days that are behind. The sensor touched_days then rebuilds what "
        "the new lines change.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        today = monitor.business_day(context.scheduled_execution_time)
        night = monitor.planner.night_of(context.scheduled_execution_time)
        not_tried = partial(monitor.not_launched, context.instance, night)
        with monitor.lock_reads():
            kind, requests = monitor.planner.next_batch(
                today,
                next_runs.tables_in_progress(context.instance, monitor.deployment),
                not_tried if by_hour else list,  # it has but one tick a night
            )
        running = next_runs.unfinished_batch_runs(context.instance, monitor.deployment)
        if kind == next_runs.REBUILD and running:
            yield dg.SkipReason("the batch before is under way; the sensor touched_days goes on")
            return
        own = [r for r in requests if _first_table(monitor, r).job_name == job_name]
        yield from (_run_request(monitor, request, kind, night) for request in own)
        if requests and not own:
            # A schedule has one job.
            yield dg.SkipReason(
                "tables of other jobs are left to the sensor touched_days, or to their schedule"
            )
        elif not requests:
            yield dg.SkipReason(
                f"as of {today} all that has landed is loaded, and all is built that can be"
            )

    return nightly


def _build_landed_files_sensor(jobs: Sequence[Any], monitor: Monitor) -> dg.SensorDefinition:
    """Build the sensor that loads a log day as soon as it is over; it is off by default."""

    @dg.sensor(
        name=monitor.deployment.automation_name("landed_files"),
        jobs=jobs,
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Loads a log day as soon as it is over and its files have landed, and again "
        "when files are added to it. Off by default: the nightly schedule does the same.",
    )
    def landed_files(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        if running := next_runs.unfinished_batch_runs(
            context.instance, monitor.deployment, [next_runs.LOAD]
        ):
            return dg.SkipReason(f"{len(running)} load(s) before are under way")
        with monitor.lock_reads():
            requests = monitor.planner.plan_loads(monitor.today)
        idle_message = "nothing has landed that is not loaded or being loaded"
        return _request_once(context, monitor, next_runs.LOAD, requests, idle_message)

    return landed_files


def _build_touched_days_sensor(jobs: Sequence[Any], monitor: Monitor) -> dg.SensorDefinition:
    """Build the sensor that rebuilds open days, weeks and months after an input's commit."""

    @dg.sensor(
        name=monitor.deployment.automation_name("touched_days"),
        jobs=jobs,
        minimum_interval_seconds=4,
        default_status=dg.DefaultSensorStatus[monitor.deployment.automation_status],
        description="Follows the commits of the tables: when lines were loaded, whoever loaded "
        "them, rebuilds the open days that they change. Never a day whose window has closed.",
    )
    def touched_days(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        # Read the runs in progress first: a run that ends meanwhile then delays a request, and does
        # not cause a second one.
        in_progress = next_runs.tables_in_progress(context.instance, monitor.deployment)
        if running := next_runs.unfinished_batch_runs(context.instance, monitor.deployment):
            return dg.SkipReason(f"{len(running)} run(s) of the batch before are under way")
        with monitor.lock_reads():
            requests = monitor.planner.plan_rebuilds(monitor.today, in_progress)
        idle_message = "every open day that can be built is up to date, or being brought up to date"
        return _request_once(context, monitor, next_runs.REBUILD, requests, idle_message)

    return touched_days


def _request_once(
    context: dg.SensorEvaluationContext,
    monitor: Monitor,
    kind: str,
    requests: Sequence[next_runs.Request],
    idle_message: str,
) -> dg.SensorResult | dg.SkipReason:
    """Return the next batch of run requests, without those that were launched before."""
    night = monitor.planner.night_of(monitor.clock())
    # Filter before the batch is cut: requests that fail must not block the others.
    batch = next_runs.first_batch(monitor.not_launched(context.instance, night, requests))
    if not batch:
        return dg.SkipReason(idle_message)
    return dg.SensorResult([_run_request(monitor, request, kind, night) for request in batch])


def _build_lost_retries_sensor(deployment: Deployment) -> dg.SensorDefinition:
    """Build the sensor that repeats failure events whose retry the daemon did not launch."""

    @dg.sensor(
        name=deployment.automation_name("lost_retries"),
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus[deployment.automation_status],
        description="Finds failed runs that Dagster was to retry and did not, as when its code "
        "server was down at that moment, and has it look at them once more.",
    )
    def lost_retries(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        previous = json.loads(context.cursor or "{}")
        now = datetime.now(timezone.utc)
        current = launch_lost_retries(context.instance, previous, now, deployment.owns_run)
        context.update_cursor(json.dumps(current))
        retried = [run_id[:8] for run_id, count in current.items() if count != previous.get(run_id)]
        return dg.SkipReason(", ".join(retried) or "no retry was lost")

    return lost_retries
