"""Final days: those whose window has closed, so that only a person may rebuild them.

Whether a day is final follows from the commits of the raw logs and of the tables built from them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import from_ranges
from backfill_assets.delta.ledgers import Ledger, Ledgers, due_days
from backfill_assets.delta.records import CommitRecord
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Dependency

#: Tells of a table, a record and a day whether the record's rows of the day are final.
FinalityCheck = Callable[[str, CommitRecord, date], bool]


def final_days(graph: Graph, ledgers: Ledgers, is_final: FinalityCheck) -> dict[str, set[date]]:
    """Return the final days of all tables that close.

    A day is final if its latest record was built after its window had closed, or if the window
    closed later by commits that did not change the day.
    """
    return {
        name: {
            day
            for day, record in ledgers[name].latest.items()
            if day in record.final or is_final(name, record, day)
        }
        for name in graph.closing_tables
    }


def window_closed_at(raw: Ledger, policy: Policy) -> dict[date, int]:
    """Return, by event day whose window has closed, the version of the raw log that closed it.

    A window closes with the commit after which all its log days are settled at the same time: all
    that had landed for them was loaded, and nothing more was due. Files that land later do not open
    it again; a log day that is reverted does. Of a part that is retired, no log day after its end
    is awaited, unless it has come.
    """
    closed_at: dict[date, int] = {}
    end = raw.table.end or date.max
    came = settled_days(raw) if raw.table.end else set[date]()
    for record, new, settled in _completed_log_days(raw):
        for day in {
            d
            for revoked_day in record.revoked_days
            for d in policy.affected_event_days(revoked_day)
        }:
            closed_at.pop(day, None)
        for day in {
            d for logged in new for d in policy.affected_event_days(logged)
        } - closed_at.keys():
            # The last log day first: it is the one that most open windows lack.
            awaited = [d for d in policy.log_days(day) if d < end or d in came]
            if all(logged in settled for logged in reversed(awaited)):
                closed_at[day] = record.version
    return closed_at


def settled_days(raw: Ledger) -> set[date]:
    """Return the log days of which all that had landed is loaded, and nothing more was due."""
    settled: set[date] = set()
    for _record, _new, settled_so_far in _completed_log_days(raw):
        settled = settled_so_far
    return settled


def _completed_log_days(raw: Ledger) -> Iterator[tuple[CommitRecord, frozenset[date], set[date]]]:
    """Yield each commit of the raw log, the log days it settled, and all days settled so far."""
    settled: set[date] = set()
    for record in raw.records:
        settled -= {*from_ranges(record.details.unsettled)} | record.revoked_days
        new = frozenset(from_ranges(record.details.settled)) - settled
        settled |= new
        yield record, new, settled


def finality_check(graph: Graph, ledgers: Ledgers) -> FinalityCheck:
    """Return the check of a graph's tables; it needs the ledgers of all tables upstream.

    Table that reads a raw log: the day's window has closed, and the record was built from the last
    commit that changed the day up to the closing one, or from a later one. Other tables: the input
    days that decide the day were final. A stateful table goes back to its first day.
    """
    closing_versions = {
        log: window_closed_at(ledgers[log], graph.policy_of(log)) for log in graph.sources
    }
    changes = {
        (name, dependency.source.name): _changing_versions(dependency, ledgers)
        for name in graph.closing_tables
        for dependency in graph.inputs[name]
        if dependency.source.name in closing_versions
    }
    records_by_table = {name: _publishing_records(ledgers[name]) for name in graph.closing_tables}
    final_by_day: dict[tuple[str, int, date], bool] = {}

    def is_final(table: str, record: CommitRecord, day: date) -> bool:
        """Return whether a record's rows of the day are final; cached, as `was_final` recurses."""
        key = table, record.version, day
        if key not in final_by_day:
            final_by_day[key] = all(
                covers_closing(table, dependency.source.name, record, day)
                if dependency.source.name in closing_versions
                else all(
                    was_final(
                        dependency.source.name,
                        _input_version(dependency.source.name, table, record),
                        needed,
                    )
                    for needed in dependency.reach.deciding_days(ledgers[dependency.source.name])(
                        day
                    )
                    if graph.expects_day(dependency.source.name, needed)
                )
                for dependency in graph.inputs[table]
            )
        return final_by_day[key]

    def covers_closing(table: str, log: str, record: CommitRecord, day: date) -> bool:
        """Return whether a record read the log's last change of a day up to the closing commit."""
        closed_by = closing_versions[log].get(day)
        if closed_by is None:
            return False
        required_version = max(
            (v for v in changes[table, log][day] if v <= closed_by), default=closed_by
        )
        return record.inputs.get(log, -1) >= required_version

    def was_final(source: str, version: int, day: date) -> bool:
        """Return whether an input's day was final at the version that a record was built from."""
        published_then = [r for r in records_by_table[source][day] if r.version <= version][-1:]
        # A later build with the same rows does not change the days that depend on it.
        same_rows = [
            r
            for r in records_by_table[source][day]
            if published_then
            and r.version > version
            and r.days[day].digest == published_then[0].days[day].digest
        ]
        return any(is_final(source, r, day) for r in [*published_then, *same_rows])

    for name in (name for name in records_by_table if carries_state(ledgers[name].table)):
        # In date order, so that the recursion goes back one day only.
        for day, records in sorted(records_by_table[name].items()):
            for record in records:
                is_final(name, record, day)
    return is_final


def _input_version(source: str, table: str, record: CommitRecord) -> int:
    """Return the version of an input that a record's days were built from.

    A stateful table reads its previous day in the same commit.
    """
    return record.version if source == table else record.inputs.get(source, -1)


def _publishing_records(ledger: Ledger) -> Mapping[date, Sequence[CommitRecord]]:
    """Return, by day, the commits that published it since its last revert, in ascending order."""
    records_by_day: dict[date, list[CommitRecord]] = defaultdict(list)
    for record in ledger.records:
        for day in record.days:
            records_by_day[day].append(record.for_day(day))
        for day in record.revoked_days:
            records_by_day.pop(day, None)
    return records_by_day


def _changing_versions(dependency: Dependency, ledgers: Ledgers) -> Mapping[date, Sequence[int]]:
    """Return, by day of a table, the versions of a raw log that made it due."""
    versions_by_day: dict[date, list[int]] = defaultdict(list)
    log = ledgers[dependency.source.name]
    days_of = due_days(dependency, log)
    for record in log.records:
        for day in days_of(record):
            versions_by_day[day].append(record.version)
    return versions_by_day
