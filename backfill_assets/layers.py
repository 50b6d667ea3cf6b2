"""Whether the layers agree with each other, and with what their commits say, day by day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from typing import NamedTuple

from backfill_assets.records import Ledger, Ledgers, Published
from backfill_assets.reports import Fingerprint, Report
from backfill_assets.schemas import (
    CORRECTIONS,
    CURRENT,
    FACT,
    LATE,
    LATENESS,
    RAW,
    REJECTED,
    STAGED,
    Table,
)


class _Figure(NamedTuple):
    """A number of a day, by its name in `_numbers`, and how it is said."""

    table: Table
    name: str
    text: str


#: Before the name of what a commit recorded of a day's inputs.
_RECORDED = "recorded "
#: Numbers of one day that must be equal, the earlier layer first. Staging cannot be held against
#: raw by the day, as an event day's lines lie in many log days; `conservation` has done that.
_EQUAL = (
    (_Figure(STAGED, "rows", "has {} rows"), _Figure(FACT, "orders", "has {} orders")),
    (_Figure(STAGED, "amount", "has amount {}"), _Figure(FACT, "revenue", "has revenue {}")),
    (
        _Figure(REJECTED, "rows", "has {} rows"),
        _Figure(RAW, _RECORDED + "rejected", "was read with {} rejected"),
    ),
    (
        _Figure(REJECTED, "rows", "has {} rows"),
        _Figure(LATENESS, _RECORDED + "rejected", "was made of {}"),
    ),
    (_Figure(RAW, "rows", "has {} rows"), _Figure(LATE, _RECORDED + "raw", "was made of {}")),
    (_Figure(RAW, "rows", "has {} rows"), _Figure(LATENESS, _RECORDED + "lines", "was made of {}")),
    (
        _Figure(LATE, _RECORDED + "late", "found {} late"),
        _Figure(LATENESS, _RECORDED + "beyond", "found {}"),
    ),
    (
        _Figure(FACT, "orders", "has {} orders"),
        _Figure(CORRECTIONS, _RECORDED + "orders", "was made of {}"),
    ),
    (
        _Figure(FACT, "revenue", "has revenue {}"),
        _Figure(CORRECTIONS, _RECORDED + "revenue", "was made of {}"),
    ),
    (
        _Figure(CURRENT, "orders", "has {} orders"),
        _Figure(CORRECTIONS, _RECORDED + "current orders", "was made of {}"),
    ),
    (
        _Figure(CURRENT, "revenue", "has revenue {}"),
        _Figure(CORRECTIONS, _RECORDED + "current revenue", "was made of {}"),
    ),
)


def across_layers(reports: Iterable[Report], ledgers: Ledgers | None = None) -> list[str]:
    """Where the layers disagree on a day that is in several reports, as it is after.

    Args:
        reports: of any tables.
        ledgers: by table, what its log says. With them, a day is also held against what its
            commit says of it, and an input against what its followers were made of.

    Returns:
        A sentence for each disagreement, naming day and numbers; of two tables the latter is the
        one to publish again.
    """
    said: list[str] = []
    found: dict[str, dict[date, Mapping[str, Decimal]]] = defaultdict(dict)
    for report in reports:
        name = report.table.name
        ledger = (ledgers or {}).get(name)
        records = _records(report, ledger) if ledger else {}
        for one in report.days:
            if one.after is not None:
                found[name][one.day] = _numbers(one.after, records.get(one.day))
        for day, record in records.items():
            said += _against_record(name, day, found[name][day], record)
    for earlier, later in _EQUAL:
        own, others = found[earlier.table.name], found[later.table.name]
        for day in own.keys() & others.keys():
            x, y = own[day].get(earlier.name), others[day].get(later.name)
            if x is not None and y is not None and x != y:
                has, instead = earlier.text.format(f"{x:,}"), later.text.format(f"{y:,}")
                said.append(f"{day}: {earlier.table.name} {has}, but {later.table.name} {instead}")
    return sorted(said)


def _records(report: Report, ledger: Ledger) -> dict[date, Published]:
    """What the log said of the published days as of the version after."""
    days: dict[int, list[date]] = defaultdict(list)
    for one in report.days:
        if (version := one.versions[1]) is not None:
            days[version].append(one.day)
    found: dict[date, Published] = {}
    for version, own in days.items():
        then = ledger.as_of(version)
        found |= {day: said for day in own if (said := then.stands(day))}
    return found


def _numbers(held: Fingerprint, record: Published | None) -> dict[str, Decimal]:
    """All numbers of a day by name: what it holds, and what its commit recorded of its inputs."""
    entries = record.entries if record else {}
    numbers = {**held.figures, **{_RECORDED + name: x for name, x in entries.items()}}
    return {name: Decimal(x) for name, x in numbers.items()}


def _against_record(
    name: str, day: date, own: Mapping[str, Decimal], record: Published
) -> Iterator[str]:
    due: dict[str, int | str] = {"rows": record.rows, **record.totals}
    for figure, number in due.items():
        if own[figure] != Decimal(number):
            yield (
                f"{day}: {name} has {figure} {own[figure]:,}, but the commit that published it "
                f"says {Decimal(number):,}"
            )
