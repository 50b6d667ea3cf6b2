"""The state of every day of every table, as of a day: what may be trusted, what is missing.

Pure functions over ledgers, the landing's contents and dates. Dagster's own freshness looks at an
asset's last materialization, whichever day that was of; this looks at each day.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property

from backfill_assets.calendar.partitions import DAY, Window, windows
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.ledgers import Ledgers
from backfill_assets.staleness.arrivals import Arrivals
from backfill_assets.staleness.backlog import Backlog
from backfill_assets.staleness.finality import closing, final_days
from backfill_assets.staleness.withdrawn import built_of_withdrawn
from backfill_assets.tables.graph import Graph, graph_of


class State(enum.Enum):
    """What is to be said of a day of a table; the first that applies."""

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
    OPEN = "open"
    FINAL = "final"
    FRESH = "fresh"

    @property
    def good(self) -> bool:
        """Whether nobody has to do anything."""
        return self in (State.RETIRED, State.OPEN, State.FINAL, State.FRESH)


#: What each state means for a reader, and what to do about it.
MEANING: Mapping[State, str] = {
    State.CHECK_FAILED: "the last run did not publish it, as a check failed; readers see what was "
    "there before. Mend the input that the check names, then materialize these days",
    State.MISSING: "never published although it is due; readers see no rows. Materialize these "
    "days, inputs included",
    State.UNRECORDED: "the commit that published it is no longer in the table's log; readers see "
    "the rows, but nothing says any more who made them, and from what. Put the commits back from a "
    "backup, or materialize these days: they are computed again",
    State.EXTERNAL: "rows came or went behind the pipeline's back since it was published; no audit "
    "has seen them, but readers do. Find the writer, then materialize these days: they are "
    "computed again",
    State.OTHER_SETTINGS: "published under other settings (or engine versions) than those of now; "
    "readers see the rows of then, and nothing is built upon them. Materialize these days, inputs "
    "first, or put the settings back",
    State.INPUT_WITHDRAWN: "made of input that an undo has taken back since; readers see rows that "
    "count as undone. Ask for that undo again: it goes on with what was made of it. Or load the "
    "input again, then materialize these days",
    State.ON_HOLD: "by an undo or a canary, a person decided against the rows that the present "
    "input gives; readers see the rows that the undo or the canary put there. No schedule and no "
    "sensor builds these days until the input is another. Materialize them to have the other rows",
    State.INPUT_NEWER: "published from older input than there is; the next scheduled run rebuilds "
    "them",
    State.HELD: "a landing file was replaced by one that lacks lines which were loaded from it; "
    "the rows stay as they were. Put the old file back, or accept the new one by name: see the "
    "page on landing retention",
    State.INPUT_MISSING: "an arrival day in its window has not landed, or is not loaded as it is "
    "now; it may still lack lines. See that the source delivers",
    State.RETIRED: "the table is retired: readers see the rows of then, and nobody feeds it",
    State.OPEN: "up to date, may still change until its window closes",
    State.FINAL: "its window has closed; only a person may rebuild it",
    State.FRESH: "up to date",
}


@dataclass(frozen=True)
class Situation:
    """All that the states follow from.

    Attributes:
        ledgers: by table.
        backlog: the days behind their inputs.
        arrivals: by raw log, the landing against it.
        failed: by table, days whose last run failed in checks of theirs, and which.
        policy: the late-data policy.
        config_digests: by table, of the settings that decide its rows now.
        today: the business day.
        in_time: whether today's deadline is still to come, so that the last due day may be missing.
    """

    ledgers: Ledgers
    backlog: Backlog
    arrivals: Mapping[str, Arrivals]
    failed: Mapping[str, Mapping[date, Collection[str]]]
    policy: Policy
    config_digests: Mapping[str, str]
    today: date
    in_time: bool = False

    @cached_property
    def graph(self) -> Graph:
        """What each table is made of."""
        return graph_of(self.ledgers, self.policy)

    @cached_property
    def closed(self) -> Mapping[str, set[date]]:
        """By raw log, the days that are final in its frozen tables, or in all that close."""
        found = {}
        for log in self.graph.sources:
            graph = self.graph.fed(self.today)
            closing = [name for name in graph.closing if log in graph.logs(name)]
            final = [set(self.final[name]) for name in closing if name in self.frozen]
            final = final or [set(self.final[name]) for name in closing]
            found[log] = set.intersection(*final) if final else set()
        return found

    @property
    def frozen(self) -> list[str]:
        """The tables of which no schedule may change a final day."""
        return [name for name, ledger in self.ledgers.items() if ledger.table.frozen]

    @cached_property
    def final(self) -> Mapping[str, Collection[date]]:
        """The final days, by table."""
        return final_days(self.ledgers, self.policy)

    @cached_property
    def withdrawn(self) -> Mapping[str, Collection[date]]:
        """The days that were made of input which has been taken back since, by table."""
        return built_of_withdrawn(self.ledgers, self.policy)

    @cached_property
    def unloaded(self) -> Mapping[str, set[date]]:
        """By raw log, log days that have landed and should have been loaded by now."""
        return {log: self._late(found.load) for log, found in self.arrivals.items()}

    @cached_property
    def absent(self) -> Mapping[str, set[date]]:
        """By raw log, log days that should have landed by now."""
        return {log: self._late(found.absent) for log, found in self.arrivals.items()}

    def due(self, table: str) -> Window:
        """The days that should be published by now.

        Not those so far beyond what has landed that no scheduled run asks for them. Of a retired
        table, none.
        """
        if self.ledgers[table].table.is_retired(self.today):
            return Window(self.today, self.today)
        last = min(self.arrivals[log].last for log in self.graph.logs(table))
        today = self.today - DAY if self.in_time else self.today
        return self.graph.policy_of(table).due(today, last)

    def _late(self, log_days: Collection[date]) -> set[date]:
        # Tonight's run loads yesterday, and the last due day as an empty one if nothing has come.
        coming = {self.today - DAY, self.today - self.policy.lag_days * DAY}
        return set(log_days) - (coming if self.in_time else set())


def day_states(table: str, now: Situation) -> dict[date, State]:
    """The state of every day that is due or published."""
    graph, ledger = now.graph, now.ledgers[table]
    unlike = ledger.under_other_settings(now.config_digests[table])
    behind, failed = set(now.backlog.open.get(table, ())), now.failed.get(table, ())
    on_hold = now.backlog.on_hold.get(table, ())
    arrived = [now.arrivals[log] for log in graph.logs(table)] if table in graph.landed else []
    days_of = ledger.table.cadence.days_of
    retired = ledger.table.is_retired(now.today)
    failed = () if retired else failed
    behind.update(*(found.load.keys() & ledger.published for found in arrived))

    def state(day: date) -> State:
        if day in failed:
            return State.CHECK_FAILED
        if day not in ledger.published:
            return State.ON_HOLD if day in on_hold else State.MISSING
        if day in ledger.unrecorded:
            return State.UNRECORDED
        if ledger.current_record(day) is None:
            return State.EXTERNAL
        if retired:
            return State.RETIRED
        if day in unlike:
            return State.OTHER_SETTINGS
        if day in now.withdrawn[table]:
            return State.INPUT_WITHDRAWN
        if day in on_hold:
            return State.ON_HOLD
        if day in behind:
            return State.INPUT_NEWER
        if any(day in found.held for found in arrived):
            return State.HELD
        if any(_lacks_input(table, of, now) for of in days_of(day)):
            return State.INPUT_MISSING
        if table in graph.closing:
            return State.FINAL if day in now.final[table] else State.OPEN
        closed = all(d in now.closed[log] for log in graph.logs(table) for d in days_of(day))
        if table in graph.by_event_day and not closed:
            return State.OPEN
        return State.FRESH

    days = {*now.due(table), *ledger.published, *failed, *on_hold}
    return {day: state(day) for day in sorted(days)}


def _lacks_input(table: str, day: date, now: Situation) -> bool:
    return any(_lacks_log(log, table, day, now) for log in now.graph.logs(table))


def _lacks_log(log: str, table: str, day: date, now: Situation) -> bool:
    """Whether log days of one source that decide a day have not landed, or are not loaded."""
    policy, unloaded, absent = now.graph.policy_of(log), now.unloaded[log], now.absent[log]
    if table in now.graph.by_event_day:
        # A closed day waits for nobody; only what is there and not loaded concerns it.
        closed = day in now.closed[log]
        return any(d in unloaded or (not closed and d in absent) for d in policy.log_days(day))
    # A day without a folder is normal in the end; while its window is open, somebody may wonder.
    open_since = now.today - (policy.window_days + policy.lag_days) * DAY
    return day in absent and day >= open_since


def summary(states: Mapping[date, State]) -> dict[str, int]:
    """How many days are in each state."""
    counts = Counter(states.values())
    return {state.value: counts[state] for state in State}


def in_words(states: Mapping[date, State]) -> str:
    """The days of each state that somebody should see to, with what it means; empty if none."""
    lines = []
    for state in State:
        days = [day for day, found in states.items() if found is state]
        if days and not state.good:
            spans = ", ".join(map(str, windows(days)))
            lines.append(f"{state.value}: {spans} ({MEANING[state]})")
    return "\n".join(lines)


def holes(states: Mapping[date, State]) -> set[date]:
    """Missing days before a day that is there."""
    there = (day for day, state in states.items() if state is not State.MISSING)
    last = max(there, default=date.min)
    return {day for day, state in states.items() if state is State.MISSING and day < last}


def changed_final_days(table: str, now: Situation) -> dict[date, str]:
    """Final days of a table that differ from what was last published deliberately, and how.

    A person may rebuild a final day; a schedule, a sensor or another writer may not change one.
    """
    ledger = now.ledgers[table]
    closes = closing(now.ledgers, now.policy)
    found: dict[date, str] = {}
    frozen: dict[date, str] = {}
    for record in ledger.records:
        for day, published in record.days.items():
            if record.by_person:
                frozen.pop(day, None)
            if frozen.get(day, published.digest) != published.digest:
                found[day] = f"changed by {record.launched_by} in run {record.run_id}"
                continue
            found.pop(day, None)
            if day in record.final or closes(table, record.for_day(day), day):
                frozen[day] = published.digest
    for other in ledger.external:
        for day in other.days & frozen.keys():
            if ledger.latest[day].vouches(day) < other.version:
                how = f"{other.operation}, version {other.version}"
                found[day] = f"changed by another writer ({how})"
    return dict(sorted(found.items()))
