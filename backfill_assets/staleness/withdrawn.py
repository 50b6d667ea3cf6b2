"""Which days still hold what was made of input that has been taken back since.

A pure function over ledgers. It sees what no backlog can: a day whose input is no more cannot be
built again, so nothing asks for it.
"""

from __future__ import annotations

from datetime import date

from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import CommitRecord
from backfill_assets.staleness.backlog import downstream_tables
from backfill_assets.staleness.supposed import days_depending_on


def built_from_revoked(ledgers: Ledgers, policy: Policy) -> dict[str, set[date]]:
    """The published days that were made of a day that is withdrawn now, by table.

    Directly, or by way of another table. An undo takes them back with their input; they are there
    while it is under way, after one that was broken off, or where a run was too late to see it.

    Args:
        ledgers: those of all tables.
        policy: the late-data policy.
    """
    affected_days: dict[str, set[date]] = {name: set() for name in ledgers}
    for source, table, days_of in downstream_tables(ledgers, policy):
        latest = ledgers[table].latest
        for record, revoked_days in _revocations(ledgers[source]):
            built = {
                day
                for day in days_of(record)
                if day in latest and latest[day].inputs.get(source, record.version) < record.version
            }
            affected_days[table] |= days_depending_on(
                ledgers, policy, table, built, source, revoked_days
            )
        affected_days[table] |= days_depending_on(
            ledgers, policy, table, latest, source, affected_days[source]
        )
    return affected_days


def _revocations(ledger: Ledger) -> list[tuple[CommitRecord, set[date]]]:
    """The commits that took back days which nobody has published since."""
    revoked = ledger.revocations
    records = {record.version: record for record in revoked.values()}
    return [
        (record, {day for day, commit in revoked.items() if commit.version == version})
        for version, record in records.items()
    ]
