"""Day states: for every day of every table, whether it can be trusted and what is missing.

Pure functions over ledgers, the landing's contents and dates. Dagster's own freshness looks at an
asset's last materialization, whichever day that was of; day states look at each day.
"""

import enum
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from functools import cached_property

from backfill_assets.audit.verdicts import rows_differ
from backfill_assets.calendar.partitions import DAY, BusinessDay, Window, format_ranges
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.stale import StaleDays, built_from_revoked, find_stale_days
from backfill_assets.staleness.unloaded import UnloadedDays


class DayState(enum.Enum):
    """The state of a day of a table; the first that applies."""

    CHECK_FAILED = "check failed"
    MISSING = "missing"
    UNRECORDED = "unrecorded"
    EXTERNAL = "changed by another writer"
    OTHER_SETTINGS = "made under other settings"
    INPUT_WITHDRAWN = "input taken back"
    ON_HOLD = "on hold"
    INPUT_NEWER = "input newer than output"
    HELD = "replaced file waits"
    INPUT_MISSING = "input missing"
    RETIRED = "retired"
    NOT_EXPECTED = "not expected"
    OPEN = "open"
    FINAL = "final"
    FRESH = "fresh"

    @property
    def is_good(self) -> bool:
        """Whether nobody has to act."""
        return self in _GOOD_STATES


_GOOD_STATES = frozenset(
    {
        *(DayState.RETIRED, DayState.NOT_EXPECTED, DayState.OPEN, DayState.FINAL),
        DayState.FRESH,
    }
)

#: What each state means for a reader of the table, and what to do.
STATE_MEANINGS: Mapping[DayState, str] = {
    DayState.CHECK_FAILED: "the last run did not publish it, as a check failed; readers see what "
    "was there before. Mend the input that the check names, then materialize these days",
    DayState.MISSING: "never published although it is due; readers see no rows. Materialize these "
    "days, inputs included",
    DayState.UNRECORDED: "the commit that published it is no longer in the table's log; readers "
    "see the rows, but nothing says any more who made them, and from what. Put the commits back "
    "from a backup, or materialize these days: they are computed again",
    DayState.EXTERNAL: "rows came or went behind the pipeline's back since it was published; no "
    "audit has seen them, but readers do. Find the writer, then materialize these days: they are "
    "computed again",
    DayState.OTHER_SETTINGS: "published under other settings (or engine versions) than those of "
    "now; readers see the rows of then, and nothing is built upon them. Materialize these days, "
    "inputs first, or put the settings back",
    DayState.INPUT_WITHDRAWN: "made of input that an undo, or its writer, has taken back since; "
    "readers see rows that count as undone. Ask for that undo again: it goes on with what was made "
    "of it. Or load the input again, then materialize these days",
    DayState.ON_HOLD: "by an undo or a canary, a person decided against the rows that the present "
    "input gives; readers see the rows that the undo or the canary put there. No schedule and no "
    "sensor builds these days until the input is another. Materialize them to have the other rows",
    DayState.INPUT_NEWER: "published from older input than there is; the next scheduled run "
    "rebuilds them, once no input day of theirs is made under other settings",
    DayState.HELD: "a landing file was replaced by one that lacks lines which were loaded from it; "
    "the rows stay as they were. Put the old file back, or accept the new one by name: see the "
    "page on landing retention",
    DayState.INPUT_MISSING: "an arrival day in its window has not landed, or is not loaded as it "
    "is now; it may still lack lines. See that the source delivers",
    DayState.RETIRED: "the table is retired: readers see the rows of then, and nobody feeds it",
    DayState.NOT_EXPECTED: "no folder is expected on this arrival day, and none has come: it is an "
    "empty day",
    DayState.OPEN: "up to date, may still change until its window closes",
    DayState.FINAL: "its window has closed; only a person may rebuild it",
    DayState.FRESH: "up to date",
}


@dataclass(frozen=True, kw_only=True)
class MonitoringSnapshot(Snapshot):
    """Everything that the day states are derived from.

    Attributes:
        unloaded: by raw log, the landing compared with it.
        failed_checks: by table, the days whose last run failed in checks, with the checks.
        before_deadline: whether today's deadline is still to come, so that the last due day may be
            missing.
        nightly_hour: the hour in which the nightly schedule ticks.
        later_days: days that nobody misses yet, as later runs of the same command build them.
    """

    unloaded: Mapping[str, UnloadedDays]
    failed_checks: Mapping[str, Mapping[date, Collection[str]]]
    before_deadline: bool = False
    nightly_hour: int = 0
    later_days: Collection[date] = ()

    @cached_property
    def stale(self) -> StaleDays:
        """The days behind their inputs."""
        return find_stale_days(self)

    def states_of(self, table: str) -> dict[date, DayState]:
        """Return the states of a table's days; computed once."""
        if table not in self._states:
            self._states[table] = day_states(table, self)
        return self._states[table]

    @cached_property
    def _states(self) -> dict[str, dict[date, DayState]]:
        return {}

    @cached_property
    def closed_by_log(self) -> Mapping[str, set[date]]:
        """By raw log, the days final in all its frozen tables; if none, in all that close."""
        closed_days = {}
        for log in self.graph.sources:
            graph = self.graph.without_retired(self.today)
            closing = [name for name in graph.closing_tables if log in graph.source_logs(name)]
            final = [
                set(self.final_by_table[name]) for name in closing if name in self.frozen_tables
            ]
            final = final or [set(self.final_by_table[name]) for name in closing]
            closed_days[log] = set.intersection(*final) if final else set()
        return closed_days

    @property
    def frozen_tables(self) -> list[str]:
        """The tables whose final days no schedule may change."""
        return [name for name, ledger in self.ledgers.items() if ledger.table.frozen]

    @cached_property
    def revoked_input_days(self) -> Mapping[str, Collection[date]]:
        """By table, the days that were built from input which was reverted since."""
        return built_from_revoked(self)

    @cached_property
    def unloaded_by_log(self) -> Mapping[str, set[date]]:
        """By raw log, landed log days that should be loaded by now."""
        return {
            log: self._overdue_days(log, unloaded.days_to_load)
            for log, unloaded in self.unloaded.items()
        }

    @cached_property
    def absent_by_log(self) -> Mapping[str, set[date]]:
        """By raw log, log days that should have landed by now."""
        return {
            log: self._overdue_days(log, unloaded.missing_days)
            for log, unloaded in self.unloaded.items()
        }

    def due_days(self, table: str) -> Window:
        """Return the days that should be published by now.

        Without days so far after the newest landed one that no scheduled run requests them. Empty
        for a retired table.
        """
        if self.ledgers[table].table.is_retired(self.today):
            return Window(self.today, self.today)
        logs = self.graph.source_logs(table)
        last = min((self.unloaded[log].last_day_requested for log in logs), default=date.max)
        return self.graph.expected_days(table, self._last_run(table), last)

    def _is_due_by_hour(self, table: str) -> bool:
        """Return whether it is a part of `HOURS` that waits for no whole day of an input."""
        logs = self.graph.source_logs(table)
        by_hour = self.ledgers[table].table.by_hour and not self.graph.external_inputs(table)
        return by_hour and all(self.graph.sources[log].hour is not None for log in logs)

    def _last_run(self, table: str) -> BusinessDay:
        """Return when the last scheduled run began that should be done with a table by now.

        That of a nightly run has until the deadline, that of an hour has an hour.
        """
        if self._is_due_by_hour(table):
            return BusinessDay.an_hour_before(self.today)
        night = self.today - self.before_deadline * DAY
        return BusinessDay.at(datetime.combine(night, time(self.nightly_hour)))

    def _overdue_days(self, log: str, log_days: Collection[date]) -> set[date]:
        policy, last_run = self.graph.policy_of(log), self._last_run(log)
        over_since = Window(
            policy.loadable_days(last_run).end, policy.loadable_days(self.today).end
        )
        coming = {*over_since}
        if self.before_deadline and not self._is_due_by_hour(log):
            # Tonight's run loads it as an empty one if nothing has landed.
            coming.add(policy.business_day(last_run) + DAY - policy.lag_days * DAY)
        return set(log_days) - coming


def day_states(table: str, snapshot: MonitoringSnapshot) -> dict[date, DayState]:
    """Return the state of every day that is due or published."""
    graph, ledger = snapshot.graph, snapshot.ledgers[table]
    other_settings_days = snapshot.other_settings_days(table)
    logs = graph.source_logs(table) if table in graph.landed_tables else ()
    unloaded_by_log = [snapshot.unloaded[log] for log in logs]
    on_hold = {*snapshot.stale.on_hold.get(table, ())}
    on_hold.update(*(unloaded.reverted_days for unloaded in unloaded_by_log))
    days_of = ledger.table.grain.days_of
    retired = ledger.table.is_retired(snapshot.today)
    failed = () if retired else snapshot.failed_checks.get(table, ())
    stale_days = {*snapshot.stale.open.get(table, ()), *snapshot.stale.blocked.get(table, ())}
    for unloaded in unloaded_by_log:
        stale_days |= unloaded.days_to_load.keys() - unloaded.days_without_news

    def state_of(day: date) -> DayState:
        """Return the first state that applies; the order of the conditions ranks the states."""
        if day in failed:
            return DayState.CHECK_FAILED
        if day not in ledger.published_days:
            if day in on_hold:
                return DayState.ON_HOLD
            waits = snapshot.awaited_folders(table, day)
            return DayState.INPUT_MISSING if waits else DayState.MISSING
        if day in ledger.days_without_record:
            return DayState.UNRECORDED
        if ledger.current_record(day) is None:
            return DayState.EXTERNAL
        if retired:
            return DayState.RETIRED
        if day in other_settings_days:
            return DayState.OTHER_SETTINGS
        if day in snapshot.revoked_input_days[table]:
            return DayState.INPUT_WITHDRAWN
        if day in on_hold:
            return DayState.ON_HOLD
        if day in stale_days:
            return DayState.INPUT_NEWER
        if any(day in unloaded.files_on_hold for unloaded in unloaded_by_log):
            return DayState.HELD
        if any(day in unloaded.days_without_news for unloaded in unloaded_by_log):
            return DayState.INPUT_MISSING
        if any(_lacks_input(table, event_day, snapshot) for event_day in days_of(day)):
            return DayState.INPUT_MISSING
        if table in graph.closing_tables:
            return DayState.FINAL if day in snapshot.final_by_table[table] else DayState.OPEN
        if any(day in unloaded.closed_days for unloaded in unloaded_by_log):
            return DayState.NOT_EXPECTED
        closed = all(
            d in snapshot.closed_by_log[log]
            for log in graph.source_logs(table)
            for d in days_of(day)
        )
        if table in graph.by_event_day and not closed:
            return DayState.OPEN
        return DayState.FRESH

    days = {*snapshot.due_days(table)}.difference(snapshot.later_days)
    days |= {*ledger.published_days, *failed, *on_hold}
    start = graph.policy_of(table).start
    return {day: state_of(day) for day in sorted(days) if day >= start}


def _lacks_input(table: str, day: date, snapshot: MonitoringSnapshot) -> bool:
    return any(_lacks_log(log, table, day, snapshot) for log in snapshot.graph.source_logs(table))


def _lacks_log(log: str, table: str, day: date, snapshot: MonitoringSnapshot) -> bool:
    """Return whether log days of a source that decide a day have not landed or are not loaded."""
    unloaded_days = snapshot.unloaded_by_log[log]
    # A closed day waits for no folder; only landed files that are not loaded concern it.
    closed = day in snapshot.closed_by_log[log]
    absent_days = set[date]() if closed else snapshot.absent_by_log[log]
    if table not in snapshot.graph.by_event_day:
        return day in absent_days
    log_days = snapshot.graph.policy_of(log).log_days(day)
    return any(d in absent_days or d in unloaded_days for d in log_days)


def days_by_state(states: Mapping[date, DayState]) -> dict[DayState, list[date]]:
    """Return the days of each state that has some, in the order of `DayState`."""
    days = {state: [day for day in states if states[day] is state] for state in DayState}
    return {state: state_days for state, state_days in days.items() if state_days}


def count_states(states: Mapping[date, DayState]) -> dict[str, int]:
    """Return the number of days in each state."""
    counts = Counter(states.values())
    return {state.value: counts[state] for state in DayState}


def describe_states(states: Mapping[date, DayState]) -> str:
    """Return the days of each state that needs action, with its meaning; empty if none."""
    return "\n".join(
        f"{state.value}: {format_ranges(days)} ({STATE_MEANINGS[state]})"
        for state, days in days_by_state(states).items()
        if not state.is_good
    )


def find_holes(states: Mapping[date, DayState]) -> set[date]:
    """Return the missing days before a published one."""
    published_days = (day for day, state in states.items() if state is not DayState.MISSING)
    last = max(published_days, default=date.min)
    return {day for day, state in states.items() if state is DayState.MISSING and day < last}


def changed_final_days(table: str, snapshot: MonitoringSnapshot) -> dict[date, str]:
    """Return final days that differ from what was last published deliberately, and how.

    A person may rebuild a final day; a schedule, a sensor or another writer may not change one.
    """
    ledger = snapshot.ledgers[table]
    changes: dict[date, str] = {}
    frozen_digests: dict[date, str] = {}
    for record in ledger.records:
        for day, published in record.days.items():
            if record.by_person:
                frozen_digests.pop(day, None)
            if rows_differ(frozen_digests.get(day, published.digest), published.digest):
                changes[day] = f"changed by {record.launched_by} in run {record.run_id}"
                continue
            changes.pop(day, None)
            if day in record.final or snapshot.is_final(table, record.for_day(day), day):
                frozen_digests[day] = published.digest
    for other in ledger.external_commits:
        for day in other.days & frozen_digests.keys():
            if ledger.latest[day].valid_as_of(day) < other.version:
                how = f"{other.operation}, version {other.version}"
                changes[day] = f"changed by another writer ({how})"
    return dict(sorted(changes.items()))
