"""Features, labels and training sets: what was known then, and what came of it."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import date, timedelta
from decimal import Decimal

import pytest

from backfill_assets.backfills.comparison import Match
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.monitoring.look import Look
from backfill_assets_tests.pipeline import EVERYTHING, START, Pipeline, day, order, verify

PLACE = "backfill_assets_tests.training_tables:TABLES"
TABLES = ("features", "labels_daily", "training_daily")
ALL = (*EVERYTHING, *TABLES)
END = date(2024, 6, 1)


@pytest.fixture
def pipeline(engine, tmp_path):
    return Pipeline(engine, tmp_path, tables=PLACE, window_days=2, end=END)


def landed(seed: int, days: int) -> list[tuple[int, dict]]:
    """(arrival day number, line): orders of a few customers, some late, corrected or moved."""
    chance = random.Random(seed)
    found = []
    for n in range(1, days + 1):
        for k in range(chance.choice([0, 1, 2, 3])):
            customer = chance.choice(["c1", "c2", "c3", "c4", None])
            name, arrival = f"o{n}-{k}", min(days, n + chance.choice([0, 0, 0, 1, 2, 5]))
            amount = f"{chance.randint(100, 9999) / 100:.2f}"
            found.append(
                (arrival, order(name, n, amount, customer, ingested=f"{day(arrival)}T20:00:00Z"))
            )
            again = arrival + chance.choice([1, 4])
            if chance.random() < 0.3 and again <= days:
                moved = max(1, n - chance.choice([0, 0, 1]))
                line = order(name, moved, "1.00", customer, ingested=f"{day(again)}T21:00:00Z")
                found.append((again, line))
    return found


def land(pipeline: Pipeline, lines: list[tuple[int, dict]], of: range) -> None:
    by_day = defaultdict(list)
    for arrival, line in lines:
        by_day[arrival].append(line)
    for n in of:
        pipeline.land(n, by_day[n])


# --- the model: plain Python ----------------------------------------------------------------------


def event(line: dict) -> date:
    return date.fromisoformat(line["order_ts"][:10])


def newest(lines: list[tuple[int, dict]]) -> list[tuple[int, dict]]:
    """The greatest version of each order among some lines."""
    found: dict[str, tuple[int, dict]] = {}
    for arrival, line in lines:
        other = found.get(line["order_id"])
        if other is None or line["ingestion_ts"] > other[1]["ingestion_ts"]:
            found[line["order_id"]] = arrival, line
    return list(found.values())


def model_features(lines: list[tuple[int, dict]], days: int) -> list[tuple]:
    found = []
    for d in (day(n) for n in range(1, days + 1)):
        by_user = defaultdict(list)
        for arrival, line in newest([one for one in lines if day(one[0]) <= d]):
            if d - 30 * DAY < event(line) <= d:
                by_user[line["customer_id"] or "unknown"].append((day(arrival), line))
        for user, of in by_user.items():
            active = Decimal(len({event(line) for _, line in of})) * 100 / 30
            found.append(
                (
                    d,
                    user,
                    sum(event(line) > d - 7 * DAY for _, line in of),
                    len(of),
                    sum(Decimal(line["amount"]) for _, line in of),
                    max(logged for logged, _ in of),
                    round(active, 2),
                )
            )
    return sorted(found)


def model_labels(facts: list[dict], days: int) -> list[tuple]:
    ordered = {(row["run_date"], row["customer_id"]) for row in facts}
    last = day(days)
    found = []
    for d, user in ordered:
        if user != "unknown":
            back = [d + n * DAY for n in range(1, 31) if (d + n * DAY, user) in ordered]
            through = min(last, d + 30 * DAY)
            state = "final" if d + 30 * DAY <= last else "open"
            found.append((d, user, not back, state, d + DAY, through))
    return sorted(found)


def model_training(features: list[tuple], labels: list[tuple]) -> list[tuple]:
    known = {row[:2]: row for row in features}
    return sorted(
        (d, user, *known[d, user][2:5], known[d, user][6], churned, known[d, user][5], begins)
        for d, user, churned, state, begins, _ in labels
        if state == "final" and (d, user) in known
    )


def held(pipeline: Pipeline, name: str) -> list[tuple]:
    return sorted(tuple(row.values()) for row in pipeline.rows(name))


def agrees(pipeline: Pipeline, lines: list[tuple[int, dict]], days: int) -> None:
    features = model_features(lines, days)
    labels = model_labels(pipeline.rows("fact_daily_orders"), days)
    assert held(pipeline, "features") == features != []
    assert held(pipeline, "labels_daily") == labels != []
    assert held(pipeline, "training_daily") == model_training(features, labels)


@pytest.mark.parametrize("seed", [1, 2])
def test_plain_python_agrees_and_days_one_by_one_equal_a_range(engine, tmp_path, seed):
    days = 40
    lines = landed(seed, days)
    whole = Pipeline(engine, tmp_path / "whole", tables=PLACE, window_days=2, end=END)
    land(whole, lines, range(1, days + 1))
    whole.run(1, days, ALL)
    agrees(whole, lines, days)
    assert len(whole.rows("training_daily")) > 5
    parts = Pipeline(engine, tmp_path / "parts", tables=PLACE, window_days=2, end=END)
    land(parts, lines, range(1, days + 1))
    parts.run(1, days, EVERYTHING)
    for first, last in [(1, 1), (2, 2), (3, 9), (10, 31), (32, 32), (33, 40)]:
        parts.run(first, last, ("features",))
        parts.run(first, last, ("labels_daily",))
        parts.run(first, last, ("training_daily",))
    for name in TABLES:
        assert held(parts, name) == held(whole, name)
    found = verify(whole.settings, engine, Window(day(30), day(41)), TABLES)
    assert {one.outcome for one in found} == {Match.MATCHES}
