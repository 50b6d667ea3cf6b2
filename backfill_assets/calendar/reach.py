"""Reaches: which days of an input decide a day of a table.

A reach gives the input days to read, the days that changed input days affect (the inverse), and
Dagster's partition mapping. The reprocessing window and the days of a rolling table are both
reaches, but from separate settings.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, ClassVar, Protocol

import dagster as dg

from backfill_assets.calendar.partitions import DAY, DaySet, Grain, Window, from_ranges


class PublishedLog(Protocol):
    """The part of `delta.ledgers.Ledger` that a reach reads."""

    @property
    def records(self) -> Sequence[Any]:
        """The commits, oldest first."""

    @property
    def external_commits(self) -> Sequence[Any]:
        """The commits of other writers."""

    @property
    def latest(self) -> Mapping[date, Any]:
        """The latest record of each published day, empty days included."""

    @property
    def published_days(self) -> Collection[date]:
        """The published days, empty ones included."""

    @property
    def hypothetical_days(self) -> frozenset[date]:
        """The days that may change in a what-if; empty for a published table."""

    @property
    def days_without_record(self) -> frozenset[date]:
        """The days whose last commit is not known, because the log was cut."""


@dataclass(frozen=True)
class Reach:
    """A day is decided by consecutive input days: usually its own day, and days around it.

    Attributes:
        before: number of days before.
        after: number of days after. So an `after` of 7 covers 8 days, and 0 ends with the day
            itself. With -1 the last of them is the day before.
        stays_open: whether the days after are a window for late data: a day of the table is built
            when its own day is loaded, and again as long as the window is open.
    """

    before: int = 0
    after: int = 0
    stays_open: bool = False
    #: Whether the number of input days differs by day, so that they must be listed by date.
    varies_by_day: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.before < 0 or self.before + self.after < 0:
            raise ValueError(f"{self} begins after the day, or ends before it begins")

    def required_days(self, day: date) -> Sequence[date]:
        """The input days without which a day cannot be built: its own, or the last before it.

        The other days of the reach are read if they are published.
        """
        return [day + min(self.after, 0) * DAY]

    def input_days(self, days: Window) -> Window:
        """The input days that decide the days."""
        return days.widen_by(before=self.before, after=self.after)

    def affected_days(self, days: Window) -> Window:
        """The days that the input days decide: the inverse of `input_days`."""
        return days.widen_by(before=self.after, after=self.before)

    def deciding_days(self, _source: PublishedLog) -> Callable[[date], Collection[date]]:
        """A function from a day to the input days that decide it, in ascending order."""
        return lambda day: tuple(self.input_days(Window(day, day + DAY)))

    def changed_days(self, days: Collection[date], _source: PublishedLog) -> Iterable[date]:
        """The days that changed input days may change."""
        if self == SAME_DAY:
            return days
        offsets = [n * DAY for n in range(-self.after, self.before + 1)]
        return {day + offset for day in days for offset in offsets}

    @property
    def partition_mapping(self) -> dg.PartitionMapping | None:
        """The mapping for Dagster; None for the same day, which is its default."""
        return None if self == SAME_DAY else self.mapping_of_existing

    @property
    def mapping_of_existing(self) -> dg.PartitionMapping:
        """The mapping to those input days that exist for Dagster, which need not be all.

        For the last days of a range, later input days do not exist yet; these days are open, not
        broken. An asset of others may begin later.
        """
        with warnings.catch_warnings():
            # The parameter is in beta; `make test-versions` shows that all releases have it.
            warnings.simplefilter("ignore", dg.BetaWarning)
            return dg.TimeWindowPartitionMapping(
                start_offset=-self.before,
                end_offset=self.after,
                allow_nonexistent_upstream_partitions=True,
            )


@dataclass(frozen=True)
class GrainReach(Reach):
    """A week or a month is decided by its days, and requires all: a sum of six looks complete.

    Attributes:
        grain: that of the table which is made.
    """

    grain: Grain = Grain.WEEKLY

    def required_days(self, day: date) -> Sequence[date]:
        """All days of the partition."""
        return [*self.grain.days_of(day)]

    def input_days(self, days: Window) -> Window:
        """The days of the partitions."""
        input_days = [day for first in days for day in self.grain.days_of(first)]
        return DaySet.from_days(input_days) if input_days else days

    def affected_days(self, days: Window) -> Window:
        """The partitions that contain the input days."""
        return DaySet.from_days(self.grain.partitions_of(days))

    def changed_days(self, days: Collection[date], _source: PublishedLog) -> Iterable[date]:
        """The partitions that contain the input days."""
        return self.grain.partitions_of(days)

    @property
    def partition_mapping(self) -> None:
        """None: by default Dagster maps a week or a month to its days."""
        return


@dataclass(frozen=True)
class PartitionsReach(Reach):
    """A week or a month is decided by itself and by some before it, and requires all.

    Attributes:
        before: number of weeks or months before.
        grain: that of both tables.
    """

    grain: Grain = Grain.WEEKLY

    def required_days(self, day: date) -> Sequence[date]:
        """All of them: what is counted against a month that is missing looks complete."""
        return [*self.input_days(Window(day, day + DAY))]

    def input_days(self, days: Window) -> Window:
        """The partitions, and those before them."""
        before = self.grain.partitions_before
        return DaySet.from_days(p for day in days for p in (day, *before(day, self.before)))

    def affected_days(self, days: Window) -> Window:
        """The partitions, and those after them."""
        after = self.grain.partitions_after
        return DaySet.from_days(p for day in days for p in (day, *after(day, self.before)))

    def changed_days(self, days: Collection[date], _source: PublishedLog) -> Iterable[date]:
        """The partitions, and those after them."""
        return [*self.affected_days(DaySet.from_days(days))] if days else []


SAME_DAY = Reach()
#: The seven days of a week that begins on Monday, for a table with weekly partitions.
WEEK = GrainReach(grain=Grain.WEEKLY)
#: The days of a month, for a table with monthly partitions.
MONTH = GrainReach(grain=Grain.MONTHLY)
#: Only the day before, for a table that carries its own state from day to day.
PREVIOUS_DAY = Reach(before=1, after=-1)


def week_starting(weekday: str) -> Reach:
    """The seven days of a week that begins on a weekday, as `WEEK` for another day than Monday.

    Raises:
        ValueError: there is no such weekday.
    """
    by_name = {
        grain.job_name.removeprefix("weekly_"): grain for grain in Grain if grain.first_weekday
    }
    grain = {"monday": Grain.WEEKLY, **by_name}.get(weekday)
    if grain is None:
        raise ValueError(f"week_starting({weekday!r}): give a weekday, such as 'sunday'")
    return GrainReach(grain=grain)


def previous_partitions(count: int, unit: Reach) -> Reach:
    """The week or month itself and `count` before it, of a table of that grain.

    `previous_partitions(2, MONTH)` reads three months.

    Raises:
        ValueError: the number is none, or the unit is not `WEEK`, `week_starting(...)` or `MONTH`.
    """
    _check_days("previous_partitions", count, 1)
    if not isinstance(unit, GrainReach):
        raise ValueError(
            f"previous_partitions({count}, {unit}): give WEEK, week_starting(...) or MONTH"
        )
    return PartitionsReach(before=count, grain=unit.grain)


def days_between(first: int, last: int) -> Reach:
    """The days from `first` to `last`, counted from the day itself: `days_between(-7, 30)`.

    Raises:
        ValueError: they begin after the day itself, or end before they begin.
    """
    if type(first) is not int or type(last) is not int or first > min(0, last):
        raise ValueError(
            f"days_between({first!r}, {last!r}): give the first day, 0 or less, and the last, "
            "not less"
        )
    return Reach(before=-first, after=last)


def next_days(n: int) -> Reach:
    """The day itself and the `n` days after it, as a window for late data."""
    return Reach(after=n, stays_open=True)


def last_days(n: int) -> Reach:
    """The `n` days that end with the day itself; 1 or more."""
    _check_days("last_days", n, 1)
    return Reach(before=n - 1)


def following_days(n: int) -> Reach:
    """The day itself and the `n` days after it, for outcomes that come later.

    Unlike `next_days` it is not a window for late data: all published days of it decide the day.
    """
    _check_days("following_days", n, 0)
    return Reach(after=n)


@dataclass(frozen=True)
class RecordedReach:
    """A day is decided by all input days with lines of it, however late they came.

    The input's commits record them under `spans`: by input day, the days of its lines. No line has
    a day after its input day.
    """

    stays_open: ClassVar[bool] = True
    varies_by_day: ClassVar[bool] = True

    def required_days(self, day: date) -> Sequence[date]:
        """Only the day itself."""
        return [day]

    def deciding_days(self, source: PublishedLog) -> Callable[[date], Collection[date]]:
        """A function from a day to the input days that decide it, in ascending order.

        Input days that another writer changed, or that were published without recorded spans, may
        decide any day.
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
            input_days = recorded_days.get(day, set()) | unknown_days
            return [day, *sorted(d for d in input_days if d in published and d > day)]

        return days_of

    def changed_days(self, days: Collection[date], source: PublishedLog) -> Iterable[date]:
        """The days that changed input days may change, if their commits did not record it."""
        last = max(days, default=date.min)
        return {day for day in source.published_days if day <= last}

    @property
    def partition_mapping(self) -> dg.PartitionMapping:
        """The mapping for Dagster: any input day may decide any day."""
        return dg.AllPartitionMapping()


def _check_days(name: str, n: object, least: int) -> None:
    if type(n) is not int or n < least:
        raise ValueError(f"{name}({n!r}): give a whole number of {least} or more")
