"""Incidents: what is wrong in a deployment, and the monitor that reads its state."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from itertools import groupby, islice
from threading import Lock

import dagster as dg

from backfill_assets.audit.verdicts import Severity
from backfill_assets.calendar.partitions import DAY, BusinessDay, format_ranges, split_key
from backfill_assets.dagster_ext import internals
from backfill_assets.dagster_ext.failures import DISK_FAILED_TAG
from backfill_assets.delta.commits import LOG_RETENTION
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.ledgers import Ledger, own_ledgers
from backfill_assets.delta.records import CommitRecord
from backfill_assets.delta.table_schema import schema_differences, suggest_fix
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring import states
from backfill_assets.monitoring.alerts import ALL_TABLES, Incident
from backfill_assets.monitoring.next_runs import Request, RunPlanner, not_launched, unloaded_by_log
from backfill_assets.monitoring.states import STATE_MEANINGS, DayState, MonitoringSnapshot
from backfill_assets.staleness.assess import find_obstacles
from backfill_assets.staleness.unloaded import no_data_warning
from backfill_assets.tables.sources import Role, Source, SourceTable
from backfill_assets.tables.table import Table

#: Incidents about lines and missing folders concern the last so many days only.
_NEWS_DAYS = 30
_ABSENT = (
    "no folder has landed for this arrival day, so it counts as an empty day until files land; if "
    "there is nothing to send, an empty folder says so"
)
_NEW_LINES = (
    "new lines have landed for days whose window has closed: {}the days stay as they are. To take "
    "the lines into them, materialize {} and what follows for these days"
)
_NEW_INPUT = (
    "{} changed after these days, whose window has closed, were built: the days stay as they are. "
    "To build them from it, materialize {} and what follows for these days"
)


def find_incidents(snapshot: MonitoringSnapshot) -> list[Incident]:
    """Return all incidents; the same ones as long as their causes last."""
    states_by_table = {name: snapshot.states_of(name) for name in own_ledgers(snapshot.ledgers)}
    changed = {name: states.changed_final_days(name, snapshot) for name in snapshot.frozen_tables}
    incidents: list[Incident] = []

    def add_incidents(kind: str, table: str, days: Collection[date], detail: str) -> None:
        incidents.extend(Incident(kind, table, str(day), detail) for day in sorted(days))

    for name, by_day in states_by_table.items():
        incidents += table_incidents(snapshot.ledgers[name], snapshot.graph.direct_inputs(name))
        if _schema_differences(snapshot.ledgers[name]):
            continue  # its days are unknown, and none can be published
        # If the same day of an input is missing, only that is an incident.
        upstream = [
            states_by_table.get(input_table, {})
            for input_table in snapshot.graph.direct_inputs(name) or _loaded_with(name, snapshot)
        ]
        not_built = {day for source in upstream for day in _days_in(source, DayState.CHECK_FAILED)}
        # A failed day fails in all downstream tables: only the first table needs a fix.
        failed = _days_in(by_day, DayState.CHECK_FAILED) - not_built
        incidents += _failed_checks(name, failed, snapshot)
        not_built |= {
            day
            for source in upstream
            for day in _days_in(source, DayState.MISSING, DayState.ON_HOLD)
        }
        missing = _days_in(by_day, DayState.MISSING) - not_built
        incidents += _missing_days(name, missing, snapshot)
        external = _days_in(by_day, DayState.EXTERNAL) - changed.get(name, {}).keys()
        meaning = STATE_MEANINGS[DayState.EXTERNAL]
        add_incidents("changed by another writer", name, external, meaning)
        if other_settings_days := _days_in(by_day, DayState.OTHER_SETTINGS):
            # One incident for the table: a changed setting concerns most of its days.
            meaning = STATE_MEANINGS[DayState.OTHER_SETTINGS]
            detail = f"{format_ranges(other_settings_days)}: {meaning}"
            size = {"days": len(other_settings_days)}
            incidents.append(Incident("other settings", name, "", detail, size))
        withdrawn = _days_in(by_day, DayState.INPUT_WITHDRAWN)
        meaning = STATE_MEANINGS[DayState.INPUT_WITHDRAWN]
        add_incidents("input taken back", name, withdrawn, meaning)
        for text, closed_days in final_days_behind(name, snapshot).items():
            add_incidents("new input for final days", name, closed_days, text)
    for name, days in changed.items():
        for day, how in days.items():
            detail = f"{how}; compare it with what it should be"
            incidents.append(Incident("final day changed", name, str(day), detail, {how: 1}))
    for log, source in snapshot.graph.sources.items():
        recent = {
            day for day in snapshot.absent_by_log[log] if day > snapshot.today - _NEWS_DAYS * DAY
        }
        add_incidents("input missing", log, recent, _ABSENT)
        for day, files in sorted(snapshot.unloaded[log].files_on_hold.items()):
            detail = f"{', '.join(files)}: {STATE_MEANINGS[DayState.HELD]}"
            size = {"files": len(files)}
            incidents.append(Incident("replaced file waits", log, str(day), detail, size))
        incidents += clock_incidents(snapshot, log)
        incidents += _rejected_incidents(snapshot, log)
        incidents += _late_money_incidents(snapshot, source)
    return incidents


def _missing_days(
    name: str, days: Collection[date], snapshot: MonitoringSnapshot
) -> Iterator[Incident]:
    """Yield the incidents of missing days; one that waits for others says for what."""
    holes = states.find_holes(snapshot.states_of(name))
    external = snapshot.graph.external.keys() & snapshot.graph.direct_inputs(name)
    obstacles = find_obstacles(snapshot, name, days if external else (), own=False)
    for day in sorted(days):
        detail = STATE_MEANINGS[DayState.MISSING]
        if day in obstacles:
            detail = f"{obstacles[day].text}; it is built once that is. See to its writer"
        if day in holes:
            yield Incident("hole", name, str(day), detail)
        else:
            yield Incident("stale", name, str(day), detail)


def _failed_checks(
    name: str, days: Collection[date], snapshot: MonitoringSnapshot
) -> Iterator[Incident]:
    for day in sorted(days):
        checks = sorted(snapshot.failed_checks[name][day])
        detail = f"{', '.join(checks)}: {STATE_MEANINGS[DayState.CHECK_FAILED]}"
        yield Incident("check failed", name, str(day), detail, dict.fromkeys(checks, 1))


def _loaded_with(name: str, snapshot: MonitoringSnapshot) -> list[str]:
    """Return the raw log of rejected lines: a day missing in both is one incident."""
    table = snapshot.ledgers[name].table
    rejected = isinstance(table, SourceTable) and table.role is Role.REJECTED
    return [*snapshot.graph.source_logs(name)] if rejected else []


def final_days_behind(name: str, snapshot: MonitoringSnapshot) -> dict[str, list[date]]:
    """Return the final days behind their input, by a text: what changed, and what to do."""
    days_by_text: dict[str, list[date]] = {}
    for day, reason in sorted(snapshot.stale.final.get(name, {}).items()):
        if reason.input_commits.keys() & snapshot.graph.sources.keys():
            text = _new_lines_text(name, snapshot)
        else:
            changed = sorted({*reason.input_commits, *reason.references})
            text = _NEW_INPUT.format(" and ".join(changed), name)
        days_by_text.setdefault(text, []).append(day)
    return days_by_text


def _new_lines_text(name: str, snapshot: MonitoringSnapshot) -> str:
    """Describe where new lines for closed days are, and what a person can do."""
    graph = snapshot.graph
    logs = graph.source_logs(name)
    covering_tables = [*dict.fromkeys(t for log in logs for t in graph.tables_of_all_known(log))]
    first = next(
        table for table in graph.closing_tables if table in {name, *graph.upstream_tables(name)}
    )
    have = "have" if len(covering_tables) > 1 else "has"
    return _NEW_LINES.format(
        f"{' and '.join(covering_tables)} {have} them, " if covering_tables else "", first
    )


def _schema_differences(ledger: Ledger) -> list[str]:
    """Return the differences between a table and its model."""
    return schema_differences(ledger.table, ledger.metadata) if ledger.metadata else []


def table_incidents(ledger: Ledger, input_names: Sequence[str]) -> Iterator[Incident]:
    """Yield the incidents of a table as a whole."""
    name = ledger.table.name
    if (differences := _schema_differences(ledger)) and ledger.metadata:
        advice = suggest_fix(ledger.table, ledger.metadata, input_names)
        detail = f"{'; '.join(differences)}; no day can be published. {advice}"
        yield Incident(
            "table is not that of the code", name, "", detail, dict.fromkeys(differences, 1)
        )
        return
    properties = ledger.metadata.properties if ledger.metadata else LOG_RETENTION
    retention = "; ".join(
        f"{key} is {properties.get(key, 'not set')}, where the pipeline sets {value}: Delta drops "
        "older commits, and with them the record of what was published. Run backfill-assets "
        "maintain, which sets it back"
        for key, value in LOG_RETENTION.items()
        if properties.get(key) != value
    )
    if days := ledger.days_without_record:
        detail = (
            f"of version(s) {_version_ranges(ledger.missing_versions)} neither the commit nor a "
            f"copy is there any more; {len(days)} day(s) have no record of who published them, and "
            f"from what: {format_ranges(days)}. "
            f"{STATE_MEANINGS[DayState.UNRECORDED]}"
        )
        detail = "; ".join(filter(None, [detail, retention]))
        yield Incident("log was cut", name, "", detail, {"days": len(days)})
    elif retention:
        yield Incident("log retention changed", name, "", retention)
    if writers := alternating_writers(ledger.records):
        detail = (
            f"in the last {_TURNS_DAYS} days, runs of schedules and sensors of several deployments "
            f"have written it in turns, by {writers}. Each builds days that the other has built. "
            "Declare the table in one of them; the others read it"
        )
        yield Incident("two deployments write it", name, "", detail)


#: For so many days two deployments that wrote a table in turns are an incident.
_TURNS_DAYS = 7


def alternating_writers(records: Sequence[CommitRecord]) -> str:
    """Return what tells deployments apart that have written a table in turns lately.

    That is their key prefixes, or, with the same prefix or none, the versions of their code. One
    that follows another for good is none of them: a prefix may be changed, and code, which may be
    put back once as well. What a person launches does not count, nor do commits without a run.
    """
    scheduled = [r for r in records if r.at and r.run_id and not r.by_person]
    since = max((r.at for r in scheduled if r.at), default=None)
    recent = [r for r in scheduled if r.at and since and r.at > since - timedelta(days=_TURNS_DAYS)]
    prefixes, codes = [repr(r.key_prefix) for r in recent], [r.code_version for r in recent]
    for name, writers, usual_returns in (("key prefix", prefixes, 0), ("code version", codes, 1)):
        turns = [writer for writer, _ in groupby(writers)]
        if len(turns) - len({*turns}) > usual_returns:
            return f"{name}: {', '.join(sorted({*turns}))}"
    return ""


def _version_ranges(versions: Iterable[int]) -> str:
    """Return table versions as text, with consecutive ones joined, as in `3-5, 8`."""
    ranges: list[list[int]] = []
    for version in sorted(versions):
        if ranges and version == ranges[-1][1] + 1:
            ranges[-1][1] = version
        else:
            ranges.append([version, version])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _days_in(by_day: dict[date, DayState], *matching: DayState) -> set[date]:
    return {day for day, state in by_day.items() if state in matching}


def clock_incidents(snapshot: MonitoringSnapshot, log: str) -> Iterator[Incident]:
    """Yield contradictions between the clock and the landed days: one of the two is wrong."""
    if warning := no_data_warning(
        snapshot.unloaded[log], snapshot.graph.policy_of(log), snapshot.today
    ):
        yield Incident("nothing lands", log, "", warning)
    today = snapshot.graph.policy_of(log).business_day(snapshot.today)
    if ahead := [day for day in snapshot.ledgers[log].published_days if day >= today]:
        detail = (
            f"{log} [{format_ranges(ahead)}] is published, and by this machine's clock these days "
            "are not over: the clock runs behind, or ran ahead when they were loaded. Set the "
            "clock. Nothing is loaded for these days until they are over"
        )
        yield Incident("published before it was over", log, "", detail)


def _rejected_incidents(snapshot: MonitoringSnapshot, log: str) -> list[Incident]:
    """Return published days with many rejected lines; unpublished ones are failed checks."""
    incidents = []
    for day, record in sorted(snapshot.ledgers[log].latest.items()):
        published = record.days[day]
        severity, text = published.findings.get("rejected_lines", ("", ""))
        if severity == Severity.ALERT.value and day > snapshot.today - _NEWS_DAYS * DAY:
            size = {"lines": float(published.entries.get("rejected", 0))}
            incidents.append(Incident("lines rejected", log, str(day), f"{day}: {text}", size))
    return incidents


def _late_money_incidents(snapshot: MonitoringSnapshot, source: Source) -> list[Incident]:
    """Return an incident for each recent log day with late lines, as the commits record them."""
    if (late := source.late.name) not in snapshot.ledgers:
        return []
    table_names = " and in ".join([late, *snapshot.graph.current_tables(source.raw.name)])
    where = (
        f"they are in {table_names}"
        if source.under(snapshot.policy).corrects
        else "they were DROPPED and are in no total"
    )
    incidents = []
    for day, record in sorted(snapshot.ledgers[late].latest.items()):
        count, amount = record.details.late.get(day, (0, "0"))
        if count and day > snapshot.today - _NEWS_DAYS * DAY:
            worth = f" worth {amount}" if source.amount else ""
            size = {"lines": float(count), "amount": float(amount)}
            detail = f"{day}: {count} line(s){worth} came after their day had closed; {where}"
            incidents.append(Incident("late money", late, str(day), detail, size))
    return incidents


Clock = Callable[[], datetime]
#: Well below the 60 s after which Dagster ends a tick; its thread continues.
TURN_SECONDS = 15.0


class LookError(RuntimeError):
    """Tables and landing cannot be read now, as another look hangs."""


#: How long a failed disk is an incident; a later failure is a new one.
_DISK_NEWS_PERIOD = timedelta(days=1)


class Monitor:
    """Reads tables, landing and Dagster's instance, as of now.

    A read of a dead mount hangs, and cannot be ended. So ticks take turns: those that come
    meanwhile fail, instead of blocking one thread of the code server after another.
    """

    def __init__(self, deployment: Deployment, clock: Clock) -> None:
        self.deployment = deployment
        self.clock = clock
        self.planner = RunPlanner(deployment)
        self._lock = Lock()
        self._since: datetime | None = None

    @contextmanager
    def lock_reads(self) -> Iterator[None]:
        """Keep other ticks from reading meanwhile.

        Raises:
            LookError: another look hangs.
        """
        if not self._lock.acquire(timeout=TURN_SECONDS):
            since = f"{self._since:%Y-%m-%d %H:%M:%S %Z}" if self._since else "a moment ago"
            raise LookError(
                f"a look at tables and landing that began at {since} has not come back: the "
                "storage may hang (a dead mount). Nothing was asked for; the next tick looks "
                "again. If the storage is well, restart the code server."
            )
        self._since = datetime.now(self.deployment.settings.zone)
        try:
            yield
        finally:
            self._lock.release()

    @property
    def today(self) -> date:
        """The business day of now."""
        return self.business_day(self.clock())

    def business_day(self, moment: datetime) -> BusinessDay:
        """The business day of a moment."""
        return BusinessDay.at(moment.astimezone(self.deployment.settings.zone))

    def run_key(self, request: Request, night: date) -> str:
        """Return a key that is used once: what failed is retried each night, or on new input."""
        return self.deployment.automation_name(f"{night}:{request.key}")

    def not_launched(
        self, instance: dg.DagsterInstance, night: date, requests: Sequence[Request]
    ) -> list[Request]:
        """Return the requests that were not launched before on the same night."""
        by_key = {self.run_key(request, night): request for request in requests}
        new = not_launched(instance, by_key.keys())
        return [request for key, request in by_key.items() if key in new]

    def read_snapshot(self, instance: dg.DagsterInstance) -> MonitoringSnapshot:
        """Read everything that the day states are derived from."""
        return read_snapshot(self.deployment, instance, self.clock())

    def find_incidents(self, context: dg.SensorEvaluationContext) -> list[Incident]:
        """Return all incidents, with those of the engine's disk.

        Raises:
            LookError: another look hangs.
        """
        with self.lock_reads():
            since = self.clock() - _DISK_NEWS_PERIOD
            disk = disk_failures(self.deployment, context.instance, since)
            twins = twin_locations(context)
            return [*disk, *twins, *find_incidents(self.read_snapshot(context.instance))]


#: A code location whose sensor has ticked within so many seconds is there.
_TWIN_SECONDS = 180.0


def twin_locations(context: dg.SensorEvaluationContext) -> list[Incident]:
    """Return one incident if other code locations of the instance have the same key prefix."""
    locations = internals.other_locations(context, _TWIN_SECONDS)
    detail = (
        f"the code location(s) {', '.join(locations)} have the sensor {context.sensor_name} as "
        "well: what one launches, retries and alerts for is the other's too, and assets of one "
        "name are one asset. Give each deployment on this instance a key_prefix of its own, and "
        "declare each table in one of them"
    )
    return [Incident("two deployments with one prefix", ALL_TABLES, "", detail)] * bool(locations)


def disk_failures(
    deployment: Deployment, instance: dg.DagsterInstance, since: datetime
) -> list[Incident]:
    """Return one incident if runs failed because of the engine's disk."""
    failed = dg.RunsFilter(tags={DISK_FAILED_TAG: "true"}, updated_after=since)
    runs = filter(deployment.owns_run, instance.get_runs(failed))
    return [
        Incident(
            "the engine's disk failed",
            ALL_TABLES,
            "",
            f"it is full, or somebody cleared it: run {run.run_id[:8]}, for one. No file is at "
            "fault, and the days are as they were. Such runs are retried, twice at most. Make room "
            "where Spark keeps its scratch files (spark.local.dir; under DAGSTER_HOME unless set)",
        )
        for run in islice(runs, 1)
    ]


def read_snapshot(
    deployment: Deployment, instance: dg.DagsterInstance, now: datetime
) -> MonitoringSnapshot:
    """Read everything that the day states are derived from.

    Raises:
        LandingError: the landing is not where the settings say.
    """
    now = now.astimezone(deployment.settings.zone)
    ledgers, today = read_ledgers(deployment), BusinessDay.at(now)
    return MonitoringSnapshot(
        deployment.graph,
        ledgers,
        today,
        config_digests=deployment.config_digests,
        unloaded=unloaded_by_log(deployment, ledgers, deployment.graph, today),
        failed_checks={
            name: failed
            for parts in deployment.graph.assets.values()
            for name, failed in _read_failed_checks(deployment, parts, instance).items()
        },
        before_deadline=now.strftime("%H:%M") < deployment.settings.deadline,
    )


def _read_failed_checks(
    deployment: Deployment, parts: Sequence[Table], instance: dg.DagsterInstance
) -> dict[str, dict[date, set[str]]]:
    """Return the days that their last run did not publish because of checks, with the checks.

    By the tables of one asset: its status is read once.
    """
    table, names = parts[0], {part.part: part.name for part in parts}
    failed_checks: dict[str, dict[date, set[str]]] = {part.name: {} for part in parts}
    key = deployment.asset_key(table.name)
    partitions = table.partitions_def(deployment.settings)
    # `instance.get_status_by_partition` uses the same, but queries each day of the calendar.
    status = internals.get_and_update_asset_status_cache_value(instance, key, partitions)
    if status is None:
        return failed_checks
    failed = {*status.deserialize_failed_partition_subsets(partitions).get_partition_keys()} - {
        *status.deserialize_in_progress_partition_subsets(partitions).get_partition_keys()
    }
    failed = {partition for partition in failed if split_key(partition)[1] in names}
    if not failed:
        return failed_checks
    checks = [dg.AssetCheckKey(key, check) for check in table.check_descriptions]
    for info in instance.event_log_storage.get_asset_check_partition_info(
        checks, partition_keys=sorted(failed)
    ):
        is_failed = info.latest_execution_status is internals.AssetCheckExecutionRecordStatus.FAILED
        if info.partition_key and is_failed:
            day, part = split_key(info.partition_key)
            failed_checks[names[part]].setdefault(day, set()).add(info.check_key.name)
    return failed_checks
