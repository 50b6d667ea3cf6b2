"""How many calls of services a backfill makes, and how long their quotas make it take.

Told from the tables' logs. Which requests a day makes is known only once it is computed: so this is
a bound, for functions that make one request of a row at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date

from backfill_assets.backfills.fates import WORK, Fate
from backfill_assets.backfills.plans import Calls
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.publish.reasons import ASKED_FOR
from backfill_assets.tables.derived import Derived
from backfill_assets.tables.lookups import Answers, Lookup, requests_to


def calls_of(fates: Mapping[str, Mapping[date, Fate]], ledgers: Ledgers) -> dict[str, Calls]:
    """By service, the calls of a plan.

    Args:
        fates: what becomes of the days of each table.
        ledgers: those of all tables.
    """
    found: dict[str, Calls] = {}
    for name, of_days in fates.items():
        table = ledgers[name].table
        if not isinstance(table, Derived):
            continue
        # Of a day that is only written again, all answers are kept.
        days = [day for day, of in of_days.items() if of.expected in WORK and of.why != ASKED_FOR]
        for asked in table.asks.values():
            calls = _calls(asked, table, days, ledgers)
            before = found.get(asked.lookup.name)
            found[asked.lookup.name] = _both(before, calls) if before else calls
    return found


def _calls(asked: Answers, table: Derived, days: Iterable[date], ledgers: Ledgers) -> Calls:
    """The calls that days of a table make."""
    ledger, lookup = ledgers[table.name], asked.lookup
    reads = [table.reads[name] for name in asked.parameters if name in table.reads]

    def rows(day: date) -> int:
        return sum(
            ledgers[of.table.name].rows_of(input_day) or 0
            for of in reads
            for input_day in of.reach.deciding(ledgers[of.table.name])(day)
        )

    made = {day: count for day in ledger.latest if (count := _recorded(ledger, day, lookup))}
    read = sum(rows(day) for day in made)
    total = unknown = 0
    like_before = 0.0
    for day in days:
        unknown += any(
            ledgers[of.table.name].rows_of(needed) is None
            for of in reads
            for needed in of.reach.needed(day)
        )
        total += rows(day)
        if read:
            forgotten = day not in made or lookup.name in ledger.other_references(day)
            kept = 0 if forgotten else made[day]
            like_before += max(0.0, rows(day) * sum(made.values()) / read - kept)
    expected = min(total, math.ceil(like_before)) if read else None
    return Calls(
        at_most=total,
        expected=expected,
        unknown_days=unknown,
        seconds=lookup.seconds_for(total),
        expected_seconds=lookup.seconds_for(expected or 0),
        quota=" and ".join(map(str, lookup.quotas)),
        reserve=lookup.reserve,
    )


def _both(one: Calls, other: Calls) -> Calls:
    """The calls of two tables that ask the same service; which requests they share nobody knows."""
    known = [calls.expected for calls in (one, other) if calls.expected is not None]
    return one.model_copy(
        update={
            "at_most": one.at_most + other.at_most,
            "expected": sum(known) if len(known) == 2 else None,
            "unknown_days": one.unknown_days + other.unknown_days,
            "seconds": one.seconds + other.seconds,
            "expected_seconds": one.expected_seconds + other.expected_seconds,
        }
    )


def _recorded(ledger: Ledger, day: date, lookup: Lookup) -> int:
    """How many requests a day made when it was published."""
    return int(ledger.latest[day].days[day].numbers.get(requests_to(lookup.name), 0))
