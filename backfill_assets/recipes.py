"""What each day of a table is made of: a digest of what the input days that decide it hold.

Pure functions over ledgers. Days of the same recipe, code and configuration have the same rows, so
a day whose recipe has not changed need not be computed again.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date

from backfill_assets.lateness import Policy, log_days
from backfill_assets.partitions import DAY, Window
from backfill_assets.records import Ledger, Ledgers, unpacked
from backfill_assets.schemas import (
    CORRECTIONS,
    CURRENT,
    FACT,
    LATE,
    LATENESS,
    RAW,
    REJECTED,
    STAGED,
)


def made_of(table: str, ledgers: Ledgers, days: Iterable[date], policy: Policy) -> dict[date, str]:
    """The recipes of days of a table that is made of other tables.

    Args:
        table: its name.
        ledgers: those of its inputs.
        days: the days to tell of.
        policy: the late-data policy.
    """
    contents_of = _CONTENTS[table](ledgers, policy)
    return {day: _digest(contents_of(day)) for day in days}


def _digest(contents: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()[:16]


def _staged(ledgers: Ledgers, policy: Policy) -> Callable[[date], list[str]]:
    raw = ledgers[RAW.name]
    return lambda day: [
        raw.content(d) for d in log_days(Window(day, day + DAY), policy.window_days)
    ]


def _same_day(*names: str) -> Callable[[Ledgers, Policy], Callable[[date], list[str]]]:
    return lambda ledgers, _: lambda day: [ledgers[name].content(day) for name in names]


def _current(ledgers: Ledgers, _: Policy) -> Callable[[date], list[str]]:
    """All log days with a line of an order that tells of the day."""
    raw = ledgers[RAW.name]
    logged = deciding(raw)
    return lambda day: [f"{d} {raw.content(d)}" for d in sorted(logged(day))]


def deciding(raw: Ledger) -> Callable[[date], set[date]]:
    """The log days that decide what is known of an event day: those of all its orders' versions.

    By the spans that the commits of the raw log recorded. Of log days that somebody else changed,
    and of those that were loaded when no spans were recorded, anything is possible.
    """
    found: dict[date, set[date]] = defaultdict(set)
    unknown = {day for other in raw.foreign for day in other.days} | raw.uncertain
    unknown |= raw.unrecorded | (raw.published - raw.latest.keys())
    for record in raw.records:
        spans = record.said.get("spans")
        if spans is None:
            unknown |= record.wrote
            continue
        for log_day, told in spans.items():
            for day in unpacked(told):
                found[day].add(date.fromisoformat(log_day))
    there = raw.published

    def logged(day: date) -> set[date]:
        # No line is logged before the day that it tells of.
        return {d for d in found.get(day, set()) | unknown if d in there and d >= day} | {day}

    return logged


def _lateness(ledgers: Ledgers, policy: Policy) -> Callable[[date], list[str]]:
    raw, rejected = ledgers[RAW.name], ledgers[REJECTED.name]
    return lambda day: [
        rejected.content(day),
        *(raw.content(d) for d in Window(day, day + DAY).widened(before=policy.window_days)),
    ]


_CONTENTS: Mapping[str, Callable[[Ledgers, Policy], Callable[[date], list[str]]]] = {
    STAGED.name: _staged,
    LATE.name: _same_day(RAW.name),
    FACT.name: _same_day(STAGED.name),
    CURRENT.name: _current,
    CORRECTIONS.name: _same_day(FACT.name, CURRENT.name),
    LATENESS.name: _lateness,
}
