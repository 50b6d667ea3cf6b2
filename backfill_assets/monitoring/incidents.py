"""What a person must be told: incidents, from the states of the days."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import date

from backfill_assets.calendar.partitions import DAY, spelled, windows
from backfill_assets.delta.commits import LOG_RETENTION
from backfill_assets.delta.evolution import differences, way
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.monitoring.outbox import Incident
from backfill_assets.monitoring.states import (
    MEANING,
    Situation,
    State,
    changed_final_days,
    day_states,
    holes,
)
from backfill_assets.quality.audit import Severity
from backfill_assets.staleness.arrivals import silence
from backfill_assets.tables.sources import Role, Source, SourceTable

#: Late lines of so many days back are still news.
_NEWS = 30
_ABSENT = (
    "no folder has landed for this arrival day, so it counts as an empty day until files land; if "
    "there is nothing to send, an empty folder says so"
)
_CLOSED = (
    "new lines have landed for days whose window has closed: {} the days stay as they are. To take "
    "the lines into them, materialize {} and what follows for these days"
)


def incidents(now: Situation) -> list[Incident]:
    """All that is wrong as of now; the same as long as it is."""
    states = {name: day_states(name, now) for name in now.ledgers}
    changed = {name: changed_final_days(name, now) for name in now.frozen}
    found: list[Incident] = []

    def add(kind: str, table: str, days: Collection[date], detail: str) -> None:
        found.extend(Incident(kind, table, str(day), detail) for day in sorted(days))

    for name, by_day in states.items():
        found += table_as_such(now.ledgers[name], now.graph.made_from(name))
        if _misfit(now.ledgers[name]):
            continue  # no day of it is known, and none can be published
        # Where a day is missing in what the table is made from, that is the incident.
        upstream = [states[of] for of in now.graph.made_from(name) or _loaded_with(name, now)]
        not_built = {day for source in upstream for day in _in(source, State.CHECK_FAILED)}
        # A day that failed is failed in all that is made of it: the first table is the one to mend.
        found += _failed_checks(name, _in(by_day, State.CHECK_FAILED) - not_built, now)
        not_built |= {
            day for source in upstream for day in _in(source, State.MISSING, State.ON_HOLD)
        }
        missing = _in(by_day, State.MISSING) - not_built
        inside = holes(by_day)
        add("hole", name, missing & inside, MEANING[State.MISSING])
        add("stale", name, missing - inside, MEANING[State.MISSING])
        external = _in(by_day, State.EXTERNAL) - changed.get(name, {}).keys()
        add("changed by another writer", name, external, MEANING[State.EXTERNAL])
        if unlike := _in(by_day, State.OTHER_SETTINGS):
            # One for the table: a setting that was changed concerns most of its days.
            detail = f"{spelled(unlike)}: {MEANING[State.OTHER_SETTINGS]}"
            found.append(Incident("other settings", name, "", detail, {"days": len(unlike)}))
        withdrawn = _in(by_day, State.INPUT_WITHDRAWN)
        add("input taken back", name, withdrawn, MEANING[State.INPUT_WITHDRAWN])
        if closed := now.backlog.final.get(name):
            add("new input for final days", name, closed.keys(), _of_closed_days(name, now))
    for name, days in changed.items():
        for day, how in days.items():
            detail = f"{how}; compare it with what it should be"
            found.append(Incident("final day changed", name, str(day), detail, {how: 1}))
    for log, source in now.graph.sources.items():
        recent = {day for day in now.absent[log] if day > now.today - _NEWS * DAY}
        add("input missing", log, recent, _ABSENT)
        for day, files in sorted(now.arrivals[log].held.items()):
            detail = f"{', '.join(files)}: {MEANING[State.HELD]}"
            size = {"files": len(files)}
            found.append(Incident("replaced file waits", log, str(day), detail, size))
        found += out_of_time(now, log)
        found += _many_rejected(now, log)
        found += _late_money(now, source)
    return found


def _failed_checks(name: str, days: Collection[date], now: Situation) -> Iterator[Incident]:
    for day in sorted(days):
        checks = sorted(now.failed[name][day])
        detail = f"{', '.join(checks)}: {MEANING[State.CHECK_FAILED]}"
        yield Incident("check failed", name, str(day), detail, dict.fromkeys(checks, 1))


def _loaded_with(name: str, now: Situation) -> list[str]:
    """The raw log that rejected lines are loaded with: a day missing in both is one incident."""
    table = now.ledgers[name].table
    rejected = isinstance(table, SourceTable) and table.role is Role.REJECTED
    return [*now.graph.logs(name)] if rejected else []


def _of_closed_days(name: str, now: Situation) -> str:
    """What became of lines for the closed days of a table, and what a person can do."""
    graph = now.graph
    never_close = [table for table in graph.by_event_day if table not in graph.closing]
    has = [table for table in never_close if graph.logs(table) & graph.logs(name)]
    first = next(table for table in graph.closing if table in {name, *graph.upstream(name)})
    have = "have" if len(has) > 1 else "has"
    return _CLOSED.format(f"{' and '.join(has)} {have} them," if has else "", first)


def _misfit(ledger: Ledger) -> list[str]:
    """What is different in a table from what its model says."""
    return differences(ledger.table, ledger.metadata) if ledger.metadata else []


def table_as_such(ledger: Ledger, made_from: Sequence[str]) -> Iterator[Incident]:
    """What is wrong with a table rather than with days of it."""
    name = ledger.table.name
    if (said := _misfit(ledger)) and ledger.metadata:
        advice = way(ledger.table, ledger.metadata, made_from)
        detail = f"{'; '.join(said)}; no day can be published. {advice}"
        yield Incident("table is not that of the code", name, "", detail, dict.fromkeys(said, 1))
        return
    properties = ledger.metadata.properties if ledger.metadata else LOG_RETENTION
    retention = "; ".join(
        f"{key} is {properties.get(key, 'not set')}, where the pipeline sets {value}: Delta drops "
        "older commits, and with them the record of what was published. Run backfill-assets "
        "maintain, which sets it back"
        for key, value in LOG_RETENTION.items()
        if properties.get(key) != value
    )
    if days := ledger.unrecorded:
        detail = (
            f"of version(s) {_spans(ledger.lost)} neither the commit nor a copy is there any more; "
            f"{len(days)} day(s) have no record of who published them, and from what: "
            f"{', '.join(map(str, windows(days)))}. {MEANING[State.UNRECORDED]}"
        )
        detail = "; ".join(filter(None, [detail, retention]))
        yield Incident("log was cut", name, "", detail, {"days": len(days)})
    elif retention:
        yield Incident("log retention changed", name, "", retention)


def _spans(versions: Iterable[int]) -> str:
    """Versions as ranges."""
    found: list[list[int]] = []
    for version in sorted(versions):
        if found and version == found[-1][1] + 1:
            found[-1][1] = version
        else:
            found.append([version, version])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def _in(states: dict[date, State], *wanted: State) -> set[date]:
    return {day for day, state in states.items() if state in wanted}


def out_of_time(now: Situation, log: str) -> Iterator[Incident]:
    """Where the clock and what has landed do not go together: one of the two is wrong."""
    if said := silence(now.arrivals[log], now.graph.policy_of(log), now.today):
        yield Incident("nothing lands", log, "", said)
    if ahead := [day for day in now.ledgers[log].published if day >= now.today]:
        detail = (
            f"{log} [{spelled(ahead)}] is published, and by this machine's clock these days are "
            "not over: the clock runs behind, or ran ahead when they were loaded. Set the clock. "
            "Nothing is loaded for these days until they are over"
        )
        yield Incident("published before it was over", log, "", detail)


def _many_rejected(now: Situation, log: str) -> list[Incident]:
    """Published days of which many lines were rejected; those not published are failed checks."""
    found = []
    for day, record in sorted(now.ledgers[log].latest.items()):
        published = record.days[day]
        severity, said = published.findings.get("rejected_lines", ("", ""))
        if severity == Severity.ALERT.value and day > now.today - _NEWS * DAY:
            size = {"lines": float(published.entries.get("rejected", 0))}
            found.append(Incident("lines rejected", log, str(day), f"{day}: {said}", size))
    return found


def _late_money(now: Situation, source: Source) -> list[Incident]:
    late = source.late.name
    has = " and in ".join([late, *now.graph.current(source.raw.name)])
    became = (
        f"they are in {has}"
        if source.under(now.policy).corrects
        else "they were DROPPED and are in no total"
    )
    found = []
    for day, record in sorted(now.ledgers[late].latest.items()):
        count, amount = record.details.late.get(day, (0, "0"))
        if count and day > now.today - _NEWS * DAY:
            worth = f" worth {amount}" if source.amount else ""
            size = {"lines": float(count), "amount": float(amount)}
            detail = f"{day}: {count} line(s){worth} came after their day had closed; {became}"
            found.append(Incident("late money", late, str(day), detail, size))
    return found
