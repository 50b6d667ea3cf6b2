"""Stale days: those behind their inputs, and those built from input that was reverted since.

Pure functions over ledgers and dates. They compare states and need no events: a change that was
missed while nothing ran is found at the next look. Days of reverted input are a question of their
own: they cannot be built again, so no scheduled run requests them.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from operator import is_
from typing import NamedTuple

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY
from backfill_assets.delta.ledgers import Ledger, Ledgers, due_days, graph_of_ledgers
from backfill_assets.delta.records import CommitRecord
from backfill_assets.staleness.assess import days_on_hold, final_days, lacks_input
from backfill_assets.staleness.input_digest import days_depending_on, input_digests
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import Graph


@dataclass(frozen=True)
class StaleReason:
    """Why a day of a table is behind.

    Attributes:
        input_commits: by input, the record that changed the day's input.
        references: by name, the current content of unpartitioned inputs that changed.
    """

    input_commits: Mapping[str, CommitRecord]
    references: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def commit_key(self) -> str:
        """The commits that the day needs, as text.

        Commit ids are preferred: the versions of a recreated table start again.
        """
        commits = {
            name: record.commit_id or record.version for name, record in self.input_commits.items()
        }
        changes = sorted({**commits, **self.references}.items())
        return ",".join(f"{name}@{commit}" for name, commit in changes)


@dataclass(frozen=True)
class StaleDays:
    """The days that are behind their inputs, by table.

    Attributes:
        open: days that a scheduled run rebuilds.
        final: days that only a person may rebuild, as their window has closed.
        on_hold: days whose inputs still give the rows that a person decided against: no schedule
            or sensor builds them.
    """

    open: Mapping[str, Mapping[date, StaleReason]] = field(default_factory=dict)
    final: Mapping[str, Mapping[date, StaleReason]] = field(default_factory=dict)
    on_hold: Mapping[str, set[date]] = field(default_factory=dict)

    def all_days(self, table: str) -> set[date]:
        """Return all days of a table that are behind, without those on hold."""
        return {*self.open.get(table, ()), *self.final.get(table, ())}


def find_stale_days(ledgers: Ledgers, policy: Policy, today: date) -> StaleDays:
    """Return the days that are behind their inputs.

    A day is behind if a commit of an input changed what the day is built from, and the day was last
    published from an older version of that input, or never. It is also behind if an unpartitioned
    input has changed. It is not behind if its input fingerprint is that of its publication, or that
    of rows which a person decided against. Days of retired tables are never behind.

    The last answer is cached until there is a new commit: a sensor asks every few seconds, and ten
    thousand days of twenty tables take four seconds.
    """
    if _last_answer and _last_answer[0].is_valid_for(ledgers, policy, today):
        return _last_answer[0].result
    stale = _compute_stale_days(ledgers, policy, today)
    _last_answer[:] = [_LastAnswer((*ledgers.values(),), policy, today, stale)]
    return stale


class _LastAnswer(NamedTuple):
    """The last answer in this process, with its arguments."""

    ledgers: tuple[Ledger, ...]
    policy: Policy
    today: date
    result: StaleDays

    def is_valid_for(self, ledgers: Ledgers, policy: Policy, today: date) -> bool:
        """Return whether the arguments are the same; a ledger read again is another object."""
        same = len(self.ledgers) == len(ledgers) and all(map(is_, self.ledgers, ledgers.values()))
        return same and (self.policy, self.today) == (policy, today)


_last_answer: list[_LastAnswer] = []


def _compute_stale_days(ledgers: Ledgers, policy: Policy, today: date) -> StaleDays:
    """Compute the answer of `find_stale_days`, which caches it."""
    closed, graph = final_days(ledgers, policy), graph_of_ledgers(ledgers, policy)
    stale = StaleDays(defaultdict(dict), defaultdict(dict), defaultdict(set))
    for table, days in _newer_inputs(ledgers, policy, graph, today).items():
        ledger = ledgers[table]
        fingerprints = input_digests(graph.inputs[table], ledgers, days, ledger.references)
        on_hold = days_on_hold(ledger, fingerprints)
        for day, inputs in sorted(days.items()):
            published = ledger.current_record(day)
            if published and published.fingerprint == fingerprints[day]:
                continue
            if day in on_hold:
                stale.on_hold[table].add(day)
                continue
            stale_reasons = stale.final if day in closed.get(table, ()) else stale.open
            references = ledger.changed_references(day) if day in ledger.latest else {}
            stale_reasons[table][day] = StaleReason(inputs, references)  # type: ignore[index]
        if carries_state(ledger.table):
            lacking = {
                day
                for day in ledger.published_days
                if lacks_input(graph, ledgers, table, day, own=False)
            }
            _add_later_days(stale, ledger, closed.get(table, ()), lacking)
    return stale


def _add_later_days(
    stale: StaleDays, ledger: Ledger, closed: Container[date], lacking: Container[date]
) -> None:
    """Count days of a stateful table after a stale day as stale, for the same reasons.

    Up to a day that is missing, or is `lacking` another input: no later day can be built. A run
    that builds them in order stops where a day comes out unchanged.
    """
    name, reason = ledger.table.name, None
    days = ledger.published_days | stale.all_days(name)
    for day in sorted(days):
        own_reason = stale.open[name].get(day) or stale.final[name].get(day)
        can_be_built = day - DAY in days and day not in lacking
        reason = own_reason or (reason if can_be_built else None)
        if reason and not own_reason:
            part = stale.final if day in closed else stale.open
            part[name][day] = reason  # type: ignore[index]


def _newer_inputs(
    ledgers: Ledgers, policy: Policy, graph: Graph, today: date
) -> dict[str, dict[date, dict[str, CommitRecord]]]:
    """Return, by table, day and input, the commit that is newer than the day.

    The inner mapping is empty if only an unpartitioned input has changed.
    """
    newer: dict[str, dict[date, dict[str, CommitRecord]]] = defaultdict(lambda: defaultdict(dict))

    def buildable_days(table: str, days: Iterable[date]) -> Iterator[date]:
        """Return the days that are due and have their required inputs; none of a retired table."""
        if ledgers[table].table.is_retired(today):
            return iter(())
        table_policy = graph.policy_of(table)
        due_days = (
            table_policy.expected_days(today)
            if table in graph.by_event_day
            else table_policy.loadable_days(today)
        )
        return (
            day
            for day in days
            if day in due_days
            and not lacks_input(graph, ledgers, table, day)
            and (table not in graph.by_event_day or _has_arrived(table, day, ledgers, graph))
        )

    for source, table, days_of in downstream_tables(ledgers, policy):
        needed = {day: record for record in ledgers[source].records for day in days_of(record)}
        ledger = ledgers[table]
        for day in buildable_days(table, needed):
            built = ledger.latest.get(day)
            if built is None and day not in ledger.on_hold:
                # Undo commits of an earlier release record the version only.
                built = ledger.revocations.get(day)
            if _is_older(built, ledgers[source], needed[day], is_self=source == table):
                newer[table][day][source] = needed[day]
    for table, ledger in ledgers.items():
        if ledger.references:
            changed_days = [day for day in ledger.latest if ledger.changed_references(day)]
            for day in buildable_days(table, changed_days):
                newer[table].setdefault(day, {})
    return newer


def downstream_tables(
    ledgers: Ledgers, policy: Policy
) -> list[tuple[str, str, Callable[[CommitRecord], Iterable[date]]]]:
    """Return (input, table, function): which days of the table an input's commit makes due."""
    return [
        (dependency.source.name, table, due_days(dependency, ledgers[dependency.source.name]))
        for table, inputs in graph_of_ledgers(ledgers, policy).inputs.items()
        for dependency in inputs
    ]


def dependent_days(
    graph: Graph, ledgers: Ledgers, changing: Mapping[str, Collection[date]]
) -> dict[str, set[date]]:
    """Return the days that change with those that read them, by each table of `ledgers`.

    Days that late lines change are not known before these are loaded.
    """
    days_by_table: dict[str, set[date]] = {}
    for name in (name for name in graph.tables if name in ledgers):
        days = days_by_table[name] = {*changing.get(name, ())}
        for dependency in graph.inputs[name]:
            source = dependency.source.name
            if source != name and not dependency.recorded and days_by_table.get(source):
                days |= ledgers[name].published_days.intersection(
                    dependency.reach.changed_days(days_by_table[source], ledgers[source])
                )
        if days and carries_state(graph.tables[name]):
            days |= {day for day in ledgers[name].published_days if day > min(days)}
    return days_by_table


def _has_arrived(table: str, day: date, ledgers: Ledgers, graph: Graph) -> bool:
    """Return whether the folders in which the lines of a day usually arrive are loaded."""
    delays = {log: graph.sources[log].arrives_after for log in graph.source_logs(table)}
    days = [*ledgers[table].table.grain.days_of(day)]
    return all(
        event_day + delay * DAY in ledgers[log].published_days
        for log, delay in delays.items()
        if delay
        for event_day in days
    )


def _is_older(
    built: CommitRecord | None, source: Ledger, needed: CommitRecord, *, is_self: bool
) -> bool:
    """Return whether a day was built before an input's commit, or from a table replaced since.

    A commit of a stateful table builds its days in order, so it is not older than itself. A record
    names no version of an input if that input never had here the content that the day was built
    from.
    """
    if built is None:
        return True
    if is_self and needed.version == built.version:
        return False
    version = built.inputs.get(source.table.name, -1)
    return version < needed.version or version > (source.version or 0)


def built_from_revoked(ledgers: Ledgers, policy: Policy) -> dict[str, set[date]]:
    """Return, by table, the published days that were built, directly or not, from reverted days.

    An undo reverts them together with their input. They exist while an undo runs, after one that
    was interrupted, or if a run read the input just before.
    """
    affected_days: dict[str, set[date]] = {name: set() for name in ledgers}
    for source, table, days_of in downstream_tables(ledgers, policy):
        latest = ledgers[table].latest
        for record, revoked_days in _revocations(ledgers[source]):
            built = {
                day
                for day in days_of(record)
                if day in latest and latest[day].inputs.get(source, record.version) < record.version
            }
            affected_days[table] |= days_depending_on(
                ledgers, policy, table, built, source, revoked_days
            )
        affected_days[table] |= days_depending_on(
            ledgers, policy, table, latest, source, affected_days[source]
        )
    return affected_days


def _revocations(ledger: Ledger) -> list[tuple[CommitRecord, set[date]]]:
    """Return the commits that reverted days, each with its days that were not published since."""
    revoked = ledger.revocations
    records = {record.version: record for record in revoked.values()}
    return [
        (record, {day for day, commit in revoked.items() if commit.version == version})
        for version, record in records.items()
    ]
