"""Which days still hold what was made of input that has been taken back since.

A pure function over ledgers. It sees what no backlog can: a day whose input is no more cannot be
built again, so nothing asks for it.
"""

from __future__ import annotations

from datetime import date

from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import Record
from backfill_assets.staleness.backlog import follows
from backfill_assets.staleness.supposed import depending


def built_of_withdrawn(ledgers: Ledgers, policy: Policy) -> dict[str, set[date]]:
    """The published days that were made of a day that is withdrawn now, by table.

    Directly, or by way of another table. An undo takes them back with their input; they are there
    while it is under way, after one that was broken off, or where a run was too late to see it.

    Args:
        ledgers: those of all tables.
        policy: the late-data policy.
    """
    found: dict[str, set[date]] = {name: set() for name in ledgers}
    for source, table, days_of in follows(ledgers, policy):
        latest = ledgers[table].latest
        for record, gone in _withdrawals(ledgers[source]):
            built = {
                day
                for day in days_of(record)
                if day in latest and latest[day].inputs.get(source, record.version) < record.version
            }
            found[table] |= depending(ledgers, policy, table, built, source, gone)
        found[table] |= depending(ledgers, policy, table, latest, source, found[source])
    return found


def _withdrawals(ledger: Ledger) -> list[tuple[Record, set[date]]]:
    """The commits that took back days which nobody has published since."""
    taken = ledger.withdrawals
    records = {record.version: record for record in taken.values()}
    return [
        (record, {day for day, by in taken.items() if by.version == version})
        for version, record in records.items()
    ]
