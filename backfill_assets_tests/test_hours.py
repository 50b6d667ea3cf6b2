"""Parts that are hours: when they are due, in the zone of the business day."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

import dagster as dg
import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from dagster._core.storage.tags import RUN_KEY_TAG
from dagster._core.test_utils import create_run_for_test
from pyspark.sql import DataFrame

from backfill_assets import HOURS, WEEK, Reads, Source, external_table, table
from backfill_assets.backfills.backfill_plan import BackfillRequest
from backfill_assets.backfills.planner import refuse_invalid_request
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, BusinessDay, Grain, Window, has_hour
from backfill_assets.definitions import build_defs
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.deployment import Deployment
from backfill_assets.doctor import data as doctor
from backfill_assets.monitoring.automation import build_automation, freshness_policy
from backfill_assets.monitoring.next_runs import Request, RunPlanner
from backfill_assets.monitoring.states import MonitoringSnapshot
from backfill_assets.settings import load_settings
from backfill_assets.staleness.assess import assess
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.unloaded import UnloadedDays
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.graph import Graph
from backfill_assets_guide.examples.hours import TABLES as EXAMPLE
from backfill_assets_guide.examples.hours import VIEWS, HourlyViews, hourly_views
from backfill_assets_guide.examples.regions import ORDERS
from backfill_assets_tests.helpers.invented_logs import ledger, record
from backfill_assets_tests.helpers.memory_instance import memory_instance


class DatedView(pa.DataFrameModel):
    view_id: T.StringType
    seen_on: T.DateType


BERLIN = ZoneInfo("Europe/Berlin")
SPRING, AUTUMN = date(2024, 3, 31), date(2024, 10, 27)
TABLES = "backfill_assets_guide.examples.hours:TABLES"
DEPLOYMENT = Deployment(
    load_settings(tables=TABLES, timezone="Europe/Berlin", start=date(2024, 1, 1), end=None)
)
GRAPH = DEPLOYMENT.graph


def at(day: date, hour: int, minute: int = 0) -> BusinessDay:
    return BusinessDay.at(datetime(day.year, day.month, day.day, hour, minute, tzinfo=BERLIN))


def due_until(table: str, today: date, graph: Graph = GRAPH) -> date:
    """The first day of a table that is not due."""
    return graph.expected_days(table, today).end


def test_days_that_lack_an_hour():
    days = [date(2024, 1, 1) + n * DAY for n in range(366)]
    lacking = [(day, hour) for day in days for hour in range(24) if not has_hour(day, hour, BERLIN)]
    assert lacking == [(SPRING, 2)]
    # Clocks are set forward at midnight, and by half an hour only.
    assert not has_hour(date(2024, 4, 26), 0, ZoneInfo("Africa/Cairo"))
    assert has_hour(date(2024, 10, 6), 2, ZoneInfo("Australia/Lord_Howe"))


@pytest.mark.parametrize("day", [date(2024, 1, 5), SPRING, AUTUMN])
def test_an_hour_is_due_when_it_is_over(day):
    """Minute by minute, as the clock on the wall shows it; a plain date is its midnight."""
    moment = datetime(day.year, day.month, day.day, tzinfo=BERLIN)
    for minute in range(0, 26 * 60, 15):
        now = (moment + timedelta(minutes=minute)).astimezone(BERLIN)
        for hour in (0, 1, 2, 3, 12, 22, 23):
            part, today = f"hourly_views/{hour:02}", BusinessDay.at(now)
            end_of_hour = datetime.combine(day, datetime.min.time()) + timedelta(hours=hour + 1)
            # The wall shows an hour twice in autumn: what was over once stays so.
            is_over = now.replace(tzinfo=None, minute=0, second=0, microsecond=0) >= end_of_hour
            assert GRAPH.is_over(part, day, today) == is_over
            assert (day in GRAPH.expected_days(part, today)) == is_over
            assert (day in GRAPH.policy_of(f"raw_views/{hour:02}").loadable_days(today)) == is_over
        assert not GRAPH.is_over("daily_views", day, BusinessDay.at(now)) or now.date() > day
    assert due_until("hourly_views/00", day) == due_until("hourly_views/23", day) == day


def test_the_text_of_an_hour_that_is_not_due_says_when_it_is():
    day, filled = date(2024, 1, 5), {name: ledger(table) for name, table in GRAPH.tables.items()}
    snapshot = Snapshot(GRAPH, filled, at(day, 9, 30))
    due = {
        name: assess(snapshot, name, [day])[day].not_due
        for name in ("raw_views/08", "hourly_views/09", "daily_views")
    }
    assert due == {
        "raw_views/08": "",
        "hourly_views/09": "lines of it are still to come: it is due on 2024-01-05 at 10:00",
        "daily_views": "lines of it are still to come: it is due on 2024-01-06",
    }


def test_a_day_of_all_hours_is_due_when_the_last_one_is():
    day = date(2024, 1, 5)
    assert due_until("daily_views", at(day, 23, 59)) == day
    assert due_until("daily_views", at(day + DAY, 0)) == day + DAY


def test_hours_after_which_a_folder_is_complete():
    """They count for hours and for whole days, and for what joins them the longest one does."""
    day = date(2024, 1, 5)
    policy = Policy.from_settings(DEPLOYMENT.settings)
    late = replace(VIEWS, arrives_after_hours=2, part="09").under(policy)
    assert late.loadable_days(at(day, 11, 59)).end == day
    assert late.loadable_days(at(day, 12)).end == day + DAY
    plain = replace(ORDERS, dimension=None, arrives_after_hours=6).under(policy)
    assert plain.expected_days(at(day, 5, 59)).end == day - DAY
    assert plain.expected_days(at(day, 6)).end == day
    assert plain.expected_days(day).end == day - DAY
    slow = replace(VIEWS, arrives_after_hours=30, part="23").under(policy)
    assert slow.loadable_days(at(day, 5)).end == day - 2 * DAY
    assert slow.loadable_days(at(day, 6)).end == day - DAY


def test_nothing_is_expected_of_an_hour_that_does_not_exist():
    raw, source = GRAPH.tables["raw_views/02"], GRAPH.sources["raw_views/02"]
    assert not raw.expects_rows(SPRING)
    assert SPRING not in source.under(GRAPH.policy).arrival_days
    assert SPRING + DAY in source.under(GRAPH.policy).arrival_days
    assert all(GRAPH.tables[f"raw_views/{h}"].expects_rows(SPRING) for h in ("01", "03"))
    weekdays = replace(VIEWS, arrives_on="mon-fri").parts["02"].in_business_zone("Europe/Berlin")
    week = [SPRING - n * DAY for n in range(7)]
    assert {day.weekday() for day in week if day in weekdays.arrival_days} == {0, 1, 2, 3, 4}


def test_the_calendar_has_the_day_of_now():
    """A person may name it; days of tables without hours begin to have a partition tomorrow."""
    today = DEPLOYMENT.today
    assert DEPLOYMENT.parse_days(str(today)).start == today
    assert DEPLOYMENT.parse_days_and_part(f"{today}/09")[1] == "09"
    with pytest.raises(ValueError, match="is not in the calendar"):
        DEPLOYMENT.parse_days(str(today + DAY))
    tables, settings = DEPLOYMENT.tables, DEPLOYMENT.settings
    assert tables["hourly_views/09"].days_def(settings).has_partition_key(str(today))
    assert not tables["daily_views"].days_def(settings).has_partition_key(str(today))


def test_an_hour_is_missed_an_hour_after_it_was_due():
    """It is loaded within the hour, so it is not red before; the nightly deadline is no matter."""
    day, nothing = date(2024, 1, 5), UnloadedDays()
    raw = "raw_views/09"
    for hour, expected in ((10, False), (11, True), (23, True)):
        for before_deadline in (False, True):
            snapshot = MonitoringSnapshot(
                GRAPH,
                {name: ledger(table) for name, table in GRAPH.tables.items()},
                at(day, hour, 5),
                unloaded=dict.fromkeys(GRAPH.sources, nothing)
                | {raw: replace(nothing, days_to_load={day: ""}, missing_days=frozenset([day]))},
                failed_checks={},
                before_deadline=before_deadline,
            )
            assert (day in snapshot.due_days("hourly_views/09")) is expected
            assert (day in snapshot.unloaded_by_log[raw]) is expected
            assert (day in snapshot.absent_by_log[raw]) is expected


def test_an_hour_before_midnight_is_the_day_before():
    before = BusinessDay.an_hour_before(date(2024, 1, 5))
    assert (before, before.hour) == (date(2024, 1, 4), 23)


def test_the_doctor_knows_which_hours_are_over(monkeypatch):
    """An hour of today that is over may be published; the hour of now may not."""
    ten = at(date(2024, 1, 5), 10)
    monkeypatch.setattr(Deployment, "today", ten)
    monkeypatch.setattr(
        doctor, "unloaded_by_log", lambda *_: dict.fromkeys(GRAPH.sources, UnloadedDays())
    )
    for hour, is_wrong in (("09", False), ("10", True)):
        raw = GRAPH.tables[f"raw_views/{hour}"]
        ledgers = {name: Ledger(table) for name, table in GRAPH.tables.items()}
        ledgers[raw.name] = ledger(raw, record(0, {date(2024, 1, 5)}))
        monkeypatch.setattr(doctor, "read_ledgers", lambda _, found=ledgers: found)
        texts = [result.message for result in doctor.check_clock(DEPLOYMENT)]
        assert any("are not over" in text for text in texts) is is_wrong


def test_the_schedule_of_hours_runs_each_hour():
    schedules = {s.name: s.cron_schedule for s in build_defs(DEPLOYMENT.settings).schedules or ()}
    minute, hour = DEPLOYMENT.settings.nightly_at.split(":")[::-1]
    assert schedules["nightly_by_hour"] == f"{int(minute)} * * * *"
    assert schedules["nightly"] == f"{int(minute)} {int(hour)} * * *"


def test_a_source_by_hours_needs_times_and_one_kind_of_hours():
    with pytest.raises(DeclarationError, match="its dimension is HOURS: leave out hourly"):
        replace(VIEWS, hourly=True)
    with pytest.raises(DeclarationError, match="HOURS, and seen_on is a date without an hour"):
        Source("dated", DatedView, key=["view_id"], event_time="seen_on", dimension=HOURS)
    assert replace(ORDERS, hourly=True).hour is None
    assert VIEWS.parts["09"].hour == 9
    assert VIEWS.hour is None
    later = replace(HOURS, starts={"09": date(2024, 2, 1)})
    assert replace(VIEWS, dimension=later).parts["09"].hour == 9
    assert HOURS.values[0] == "00"


class WeekViews(pa.DataFrameModel):
    week_start: T.DateType
    hour: T.StringType
    views: T.LongType


@table(WeekViews, partition=("week_start", "hour"), key=[])
def week_views(views: Annotated[DataFrame, Reads(hourly_views, WEEK)]) -> DataFrame: ...


def test_the_week_of_an_hour_is_due_on_its_last_day():
    """Dagster has the week from its first day on, so that it can be launched then."""
    deployment = Deployment(DEPLOYMENT.settings, (*EXAMPLE, week_views))
    sunday = date(2024, 1, 14)
    weeks = deployment.graph.expected_days("week_views/05", at(sunday, 6))
    assert (weeks.start, sunday in Grain.WEEKLY.days_of([*weeks][-1])) == (date(2024, 1, 1), True)
    assert sunday - 6 * DAY not in deployment.graph.expected_days("week_views/05", at(sunday, 5))
    days_def = deployment.tables["week_views/05"].days_def(deployment.settings)
    week = Grain.WEEKLY.first_day(deployment.today)
    assert days_def.has_partition_key(str(week))
    assert not days_def.has_partition_key(str(week + 7 * DAY))


def test_a_request_that_failed_is_not_made_again_each_hour(monkeypatch):
    """Nor one that is under way; a schedule that ticks once a night makes it each night."""
    day = date(2024, 1, 5)
    requests = [
        Request(("raw_views/09",), Window(day, day + DAY), "hour"),
        Request(("daily_views",), Window(day, day + DAY), "day"),
    ]
    monkeypatch.setattr(RunPlanner, "plan_loads", lambda *_: requests)
    schedules = {s.name: s for s in build_automation(DEPLOYMENT).schedules}

    def run_keys(name: str, now: datetime) -> list[str | None]:
        context = dg.build_schedule_context(scheduled_execution_time=now)
        context._instance_ref, context._instance = True, instance
        ticked = schedules[name].evaluate_tick(context)
        return [request.run_key for request in ticked.run_requests or []]

    minute = int(DEPLOYMENT.settings.nightly_at[3:])
    night = datetime(2024, 1, 6, 2, minute, tzinfo=BERLIN)
    with memory_instance() as instance:
        keys = run_keys("nightly_by_hour", night)
        assert keys == ["2024-01-06:hour"]
        assert run_keys("nightly", night) == ["2024-01-06:day"]
        for key in ("2024-01-06:hour", "2024-01-06:day"):
            create_run_for_test(
                instance, tags={RUN_KEY_TAG: key}, status=dg.DagsterRunStatus.FAILURE
            )
        hours = [night + timedelta(hours=n) for n in (1, 10, 23, 24)]
        assert [run_keys("nightly_by_hour", at) for at in hours] == [
            [],
            [],
            [],
            ["2024-01-07:hour"],
        ]
        assert run_keys("nightly", night) == ["2024-01-06:day"]


PLAIN = replace(ORDERS, dimension=None)
SLOW = replace(PLAIN, arrives_after_hours=8)


class Theirs(pa.DataFrameModel):
    run_date: T.DateType


@table(HourlyViews, partition=("run_date", "hour"), key=["page"])
def hours_beside_days(
    views: Annotated[DataFrame, Reads(VIEWS.staged)],
    orders: Annotated[DataFrame, Reads(SLOW.staged)],
) -> DataFrame: ...


@table(HourlyViews, partition=("run_date", "hour"), key=["page"])
def hours_beside_others(
    views: Annotated[DataFrame, Reads(VIEWS.staged)],
    theirs: Annotated[DataFrame, Reads(external_table("theirs", Theirs, partition="run_date"))],
) -> DataFrame: ...


def test_a_day_is_missed_after_the_deadline_of_the_run_that_was_to_load_it():
    """The nightly run of two o'clock leaves a folder that is complete at eight to the next one."""
    slow = Deployment(DEPLOYMENT.settings, (VIEWS, SLOW, hours_beside_days, hours_beside_others))
    graph, day, nothing = slow.graph, date(2024, 1, 5), UnloadedDays()
    landed = replace(nothing, days_to_load={day: ""}, missing_days=frozenset([day]))

    def missed(now: BusinessDay, name: str) -> bool:
        snapshot = MonitoringSnapshot(
            graph,
            {name: Ledger(table) for name, table in graph.all_tables.items()},
            now,
            unloaded=dict.fromkeys(graph.sources, landed),
            failed_checks={},
            before_deadline=now.hour < 6,
            nightly_hour=2,
        )
        is_missed = day in snapshot.due_days(name)
        if name in graph.sources:
            assert (day in snapshot.unloaded_by_log[name]) is is_missed
            assert (day in snapshot.absent_by_log[name]) is is_missed
        return is_missed

    following, second = day + DAY, day + 2 * DAY
    raw = SLOW.raw.name
    assert [graph.is_over(raw, day, at(following, hour)) for hour in (7, 8)] == [False, True]
    for name in (raw, SLOW.staged.name, "hours_beside_days/09"):
        nights = [at(following, 9), at(following, 23), at(second, 5), at(second, 6)]
        assert [missed(now, name) for now in nights] == [False, False, False, True]
    # What others write by day is no matter of hours; a part by itself is.
    nights = [at(day, 23), at(following, 5), at(following, 6)]
    assert [missed(now, "hours_beside_others/09") for now in nights] == [False, False, True]
    assert not graph.is_over("hours_beside_others/09", day, at(day, 23))
    assert [missed(now, "raw_views/09") for now in (at(day, 10), at(day, 11))] == [False, True]


def test_dagster_asks_for_no_materialization_before_a_folder_is_complete():
    for hours, is_asked in ((0, True), (5, True), (6, False), (30, False)):
        policy = replace(PLAIN, arrives_after_hours=hours).under(GRAPH.policy)
        assert (freshness_policy(DEPLOYMENT, policy) is not None) is is_asked


def test_the_day_of_now_is_planned_for_hours_alone():
    """A plan of days would have nothing in it; it is refused as ever."""
    today = str(DEPLOYMENT.today)
    refuse_invalid_request(DEPLOYMENT, BackfillRequest(days=today, tables=("hourly_views/09",)))
    refuse_invalid_request(DEPLOYMENT, BackfillRequest(days=today, tables=()))
    with pytest.raises(ValueError, match=f"'{today}' is not in the calendar"):
        refuse_invalid_request(DEPLOYMENT, BackfillRequest(days=today, tables=("daily_views",)))
