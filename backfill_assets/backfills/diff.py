"""The diff of a table between two versions, day by day, and how it is shown."""

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

from backfill_assets.calendar.partitions import to_windows
from backfill_assets.delta.history import format_windows
from backfill_assets.escaping import escape_line
from backfill_assets.tables.table import Table

#: Population stability index from which a column has drifted moderately, and a lot: the usual rule
#: of thumb in credit scoring (Siddiqi, Credit Risk Scorecards, 2006).
MODERATE_DRIFT = 0.1
LARGE_DRIFT = 0.25

Number = int | Decimal
#: Versions of a table before and after; none where the day was not published then.
VersionPair = tuple[int | None, int | None]


@dataclass(frozen=True)
class DayFigures:
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
    def for_empty_day(cls, table: Table) -> DayFigures:
        """The fingerprint of a day without rows."""
        return cls(0, 0 if table.key else None, table.zero_totals, sha256().hexdigest())

    @property
    def by_name(self) -> dict[str, Number]:
        """Rows, keys (where the table has a key) and totals, by name."""
        keys = {} if self.keys is None else {"keys": self.keys}
        return {"rows": self.rows, **keys, **self.totals}


class DayChangeKind(enum.Enum):
    """What became of a day between two versions."""

    IDENTICAL = "identical"
    CHANGED = "changed"
    #: Published now, but not before.
    ADDED = "added"
    #: Not published (any more).
    MISSING = "missing"


@dataclass(frozen=True)
class DayDiff:
    """One day before and after.

    Attributes:
        day: the day.
        versions: the table's versions that were compared.
        before: what it held; none if it was not published.
        after: what it holds; none if it is not published.
    """

    day: date
    versions: VersionPair
    before: DayFigures | None
    after: DayFigures | None

    @property
    def status(self) -> DayChangeKind:
        """What became of the day."""
        if self.after is None:
            return DayChangeKind.MISSING
        if self.before is None:
            return DayChangeKind.ADDED
        same = self.before.sha256 == self.after.sha256
        return DayChangeKind.IDENTICAL if same else DayChangeKind.CHANGED

    @property
    def difference_text(self) -> str:
        """By how much rows, keys and totals differ, as text; empty for an identical day."""
        old, new = (figures.by_name if figures else {} for figures in (self.before, self.after))
        deltas = {name: new.get(name, 0) - old.get(name, 0) for name in old | new}
        if deltas.get("keys") == deltas.get("rows"):  # which goes without saying
            deltas.pop("keys", None)
        differences = [f"{name} {delta:+,}" for name, delta in deltas.items() if delta]
        if not differences and self.status is DayChangeKind.CHANGED:
            return "same counts and sums, other values"
        return ", ".join(differences)


@dataclass(frozen=True)
class RowDiff:
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
class ColumnDrift:
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
class TableDiff:
    """Days of one table before and after.

    Attributes:
        table: the table.
        days: in ascending order.
        samples: rows of the changed days, by kind, day and key: a few of each kind.
        drift: by numeric column, of all changed days together; empty if no day has changed.
    """

    table: Table
    days: Sequence[DayDiff]
    samples: Sequence[RowDiff] = ()
    drift: Mapping[str, ColumnDrift] = field(default_factory=dict)

    def days_with(self, status: DayChangeKind) -> list[DayDiff]:
        """The days of a status."""
        return [day for day in self.days if day.status is status]

    @property
    def summary_line(self) -> str:
        """How many days there are of each status, in one line."""
        counts = Counter(day.status for day in self.days)
        counted = ", ".join(
            f"{counts[status]} {status.value}" for status in DayChangeKind if counts[status]
        )
        return f"{self.table.name}: {counted or 'no days'}"

    @property
    def drift_warnings(self) -> list[str]:
        """The columns that have drifted, one sentence each; for a person, they fail nothing."""
        return [
            f"{self.table.name}.{name}: {drift.level} drift on the changed days, "
            f"PSI {drift.psi:.2f}"
            for name, drift in self.drift.items()
            if drift.level != "none"
        ]


_HEADINGS = ("days", "status", "rows", "difference", "sha256")
_SHORT = 12


def as_grid(report: TableDiff) -> Group:
    """The report for the console: the days, then samples and drift of those that changed."""
    grid = Grid(title=report.summary_line, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in _HEADINGS:
        grid.add_column(heading, no_wrap=True, justify="right" if heading == "rows" else "left")
    for cells in _day_rows(report):
        grid.add_row(*cells)
    return Group(grid, *_detail_lines(report))


def as_markdown(report: TableDiff) -> str:
    """The report for Dagster's UI."""
    lines = [
        f"**{report.summary_line}**",
        "",
        f"| {' | '.join(_HEADINGS)} |",
        "|---" * len(_HEADINGS) + "|",
        *(f"| {' | '.join(cells)} |".replace("\n", ", ") for cells in _day_rows(report)),
        "",
        # As code: what is in the rows is not markup.
        *(f"    {escape_line(line)}" for line in _detail_lines(report)),
    ]
    return "\n".join(lines)


def as_json(reports: Iterable[TableDiff]) -> dict[str, Any]:
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


def _day_json(day: DayDiff) -> dict[str, Any]:
    sides = zip(("before", "after"), day.versions, (day.before, day.after), strict=True)
    return {
        "status": day.status.value,
        "difference": day.difference_text,
        **{name: figures and _figures_json(figures, version) for name, version, figures in sides},
    }


def _figures_json(figures: DayFigures, version: int | None) -> dict[str, Any]:
    totals = {
        name: total if isinstance(total, int) else str(total)
        for name, total in figures.totals.items()
    }
    return {
        "version": version,
        "rows": figures.rows,
        "keys": figures.keys,
        "totals": totals,
        "sha256": figures.sha256,
    }


def _day_rows(report: TableDiff) -> Iterator[tuple[str, ...]]:
    """The identical days together, and each other day by itself."""
    same = report.days_with(DayChangeKind.IDENTICAL)
    if same:
        rows = sum(day.after.rows for day in same if day.after)
        days = format_windows(to_windows(day.day for day in same))
        yield (days, DayChangeKind.IDENTICAL.value, f"{rows:,}", "", "")
    for day in report.days:
        if day.status is not DayChangeKind.IDENTICAL:
            sides = [figures for figures in (day.before, day.after) if figures]
            yield (
                str(day.day),
                day.status.value,
                " -> ".join(f"{figures.rows:,}" for figures in sides),
                day.difference_text,
                " -> ".join(figures.sha256[:_SHORT] for figures in sides),
            )


def _detail_lines(report: TableDiff) -> Iterator[str]:
    """Samples and drift, one a line."""
    for sample in report.samples:
        yield f"{sample.kind} {sample.day}  {_row_text(sample, report.table)}"
    for name, drift in report.drift.items():
        yield f"drift {name}  {drift.level} (PSI {drift.psi:.2f}, KS {drift.ks:.2f})"


def _row_text(sample: RowDiff, table: Table) -> str:
    """A row in one line: of a changed one, its key and what changed."""
    row = {**(sample.before or sample.after or {})}
    del row[table.partition]
    if sample.before is None or sample.after is None:
        return " ".join(f"{name}={_null_or_text(value)}" for name, value in row.items())
    key = [f"{name}={_null_or_text(row[name])}" for name in table.key if name in row]
    changes = [
        f"{name} {_null_or_text(value)} -> {_null_or_text(sample.after[name])}"
        for name, value in row.items()
        if value != sample.after[name]
    ]
    return " ".join([*key, ", ".join(changes)])


def _null_or_text(text: str | None) -> str:
    return "null" if text is None else text
