"""Stale days: those behind their inputs, and those built from input that was reverted since.

Pure functions over ledgers and dates. They compare states and need no events: a change that was
missed while nothing ran is found at the next look. Days of reverted input are a question of their
own: they cannot be built again, so no scheduled run requests them.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from operator import is_
from typing import NamedTuple

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.ledgers import Ledger, Ledgers, due_days
from backfill_assets.delta.records import CommitRecord
from backfill_assets.staleness.assess import (
    DayAssessment,
    Obstacle,
    assess,
    days_on_hold,
    find_obstacles,
    follow_days,
)
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import ExternalTable


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
        blocked: days that would be open, but for what keeps every run from building them: an input
            day that was made under other settings, which a person rebuilds first.
    """

    open: Mapping[str, Mapping[date, StaleReason]] = field(default_factory=dict)
    final: Mapping[str, Mapping[date, StaleReason]] = field(default_factory=dict)
    on_hold: Mapping[str, set[date]] = field(default_factory=dict)
    blocked: Mapping[str, Mapping[date, Obstacle]] = field(default_factory=dict)

    @property
    def any_open(self) -> bool:
        """Return whether a day is behind that is neither final nor on hold."""
        return any(days for part in (self.open, self.blocked) for days in part.values())

    def all_days(self, table: str) -> set[date]:
        """Return all days of a table that are behind, without those on hold."""
        return {
            day for part in (self.open, self.final, self.blocked) for day in part.get(table, ())
        }


def find_stale_days(snapshot: Snapshot) -> StaleDays:
    """Return the days that are behind their inputs.

    A day is behind if a commit of an input changed what the day is built from, and the day was last
    published from an older version of that input, or never. It is also behind if an unpartitioned
    input has changed. It is not behind if its input digest is that of its publication, or that
    of rows which a person decided against. Days of retired tables are never behind.

    The last answer is cached until there is a new commit: a sensor asks every few seconds, and ten
    thousand days of twenty tables take four seconds.
    """
    if _last_answer and _last_answer[0].is_valid_for(snapshot):
        return _last_answer[0].result
    stale = _compute_stale_days(snapshot)
    _last_answer[:] = [_LastAnswer(snapshot, stale)]
    return stale


class _LastAnswer(NamedTuple):
    """The last answer in this process, with what it was computed from."""

    snapshot: Snapshot
    result: StaleDays

    def is_valid_for(self, snapshot: Snapshot) -> bool:
        """Return whether it is an answer for a snapshot; a ledger read again is another object."""
        known, ledgers = self.snapshot.ledgers, snapshot.ledgers
        same = len(known) == len(ledgers) and all(map(is_, known.values(), ledgers.values()))
        return same and all(
            getattr(self.snapshot, name) == getattr(snapshot, name)
            for name in ("policy", "today", "config_digests")
        )


_last_answer: list[_LastAnswer] = []


def _compute_stale_days(snapshot: Snapshot) -> StaleDays:
    """Compute the answer of `find_stale_days`, which caches it."""
    closed = snapshot.final_by_table
    graph, ledgers, today = snapshot.graph, snapshot.ledgers, snapshot.today
    with_settings = Snapshot(graph, ledgers, today, config_digests=snapshot.config_digests)
    # Days of other code or settings are current, until a person launches them.
    snapshot = Snapshot(graph, ledgers, today)
    open_days: dict[str, dict[date, StaleReason]] = defaultdict(dict)
    final: dict[str, dict[date, StaleReason]] = defaultdict(dict)
    on_hold: dict[str, set[date]] = defaultdict(set)
    blocked: dict[str, dict[date, Obstacle]] = defaultdict(dict)
    for table, newer_inputs in _newer_inputs(snapshot).items():
        ledger = ledgers[table]
        assessments = assess(snapshot, table, newer_inputs, respects_holds=True, in_order=False)
        behind = {
            day: a for day, a in assessments.items() if a.reason and not (a.obstacle or a.not_due)
        }
        reasons = {
            day: StaleReason(
                newer_inputs[day], ledger.changed_references(day) if day in ledger.latest else {}
            )
            for day in behind
        }
        if carries_state(ledger.table):
            behind = _with_later_days(snapshot, table, behind)
        for day, assessment in behind.items():
            if assessment.on_hold:
                on_hold[table].add(day)
                continue
            is_final = day in closed.get(table, ())
            if day not in reasons:
                # It follows another, for the same reasons; but no schedule builds a final one.
                if day - DAY not in reasons or (day - DAY in final[table] and not is_final):
                    continue
                reasons[day] = reasons[day - DAY]
            (final if is_final else open_days)[table][day] = reasons[day]
        for day, obstacle in _days_left_by_runs(with_settings, table, open_days[table]).items():
            del open_days[table][day]
            if obstacle:
                blocked[table][day] = obstacle
    open_days = {table: days for table, days in open_days.items() if days}
    return StaleDays(open_days, final, on_hold, blocked)


def _days_left_by_runs(
    snapshot: Snapshot, table: str, days: Collection[date]
) -> dict[date, Obstacle | None]:
    """Return the days that runs of them would leave, given the settings, with what keeps them.

    Nothing does by itself if a day of a stateful table only follows such a day.
    """
    if not any(snapshot.other_settings_days(d.source.name) for d in snapshot.inputs_of(table)):
        return {}
    assessments = assess(snapshot, table, days, respects_holds=True)
    return {day: a.obstacle for day, a in assessments.items() if not a.can_change}


def _with_later_days(
    snapshot: Snapshot, table: str, behind: Mapping[date, DayAssessment]
) -> dict[date, DayAssessment]:
    """Return the days of a stateful table that are behind, with the published ones that follow.

    Up to a day that is missing, lacks another input or is on hold: no later day changes. A run that
    builds them in order stops where a day comes out unchanged.
    """
    ledger = snapshot.ledgers[table]
    others = ledger.published_days - behind.keys()
    held_days = days_on_hold(ledger, snapshot.input_digests(table, ledger.on_hold))
    stopped = held_days | find_obstacles(snapshot, table, others, own=False).keys()
    free = {day: DayAssessment("") for day in others if day not in stopped}
    open_days = {day: a for day, a in behind.items() if not a.on_hold}
    ordered = follow_days(table, {**free, **open_days}, lambda _: None)
    later = {day: a for day, a in ordered.items() if a.can_change and day not in behind}
    return dict(sorted({**behind, **later}.items()))


def _newer_inputs(snapshot: Snapshot) -> dict[str, dict[date, dict[str, CommitRecord]]]:
    """Return, by table, due day and input, the commit that is newer than the day.

    The inner mapping is empty if only an unpartitioned input has changed.
    """
    graph, ledgers, today = snapshot.graph, snapshot.ledgers, snapshot.today
    newer: dict[str, dict[date, dict[str, CommitRecord]]] = defaultdict(lambda: defaultdict(dict))

    def select_due(table: str, days: Iterable[date]) -> Iterator[date]:
        """Return the days that are due; none of a retired table."""
        if ledgers[table].table.is_retired(today):
            return iter(())
        table_policy = graph.policy_of(table)
        due_days = (
            graph.expected_days(table, today)
            if table in graph.by_event_day
            else table_policy.loadable_days(today)
        )
        return (
            day
            for day in days
            if day in due_days
            and (table not in graph.by_event_day or _has_arrived(table, day, ledgers, graph))
        )

    for source, table, needed in _needed_commits(snapshot):
        ledger = ledgers[table]
        for day in select_due(table, needed):
            built = ledger.latest.get(day)
            if built is None and day not in ledger.on_hold:
                # Undo commits of an earlier release record the version only.
                built = ledger.revocations.get(day)
            if _is_older(built, ledgers[source], needed[day], is_self=source == table):
                newer[table][day][source] = needed[day]
    for table, ledger in ledgers.items():
        if ledger.references:
            changed_days = [day for day in ledger.latest if ledger.changed_references(day)]
            for day in select_due(table, changed_days):
                newer[table].setdefault(day, {})
    return newer


def _needed_commits(snapshot: Snapshot) -> Iterator[tuple[str, str, dict[date, CommitRecord]]]:
    """Return (input, table, needed): by day of the table, the commit of the input that it needs.

    No commit has the days on which others write no rows: as long as they are not built, they need
    the last one.
    """
    for table, inputs in snapshot.graph.inputs.items():
        for dependency in inputs:
            source = snapshot.ledgers[dependency.source.name]
            if quiet_days := _days_without_rows(source, snapshot.today):
                days = {*dependency.reach.changed_days(quiet_days, source)}
                unbuilt_days = days - snapshot.ledgers[table].latest.keys()
                yield source.table.name, table, dict.fromkeys(unbuilt_days, source.records[-1])
    for name, table, days_of in downstream_tables(snapshot):
        records = snapshot.ledgers[name].records
        yield name, table, {day: record for record in records for day in days_of(record)}


def _days_without_rows(source: Ledger, today: date) -> list[date]:
    """Return the days on which others write no rows, since their first day: no commit has them."""
    if not isinstance(source.table, ExternalTable) or not source.published_days:
        return []
    known_days = source.published_days
    days = Window(min(known_days), today if today < date.max else max(known_days))
    return [d for d in days if d not in known_days and not source.table.expects_rows(d)]


def downstream_tables(
    snapshot: Snapshot,
) -> list[tuple[str, str, Callable[[CommitRecord], Iterable[date]]]]:
    """Return (input, table, function): which days of the table an input's commit makes due."""
    return [
        (
            dependency.source.name,
            table,
            due_days(dependency, snapshot.ledgers[dependency.source.name]),
        )
        for table, inputs in snapshot.graph.inputs.items()
        for dependency in inputs
    ]


def dependent_days(
    snapshot: Snapshot, changing: Mapping[str, Collection[date]]
) -> dict[str, set[date]]:
    """Return the days that change with those that read them, by each table of the snapshot.

    Days that late lines change are not known before these are loaded.
    """
    graph, ledgers = snapshot.graph, snapshot.ledgers
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
    """Return whether the folders are loaded in which lines of a day usually arrive after it."""
    end = ledgers[table].table.grain.days_of(day).end
    return all(
        log_day < end or log_day in ledgers[log].published_days
        for log, log_day in graph.arrivals(table, day)
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


def built_from_revoked(snapshot: Snapshot) -> dict[str, set[date]]:
    """Return, by table, the published days that were built, directly or not, from reverted days.

    An undo reverts them together with their input. They exist while an undo runs, after one that
    was interrupted, or if a run read the input just before.
    """
    ledgers = snapshot.ledgers
    affected_days: dict[str, set[date]] = {name: set() for name in ledgers}
    for source, table, days_of in downstream_tables(snapshot):
        latest = ledgers[table].latest
        for record, revoked_days in _revocations(ledgers[source]):
            built = {
                day
                for day in days_of(record)
                if day in latest and latest[day].inputs.get(source, record.version) < record.version
            }
            affected_days[table] |= snapshot.days_depending_on(table, built, source, revoked_days)
        affected_days[table] |= snapshot.days_depending_on(
            table, latest, source, affected_days[source]
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
