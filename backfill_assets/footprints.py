"""What one backfill did to a table, from the table's ledger: its days, and the versions around it.

Pure functions over ledgers; `accounts` and `undo` rest on them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import date

from backfill_assets.records import Foreign, Ledger, Ledgers, Record

#: As many characters of a run's id as the console shows are enough to name it.
_SHORT = 8


def belongs(record: Record, name: str) -> bool:
    """Whether a commit is part of a backfill.

    Args:
        record: what the commit says of itself.
        name: a backfill's id, whose stages are called `<id>-<stage>`; or a run's id, or its first
            eight characters or more, for a range that was run without a backfill.
    """
    backfill = record.backfill_id or ""
    if not name:
        return False
    if backfill == name or backfill.startswith(f"{name}-"):
        return True
    return len(name) >= _SHORT and record.run_id.startswith(name)


def backfills_of(ledgers: Ledgers, name: str) -> set[str]:
    """The ids of the backfills that commits belong to, if what is named is a run of one.

    Args:
        ledgers: those of all tables.
        name: as `belongs` takes it.
    """
    commits = (record for ledger in ledgers.values() for record in ledger.records)
    return {r.backfill_id for r in commits if r.backfill_id and belongs(r, name)}


@dataclass(frozen=True)
class Change:
    """What a backfill did to one day.

    Attributes:
        before: the table's version just before it first wrote the day.
        after: the version that it last wrote the day in.
        previous: the commit that spoke of the day before; none if none did.
        last: the last commit of the backfill that wrote the day.
        between: a commit of somebody else that wrote the day between two of the backfill's.
    """

    before: int
    after: int
    previous: Record | None
    last: Record
    between: Record | Foreign | None = None


def footprint(ledger: Ledger, name: str, days: Container[date] | None = None) -> dict[date, Change]:
    """The days whose files a backfill wrote or took back, each with what was before.

    A day that it found with the rows that it was to write is not among them.

    Args:
        ledger: the table's.
        name: as `belongs` takes it.
        days: only these; all if not given.
    """
    stands: dict[date, Record] = {}
    writers: dict[date, Record | Foreign] = {}
    found: dict[date, Change] = {}
    for record in ledger.commits:
        if isinstance(record, Foreign):
            writers |= dict.fromkeys(record.days, record)
            continue
        if belongs(record, name):
            for day in written(record):
                if days is not None and day not in days:
                    continue
                old = found.get(day)
                if old is None:
                    found[day] = Change(record.version - 1, record.version, stands.get(day), record)
                    continue
                between = old.between
                if writers[day].version != old.after:
                    between = writers[day]
                found[day] = Change(old.before, record.version, old.previous, record, between)
        writers |= dict.fromkeys(written(record), record)
        stands |= dict.fromkeys(record.days, record)
        for day in record.withdrawn:
            stands.pop(day, None)
    return found


def written(commit: Record | Foreign) -> frozenset[date]:
    """The days whose files a commit changed, those that it took back included."""
    return commit.days if isinstance(commit, Foreign) else commit.wrote | commit.withdrawn


def written_since(ledger: Ledger, changes: Mapping[date, Change]) -> dict[date, Record | Foreign]:
    """The last commit that wrote a day after the backfill did, by day, where there is one."""
    found = {day: change.between for day, change in changes.items() if change.between}
    for commit in ledger.commits:
        for day in written(commit):
            if day in changes and commit.version > changes[day].after:
                found[day] = commit
    return found
