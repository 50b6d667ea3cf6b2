"""What each day of a table is made of: a digest of what the input days that decide it hold.

Pure functions over ledgers. Days of the same recipe, code and configuration have the same rows, so
a day whose recipe has not changed need not be computed again.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from itertools import accumulate

from backfill_assets.landing import read_from
from backfill_assets.lateness import Policy, log_days
from backfill_assets.partitions import DAY, Window
from backfill_assets.records import Ledgers
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


def landed(contents: Mapping[date, str], days: Iterable[date]) -> dict[date, str]:
    """The recipes of log days: the folder before (early lines) and the day's own.

    Args:
        contents: what the landing holds, as `landing.contents` says it.
        days: the days to tell of.
    """
    return {day: _digest(read_from(contents, day)) for day in days}


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


def _corrections(ledgers: Ledgers, policy: Policy) -> Callable[[date], list[str]]:
    """All of the log up to the day, and the first day that has facts to correct."""
    raw = ledgers[RAW.name]
    days = sorted(raw.published)
    so_far = accumulate(
        days, lambda known, day: _digest([known, f"{day} {raw.content(day)}"]), initial=""
    )
    until = dict(zip(days, list(so_far)[1:], strict=True))
    return lambda day: [until.get(day, "nothing"), str(policy.start)]


def _current(ledgers: Ledgers, _: Policy) -> Callable[[date], list[str]]:
    """The facts of the day, and the commits of corrections that speak of it."""
    facts, corrections = ledgers[FACT.name], ledgers[CORRECTIONS.name]
    stands = defaultdict(list)
    for day, record in sorted(corrections.latest.items()):
        stands[record.version].append(f"{day} {corrections.content(day)}")
    of: dict[date, list[str]] = defaultdict(list)
    for record in corrections.records:
        for day in record.days_said("run_dates") if record.version in stands else ():
            of[day].append(_digest(stands[record.version]))
    # What others wrote there may speak of any day.
    others = [f"version {other.version}" for other in corrections.foreign]
    return lambda day: [facts.content(day), *of.get(day, []), *others]


def _lateness(ledgers: Ledgers, policy: Policy) -> Callable[[date], list[str]]:
    raw, rejected = ledgers[RAW.name], ledgers[REJECTED.name]
    return lambda day: [
        rejected.content(day),
        *(raw.content(d) for d in Window(day, day + DAY).widened(before=policy.window_days)),
    ]


_CONTENTS: Mapping[str, Callable[[Ledgers, Policy], Callable[[date], list[str]]]] = {
    STAGED.name: _staged,
    LATE.name: _same_day(RAW.name),
    CORRECTIONS.name: _corrections,
    FACT.name: _same_day(STAGED.name),
    CURRENT.name: _current,
    LATENESS.name: _lateness,
}
