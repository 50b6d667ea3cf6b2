"""What each day of a table is made of: a digest of what the input days that decide it hold.

Pure functions over ledgers. Days with the same fingerprint, code and configuration have the same
rows, so a day whose fingerprint has not changed need not be computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import date

from backfill_assets.delta.ledgers import Ledgers
from backfill_assets.tables.table import Inputs


def input_digests(
    inputs: Inputs,
    ledgers: Ledgers,
    days: Iterable[date],
    references: Mapping[str, str | None] | None = None,
    content_overrides: Mapping[tuple[str, date], str] | None = None,
) -> dict[date, str]:
    """The fingerprints of days of a table that is made of other tables.

    Args:
        inputs: those of the table.
        ledgers: those of its inputs, by name.
        days: the days to tell of.
        references: by name, what the tables without days hold that it is made of.
        content_overrides: by input and day, what it is to hold instead of what it holds now.
    """
    overrides = content_overrides or {}
    reference_contents = [f"{name} {content}" for name, content in (references or {}).items()]
    reads = [
        # Where the number of days varies, a day's content alone does not tell which day it is of.
        (
            ledgers[dependency.source.name],
            dependency.reach.deciding_days(ledgers[dependency.source.name]),
            dependency.reach.varies_by_day,
        )
        for dependency in inputs
    ]
    return {
        day: _hash_contents(
            [
                f"{d} {content}" if dated else content
                for ledger, deciding, dated in reads
                for d in deciding(day)
                for content in [overrides.get((ledger.table.name, d)) or ledger.content_key(d)]
            ]
            + reference_contents
        )
        for day in days
    }


def _hash_contents(contents: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()[:16]
