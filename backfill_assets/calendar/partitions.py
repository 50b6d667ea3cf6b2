"""Half-open date windows with their predicates, and the backfill policy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import date, timedelta

from backfill_assets.calendar.days import read_days

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Window:
    """The days `start <= day < end`.

    Half-open, so that adjoining windows neither overlap nor leave a gap.
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
        """The window that `str` spells, or a person, see `days.days_asked`.

        Raises:
            ValueError: it is none.
        """
        days = read_days(text)
        if days is None:
            raise ValueError(f"{text!r} is no range of days: give FIRST...LAST or one day")
        return cls(days[0], days[1] + DAY)

    def within(self, days: Set[date]) -> bool:
        """Whether some of the days lie in this window."""
        if len(self) < len(days):
            return any(day in days for day in self)
        return any(day in self for day in days)

    def widened(self, *, before: int = 0, after: int = 0) -> Window:
        """This window and so many days more on either side."""
        return Window(self.start - before * DAY, self.end + after * DAY)

    def split(self, most: int) -> list[Window]:
        """Windows of at most so many days that make up this one."""
        step = most * DAY
        starts = [self.start]
        while starts[-1] + step < self.end:
            starts.append(starts[-1] + step)
        return [Window(start, min(start + step, self.end)) for start in starts]

    def predicate(self, column: str, *, of: str = "") -> str:
        """The SQL condition on a DATE column, of a relation if named, for this window's days."""
        quoted = f"{of and of + '.'}`{column.replace('`', '``')}`"
        return f"{quoted} >= DATE'{self.start}' AND {quoted} < DATE'{self.end}'"


@dataclass(frozen=True)
class Days(Window):
    """Some days, with gaps between them, where a `Window` is expected.

    Attributes:
        start: the first day.
        end: the day after the last one.
        parts: the windows that hold exactly these days, in ascending order.
    """

    parts: tuple[Window, ...]

    @classmethod
    def of(cls, days: Iterable[date]) -> Window:
        """The days; a plain window if there is no gap between them."""
        parts = windows(days)
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

    def widened(self, *, before: int = 0, after: int = 0) -> Window:
        """The days of all parts, each widened."""
        parts = (part.widened(before=before, after=after) for part in self.parts)
        return Days.of(day for part in parts for day in part)

    def predicate(self, column: str, *, of: str = "") -> str:
        """The SQL condition on a DATE column for exactly these days."""
        return f"({any_of(self.parts, column, of=of)})"


def windows(days: Iterable[date]) -> list[Window]:
    """The fewest windows that hold exactly these days, in ascending order."""
    found: list[Window] = []
    for day in sorted(set(days)):
        if found and found[-1].end == day:
            found[-1] = Window(found[-1].start, day + DAY)
        else:
            found.append(Window(day, day + DAY))
    return found


def spelled(days: Iterable[date]) -> str:
    """Days for a reader, as the fewest ranges."""
    return ", ".join(map(str, windows(days)))


def packed(days: Iterable[date]) -> list[str]:
    """Days as the fewest ranges, as a commit records them."""
    return [str(window) for window in windows(days)]


def unpacked(ranges: Collection[str]) -> list[date]:
    """The days of `packed`."""
    found: list[date] = []
    for text in ranges:
        # Most are one day, and a long history has many.
        found += Window.parse(text) if "..." in text else [date.fromisoformat(text)]
    return found


def days_of_run(tags: Mapping[str, str]) -> Window | None:
    """The days that a run is for, from its tags; none if it has none."""
    range_ = "dagster/asset_partition_range_"
    first = tags.get(f"{range_}start", tags.get("dagster/partition"))
    last = tags.get(f"{range_}end", first)
    return Window.parse(f"{first}...{last}") if first else None


def runs_of(partitions: Sequence[date], most: int) -> Iterator[Window]:
    """Gapless partitions, ascending, in ranges of at most so many: each is one run."""
    for n in range(0, len(partitions), most):
        run = partitions[n : n + most]
        yield Window(run[0], run[-1] + DAY)


def any_of(found: Iterable[Window], column: str, *, of: str = "") -> str:
    """`Window.predicate` for the days of several windows."""
    return " OR ".join(f"({window.predicate(column, of=of)})" for window in found)
