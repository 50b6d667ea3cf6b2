"""What each day of a table is built from, as a digest; also if days of an input were to change.

Pure functions over ledgers. Days with the same fingerprint, code and configuration have the same
rows, so a day whose fingerprint has not changed need not be computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from functools import cached_property
from typing import Any

from backfill_assets.calendar.late_data import Policy
from backfill_assets.delta.ledgers import Ledger, Ledgers
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


@dataclass(frozen=True)
class HypotheticalLedger(Ledger):
    """A ledger some of whose days may come to hold anything."""

    changing_days: frozenset[date] = frozenset()

    @classmethod
    def from_ledger(cls, ledger: Ledger, changing_days: Iterable[date]) -> HypotheticalLedger:
        """A ledger, some days of which may change."""
        return cls(**_ledger_fields(ledger), changing_days=frozenset(changing_days))

    @cached_property
    def published_days(self) -> frozenset[date]:
        """The days that have been published, or may come to be."""
        return super().published_days | self.changing_days

    @property
    def hypothetical_days(self) -> frozenset[date]:
        """The days that may come to hold anything."""
        return self.changing_days

    def content_key(self, day: date) -> str:
        """What a day holds, as text; of a day that may change, nobody knows yet."""
        return "not known yet" if day in self.changing_days else super().content_key(day)


@dataclass(frozen=True, kw_only=True)
class SwitchedLedger(Ledger):
    """The ledger of a fork, as production will be: it gives only the days that it has made.

    Attributes:
        built_days: the days that the fork has made.
        production: the ledger of the table that is forked, as of now.
    """

    built_days: frozenset[date]
    production: Ledger

    @classmethod
    def from_fork(
        cls, fork: Ledger, built_days: Iterable[date], production: Ledger
    ) -> SwitchedLedger:
        """The ledger of a fork, and that of its table."""
        return cls(**_ledger_fields(fork), built_days=frozenset(built_days), production=production)

    def content_key(self, day: date) -> str:
        """What a day holds, as text, where it is made; else what production has."""
        return (
            super().content_key(day) if day in self.built_days else self.production.content_key(day)
        )


def _ledger_fields(ledger: Ledger) -> dict[str, Any]:
    return {field.name: getattr(ledger, field.name) for field in fields(Ledger)}


def days_depending_on(
    ledgers: Ledgers,
    policy: Policy,
    table: str,
    days: Collection[date],
    source: str,
    changing_days: Collection[date],
) -> set[date]:
    """Those of some days of a table whose fingerprint is another if days of an input change.

    Args:
        ledgers: those of all tables.
        policy: the late-data policy.
        table: the table's name.
        days: its days.
        source: the input's name.
        changing_days: the days of it that may change.
    """
    if not days or not changing_days:
        return set()
    inputs = ledgers[table].table.inputs(policy)
    references = ledgers[table].references
    current_digests = input_digests(inputs, ledgers, days, references)
    hypothetical_ledgers = {
        **ledgers,
        source: HypotheticalLedger.from_ledger(ledgers[source], changing_days),
    }
    changed_digests = input_digests(inputs, hypothetical_ledgers, days, references)
    return {day for day in days if current_digests[day] != changed_digests[day]}
