"""From what the tables' commits say to what must be rebuilt: the days that are behind their inputs.

Pure functions over ledgers and dates. They look at the state, not at events: what was missed while
nothing ran is found the next time that somebody looks.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from backfill_assets.landing import NOT_LANDED, read_from
from backfill_assets.lateness import Policy, log_days
from backfill_assets.partitions import DAY, Window, windows
from backfill_assets.recipes import landed, made_of
from backfill_assets.records import Ledger, Ledgers, Record
from backfill_assets.schemas import (
    CORRECTIONS,
    CURRENT,
    FACT,
    LATE,
    LATENESS,
    RAW,
    REJECTED,
    STAGED,
)

#: Tables by log day that follow the raw log, and tables by event day, each built from the one
#: before it.
BY_LOG_DAY = (LATE.name, CORRECTIONS.name, LATENESS.name)
BY_EVENT_DAY = (STAGED.name, FACT.name, CURRENT.name)


@dataclass(frozen=True)
class Behind:
    """Why a day of a table is behind: by input, the record that changed what it is made of."""

    inputs: Mapping[str, Record]

    @property
    def token(self) -> str:
        """The versions that the day needs, as text."""
        return ",".join(f"{name}@{record.version}" for name, record in sorted(self.inputs.items()))


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
    raw, rejected = ledgers[RAW.name], ledgers[REJECTED.name]
    possible: dict[str, Container[date]] = {
        LATENESS.name: raw.published & rejected.published,
        CURRENT.name: ledgers[FACT.name].published,
        # They may have been taken back since.
        STAGED.name: raw.published,
        LATE.name: raw.published,
        CORRECTIONS.name: raw.published,
        FACT.name: ledgers[STAGED.name].published,
    }
    closed = final_days(ledgers, policy)
    found: dict[str, dict[date, dict[str, Record]]] = defaultdict(lambda: defaultdict(dict))
    for source, table, days_of in follows(ledgers, policy):
        needed = {day: record for record in ledgers[source].records for day in days_of(record)}
        due = policy.due(today) if table in BY_EVENT_DAY else policy.logged(today)
        for day, record in needed.items():
            can = day in due and day in possible.get(table, due)
            # A day that was taken back stays so until there is newer input than there was then.
            built = ledgers[table].latest.get(day) or ledgers[table].withdrawals.get(day)
            if can and _is_older(built, ledgers[source], record):
                found[table][day][source] = record
    backlog = Backlog(defaultdict(dict), defaultdict(dict))
    for table, days in found.items():
        recipes = made_of(table, ledgers, days, policy)
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
    raw, rejected = ledgers[RAW.name], ledgers[REJECTED.name]
    return [
        (RAW.name, STAGED.name, _event_days(policy)),
        (RAW.name, LATE.name, _changed_days(raw)),
        (RAW.name, CORRECTIONS.name, _changed_log_days),
        (RAW.name, LATENESS.name, _changed_log_days),
        (REJECTED.name, LATENESS.name, _changed_days(rejected)),
        (STAGED.name, FACT.name, _changed_days(ledgers[STAGED.name])),
        (FACT.name, CURRENT.name, _changed_days(ledgers[FACT.name])),
        (CORRECTIONS.name, CURRENT.name, lambda record: record.days_said("run_dates")),
    ]


def _is_older(built: Record | None, source: Ledger, needed: Record) -> bool:
    """Whether a day was built before an input's commit, or from a table that was since replaced."""
    if built is None:
        return True
    version = built.inputs.get(source.table.name, -1)
    return version < needed.version or version > (source.version or 0)


def _changed_days(source: Ledger) -> Callable[[Record], Iterable[date]]:
    """The days on which a commit changed what the table holds."""
    return lambda record: source.changed[record.version]


def _event_days(policy: Policy) -> Callable[[Record], Iterable[date]]:
    """The event days that a commit of the raw log makes due."""

    def event_days(record: Record) -> Iterable[date]:
        if policy.only_touched and "event_days" in record.said:
            return record.days_said("event_days")
        # What may not be built, as its own log day is not there, is for `backlog` to say.
        changed = record.days.keys() | record.withdrawn
        return {d for day in changed for d in policy.may_touch(day)}

    return event_days


def _changed_log_days(record: Record) -> Iterable[date]:
    """The log days whose corrections a commit of the raw log may change."""
    return record.days_said("log_days") if "log_days" in record.said else record.days


def final_days(
    ledgers: Ledgers, policy: Policy, among: Container[date] | None = None
) -> dict[str, set[date]]:
    """The days of staging and facts that only a person may rebuild; among some, if given.

    Those whose latest record says that they were built with all their log days; and those whose
    window closed later and quietly, as the last of its log days changed nothing for them.
    """
    closes = closing(ledgers, policy)
    return {
        name: {
            day
            for day, record in ledgers[name].latest.items()
            if (among is None or day in among)
            if day in record.final or closes(name, record, day)
        }
        for name in (STAGED.name, FACT.name)
    }


def closing(ledgers: Ledgers, policy: Policy) -> Callable[[str, Record, date], bool]:
    """Whether a record of staging or facts holds all that the window of one of its days brought.

    That is so if all log days of the window are loaded, and the record was built from the last of
    those commits of the raw log that changed the day until then, or later.
    """
    raw, staged = ledgers[RAW.name], ledgers[STAGED.name]
    first: dict[date, int] = {}
    changes: dict[date, list[int]] = defaultdict(list)
    event_days = _event_days(policy)
    for record in raw.records:
        for day in record.days:
            first.setdefault(day, record.version)
        for day in record.withdrawn:
            first.pop(day, None)
        for day in event_days(record):
            changes[day].append(record.version)
    builds: dict[date, list[Record]] = defaultdict(list)
    for record in staged.records:
        for day in record.days:
            builds[day].append(record)

    def closes(table: str, record: Record, day: date) -> bool:
        if not policy.is_final(day, first):
            return False
        closed_by = max(first[d] for d in log_days(Window(day, day + DAY), policy.window_days))
        wanted = max((v for v in changes[day] if v <= closed_by), default=closed_by)
        if table == FACT.name:
            of = record.inputs.get(STAGED.name, -1)
            old = [r for r in builds[day] if r.version <= of][-1:]
            # Staged again since with the same rows, the day needs no new facts.
            same = [
                r
                for r in builds[day]
                if old and r.version > of and r.days[day].digest == old[0].days[day].digest
            ]
            return any(r.inputs.get(RAW.name, -1) >= wanted for r in [*old, *same])
        return record.inputs.get(RAW.name, -1) >= wanted

    return closes


@dataclass(frozen=True)
class Arrivals:
    """The landing folders against what the raw log was loaded from.

    Attributes:
        load: log days to load, with what they are to be loaded from.
        gone: log days whose files are no longer there; never loaded by themselves, as that would
            empty them.
        absent: log days that are due and have no folder.
    """

    load: Mapping[date, str]
    gone: Sequence[date]
    absent: frozenset[date]


def arrivals(
    raw: Ledger,
    contents: Mapping[date, str],
    policy: Policy,
    today: date,
    rejected: Ledger | None = None,
) -> Arrivals:
    """Which log days have landed and are not loaded as they are.

    Args:
        raw: the ledger of `raw_orders`.
        rejected: that of `raw_orders_rejected`, which a run may have failed to publish with it.
        contents: what is in the landing, as `landing.contents` says it.
        policy: the late-data policy.
        today: a log day must be over to be loaded. One without a folder is loaded as an empty day
            when it is due: no folder is how a source says that there is nothing.
    """
    loaded = loaded_from(raw)
    load, gone, absent = {}, [], set()
    due = policy.due(today)
    for day in policy.logged(today):
        now = read_from(contents, day)
        then = loaded.get(day)
        if now[1] == NOT_LANDED and day in due and (then is None or then[1] == NOT_LANDED):
            absent.add(day)
        if then is None:
            if now[1] != NOT_LANDED or day in due:
                load[day] = "+".join(now)
        elif then != now:
            if any(_files(b) < _files(a) for a, b in zip(then, now, strict=True)):
                gone.append(day)
            else:
                load[day] = "+".join(now)
        elif rejected is not None and _lags(rejected, day, landed(contents, [day])[day]):
            load[day] = "+".join([*now, REJECTED.name])
    return Arrivals(load, gone, frozenset(absent))


def loaded_from(raw: Ledger) -> dict[date, list[str]]:
    """What each log day was last loaded from, as `landing.read_from` spells it."""
    return {
        date.fromisoformat(day): what
        for record in raw.records
        for day, what in record.said.get("landing", {}).items()
    }


def _lags(table: Ledger, day: date, recipe: str) -> bool:
    """Whether a day is not published as its recipe asks; where no recipe is on record, it is."""
    published = table.stands(day)
    if published is None:
        return day not in table.withdrawals
    return published.made_of not in ("", recipe)


def _files(content: str) -> int:
    return 0 if content == NOT_LANDED else int(content.partition("-")[0])


@dataclass(frozen=True)
class Request:
    """One run to ask for: a gapless range of days of some tables.

    Attributes:
        tables: the tables to build, by name.
        window: the days.
        key: names what the run is for; the same days for the same inputs have the same key.
    """

    tables: tuple[str, ...]
    window: Window
    key: str


def load_requests(found: Arrivals, per_run: int | None) -> list[Request]:
    """The runs that load what has landed, with all that follows the raw log by log day."""
    tables = (RAW.name, REJECTED.name, *BY_LOG_DAY)
    return _requests({tables: dict(found.load)}, per_run)


def rebuild_requests(
    behind: Backlog, per_run: int | None, busy: Mapping[str, Container[str]] | None = None
) -> list[Request]:
    """The runs that bring the open days up to date.

    Args:
        behind: the backlog.
        per_run: at most so many days a run.
        busy: by the id of a run or backfill that is under way, the tables that wait for it where
            it changed one of their inputs: it is about to build them, or to change more.
    """

    def ready(table: str, reason: Behind) -> bool:
        by = {id_ for r in reason.inputs.values() for id_ in (r.run_id, r.backfill_id)}
        return not any(table in tables for id_, tables in (busy or {}).items() if id_ in by)

    tokens: dict[tuple[date, str], str] = {}
    for table in (*BY_LOG_DAY, *BY_EVENT_DAY):
        for day, reason in behind.open.get(table, {}).items():
            if ready(table, reason):
                tokens[day, table] = reason.token
    groups: dict[tuple[str, ...], dict[date, str]] = defaultdict(dict)
    for chain, together in ((BY_LOG_DAY, False), (BY_EVENT_DAY, True)):
        wanted = defaultdict(set)
        for day, table in tokens:
            if table in chain:
                wanted[day].add(table)
        for day, tables in wanted.items():
            first = min(chain.index(table) for table in tables)
            # By event day, what follows a rebuilt table is rebuilt with it.
            build = chain[first:] if together else tuple(t for t in chain if t in tables)
            token = ",".join(tokens[day, table] for table in chain if table in tables)
            groups[build][day] = token
    return _requests(groups, per_run)


def _requests(
    groups: Mapping[tuple[str, ...], Mapping[date, str]], per_run: int | None
) -> list[Request]:
    found = []
    for tables, days in groups.items():
        for window in windows(days):
            for part in window.split(per_run):
                tokens = sorted({days[day] for day in part})
                inputs = hashlib.sha256(repr(tokens).encode()).hexdigest()[:12]
                key = f"{'+'.join(tables)}:{part}:{inputs}"
                found.append(Request(tables, part, key))
    return found
