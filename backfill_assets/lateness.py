"""The late-data policy, as pure functions over dates: what may change which day, and until when.

Nothing here reads a clock, a table or a file.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from datetime import date

import dagster as dg

from backfill_assets.partitions import DAY, Window
from backfill_assets.settings import Settings


@dataclass(frozen=True)
class Policy:
    """How late data is treated.

    Attributes:
        start: the first day of all.
        end: the day after the last one; none if the calendar goes on.
        window_days: the reprocessing window W: lines logged up to W days after the day that they
            tell of still change it.
        lag_days: day D is first published by a scheduled run on D + lag.
        corrects: whether lines beyond the window become corrections (`correct`); otherwise they
            are counted and in no total (`drop`).
        only_touched: whether a scheduled run rebuilds just the days that new lines change
            (`touched`); otherwise all that they may change (`window`).
        absent_days: a folder is waited for until one of so many days later was loaded; then its
            day counts as one on which nothing came.
    """

    start: date
    end: date | None
    window_days: int
    lag_days: int
    corrects: bool
    only_touched: bool
    absent_days: int = 30

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        """The policy that the settings ask for."""
        return cls(
            start=settings.start,
            end=settings.end,
            window_days=settings.window_days,
            lag_days=settings.lag_days,
            corrects=settings.late_lines == "correct",
            only_touched=settings.reprocess == "touched",
            absent_days=settings.absent_days,
        )

    def logged(self, today: date) -> Window:
        """The log days that are over on a day, so that they can be loaded."""
        return self._calendar(today)

    def due(self, today: date) -> Window:
        """The days that should have been published by the end of a day's nightly run.

        With a lag of 1, yesterday is the last of them.
        """
        return self._calendar(today - (self.lag_days - 1) * DAY)

    def _calendar(self, end: date) -> Window:
        return Window(self.start, max(self.start, end if self.end is None else min(end, self.end)))

    def may_touch(self, log_day: date) -> Window:
        """The event days that a line logged on a day may change: itself and the W days before."""
        return event_days(Window(log_day, log_day + DAY), self.window_days)


def log_days(event_days: Window, window_days: int) -> Window:
    """The log days that a run over these event days must read.

    None before the first event day: no line is logged before the day that it tells of. That day
    itself is the first, so a window of W days spans W + 1 log days: with W = 0 only what is logged
    on the very day counts.
    """
    return event_days.widened(after=window_days)


def event_days(log_days: Window, window_days: int) -> Window:
    """The event days that lines of these log days may change: the inverse of `log_days`."""
    return log_days.widened(before=window_days)


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
