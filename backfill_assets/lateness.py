"""The reprocessing policy, as pure functions over dates: which log days may change which event day.

Nothing here reads a clock, a table or a file.
"""

from __future__ import annotations

import warnings
from datetime import date, timedelta

import dagster as dg

from backfill_assets.partitions import Window


def last_log_day(event_day: date, window_days: int) -> date:
    """The last log day that may still change an event day.

    The day itself is the first of them, so a window of W days spans W + 1 log days: with W = 0
    only what is logged on the very day counts.
    """
    return event_day + timedelta(days=window_days)


def log_days(event_days: Window, window_days: int) -> Window:
    """The log days that a run over these event days must read.

    None before the first event day: no line is logged before the day that it tells of.
    """
    return event_days.widened(after=window_days)


def log_days_mapping(window_days: int) -> dg.TimeWindowPartitionMapping:
    """`log_days` as Dagster sees it: a day depends on its own log day and the W that follow.

    The last days of a range have log days that do not exist yet; they are open, not broken.
    """
    with warnings.catch_warnings():
        # The parameter is beta; the exact pin of Dagster is what makes it safe to use.
        warnings.simplefilter("ignore", dg.BetaWarning)
        return dg.TimeWindowPartitionMapping(
            start_offset=0, end_offset=window_days, allow_nonexistent_upstream_partitions=True
        )
