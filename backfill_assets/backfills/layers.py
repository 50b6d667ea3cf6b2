"""Whether the layers agree with each other, and with what their commits say, day by day.

A day is held against its inputs as they were when it was made: as of the versions that its record
names. What others have committed since, before or after, is another question.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal

from backfill_assets.backfills.footprints import written
from backfill_assets.backfills.reports import Fingerprint, Report
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import Published, Record
from backfill_assets.tables.table import RECORDED, Figure


def across_layers(reports: Iterable[Report], ledgers: Ledgers) -> list[str]:
    """Where the days of some reports disagree with what they were made of, as they are after.

    A day is also held against what its own commit says of it.

    Args:
        reports: of any tables.
        ledgers: by table, what its log says.

    Returns:
        A sentence for each disagreement, naming day and numbers; of two tables the latter is the
        one to publish again.
    """
    tables = {name: _Past(ledger) for name, ledger in ledgers.items()}
    said: list[str] = []
    days: list[tuple[str, date, int]] = []
    for report in reports:
        name = report.table.name
        for one in report.days:
            version = one.versions[1]
            if one.after is None or version is None:
                continue
            days.append((name, one.day, version))
            tables[name].look(one.day, version, one.after)
            if record := tables[name].record(one.day, version):
                said += _against_record(name, one.day, one.after, record.days[one.day])
    for name, day, version in days:
        for earlier, later in ledgers[name].table.equations:
            if earlier.table.name in tables:
                at = _made_of(tables, earlier.table.name, name, day, version)
                x = None if at is None else tables[earlier.table.name].number(earlier, day, at)
                y = tables[name].number(later, day, version)
                if x is not None and y is not None and x != y:
                    has, instead = earlier.text.format(f"{x:,}"), later.text.format(f"{y:,}")
                    said.append(f"{day}: {earlier.table.name} {has}, but {name} {instead}")
    return sorted(said)


class _Past:
    """What a table held on a day as of any version: by its log, and by what was read of it."""

    def __init__(self, ledger: Ledger) -> None:
        self._spoken: dict[date, list[Record]] = defaultdict(list)
        self._written: dict[date, list[int]] = defaultdict(list)
        self._external: dict[date, list[int]] = defaultdict(list)
        self._read: dict[tuple[date, int], Fingerprint] = {}
        for record in ledger.records:
            for day in (*record.days, *record.withdrawn):
                self._spoken[day].append(record)
        for commit in ledger.commits:
            of = self._written if isinstance(commit, Record) else self._external
            for day in written(commit):
                of[day].append(commit.version)

    def look(self, day: date, version: int, held: Fingerprint) -> None:
        """Take in what was read of a day as of a version."""
        self._read[day, self.since(day, version)] = held

    def since(self, day: date, version: int) -> int:
        """The version as of which a day is what it is in another, whoever wrote it; -1 for none."""
        return max(_last(self._written[day], version), _last(self._external[day], version))

    def records(self, day: date) -> list[Record]:
        """The records that speak of a day, in ascending order."""
        return self._spoken[day]

    def record(self, day: date, version: int) -> Record | None:
        """The record that a day is as of a version; none if others have changed it since."""
        of = self._spoken[day]
        n = bisect_right([record.version for record in of], version)
        if not n or day not in of[n - 1].days:
            return None
        others = _last(self._external[day], version)
        return None if others > of[n - 1].vouches(day) else of[n - 1].for_day(day)

    def number(self, figure: Figure, day: date, version: int) -> Decimal | None:
        """A number of a day as of a version; what was read comes before what a record says."""
        record = self.record(day, version)
        said = record.days[day] if record else None
        held = self._read.get((day, self.since(day, version)))
        return _numbers(held, said).get(figure.name)


def _last(versions: list[int], version: int) -> int:
    n = bisect_right(versions, version)
    return versions[n - 1] if n else -1


def _made_of(
    tables: Mapping[str, _Past], earlier: str, later: str, day: date, version: int
) -> int | None:
    """The version of one table that a day of another is to be compared with.

    It is the one that the day's record names as its input. Of two tables that are made side by
    side, neither is the other's input: then it is the last one that was made of the same, as the
    inputs that both name, the input fingerprint or the run tells. None if there is none.
    """
    record = tables[later].record(day, version)
    if record is None:
        return None
    if earlier in record.inputs:
        return record.inputs[earlier]
    for other in reversed(tables[earlier].records(day)):
        if day in other.days and _same_origin(tables, other.for_day(day), record, day):
            return other.version
    return None


def _same_origin(tables: Mapping[str, _Past], one: Record, other: Record, day: date) -> bool:
    """Whether a day of two tables was made of the same."""
    if both := one.inputs.keys() & other.inputs.keys():
        return all(
            tables[name].since(day, one.inputs[name]) == tables[name].since(day, other.inputs[name])
            for name in both
        )
    fingerprint = one.days[day].fingerprint
    return one.run_id == other.run_id or (
        fingerprint != "" and fingerprint == other.days[day].fingerprint
    )


def _numbers(held: Fingerprint | None, said: Published | None) -> dict[str, Decimal]:
    """All numbers of a day by name: what it holds, and what its commit recorded of its inputs."""
    own: dict[str, int | str | Decimal] = {}
    if said:
        own = {"rows": said.rows, **said.totals}
        own |= {RECORDED + name: x for name, x in said.entries.items()}
    if held:
        own |= held.figures
    return {name: Decimal(x) for name, x in own.items()}


def _against_record(name: str, day: date, held: Fingerprint, said: Published) -> Iterator[str]:
    due: dict[str, int | str] = {"rows": said.rows, **said.totals}
    for figure, number in due.items():
        if held.figures[figure] != Decimal(number):
            yield (
                f"{day}: {name} has {figure} {held.figures[figure]:,}, but the commit that "
                f"published it says {Decimal(number):,}"
            )
