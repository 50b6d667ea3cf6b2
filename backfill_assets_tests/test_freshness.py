"""Dagster's own freshness, evaluated by Dagster at moments of ordinary and of odd days."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from types import SimpleNamespace
from uuid import uuid4
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from dagster._core.definitions.freshness_evaluator import CronFreshnessPolicyEvaluator
from dagster._core.loader import LoadingContext
from dagster._core.test_utils import freeze_time

from backfill_assets.calendar.late_data import Policy
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.automation import freshness_policy
from backfill_assets.settings import Settings, load_settings

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
#: By zone: an ordinary day, and those on which the clock is put forward and back.
ODD_DAYS = {
    "UTC": ("2026-05-05",),
    "Asia/Tokyo": ("2026-05-05",),
    "Europe/Berlin": ("2026-05-05", "2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-05-05", "2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-05-05", "2026-10-04", "2026-04-05"),
    "Antarctica/Troll": ("2026-05-05", "2026-03-29", "2026-10-25"),
    # No midnight in spring, and the hour before midnight twice in autumn.
    "America/Santiago": ("2026-05-05", "2026-09-06", "2026-04-04", "2026-04-05"),
    "Asia/Beirut": ("2026-05-05", "2026-03-29", "2026-10-24", "2026-10-25"),
    # Midnight twice in autumn.
    "America/Havana": ("2026-05-05", "2026-03-08", "2026-11-01"),
}
CASES = [(zone, date.fromisoformat(day)) for zone, days in ODD_DAYS.items() for day in days]


class Context(LoadingContext):
    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance = instance
        self._loaders: dict = {}

    @property
    def instance(self) -> dg.DagsterInstance:
        return self._instance

    @property
    def loaders(self) -> dict:
        return self._loaders


def first_moment(day: date, zone: ZoneInfo) -> datetime:
    """The first moment of a day, by its half hours."""
    moment = datetime.combine(day, time(12), zone).astimezone(timezone.utc)
    while (moment - 30 * MINUTE).astimezone(zone).date() == day:
        moment -= 30 * MINUTE
    return moment


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance for all cases, each of which has a table of its own."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def freshness_state(instance: dg.DagsterInstance) -> Callable[[Settings, datetime, datetime], str]:
    """What Dagster says of a table that was last materialized at a moment."""

    def look(settings: Settings, materialized_at: datetime, now: datetime) -> str:
        key = dg.AssetKey(f"table_{uuid4().hex}")
        policy = freshness_policy(Deployment(settings), Policy.from_settings(settings))
        node = SimpleNamespace(key=key, freshness_policy_or_from_metadata=policy)
        with freeze_time(materialized_at):
            instance.report_runless_asset_event(dg.AssetMaterialization(key))
        with freeze_time(now):
            looked = CronFreshnessPolicyEvaluator().evaluate_freshness(Context(instance), node)
            return asyncio.run(looked).value

    return look


@pytest.mark.parametrize(("zone", "day"), CASES)
@pytest.mark.parametrize("deadline", ["06:00", "02:30"])
def test_what_was_made_after_midnight_is_fresh_and_what_was_made_before_is_not(
    zone, day, deadline, freshness_state
):
    settings = load_settings(timezone=zone, nightly_at="00:30", deadline=deadline)
    midnight = first_moment(day, settings.zone)
    checked_at = midnight + 9 * HOUR
    assert freshness_state(settings, midnight + MINUTE, checked_at) == "PASS"
    # Where clocks are changed in the night, other days begin too early, by up to both changes.
    assert freshness_state(settings, midnight - 4.1 * HOUR, checked_at) == "FAIL"
    # Until the deadline, yesterday counts.
    yesterday = first_moment(day - DAY, settings.zone)
    assert freshness_state(settings, yesterday + MINUTE, midnight + HOUR) == "PASS"


def test_a_zone_that_never_puts_its_clocks_back_loses_no_minute(freshness_state):
    settings = load_settings(timezone="Asia/Tokyo", nightly_at="00:30", deadline="06:00")
    midnight = first_moment(date(2026, 5, 5), settings.zone)
    assert freshness_state(settings, midnight - MINUTE, midnight + 9 * HOUR) == "FAIL"


def test_a_deadline_at_the_end_of_the_day_is_a_policy_that_dagster_takes():
    settings = load_settings(timezone="Europe/Berlin", deadline="23:59")
    policy = freshness_policy(Deployment(settings), Policy.from_settings(settings))
    assert policy.lower_bound_delta == DAY
