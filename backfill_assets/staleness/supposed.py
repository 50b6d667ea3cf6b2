"""A ledger as it may come to be: what follows if some days of a table change."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from datetime import date
from functools import cached_property
from typing import Any

from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.staleness.fingerprints import input_fingerprints


@dataclass(frozen=True)
class Supposed(Ledger):
    """A ledger some of whose days may come to hold anything."""

    moving: frozenset[date] = frozenset()

    @classmethod
    def of(cls, ledger: Ledger, moving: Iterable[date]) -> Supposed:
        """A ledger, some days of which may change."""
        return cls(**_fields_of(ledger), moving=frozenset(moving))

    @cached_property
    def published(self) -> frozenset[date]:
        """The days that have been published, or may come to be."""
        return super().published | self.moving

    @property
    def uncertain(self) -> frozenset[date]:
        """The days that may come to hold anything."""
        return self.moving

    def content(self, day: date) -> str:
        """What a day holds, as text; of a day that may change, nobody knows yet."""
        return "not known yet" if day in self.moving else super().content(day)


@dataclass(frozen=True, kw_only=True)
class SwitchedOver(Ledger):
    """The ledger of a fork, as production will be: it gives only the days that it has made.

    Attributes:
        made: the days that the fork has made.
        production: the ledger of the table that is forked, as of now.
    """

    made: frozenset[date]
    production: Ledger

    @classmethod
    def of(cls, fork: Ledger, made: Iterable[date], production: Ledger) -> SwitchedOver:
        """The ledger of a fork, and that of its table."""
        return cls(**_fields_of(fork), made=frozenset(made), production=production)

    def content(self, day: date) -> str:
        """What a day holds, as text, where it is made; else what production has."""
        return super().content(day) if day in self.made else self.production.content(day)


def _fields_of(ledger: Ledger) -> dict[str, Any]:
    return {field.name: getattr(ledger, field.name) for field in fields(Ledger)}


def depending(
    ledgers: Ledgers,
    policy: Policy,
    table: str,
    days: Collection[date],
    source: str,
    moving: Collection[date],
) -> set[date]:
    """Those of some days of a table whose fingerprint is another if days of an input change.

    Args:
        ledgers: those of all tables.
        policy: the late-data policy.
        table: the table's name.
        days: its days.
        source: the input's name.
        moving: the days of it that may change.
    """
    if not days or not moving:
        return set()
    inputs = ledgers[table].table.inputs(policy)
    references = ledgers[table].references
    now = input_fingerprints(inputs, ledgers, days, references)
    supposed = {**ledgers, source: Supposed.of(ledgers[source], moving)}
    then = input_fingerprints(inputs, supposed, days, references)
    return {day for day in days if now[day] != then[day]}
