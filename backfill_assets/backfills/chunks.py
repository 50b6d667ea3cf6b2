"""Cutting the days of a backfill into stages of about the same work: pure."""

from __future__ import annotations

from statistics import median

from backfill_assets.backfills.workloads import WorkEstimate
from backfill_assets.calendar.partitions import DAY, Window

#: A run may have so many times the work of a run of average days before the days are cut evenly,
#: and a stage of several days has no more.
TOLERANCE = 1.3


def even_stages(days: Window, work: WorkEstimate, days_per_run: int) -> list[Window]:
    """Stages of about the same work; one stage where Dagster's own cut into runs is even enough.

    It is if no run has more work than `TOLERANCE` times that of a run of average days, or if other
    stages would not make the heaviest run lighter. Else each stage is one run, or two of them if
    the days that follow from it do not fit in one.

    Args:
        days: the days to cut.
        work: how much work they are.
        days_per_run: at most so many days a run.
    """
    runs = [work.run_work(run, with_lead=False) for run in days.split_by_length(days_per_run)]
    if len(runs) == 1:
        return [days]
    # The days before a stage that follow from it are to fit in the same run.
    longest = days_per_run - work.lead_days if 2 * work.lead_days <= days_per_run else days_per_run
    average = work.run_overhead + days_per_run * (sum(runs) - len(runs) * work.run_overhead) / len(
        days
    )
    if max(runs) <= TOLERANCE * average:
        return [days]
    stages = _split_evenly(days, work, longest, median_stage_work(days, work, longest))
    return stages if max(map(work.run_work, stages)) < max(runs) else [days]


def median_stage_work(days: Window, work: WorkEstimate, length: int) -> float:
    """The work of a stage of so many days that are all like the median day, of those with work."""
    stage_works = [work.work_if_alike(day, length) for day in days]
    return median(
        [stage_work for stage_work in stage_works if stage_work > work.run_overhead] or stage_works
    )


def _split_evenly(
    days: Window, work: WorkEstimate, longest: int, target_work: float
) -> list[Window]:
    """The stages whose work differs least from a wanted one, by the sum of the squares.

    A stage of several days that has more than `TOLERANCE` times the wanted work, and more than the
    heaviest day alone, is none of them.
    """
    heaviest = max(work.run_work(Window(day, day + DAY)) for day in days)
    bound = max(TOLERANCE * target_work, heaviest)
    bounds = [days.start, *(day + DAY for day in days)]
    #: For the days before each bound: the least sum, and the bound that the last stage begins at.
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(bounds)):
        best_cut = (float("inf"), end - 1)
        for start in range(end - 1, max(0, end - longest) - 1, -1):
            stage_work = work.run_work(Window(bounds[start], bounds[end]))
            if start < end - 1 and stage_work > bound:
                break
            best_cut = min(best_cut, (best[start][0] + (stage_work - target_work) ** 2, start))
        best.append(best_cut)
    stages, end = [], len(bounds) - 1
    while end:
        start = best[end][1]
        stages.append(Window(bounds[start], bounds[end]))
        end = start
    return stages[::-1]
