"""Days: parsing of ranges, half-open windows of days, and their SQL conditions.

It imports neither Dagster nor Spark, as the command line uses it before it loads them.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from backfill_assets.settings import Settings

if TYPE_CHECKING:
    import dagster as dg

_DAY = r"\d{4}-\d{2}-\d{2}"
#: A day or a range, with or without the brackets of Dagster's UI. The last day may be given without
#: its month.
_DAYS = re.compile(rf"(\[?)\s*({_DAY})(?:\s*(?:\.{{2,3}}|:)\s*({_DAY}|\d\d))?\s*(\]?)")
#: Tag of a run whose days have gaps: exactly its days, as `str` of a `DaySet`. Dagster's own tags
#: have the first and the last of them.
DAYS_TAG = "backfill_assets/days"
_RANGE_TAG = "dagster/asset_partition_range_"
#: The most ranges of days in one run, whose tag then has less than 2,000 characters: Postgres
#: indexes no value of 2,704.
MAX_RANGES = 80


def calendar_bounds(
    settings: Settings, now: datetime | None = None, *, by_hour: bool = False
) -> tuple[date, date] | None:
    """The first and the last day that have a partition; None if no day has one yet.

    The same as those of `Grain.DAILY.partitions_def`, without Dagster.
    """
    today = (now.astimezone(settings.zone) if now else datetime.now(settings.zone)).date()
    end = min(settings.end or date.max, today + by_hour * DAY)
    return (settings.start, end - timedelta(days=1)) if end > settings.start else None


def parse_calendar_days(
    text: str, settings: Settings, now: datetime | None = None, *, by_hour: bool = False
) -> "Window":
    """The days that a person requests; the day of now as well if tables have parts `HOURS`.

    The text has ranges with commas between them. A range is `FIRST...LAST`, `[FIRST...LAST]` (as in
    the UI), `FIRST..LAST`, `FIRST:LAST` or one day; `2024-01-09...11` has the month of its first.

    Raises:
        ValueError: a range is not one of days, reversed, or not all on the calendar.
    """
    bounds = calendar_bounds(settings, now, by_hour=by_hour)
    with suppress(ValueError):
        days = Window.parse(text)
        if bounds and bounds[0] <= days.start < days.end <= bounds[1] + DAY:
            return days
    bounds_text = f"{bounds[0]}...{bounds[1]}" if bounds else "empty"
    raise ValueError(
        f"{text!r} is not in the calendar, which is {bounds_text}: give FIRST...LAST or one day, "
        "as YYYY-MM-DD, the first not after the last"
    )


def parse_days_and_part(
    text: str, settings: Settings, now: datetime | None = None, *, by_hour: bool = False
) -> tuple["Window | None", str]:
    """The days that a person requests, and the part, as `2024-01-05...07/eu`.

    Without days, those of the calendar if there is a part, else None for all.

    Raises:
        ValueError: as `parse_calendar_days`.
    """
    days_text, _, part = text.partition(PART_MARK)
    if days_text:
        return parse_calendar_days(days_text, settings, now, by_hour=by_hour), part
    bounds = calendar_bounds(settings, now, by_hour=by_hour) if part else None
    return Window(bounds[0], bounds[1] + DAY) if bounds else None, part


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
        end = match[3] or match[2]
        last = date.fromisoformat(end if len(end) > 2 else match[2][:-2] + end)
        first = date.fromisoformat(match[2])
    except ValueError:  # such as the 30th of February
        return None
    return first, last


DAY = timedelta(days=1)
#: Stands between a table, or days, and a part: `daily_orders/eu`, `2024-01-05/eu`.
PART_MARK = "/"
#: The name of the dimension of days in the partitions of a table that has a second one.
DATE_DIMENSION = "date"
#: Between the grain and the dimension in the name of a job: `daily_by_region`.
BY_DIMENSION = "_by_"
#: Inputs have a column `for_day` besides.
_DIMENSION = re.compile(r"(?!for_day\Z)[A-Za-z][A-Za-z0-9_]*")
#: Dagster takes no `...` in a key.
_PART = re.compile(r"(?!\d{4}-\d{2}-\d{2}\Z)(?!.*\.\.\.)[A-Za-z0-9_][A-Za-z0-9_.-]*")


def name_of_part(part: str) -> str:
    """A part as the end of a name of Dagster, which takes letters, digits and `_`."""
    return re.sub(r"\W", "_", part).lower()


@dataclass(frozen=True)
class Dimension:
    """A second dimension of partitions besides the day: regions, tenants, shops.

    Each value is a part of a table: its days are loaded, judged, published, held back and undone
    apart from those of the others.

    Attributes:
        name: of the column, of the folders `NAME=VALUE` in an arrival day's folder, and of the
            dimension in Dagster.
        values: the parts, in the order in which they are shown.
        starts: by part that was added later, its first day; no day before that is missing.
        retired: by part that has gone, the day from which on nothing of it is expected or loaded;
            its rows stay.

    Raises:
        ValueError: the name is no name of a column, or the values are not names of letters, digits,
            `_`, `.` and `-` that differ in more than case and these signs, or a start or an end is
            not that of a value.
    """

    name: str
    values: Sequence[str]
    starts: Mapping[str, date] = field(default_factory=dict, hash=False)
    retired: Mapping[str, date] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not _DIMENSION.fullmatch(str(self.name)) or self.name == DATE_DIMENSION:
            raise ValueError(f"Dimension({self.name!r}): give the name of a column, as 'region'")
        values = () if isinstance(self.values, str) else tuple(self.values)
        are_names = all(isinstance(value, str) and _PART.fullmatch(value) for value in values)
        # Folders and assets have their names, and some stores take EU and eu for the same.
        if not values or not are_names or len({*map(name_of_part, values)}) < len(values):
            raise ValueError(
                f"Dimension({self.name!r}): give different values of letters, digits, _, . and -, "
                f"as ['eu', 'us'], not {self.values!r}"
            )
        object.__setattr__(self, "values", values)
        for name, days in (("starts", self.starts), ("retired", self.retired)):
            if any(part not in values or type(day) is not date for part, day in days.items()):
                raise ValueError(
                    f"Dimension({self.name!r}): {name} has a day for some of the values, as "
                    "{'apac': date(2024, 3, 1)}"
                )

    @property
    def is_hours(self) -> bool:
        """Whether its parts are those of `HOURS`, whenever they begin or end."""
        return (self.name, self.values) == (HOURS.name, HOURS.values)

    def partitions_def(self, days: "dg.PartitionsDefinition") -> "dg.MultiPartitionsDefinition":
        """The partitions of a table with days of each part."""
        import dagster as dg

        parts = dg.StaticPartitionsDefinition([*self.values])
        return dg.MultiPartitionsDefinition({DATE_DIMENSION: days, self.name: parts})

    def partition_key(self, day: date, part: str) -> str:
        """Dagster's key of a day of a part."""
        import dagster as dg

        return dg.MultiPartitionKey({DATE_DIMENSION: str(day), self.name: part})


#: The hours of a day, `00` to `23`: the local hour of the event in the deployment's time zone. The
#: hour that clocks repeat is one part; on a day without an hour, nothing is expected in its part.
#: A part is due when its hour is over, so tables by hour have a partition of the day of now, too.
HOURS = Dimension("hour", [f"{hour:02}" for hour in range(24)])


class BusinessDay(date):
    """The date in the deployment's time zone, with the hour of now; a plain date is its beginning.

    A day of tables with parts `HOURS` is over when its hour is: see `Policy.business_day`.
    """

    #: The hour, 0 to 23, of now in the time zone.
    hour = 0

    @classmethod
    def at(cls, now: datetime) -> Self:
        """The date and the hour of a moment in the deployment's time zone."""
        day = cls(now.year, now.month, now.day)
        day.hour = now.hour
        return day

    def __add__(self, other: timedelta) -> date:  # type: ignore[override] # no hour is known of it
        return date(self.year, self.month, self.day) + other

    def __sub__(self, other: Any) -> Any:
        return date(self.year, self.month, self.day) - other

    @classmethod
    def an_hour_before(cls, today: date) -> Self:
        """The date and the hour that were an hour before those of today."""
        hour = today.hour if isinstance(today, BusinessDay) else 0
        return cls.at(datetime.combine(today, time(hour)) - timedelta(hours=1))


def has_hour(day: date, hour: int, zone: tzinfo) -> bool:
    """Whether clocks of a time zone show an hour, or some of it, on a day."""
    minutes = (datetime.combine(day, time(hour, minute), zone) for minute in (0, 15, 30, 45))
    return any(at.astimezone(timezone.utc).astimezone(zone) == at for at in minutes)


def split_key(key: str) -> tuple[date, str]:
    """The day and the part of a partition key of Dagster; no part if it has one dimension.

    Raises:
        ValueError: it has no day.
    """
    texts = key.split("|")
    day = next((text for text in texts if re.fullmatch(_DAY, text)), key)
    return date.fromisoformat(day), "".join(text for text in texts if text != day)


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

    @staticmethod
    def parse(text: str) -> "Window":
        """The days from the text of `str`, or of a person; see `parse_calendar_days`.

        Raises:
            ValueError: the text does not have ranges of days, or one of several is empty.
        """
        ranges = [parse_days(part) for part in text.split(",")]
        windows = [Window(days[0], days[1] + DAY) for days in ranges if days]
        if len(windows) == len(ranges) == 1:
            return windows[0]
        if len(windows) < len(ranges) or any(window.end <= window.start for window in windows):
            raise ValueError(f"{text!r} is no range of days: give FIRST...LAST or one day")
        return DaySet.from_days(day for window in windows for day in window)

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

    def split_at(self, first: date) -> "list[Window]":
        """The days before a day, and those from it on; this must contain some of both."""
        parts = [d for d in self if d < first], [d for d in self if d >= first]
        return [DaySet.from_days(part) for part in parts]

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
        """The days; a plain `Window` if they have no gaps.

        Raises:
            ValueError: there is no day.
        """
        parts = to_windows(days)
        if not parts:
            raise ValueError("there are no days")
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

    def split_by_length(self, max_days: int) -> list[Window]:
        """Sets of at most `max_days` days, each after the one before, that make up this one."""
        days = list(self)
        parts = range(0, len(days), max_days)
        return [DaySet.from_days(days[first : first + max_days]) for first in parts]

    def sql_condition(self, column: str, *, relation: str = "") -> str:
        """The SQL condition on a DATE column for exactly these days."""
        return f"({days_condition(self, column, relation=relation)})"


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
    """The days of a run, from its tags; None if it has none, or partitions that are no days.

    A tag of days that does not match Dagster's tags counts for nothing: such a run fails.
    """
    keys = range_of_run(tags)
    with suppress(ValueError):
        keys = (str(split_key(keys[0])[0]), str(split_key(keys[1])[0]))
    ends = parse_days("...".join(keys))
    if ends is None:
        return None
    window = Window(ends[0], ends[1] + DAY)
    try:
        days = Window.parse(tags.get(DAYS_TAG) or str(window))
    except ValueError:
        return window
    return days if (days.start, days.end) == (window.start, window.end) else window


def range_of_run(tags: Mapping[str, str]) -> tuple[str, str]:
    """Dagster's keys of the first and the last partition of a run; empty if it has none."""
    first = tags.get(f"{_RANGE_TAG}start", tags.get("dagster/partition", ""))
    return first, tags.get(f"{_RANGE_TAG}end", first)


def parts_of_run(tags: Mapping[str, str]) -> list[str]:
    """The first and the last part of a run, or its only one, from its tags; none without parts."""
    with suppress(ValueError):
        parts = (split_key(key)[1] for key in range_of_run(tags))
        return [*dict.fromkeys(filter(None, parts))]
    return []


def partitions_of_run(keys: Iterable[str], tags: Mapping[str, str]) -> Window:
    """The partitions of a run: Dagster's keys, without those that its tag of days leaves out.

    Raises:
        ValueError: the tag has no days, or does not match Dagster's tags.
    """
    days, text = days_of_run(tags), tags.get(DAYS_TAG)
    if text and days != Window.parse(text):
        raise ValueError(
            f"the run's tag {DAYS_TAG} is {text!r}, and its partitions are {days}: the first and "
            "the last day must be the same"
        )
    partitions = (split_key(key)[0] for key in keys)
    return DaySet.from_days(day for day in partitions if days is None or day in days)


def days_condition(days: Iterable[date], column: str, *, relation: str = "") -> str:
    """`Window.sql_condition` for days with gaps; empty without days."""
    conditions = (window.sql_condition(column, relation=relation) for window in to_windows(days))
    return " OR ".join(f"({condition})" for condition in conditions)


class Grain(Enum):
    """Daily partitions, weekly ones, or monthly ones.

    A partition is named by the date of its first day (of a week of ISO 8601, the Monday): in the
    table, in its commits and as Dagster's key. Plans are stored with the values.
    """

    DAILY = 1
    #: Weeks that begin on Monday, and those that begin on another day.
    WEEKLY = 7
    WEEKLY_TUESDAY = 17
    WEEKLY_WEDNESDAY = 27
    WEEKLY_THURSDAY = 37
    WEEKLY_FRIDAY = 47
    WEEKLY_SATURDAY = 57
    WEEKLY_SUNDAY = 67
    MONTHLY = 30

    @property
    def first_weekday(self) -> int | None:
        """The day on which weeks begin, 0 for Monday; None for days and months."""
        return self.value // 10 if self.value % 10 == Grain.WEEKLY.value else None

    @property
    def job_name(self) -> str:
        """The name of the job of the tables of the grain."""
        return self.name.lower()

    @classmethod
    def of_job(cls, job_name: str) -> "Grain | None":
        """The grain whose tables a job has; None for other jobs."""
        name = job_name.partition(BY_DIMENSION)[0]
        return next((grain for grain in cls if grain.job_name == name), None)

    def first_day(self, day: date) -> date:
        """The first day of the partition that contains a day."""
        if self is Grain.MONTHLY:
            return day.replace(day=1)
        if self.first_weekday is None:
            return day
        return day - (day.weekday() - self.first_weekday) % 7 * DAY

    def days_of(self, partition: date) -> Window:
        """The days of a partition."""
        longest = 31 if self is Grain.MONTHLY else 1 if self is Grain.DAILY else 7
        return Window(partition, self.first_day(partition + longest * DAY))

    def partitions_before(self, partition: date, count: int) -> list[date]:
        """The partitions before one, the latest first."""
        partitions = [partition]
        while len(partitions) <= count:
            partitions.append(self.first_day(partitions[-1] - DAY))
        return partitions[1:]

    def partitions_after(self, partition: date, count: int) -> list[date]:
        """The partitions after one, the earliest first."""
        partitions = [partition]
        while len(partitions) <= count:
            partitions.append(self.days_of(partitions[-1]).end)
        return partitions[1:]

    def partitions_of(self, days: Iterable[date]) -> list[date]:
        """The partitions that contain the days, in ascending order."""
        return sorted({self.first_day(day) for day in days})

    def whole_partitions(self, window: Window) -> Window:
        """The partitions all of whose days are in a window."""
        if self is Grain.DAILY:
            return window
        partitions = [
            partition
            for partition in self.partitions_of(window)
            if all(day in window for day in self.days_of(partition))
        ]
        return DaySet.from_days(partitions) if partitions else Window(window.start, window.start)

    def _follows(self, partition: date, previous: date) -> bool:
        """Whether no partition is between two days."""
        return partition <= self.days_of(self.first_day(previous)).end

    def gapless_ranges(self, partitions: Iterable[date]) -> list[Window]:
        """Partitions as the fewest gapless ranges, each from its first to its last one."""
        ranges: list[Window] = []
        for partition in sorted(partitions):
            if ranges and self._follows(partition, ranges[-1].end - DAY):
                ranges[-1] = Window(ranges[-1].start, partition + DAY)
            else:
                ranges.append(Window(partition, partition + DAY))
        return ranges

    def run_window(self, partitions: Iterable[date]) -> Window:
        """The partitions of a run, as few ranges: a plain `Window` if there is no gap."""
        ranges = self.gapless_ranges(partitions)
        if len(ranges) == 1:
            return ranges[0]
        return DaySet(ranges[0].start, ranges[-1].end, tuple(ranges))

    def split_into_runs(self, partitions: Iterable[date], max_partitions: int) -> list[Window]:
        """Cut partitions into those of each run, in ascending order."""
        runs: list[list[date]] = []
        range_count = 0
        for partition in sorted({*partitions}):
            range_count += not runs or not self._follows(partition, runs[-1][-1])
            if not runs or len(runs[-1]) == max_partitions or range_count > MAX_RANGES:
                runs.append([])
                range_count = 1
            runs[-1].append(partition)
        return [self.run_window(run) for run in runs]

    def run_tags(
        self, partitions: Iterable[date], to_key: Callable[[date], str] = str
    ) -> dict[str, str]:
        """The tags of a run of exactly these partitions; `to_key` makes Dagster's keys of them."""
        window = self.run_window(partitions)
        first, last = to_key(window.start), to_key(window.end - DAY)
        tags = {f"{_RANGE_TAG}start": first, f"{_RANGE_TAG}end": last}
        return {**tags, DAYS_TAG: str(window)} if isinstance(window, DaySet) else tags

    def partitions_def(
        self, settings: Settings, *, by_hour: bool = False
    ) -> "dg.TimeWindowPartitionsDefinition":
        """The partitions definition for Dagster.

        One for all tables of a grain: with different start days, Dagster splits a backfill into
        many runs. Tables by hour have the day, week or month of now as well.
        """
        import dagster as dg

        arguments: dict[str, Any] = {
            "start_date": settings.start.isoformat(),
            "end_date": settings.end.isoformat() if settings.end else None,
            "timezone": settings.timezone,
            "end_offset": int(by_hour),
        }
        if self is Grain.DAILY:
            return dg.DailyPartitionsDefinition(**arguments)
        if self.first_weekday is None:
            return dg.MonthlyPartitionsDefinition(**arguments)
        # Dagster counts weekdays from Sunday.
        return dg.WeeklyPartitionsDefinition(**arguments, day_offset=(self.first_weekday + 1) % 7)

    @classmethod
    def from_partitions_def(cls, definition: "dg.PartitionsDefinition | None") -> "Grain":
        """The grain of a definition that `partitions_def` returned."""
        import dagster as dg

        if isinstance(definition, dg.MultiPartitionsDefinition):
            definition = definition.time_window_partitions_def
        assert isinstance(definition, dg.TimeWindowPartitionsDefinition)
        assert definition.schedule_type is not None
        grain = cls[definition.schedule_type.name]
        return grain if grain is not cls.WEEKLY else cls(7 + (definition.day_offset - 1) % 7 * 10)
