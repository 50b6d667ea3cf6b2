"""Whether tables agree with their inputs and with their own commits, day by day.

A day is held against its inputs as they were when it was made: as of the versions that its record
names. What others have committed since, before or after, is another question.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal

from backfill_assets.backfills.changes import written_days
from backfill_assets.backfills.diff import DayFigures, TableDiff
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import CommitRecord, PublishedDay
from backfill_assets.tables.table import RECORDED, Figure


def cross_table_mismatches(reports: Iterable[TableDiff], ledgers: Ledgers) -> list[str]:
    """Where the days of some reports disagree with what they were made of, as they are after.

    A day is also held against what its own commit says of it.

    Args:
        reports: of any tables.
        ledgers: by table, what its log says.

    Returns:
        A sentence for each disagreement, naming day and numbers; of two tables the latter is the
        one to publish again.
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
            if earlier.table.name in tables:
                input_version = _comparable_version(tables, earlier.table.name, name, day, version)
                earlier_number = (
                    None
                    if input_version is None
                    else tables[earlier.table.name].number_at(earlier, day, input_version)
                )
                later_number = tables[name].number_at(later, day, version)
                if (
                    earlier_number is not None
                    and later_number is not None
                    and earlier_number != later_number
                ):
                    has, instead = (
                        earlier.text.format(f"{earlier_number:,}"),
                        later.text.format(f"{later_number:,}"),
                    )
                    mismatches.append(f"{day}: {earlier.table.name} {has}, but {name} {instead}")
    return sorted(mismatches)


class _TableAtVersion:
    """What a table held on a day as of any version: by its log, and by what was read of it."""

    def __init__(self, ledger: Ledger) -> None:
        self._records: dict[date, list[CommitRecord]] = defaultdict(list)
        self._own_versions: dict[date, list[int]] = defaultdict(list)
        self._external_versions: dict[date, list[int]] = defaultdict(list)
        self._measured: dict[tuple[date, int], DayFigures] = {}
        for record in ledger.records:
            for day in (*record.days, *record.revoked_days):
                self._records[day].append(record)
        for commit in ledger.all_commits:
            versions = (
                self._own_versions if isinstance(commit, CommitRecord) else self._external_versions
            )
            for day in written_days(commit):
                versions[day].append(commit.version)

    def add_measured(self, day: date, version: int, figures: DayFigures) -> None:
        """Take in what was read of a day as of a version."""
        self._measured[day, self.version_written(day, version)] = figures

    def version_written(self, day: date, version: int) -> int:
        """The version as of which a day is what it is in another, whoever wrote it; -1 for none."""
        return max(
            _latest_version(self._own_versions[day], version),
            _latest_version(self._external_versions[day], version),
        )

    def records_of(self, day: date) -> list[CommitRecord]:
        """The records that speak of a day, in ascending order."""
        return self._records[day]

    def record_at(self, day: date, version: int) -> CommitRecord | None:
        """The record that a day is as of a version; none if others have changed it since."""
        records = self._records[day]
        n = bisect_right([record.version for record in records], version)
        if not n or day not in records[n - 1].days:
            return None
        others = _latest_version(self._external_versions[day], version)
        return None if others > records[n - 1].valid_as_of(day) else records[n - 1].for_day(day)

    def number_at(self, figure: Figure, day: date, version: int) -> Decimal | None:
        """A number of a day as of a version; what was read comes before what a record says."""
        record = self.record_at(day, version)
        published = record.days[day] if record else None
        figures = self._measured.get((day, self.version_written(day, version)))
        return _day_numbers(figures, published).get(figure.name)


def _latest_version(versions: list[int], version: int) -> int:
    n = bisect_right(versions, version)
    return versions[n - 1] if n else -1


def _comparable_version(
    tables: Mapping[str, _TableAtVersion], earlier: str, later: str, day: date, version: int
) -> int | None:
    """The version of one table that a day of another is to be compared with.

    It is the one that the day's record names as its input. Of two tables that are made side by
    side, neither is the other's input: then it is the last one that was made of the same, as the
    inputs that both name, the input fingerprint or the run tells. None if there is none.
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
    """Whether a day of two tables was made of the same."""
    if both := first.inputs.keys() & second.inputs.keys():
        return all(
            tables[name].version_written(day, first.inputs[name])
            == tables[name].version_written(day, second.inputs[name])
            for name in both
        )
    fingerprint = first.days[day].fingerprint
    return first.run_id == second.run_id or (
        fingerprint != "" and fingerprint == second.days[day].fingerprint
    )


def _day_numbers(figures: DayFigures | None, published: PublishedDay | None) -> dict[str, Decimal]:
    """All numbers of a day by name: what it holds, and what its commit recorded of its inputs."""
    numbers: dict[str, int | str | Decimal] = {}
    if published:
        numbers = {"rows": published.rows, **published.totals}
        numbers |= {RECORDED + name: x for name, x in published.entries.items()}
    if figures:
        numbers |= figures.by_name
    return {name: Decimal(x) for name, x in numbers.items()}


def _record_mismatches(
    name: str, day: date, figures: DayFigures, published: PublishedDay
) -> Iterator[str]:
    expected: dict[str, int | str] = {"rows": published.rows, **published.totals}
    for figure, number in expected.items():
        if figures.by_name[figure] != Decimal(number):
            yield (
                f"{day}: {name} has {figure} {figures.by_name[figure]:,}, but the commit that "
                f"published it says {Decimal(number):,}"
            )
