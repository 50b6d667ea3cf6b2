"""From what the tables' commits say to what must be rebuilt: the days that are behind their inputs.

Pure functions over ledgers and dates. They look at the state, not at events: what was missed while
nothing ran is found the next time that somebody looks.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from backfill_assets.graph import Graph, graph_of
from backfill_assets.lateness import Policy
from backfill_assets.ledgers import Ledger, Ledgers
from backfill_assets.listing import Listing
from backfill_assets.manifests import Manifest, Target, due, target
from backfill_assets.partitions import DAY, Window, windows
from backfill_assets.recipes import made_of
from backfill_assets.records import Record
from backfill_assets.tables import Dependency


@dataclass(frozen=True)
class Behind:
    """Why a day of a table is behind: by input, the record that changed what it is made of."""

    inputs: Mapping[str, Record]

    @property
    def token(self) -> str:
        """The commits that the day needs, as text: versions begin anew when a table does."""
        return ",".join(
            f"{name}@{record.commit_id or record.version}"
            for name, record in sorted(self.inputs.items())
        )


@dataclass(frozen=True)
class Backlog:
    """The days that are behind their inputs, by table.

    Attributes:
        open: those that a scheduled run rebuilds.
        final: those that only a person may rebuild, as their window has closed.
    """

    open: Mapping[str, Mapping[date, Behind]] = field(default_factory=dict)
    final: Mapping[str, Mapping[date, Behind]] = field(default_factory=dict)

    def days(self, table: str) -> set[date]:
        """All days of a table that are behind."""
        return {*self.open.get(table, ()), *self.final.get(table, ())}


def backlog(ledgers: Ledgers, policy: Policy, today: date) -> Backlog:
    """Which days are behind their inputs.

    A day is behind if an input's commit changed what the day is made of, and the day was last
    published from an older version of that input, or never; unless the inputs hold again what they
    held then.
    """
    closed, graph = final_days(ledgers, policy), graph_of(ledgers, policy)
    found: dict[str, dict[date, dict[str, Record]]] = defaultdict(lambda: defaultdict(dict))
    for source, table, days_of in follows(ledgers, policy):
        needed = {day: record for record in ledgers[source].records for day in days_of(record)}
        own = graph.policy_of(table)
        due = own.due(today) if table in graph.by_event_day else own.logged(today)
        for day, record in needed.items():
            # They may have been taken back since.
            can = day in due and all(
                day in ledgers[name].published for name in graph.made_from(table)
            )
            # A day that was taken back stays so until there is newer input than there was then.
            built = ledgers[table].latest.get(day) or ledgers[table].withdrawals.get(day)
            if can and _is_older(built, ledgers[source], record):
                found[table][day][source] = record
    backlog = Backlog(defaultdict(dict), defaultdict(dict))
    for table, days in found.items():
        recipes = made_of(graph.inputs[table], ledgers, days)
        for day, inputs in sorted(days.items()):
            published = ledgers[table].stands(day)
            if published and published.made_of == recipes[day]:
                continue
            part = backlog.final if day in closed.get(table, ()) else backlog.open
            part[table][day] = Behind(inputs)  # type: ignore[index]
    return backlog


def follows(
    ledgers: Ledgers, policy: Policy
) -> list[tuple[str, str, Callable[[Record], Iterable[date]]]]:
    """Which table follows which: the days of it that a commit of its input makes due."""
    return [
        (of.source.name, table, of.due(ledgers[of.source.name]))
        for table, inputs in graph_of(ledgers, policy).inputs.items()
        for of in inputs
    ]


def _is_older(built: Record | None, source: Ledger, needed: Record) -> bool:
    """Whether a day was built before an input's commit, or from a table that was since replaced."""
    if built is None:
        return True
    version = built.inputs.get(source.table.name, -1)
    return version < needed.version or version > (source.version or 0)


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
        settled -= record.days_said("unsettled") | record.withdrawn
        new = record.days_said("settled") - settled
        settled |= new
        yield record, new, settled


def closing(ledgers: Ledgers, policy: Policy) -> Callable[[str, Record, date], bool]:
    """Whether a record of a table that closes holds all that will ever decide one of its days.

    Of a table that is made of a raw log, that is so if the window of the day has closed, and the
    record was built from the last of those commits of the log that changed the day until then, or
    later. Of a table that is made of such tables, if so were the input days that decide the day.
    """
    graph = graph_of(ledgers, policy)
    closed = {log: closings(ledgers[log], graph.policy_of(log)) for log in graph.sources}
    changes = {
        (name, of.source.name): _changes(of, ledgers)
        for name in graph.closing
        for of in graph.inputs[name]
        if of.source.name in closed
    }
    builds: dict[str, dict[date, list[Record]]] = {
        name: defaultdict(list) for name in graph.closing
    }
    for name, of_day in builds.items():
        for record in ledgers[name].records:
            for day in record.days:
                of_day[day].append(record)

    def closes(table: str, record: Record, day: date) -> bool:
        return all(
            holds(table, of.source.name, record, day)
            if of.source.name in closed
            else all(
                made(of.source.name, record, needed)
                for needed in of.reach.deciding(ledgers[of.source.name])(day)
                if needed >= graph.policy_of(of.source.name).start
            )
            for of in graph.inputs[table]
        )

    def holds(table: str, log: str, record: Record, day: date) -> bool:
        closed_by = closed[log].get(day)
        if closed_by is None:
            return False
        wanted = max((v for v in changes[table, log][day] if v <= closed_by), default=closed_by)
        return record.inputs.get(log, -1) >= wanted

    def made(source: str, record: Record, day: date) -> bool:
        of = record.inputs.get(source, -1)
        old = [r for r in builds[source][day] if r.version <= of][-1:]
        # Built again since with the same rows, the day asks nothing new of those that follow.
        same = [
            r
            for r in builds[source][day]
            if old and r.version > of and r.days[day].digest == old[0].days[day].digest
        ]
        return any(closes(source, r, day) for r in [*old, *same])

    return closes


def _changes(of: Dependency, ledgers: Ledgers) -> Mapping[date, Sequence[int]]:
    """By day of a table, the commits of a raw log that made it due."""
    found: dict[date, list[int]] = defaultdict(list)
    log = ledgers[of.source.name]
    days_of = of.due(log)
    for record in log.records:
        for day in days_of(record):
            found[day].append(record.version)
    return found


@dataclass(frozen=True)
class Arrivals:
    """The landing folders against what the raw log was loaded from.

    Attributes:
        load: log days to load, with what they are to be loaded from.
        absent: log days that are due and have no folder.
        held: by log day, the files that were replaced by ones that take orders away, and wait for
            a person to accept it.
        recipes: what every log day would be made of now.
    """

    load: Mapping[date, str] = field(default_factory=dict)
    absent: frozenset[date] = frozenset()
    held: Mapping[date, Sequence[str]] = field(default_factory=dict)
    recipes: Mapping[date, str] = field(default_factory=dict, compare=False)


def arrivals(
    raw: Ledger, listing: Listing, policy: Policy, today: date, rejected: Ledger | None = None
) -> Arrivals:
    """Which log days have landed and are not loaded as they are.

    Args:
        raw: the ledger of a raw log.
        rejected: that of its rejected lines, which a run may have failed to publish with it.
        listing: of the whole landing.
        policy: the late-data policy.
        today: a log day must be over to be loaded. One without a folder is loaded as an empty day
            when it is due; its window stays open, until the folder comes or is no longer waited
            for.
    """
    loaded, load, absent, held, recipes = manifests(raw), {}, set(), {}, {}
    due_days = policy.due(today)
    for day, wanted in targets(loaded, listing, policy.logged(today), policy).items():
        then = loaded.get(day)
        recipe = recipes[day] = wanted.manifest.recipe()
        never = day not in raw.published and day not in raw.withdrawals
        if then is None and never and day not in listing.folders and day not in due_days:
            continue
        if wanted.manifest.held:
            held[day] = sorted(wanted.manifest.held)
        if day in due_days and day not in wanted.manifest.there and not wanted.manifest.closed:
            absent.add(day)
        if due(then, wanted):
            load[day] = recipe
        elif rejected is not None and _lags(rejected, day, recipe):
            load[day] = f"{recipe}+{rejected.table.name}"
    return Arrivals(load, frozenset(absent), held, recipes)


def targets(
    before: Mapping[date, Manifest],
    listing: Listing,
    days: Iterable[date],
    policy: Policy,
    *,
    accepted: Collection[str] = (),
    close: bool = False,
) -> dict[date, Target]:
    """What log days are to be made of; see `manifests.target`.

    A folder is waited for until one has been loaded that came so many days later.

    Args:
        before: what all log days were last loaded from.
        listing: of the folders of these days.
        days: the log days.
        policy: the late-data policy.
        accepted: files that may take orders away.
        close: whether nothing more is expected of any of the days without a folder.
    """
    seen = {day for day, one in before.items() if day in one.there}
    newest = max(seen, default=date.min)
    return {
        day: target(
            day,
            before.get(day),
            listing,
            seen=seen,
            accepted=accepted,
            close=close or (newest - day).days >= policy.absent_days,
        )
        for day in days
    }


def manifests(raw: Ledger) -> dict[date, Manifest]:
    """What each log day was last loaded from; those of which it is not known are left out."""
    loaded = {
        date.fromisoformat(day): said
        for record in raw.records
        for day, said in record.said.get("landing", {}).items()
    }
    found = {day: Manifest.of(said) for day, said in loaded.items()}
    return {day: manifest for day, manifest in found.items() if manifest is not None}


def _lags(table: Ledger, day: date, recipe: str) -> bool:
    """Whether a day is not published as its recipe asks; where no recipe is on record, it is."""
    published = table.stands(day)
    if published is None:
        return day not in table.withdrawals
    return published.made_of not in ("", recipe)


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
    found: Mapping[str, Arrivals], graph: Graph, per_run: int | None, bridge: Bridge = _no_bridge
) -> list[Request]:
    """The runs that load what has landed, with all that follows a raw log by log day.

    Args:
        found: by raw log, what has landed and is not loaded.
        graph: of all tables.
        per_run: at most so many days a run.
        bridge: tells the days of a gap over which two ranges become one.
    """
    groups = {graph.loaded_with(log): dict(arrived.load) for log, arrived in found.items()}
    return _requests(groups, per_run, bridge)


def rebuild_requests(
    behind: Backlog,
    graph: Graph,
    per_run: int | None,
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

    def ready(table: str, reason: Behind) -> bool:
        by = {id_ for r in reason.inputs.values() for id_ in (r.run_id, r.backfill_id)}
        return not any(table in tables for id_, tables in (busy or {}).items() if id_ in by)

    tokens: dict[tuple[date, str], str] = {}
    for table in (*graph.by_log_day, *graph.by_event_day):
        for day, reason in behind.open.get(table, {}).items():
            if ready(table, reason):
                tokens[day, table] = reason.token
    groups: dict[tuple[str, ...], dict[date, str]] = defaultdict(dict)
    for chain, together in ((graph.by_log_day, False), (graph.by_event_day, True)):
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
    return _requests(groups, per_run, bridge)


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
    groups: Mapping[tuple[str, ...], Mapping[date, str]], per_run: int | None, bridge: Bridge
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


def _cut(days: Sequence[date], most: int | None) -> list[Window]:
    """The fewest windows of at most so many days that hold these, which are in order."""
    found: list[Window] = []
    for day in days:
        if found and (most is None or len(Window(found[-1].start, day)) < most):
            found[-1] = Window(found[-1].start, day + DAY)
        else:
            found.append(Window(day, day + DAY))
    return found
