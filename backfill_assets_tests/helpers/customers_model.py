"""A plain-Python reading of the customers' pages, to compare the tables with; no pipeline code.

It is slow and literal on purpose: for each day it looks at all that had been logged by then. It
must not import `backfill_assets`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from typing import Any


@dataclass(frozen=True)
class Change:
    """A line of the change feed, on its log day."""

    log_day: date
    change_id: str
    customer_id: str
    deleted: bool
    attributes: tuple[str | None, str | None, str | None]
    changed_at: datetime
    known_at: datetime

    @property
    def rank(self) -> tuple[Any, ...]:
        attribute_ranks = tuple((value is not None, value or "") for value in self.attributes)
        return self.known_at, self.changed_at, self.customer_id, self.deleted, attribute_ranks


@dataclass(frozen=True)
class Version:
    """A version of a customer, as the log knew it."""

    customer_id: str
    change_id: str
    valid_from: datetime
    valid_to: datetime | None
    deleted: bool
    attributes: tuple[str | None, str | None, str | None]
    known_at: datetime
    logged_on: date


def parse_moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)


def parse_change(arrival: date, line: Mapping[str, Any]) -> Change:
    """A line of the feed; it is logged a day later if it tells of that."""
    changed, ingested = parse_moment(line["changed_at"]), parse_moment(line["ingested_at"])
    deleted = line["op"] == "delete"
    attributes = (line["email_status"], line["segment"], line["country"])
    known = max(changed, ingested)
    return Change(
        max(arrival, known.date()),
        line["change_id"],
        line["customer_id"],
        deleted,
        (None, None, None) if deleted else attributes,
        changed,
        known,
    )


def expected_versions(changes: Iterable[Change], day: date) -> set[Version]:
    """The versions of all customers, with what was logged by the end of a day."""
    latest: dict[str, Change] = {}
    for change_ in sorted((c for c in changes if c.log_day <= day), key=lambda c: c.log_day):
        if change_.change_id not in latest or change_.rank > latest[change_.change_id].rank:
            latest[change_.change_id] = change_
    versions_by_customer: dict[str, list[Version]] = {}
    for change_ in sorted(latest.values(), key=lambda c: (c.changed_at, c.known_at, c.change_id)):
        customer_versions = versions_by_customer.setdefault(change_.customer_id, [])
        if customer_versions:
            customer_versions[-1] = replace(customer_versions[-1], valid_to=change_.changed_at)
        version = Version(
            change_.customer_id,
            change_.change_id,
            change_.changed_at,
            None,
            change_.deleted,
            change_.attributes,
            change_.known_at,
            change_.log_day,
        )
        customer_versions.append(version)
    return {
        version
        for customer_versions in versions_by_customer.values()
        for version in customer_versions
    }


def version_as_known(
    versions: Iterable[Version], customer: str | None, at: datetime, cutoff: datetime
) -> Version | None:
    """The version of a customer at a moment, of what was known by another."""
    candidates = [
        version
        for version in versions
        if version.customer_id == customer
        and version.valid_from <= at
        and version.known_at <= cutoff
    ]
    return max(candidates, key=lambda v: (v.valid_from, v.known_at, v.change_id), default=None)


def parse_version(row: Mapping[str, Any]) -> Version:
    """A row of the dimension as the model has it."""
    assert row["is_current"] == (row["valid_to"] is None)
    return Version(
        row["customer_id"],
        row["change_id"],
        row["valid_from"],
        row["valid_to"],
        row["is_deleted"],
        (row["email_status"], row["segment"], row["country"]),
        row["known_at"],
        row["logged_on"],
    )


def parse_versions(rows: Iterable[Mapping[str, Any]]) -> set[Version]:
    """Rows of the dimension as the model has them; none is there twice."""
    parsed = [parse_version(row) for row in rows]
    assert len(parsed) == len(set(parsed))
    return set(parsed)
