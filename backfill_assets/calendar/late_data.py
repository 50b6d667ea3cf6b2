"""The late-data policy: which lines may change which days, and until when.

It reads no clock, table or file.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from typing import Any, Self
from zoneinfo import ZoneInfo

from backfill_assets.calendar.partitions import DAY, BusinessDay, Grain, Window, has_hour
from backfill_assets.calendar.reach import Reach, next_days
from backfill_assets.settings import Settings

_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
#: What `Source(arrives_on=...)` takes: weekdays, the arrival days themselves, or a function.
ArrivesOn = str | Collection[str] | Collection[date] | Callable[[date], bool]


@dataclass(frozen=True)
class ArrivalDays:
    """The arrival days on which a source delivers; nothing is expected on the others.

    Attributes:
        rules: functions from a day to whether something is expected; all must agree.
    """

    rules: tuple[Callable[[date], bool], ...] = ()

    @classmethod
    def parse(cls, arrives_on: ArrivesOn | None) -> Self:
        """The days that a declaration names; each day if it is None.

        Raises:
            ValueError: it is neither weekdays nor days nor a function that gives True or False.
        """
        if arrives_on is None:
            return cls()
        if isinstance(arrives_on, str):
            weekdays = _parse_weekdays(arrives_on)
            return cls((lambda day: day.weekday() in weekdays,))
        if callable(arrives_on):
            if type(arrives_on(date(2024, 1, 1))) is not bool:
                raise ValueError("the function does not give True or False for date(2024, 1, 1)")
            return cls((arrives_on,))
        if arrives_on and all(isinstance(item, str) for item in arrives_on):
            return cls.parse(",".join(map(str, arrives_on)))
        if arrives_on and all(type(item) is date for item in arrives_on):
            return cls((frozenset(arrives_on).__contains__,))
        raise ValueError(f"{arrives_on!r} names no days")

    @classmethod
    def can_parse(cls, arrives_on: Any) -> bool:
        """Whether a value names days, as `parse` takes them."""
        try:
            cls.parse(arrives_on)
        except Exception:  # noqa: BLE001 - a function of the project may raise anything
            return False
        return True

    def __contains__(self, day: date) -> bool:
        return all(rule(day) for rule in self.rules)

    def with_hour(self, hour: int, timezone: str) -> Self:
        """Of these days, those on which the clocks of a time zone show an hour."""
        zone = ZoneInfo(timezone)
        return type(self)((*self.rules, lambda day: has_hour(day, hour, zone)))

    def first_from(self, day: date) -> date:
        """The first day of delivery that is not before a day; the day itself if a year has none."""
        year = Window(day, day + min(366, (date.max - day).days) * DAY)
        return next((later for later in year if later in self), day)


def _parse_weekdays(text: str) -> frozenset[int]:
    """The numbers of weekdays, from 0 for Monday, from `mon-fri` or `mon, wed, sat`.

    Raises:
        ValueError: the text names something else.
    """
    weekdays: set[int] = set()
    for part in text.lower().split(","):
        first, _, last = (name.strip()[:3] for name in part.partition("-"))
        if first not in _WEEKDAYS or (last or first) not in _WEEKDAYS:
            raise ValueError(
                f"{part.strip()!r} is no weekday: give mon, tue, wed, thu, fri, sat, sun"
            )
        number, end = _WEEKDAYS.index(first), _WEEKDAYS.index(last or first)
        weekdays.update((number + n) % 7 for n in range((end - number) % 7 + 1))
    return frozenset(weekdays)


@dataclass(frozen=True)
class Policy:
    """How late data is treated.

    Attributes:
        start: the first day of the calendar.
        end: the day after the last one; None if the calendar has no end.
        window_days: the reprocessing window W: lines logged up to W days after their event day
            still change that day.
        lag_days: day D is first published by a scheduled run on D + lag.
        corrects: whether lines beyond the window become corrections (`correct`); otherwise they
            are counted and in no total (`drop`).
        only_touched: whether a scheduled run rebuilds only the days that new lines change
            (`touched`); otherwise all days that they could change (`window`).
        arrives_after: the usual number of days from an event to its log day. It is part of the
            window, and tables by event day are first published this many days later.
        arrival_days: the days on which folders are expected.
        absent_days: a missing arrival folder is expected until a folder of this many days later
            was loaded; then its day counts as a day without lines.
        grain: the grain of the partitions that `loadable_days` and `expected_days` return.
        hours_ahead: so many hours before midnight a day is over: of the hour `05` it is 18. The
            hours after which a folder is complete (`arrives_after_hours`) are subtracted.
    """

    start: date
    end: date | None
    window_days: int
    lag_days: int
    corrects: bool
    only_touched: bool
    absent_days: int = 30
    arrives_after: int = 0
    arrival_days: ArrivalDays = ArrivalDays()
    grain: Grain = Grain.DAILY
    hours_ahead: int = 0

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The deployment's policy."""
        return cls(
            start=settings.start,
            end=settings.end,
            window_days=settings.window_days,
            lag_days=settings.lag_days,
            corrects=settings.late_lines == "correct",
            only_touched=settings.reprocess == "touched",
            absent_days=settings.absent_days,
        )

    @property
    def reach(self) -> Reach:
        """The reprocessing window: which log days decide an event day."""
        return next_days(self.window_days)

    def business_day(self, today: date) -> date:
        """The day before which all days are over: another one than today for parts `HOURS`."""
        hours = self.hours_ahead + (today.hour if isinstance(today, BusinessDay) else 0)
        return today + hours // 24 * DAY

    def format_due(self, due_date: date) -> str:
        """The day whose nightly run publishes something, with the hour if it is not midnight."""
        due_at = datetime.combine(due_date, time()) - timedelta(hours=self.hours_ahead)
        return f"{due_at:%Y-%m-%d at %H:%M}" if self.hours_ahead else str(due_date)

    def loadable_days(self, today: date) -> Window:
        """The partitions that are over on a day: for a raw log, the log days that can be loaded."""
        return self.partitions_until(self.business_day(today) - DAY)

    def expected_days(self, today: date, last: date = date.max) -> Window:
        """The partitions that should have been published by the end of a day's nightly run.

        With a lag of 1 they end yesterday, or on `last` if that is earlier.
        """
        due_day = self.business_day(today) - self.lag_days * DAY
        return self.partitions_until(min(due_day, last))

    def partitions_until(self, last: date) -> Window:
        """The partitions of the calendar all of whose days are up to a last one."""
        end = last + DAY if self.end is None else min(last + DAY, self.end)
        return self.grain.whole_partitions(Window(self.start, max(self.start, end)))

    def arrival_of(self, event_day: date) -> date:
        """The log day by which the lines of an event day usually have come.

        Lines that come with a delay wait for the next day on which something is expected. Those
        that come on their own day do not: where nothing is expected, there are none.
        """
        if not self.arrives_after:
            return event_day
        return self.arrival_days.first_from(event_day + self.arrives_after * DAY)

    def affected_event_days(self, log_day: date) -> Window:
        """The event days that a line of a log day may change: this day and the W days before."""
        return self.reach.affected_days(Window(log_day, log_day + DAY))

    def log_days(self, event_day: date) -> Window:
        """The log days of an event day's window: no line is logged before its event day."""
        return self.reach.input_days(Window(event_day, event_day + DAY))


def combine_policies(policies: Sequence[Policy]) -> Policy:
    """The policy of a table with several sources: the latest start, the longest window."""
    return replace(
        policies[0],
        start=max(policy.start for policy in policies),
        window_days=max(policy.window_days for policy in policies),
        corrects=all(policy.corrects for policy in policies),
        arrives_after=max(policy.arrives_after for policy in policies),
        arrival_days=ArrivalDays(
            tuple(rule for policy in policies for rule in policy.arrival_days.rules)
        ),
        hours_ahead=min(policy.hours_ahead for policy in policies),
    )


def end_of_arrivals(policy: Policy, source_policies: Sequence[Policy]) -> date | None:
    """The end of the event days whose lines arrive before the calendar's end; None without that.

    Lines in folders after the end of the calendar are never loaded.
    """
    if policy.end is None:
        return None
    end = calendar_end = policy.end
    while end > policy.start and any(
        source.arrival_of(end - DAY) >= calendar_end for source in source_policies
    ):
        end -= DAY
    return end


#: The window lengths that the lateness page compares, in days.
COMPARED_WINDOWS = range(15)


def total_within(by_delay: Mapping[int, int], window_days: int) -> int:
    """The lines or cents, given by delay in days, that a window covers."""
    return sum(count for delay, count in by_delay.items() if delay <= window_days)


def lines_within(row: Mapping[str, Any], window_days: int) -> int:
    """The number of lines of a log day, a row of `source_models.ArrivalLateness`, in a window.

    The window is counted from the event day on, and need not be the configured one.
    """
    return total_within(dict(zip(row["delays"], row["lines_by_delay"], strict=True)), window_days)
