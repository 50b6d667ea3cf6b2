"""The grain of a table: daily or weekly partitions, and the days of each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from enum import Enum
from itertools import pairwise

import dagster as dg

from backfill_assets.calendar.partitions import DAY, DaySet, Window, to_windows
from backfill_assets.settings import Settings


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

    def partitions_def(self, settings: Settings) -> dg.TimeWindowPartitionsDefinition:
        """The partitions definition for Dagster.

        One for all tables of a grain: with different start days, Dagster splits a backfill into
        many runs.
        """
        start, zone = settings.start.isoformat(), settings.timezone
        end = settings.end.isoformat() if settings.end else None
        if self is Grain.DAILY:
            return dg.DailyPartitionsDefinition(start_date=start, end_date=end, timezone=zone)
        # By default Dagster's weeks begin on Sunday.
        return dg.WeeklyPartitionsDefinition(
            start_date=start, end_date=end, timezone=zone, day_offset=1
        )

    @classmethod
    def from_partitions_def(cls, definition: dg.PartitionsDefinition | None) -> Grain:
        """The grain of a definition that `partitions_def` returned."""
        assert isinstance(definition, dg.TimeWindowPartitionsDefinition)
        assert definition.schedule_type is not None
        return cls[definition.schedule_type.name]
