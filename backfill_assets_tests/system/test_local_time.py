"""A drill: two months were computed in local time; a check finds them, a backfill mends them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timezone

import pytest

from backfill_assets.backfills.verify import VerifyOutcome
from backfill_assets.calendar.partitions import DAY, Window, from_ranges
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.monitoring.incidents import Monitor
from backfill_assets.monitoring.states import DayState, day_states
from backfill_assets_tests.helpers.pipeline import (
    EVERYTHING,
    LAYERS,
    Pipeline,
    day,
    make_plan,
    run_verify,
)

PLACE = "backfill_assets_tests.training_tables:TABLES"
NAMES = (*EVERYTHING, "features", "labels_daily", "training_daily")
BEGAN = date(2024, 3, 18)
WRONG = Window(date(2024, 4, 1), date(2024, 6, 1))


def make_pipeline(engine, root, timezone_: str) -> Pipeline:
    """As of 1 June: what is to come has not landed yet."""
    pipeline = Pipeline(
        engine, root, tables=PLACE, start=BEGAN, end=WRONG.end, window_days=2, timezone=timezone_
    )
    pipeline.now = datetime.combine(WRONG.end, time(12), tzinfo=pipeline.settings.zone)
    return pipeline


def order_line(event_day: date, hour: int, customer: str) -> dict:
    stamp = datetime.combine(event_day, time(hour, 30), tzinfo=timezone.utc).isoformat()
    return {
        "order_id": f"{event_day}-{customer}",
        "customer_id": customer,
        "order_ts": stamp,
        "amount": "10.00",
        "ingestion_ts": stamp,
    }


def digests_by_day(pipeline: Pipeline, names: Sequence[str]) -> dict[str, dict[date, str]]:
    ledgers = read_ledgers(pipeline.deployment)
    return {
        name: {d: ledgers[name].content_key(d) for d in ledgers[name].published_days}
        for name in names
    }


def days_with_other_settings(pipeline: Pipeline, name: str) -> set[date]:
    snapshot = Monitor(pipeline.deployment, lambda: pipeline.now).read_snapshot(pipeline.instance)
    return {
        d for d, state in day_states(name, snapshot).items() if state is DayState.OTHER_SETTINGS
    }


@pytest.mark.slow
def test_days_in_local_time_are_found_and_exactly_these_are_mended(engine, tmp_path):
    right = make_pipeline(engine, tmp_path, "UTC")
    for event_day in Window(BEGAN, WRONG.end):
        # At two in the night of UTC it is the day before in New York.
        lines = [
            order_line(event_day, 2, "early"),
            order_line(event_day, 12, f"c{event_day.day % 5}"),
        ]
        right.land((event_day - day(1)).days + 1, map(dict, lines))
    right.run(BEGAN, WRONG.end - DAY, NAMES)
    tables = [name for name in NAMES if name in read_ledgers(right.deployment)]
    good = digests_by_day(right, tables)

    # Somebody set a business time zone, and had the two months built under it.
    wrong = make_pipeline(engine, tmp_path, "America/New_York")
    wrong.run(WRONG.start, WRONG.end - DAY, LAYERS)
    bad = digests_by_day(right, tables)
    early = {
        row["event_date"]
        for row in right.rows("stg_orders")
        if row["customer_id"] == "early" and row["event_date"] != row["order_ts"].date()
    }
    assert min(early) >= WRONG.start
    assert len(early) > 50

    # Found, by each day's own record: these days, in all tables that were built, and no other.
    for name in LAYERS:
        assert days_with_other_settings(right, name) == {*WRONG}, name
    # A day that reads them is not built upon them.
    failed = right.run(WRONG.end - DAY, WRONG.end - DAY, ("features",), fails=True)
    assert "was made under other settings; rebuild these days first" in right.failure(failed)
    days = Window(date(2024, 4, 10), date(2024, 4, 12))
    results = run_verify(right.settings, engine, days, ["stg_orders"])
    assert {result.outcome for result in results} != {VerifyOutcome.MATCHES}
    # The plan of all days computes exactly these.
    plan = make_plan(right, f"{BEGAN}...{WRONG.end - DAY}", tables=LAYERS)
    for name, outlook in plan.tables.items():
        assert {*from_ranges(outlook.why["other settings"])} == {*WRONG}, name

    # Mended by a backfill of exactly these days, and of what was made of them.
    right.run(WRONG.start, WRONG.end - DAY, NAMES)
    assert digests_by_day(right, tables) == good != bad
    assert not any(days_with_other_settings(right, name) for name in tables)
    results = run_verify(right.settings, engine, WRONG, ["stg_orders", "features"])
    assert {result.outcome for result in results} == {VerifyOutcome.MATCHES}


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_the_two_settings_differ_in_rows(engine, tmp_path, zone):
    """Or nothing would have been found above but a setting."""
    pipeline = make_pipeline(engine, tmp_path, zone)
    event_day = date(2024, 4, 3)
    pipeline.land((event_day - day(1)).days + 1, [order_line(event_day, 2, "early")])
    pipeline.run(event_day - 2 * DAY, event_day + 2 * DAY, EVERYTHING)
    (row,) = pipeline.rows("stg_orders")
    assert row["event_date"] == (event_day if zone == "UTC" else event_day - DAY)
