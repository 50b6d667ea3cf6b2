"""Tables by hour: an hour is loaded and published when it is over, a day when all its hours are."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path
from random import Random

import pytest

from backfill_assets.calendar.partitions import DAY, has_hour
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.monitoring.incidents import read_snapshot
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.pipeline import Pipeline

#: The day without an hour `02` in Berlin.
SPRING = date(2024, 3, 31)
#: Days after the event day on which a line still counts.
WINDOW = 1


class Model:
    """The landing of views, and what the tables must have of it, in plain Python."""

    def __init__(self, engine: Engine, root: Path, start: date, end: date) -> None:
        self.pipeline = Pipeline(
            engine,
            root,
            land=False,
            tables="backfill_assets_guide.examples.hours:TABLES",
            timezone="Europe/Berlin",
            start=start,
            end=end,
        )
        self.start, self.zone = start, self.pipeline.settings.zone
        self.folders: set[tuple[date, int]] = set()
        self.lines: list[tuple[date, int, datetime, str]] = []

    def land(
        self, day: date, hour: int, events: list[tuple[datetime, str]], name: str = "a.jsonl"
    ) -> None:
        """Put views, by local time and page, into the folder of an hour."""
        folder = self.pipeline.landing / f"views/arrival_date={day}/hour={hour:02}"
        folder.mkdir(parents=True, exist_ok=True)
        self.folders.add((day, hour))
        rows = []
        for at, page in events:
            moment = at.astimezone(timezone.utc).isoformat()
            view = {"view_id": f"{moment} {len(self.lines)}", "page": page, "viewed_at": moment}
            rows.append(json.dumps(view) + "\n")
            self.lines.append((day, hour, at, page))
        (folder / name).write_text("".join(rows))

    def at(self, day: date, hour: int, minute: int = 0, *, fold: int = 0) -> datetime:
        """A moment of the local clock."""
        return datetime.combine(day, time(hour, minute, fold=fold), self.zone)

    def is_over(self, day: date, hour: int) -> bool:
        """Whether an hour of a day is over as of now."""
        now = self.pipeline.now.replace(tzinfo=None)
        return datetime.combine(day, time(hour)) + timedelta(hours=1) <= now

    def hours(self) -> dict[tuple[date, int, str], int]:
        """Views by day, hour and page, of the hours that are over as of now."""
        return Counter(
            (at.date(), at.hour, page)
            for day, hour, at, page in self.lines
            if at.hour == hour and self.is_over(day, hour) and (day - at.date()).days <= WINDOW
        )

    def days(self) -> dict[tuple[date, str], int]:
        """Views by day and page, of the days of which all folders have come."""
        views: Counter[tuple[date, str]] = Counter()
        for (day, _, page), count in self.hours().items():
            needed = {(day, hour) for hour in range(24) if has_hour(day, hour, self.zone)}
            if needed <= self.folders and self.is_over(day, 23):
                views[day, page] += count
        return views

    def tick(self, day: date, hour: int, minute: int) -> None:
        """What the daemon does at a time; the rows are those of plain Python then."""
        self.pipeline.night(day, at=time(hour, minute))
        rows = self.pipeline.rows("hourly_views")
        hours = {(r["run_date"], int(r["hour"]), r["page"]): r["views"] for r in rows}
        assert hours == self.hours()
        is_made = read_ledgers(self.pipeline.deployment)["daily_views"].metadata is not None
        rows = self.pipeline.rows("daily_views") if is_made else []
        assert {(r["run_date"], r["page"]): r["views"] for r in rows} == self.days()

    def bad_states(self) -> dict[str, set[str]]:
        """By table with days that are not in order, their states."""
        snapshot = read_snapshot(
            self.pipeline.deployment, self.pipeline.instance, self.pipeline.now
        )
        states = {name: snapshot.states_of(name) for name in snapshot.ledgers}
        return {
            name: {f"{day}: {state.value}" for day, state in by_day.items() if not state.is_good}
            for name, by_day in states.items()
            if any(not state.is_good for state in by_day.values())
        }


def test_hours_are_published_during_the_day(engine, spark, tmp_path):
    """On the day without an hour: nobody waits for it, and nothing is red before its hour."""
    model = Model(engine, tmp_path, SPRING, SPRING + DAY)
    model.land(SPRING, 0, [(model.at(SPRING, 0, 30), "home")])
    model.tick(SPRING, 1, 5)
    model.land(SPRING, 1, [(model.at(SPRING, 1, 59), "home"), (model.at(SPRING, 0, 7), "cart")])
    model.tick(SPRING, 3, 5)
    (rejected,) = model.pipeline.rows("raw_views_rejected")
    assert rejected["reason"] == "bad viewed_at: of hour 00, its folder says 01"
    assert model.bad_states() == {}
    keys = model.pipeline.materialized("raw_views")
    assert keys == {f"{SPRING}|00", f"{SPRING}|01", f"{SPRING}|02"}, "without lines: not expected"


@pytest.mark.slow
@pytest.mark.parametrize("start", [SPRING - DAY, date(2024, 10, 26)])
def test_days_by_the_hour(engine, spark, tmp_path, start):
    """With late lines, folders that come hours late, and the days on which clocks change."""
    day_count = int(os.environ.get("BACKFILL_TEST_HOUR_DAYS", "2"))
    random = Random(str(start))
    model = Model(engine, tmp_path, start, start + (day_count + 2) * DAY)
    late: list[tuple[date, int, list[tuple[datetime, str]]]] = []
    for day in (start + n * DAY for n in range(day_count)):
        for hour in range(24):
            if not has_hour(day, hour, model.zone):
                continue
            events = [
                (model.at(day, hour, random.randrange(60), fold=random.randrange(2)), page)
                for page in random.choices(["home", "cart", "help"], k=random.randrange(3))
            ]
            back = day - random.randrange(4) * DAY
            if random.random() < 0.1 and back >= start and has_hour(back, hour, model.zone):
                events.append((model.at(back, hour, 30), "late"))
            if random.random() < 0.1:
                late.append((day, hour, events))
            else:
                model.land(day, hour, events)
            if hour in (11, 23) or random.random() < 0.05:
                model.tick(*_next_hour(day, hour), 5)
                for folder in late:
                    model.land(*folder)
                late.clear()
    model.tick(start + day_count * DAY, 0, 30)
    assert len({day for day, _ in model.days()}) == day_count
    assert model.bad_states() == {}


def _next_hour(day: date, hour: int) -> tuple[date, int]:
    later = datetime.combine(day, time(hour)) + timedelta(hours=1)
    return later.date(), later.hour
