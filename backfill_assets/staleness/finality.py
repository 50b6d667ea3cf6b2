"""Which days only a person may rebuild: those whose window has closed.

Read from the commits of the raw logs and of the tables that are made of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import date

from backfill_assets.calendar.partitions import unpacked
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import Record
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import graph_of
from backfill_assets.tables.table import Dependency


def final_days(
    ledgers: Ledgers, policy: Policy, among: Container[date] | None = None
) -> dict[str, set[date]]:
    """The days that only a person may rebuild, of all tables that close; among some, if given.

    Those whose latest record says that they were built when their window had closed; and those
    whose window closed later and quietly, as the last of its log days changed nothing for them.
    """
    closes = closing(ledgers, policy)
    return {
        name: {
            day
            for day, record in ledgers[name].latest.items()
            if (among is None or day in among)
            if day in record.final or closes(name, record, day)
        }
        for name in graph_of(ledgers, policy).closing
    }


def closings(raw: Ledger, policy: Policy) -> dict[date, int]:
    """By event day whose window has closed, the version of the raw log that closed it.

    A window closes with the commit after which all its log days are settled at the same time: what
    had landed for them was in the log, and more was not due. What lands later does not open it
    again; a log day that is taken back does.
    """
    found: dict[date, int] = {}
    for record, new, settled in _settling(raw):
        for day in {d for gone in record.withdrawn for d in policy.may_touch(gone)}:
            found.pop(day, None)
        for day in {d for logged in new for d in policy.may_touch(logged)} - found.keys():
            # The last one first: of most windows it is the one that lacks.
            if all(logged in settled for logged in reversed(list(policy.log_days(day)))):
                found[day] = record.version
    return found


def settled_days(raw: Ledger) -> set[date]:
    """The log days of which all that had landed was loaded, and nothing more was due."""
    settled: set[date] = set()
    for _record, _new, now in _settling(raw):
        settled = now
    return settled


def _settling(raw: Ledger) -> Iterator[tuple[Record, frozenset[date], set[date]]]:
    """By commit of the raw log: the log days that it settled, and all that are settled then."""
    settled: set[date] = set()
    for record in raw.records:
        settled -= {*unpacked(record.details.unsettled)} | record.withdrawn
        new = frozenset(unpacked(record.details.settled)) - settled
        settled |= new
        yield record, new, settled


def closing(ledgers: Ledgers, policy: Policy) -> Callable[[str, Record, date], bool]:
    """Whether a record of a table that closes holds all that will ever decide one of its days.

    Of a table that is made of a raw log, that is so if the window of the day has closed, and the
    record was built from the last of those commits of the log that changed the day until then, or
    later. Of a table that is made of such tables, if so were the input days that decide the day.
    With its own day before among them, that goes back to the first day of all.
    """
    graph = graph_of(ledgers, policy)
    closed = {log: closings(ledgers[log], graph.policy_of(log)) for log in graph.sources}
    changes = {
        (name, of.source.name): _changes(of, ledgers)
        for name in graph.closing
        for of in graph.inputs[name]
        if of.source.name in closed
    }
    builds = {name: _builds(ledgers[name]) for name in graph.closing}
    known: dict[tuple[str, int, date], bool] = {}

    def closes(table: str, record: Record, day: date) -> bool:
        key = table, record.version, day
        if key not in known:
            known[key] = all(
                holds(table, of.source.name, record, day)
                if of.source.name in closed
                else all(
                    made(of.source.name, _seen(of.source.name, table, record), needed)
                    for needed in of.reach.deciding(ledgers[of.source.name])(day)
                    if needed >= graph.policy_of(of.source.name).start
                )
                for of in graph.inputs[table]
            )
        return known[key]

    def holds(table: str, log: str, record: Record, day: date) -> bool:
        closed_by = closed[log].get(day)
        if closed_by is None:
            return False
        wanted = max((v for v in changes[table, log][day] if v <= closed_by), default=closed_by)
        return record.inputs.get(log, -1) >= wanted

    def made(source: str, of: int, day: date) -> bool:
        old = [r for r in builds[source][day] if r.version <= of][-1:]
        # Built again since with the same rows, the day asks nothing new of those that follow.
        same = [
            r
            for r in builds[source][day]
            if old and r.version > of and r.days[day].digest == old[0].days[day].digest
        ]
        return any(closes(source, r, day) for r in [*old, *same])

    for name in (name for name in builds if carries_state(ledgers[name].table)):
        # In this order, no day has to go back further than to the one before it.
        for day, records in sorted(builds[name].items()):
            for record in records:
                closes(name, record, day)
    return closes


def _seen(source: str, table: str, record: Record) -> int:
    """The version of an input that a record's days were built from.

    Those of a table that carries state were built one upon the other, in the same commit.
    """
    return record.version if source == table else record.inputs.get(source, -1)


def _builds(ledger: Ledger) -> Mapping[date, Sequence[Record]]:
    """By day, the commits that published it since it was last withdrawn, in ascending order."""
    found: dict[date, list[Record]] = defaultdict(list)
    for record in ledger.records:
        for day in record.days:
            found[day].append(record.for_day(day))
        for day in record.withdrawn:
            found.pop(day, None)
    return found


def _changes(of: Dependency, ledgers: Ledgers) -> Mapping[date, Sequence[int]]:
    """By day of a table, the commits of a raw log that made it due."""
    found: dict[date, list[int]] = defaultdict(list)
    log = ledgers[of.source.name]
    days_of = of.due(log)
    for record in log.records:
        for day in days_of(record):
            found[day].append(record.version)
    return found
