"""Days: parsing of ranges, half-open windows of days, and their SQL conditions.

It imports neither Dagster nor Spark, as the command line uses it before it loads them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from backfill_assets.settings import Settings

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
    def parse(cls, text: str) -> Window:
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

    def widen_by(self, *, before: int = 0, after: int = 0) -> Window:
        """This window with more days on either side."""
        return Window(self.start - before * DAY, self.end + after * DAY)

    def split_by_length(self, max_days: int) -> list[Window]:
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
