"""Features, labels and training sets: what was known then, and what came of it."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import date
from decimal import Decimal

import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake

from backfill_assets.backfills.comparison import Match
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.staleness.backlog import backlog
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


def behind(pipeline: Pipeline, name: str, today: int) -> set[int]:
    """The day numbers of a table that are behind their inputs."""
    found = backlog(read_ledgers(pipeline.settings), Policy.of(pipeline.settings), day(today))
    return {(d - START).days + 1 for d in found.days(name)}


def states(pipeline: Pipeline) -> dict[int, str]:
    """The label state of each day that has labels, by day number."""
    rows = pipeline.rows("labels_daily")
    return {(row["dt"] - START).days + 1: row["label_state"] for row in rows}


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


# --- labels ---------------------------------------------------------------------------------------


def test_a_new_day_makes_exactly_the_days_due_that_it_may_change(pipeline):
    """And a label is final as soon as the thirtieth day after it is there, empty or not."""
    for n in range(1, 34):
        # No order comes on the days 31 and 32: these are published all the same, with no row.
        pipeline.land(n, [order(f"o{n}", n, customer=f"c{n % 3}")] if n not in (31, 32) else [])
    pipeline.run(1, 30, ALL)
    assert {*states(pipeline).values()} == {"open"}
    assert pipeline.rows("training_daily") == []
    commits = pipeline.log("labels_daily").version()
    pipeline.run(1, 30, ALL)
    assert pipeline.log("labels_daily").version() == commits

    for n, first in ((31, 1), (32, 2), (33, 3)):
        pipeline.run(n, n, EVERYTHING)
        assert behind(pipeline, "labels_daily", n + 1) == {*range(first, n + 1)}
        pipeline.now += DAY
        while pipeline.launch(pipeline.tick("touched_days").run_requests or []):
            pass
        assert behind(pipeline, "labels_daily", n + 1) == set()
        final = {m for m, state in states(pipeline).items() if state == "final"}
        assert final == {*range(1, first + 1)}
        assert {row["dt"] for row in pipeline.rows("training_daily")} == {day(m) for m in final}
    # Who came back is known before that, and stays open: or the early ones alone were learned from.
    rows = {row["dt"]: row for row in pipeline.rows("labels_daily")}
    assert (rows[day(10)]["churned_30d"], rows[day(10)]["label_state"]) == (False, "open")
    assert rows[day(33)]["churned_30d"]


def test_a_late_order_turns_a_label(pipeline):
    """The day that it tells of has been published; its window is open."""
    for n in range(1, 33):
        pipeline.land(n, [order("o1", 1)] if n == 1 else [order(f"x{n}", n, customer="other")])
    pipeline.run(1, 31, ALL)

    def label() -> tuple[bool, str]:
        (row,) = (r for r in pipeline.rows("labels_daily") if r["user_id"] == "c1")
        return row["churned_30d"], row["label_state"]

    assert label() == (True, "final")
    (trained,) = (r for r in pipeline.rows("training_daily") if r["user_id"] == "c1")
    assert trained["churned_30d"]
    late = order("late", 31, ingested=f"{day(32)}T08:00:00Z")
    pipeline.land(32, [late], "late.jsonl")
    pipeline.run(32, 32, EVERYTHING)
    pipeline.run(31, 32, EVERYTHING)
    assert behind(pipeline, "labels_daily", 33) == {*range(1, 33)}
    pipeline.run(1, 32, ALL)
    (row,) = (r for r in pipeline.rows("labels_daily") if (r["dt"], r["user_id"]) == (day(1), "c1"))
    assert (row["churned_30d"], row["label_state"]) == (False, "final")
    # What was known of the features is as it was, though the order now counts for staging.
    found = [r for r in pipeline.rows("features") if r["event_date"] == day(31)]
    assert "c1" not in {r["user_id"] for r in found}


# --- what is caught -------------------------------------------------------------------------------


def test_rows_that_an_old_job_doubled_are_caught(pipeline):
    for n in range(1, 35):
        pipeline.land(n, [order(f"o{n}", n), order(f"p{n}", n, customer="c2")])
    pipeline.run(1, 34, ALL)
    before = {name: held(pipeline, name) for name in TABLES}
    for name, column, doubled in (
        ("stg_orders", "event_date", day(3)),
        ("features", "event_date", day(4)),
    ):
        rows = pipeline.log(name).to_pyarrow_dataset().to_table(filter=pc.field(column) == doubled)
        write_deltalake(str(pipeline.warehouse / name), rows, mode="append")
    failed = pipeline.run(1, 34, ("fact_daily_orders",), fails=True)
    said = pipeline.failure(failed)
    assert f"stg_orders[{day(3)}] has 2 row(s) that repeat a (order_id)" in said
    assert "rebuild it first" in said
    failed = pipeline.run(1, 34, ("training_daily",), fails=True)
    said = pipeline.failure(failed)
    assert f"training_daily[{day(4)}]" in said
    assert f"features[{day(4)}] has 2 row(s) that repeat a (user_id)" in said
    assert "unique_key" in said  # the rows of the day itself
    pipeline.run(1, 34, ALL)
    assert {name: held(pipeline, name) for name in TABLES} == before
