"""Forecast of a backfill: the outcome of each day, its work, duration and API calls.

Estimated from the tables' logs. The exact API requests of a day are known only after it is
computed: the bound is for functions that make at most one request per row.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import accumulate
from statistics import linear_regression, mean, median
from typing import NamedTuple

import dagster as dg

from backfill_assets.backfills.backfill_plan import ApiCallEstimate, DayOutcome
from backfill_assets.calendar.partitions import DAY, DaySet, Grain, Window, days_of_run
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.staleness import assess
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.unloaded import LoadPlan, loaded_manifests
from backfill_assets.tables.derived import Derived
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import asset_name
from backfill_assets.tables.unpartitioned import Lookup, LookupAnswers, requests_figure

#: Outcomes in which a day is or may be computed.
COMPUTE_OUTCOMES = (DayOutcome.COMPUTED, DayOutcome.DEPENDS)


class DayForecast(NamedTuple):
    """The planned outcome of a day; with a reason if the day is or may be computed."""

    outcome: DayOutcome
    reason: str = ""


def forecast_days(
    snapshot: Snapshot, days: Mapping[str, Sequence[date]], *, rewrite: bool = False
) -> dict[str, dict[date, DayForecast]]:
    """Forecast each day, given that the days before it come out as forecast.

    `days` must be by table, inputs first; `rewrite` computes all of them in any case.
    """
    forecasts: dict[str, dict[date, DayForecast]] = {}
    for name, table_days in days.items():
        requested = table_days if rewrite else ()
        assessments = assess.assess(snapshot, name, table_days, requested=requested)
        forecasts[name] = {
            day: _forecast_day(snapshot, name, day, assessment, rewrite)
            for day, assessment in assessments.items()
        }
        changing = [day for day, assessment in assessments.items() if assessment.can_change]
        snapshot = snapshot.with_planned(name, changing)
    return forecasts


def _forecast_day(
    snapshot: Snapshot, table: str, day: date, assessment: assess.DayAssessment, rewrite: bool
) -> DayForecast:
    if assessment.not_due:
        return DayForecast(DayOutcome.NOT_DUE)
    if obstacle := assessment.obstacle:
        return DayForecast(
            DayOutcome.OTHER_SETTINGS if obstacle.other_settings else DayOutcome.LACKING
        )
    if not assessment.can_change:
        return DayForecast(DayOutcome.IDENTICAL)
    # What is computed in any case may also come out as published.
    certain = rewrite or not _is_built_by(snapshot, table, day)
    reason = assessment.reason
    if not certain and assessment.changing_inputs:
        reason = assess.new_input_reason(assessment.changing_inputs)
    elif reason:
        certain = True
    waits = f"waits for the day before of {table}" if assessment.follows_previous_day else ""
    return DayForecast(
        DayOutcome.COMPUTED if certain else DayOutcome.DEPENDS,
        "; ".join(filter(None, [reason, waits])),
    )


def _is_built_by(snapshot: Snapshot, table: str, day: date) -> bool:
    """Whether a day is published with the current code and settings."""
    ledger = snapshot.ledgers[table]
    record = ledger.latest.get(day) if ledger.current_record(day) else None
    return record is not None and (record.code_version, record.made_under(day)) == (
        snapshot.code_versions[table],
        snapshot.config_digests[table],
    )


#: How many past runs the expected duration is estimated from.
_PAST_RUNS = 100


def past_runs(instance: dg.DagsterInstance, deployment: Deployment) -> list[tuple[int, float]]:
    """Number of days and seconds of the last successful runs in Dagster."""
    successful = dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS])
    runs = []
    for record in instance.get_run_records(successful, limit=_PAST_RUNS):
        run = record.dagster_run
        days = _count_days(run, deployment) if deployment.owns_run(run) else 0
        if days and record.start_time and record.end_time:
            runs.append((days, record.end_time - record.start_time))
    return runs


def _count_days(run: dg.DagsterRun, deployment: Deployment) -> int:
    """The days that the partitions of a run have: of a month, all of its days."""
    partitions = days_of_run(run.tags) or ()
    tables = deployment.tables
    names = deployment.tables_of(run.asset_selection or ())
    # Dagster runs tables of one grain together; a run of a whole job names none.
    job_grain = None if names else Grain.of_job(deployment.job_of_run(run))
    grain = job_grain or next((tables[name].grain for name in names), Grain.DAILY)
    days = sum(len(grain.days_of(first)) for first in grain.partitions_of(partitions))
    parts = {tables[name].part for name in names if tables[name].is_in_run(run.tags)}
    return days * max(1, len(parts))


def expected_seconds(past: Sequence[tuple[int, float]], runs: int, days: int) -> float | None:
    """Expected duration of runs one after another; None without past runs.

    `past` has days and seconds of each past run; `days` is the total of all runs to come.
    """
    if not past:
        return None
    sizes, seconds = zip(*past, strict=True)
    if len(set(sizes)) > 1:
        line = linear_regression(sizes, seconds)
        if line.slope > 0 and line.intercept > 0:
            return runs * line.intercept + days * line.slope
    # Past runs of one size, or no clear trend: assume that a run with fewer days is not faster.
    return runs * mean(seconds) * max(1, days / runs / mean(sizes))


#: Days are cut into even stages if a run has more than this many times the average work of a run;
#: no stage of several days has more than this many times the target work.
TOLERANCE = 1.3


def even_stages(days: Window, work: WorkEstimate, days_per_run: int) -> list[Window]:
    """Stages of about equal work; one stage if Dagster's own split into runs is even enough.

    It is even enough if no run has more than `TOLERANCE` times the work of a run of average days,
    or if other stages would not make the heaviest run lighter. Otherwise each stage is one run for
    each range of it, or two if its downstream days do not fit in one.
    """
    runs = [work.run_work(run, with_lead=False) for run in days.split_by_length(days_per_run)]
    if len(runs) == 1:
        return [days]
    # Days before a stage that are downstream of it should fit in the same run.
    longest = days_per_run - work.lead_days if 2 * work.lead_days <= days_per_run else days_per_run
    average = work.run_overhead + days_per_run * (sum(runs) - len(runs) * work.run_overhead) / len(
        days
    )
    if max(runs) <= TOLERANCE * average:
        return [days]
    stages = _split_evenly(days, work, longest, median_stage_work(days, work, longest))
    return stages if max(map(work.run_work, stages)) < max(runs) else [days]


def median_stage_work(days: Window, work: WorkEstimate, length: int) -> float:
    """The work of a stage of `length` days that are all like the median day with work."""
    stage_works = [work.work_if_alike(day, length) for day in days]
    return median(
        [stage_work for stage_work in stage_works if stage_work > work.run_overhead] or stage_works
    )


def _split_evenly(
    days: Window, work: WorkEstimate, longest: int, target_work: float
) -> list[Window]:
    """The stages with the smallest sum of squared differences from the target work.

    A stage of several days has at most the larger of `TOLERANCE` times the target work and the work
    of the heaviest day alone.
    """
    heaviest = max(work.run_work(Window(day, day + DAY)) for day in days)
    bound = max(TOLERANCE * target_work, heaviest)
    all_days = [*days]
    #: For the first days: the smallest sum, and the number of days before the last stage.
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(all_days) + 1):
        best_cut = (float("inf"), end - 1)
        for start in range(end - 1, max(0, end - longest) - 1, -1):
            stage_work = work.run_work(Window(all_days[start], all_days[end - 1] + DAY))
            if start < end - 1 and stage_work > bound:
                break
            best_cut = min(best_cut, (best[start][0] + (stage_work - target_work) ** 2, start))
        best.append(best_cut)
    stages, end = [], len(all_days)
    while end:
        start = best[end][1]
        stages.append(DaySet.from_days(all_days[start:end]))
        end = start
    return stages[::-1]


def estimate_api_calls(
    forecasts: Mapping[str, Mapping[date, DayForecast]], ledgers: Ledgers
) -> dict[str, ApiCallEstimate]:
    """The estimated API calls of a plan, by service."""
    estimates: dict[str, ApiCallEstimate] = {}
    for name, day_forecasts in forecasts.items():
        table = ledgers[name].table
        if not isinstance(table, Derived):
            continue
        # A day that is only rewritten uses its cached answers.
        days = [
            day
            for day, forecast in day_forecasts.items()
            if forecast.outcome in COMPUTE_OUTCOMES and forecast.reason != assess.REQUESTED
        ]
        for answers in table.answers.values():
            estimate = _estimate_table_calls(answers, table, days, ledgers)
            previous = estimates.get(answers.lookup.name)
            estimates[answers.lookup.name] = (
                _add_estimates(previous, estimate) if previous else estimate
            )
    return estimates


def _estimate_table_calls(
    answers: LookupAnswers, table: Derived, days: Iterable[date], ledgers: Ledgers
) -> ApiCallEstimate:
    """The API calls of one table to one service for some days.

    The expected calls use the requests per input row of days already computed, less their cached
    answers; None if no day has recorded requests.
    """
    ledger, lookup = ledgers[table.name], answers.lookup
    # The parameter of an input of several parts is there once for each.
    parameters = {*answers.parameters}
    request_inputs = [reads for n, reads in table.reads.items() if asset_name(n) in parameters]

    # Each walks all commits of its input, so it is made once and not for every day.
    deciding_days = {
        reads.table.name: reads.reach.deciding_days(ledgers[reads.table.name])
        for reads in request_inputs
    }

    def count_input_rows(day: date) -> int:
        """Rows of the input days that decide a day: at one request per row, its most requests."""
        return sum(
            ledgers[name].rows_of(input_day) or 0
            for name, days_of in deciding_days.items()
            for input_day in days_of(day)
        )

    requests_by_day = {
        day: count for day in ledger.latest if (count := _recorded_requests(ledger, day, lookup))
    }
    rows_read = sum(count_input_rows(day) for day in requests_by_day)
    total = unknown_days = 0
    projected = 0.0
    for day in days:
        unknown_days += any(
            ledgers[reads.table.name].rows_of(needed_day) is None
            for reads in request_inputs
            for needed_day in reads.reach.required_days(day)
        )
        total += count_input_rows(day)
        if rows_read:
            uncached = day not in requests_by_day or lookup.name in ledger.changed_references(day)
            cached = 0 if uncached else requests_by_day[day]
            projected += max(
                0.0, count_input_rows(day) * sum(requests_by_day.values()) / rows_read - cached
            )
    expected = min(total, math.ceil(projected)) if rows_read else None
    return ApiCallEstimate(
        at_most=total,
        expected=expected,
        unknown_days=unknown_days,
        seconds=lookup.seconds_for(total),
        expected_seconds=lookup.seconds_for(expected or 0),
        quota=" and ".join(map(str, lookup.quotas)),
        reserve=lookup.reserve,
    )


def _add_estimates(first: ApiCallEstimate, second: ApiCallEstimate) -> ApiCallEstimate:
    """The sum for two tables that call the same service; requests they share are not known."""
    known = [estimate.expected for estimate in (first, second) if estimate.expected is not None]
    return first.model_copy(
        update={
            "at_most": first.at_most + second.at_most,
            "expected": sum(known) if len(known) == 2 else None,
            "unknown_days": first.unknown_days + second.unknown_days,
            "seconds": first.seconds + second.seconds,
            "expected_seconds": first.expected_seconds + second.expected_seconds,
        }
    )


def _recorded_requests(ledger: Ledger, day: date, lookup: Lookup) -> int:
    return int(ledger.latest[day].days[day].numbers.get(requests_figure(lookup.name), 0))


#: Overhead of a run and of a day for each table, as the number of rows that take as long: of 6 s
#: per run of eight tables, 9 ms per day and table, and 5.8 microseconds per row and table.
ROWS_OF_RUN, ROWS_OF_DAY = 125_000, 1_500
#: Assumed bytes of a landed line until a day has been loaded.
_BYTES_OF_ROW = 100


@dataclass(frozen=True)
class WorkEstimate:
    """The work of a plan by day, as a number of rows.

    Attributes:
        window: the requested days.
        run_overhead: work of a run besides its days.
        by_lead: work by day, for the tables whose downstream days start this many days before the
            requested days. The work of a week counts on its last day.
    """

    window: Window
    run_overhead: int
    by_lead: Mapping[int, Mapping[date, int]]

    def run_work(self, days: Window, *, with_lead: bool = True) -> int:
        """The work of a run of some days, and of downstream days in gaps between them.

        Args:
            days: the days.
            with_lead: whether the downstream days before them are included; of a longer stage, only
                the first run builds them.
        """
        return self.run_overhead + sum(
            self._work_before(lead, days.end)
            - self._work_before(lead, days.start - with_lead * lead * DAY)
            for lead in self.by_lead
        )

    def work_if_alike(self, day: date, length: int) -> int:
        """The work of a stage of `length` days that are all like this one."""
        return self.run_overhead + sum(
            work.get(day, 0) * (length + lead) for lead, work in self.by_lead.items()
        )

    @property
    def lead_days(self) -> int:
        """How many days before a requested day are recomputed with it."""
        return max(self.by_lead, default=0)

    def _work_before(self, lead: int, end: date) -> int:
        """The work of all days before `end`."""
        days = (end - self.window.start).days + self.lead_days
        return self._cumulative_work[lead][max(0, min(days, len(self._cumulative_work[lead]) - 1))]

    @cached_property
    def _cumulative_work(self) -> dict[int, list[int]]:
        days = Window(self.window.start - self.lead_days * DAY, self.window.end)
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
    """Estimate the work of a plan from day forecasts by table, inputs first.

    `window` has the requested days; `downstream_of_last_day` has, by table, the days downstream of
    the last of them.
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
        grain, last = ledgers[name].table.grain, window.end - DAY
        first = min(
            (_find_counted_day(grain, day, last) for day in downstream_of_last_day.get(name, ())),
            default=last,
        )
        lead_work = by_lead.setdefault((last - first).days, {})
        for day in work:
            counted_day = _find_counted_day(grain, day, last)
            lead_work[counted_day] = lead_work.get(counted_day, 0) + ROWS_OF_DAY + rows_read[day]
    return WorkEstimate(window, tables * ROWS_OF_RUN, by_lead)


def _find_counted_day(cadence: Grain, partition: date, last: date) -> date:
    """The day on which a partition's work counts: its last requested day."""
    return min(cadence.days_of(partition).end - DAY, last)


def _input_rows(
    name: str,
    days: Iterable[date],
    sizes: Mapping[str, Mapping[date, int]],
    ledgers: Ledgers,
    graph: Graph,
) -> Iterator[list[int]]:
    """By day, the rows of each input on that day.

    Rows of the days around it, which a reach may also read, are not counted: a run reads them once,
    with their own days.
    """
    grain = ledgers[name].table.grain
    inputs = [ledgers[input_] for input_ in graph.direct_inputs(name)]
    for day in days:
        yield [
            sum(
                sizes.get(ledger.table.name, {}).get(key, ledger.rows_of(key) or 0)
                for key in ledger.table.grain.partitions_of(grain.days_of(day))
            )
            for ledger in inputs
        ]


def _estimate_landed_rows(
    load_plan: LoadPlan, log: Ledger, days: Collection[date]
) -> dict[date, int]:
    """Estimated rows by day of a raw log: bytes of its files divided by bytes per row."""
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
