"""The runs to ask for: gapless ranges of days to load, or to bring up to date."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from backfill_assets.calendar.cadences import Cadence
from backfill_assets.calendar.partitions import DAY, Window, windows
from backfill_assets.staleness.arrivals import Arrivals
from backfill_assets.staleness.backlog import Backlog, Behind
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import Graph

#: So many runs one wave asks for at most, besides those that a limit of days a run makes of one.
HANDFUL = 5


@dataclass(frozen=True)
class Request:
    """One run to ask for: a gapless range of days of some tables.

    Attributes:
        tables: the tables to build, by name.
        window: the days.
        key: names what the run is for; the same days for the same inputs have the same key.
        whole: the range that `window` is a part of, where a run may take only so many days.
    """

    tables: tuple[str, ...]
    window: Window
    key: str
    whole: Window | None = None


#: Whether a run may take in a day of a table that need not be built, and leave it as it is.
Bridge = Callable[[str, date], bool]


def _no_bridge(_table: str, _day: date) -> bool:
    return False


def load_requests(
    found: Mapping[str, Arrivals], graph: Graph, per_run: int, bridge: Bridge = _no_bridge
) -> list[Request]:
    """The runs that load what has landed, with all that follows a raw log by log day.

    Args:
        found: by raw log, what has landed and is not loaded.
        graph: of all tables.
        per_run: at most so many days a run.
        bridge: tells the days of a gap over which two ranges become one.
    """
    groups = {graph.loaded_with(log): dict(arrived.load) for log, arrived in found.items()}
    return _in_order(_requests(groups, per_run, bridge), graph)


def rebuild_requests(
    behind: Backlog,
    graph: Graph,
    per_run: int,
    busy: Mapping[str, Container[str]] | None = None,
    bridge: Bridge = _no_bridge,
) -> list[Request]:
    """The runs that bring the open days up to date, in ascending order of their ranges.

    Args:
        behind: the backlog.
        graph: of all tables.
        per_run: at most so many days a run.
        busy: by the id of a run or backfill that is under way, the tables that wait for it where
            it changed one of their inputs: it is about to build them, or to change more.
        bridge: tells the days of a gap over which two ranges become one, and the tables that a
            run may build besides those that a day lacks.
    """
    bridge = _whole(bridge, graph)

    def ready(table: str, reason: Behind) -> bool:
        by = {id_ for r in reason.inputs.values() for id_ in (r.run_id, r.backfill_id)}
        return not any(table in tables for id_, tables in (busy or {}).items() if id_ in by)

    tokens: dict[tuple[date, str], str] = {}
    for table in (*graph.by_log_day, *graph.by_event_day):
        for day, reason in behind.open.get(table, {}).items():
            if ready(table, reason):
                tokens[day, table] = reason.token
    groups: dict[tuple[str, ...], dict[date, str]] = defaultdict(dict)
    for chain, together in _chains(graph):
        wanted: dict[date, tuple[str, ...]] = {}
        for day in sorted({day for day, table in tokens if table in chain}):
            lacks = tuple(table for table in chain if (day, table) in tokens)
            # By event day, what follows a rebuilt table is rebuilt with it.
            build = _with_followers(lacks, chain, graph) if together else lacks
            # But not what another run is about to build the input of.
            waits = {table for table in chain if day in behind.open.get(table, ())} - {*build}
            waits -= graph.upstream(lacks[0])
            wanted[day] = tuple(t for t in build if waits.isdisjoint(graph.upstream(t)))
        for day, tables in wanted.items():
            may = [table for table in chain if table in tables or bridge(table, day)]
            build = _widest(tables, wanted.values(), may)
            token = ",".join(tokens[day, table] for table in chain if (day, table) in tokens)
            groups[build][day] = token
    return _in_order(_requests(groups, per_run, bridge), graph)


def _chains(graph: Graph) -> Iterator[tuple[list[str], bool]]:
    """Tables that a run may build together; and whether what follows a table is built with it."""
    for of, together in ((graph.by_log_day, False), (graph.by_event_day, True)):
        for cadence in Cadence:
            yield [name for name in of if graph.tables[name].cadence is cadence], together


def _whole(bridge: Bridge, graph: Graph) -> Bridge:
    """The same; and nothing lies between one week and the next."""

    def may(table: str, day: date) -> bool:
        return graph.tables[table].cadence.first_day(day) != day or bridge(table, day)

    return may


def _in_order(requests: Sequence[Request], graph: Graph) -> list[Request]:
    """The requests; of a range that a limit of days a run has cut, only the first in some cases.

    Days that are built one upon the other cannot be built by runs at the same time. What is left is
    still behind when the first run has ended.
    """
    found: list[Request] = []
    begun: set[tuple[tuple[str, ...], Window | None]] = set()
    for request in requests:
        whole = (request.tables, request.whole)
        if whole in begun and any(carries_state(graph.tables[name]) for name in request.tables):
            continue
        begun.add(whole)
        found.append(request)
    return found


def _with_followers(lacks: Sequence[str], chain: Sequence[str], graph: Graph) -> tuple[str, ...]:
    """Tables, and those after the first of them that come of the same sources."""
    first = {log: name for name in reversed(lacks) for log in graph.logs(name)}
    return tuple(
        name
        for n, name in enumerate(chain)
        if any(log in first and chain.index(first[log]) <= n for log in graph.logs(name))
    )


def handful(requests: Sequence[Request], most: int = HANDFUL) -> list[Request]:
    """The first of the requests, as many as one wave asks for.

    What a limit of days a run has made of one range counts as one.
    """
    wholes = dict.fromkeys((request.tables, request.whole) for request in requests)
    first = set(list(wholes)[:most])
    return [request for request in requests if (request.tables, request.whole) in first]


def _widest(
    tables: Collection[str], builds: Iterable[tuple[str, ...]], may: Collection[str]
) -> tuple[str, ...]:
    """The most tables that are built for some day and may be built for this one as well."""
    return max((b for b in builds if {*tables} <= {*b} <= {*may}), key=len)


def _requests(
    groups: Mapping[tuple[str, ...], Mapping[date, str]], per_run: int, bridge: Bridge
) -> list[Request]:
    found = []
    for tables, days in groups.items():
        for whole in _bridged(days, tables, bridge):
            for part in _cut([day for day in sorted(days) if day in whole], per_run):
                tokens = sorted({days[day] for day in part if day in days})
                inputs = hashlib.sha256(repr(tokens).encode()).hexdigest()[:12]
                key = f"{'+'.join(tables)}:{part}:{inputs}"
                found.append(Request(tables, part, key, whole))
    return sorted(found, key=lambda request: (request.window.start, -len(request.tables)))


def _bridged(days: Iterable[date], tables: Sequence[str], bridge: Bridge) -> list[Window]:
    """The fewest windows that hold these days, and others only where all tables are bridged."""
    found: list[Window] = []
    for window in windows(days):
        gap = Window(found[-1].end, window.start) if found else ()
        if found and all(bridge(table, day) for day in gap for table in tables):
            found[-1] = Window(found[-1].start, window.end)
        else:
            found.append(window)
    return found


def _cut(days: Sequence[date], most: int) -> list[Window]:
    """The fewest windows of at most so many days that hold these, which are in order."""
    found: list[Window] = []
    for day in days:
        if found and len(Window(found[-1].start, day)) < most:
            found[-1] = Window(found[-1].start, day + DAY)
        else:
            found.append(Window(day, day + DAY))
    return found
