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

from backfill_assets.calendar.cadences import Cadence
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.calendar.policy import Policy
from backfill_assets.dagster_ext.retries import launch_lost_retries
from backfill_assets.monitoring import alerts
from backfill_assets.monitoring.day_checks import check_of_days, sensor_of_days
from backfill_assets.monitoring.look import Clock, Look
from backfill_assets.monitoring.night import (
    LOAD,
    REBUILD,
    WAVE_TAG,
    assets_of,
    busy,
    not_launched,
    waves_under_way,
)
from backfill_assets.monitoring.run_requests import Request, handful
from backfill_assets.settings import Settings

#: The job of the tables of a cadence.
_JOBS = {Cadence.DAILY: "daily", Cadence.WEEKLY: "weekly"}


@dataclass(frozen=True)
class Automation:
    """What Dagster runs by itself, and the checks that tell whether it did."""

    jobs: Sequence[Any] = field(default_factory=list)
    schedules: Sequence[dg.ScheduleDefinition] = field(default_factory=list)
    sensors: Sequence[dg.SensorDefinition] = field(default_factory=list)
    checks: Sequence[dg.AssetChecksDefinition] = field(default_factory=list)


def build(settings: Settings, clock: Clock | None = None) -> Automation:
    """The deployment's automation.

    Args:
        settings: the deployment's settings.
        clock: tells the time to the sensors; a test may stop it. (A schedule is told by Dagster.)
    """
    look = Look(settings, clock or (lambda: datetime.now(settings.zone)))
    jobs = [*_jobs(look)]
    return Automation(
        jobs,
        [_nightly(jobs[0], look)],
        [
            _landed_files(jobs[0], look),
            _touched_days(jobs, look),
            sensor_of_days(look),
            _lost_retries(),
            alerts.build(settings, look.incidents),
        ],
        [check_of_days(look)],
    )


def _jobs(look: Look) -> Iterator[Any]:
    """A job for the tables of each cadence: Dagster's jobs have partitions of one definition."""
    for cadence, name in _JOBS.items():
        fed = look.night.fed(look.today)
        if tables := [table for table in fed.values() if table.cadence is cadence]:
            pages = [page for table in tables for page in table.pages]
            yield dg.define_asset_job(
                name,
                selection=dg.AssetSelection.assets(*(table.name for table in tables), *pages),
                description="Any of these assets for a range of partitions; what the schedule and "
                "the sensors run.",
            )


def freshness(settings: Settings, policy: Policy) -> dg.FreshnessPolicy | None:
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
    weekday = policy.lag_days % 7 if policy.cadence is Cadence.WEEKLY else "*"
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


def _run_request(look: Look, request: Request, kind: str, night: date) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=_run_key(request, night),
        job_name=_JOBS[_cadence(look, request)],
        asset_selection=[AssetKey(name) for name in assets_of(request, look.tables)],
        tags={
            "dagster/asset_partition_range_start": str(request.window.start),
            "dagster/asset_partition_range_end": str(request.window.end - DAY),
            # Ahead of backfills in the queue, which have none.
            "dagster/priority": "1",
            WAVE_TAG: kind,
        },
    )


def _cadence(look: Look, request: Request) -> Cadence:
    return look.tables[request.tables[0]].cadence


def _run_key(request: Request, night: date) -> str:
    """A key is used once: what failed is tried once more each night, or when its input moves."""
    return f"{night}:{request.key}"


def _nightly(job: Any, look: Look) -> dg.ScheduleDefinition:
    hour, minute = look.settings.nightly_at.split(":")

    @dg.schedule(
        name="nightly",
        job=job,
        cron_schedule=f"{int(minute)} {int(hour)} * * *",
        execution_timezone=look.settings.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Loads what has landed since, also for days on which nothing ran; if there is "
        "nothing, retries open days that are behind. The sensor touched_days then rebuilds what "
        "the new lines change.",
    )
    def nightly(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        today = context.scheduled_execution_time.astimezone(look.settings.zone).date()
        with look.turn():
            kind, requests = look.night.wave(today, busy(context.instance, look.tables), list)
        if kind == REBUILD and waves_under_way(context.instance):
            yield dg.SkipReason("the wave before is under way; the sensor touched_days goes on")
            return
        daily = [request for request in requests if _cadence(look, request) is Cadence.DAILY]
        yield from (_run_request(look, request, kind, today) for request in daily)
        if requests and not daily:
            # A schedule has one job.
            yield dg.SkipReason("tables by week are left to the sensor touched_days")
        elif not requests:
            yield dg.SkipReason(f"as of {today} all that has landed is loaded, and all is built")

    return nightly


def _landed_files(job: Any, look: Look) -> dg.SensorDefinition:
    @dg.sensor(
        name="landed_files",
        job=job,
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Loads a log day as soon as it is over and its files have landed, and again "
        "when files are added to it. Off by default: the nightly schedule does the same.",
    )
    def landed_files(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        if running := waves_under_way(context.instance, [LOAD]):
            return dg.SkipReason(f"{len(running)} load(s) before are under way")
        with look.turn():
            requests = look.night.loads(look.today)
        rest = "nothing has landed that is not loaded or being loaded"
        return _ask_once(context, look, LOAD, requests, rest)

    return landed_files


def _touched_days(jobs: Sequence[Any], look: Look) -> dg.SensorDefinition:
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
        under_way = busy(context.instance, look.tables)
        if running := waves_under_way(context.instance):
            return dg.SkipReason(f"{len(running)} run(s) of the wave before are under way")
        with look.turn():
            requests = look.night.rebuilds(look.today, under_way)
        rest = "every open day is up to date or being brought up to date"
        return _ask_once(context, look, REBUILD, requests, rest)

    return touched_days


def _ask_once(
    context: dg.SensorEvaluationContext,
    look: Look,
    kind: str,
    requests: Sequence[Request],
    rest: str,
) -> dg.SensorResult | dg.SkipReason:
    """The next handful of runs to ask for, without those that were launched before."""
    night = look.night.of(look.clock())
    new = not_launched(context.instance, {_run_key(request, night) for request in requests})
    # Before the handful is taken: what fails must not keep the others from their turn.
    wave = handful([request for request in requests if _run_key(request, night) in new])
    if not wave:
        return dg.SkipReason(rest)
    return dg.SensorResult([_run_request(look, request, kind, night) for request in wave])


def _lost_retries() -> dg.SensorDefinition:
    @dg.sensor(
        name="lost_retries",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Finds failed runs that Dagster was to retry and did not, as when its code "
        "server was down at that moment, and has it look at them once more.",
    )
    def lost_retries(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        before = json.loads(context.cursor or "{}")
        after = launch_lost_retries(context.instance, before, datetime.now(timezone.utc))
        context.update_cursor(json.dumps(after))
        told = [run_id[:8] for run_id, count in after.items() if count != before.get(run_id)]
        return dg.SkipReason(", ".join(told) or "no retry was lost")

    return lost_retries
