"""The days that are behind their inputs, by what the tables' commits say.

Pure functions over ledgers and dates. They look at the state, not at events: what was missed while
nothing ran is found the next time that somebody looks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from operator import is_
from typing import NamedTuple

from backfill_assets.calendar.partitions import DAY
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import Record
from backfill_assets.publish.reasons import days_on_hold
from backfill_assets.staleness.finality import final_days
from backfill_assets.staleness.fingerprints import input_fingerprints
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import Graph, graph_of


@dataclass(frozen=True)
class Behind:
    """Why a day of a table is behind.

    Attributes:
        inputs: by input, the record that changed what the day is made of.
        references: by name, what the tables without days hold now, where that is something else.
    """

    inputs: Mapping[str, Record]
    references: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def token(self) -> str:
        """The commits that the day needs, as text: versions begin anew when a table does."""
        commits = {name: record.commit_id or record.version for name, record in self.inputs.items()}
        of = sorted({**commits, **self.references}.items())
        return ",".join(f"{name}@{commit}" for name, commit in of)


@dataclass(frozen=True)
class Backlog:
    """The days that are behind their inputs, by table.

    Attributes:
        open: those that a scheduled run rebuilds.
        final: those that only a person may rebuild, as their window has closed.
        on_hold: days whose inputs are those of rows that a person has decided against: no schedule
            or sensor builds these.
    """

    open: Mapping[str, Mapping[date, Behind]] = field(default_factory=dict)
    final: Mapping[str, Mapping[date, Behind]] = field(default_factory=dict)
    on_hold: Mapping[str, set[date]] = field(default_factory=dict)

    def days(self, table: str) -> set[date]:
        """All days of a table that are behind."""
        return {*self.open.get(table, ()), *self.final.get(table, ())}


def backlog(ledgers: Ledgers, policy: Policy, today: date) -> Backlog:
    """Which days are behind their inputs.

    A day is behind if an input's commit changed what the day is made of, and the day was last
    published from an older version of that input, or never; unless the inputs hold again what they
    held then, or what they held for rows that a person has decided against. It is behind as well if
    a table without days holds other rows than it did then. No day of a retired table is.

    While nothing is committed, what was found last in this process is the answer: a sensor asks
    every few seconds, and ten thousand days of twenty tables take four seconds.
    """
    if _last and _last[0].is_of(ledgers, policy, today):
        return _last[0].found
    found = _find(ledgers, policy, today)
    _last[:] = [_Last((*ledgers.values(),), policy, today, found)]
    return found


class _Last(NamedTuple):
    """What was found last in this process, and in what."""

    ledgers: tuple[Ledger, ...]
    policy: Policy
    today: date
    found: Backlog

    def is_of(self, ledgers: Ledgers, policy: Policy, today: date) -> bool:
        """Whether it was found in the same: a ledger that is read again is another object."""
        same = len(self.ledgers) == len(ledgers) and all(map(is_, self.ledgers, ledgers.values()))
        return same and (self.policy, self.today) == (policy, today)


_last: list[_Last] = []


def _find(ledgers: Ledgers, policy: Policy, today: date) -> Backlog:
    closed, graph = final_days(ledgers, policy), graph_of(ledgers, policy)
    backlog = Backlog(defaultdict(dict), defaultdict(dict), defaultdict(set))
    for table, days in _due(ledgers, policy, graph, today).items():
        ledger = ledgers[table]
        fingerprints = input_fingerprints(graph.inputs[table], ledgers, days, ledger.references)
        on_hold = days_on_hold(ledger, fingerprints)
        for day, inputs in sorted(days.items()):
            published = ledger.current_record(day)
            if published and published.fingerprint == fingerprints[day]:
                continue
            if day in on_hold:
                backlog.on_hold[table].add(day)
                continue
            part = backlog.final if day in closed.get(table, ()) else backlog.open
            references = ledger.other_references(day) if day in ledger.latest else {}
            part[table][day] = Behind(inputs, references)  # type: ignore[index]
        if carries_state(ledger.table):
            _add_later_days(backlog, ledger, closed.get(table, ()))
    return backlog


def _add_later_days(backlog: Backlog, ledger: Ledger, closed: Container[date]) -> None:
    """Count what is built upon days that are behind as behind, for the same reasons.

    A run that builds them in order ends where a day comes out as it was.
    """
    name, reason = ledger.table.name, None
    for day in sorted(ledger.published | backlog.days(name)):
        own = backlog.open[name].get(day) or backlog.final[name].get(day)
        reason = own or reason
        if reason and not own:
            part = backlog.final if day in closed else backlog.open
            part[name][day] = reason  # type: ignore[index]


def _due(
    ledgers: Ledgers, policy: Policy, graph: Graph, today: date
) -> dict[str, dict[date, dict[str, Record]]]:
    """By table and day, the commits of inputs that are newer than the day.

    None of them where a table without days has changed alone.
    """
    found: dict[str, dict[date, dict[str, Record]]] = defaultdict(lambda: defaultdict(dict))

    def possible(table: str, days: Iterable[date]) -> Iterator[date]:
        if ledgers[table].table.is_retired(today):
            return iter(())
        own = graph.policy_of(table)
        due = own.due(today) if table in graph.by_event_day else own.logged(today)
        return (day for day in days if day in due and _can_be_made(table, day, ledgers, graph))

    for source, table, days_of in follows(ledgers, policy):
        needed = {day: record for record in ledgers[source].records for day in days_of(record)}
        ledger = ledgers[table]
        for day in possible(table, needed):
            built = ledger.latest.get(day)
            if built is None and day not in ledger.on_hold:
                # An undo of an earlier release has withdrawn it, and says no more than when.
                built = ledger.withdrawals.get(day)
            if _is_older(built, day, ledgers[source], needed[day], own=source == table):
                found[table][day][source] = needed[day]
    for table, ledger in ledgers.items():
        if ledger.references:
            other = [day for day in ledger.latest if ledger.other_references(day)]
            for day in possible(table, other):
                found[table].setdefault(day, {})
    return found


def follows(
    ledgers: Ledgers, policy: Policy
) -> list[tuple[str, str, Callable[[Record], Iterable[date]]]]:
    """Which table follows which: the days of it that a commit of its input makes due."""
    return [
        (of.source.name, table, of.due(ledgers[of.source.name]))
        for table, inputs in graph_of(ledgers, policy).inputs.items()
        for of in inputs
    ]


def _can_be_made(table: str, day: date, ledgers: Ledgers, graph: Graph) -> bool:
    """Whether all that a day needs is published: it may have been taken back since.

    Before the first day of an input there is nothing to wait for.
    """
    needed = ((of.source.name, d) for of in graph.inputs[table] for d in of.reach.needed(day))
    return (
        None not in ledgers[table].references.values()
        and all(
            of in ledgers[name].published or of < graph.policy_of(name).start for name, of in needed
        )
        and (table not in graph.by_event_day or _has_arrived(table, day, ledgers, graph))
    )


def _has_arrived(table: str, day: date, ledgers: Ledgers, graph: Graph) -> bool:
    """Whether the folders are loaded that the lines of a day usually arrive in."""
    delays = {log: graph.sources[log].arrives_after for log in graph.logs(table)}
    days = [*ledgers[table].table.cadence.days_of(day)]
    return all(
        of + delay * DAY in ledgers[log].published
        for log, delay in delays.items()
        if delay
        for of in days
    )


def _is_older(
    built: Record | None, day: date, source: Ledger, needed: Record, *, own: bool
) -> bool:
    """Whether a day was built before an input's commit, or from a table that was since replaced.

    A commit of a table that carries state has built its days one upon the other. A record names no
    version of an input that has never held here what the day was made of.
    """
    if built is None:
        return True
    if own and needed.version == built.version:
        return False
    version = built.inputs.get(source.table.name, -1)
    return version < needed.version or version > (source.version or 0)
