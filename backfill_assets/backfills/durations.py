"""How long runs take, by what past runs took."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression, mean

import dagster as dg

from backfill_assets.calendar.partitions import days_of_run

#: Past runs that the expected duration is judged from.
_PAST_RUNS = 100


def past_runs(instance: dg.DagsterInstance) -> list[tuple[int, float]]:
    """Days and seconds of the last runs that succeeded, as Dagster has them."""
    successful = dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS])
    runs = []
    for record in instance.get_run_records(successful, limit=_PAST_RUNS):
        days = days_of_run(record.dagster_run.tags)
        if days and record.start_time and record.end_time:
            runs.append((len(days), record.end_time - record.start_time))
    return runs


def expected_seconds(past: Sequence[tuple[int, float]], runs: int, days: int) -> float | None:
    """How long runs take, one after another, by what past runs took.

    Args:
        past: days and seconds of each.
        runs: how many are to come.
        days: of all of them together.
    """
    if not past:
        return None
    sizes, seconds = zip(*past, strict=True)
    if len(set(sizes)) > 1:
        line = linear_regression(sizes, seconds)
        if line.slope > 0 and line.intercept > 0:
            return runs * line.intercept + days * line.slope
    # Of one size, or of no clear trend: a run with fewer days is taken for no quicker.
    return runs * mean(seconds) * max(1, days / runs / mean(sizes))
