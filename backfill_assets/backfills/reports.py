"""What a comparison of days found, and how it is shown to a person and to a program."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from hashlib import sha256
from typing import Any

from rich.console import Group
from rich.table import Table as Grid

from backfill_assets.calendar.partitions import windows
from backfill_assets.delta.history import spans
from backfill_assets.escaping import one_line
from backfill_assets.tables.table import Table

#: Population stability index from which a column has drifted moderately, and a lot: the usual rule
#: of thumb in credit scoring (Siddiqi, Credit Risk Scorecards, 2006).
MODERATE_DRIFT = 0.1
LARGE_DRIFT = 0.25

Number = int | Decimal
#: Versions of a table before and after; none where the day was not published then.
Versions = tuple[int | None, int | None]


@dataclass(frozen=True)
class Fingerprint:
    """One day of a table in numbers.

    Attributes:
        rows: number of rows.
        keys: distinct natural keys; none where the table has no key.
        totals: sums by column, of the table's `totals`.
        sha256: of all columns of all rows, as `docs/reconciliation.md` spells them.
    """

    rows: int
    keys: int | None
    totals: Mapping[str, Number]
    sha256: str

    @classmethod
    def empty(cls, table: Table) -> Fingerprint:
        """The fingerprint of a day without rows."""
        return cls(0, 0 if table.key else None, table.zeros, sha256().hexdigest())

    @property
    def figures(self) -> dict[str, Number]:
        """Rows, keys (where the table has a key) and totals, by name."""
        keys = {} if self.keys is None else {"keys": self.keys}
        return {"rows": self.rows, **keys, **self.totals}


class Difference(enum.Enum):
    """What became of a day between two versions."""

    IDENTICAL = "identical"
    CHANGED = "changed"
    #: Published now, but not before.
    ADDED = "added"
    #: Not published (any more).
    MISSING = "missing"


@dataclass(frozen=True)
class Day:
    """One day before and after.

    Attributes:
        day: the day.
        versions: the table's versions that were compared.
        before: what it held; none if it was not published.
        after: what it holds; none if it is not published.
    """

    day: date
    versions: Versions
    before: Fingerprint | None
    after: Fingerprint | None

    @property
    def status(self) -> Difference:
        """What became of the day."""
        if self.after is None:
            return Difference.MISSING
        if self.before is None:
            return Difference.ADDED
        same = self.before.sha256 == self.after.sha256
        return Difference.IDENTICAL if same else Difference.CHANGED

    @property
    def difference(self) -> str:
        """By how much rows, keys and totals differ, as text; empty for an identical day."""
        old, new = (held.figures if held else {} for held in (self.before, self.after))
        deltas = {name: new.get(name, 0) - old.get(name, 0) for name in old | new}
        if deltas.get("keys") == deltas.get("rows"):  # which goes without saying
            deltas.pop("keys", None)
        said = [f"{name} {delta:+,}" for name, delta in deltas.items() if delta]
        if not said and self.status is Difference.CHANGED:
            return "same counts and sums, other values"
        return ", ".join(said)


@dataclass(frozen=True)
class Sample:
    """A row that differs between the two versions of a changed day.

    Rows are compared as a whole. Under a natural key that is in both versions, the row is changed;
    otherwise it was added or removed.

    Attributes:
        day: the day.
        before: its values by column, as text (times in UTC); none for a row that was added.
        after: the same; none for a row that was removed.
    """

    day: date
    before: Mapping[str, str | None] | None
    after: Mapping[str, str | None] | None

    @property
    def kind(self) -> str:
        """`added`, `removed` or `changed`."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


@dataclass(frozen=True)
class Drift:
    """How far the distribution of a numeric column has moved on the changed days.

    Attributes:
        psi: population stability index; 0 if it has not moved.
        ks: Kolmogorov-Smirnov statistic over the same bins, null the last of them: the largest
            difference of the shares up to a bin, 0 to 1.
    """

    psi: float
    ks: float = 0.0

    @property
    def level(self) -> str:
        """`none`, `moderate` or `large`."""
        if self.psi < MODERATE_DRIFT:
            return "none"
        return "moderate" if self.psi < LARGE_DRIFT else "large"


@dataclass(frozen=True)
class Report:
    """Days of one table before and after.

    Attributes:
        table: the table.
        days: in ascending order.
        samples: rows of the changed days, by kind, day and key: a few of each kind.
        drift: by numeric column, of all changed days together; empty if no day has changed.
    """

    table: Table
    days: Sequence[Day]
    samples: Sequence[Sample] = ()
    drift: Mapping[str, Drift] = field(default_factory=dict)

    def of(self, status: Difference) -> list[Day]:
        """The days of a status."""
        return [day for day in self.days if day.status is status]

    @property
    def summary(self) -> str:
        """How many days there are of each status, in one line."""
        counts = Counter(day.status for day in self.days)
        said = ", ".join(
            f"{counts[status]} {status.value}" for status in Difference if counts[status]
        )
        return f"{self.table.name}: {said or 'no days'}"

    @property
    def warnings(self) -> list[str]:
        """The columns that have drifted, one sentence each; for a person, they fail nothing."""
        return [
            f"{self.table.name}.{name}: {drift.level} drift on the changed days, "
            f"PSI {drift.psi:.2f}"
            for name, drift in self.drift.items()
            if drift.level != "none"
        ]


_HEADINGS = ("days", "status", "rows", "difference", "sha256")
_SHORT = 12


def as_grid(report: Report) -> Group:
    """The report for the console: the days, then samples and drift of those that changed."""
    grid = Grid(title=report.summary, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in _HEADINGS:
        grid.add_column(heading, no_wrap=True, justify="right" if heading == "rows" else "left")
    for cells in _lines(report):
        grid.add_row(*cells)
    return Group(grid, *_remarks(report))


def as_markdown(report: Report) -> str:
    """The report for Dagster's UI."""
    lines = [
        f"**{report.summary}**",
        "",
        f"| {' | '.join(_HEADINGS)} |",
        "|---" * len(_HEADINGS) + "|",
        *(f"| {' | '.join(cells)} |".replace("\n", ", ") for cells in _lines(report)),
        "",
        # As code: what is in the rows is not markup.
        *(f"    {one_line(line)}" for line in _remarks(report)),
    ]
    return "\n".join(lines)


def as_json(reports: Iterable[Report]) -> dict[str, Any]:
    """The reports as JSON can hold them, by table; money is exact text."""
    return {
        report.table.name: {
            "days": {str(day.day): _day_json(day) for day in report.days},
            "samples": [
                {"day": str(s.day), "kind": s.kind, "before": s.before, "after": s.after}
                for s in report.samples
            ],
            "drift": {
                name: {
                    "psi": round(drift.psi, 6),
                    "ks": round(drift.ks, 6),
                    "level": drift.level,
                }
                for name, drift in report.drift.items()
            },
        }
        for report in reports
    }


def _day_json(day: Day) -> dict[str, Any]:
    sides = zip(("before", "after"), day.versions, (day.before, day.after), strict=True)
    return {
        "status": day.status.value,
        "difference": day.difference,
        **{name: held and _fingerprint_json(held, version) for name, version, held in sides},
    }


def _fingerprint_json(held: Fingerprint, version: int | None) -> dict[str, Any]:
    totals = {
        name: total if isinstance(total, int) else str(total) for name, total in held.totals.items()
    }
    return {
        "version": version,
        "rows": held.rows,
        "keys": held.keys,
        "totals": totals,
        "sha256": held.sha256,
    }


def _lines(report: Report) -> Iterator[tuple[str, ...]]:
    """The identical days together, and each other day by itself."""
    same = report.of(Difference.IDENTICAL)
    if same:
        rows = sum(day.after.rows for day in same if day.after)
        days = spans(windows(day.day for day in same))
        yield (days, Difference.IDENTICAL.value, f"{rows:,}", "", "")
    for day in report.days:
        if day.status is not Difference.IDENTICAL:
            sides = [held for held in (day.before, day.after) if held]
            yield (
                str(day.day),
                day.status.value,
                " -> ".join(f"{held.rows:,}" for held in sides),
                day.difference,
                " -> ".join(held.sha256[:_SHORT] for held in sides),
            )


def _remarks(report: Report) -> Iterator[str]:
    """Samples and drift, one a line."""
    for sample in report.samples:
        yield f"{sample.kind} {sample.day}  {_row_text(sample, report.table)}"
    for name, drift in report.drift.items():
        yield f"drift {name}  {drift.level} (PSI {drift.psi:.2f}, KS {drift.ks:.2f})"


def _row_text(sample: Sample, table: Table) -> str:
    """A row in one line: of a changed one, its key and what changed."""
    row = {**(sample.before or sample.after or {})}
    del row[table.partition]
    if sample.before is None or sample.after is None:
        return " ".join(f"{name}={_value(value)}" for name, value in row.items())
    key = [f"{name}={_value(row[name])}" for name in table.key if name in row]
    changes = [
        f"{name} {_value(value)} -> {_value(sample.after[name])}"
        for name, value in row.items()
        if value != sample.after[name]
    ]
    return " ".join([*key, ", ".join(changes)])


def _value(text: str | None) -> str:
    return "null" if text is None else text
