"""How much work the days of a plan are, in rows: what they read, and what each costs besides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import accumulate

from backfill_assets.backfills.fates import COMPUTE_OUTCOMES, DayForecast
from backfill_assets.backfills.plan_landing import LoadPlan
from backfill_assets.calendar.cadences import Grain
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.staleness.arrivals import loaded_manifests
from backfill_assets.tables.graph import Graph

#: What a run costs besides its rows, and what a day costs: for each table, in the rows that take as
#: long. From docs/performance.md: 6 s a run of eight tables, 9 ms a day and table, and 5.8
#: microseconds a row and table.
ROWS_OF_RUN, ROWS_OF_DAY = 125_000, 1_500
#: Bytes of a landed line, until days have been loaded that tell.
_BYTES_OF_ROW = 100


@dataclass(frozen=True)
class WorkEstimate:
    """The work of a plan by day, as rows.

    Attributes:
        window: the days that are asked for.
        run_overhead: what a run costs besides its days.
        by_lead: the work by day, of tables together whose days begin so many days before those that
            are asked for. A week counts on the last of its days.
    """

    window: Window
    run_overhead: int
    by_lead: Mapping[int, Mapping[date, int]]

    def run_work(self, days: Window, *, with_lead: bool = True) -> int:
        """The work of a run of some days.

        Args:
            days: the days.
            with_lead: whether the days before them that follow from them are made as well. Of a longer
                stage, only its first run makes them.
        """
        return self.run_overhead + sum(
            self._work_before(lead, days.end)
            - self._work_before(lead, days.start - with_lead * lead * DAY)
            for lead in self.by_lead
        )

    def work_if_alike(self, day: date, length: int) -> int:
        """The work of a stage of so many days that are all like one."""
        return self.run_overhead + sum(
            work.get(day, 0) * (length + lead) for lead, work in self.by_lead.items()
        )

    @property
    def lead_days(self) -> int:
        """So many days before a day are made anew with it."""
        return max(self.by_lead, default=0)

    def _work_before(self, lead: int, end: date) -> int:
        """The work of all days before one."""
        days = (end - self.window.start).days + self.lead_days
        return self._cumulative_work[lead][max(0, min(days, len(self._cumulative_work[lead]) - 1))]

    @cached_property
    def _cumulative_work(self) -> dict[int, list[int]]:
        days = self.window.widen_by(before=self.lead_days)
        return {
            lead: [0, *accumulate(work.get(day, 0) for day in days)]
            for lead, work in self.by_lead.items()
        }


def estimate_work(
    window: Window,
    forecasts: Mapping[str, Mapping[date, DayForecast]],
    load_plans: Mapping[str, LoadPlan],
    ledgers: Ledgers,
    graph: Graph,
    downstream_of_last_day: Mapping[str, Sequence[date]],
) -> WorkEstimate:
    """The work of a plan.

    Args:
        window: the days that are asked for.
        forecasts: what becomes of the days of each table, inputs first.
        load_plans: by raw log, what its days are to be loaded from.
        ledgers: those of all tables.
        graph: of the tables.
        downstream_of_last_day: the days of each table that follow from the last day that is asked for.
    """
    sizes: dict[str, dict[date, int]] = {}
    by_lead: dict[int, dict[date, int]] = {}
    tables = 0
    for name, by_day in forecasts.items():
        work = [day for day, forecast in by_day.items() if forecast.outcome in COMPUTE_OUTCOMES]
        if name in load_plans:
            sizes[name] = _estimate_landed_rows(load_plans[name], ledgers[name], work)
            rows_read = sizes[name]
        else:
            input_rows = [*_input_rows(name, work, sizes, ledgers, graph)]
            rows_read = {day: sum(rows) for day, rows in zip(work, input_rows, strict=True)}
            sizes[name] = {
                day: max(rows, default=0) for day, rows in zip(work, input_rows, strict=True)
            }
        tables += bool(work)
        cadence, last = ledgers[name].table.grain, window.end - DAY
        first = min(
            (_counts_on(cadence, day, last) for day in downstream_of_last_day.get(name, ())),
            default=last,
        )
        lead_work = by_lead.setdefault((last - first).days, {})
        for day in work:
            counted_day = _counts_on(cadence, day, last)
            lead_work[counted_day] = lead_work.get(counted_day, 0) + ROWS_OF_DAY + rows_read[day]
    return WorkEstimate(window, tables * ROWS_OF_RUN, by_lead)


def _counts_on(cadence: Grain, partition: date, last: date) -> date:
    """The day whose stage a partition comes with: the last of its days that is asked for."""
    return min(cadence.days_of(partition).end - DAY, last)


def _input_rows(
    name: str,
    days: Iterable[date],
    sizes: Mapping[str, Mapping[date, int]],
    ledgers: Ledgers,
    graph: Graph,
) -> Iterator[list[int]]:
    """By day, the rows that each input holds of it.

    The days around it that a reach has too are read once a run, with their own days.
    """
    cadence = ledgers[name].table.grain
    inputs = [ledgers[input_] for input_ in graph.direct_inputs(name)]
    for day in days:
        yield [
            sum(
                sizes.get(ledger.table.name, {}).get(key, ledger.rows_of(key) or 0)
                for key in ledger.table.grain.partitions_of(cadence.days_of(day))
            )
            for ledger in inputs
        ]


def _estimate_landed_rows(
    load_plan: LoadPlan, log: Ledger, days: Collection[date]
) -> dict[date, int]:
    """By day of a raw log, about how many rows its files have: their bytes by those of a row."""
    loaded = {
        day: sum(file.size for file in manifest.files.values())
        for day, manifest in loaded_manifests(log).items()
        if log.rows_of(day)
    }
    rows = sum(log.rows_of(day) or 0 for day in loaded)
    row_size = sum(loaded.values()) / rows if rows and any(loaded.values()) else _BYTES_OF_ROW
    return {
        day: round(
            sum(file.size for file in load_plan.targets[day].manifest.files.values()) / row_size
        )
        for day in days
    }
