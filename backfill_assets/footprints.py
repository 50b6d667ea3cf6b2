"""What one backfill did to a table, from the table's ledger: its days, and the versions around it.

Pure functions over ledgers; `reconciliation`, `undo` and `certificates` rest on them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from backfill_assets.records import Foreign, Ledger, Record

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
    if backfill == name or backfill.startswith(f"{name}-"):
        return True
    return len(name) >= _SHORT and record.run_id.startswith(name)


@dataclass(frozen=True)
class Change:
    """What a backfill did to one day.

    Attributes:
        before: the table's version just before it first wrote the day.
        after: the version that it last wrote the day in.
        previous: the commit that spoke of the day before; none if none did.
        last: the last commit of the backfill that wrote the day.
    """

    before: int
    after: int
    previous: Record | None
    last: Record


def footprint(ledger: Ledger, name: str, days: Container[date] | None = None) -> dict[date, Change]:
    """The days whose files a backfill wrote or took back, each with what was before.

    A day that it found with the rows that it was to write is not among them.

    Args:
        ledger: the table's.
        name: as `belongs` takes it.
        days: only these; all if not given.
    """
    stands: dict[date, Record] = {}
    found: dict[date, Change] = {}
    for record in ledger.records:
        if belongs(record, name):
            for day in _written(record):
                if days is not None and day not in days:
                    continue
                old = found.get(day)
                before, previous = (
                    (old.before, old.previous) if old else (record.version - 1, stands.get(day))
                )
                found[day] = Change(before, record.version, previous, record)
        stands |= dict.fromkeys(record.days, record)
        for day in record.withdrawn:
            stands.pop(day, None)
    return found


def _written(record: Record) -> set[date]:
    return {*(record.days if record.written is None else record.written), *record.withdrawn}


def written_since(ledger: Ledger, changes: Mapping[date, Change]) -> dict[date, Record | Foreign]:
    """The last commit that wrote a day after the backfill, by day, where there is one."""
    found: dict[date, Record | Foreign] = {}
    for commit in ledger.commits:
        wrote: Any = commit.days if isinstance(commit, Foreign) else _written(commit)
        for day in wrote:
            if day in changes and commit.version > changes[day].after:
                found[day] = commit
    return found
