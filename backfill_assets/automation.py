"""Jobs, the nightly schedule, the sensors, and the checks on the states of the days.

What is to run is decided in `night`, what is wrong in `states` and `incidents`; here they
meet Dagster. Every run that is asked for goes through the same assets as one that a person starts.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from typing import Any

import dagster as dg
from dagster import AssetKey
from dagster._core.definitions.asset_checks.asset_check_spec import AssetCheckKey
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.partition_status_cache import AssetPartitionStatus

from backfill_assets import alerts
from backfill_assets.accounts import mixed_backfills
from backfill_assets.backlog import backlog
from backfill_assets.catalog import config_digests, tables_of
from backfill_assets.checks import failure_text
from backfill_assets.graph import graph_of
from backfill_assets.incidents import incidents
from backfill_assets.lateness import Policy
from backfill_assets.materializations import latest_materializations
from backfill_assets.night import (
    LOAD,
    REBUILD,
    WAVE_TAG,
    Night,
    assets_of,
    busy,
    landed,
    not_launched,
    waves_under_way,
)
from backfill_assets.outbox import Incident
from backfill_assets.partitions import DAY, Window, daily_partitions, windows
from backfill_assets.reading import read_ledgers
from backfill_assets.retries import launch_lost_retries
from backfill_assets.run_requests import Request, handful
from backfill_assets.settings import Settings
from backfill_assets.states import (
    Situation,
    State,
    changed_final_days,
    day_states,
    in_words,
    summary,
)
from backfill_assets.tables import Table

Clock = Callable[[], datetime]

_DAYS, _FINAL_DAYS, _ONE_CODE = "days", "final_days", "one_code"


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
    look = _Look(settings, clock or (lambda: datetime.now(settings.zone)))
    job = dg.define_asset_job(
        "daily_orders",
        selection=dg.AssetSelection.assets(
            *look.tables, *(page for table in look.tables.values() for page in table.pages)
        ),
        description="Any of the assets for a range of days; what the schedule and the sensors run.",
    )
    return Automation(
        [job],
        [_nightly(job, look)],
        [
            _landed_files(job, look),
            _touched_days(job, look),
            _watch_days(look),
            _lost_retries(),
            alerts.build(settings, look.incidents),
        ],
        [_day_checks(look)],
    )


def freshness(settings: Settings) -> dg.FreshnessPolicy | None:
    """Dagster's own freshness: something was materialized since tonight's run was due to start.

    It looks at the last materialization, whichever day that was of: the check `days` looks at every
    day. None for a calendar with an end, after which nothing is ever fresh.
    """
    if settings.end is not None:
        return None
    deadline, nightly = (
        datetime.strptime(text, "%H:%M").replace(tzinfo=settings.zone)
        for text in (settings.deadline, settings.nightly_at)
    )
    return dg.FreshnessPolicy.cron(
        deadline_cron=f"{deadline.minute} {deadline.hour} * * *",
        lower_bound_delta=deadline - nightly,
        timezone=settings.timezone,
    )


class _Look:
    """Looks at tables, landing and Dagster's instance, as of now."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.tables = tables_of(settings)
        self.clock = clock
        self.night = Night(settings)

    @property
    def today(self) -> date:
        """The business day."""
        return self.clock().astimezone(self.settings.zone).date()

    def situation(self, instance: dg.DagsterInstance) -> Situation:
        """All that the states of the days follow from."""
        return situation(self.settings, instance, self.clock())

    def incidents(self, context: dg.SensorEvaluationContext) -> list[Incident]:
        """What a person must be told."""
        return incidents(self.situation(context.instance))


def situation(settings: Settings, instance: dg.DagsterInstance, now: datetime) -> Situation:
    """All that the states of the days follow from.

    Args:
        settings: the deployment's settings.
        instance: knows the runs whose checks failed.
        now: the moment.

    Raises:
        LandingError: the landing is not where the settings say.
    """
    policy, now = Policy.of(settings), now.astimezone(settings.zone)
    ledgers = read_ledgers(settings)
    return Situation(
        ledgers=ledgers,
        backlog=backlog(ledgers, policy, now.date()),
        arrivals=landed(settings, ledgers, graph_of(ledgers, policy), now.date()),
        failed={name: _failed(settings, of.table, instance) for name, of in ledgers.items()},
        policy=policy,
        config_digests=config_digests(settings),
        today=now.date(),
        in_time=now.strftime("%H:%M") < settings.deadline,
    )


def _failed(settings: Settings, table: Table, instance: dg.DagsterInstance) -> set[date]:
    """The days that the last run over them did not publish because of a check."""
    key, partitions = AssetKey(table.name), daily_partitions(settings)
    keys = partitions.get_partition_keys()
    statuses = instance.get_status_by_partition(key, keys, partitions) or {}
    failed = [day for day, status in statuses.items() if status is AssetPartitionStatus.FAILED]
    if not failed:
        return set()
    checks = [AssetCheckKey(key, check) for check in table.checks]
    return {
        date.fromisoformat(info.partition_key)
        for info in instance.event_log_storage.get_asset_check_partition_info(
            checks, partition_keys=failed
        )
        if info.partition_key
        and info.latest_execution_status is AssetCheckExecutionRecordStatus.FAILED
    }


def _run_request(look: _Look, request: Request, kind: str, night: date) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=_run_key(request, night),
        asset_selection=[AssetKey(name) for name in assets_of(request, look.tables)],
        tags={
            "dagster/asset_partition_range_start": str(request.window.start),
            "dagster/asset_partition_range_end": str(request.window.end - DAY),
            # Ahead of backfills in the queue, which have none.
            "dagster/priority": "1",
            WAVE_TAG: kind,
        },
    )


def _run_key(request: Request, night: date) -> str:
    """A key is used once: what failed is tried once more each night, or when its input moves."""
    return f"{night}:{request.key}"


def _nightly(job: Any, look: _Look) -> dg.ScheduleDefinition:
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
        kind, requests = look.night.wave(today, busy(context.instance, look.tables), list)
        if kind == REBUILD and waves_under_way(context.instance):
            yield dg.SkipReason("the wave before is under way; the sensor touched_days goes on")
            return
        yield from (_run_request(look, request, kind, today) for request in requests)
        if not requests:
            yield dg.SkipReason(f"as of {today} all that has landed is loaded, and all is built")

    return nightly


def _landed_files(job: Any, look: _Look) -> dg.SensorDefinition:
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
        requests = look.night.loads(look.today)
        rest = "nothing has landed that is not loaded or being loaded"
        return _ask_once(context, look, LOAD, requests, rest)

    return landed_files


def _touched_days(job: Any, look: _Look) -> dg.SensorDefinition:
    @dg.sensor(
        name="touched_days",
        job=job,
        minimum_interval_seconds=30,
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
        requests = look.night.rebuilds(look.today, under_way)
        rest = "every open day is up to date or being brought up to date"
        return _ask_once(context, look, REBUILD, requests, rest)

    return touched_days


def _ask_once(
    context: dg.SensorEvaluationContext,
    look: _Look,
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


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def _specs(tables: Mapping[str, Table]) -> list[dg.AssetCheckSpec]:
    frozen = [name for name, table in tables.items() if table.frozen]
    return [
        *(
            dg.AssetCheckSpec(
                _DAYS,
                asset=name,
                description="Every day that is due is published, from the input as it is now.",
            )
            for name in tables
        ),
        *(
            dg.AssetCheckSpec(
                _FINAL_DAYS,
                asset=name,
                description="No final day has changed but by a run that a person launched.",
            )
            for name in frozen
        ),
        *(
            dg.AssetCheckSpec(
                _ONE_CODE,
                asset=name,
                description="All days that one backfill made, in all tables, were made by one code "
                "and one configuration.",
            )
            for name in frozen
        ),
    ]


def _evaluations(now: Situation) -> Iterator[dg.AssetCheckEvaluation]:
    for name in now.ledgers:
        states = day_states(name, now)
        newest = max(now.ledgers[name].published, default=None)
        yield dg.AssetCheckEvaluation(
            asset_key=AssetKey(name),
            check_name=_DAYS,
            passed=all(state.good for state in states.values()),
            description=in_words(states) or "every day is in order",
            metadata={
                **summary(states),
                "newest day": str(newest),
                "as of": str(now.today),
                "days": dg.MetadataValue.md(_table(states)),
            },
        )
    mixed = mixed_backfills(now.ledgers)
    for name in now.frozen:
        changed = changed_final_days(name, now)
        yield dg.AssetCheckEvaluation(
            asset_key=AssetKey(name),
            check_name=_FINAL_DAYS,
            passed=not changed,
            description="\n".join(f"{day} {how}" for day, how in changed.items())
            or "no final day has changed",
            metadata={"final days": len(now.final[name]), "changed": len(changed)},
        )
        yield dg.AssetCheckEvaluation(
            asset_key=AssetKey(name),
            check_name=_ONE_CODE,
            passed=not mixed,
            description="\n".join(mixed) or "every backfill was made by one code and configuration",
        )


def _table(states: Mapping[date, State]) -> str:
    """The states as a Markdown table, a row for each gapless range of days in one state."""
    spans: list[tuple[Window, str]] = []
    for state in set(states.values()):
        days = [day for day, found in states.items() if found is state]
        spans += [(window, state.value) for window in windows(days)]
    rows = [f"| {window} | {state} |" for window, state in sorted(spans, key=lambda s: s[0].start)]
    return "\n".join(["| days | state |", "|---|---|", *rows[-200:]])


def _day_checks(look: _Look) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(
        name="check_days",
        specs=_specs(look.tables),
        can_subset=True,
        required_resource_keys={"io_manager"},
        description="Looks at the states of all days, and fails the run if one of its days was "
        "not published. It comes last, so that no bad day keeps a good one from being built.",
    )
    def check_days(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        wanted = context.op_execution_context.selected_asset_check_keys
        for found in _evaluations(look.situation(context.instance)):
            if found.asset_check_key in wanted:
                yield dg.AssetCheckResult(
                    asset_key=found.asset_key,
                    check_name=found.check_name,
                    passed=found.passed,
                    description=found.description,
                    metadata=found.metadata,
                )
        asked = {key.asset_key.to_user_string() for key in wanted}
        names = [name for name in look.tables if name in asked]
        if failed := _not_published(context, names):
            raise dg.Failure(failure_text(failed), allow_retries=False)

    return check_days


def _not_published(
    context: dg.AssetCheckExecutionContext, names: Sequence[str]
) -> dict[str, dict[date, str]]:
    """The days that a run left failed, with the reasons, by table.

    A run that repeats another one from its failed step on computes only some tables, or none: what
    the runs before it left failed in the others must not look as if it were published.
    """
    run: dg.DagsterRun | None = context.run
    found = context.resources.io_manager.failed(context.run.run_id)
    while run and run.parent_run_id and any(name not in found for name in names):
        left = {name for name in names if name not in found}
        found |= _left_failed(context.instance, run.parent_run_id, left)
        run = context.instance.get_run_by_id(run.parent_run_id)
    return {name: days for name, days in found.items() if days}


def _left_failed(
    instance: dg.DagsterInstance, run_id: str, names: Collection[str]
) -> dict[str, dict[date, str]]:
    """The days that a run of the past left failed, in those tables that it told of at all."""
    failed: dict[str, dict[date, float]] = {}
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
        said = entry.get_dagster_event().asset_check_evaluation_data
        name = said.asset_key.to_user_string()
        if said.partition and name in names:
            days = failed.setdefault(name, {})
            if not said.passed and said.blocking:
                days[date.fromisoformat(said.partition)] = entry.timestamp
    why = f"failed in run {run_id}, which this one repeats; materialize the day itself"
    found = {}
    for name, days in failed.items():
        since = latest_materializations(instance, name, days)
        found[name] = {
            day: why for day, at in days.items() if day not in since or since[day].timestamp < at
        }
    return found


def _watch_days(look: _Look) -> dg.SensorDefinition:
    @dg.sensor(
        name="watch_days",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Evaluates the checks on the states of the days whenever a state has changed.",
    )
    def watch_days(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        before = json.loads(context.cursor or "{}")
        after, events = {}, []
        for found in _evaluations(look.situation(context.instance)):
            name = found.asset_check_key.to_user_string()
            after[name] = _digest([str(found.description), repr(found.metadata)])
            if before.get(name) != after[name]:
                events.append(found)
        if not events:
            return dg.SkipReason("no state has changed")
        return dg.SensorResult(asset_events=events, cursor=json.dumps(after))

    return watch_days
