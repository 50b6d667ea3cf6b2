"""What Dagster runs by itself: the job, the nightly schedule, the sensors and the checks.

What is to run is decided in `night`; here it meets Dagster. Every run that is asked for goes
through the same assets as one that a person starts.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
from dagster import AssetKey

from backfill_assets.calendar.cadences import Grain
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.calendar.policy import Policy
from backfill_assets.dagster_ext.retries import launch_lost_retries
from backfill_assets.monitoring import alerts
from backfill_assets.monitoring.day_checks import build_state_checks, build_state_sensor
from backfill_assets.monitoring.look import Clock, Monitor
from backfill_assets.monitoring.night import (
    BATCH_TAG,
    LOAD,
    REBUILD,
    assets_of,
    not_launched,
    tables_in_progress,
    unfinished_batch_runs,
)
from backfill_assets.monitoring.run_requests import Request, first_batch
from backfill_assets.settings import Settings

#: The job of the tables of a cadence.
_JOBS = {Grain.DAILY: "daily", Grain.WEEKLY: "weekly"}


@dataclass(frozen=True)
class Automation:
    """What Dagster runs by itself, and the checks that tell whether it did."""

    jobs: Sequence[Any] = field(default_factory=list)
    schedules: Sequence[dg.ScheduleDefinition] = field(default_factory=list)
    sensors: Sequence[dg.SensorDefinition] = field(default_factory=list)
    checks: Sequence[dg.AssetChecksDefinition] = field(default_factory=list)


def build_automation(settings: Settings, clock: Clock | None = None) -> Automation:
    """The deployment's automation.

    Args:
        settings: the deployment's settings.
        clock: tells the time to the sensors; a test may stop it. (A schedule is told by Dagster.)
    """
    monitor = Monitor(settings, clock or (lambda: datetime.now(settings.zone)))
    jobs = [*_build_jobs(monitor)]
    return Automation(
        jobs,
        [_nightly_schedule(jobs[0], monitor)],
        [
            _landed_files_sensor(jobs[0], monitor),
            _touched_days_sensor(jobs, monitor),
            build_state_sensor(monitor),
            _lost_retries_sensor(),
            alerts.build_alerts_sensor(settings, monitor.find_incidents),
        ],
        [build_state_checks(monitor)],
    )


def _build_jobs(monitor: Monitor) -> Iterator[Any]:
    """A job for the tables of each cadence: Dagster's jobs have partitions of one definition."""
    for cadence, name in _JOBS.items():
        fed_tables = monitor.planner.fed_tables(monitor.today)
        if tables := [table for table in fed_tables.values() if table.grain is cadence]:
            pages = [page for table in tables for page in table.page_assets]
            yield dg.define_asset_job(
                name,
                selection=dg.AssetSelection.assets(*(table.name for table in tables), *pages),
                description="Any of these assets for a range of partitions; what the schedule and "
                "the sensors run.",
            )


def freshness_policy(settings: Settings, policy: Policy) -> dg.FreshnessPolicy | None:
    """Dagster's own freshness: something was materialized between midnight and the deadline.

    Of a table by week, on the weekday on which a week is first published. It looks at the last
    materialization, whichever day that was of: the check `days` looks at every day. None for a
    calendar with an end, after which nothing is ever fresh.

    Args:
        settings: the deadline and the business time zone.
        policy: that of the table, or of the deployment for what has no days.
    """
    if settings.end is not None:
        return None
    deadline = time.fromisoformat(settings.deadline)
    # With a lag of 1 that is Monday, which cron calls 1.
    weekday = policy.lag_days % 7 if policy.grain is Grain.WEEKLY else "*"
    return dg.FreshnessPolicy.cron(
        deadline_cron=f"{deadline.minute} {deadline.hour} * * {weekday}",
        lower_bound_delta=_since_midnight(deadline, settings.zone),
        timezone=settings.timezone,
    )


def _since_midnight(moment: time, zone: ZoneInfo) -> timedelta:
    """From midnight to a moment, on the day of a year on which that takes longest.

    Not from the nightly run: `landed_files` loads a day as soon as it is over. Dagster takes one
    length for all days. Where clocks are put back in the night, other days begin an hour early:
    better than a red day. Dagster takes no more than 24 hours.
    """
    today = datetime.now(zone).date()
    longest = max(
        datetime.combine(day, moment, zone).replace(fold=fold).timestamp()
        - datetime.combine(day, time.min, zone).timestamp()
        for day in Window(today, today + 366 * DAY)
        for fold in (0, 1)
    )
    return min(timedelta(seconds=longest), DAY)


def _run_request(monitor: Monitor, request: Request, kind: str, night: date) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=_run_key(request, night),
        job_name=_JOBS[_request_cadence(monitor, request)],
        asset_selection=[AssetKey(name) for name in assets_of(request, monitor.tables)],
        tags={
            "dagster/asset_partition_range_start": str(request.window.start),
            "dagster/asset_partition_range_end": str(request.window.end - DAY),
            # Ahead of backfills in the queue, which have none.
            "dagster/priority": "1",
            BATCH_TAG: kind,
        },
    )


def _request_cadence(monitor: Monitor, request: Request) -> Grain:
    return monitor.tables[request.tables[0]].grain


def _run_key(request: Request, night: date) -> str:
    """A key is used once: what failed is tried once more each night, or when its input moves."""
    return f"{night}:{request.key}"


def _nightly_schedule(job: Any, monitor: Monitor) -> dg.ScheduleDefinition:
    hour, minute = monitor.settings.nightly_at.split(":")

    @dg.schedule(
        name="nightly",
        job=job,
        cron_schedule=f"{int(minute)} {int(hour)} * * *",
        execution_timezone=monitor.settings.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Loads what has landed since, also for days on which nothing ran; if there is "
        "nothing, retries open days that are behind. The sensor touched_days then rebuilds what "
        "the new lines change.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        today = context.scheduled_execution_time.astimezone(monitor.settings.zone).date()
        with monitor.take_turn():
            kind, requests = monitor.planner.next_batch(
                today, tables_in_progress(context.instance, monitor.tables), list
            )
        if kind == REBUILD and unfinished_batch_runs(context.instance):
            yield dg.SkipReason("the wave before is under way; the sensor touched_days goes on")
            return
        daily = [
            request for request in requests if _request_cadence(monitor, request) is Grain.DAILY
        ]
        yield from (_run_request(monitor, request, kind, today) for request in daily)
        if requests and not daily:
            # A schedule has one job.
            yield dg.SkipReason("tables by week are left to the sensor touched_days")
        elif not requests:
            yield dg.SkipReason(f"as of {today} all that has landed is loaded, and all is built")

    return nightly


def _landed_files_sensor(job: Any, monitor: Monitor) -> dg.SensorDefinition:
    @dg.sensor(
        name="landed_files",
        job=job,
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Loads a log day as soon as it is over and its files have landed, and again "
        "when files are added to it. Off by default: the nightly schedule does the same.",
    )
    def landed_files(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        if running := unfinished_batch_runs(context.instance, [LOAD]):
            return dg.SkipReason(f"{len(running)} load(s) before are under way")
        with monitor.take_turn():
            requests = monitor.planner.plan_loads(monitor.today)
        idle_message = "nothing has landed that is not loaded or being loaded"
        return _request_once(context, monitor, LOAD, requests, idle_message)

    return landed_files


def _touched_days_sensor(jobs: Sequence[Any], monitor: Monitor) -> dg.SensorDefinition:
    @dg.sensor(
        name="touched_days",
        jobs=jobs,
        minimum_interval_seconds=4,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Follows the commits of the tables: when lines were loaded, whoever loaded "
        "them, rebuilds the open days that they change. Never a day whose window has closed.",
    )
    def touched_days(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        # What is under way comes first: what ends meanwhile is waited for once more rather than
        # asked for twice.
        in_progress = tables_in_progress(context.instance, monitor.tables)
        if running := unfinished_batch_runs(context.instance):
            return dg.SkipReason(f"{len(running)} run(s) of the wave before are under way")
        with monitor.take_turn():
            requests = monitor.planner.plan_rebuilds(monitor.today, in_progress)
        idle_message = "every open day is up to date or being brought up to date"
        return _request_once(context, monitor, REBUILD, requests, idle_message)

    return touched_days


def _request_once(
    context: dg.SensorEvaluationContext,
    monitor: Monitor,
    kind: str,
    requests: Sequence[Request],
    idle_message: str,
) -> dg.SensorResult | dg.SkipReason:
    """The next handful of runs to ask for, without those that were launched before."""
    night = monitor.planner.night_of(monitor.clock())
    new = not_launched(context.instance, {_run_key(request, night) for request in requests})
    # Before the handful is taken: what fails must not keep the others from their turn.
    batch = first_batch([request for request in requests if _run_key(request, night) in new])
    if not batch:
        return dg.SkipReason(idle_message)
    return dg.SensorResult([_run_request(monitor, request, kind, night) for request in batch])


def _lost_retries_sensor() -> dg.SensorDefinition:
    @dg.sensor(
        name="lost_retries",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Finds failed runs that Dagster was to retry and did not, as when its code "
        "server was down at that moment, and has it look at them once more.",
    )
    def lost_retries(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        previous = json.loads(context.cursor or "{}")
        current = launch_lost_retries(context.instance, previous, datetime.now(timezone.utc))
        context.update_cursor(json.dumps(current))
        retried = [run_id[:8] for run_id, count in current.items() if count != previous.get(run_id)]
        return dg.SkipReason(", ".join(retried) or "no retry was lost")

    return lost_retries
