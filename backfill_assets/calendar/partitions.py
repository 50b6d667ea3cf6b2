"""Days: parsing of ranges, half-open windows of days, and their SQL conditions.

It imports neither Dagster nor Spark, as the command line uses it before it loads them.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Self

from backfill_assets.settings import Settings

if TYPE_CHECKING:
    import dagster as dg

_DAY = r"\d{4}-\d{2}-\d{2}"
#: A day or a range, with or without the brackets of Dagster's UI.
_DAYS = re.compile(rf"(\[?)\s*({_DAY})(?:\s*(?:\.{{2,3}}|:)\s*({_DAY}))?\s*(\]?)")


def calendar_bounds(settings: Settings, now: datetime | None = None) -> tuple[date, date] | None:
    """The first and the last day that have a partition; None if no day has one yet.

    The same as those of `Grain.DAILY.partitions_def`, without Dagster.
    """
    today = (now or datetime.now(settings.zone)).astimezone(settings.zone).date()
    end = min(settings.end or today, today)
    return (settings.start, end - timedelta(days=1)) if end > settings.start else None


def parse_calendar_days(
    text: str, settings: Settings, now: datetime | None = None
) -> tuple[date, date]:
    """The first and the last of the days that a person requests.

    The text is `FIRST...LAST`, `[FIRST...LAST]` (as in the UI), `FIRST..LAST`, `FIRST:LAST` or one
    day.

    Raises:
        ValueError: the text is not a range of days, reversed, or not all on the calendar.
    """
    days, bounds = parse_days(text), calendar_bounds(settings, now)
    if days and bounds and bounds[0] <= days[0] <= days[1] <= bounds[1]:
        return days
    bounds_text = f"{bounds[0]}...{bounds[1]}" if bounds else "empty"
    raise ValueError(
        f"{text!r} is not in the calendar, which is {bounds_text}: give FIRST...LAST or one day, "
        "as YYYY-MM-DD, the first not after the last"
    )


def parse_single_day(text: str) -> date:
    """The day that a person names, on the calendar or not.

    Raises:
        ValueError: the text is not a day.
    """
    days = parse_days(text) if re.fullmatch(_DAY, text) else None
    if days is None:
        raise ValueError(f"{text!r} is not one day, as YYYY-MM-DD")
    return days[0]


def parse_days(text: str) -> tuple[date, date] | None:
    """The first and the last day of a range, on the calendar or not; None if it is not one."""
    match = _DAYS.fullmatch(text.strip())
    if match is None or bool(match[1]) != bool(match[4]):
        return None
    try:
        first, last = date.fromisoformat(match[2]), date.fromisoformat(match[3] or match[2])
    except ValueError:  # such as the 30th of February
        return None
    return first, last


DAY = timedelta(days=1)


@dataclass(frozen=True)
class Window:
    """The days `start <= day < end`.

    Half-open, so that adjacent windows neither overlap nor leave a gap.
    """

    start: date
    end: date

    def __iter__(self) -> Iterator[date]:
        return (self.start + n * DAY for n in range((self.end - self.start).days))

    def __len__(self) -> int:
        return (self.end - self.start).days

    def __contains__(self, day: object) -> bool:
        return isinstance(day, date) and self.start <= day < self.end

    def __str__(self) -> str:
        last = self.end - DAY
        return f"{self.start}" if last == self.start else f"{self.start}...{last}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The window from the text of `str`, or of a person; see `parse_calendar_days`.

        Raises:
            ValueError: the text is not a range of days.
        """
        days = parse_days(text)
        if days is None:
            raise ValueError(f"{text!r} is no range of days: give FIRST...LAST or one day")
        return cls(days[0], days[1] + DAY)

    def contains_any(self, days: Set[date]) -> bool:
        """Whether this window contains any of the days."""
        if len(self) < len(days):
            return any(day in days for day in self)
        return any(day in self for day in days)

    def widen_by(self, *, before: int = 0, after: int = 0) -> "Window":
        """This window with more days on either side."""
        return Window(self.start - before * DAY, self.end + after * DAY)

    def split_by_length(self, max_days: int) -> "list[Window]":
        """Consecutive windows of at most `max_days` days that make up this one."""
        step = max_days * DAY
        starts = [self.start]
        while starts[-1] + step < self.end:
            starts.append(starts[-1] + step)
        return [Window(start, min(start + step, self.end)) for start in starts]

    def sql_condition(self, column: str, *, relation: str = "") -> str:
        """The SQL condition on a DATE column, of a relation if named, for these days."""
        quoted = f"{relation and relation + '.'}`{column.replace('`', '``')}`"
        return f"{quoted} >= DATE'{self.start}' AND {quoted} < DATE'{self.end}'"


@dataclass(frozen=True)
class DaySet(Window):
    """Days with gaps between them, usable as a `Window`.

    `parts` are the windows that contain exactly these days, in ascending order.
    """

    parts: tuple[Window, ...]

    @classmethod
    def from_days(cls, days: Iterable[date]) -> Window:
        """The days; a plain `Window` if they have no gaps."""
        parts = to_windows(days)
        if len(parts) == 1:
            return parts[0]
        return cls(parts[0].start, parts[-1].end, tuple(parts))

    def __iter__(self) -> Iterator[date]:
        return (day for part in self.parts for day in part)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __contains__(self, day: object) -> bool:
        return any(day in part for part in self.parts)

    def __str__(self) -> str:
        return ", ".join(map(str, self.parts))

    def widen_by(self, *, before: int = 0, after: int = 0) -> Window:
        """The days of all parts, each part widened."""
        parts = (part.widen_by(before=before, after=after) for part in self.parts)
        return DaySet.from_days(day for part in parts for day in part)

    def sql_condition(self, column: str, *, relation: str = "") -> str:
        """The SQL condition on a DATE column for exactly these days."""
        return f"({any_window_condition(self.parts, column, relation=relation)})"


def to_windows(days: Iterable[date]) -> list[Window]:
    """The fewest windows that contain exactly these days, in ascending order."""
    merged: list[Window] = []
    for day in sorted(set(days)):
        if merged and merged[-1].end == day:
            merged[-1] = Window(merged[-1].start, day + DAY)
        else:
            merged.append(Window(day, day + DAY))
    return merged


def format_ranges(days: Iterable[date]) -> str:
    """Days as text for display, as the fewest ranges."""
    return ", ".join(map(str, to_windows(days)))


def to_ranges(days: Iterable[date]) -> list[str]:
    """Days as the fewest ranges, as a commit records them."""
    return [str(window) for window in to_windows(days)]


def from_ranges(ranges: Collection[str]) -> list[date]:
    """The days of `to_ranges`."""
    days: list[date] = []
    for text in ranges:
        # Fast path: most ranges are one day, and a long history has many.
        days += Window.parse(text) if "..." in text else [date.fromisoformat(text)]
    return days


def days_of_run(tags: Mapping[str, str]) -> Window | None:
    """The days of a run, from its tags; None if it has none."""
    tag_prefix = "dagster/asset_partition_range_"
    first = tags.get(f"{tag_prefix}start", tags.get("dagster/partition"))
    last = tags.get(f"{tag_prefix}end", first)
    return Window.parse(f"{first}...{last}") if first else None


def split_into_run_windows(partitions: Sequence[date], max_partitions: int) -> Iterator[Window]:
    """Cut ascending partitions without gaps into a window for each run.

    A partition is its first day: of a weekly table a window ends a day after its last Monday.
    """
    for n in range(0, len(partitions), max_partitions):
        run = partitions[n : n + max_partitions]
        yield Window(run[0], run[-1] + DAY)


def any_window_condition(parts: Iterable[Window], column: str, *, relation: str = "") -> str:
    """`Window.sql_condition` for the days of several windows."""
    return " OR ".join(f"({window.sql_condition(column, relation=relation)})" for window in parts)


class NotContiguousError(ValueError):
    """The partitions of one write do not form one gapless range."""


class Grain(Enum):
    """Daily partitions, or weekly ones; the value is the number of days of a partition.

    Weeks are those of ISO 8601. A partition is named by the date of its first day (of a week, the
    Monday): in the table, in its commits and as Dagster's key.
    """

    DAILY = 1
    WEEKLY = 7

    def first_day(self, day: date) -> date:
        """The first day of the partition that contains a day."""
        return day - day.weekday() * DAY if self is Grain.WEEKLY else day

    def days_of(self, partition: date) -> Window:
        """The days of a partition."""
        return Window(partition, partition + self.value * DAY)

    def partitions_before(self, partition: date, count: int) -> list[date]:
        """The partitions before one, the latest first."""
        return [partition - n * self.value * DAY for n in range(1, count + 1)]

    def partitions_of(self, days: Iterable[date]) -> list[date]:
        """The partitions that contain the days, in ascending order."""
        return sorted({self.first_day(day) for day in days})

    def whole_partitions(self, window: Window) -> Window:
        """The partitions all of whose days are in a window."""
        if self is Grain.DAILY:
            return window
        last = window.end - self.value * DAY
        partitions = [
            partition
            for partition in self.partitions_of(window)
            if window.start <= partition <= last
        ]
        return DaySet.from_days(partitions) if partitions else Window(window.start, window.start)

    def gapless_ranges(self, partitions: Iterable[date]) -> list[Window]:
        """Partitions as the fewest gapless ranges, each from its first to its last one."""
        ranges: list[Window] = []
        for partition in sorted(partitions):
            if ranges and partition - (ranges[-1].end - DAY) <= self.value * DAY:
                ranges[-1] = Window(ranges[-1].start, partition + DAY)
            else:
                ranges.append(Window(partition, partition + DAY))
        return ranges

    def one_range(self, keys: Iterable[str]) -> Window:
        """The partitions of a run, from their keys.

        Raises:
            NotContiguousError: there is no key, or a gap between two of them.
        """
        partitions = sorted(map(date.fromisoformat, keys))
        step = self.value * DAY
        if not partitions or any(b - a > step for a, b in pairwise(partitions)):
            text = ", ".join(map(str, to_windows(partitions))) or "no day at all"
            raise NotContiguousError(f"one run takes one gapless range of days, got {text}")
        return DaySet.from_days(partitions)

    def partitions_def(self, settings: Settings) -> "dg.TimeWindowPartitionsDefinition":
        """The partitions definition for Dagster.

        One for all tables of a grain: with different start days, Dagster splits a backfill into
        many runs.
        """
        import dagster as dg

        start, zone = settings.start.isoformat(), settings.timezone
        end = settings.end.isoformat() if settings.end else None
        if self is Grain.DAILY:
            return dg.DailyPartitionsDefinition(start_date=start, end_date=end, timezone=zone)
        # By default Dagster's weeks begin on Sunday.
        return dg.WeeklyPartitionsDefinition(
            start_date=start, end_date=end, timezone=zone, day_offset=1
        )

    @classmethod
    def from_partitions_def(cls, definition: "dg.PartitionsDefinition | None") -> "Grain":
        """The grain of a definition that `partitions_def` returned."""
        import dagster as dg

        assert isinstance(definition, dg.TimeWindowPartitionsDefinition)
        assert definition.schedule_type is not None
        return cls[definition.schedule_type.name]
