"""What becomes of each day of a plan: its fingerprint now, and if what it is made of changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import NamedTuple

from backfill_assets.backfills.plan_landing import Landed
from backfill_assets.backfills.plans import Expected, Parameters
from backfill_assets.calendar.partitions import DAY
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.publish.reasons import new_input, why
from backfill_assets.settings import Settings
from backfill_assets.staleness.fingerprints import input_fingerprints
from backfill_assets.staleness.supposed import Supposed
from backfill_assets.tables.catalog import config_digests
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.derived import carries_state
from backfill_assets.tables.graph import Graph, graph_of

#: What is work: the day is computed, or may be.
WORK = (Expected.COMPUTED, Expected.DEPENDS)


class Fate(NamedTuple):
    """What will become of a day; and why, if that is work."""

    expected: Expected
    why: str = ""


def fates_of(
    settings: Settings,
    parameters: Parameters,
    days: Mapping[str, Sequence[date]],
    ledgers: Ledgers,
    code: Code,
    landed: Mapping[str, Landed],
) -> dict[str, dict[date, Fate]]:
    """What becomes of each day: its fingerprint as it is now, and as it is if its inputs change.

    Args:
        settings: the deployment's settings.
        parameters: what is asked for.
        days: the days of each table, inputs first.
        ledgers: those of all tables.
        code: the code that is to compute it.
        landed: by raw log, what its days are to be loaded from.
    """
    policy, digests = Policy.of(settings), config_digests(settings)
    supposed: dict[str, Ledger] = dict(ledgers)
    unlike = {name: ledgers[name].under_other_settings(digests[name]) for name in ledgers}
    found, graph = {}, graph_of(ledgers, policy)
    for name, wanted in days.items():
        ledger, by = ledgers[name], (code.table_version(name), digests[name])
        load = _load_of(graph, name, landed)
        now = load.fingerprints if load else _fingerprints(graph, name, ledgers, wanted)
        may_change = _may_change(graph, name, now, ledgers, supposed)
        inputs = graph.made_from(name)
        reads = {
            of.source.name: of.reach.deciding(supposed[of.source.name])
            for of in graph.inputs[name]
            if unlike[of.source.name]
        }
        of, fates = [ledgers[input_] for input_ in inputs], {}
        for day in wanted:
            said = load.news.get(day, "") if load else ""
            reason = why(ledger, day, now[day], *by, parameters.rewrite, inputs=of, news=said)
            missing = None in ledger.references.values()
            if missing or _lacks_input(graph, name, day, supposed):
                fates[day] = Fate(Expected.LACKING)
            elif any(not unlike[of].isdisjoint(deciding(day)) for of, deciding in reads.items()):
                fates[day] = Fate(Expected.OTHER_SETTINGS)
            elif parameters.rewrite or not _made_by(ledger, day, by):
                fates[day] = Fate(Expected.COMPUTED, reason or "")
            elif changing := may_change[day]:
                fates[day] = Fate(Expected.DEPENDS, new_input(changing))
            elif reason is not None:
                fates[day] = Fate(Expected.COMPUTED, reason)
            else:
                fates[day] = Fate(Expected.IDENTICAL)
        if carries_state(ledger.table):
            fates = _in_order(ledger, fates, graph.policy_of(name).start)
        found[name] = fates
        if moving := {day for day, fate in fates.items() if fate.expected in WORK}:
            unlike[name] -= moving
            supposed[name] = Supposed.of(ledger, moving)
    return found


def _lacks_input(graph: Graph, name: str, day: date, ledgers: Ledgers) -> bool:
    """Whether a day of another table that a day needs is not there, and will not be."""
    return any(
        needed not in ledgers[of.source.name].published
        for of in graph.inputs[name]
        if of.source.name != name
        for needed in of.reach.needed(day)
    )


def _in_order(ledger: Ledger, fates: Mapping[date, Fate], start: date) -> dict[date, Fate]:
    """The fates of days that are built one upon the other.

    Args:
        ledger: that of the table.
        fates: of its days, by what else they are made of.
        start: its first day.
    """
    found: dict[date, Fate] = {}
    for day, fate in sorted(fates.items()):
        before = day - DAY
        there = before in ledger.published or before < start
        earlier = found.get(before, Fate(Expected.IDENTICAL if there else Expected.LACKING))
        found[day] = fate
        if fate.expected not in (*WORK, Expected.IDENTICAL):
            continue
        if earlier.expected in WORK:
            kind = fate.expected if fate.expected in WORK else Expected.DEPENDS
            reasons = [fate.why, f"waits for the day before of {ledger.table.name}"]
            found[day] = Fate(kind, "; ".join(filter(None, reasons)))
        elif earlier.expected is not Expected.IDENTICAL and fate.expected in WORK:
            found[day] = Fate(earlier.expected)
    return found


def _load_of(graph: Graph, name: str, landed: Mapping[str, Landed]) -> Landed | None:
    """What a table is to be loaded from; none if it is made of other tables."""
    logs = graph.logs(name) if name in graph.landed else ()
    return next((landed[log] for log in logs), None)


def _fingerprints(
    graph: Graph, name: str, ledgers: Ledgers, days: Iterable[date]
) -> dict[date, str]:
    return input_fingerprints(graph.inputs[name], ledgers, days, ledgers[name].references)


def _may_change(
    graph: Graph,
    name: str,
    now: Mapping[date, str],
    ledgers: Ledgers,
    supposed: Ledgers,
) -> dict[date, list[str]]:
    """By day, the inputs that change what it is made of, if they change where they may."""
    found: dict[date, list[str]] = {day: [] for day in now}
    for input_ in (of.source.name for of in graph.inputs[name]):
        if not isinstance(supposed[input_], Supposed):
            continue
        then = _fingerprints(graph, name, {**ledgers, input_: supposed[input_]}, now)
        for day in now:
            if then[day] != now[day]:
                found[day].append(input_)
    return found


def _made_by(ledger: Ledger, day: date, by: tuple[str, str]) -> bool:
    """Whether a day stands as this code and configuration published it."""
    record = ledger.latest.get(day) if ledger.current_record(day) else None
    return record is not None and (record.code_version, record.made_under(day)) == by
