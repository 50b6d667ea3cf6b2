"""Reaches: which days of an input decide a day of a table.

A reach gives the days to read, the days touched (its inverse), and the partition mapping that
Dagster is told. The window in which a day takes late data, and the days that a rolling table reads,
are both reaches; but they are two settings.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, ClassVar

import dagster as dg

from backfill_assets.calendar.grain import Grain
from backfill_assets.calendar.partitions import DAY, DaySet, Window, from_ranges

if TYPE_CHECKING:
    from backfill_assets.delta.ledgers import Ledger


@dataclass(frozen=True)
class Reach:
    """A day is decided by input days in a row: most often its own day, and days around it.

    Attributes:
        before: so many days before.
        after: so many days after. So an `after` of 7 spans 8 days, and with 0 only what is logged
            on the very day counts. With -1 the last of them is the day before.
        stays_open: whether the days after are a window for late data: a day of the table is built
            when its own day has come, and again as long as the window is open.
    """

    before: int = 0
    after: int = 0
    stays_open: bool = False
    #: Whether how many input days there are differs by day, so that they must be told by date.
    varies_by_day: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.before < 0 or self.before + self.after < 0:
            raise ValueError(f"{self} begins after the day, or ends before it begins")

    def required_days(self, day: date) -> Sequence[date]:
        """The input days without which a day cannot be made: its own, or the last before it.

        Whatever else the reach has is read if it is there.
        """
        return [day + min(self.after, 0) * DAY]

    def input_days(self, days: Window) -> Window:
        """The input days that decide some days."""
        return days.widen_by(before=self.before, after=self.after)

    def affected_days(self, days: Window) -> Window:
        """The days that some input days decide: the inverse of `input_days`."""
        return days.widen_by(before=self.after, after=self.before)

    def deciding_days(self, _source: Ledger) -> Callable[[date], Collection[date]]:
        """By day, the input days that decide it, in ascending order."""
        return lambda day: tuple(self.input_days(Window(day, day + DAY)))

    def changed_days(self, days: Collection[date], _source: Ledger) -> Iterable[date]:
        """The days that changes of some input days may change."""
        if self == SAME_DAY:
            return days
        offsets = [n * DAY for n in range(-self.after, self.before + 1)]
        return {day + offset for day in days for offset in offsets}

    @property
    def partition_mapping(self) -> dg.PartitionMapping | None:
        """The reach as Dagster sees it; none for the same day, which is its own default.

        The last days of a range reach for input days that do not exist yet; they are open, not
        broken.
        """
        if self == SAME_DAY:
            return None
        with warnings.catch_warnings():
            # The parameter is beta; the exact pin of Dagster is what makes it safe to use.
            warnings.simplefilter("ignore", dg.BetaWarning)
            return dg.TimeWindowPartitionMapping(
                start_offset=-self.before,
                end_offset=self.after,
                allow_nonexistent_upstream_partitions=True,
            )


@dataclass(frozen=True)
class _WeekReach(Reach):
    """A week is decided by its seven days, and needs all of them: a sum of six looks like one."""

    after: int = 6

    def required_days(self, day: date) -> Sequence[date]:
        """The input days without which a week cannot be made: all."""
        return [*Grain.WEEKLY.days_of(day)]

    def affected_days(self, days: Window) -> Window:
        """The weeks that some input days lie in."""
        return DaySet.from_days(Grain.WEEKLY.partitions_of(days))

    def changed_days(self, days: Collection[date], _source: Ledger) -> Iterable[date]:
        """The weeks that changes of some input days may change."""
        return Grain.WEEKLY.partitions_of(days)

    @property
    def partition_mapping(self) -> None:
        """Dagster's default maps a week to its days."""
        return


SAME_DAY = Reach()
#: The seven days of a week, of a table that has a partition a week.
WEEK = _WeekReach()
#: The day before, alone: of a table that carries its own state from day to day.
PREVIOUS_DAY = Reach(before=1, after=-1)


def next_days(n: int) -> Reach:
    """The day itself and the `n` days after it, as a window for late data."""
    return Reach(after=n, stays_open=True)


def last_days(n: int) -> Reach:
    """The `n` days that end with the day itself; 1 or more."""
    _refuse_days("last_days", n, 1)
    return Reach(before=n - 1)


def following_days(n: int) -> Reach:
    """The day itself and the `n` days after it, as what decides it: an outcome comes later.

    Unlike `next_days` it is no window: whatever of these days is published decides the day.
    """
    _refuse_days("following_days", n, 0)
    return Reach(after=n)


@dataclass(frozen=True)
class RecordedReach:
    """A day is decided by all input days that hold something of it, however late they came.

    Which they are is what the input's commits recorded under `spans`: by input day, the days that
    it tells of. No input day tells of a later one.
    """

    stays_open: ClassVar[bool] = True
    varies_by_day: ClassVar[bool] = True

    def required_days(self, day: date) -> Sequence[date]:
        """The input days without which a day cannot be made: its own."""
        return [day]

    def deciding_days(self, source: Ledger) -> Callable[[date], Collection[date]]:
        """By day, the input days that decide it, in ascending order.

        Of input days that somebody else changed, and of those that were published when no spans
        were recorded, anything is possible.
        """
        recorded_days: dict[date, set[date]] = defaultdict(set)
        unknown_days = {
            day for other in source.external_commits for day in other.days
        } | source.hypothetical_days
        unknown_days |= source.days_without_record | (source.published_days - source.latest.keys())
        for record in source.records:
            if record.details.spans is None:
                unknown_days |= record.rewritten_days
                continue
            for input_day, ranges in record.details.spans.items():
                for day in from_ranges(ranges):
                    recorded_days[day].add(input_day)
        published = source.published_days

        def days_of(day: date) -> Collection[date]:
            input_days = {
                d
                for d in recorded_days.get(day, set()) | unknown_days
                if d in published and d >= day
            }
            return sorted(input_days | {day})

        return days_of

    def changed_days(self, days: Collection[date], source: Ledger) -> Iterable[date]:
        """The days that changes of some input days may change, if nobody recorded which."""
        last = max(days, default=date.min)
        return {day for day in source.published_days if day <= last}

    @property
    def partition_mapping(self) -> dg.PartitionMapping:
        """The reach as Dagster sees it: any day may decide any."""
        return dg.AllPartitionMapping()


def _refuse_days(name: str, n: object, least: int) -> None:
    if type(n) is not int or n < least:
        raise ValueError(f"{name}({n!r}): give a whole number of {least} or more")
