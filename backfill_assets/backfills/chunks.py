"""Cutting the days of a backfill into stages of about the same work: pure."""

from __future__ import annotations

from statistics import median

from backfill_assets.backfills.workloads import Workload
from backfill_assets.calendar.partitions import DAY, Window

#: A run may have so many times the work of a run of average days before the days are cut evenly,
#: and a stage of several days has no more.
TOLERANCE = 1.3


def even_stages(days: Window, work: Workload, most: int) -> list[Window]:
    """Stages of about the same work; one stage where Dagster's own cut into runs is even enough.

    It is if no run has more work than `TOLERANCE` times that of a run of average days, or if other
    stages would not make the heaviest run lighter. Else each stage is one run, or two of them if
    the days that follow from it do not fit in one.

    Args:
        days: the days to cut.
        work: how much work they are.
        most: at most so many days a run.
    """
    runs = [work.of(run, again=False) for run in days.split(most)]
    if len(runs) == 1:
        return [days]
    # The days before a stage that follow from it are to fit in the same run.
    longest = most - work.lead if 2 * work.lead <= most else most
    average = work.of_run + most * (sum(runs) - len(runs) * work.of_run) / len(days)
    if max(runs) <= TOLERANCE * average:
        return [days]
    stages = _evenest(days, work, longest, usual_stage(days, work, longest))
    return stages if max(map(work.of, stages)) < max(runs) else [days]


def usual_stage(days: Window, work: Workload, length: int) -> float:
    """The work of a stage of so many days that are all like the median day, of those with work."""
    alike = [work.of_alike(day, length) for day in days]
    return median([of for of in alike if of > work.of_run] or alike)


def _evenest(days: Window, work: Workload, longest: int, wanted: float) -> list[Window]:
    """The stages whose work differs least from a wanted one, by the sum of the squares.

    A stage of several days that has more than `TOLERANCE` times the wanted work, and more than the
    heaviest day alone, is none of them.
    """
    heaviest = max(work.of(Window(day, day + DAY)) for day in days)
    bound = max(TOLERANCE * wanted, heaviest)
    bounds = [days.start, *(day + DAY for day in days)]
    #: For the days before each bound: the least sum, and the bound that the last stage begins at.
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(bounds)):
        found = (float("inf"), end - 1)
        for start in range(end - 1, max(0, end - longest) - 1, -1):
            of = work.of(Window(bounds[start], bounds[end]))
            if start < end - 1 and of > bound:
                break
            found = min(found, (best[start][0] + (of - wanted) ** 2, start))
        best.append(found)
    stages, end = [], len(bounds) - 1
    while end:
        start = best[end][1]
        stages.append(Window(bounds[start], bounds[end]))
        end = start
    return stages[::-1]
