"""The diff of table versions by day, as text and JSON; and whether tables agree with each other.

Each day is compared with its inputs at the versions that its record names, not with the current
inputs.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

from backfill_assets.audit import verdicts
from backfill_assets.backfills.changes import RowOrigins
from backfill_assets.calendar.partitions import to_windows
from backfill_assets.delta.history import format_windows
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import CommitRecord, PublishedDay
from backfill_assets.report import ReportTable
from backfill_assets.tables.table import ENTRY_PREFIX, Figure, Table


def cross_table_mismatches(reports: Iterable[TableDiff], ledgers: Ledgers) -> list[str]:
    """Where the days of the reports disagree with their inputs or with the record of their commit.

    Returns:
        A sentence for each mismatch, naming day and numbers. Of two tables, the second is the one
        to publish again.
    """
    tables = {name: _TableAtVersion(ledger) for name, ledger in ledgers.items()}
    mismatches: list[str] = []
    days: list[tuple[str, date, int]] = []
    for report in reports:
        name = report.table.name
        for day_diff in report.days:
            version = day_diff.versions[1]
            if day_diff.after is None or version is None:
                continue
            days.append((name, day_diff.day, version))
            tables[name].add_measured(day_diff.day, version, day_diff.after)
            if record := tables[name].record_at(day_diff.day, version):
                mismatches += _record_mismatches(
                    name, day_diff.day, day_diff.after, record.days[day_diff.day]
                )
    for name, day, version in days:
        for earlier, later in ledgers[name].table.layer_equations:
            source = earlier.table.name
            if source not in tables:
                continue
            input_version = _comparable_version(tables, source, name, day, version)
            if input_version is None:
                continue
            number = tables[source].number_at(earlier, day, input_version)
            later_number = tables[name].number_at(later, day, version)
            if number is not None and later_number is not None and number != later_number:
                has, instead = (
                    earlier.text.format(f"{number:,}"),
                    later.text.format(f"{later_number:,}"),
                )
                mismatches.append(f"{day}: {source} {has}, but {name} {instead}")
    return sorted(mismatches)


class _TableAtVersion:
    """The content of a table's days as of any version, from its log and from measured figures."""

    def __init__(self, ledger: Ledger) -> None:
        self.origins = RowOrigins(ledger)
        self._records: dict[date, list[CommitRecord]] = defaultdict(list)
        self._external_versions: dict[date, list[int]] = defaultdict(list)
        self._measured: dict[tuple[date, int], verdicts.DayContent] = {}
        for record in ledger.records:
            for day in (*record.days, *record.revoked_days):
                self._records[day].append(record)
        for commit in ledger.external_commits:
            for day in commit.days:
                self._external_versions[day].append(commit.version)

    def add_measured(self, day: date, version: int, content: verdicts.DayContent) -> None:
        """Add the measured content of a day as of a version."""
        self._measured[day, self.origins.origin_at(day, version)] = content

    def records_of(self, day: date) -> list[CommitRecord]:
        """The records that cover a day, oldest first."""
        return self._records[day]

    def record_at(self, day: date, version: int) -> CommitRecord | None:
        """The record of a day as of a version; None without one or if others changed it since."""
        records = self._records[day]
        n = bisect_right([record.version for record in records], version)
        if not n or day not in records[n - 1].days:
            return None
        others = max((v for v in self._external_versions[day] if v <= version), default=-1)
        return None if others > records[n - 1].valid_as_of(day) else records[n - 1].for_day(day)

    def number_at(self, figure: Figure, day: date, version: int) -> int | Decimal | None:
        """A number of a day as of a version, preferably as measured; None if not known."""
        numbers: dict[str, int | Decimal] = {}
        if record := self.record_at(day, version):
            published = record.days[day]
            entries = {ENTRY_PREFIX + name: Decimal(n) for name, n in published.entries.items()}
            numbers = {**published.content.figures, **entries}
        if measured := self._measured.get((day, self.origins.origin_at(day, version))):
            numbers |= measured.figures
        return numbers.get(figure.name)


def _comparable_version(
    tables: Mapping[str, _TableAtVersion], earlier: str, later: str, day: date, version: int
) -> int | None:
    """The version of one table to compare a day of another table with; None if there is none.

    If the day's record names the table as an input: that version. Of two tables side by side,
    neither is the other's input: then the last version built from the same inputs, by their
    versions, the input digest or the run.
    """
    record = tables[later].record_at(day, version)
    if record is None:
        return None
    if earlier in record.inputs:
        return record.inputs[earlier]
    for other in reversed(tables[earlier].records_of(day)):
        if day in other.days and _have_same_inputs(tables, other.for_day(day), record, day):
            return other.version
    return None


def _have_same_inputs(
    tables: Mapping[str, _TableAtVersion], first: CommitRecord, second: CommitRecord, day: date
) -> bool:
    """Whether two records of a day have the same inputs; by digest or run if they share none."""
    if both := first.inputs.keys() & second.inputs.keys():
        return all(
            tables[name].origins.origin_at(day, first.inputs[name])
            == tables[name].origins.origin_at(day, second.inputs[name])
            for name in both
        )
    input_digest = first.days[day].input_digest
    return first.run_id == second.run_id or (
        input_digest != "" and input_digest == second.days[day].input_digest
    )


def _record_mismatches(
    name: str, day: date, measured: verdicts.DayContent, published: PublishedDay
) -> Iterator[str]:
    """Sentences about measured numbers that differ from the numbers in the commit's record."""
    for figure, (recorded, number) in verdicts.differing_figures(
        published.content, measured
    ).items():
        yield (
            f"{day}: {name} has {figure} {number:,}, but the commit that published it says "
            f"{recorded:,}"
        )


#: Population stability index from which a column has drifted moderately, and a lot: the usual rule
#: of thumb in credit scoring (Siddiqi, Credit Risk Scorecards, 2006).
MODERATE_DRIFT = 0.1
LARGE_DRIFT = 0.25

#: Versions of a table before and after; None if the day was not published then.
VersionPair = tuple[int | None, int | None]


class DayChangeKind(enum.Enum):
    """How a day changed between two versions."""

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
        versions: the compared versions of the table.
        before: content at the first version; None if not published.
        after: content at the second version; None if not published.
    """

    day: date
    versions: VersionPair
    before: verdicts.DayContent | None
    after: verdicts.DayContent | None

    @property
    def status(self) -> DayChangeKind:
        """How the day changed."""
        if self.after is None:
            return DayChangeKind.MISSING
        if self.before is None:
            return DayChangeKind.ADDED
        same = verdicts.have_same_rows(self.before, self.after)
        return DayChangeKind.IDENTICAL if same else DayChangeKind.CHANGED

    @property
    def difference_text(self) -> str:
        """Differences of rows, keys and totals as text; empty for an identical day."""
        return verdicts.describe_difference(self.before, self.after)


@dataclass(frozen=True)
class RowDiff:
    """A row that differs between the two versions of a changed day.

    Whole rows are compared. A row whose natural key is in both versions is changed; otherwise it
    was added or removed.

    Attributes:
        day: the day.
        before: its values by column, as text (times in UTC); None for an added row.
        after: the same; None for a removed row.
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
    """How far the distribution of a numeric column shifted on the changed days.

    Attributes:
        psi: population stability index; 0 without a shift.
        ks: Kolmogorov-Smirnov statistic over the same bins, with null as the last: the largest
            difference of the cumulative shares, 0 to 1.
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
        drift: by numeric column, over all changed days; empty if no day changed.
    """

    table: Table
    days: Sequence[DayDiff]
    samples: Sequence[RowDiff] = ()
    drift: Mapping[str, ColumnDrift] = field(default_factory=dict)

    def days_with(self, status: DayChangeKind) -> list[DayDiff]:
        """Days with this status."""
        return [day for day in self.days if day.status is status]

    @property
    def summary_line(self) -> str:
        """The number of days of each status, in one line."""
        counts = Counter(day.status for day in self.days)
        counted = ", ".join(
            f"{counts[status]} {status.value}" for status in DayChangeKind if counts[status]
        )
        return f"{self.table.name}: {counted or 'no days'}"


_HEADINGS = ("days", "status", "rows", "difference", "sha256")
_SHORT = 12


def as_table(table_diff: TableDiff) -> ReportTable:
    """The diff for a person: the days, then samples and drift of the changed days."""
    return ReportTable.from_rows(
        _HEADINGS,
        _day_rows(table_diff),
        title=table_diff.summary_line,
        lines=_detail_lines(table_diff),
        numbers=["rows"],
    )


def report_values(reports: Iterable[TableDiff]) -> dict[str, Any]:
    """The diffs as JSON values, by table; money as exact text."""
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


def _figures_json(figures: verdicts.DayContent, version: int | None) -> dict[str, Any]:
    """The figures of one side of a day; sums of decimals become text, so that none is rounded."""
    totals = {
        name: total if isinstance(total, int) else str(total)
        for name, total in figures.totals.items()
    }
    return {
        "version": version,
        "rows": figures.rows,
        "keys": figures.keys,
        "totals": totals,
        "sha256": figures.digest,
    }


def _day_rows(report: TableDiff) -> Iterator[tuple[str, ...]]:
    """One line for all identical days, and one for each other day."""
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
                " -> ".join(figures.digest[:_SHORT] for figures in sides),
            )


def _detail_lines(report: TableDiff) -> Iterator[str]:
    """One line for each sample row and each column's drift."""
    for sample in report.samples:
        yield f"{sample.kind} {sample.day}  {_row_text(sample, report.table)}"
    for name, drift in report.drift.items():
        yield f"drift {name}  {drift.level} (PSI {drift.psi:.2f}, KS {drift.ks:.2f})"


def _row_text(sample: RowDiff, table: Table) -> str:
    """A row in one line; for a changed row, its key and the changed values."""
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
