"""Features, labels and training sets: what was known then, and what came of it."""

from __future__ import annotations

import random
import re
import shutil
from collections import defaultdict
from datetime import date

import dagster as dg
import pyarrow.compute as pc
import pytest
from dagster._core.execution.backfill import BulkActionStatus
from deltalake import write_deltalake

from backfill_assets.assets import backfill_jobs
from backfill_assets.backfills import stages, state_store
from backfill_assets.backfills.backfill_plan import BackfillRequest
from backfill_assets.backfills.verify import VerifyOutcome
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets_tests.helpers import memory_model
from backfill_assets_tests.helpers.deployment import ServedDeployment
from backfill_assets_tests.helpers.orders_model import run_model
from backfill_assets_tests.helpers.pipeline import (
    EVERYTHING,
    START,
    Pipeline,
    copy_loaded,
    day,
    make_plan,
    order,
    run_verify,
    tick_planned_backfills,
)

PLACE = "backfill_assets_tests.training_tables:TABLES"
BEFORE = "backfill_assets_tests.training_tables_before:TABLES"
TABLES = ("features", "labels_daily", "training_daily")
#: What the tables of these tests are made from, nearest last; other tables of orders are not.
LOG = ("raw_orders", "raw_orders_rejected")
ORDER_TABLES = (*LOG, "stg_orders", "fact_daily_orders")
ALL = (*ORDER_TABLES, *TABLES)
END = date(2024, 6, 1)


@pytest.fixture
def pipeline(engine, tmp_path):
    return Pipeline(engine, tmp_path, tables=PLACE, window_days=2, end=END)


@pytest.fixture(scope="module")
def loaded_root(engine, spark, tmp_path_factory):
    """45 days of two customers, without the training set, to be copied."""
    root = tmp_path_factory.mktemp("loaded")
    pipeline = Pipeline(engine, root, tables=PLACE, window_days=2, end=END)
    for n in range(1, 46):
        pipeline.land(n, [order(f"o{n}-{k}", n, customer=f"c{k}") for k in range(2)])
    pipeline.run(1, 45, (*ORDER_TABLES, "features", "labels_daily"))
    return root


@pytest.fixture(scope="module")
def thirty_days_root(engine, spark, tmp_path_factory):
    """All tables of thirty days, to be copied: one order a day, and on day 1 one of `once`."""
    root = tmp_path_factory.mktemp("thirty")
    pipeline = Pipeline(engine, root, tables=PLACE, window_days=2, end=END)
    for n in range(1, 31):
        lines = [order(f"o{n}", n, customer=f"c{n % 3}")]
        pipeline.land(n, lines if n > 1 else [*lines, order("once", n, customer="once")])
    # The sensor would ask for whatever is missing.
    pipeline.run(1, 30, (*EVERYTHING, *TABLES))
    return root


@pytest.fixture
def thirty_days(engine, thirty_days_root, tmp_path):
    copy_loaded(thirty_days_root, tmp_path)
    return Pipeline(engine, tmp_path, tables=PLACE, window_days=2, end=END)


@pytest.fixture
def loaded(engine, loaded_root, tmp_path):
    copy_loaded(loaded_root, tmp_path)
    return Pipeline(engine, tmp_path, tables=PLACE, window_days=2, end=END)


def draw_lines(seed: int, days: int) -> list[tuple[int, dict]]:
    """(arrival day number, line): orders of a few customers, some late, corrected or moved."""
    chance = random.Random(seed)
    lines = []
    for n in range(1, days + 1):
        for k in range(chance.choice([0, 1, 2, 3])):
            customer = chance.choice(["c1", "c2", "c3", "c4", None])
            name, arrival = f"o{n}-{k}", min(days, n + chance.choice([0, 0, 0, 1, 2, 5]))
            amount = f"{chance.randint(100, 9999) / 100:.2f}"
            lines.append(
                (arrival, order(name, n, amount, customer, ingested=f"{day(arrival)}T20:00:00Z"))
            )
            correction_day = arrival + chance.choice([1, 4])
            if chance.random() < 0.3 and correction_day <= days:
                moved = max(1, n - chance.choice([0, 0, 1]))
                line = order(
                    name, moved, "1.00", customer, ingested=f"{day(correction_day)}T21:00:00Z"
                )
                lines.append((correction_day, line))
    return lines


def land_lines(pipeline: Pipeline, lines: list[tuple[int, dict]], days: range) -> None:
    by_day = defaultdict(list)
    for arrival, line in lines:
        by_day[arrival].append(line)
    for n in days:
        pipeline.land(n, by_day[n])


def stale_days(pipeline: Pipeline, name: str, today: int) -> set[int]:
    """The day numbers of a table that are behind their inputs."""
    stale = find_stale_days(
        read_ledgers(pipeline.deployment), Policy.from_settings(pipeline.settings), day(today)
    )
    return {(d - START).days + 1 for d in stale.all_days(name)}


def label_states(pipeline: Pipeline) -> dict[int, str]:
    """The label state of each day that has labels, by day number."""
    rows = pipeline.rows("labels_daily")
    return {(row["dt"] - START).days + 1: row["label_state"] for row in rows}


# --- plain Python ---------------------------------------------------------------------------------


def table_rows(pipeline: Pipeline, name: str) -> list[tuple]:
    return sorted(tuple(row.values()) for row in pipeline.rows(name))


def model_tables(pipeline: Pipeline, days: int) -> tuple[list[tuple], list[tuple]]:
    """The features and the labels of what has landed."""
    model = run_model(
        pipeline.landing, start=START, end=day(days + 1), window_days=2, timezone="UTC"
    )
    features = memory_model.compute_features(model.raw, [day(n) for n in range(1, days + 1)])
    return features, memory_model.compute_labels(model.fact, day(days))


def check_agreement(pipeline: Pipeline, days: int) -> None:
    features, labels = model_tables(pipeline, days)
    assert table_rows(pipeline, "features") == features != []
    assert table_rows(pipeline, "labels_daily") == labels != []
    assert table_rows(pipeline, "training_daily") == memory_model.join_training_rows(
        features, labels
    )


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_plain_python_agrees_and_days_one_by_one_equal_a_range(engine, tmp_path, seed):
    days = 40
    lines = draw_lines(seed, days)
    whole = Pipeline(engine, tmp_path / "whole", tables=PLACE, window_days=2, end=END)
    land_lines(whole, lines, range(1, days + 1))
    whole.run(1, days, ALL)
    check_agreement(whole, days)
    assert len(whole.rows("training_daily")) > 5
    copy_loaded(whole.root, tmp_path / "parts")
    parts = Pipeline(engine, tmp_path / "parts", tables=PLACE, window_days=2, end=END)
    for name in TABLES:
        shutil.rmtree(parts.warehouse / name)
    for first, last in [(1, 9), (10, 10), (11, 40)]:
        parts.run(first, last, TABLES)
    for name in TABLES:
        assert table_rows(parts, name) == table_rows(whole, name)
    results = run_verify(whole.settings, engine, Window(day(30), day(41)), TABLES)
    assert {result.outcome for result in results} == {VerifyOutcome.MATCHES}


# --- labels ---------------------------------------------------------------------------------------


def test_a_new_day_makes_exactly_the_days_due_that_it_may_change(thirty_days):
    """And a label is final as soon as the thirtieth day after it is there, empty or not."""
    pipeline = thirty_days
    # No order comes on day 31: it is published all the same, with no row.
    pipeline.land(31, [])
    pipeline.land(32, [order("o32", 32, customer="c2")])
    assert {*label_states(pipeline).values()} == {"open"}
    assert pipeline.rows("training_daily") == []
    commits = pipeline.log("labels_daily").version()
    pipeline.run(1, 30, TABLES)
    assert pipeline.log("labels_daily").version() == commits

    for n, first in ((31, 1), (32, 2)):
        pipeline.run(n, n, EVERYTHING)
        assert stale_days(pipeline, "labels_daily", n + 1) == {*range(first, n + 1)}
        pipeline.now += DAY
        while pipeline.launch(pipeline.tick("touched_days").run_requests or []):
            pass
        assert stale_days(pipeline, "labels_daily", n + 1) == set()
        final = {m for m, state in label_states(pipeline).items() if state == "final"}
        assert final == {*range(1, first + 1)}
        assert {row["dt"] for row in pipeline.rows("training_daily")} == {day(m) for m in final}
    # Who came back is known before that, and stays open: or the early ones alone were learned from.
    rows = {row["dt"]: row for row in pipeline.rows("labels_daily")}
    assert (rows[day(10)]["churned_30d"], rows[day(10)]["label_state"]) == (False, "open")
    assert rows[day(32)]["churned_30d"]


def test_a_late_order_turns_a_label(thirty_days):
    """The day that it tells of has been published; its window is open."""
    pipeline = thirty_days
    for n in (31, 32):
        pipeline.land(n, [order(f"x{n}", n, customer="other")])
    pipeline.run(31, 31, ORDER_TABLES)
    pipeline.run(1, 31, TABLES)

    def read_label() -> tuple[bool, str]:
        (row,) = (r for r in pipeline.rows("labels_daily") if r["user_id"] == "once")
        return row["churned_30d"], row["label_state"]

    assert read_label() == (True, "final")
    (trained,) = (r for r in pipeline.rows("training_daily") if r["user_id"] == "once")
    assert trained["churned_30d"]
    late = order("late", 31, customer="once", ingested=f"{day(32)}T08:00:00Z")
    pipeline.land(32, [late], "late.jsonl")
    pipeline.run(31, 32, ORDER_TABLES)
    assert stale_days(pipeline, "labels_daily", 33) == {*range(1, 33)}
    pipeline.run(1, 32, TABLES)
    labels = {(r["dt"], r["user_id"]): r for r in pipeline.rows("labels_daily")}
    row = labels[day(1), "once"]
    assert (row["churned_30d"], row["label_state"]) == (False, "final")
    # What was known of the features is as it was, though the order now counts for staging.
    rows = [r for r in pipeline.rows("features") if r["event_date"] == day(31)]
    assert rows
    assert "once" not in {r["user_id"] for r in rows}


# --- what is caught -------------------------------------------------------------------------------


def test_rows_that_an_old_job_doubled_are_caught(loaded):
    pipeline = loaded
    pipeline.run(1, 34, ("training_daily",))
    before = {name: table_rows(pipeline, name) for name in TABLES}
    for name, column, doubled in (
        ("stg_orders", "event_date", day(3)),
        ("features", "event_date", day(4)),
    ):
        rows = pipeline.log(name).to_pyarrow_dataset().to_table(filter=pc.field(column) == doubled)
        write_deltalake(str(pipeline.warehouse / name), rows, mode="append")
    failed = pipeline.run(1, 34, ("fact_daily_orders",), fails=True)
    message = pipeline.failure(failed)
    assert f"stg_orders[{day(3)}] has 2 row(s) that repeat a (order_id)" in message
    assert "rebuild it first" in message
    failed = pipeline.run(1, 34, ("training_daily",), fails=True)
    message = pipeline.failure(failed)
    assert f"training_daily[{day(4)}]" in message
    assert f"features[{day(4)}] has 2 row(s) that repeat a (user_id)" in message
    assert "unique_key" in message  # the rows of the day itself
    pipeline.run(1, 34, ALL)
    assert {name: table_rows(pipeline, name) for name in TABLES} == before


@pytest.mark.parametrize(
    ("leaking", "rule"),
    [
        ("leaking_features", "features_through <= event_date"),
        ("leaking_labels_daily", "label_from > dt"),
    ],
)
def test_what_leaks_is_not_published(engine, tmp_path, leaking, rule):
    """A join that is off by a day, in what is known and in what came of it."""
    place = f"backfill_assets_tests.training_tables_leaking:{leaking.upper()}"
    pipeline = Pipeline(engine, tmp_path, tables=place, window_days=2, end=END)
    for n in range(1, 4):
        late = order(f"late{n}", n, ingested=f"{day(n + 1)}T08:00:00Z")
        pipeline.land(n + 1, [late, order(f"o{n + 1}", n + 1)])
    pipeline.run(2, 4, ORDER_TABLES)
    failed = pipeline.run(2, 4, (leaking,), fails=True)
    assert f"break the rule {rule}" in pipeline.failure(failed)
    assert day(2) not in read_ledgers(pipeline.deployment)[leaking].published_days


# --- features -------------------------------------------------------------------------------------


def test_a_score_is_added_to_the_last_days_of_history_by_a_backfill_of_one_table(engine, tmp_path):
    lines = draw_lines(3, 12)
    options = {"window_days": 2, "end": END}
    then = Pipeline(
        engine, tmp_path, tables="backfill_assets_tests.training_tables_before:TABLES", **options
    )
    land_lines(then, lines, range(1, 13))
    then.run(1, 12, (*LOG, "stg_orders", "features"))
    before = table_rows(then, "features")
    modelled_then, _ = model_tables(then, 12)
    assert before == [row[:6] for row in modelled_then]

    now = Pipeline(engine, tmp_path, tables=PLACE, **options)
    window = Window(day(7), day(13))
    plan = make_plan(now, str(window), tables=("features",))
    assert set(plan.tables) == {"features"}
    assert plan.tables["features"].why == {"other code": (str(window),)}
    untouched = now.log("stg_orders").version()
    now.run(7, 12, ("features",))
    rows = table_rows(now, "features")
    assert [row[:6] for row in rows] == before
    scores = {row[:2]: row[6] for row in modelled_then}
    assert [row[6] for row in rows] == [
        scores[row[:2]] if row[0] in window else None for row in before
    ]
    ledger = read_ledgers(now.deployment)["features"]
    assert {str(day(n)): ledger.latest[day(n)].version for n in (1, 6)} == {
        str(day(n)): ledger.records[0].version for n in (1, 6)
    }
    assert now.log("stg_orders").version() == untouched


def test_rows_are_merged_by_their_key_where_that_is_asked_for(pipeline):
    lines = [(n, order(f"o{n}", n, customer=f"c{n}")) for n in (1, 2, 3)]
    land_lines(pipeline, lines, range(1, 4))
    pipeline.run(1, 3, (*LOG, "features"))
    more = order("more", 3, "5.00", customer="c1", ingested=f"{day(3)}T20:00:00Z")
    pipeline.land(3, [more], "more.jsonl")
    pipeline.run(3, 3, LOG)
    pipeline.run(3, 3, ("features",), tags={"backfill_assets/write_mode": "merge"})
    assert table_rows(pipeline, "features") == model_tables(pipeline, 3)[0]
    assert read_ledgers(pipeline.deployment)["features"].latest[day(3)].is_merge


def test_drift_is_warned_of_and_shown_with_its_numbers(pipeline):
    def make_orders(n: int, amount: str) -> list[dict]:
        return [order(f"o{n}-{k}", n, amount, f"c{k}") for k in range(120)]

    for n in (1, 2):
        pipeline.land(n, make_orders(n, "10.00"))
    pipeline.land(3, [])
    pipeline.run(1, 3, (*LOG, "features"))

    def read_drift(n: int) -> tuple[bool, float]:
        records = pipeline.instance.fetch_materializations(
            dg.AssetRecordsFilter(dg.AssetKey("features"), asset_partitions=[str(day(n))]), limit=1
        ).records
        metadata = records[0].asset_materialization.metadata
        return "warnings" in metadata, metadata["drift of revenue_30d"].value

    assert read_drift(3) == (False, 0)  # as on the day before: nothing came
    pipeline.land(3, make_orders(3, "900.00"), "wrong.jsonl")
    pipeline.run(3, 3, LOG)
    result = pipeline.run(3, 3, ("features",))
    warned, index = read_drift(3)
    assert (warned, index > 1) == (True, True)
    (check,) = (e for e in result.get_asset_check_evaluations() if e.check_name == "drift")
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "120 rows against 120 of version" in check.description
    assert check.metadata["drift of revenue_30d"].value == index
    assert (
        read_ledgers(pipeline.deployment)["features"].latest[day(3)].days[day(3)].verdict == "warn"
    )


# --- training sets in chunks ----------------------------------------------------------------------


def run_stage(pipeline: Pipeline, *, fails: bool = False) -> str:
    """The daemon's part in the stage that is under way: its run, and then the gate."""
    while not (message := tick_planned_backfills(pipeline)).endswith("under way"):
        assert state_store.active_ids(pipeline.instance), message
    (id_,) = state_store.active_ids(pipeline.instance)
    backfill = pipeline.instance.get_backfill(state_store.load(pipeline.instance, id_).backfill_id)
    subsets = backfill.asset_backfill_data.target_subset.partitions_subsets_by_asset_key
    days = sorted({key for subset in subsets.values() for key in subset.get_partition_keys()})
    tags = {**backfill.tags, "dagster/backfill": backfill.backfill_id}
    first, last = map(date.fromisoformat, (days[0], days[-1]))
    pipeline.run(first, last, ("training_daily",), tags=tags, fails=fails)
    status = BulkActionStatus.COMPLETED_FAILED if fails else BulkActionStatus.COMPLETED_SUCCESS
    pipeline.instance.update_backfill(backfill.with_status(status))
    return backfill.backfill_id


def test_ninety_days_in_chunks_of_seven_with_a_gate_after_each():
    parameters = BackfillRequest(days="2024-01-01...2024-03-30", chunk_days=7)
    names = [name for name, _ in parameters.split_stages()]
    assert names == [f"{n:03d}" for n in range(1, 14)]


def test_a_training_set_is_rebuilt_in_chunks_and_stops_at_the_first_bad_one(loaded, monkeypatch):
    pipeline = loaded
    monkeypatch.setattr(stages, "missing_daemons", lambda _: [])
    # What a job of somebody's own appended to a day of the second chunk.
    rows = pipeline.log("features").to_pyarrow_dataset()
    rows = rows.to_table(filter=pc.field("event_date") == day(5))
    write_deltalake(str(pipeline.warehouse / "features"), rows, mode="append")
    options = {"tables": ("training_daily",), "chunk_days": 4, "reason": "new set"}
    plan = make_plan(pipeline, f"{day(1)}...{day(12)}", **options)
    graph = pipeline.repository.asset_graph
    backfill_jobs.launch_plan(pipeline.deployment, graph, pipeline.instance, pipeline.code, plan.id)
    assert run_stage(pipeline) == f"{plan.id}-001"
    assert run_stage(pipeline, fails=True) == f"{plan.id}-002"
    tick_planned_backfills(pipeline)
    assert "did not pass" in tick_planned_backfills(pipeline)
    assert not state_store.active_ids(pipeline.instance)
    ledger = read_ledgers(pipeline.deployment)["training_daily"]
    assert ledger.published_days == {*Window(day(1), day(9))} - {day(5)}
    made_of = ledger.latest[day(1)]
    assert set(made_of.inputs) == {"features", "labels_daily"}
    assert made_of.backfill_id == f"{plan.id}-001"


@pytest.mark.slow
def test_thirteen_stages_through_the_daemon_with_a_bad_one_in_the_middle(engine, spark, tmp_path):
    days, last, bad = 90, 120, 45
    pipeline = Pipeline(engine, tmp_path, tables=PLACE, window_days=2, end=END)
    deployment = ServedDeployment(tmp_path, pipeline.settings)
    try:
        deployment.wait_for_daemons()
        deployment.stop_rebuilding()
        land_lines(pipeline, draw_lines(5, last), range(1, last + 1))
        pipeline.run(1, last, (*EVERYTHING, "features", "labels_daily"))
        # What a job of somebody's own appended to a day of the seventh chunk.
        rows = pipeline.log("features").to_pyarrow_dataset()
        rows = rows.to_table(filter=pc.field("event_date") == day(bad))
        write_deltalake(str(pipeline.warehouse / "features"), rows, mode="append")
        arguments = (f"{day(1)}...{day(days)}", "--table", "training_daily", "--chunk-days", "7")
        result = deployment.run("backfill", *arguments)
        print(result.stdout)
        assert result.returncode == 1, result.stderr
        (plan,) = re.findall(r"^Plan (\w+)", result.stdout)
        remaining = [str(w) for w in Window(day(50), day(days + 1)).split_by_length(7)]
        assert f"{plan}-007 did not pass" in result.stdout
        assert f"; not launched: {', '.join(remaining)}\n" in result.stdout
        stopped_ledger = read_ledgers(pipeline.deployment)["training_daily"]
        assert stopped_ledger.published_days == {*Window(day(1), day(50))} - {day(bad)}
        # The day is built again, and the same backfill goes on with the stage that failed.
        pipeline.run(bad, bad, ("features",))
        result = deployment.run("backfill", plan)
        print(result.stdout)
        assert result.returncode == 0, result.stderr
    finally:
        deployment.stop()
    ledger = read_ledgers(pipeline.deployment)["training_daily"]
    assert {d: ledger.latest[d].backfill_id for d in ledger.published_days} == {
        day(n): f"{plan}-{(n + 6) // 7:03d}{'-2' * (n == bad)}" for n in range(1, days + 1)
    }
    features, labels = model_tables(pipeline, last)
    expected = memory_model.join_training_rows(features, labels)
    assert (
        table_rows(pipeline, "training_daily") == [r for r in expected if r[0] <= day(days)] != []
    )
