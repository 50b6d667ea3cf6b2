"""How much work the days of a plan are, in rows: what they read, and what each costs besides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import accumulate

from backfill_assets.backfills.fates import WORK, Fate
from backfill_assets.backfills.plan_landing import Landed
from backfill_assets.calendar.cadences import Cadence
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.staleness.arrivals import manifests
from backfill_assets.tables.graph import Graph

#: What a run costs besides its rows, and what a day costs: for each table, in the rows that take as
#: long. From docs/performance.md: 6 s a run of eight tables, 9 ms a day and table, and 5.8
#: microseconds a row and table.
ROWS_OF_RUN, ROWS_OF_DAY = 125_000, 1_500
#: Bytes of a landed line, until days have been loaded that tell.
_BYTES_OF_ROW = 100


@dataclass(frozen=True)
class Workload:
    """The work of a plan by day, as rows.

    Attributes:
        window: the days that are asked for.
        of_run: what a run costs besides its days.
        by_lead: the work by day, of tables together whose days begin so many days before those that
            are asked for. A week counts on the last of its days.
    """

    window: Window
    of_run: int
    by_lead: Mapping[int, Mapping[date, int]]

    def of(self, days: Window, *, again: bool = True) -> int:
        """The work of a run of some days.

        Args:
            days: the days.
            again: whether the days before them that follow from them are made as well. Of a longer
                stage, only its first run makes them.
        """
        return self.of_run + sum(
            self._until(lead, days.end) - self._until(lead, days.start - again * lead * DAY)
            for lead in self.by_lead
        )

    def of_alike(self, day: date, length: int) -> int:
        """The work of a stage of so many days that are all like one."""
        return self.of_run + sum(
            of.get(day, 0) * (length + lead) for lead, of in self.by_lead.items()
        )

    @property
    def lead(self) -> int:
        """So many days before a day are made anew with it."""
        return max(self.by_lead, default=0)

    def _until(self, lead: int, end: date) -> int:
        """The work of all days before one."""
        days = (end - self.window.start).days + self.lead
        return self._sums[lead][max(0, min(days, len(self._sums[lead]) - 1))]

    @cached_property
    def _sums(self) -> dict[int, list[int]]:
        days = self.window.widened(before=self.lead)
        return {
            lead: [0, *accumulate(work.get(day, 0) for day in days)]
            for lead, work in self.by_lead.items()
        }


def workload(
    window: Window,
    fates: Mapping[str, Mapping[date, Fate]],
    landed: Mapping[str, Landed],
    ledgers: Ledgers,
    graph: Graph,
    follow: Mapping[str, Sequence[date]],
) -> Workload:
    """The work of a plan.

    Args:
        window: the days that are asked for.
        fates: what becomes of the days of each table, inputs first.
        landed: by raw log, what its days are to be loaded from.
        ledgers: those of all tables.
        graph: of the tables.
        follow: the days of each table that follow from the last day that is asked for.
    """
    sizes: dict[str, dict[date, int]] = {}
    by_lead: dict[int, dict[date, int]] = {}
    tables = 0
    for name, of in fates.items():
        work = [day for day, fate in of.items() if fate.expected in WORK]
        if name in landed:
            sizes[name] = _landed_rows(landed[name], ledgers[name], work)
            reads = sizes[name]
        else:
            read = [*_read(name, work, sizes, ledgers, graph)]
            reads = {day: sum(rows) for day, rows in zip(work, read, strict=True)}
            sizes[name] = {day: max(rows, default=0) for day, rows in zip(work, read, strict=True)}
        tables += bool(work)
        cadence, last = ledgers[name].table.cadence, window.end - DAY
        first = min((_counts_on(cadence, day, last) for day in follow.get(name, ())), default=last)
        found = by_lead.setdefault((last - first).days, {})
        for day in work:
            on = _counts_on(cadence, day, last)
            found[on] = found.get(on, 0) + ROWS_OF_DAY + reads[day]
    return Workload(window, tables * ROWS_OF_RUN, by_lead)


def _counts_on(cadence: Cadence, partition: date, last: date) -> date:
    """The day whose stage a partition comes with: the last of its days that is asked for."""
    return min(cadence.days_of(partition).end - DAY, last)


def _read(
    name: str,
    days: Iterable[date],
    sizes: Mapping[str, Mapping[date, int]],
    ledgers: Ledgers,
    graph: Graph,
) -> Iterator[list[int]]:
    """By day, the rows that each input holds of it.

    The days around it that a reach has too are read once a run, with their own days.
    """
    cadence = ledgers[name].table.cadence
    inputs = [ledgers[input_] for input_ in graph.made_from(name)]
    for day in days:
        yield [
            sum(
                sizes.get(of.table.name, {}).get(key, of.rows_of(key) or 0)
                for key in of.table.cadence.touched(cadence.days_of(day))
            )
            for of in inputs
        ]


def _landed_rows(landed: Landed, log: Ledger, days: Collection[date]) -> dict[date, int]:
    """By day of a raw log, about how many rows its files have: their bytes by those of a row."""
    loaded = {
        day: sum(file.size for file in manifest.files.values())
        for day, manifest in manifests(log).items()
        if log.rows_of(day)
    }
    rows = sum(log.rows_of(day) or 0 for day in loaded)
    each = sum(loaded.values()) / rows if rows and any(loaded.values()) else _BYTES_OF_ROW
    return {
        day: round(sum(file.size for file in landed.targets[day].manifest.files.values()) / each)
        for day in days
    }
