"""The runs to ask for: gapless ranges of days to load, or to bring up to date."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from backfill_assets.calendar.cadences import Grain
from backfill_assets.calendar.partitions import DAY, Window, to_windows
from backfill_assets.staleness.arrivals import UnloadedDays
from backfill_assets.staleness.backlog import StaleDay, StaleDays
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import Graph

#: So many runs one wave asks for at most, besides those that a limit of days a run makes of one.
BATCH_SIZE = 5


@dataclass(frozen=True)
class Request:
    """One run to ask for: a gapless range of days of some tables.

    Attributes:
        tables: the tables to build, by name.
        window: the days.
        key: names what the run is for; the same days for the same inputs have the same key.
        uncut_range: the range that `window` is a part of, where a run may take only so many days.
    """

    tables: tuple[str, ...]
    window: Window
    key: str
    uncut_range: Window | None = None


#: Whether a run may take in a day of a table that need not be built, and leave it as it is.
GapRule = Callable[[str, date], bool]


def _fill_no_gap(_table: str, _day: date) -> bool:
    return False


def load_requests(
    unloaded: Mapping[str, UnloadedDays],
    graph: Graph,
    per_run: int,
    may_fill_gap: GapRule = _fill_no_gap,
) -> list[Request]:
    """The runs that load what has landed, with all that follows a raw log by log day.

    Args:
        unloaded: by raw log, what has landed and is not loaded.
        graph: of all tables.
        per_run: at most so many days a run.
        may_fill_gap: tells the days of a gap over which two ranges become one.
    """
    groups = {
        graph.loaded_with(log): dict(unloaded_days.days_to_load)
        for log, unloaded_days in unloaded.items()
    }
    return _drop_waiting_parts(_build_requests(groups, per_run, may_fill_gap), graph)


def rebuild_requests(
    stale: StaleDays,
    graph: Graph,
    per_run: int,
    in_progress: Mapping[str, Container[str]] | None = None,
    may_fill_gap: GapRule = _fill_no_gap,
) -> list[Request]:
    """The runs that bring the open days up to date, in ascending order of their ranges.

    Args:
        stale: the backlog.
        graph: of all tables.
        per_run: at most so many days a run.
        in_progress: by the id of a run or backfill that is under way, the tables that wait for it where
            it changed one of their inputs: it is about to build them, or to change more.
        may_fill_gap: tells the days of a gap over which two ranges become one, and the tables that a
            run may build besides those that a day lacks.
    """
    may_fill_gap = _split_at_weeks(may_fill_gap, graph)

    def is_ready(table: str, reason: StaleDay) -> bool:
        writer_ids = {id_ for r in reason.inputs.values() for id_ in (r.run_id, r.backfill_id)}
        return not any(
            table in tables for id_, tables in (in_progress or {}).items() if id_ in writer_ids
        )

    tokens: dict[tuple[date, str], str] = {}
    for table in (*graph.by_log_day, *graph.by_event_day):
        for day, reason in stale.open.get(table, {}).items():
            if is_ready(table, reason):
                tokens[day, table] = reason.commit_key
    groups: dict[tuple[str, ...], dict[date, str]] = defaultdict(dict)
    for chain, together in _table_chains(graph):
        tables_by_day: dict[date, tuple[str, ...]] = {}
        for day in sorted({day for day, table in tokens if table in chain}):
            stale_tables = tuple(table for table in chain if (day, table) in tokens)
            # By event day, what follows a rebuilt table is rebuilt with it.
            build = _with_followers(stale_tables, chain, graph) if together else stale_tables
            # But not what another run is about to build the input of.
            waits = {table for table in chain if day in stale.open.get(table, ())} - {*build}
            waits -= graph.upstream_tables(stale_tables[0])
            tables_by_day[day] = tuple(
                t for t in build if waits.isdisjoint(graph.upstream_tables(t))
            )
        for day, tables in tables_by_day.items():
            allowed_tables = [
                table for table in chain if table in tables or may_fill_gap(table, day)
            ]
            build = _widest_build(tables, tables_by_day.values(), allowed_tables)
            token = ",".join(tokens[day, table] for table in chain if (day, table) in tokens)
            groups[build][day] = token
    return _drop_waiting_parts(_build_requests(groups, per_run, may_fill_gap), graph)


def _table_chains(graph: Graph) -> Iterator[tuple[list[str], bool]]:
    """Tables that a run may build together; and whether what follows a table is built with it."""
    for tables, together in ((graph.by_log_day, False), (graph.by_event_day, True)):
        for cadence in Grain:
            yield [name for name in tables if graph.tables[name].grain is cadence], together


def _split_at_weeks(may_fill_gap: GapRule, graph: Graph) -> GapRule:
    """The same; and nothing lies between one week and the next."""

    def may_fill(table: str, day: date) -> bool:
        return graph.tables[table].grain.first_day(day) != day or may_fill_gap(table, day)

    return may_fill


def _drop_waiting_parts(requests: Sequence[Request], graph: Graph) -> list[Request]:
    """The requests; of a range that a limit of days a run has cut, only the first in some cases.

    Days that are built one upon the other cannot be built by runs at the same time. What is left is
    still behind when the first run has ended.
    """
    runnable: list[Request] = []
    begun: set[tuple[tuple[str, ...], Window | None]] = set()
    for request in requests:
        uncut = (request.tables, request.uncut_range)
        if uncut in begun and any(carries_state(graph.tables[name]) for name in request.tables):
            continue
        begun.add(uncut)
        runnable.append(request)
    return runnable


def _with_followers(
    stale_tables: Sequence[str], chain: Sequence[str], graph: Graph
) -> tuple[str, ...]:
    """Tables, and those after the first of them that come of the same sources."""
    first = {log: name for name in reversed(stale_tables) for log in graph.source_logs(name)}
    return tuple(
        name
        for n, name in enumerate(chain)
        if any(log in first and chain.index(first[log]) <= n for log in graph.source_logs(name))
    )


def first_batch(requests: Sequence[Request], limit: int = BATCH_SIZE) -> list[Request]:
    """The first of the requests, as many as one wave asks for.

    What a limit of days a run has made of one range counts as one.
    """
    uncut_ranges = dict.fromkeys((request.tables, request.uncut_range) for request in requests)
    first = set(list(uncut_ranges)[:limit])
    return [request for request in requests if (request.tables, request.uncut_range) in first]


def _widest_build(
    tables: Collection[str], builds: Iterable[tuple[str, ...]], allowed_tables: Collection[str]
) -> tuple[str, ...]:
    """The most tables that are built for some day and may be built for this one as well."""
    return max((b for b in builds if {*tables} <= {*b} <= {*allowed_tables}), key=len)


def _build_requests(
    groups: Mapping[tuple[str, ...], Mapping[date, str]], per_run: int, may_fill_gap: GapRule
) -> list[Request]:
    requests = []
    for tables, days in groups.items():
        for uncut_range in _merge_ranges(days, tables, may_fill_gap):
            for part in _split_days([day for day in sorted(days) if day in uncut_range], per_run):
                tokens = sorted({days[day] for day in part if day in days})
                inputs = hashlib.sha256(repr(tokens).encode()).hexdigest()[:12]
                key = f"{'+'.join(tables)}:{part}:{inputs}"
                requests.append(Request(tables, part, key, uncut_range))
    return sorted(requests, key=lambda request: (request.window.start, -len(request.tables)))


def _merge_ranges(
    days: Iterable[date], tables: Sequence[str], may_fill_gap: GapRule
) -> list[Window]:
    """The fewest windows that hold these days, and others only where all tables are bridged."""
    merged: list[Window] = []
    for window in to_windows(days):
        gap = Window(merged[-1].end, window.start) if merged else ()
        if merged and all(may_fill_gap(table, day) for day in gap for table in tables):
            merged[-1] = Window(merged[-1].start, window.end)
        else:
            merged.append(window)
    return merged


def _split_days(days: Sequence[date], max_days: int) -> list[Window]:
    """The fewest windows of at most so many days that hold these, which are in order."""
    parts: list[Window] = []
    for day in days:
        if parts and len(Window(parts[-1].start, day)) < max_days:
            parts[-1] = Window(parts[-1].start, day + DAY)
        else:
            parts.append(Window(day, day + DAY))
    return parts
