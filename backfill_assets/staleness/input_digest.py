"""Input digests: a digest of what a day is built from, also for hypothetical inputs.

Pure functions over ledgers. Days with the same input digest, code and settings have the same rows,
so a day with an unchanged input digest need not be computed again.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from functools import cached_property
from typing import Any, Self

from backfill_assets.calendar.reach import Reach, RecordedReach
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.tables.table import Inputs


def input_digests(
    inputs: Inputs,
    ledgers: Ledgers,
    days: Iterable[date],
    references: Mapping[str, str | None] | None = None,
    content_overrides: Mapping[tuple[str, date], str] | None = None,
) -> dict[date, str]:
    """Return the input digests of days of a table.

    `content_overrides` replaces published content, by input and day.
    """
    reference_contents = [f"{name} {content}" for name, content in (references or {}).items()]
    describers = [
        _content_describer(
            dependency.reach, ledgers[dependency.source.name], content_overrides or {}
        )
        for dependency in inputs
    ]
    return {
        day: _hash_contents(
            [*itertools.chain(*(describe(day) for describe in describers)), *reference_contents]
        )
        for day in days
    }


def _content_describer(
    reach: Reach | RecordedReach, ledger: Ledger, overrides: Mapping[tuple[str, date], str]
) -> Callable[[date], list[str]]:
    """Return a function from a day to the content of the input days that decide it."""
    deciding_days = reach.deciding_days(ledger)

    def describe_content(input_day: date) -> str:
        content = overrides.get((ledger.table.name, input_day)) or ledger.content_key(input_day)
        # Where the number of input days differs by day, content without its date is ambiguous.
        return f"{input_day} {content}" if reach.varies_by_day else content

    return lambda day: [describe_content(input_day) for input_day in deciding_days(day)]


def _hash_contents(contents: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class HypotheticalLedger(Ledger):
    """A ledger in which the content of some days is unknown, as they may change."""

    changing_days: frozenset[date] = frozenset()

    @classmethod
    def from_ledger(cls, ledger: Ledger, changing_days: Iterable[date]) -> Self:
        """Copy a ledger, with some days that may change."""
        return cls(**_ledger_fields(ledger), changing_days=frozenset(changing_days))

    @cached_property
    def published_days(self) -> frozenset[date]:
        """The published days, and those that may change."""
        return super().published_days | self.changing_days

    @property
    def hypothetical_days(self) -> frozenset[date]:
        """The days that may change."""
        return self.changing_days

    def content_key(self, day: date) -> str:
        """Return the content of a day as text; a constant for a day that may change."""
        return "not known yet" if day in self.changing_days else super().content_key(day)


@dataclass(frozen=True, kw_only=True)
class SwitchedLedger(Ledger):
    """The ledger of a shallow clone as it will be in production after the switch.

    Attributes:
        built_days: the days that the clone built; other days keep the content of production.
        production: the current ledger of the cloned table.
    """

    built_days: frozenset[date]
    production: Ledger

    @classmethod
    def from_clone(cls, clone: Ledger, built_days: Iterable[date], production: Ledger) -> Self:
        """Combine the ledger of a clone with that of its table."""
        return cls(**_ledger_fields(clone), built_days=frozenset(built_days), production=production)

    def content_key(self, day: date) -> str:
        """Return the content of a day as text: of the clone if built there, else of production."""
        return (
            super().content_key(day) if day in self.built_days else self.production.content_key(day)
        )


def _ledger_fields(ledger: Ledger) -> dict[str, Any]:
    return {field.name: getattr(ledger, field.name) for field in fields(Ledger)}
