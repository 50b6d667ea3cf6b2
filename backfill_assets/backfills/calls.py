"""How many calls of services a backfill makes, and how long their quotas make it take.

Told from the tables' logs. Which requests a day makes is known only once it is computed: so this is
a bound, for functions that make one request of a row at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date

from backfill_assets.backfills.fates import WORK, Fate
from backfill_assets.backfills.plans import Calls
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.publish.reasons import ASKED_FOR
from backfill_assets.tables.derived import Derived
from backfill_assets.tables.lookups import Answers


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
            lookup = asked.lookup
            before = found.get(lookup.name)
            at_most, unknown = _bound(table, asked, days, ledgers)
            at_most += before.at_most if before else 0
            found[lookup.name] = Calls(
                at_most=at_most,
                unknown_days=unknown + (before.unknown_days if before else 0),
                seconds=lookup.seconds_for(at_most),
                quota=" and ".join(map(str, lookup.quotas)),
                reserve=lookup.reserve,
            )
    return found


def _bound(
    table: Derived, asked: Answers, days: Iterable[date], ledgers: Ledgers
) -> tuple[int, int]:
    """So many requests at most, and of how many days nobody can say."""
    reads = [table.reads[name] for name in asked.parameters if name in table.reads]
    total = unknown = 0
    for day in days:
        rows = [
            _rows(ledgers[of.table.name], input_day)
            for of in reads
            for input_day in of.reach.deciding(ledgers[of.table.name])(day)
        ]
        total += sum(count for count in rows if count is not None)
        own = [_rows(ledgers[of.table.name], of.reach.needed(day)) for of in reads]
        unknown += None in own
    return total, unknown


def _rows(ledger: Ledger, day: date) -> int | None:
    """The rows of a day; none if it is not published."""
    if day not in ledger.published:
        return None
    if ledger.rows is not None and day in ledger.rows:
        return ledger.rows[day]
    return ledger.measured[day].rows if day in ledger.measured else 0
