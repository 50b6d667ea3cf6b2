"""The last and the first moment of a day, on days that are longer or shorter, in two time zones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from dagster._utils.schedules import schedule_execution_time_iterator

from backfill_assets.calendar.partitions import DAY, Grain, Window
from backfill_assets.definitions import build_defs
from backfill_assets.landing.files import probe_files, read_lines
from backfill_assets.orders.tables import ORDER_LINES, STAGED
from backfill_assets.settings import load_settings
from backfill_assets.transforms import dedup, raw_rows
from backfill_assets_tests.helpers.orders_model import run_model

LEAP_DAY = date(2024, 2, 29)
#: By zone, the days of 2024 on which the clocks change.
CHANGES = {
    "Europe/Berlin": [date(2024, 3, 31), date(2024, 10, 27)],
    "America/New_York": [date(2024, 3, 10), date(2024, 11, 3)],
}
YEAR = Window(date(2024, 1, 1), date(2025, 1, 1))


def boundary_moments(zone: str) -> list[tuple[date, datetime]]:
    """(business day, moment): the first and the last millisecond of each day, and noon."""
    moments = []
    for middle in (LEAP_DAY, *CHANGES[zone]):
        for day in (middle - DAY, middle, middle + DAY):
            midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone))
            last = midnight.replace(hour=23, minute=59, second=59, microsecond=999000)
            moments += [(day, midnight), (day, midnight.replace(hour=12)), (day, last)]
    return moments


@pytest.fixture(params=CHANGES)
def zone(request) -> str:
    return request.param


@pytest.mark.parametrize("offset", [True, False], ids=["with offset", "as UTC"])
def test_every_moment_is_on_its_business_day(spark, tmp_path, zone, offset):
    expected = {}
    for n, (day, moment) in enumerate(boundary_moments(zone)):
        stamp = moment.isoformat(timespec="milliseconds")
        if not offset:
            utc = moment.astimezone(timezone.utc)
            stamp = utc.replace(tzinfo=None).isoformat(timespec="milliseconds")
        line = {"order_id": f"o{n}", "amount": "1.00", "order_ts": stamp, "ingestion_ts": stamp}
        folder = tmp_path / "orders" / f"arrival_date={day}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{n}.jsonl").write_text(json.dumps(line) + "\n")
        expected[f"o{n}"] = day
    listing = probe_files(spark, str(tmp_path), ORDER_LINES, YEAR.widen_by(before=1))
    read = raw_rows.read_versions(read_lines(spark, listing, ORDER_LINES), ORDER_LINES, zone)
    log = dedup.with_event_day(raw_rows.accepted_rows(read, ORDER_LINES), ORDER_LINES, zone)
    ranked = dedup.rank_in_window(
        dedup.rank_lines(log, ORDER_LINES, 0, corrects=True), ORDER_LINES, YEAR, 0
    )
    staged = dedup.drop_superseded(ranked, ORDER_LINES).collect()
    assert {row["order_id"]: row["event_date"] for row in staged} == expected
    model = run_model(tmp_path, start=YEAR.start, end=YEAR.end, window_days=0, timezone=zone)
    assert sorted((r["event_date"], r["order_id"], r["log_date"]) for r in staged) == sorted(
        (r["event_date"], r["order_id"], r["log_date"]) for r in model.staged
    )
    assert set(STAGED.columns) == set(staged[0].asDict())


def test_every_day_is_a_partition_and_has_a_night(zone):
    settings = load_settings(timezone=zone, start=YEAR.start, end=YEAR.end)
    assert Grain.DAILY.partitions_def(settings).get_partition_keys() == [str(day) for day in YEAR]
    schedule = build_defs(settings).get_repository_def().get_schedule_def("nightly")
    midnight = datetime(2024, 1, 1, tzinfo=ZoneInfo(zone))
    nights = []
    for tick in schedule_ticks(schedule, midnight):
        if tick.date() >= YEAR.end:
            break
        nights.append(tick)
    assert [tick.date() for tick in nights] == list(YEAR), "one tick a business day, none twice"
    odd = {tick.date(): tick.strftime("%H:%M") for tick in nights if tick.hour != 2}
    # Where 02:00 does not exist, the clock says 03:00 at that moment.
    assert odd == {CHANGES[zone][0]: "03:00"}


def schedule_ticks(schedule: dg.ScheduleDefinition, start: datetime) -> Iterator[datetime]:
    return schedule_execution_time_iterator(
        start.timestamp(), schedule.cron_schedule, schedule.execution_timezone
    )


def test_at_night_yesterday_is_over_and_today_is_not(zone):
    settings = load_settings(timezone=zone, start=YEAR.start)
    for today in (LEAP_DAY, *CHANGES[zone]):
        for hour in (0, 2, 23):
            now = datetime(today.year, today.month, today.day, hour, tzinfo=ZoneInfo(zone))
            with dg.partition_loading_context(effective_dt=now + timedelta(minutes=5)):
                assert Grain.DAILY.partitions_def(settings).get_last_partition_key() == str(
                    today - DAY
                )
