"""Features, labels and training sets: what was known then, and what came of it."""

from __future__ import annotations

import random
import re
import shutil
from collections import defaultdict
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Self

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
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.orders.tables import ORDERS
from backfill_assets.spark.session import Engine
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets_guide.examples.customers.features import features
from backfill_assets_tests.customers_tables import LABEL_DAYS, labels_daily, training_daily
from backfill_assets_tests.helpers import memory_model
from backfill_assets_tests.helpers.deployment import ServedDeployment
from backfill_assets_tests.helpers.invented_logs import snapshot_ledgers
from backfill_assets_tests.helpers.orders_model import run_model
from backfill_assets_tests.helpers.pipeline import (
    START,
    Pipeline,
    copy_loaded,
    day,
    make_plan,
    order,
    run_verify,
    tick_planned_backfills,
)

#: Labels that are final after few days, see `customers_tables`.
SHORT = [*ORDERS, features, labels_daily, training_daily]
PLACE = f"{__name__}:SHORT"
#: As the examples have them: labels that are final after thirty days.
THIRTY = "backfill_assets_tests.training_tables:TABLES"
BEFORE = "backfill_assets_tests.training_tables_before:TABLES"
TABLES = ("features", "labels_daily", "training_daily")
#: What the tables of these tests are made from, nearest last; other tables of orders are not.
LOG = ("raw_orders",)
ORDER_TABLES = (*LOG, "stg_orders", "fact_daily_orders")
ALL = (*ORDER_TABLES, *TABLES)
END = date(2024, 6, 1)


def make_pipeline(engine: Engine, root: Path, **more: Any) -> Pipeline:
    """That a day has alone what it has in a range is verified once, not by each run."""
    options = {"tables": PLACE, "window_days": 2, "end": END, "check_independence": False, **more}
    return Pipeline(engine, root, **options)


@dataclass(frozen=True)
class Stage:
    """The tables at a moment.

    Attributes:
        behind: the day numbers of the labels that were behind before they were made.
        labels: their rows, by day and customer.
        training: the rows of the training set, by day and customer.
    """

    behind: set[int]
    labels: dict[tuple[date, str], dict]
    training: dict[tuple[date, str], dict]

    @classmethod
    def read(cls, pipeline: Pipeline, behind: set[int]) -> Self:
        labels, training = (
            {(row["dt"], row["user_id"]): row for row in pipeline.rows(name)}
            for name in ("labels_daily", "training_daily")
        )
        return cls(behind, labels, training)

    def days_by_state(self) -> dict[str, set[int]]:
        """The day numbers of labels, by label state."""
        day_numbers = defaultdict(set)
        for (d, _), row in self.labels.items():
            day_numbers[row["label_state"]].add((d - START).days + 1)
        return dict(day_numbers)


@dataclass(frozen=True)
class Life:
    """Nine days of all tables, to be copied, and how they came to be.

    Attributes:
        pipeline: as it ended. Orders of a few customers came on all days but one.
        loaded: with the first 8 days, which one run loaded and built; on the last, no order came.
        turned: with day 9, on which an order of day 8 came: of one who had ordered on day 5 only.
    """

    engine: Engine
    pipeline: Pipeline
    loaded: Stage
    turned: Stage

    def copy(self, root: Path, **more: Any) -> Pipeline:
        copy_loaded(self.pipeline.root, root)
        return make_pipeline(self.engine, root, **more)


@pytest.fixture(scope="module")
def life(engine, spark, tmp_path_factory) -> Life:
    pipeline = make_pipeline(engine, tmp_path_factory.mktemp("life"))
    # Of this seed, lines are late, too late, corrected and moved, and have no customer.
    lines = draw_lines(47, 7)
    lines += [(n, order(f"d{n}", n, customer=f"c{n % 3}")) for n in range(1, 8)]
    lines += [
        (3, order("late2", 2, ingested=f"{day(3)}T08:00:00Z")),
        (5, order("once", 5, customer="once")),
        *((n, order(f"soon{n}", n, customer="soon")) for n in (6, 7)),
    ]
    land_lines(pipeline, lines, range(1, 9))
    pipeline.run(1, 8, ALL)
    loaded = Stage.read(pipeline, set())
    late = order("late", 8, customer="once", ingested=f"{day(9)}T08:00:00Z")
    pipeline.land(9, [late, order("o9", 9, customer="c2")])
    pipeline.run(8, 9, ORDER_TABLES)
    behind = stale_days(pipeline, "labels_daily", 10)
    pipeline.run(5, 9, TABLES)
    return Life(engine, pipeline, loaded, Stage.read(pipeline, behind))


@pytest.fixture
def pipeline(life: Life, tmp_path: Path) -> Pipeline:
    """The nine days of all tables."""
    return life.copy(tmp_path)


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
        snapshot_ledgers(
            read_ledgers(pipeline.deployment), Policy.from_settings(pipeline.settings), day(today)
        )
    )
    return {(d - START).days + 1 for d in stale.all_days(name)}


def double_day(pipeline: Pipeline, name: str, doubled: date) -> int:
    """What a job of somebody's own appended to a day; the number of its rows."""
    rows = (
        pipeline.log(name).to_pyarrow_dataset().to_table(filter=pc.field("event_date") == doubled)
    )
    write_deltalake(str(pipeline.warehouse / name), rows, mode="append")
    return rows.num_rows


# --- plain Python ---------------------------------------------------------------------------------


def table_rows(pipeline: Pipeline, name: str) -> list[tuple]:
    return sorted(tuple(row.values()) for row in pipeline.rows(name))


def model_tables(
    pipeline: Pipeline, days: int, following: int = LABEL_DAYS
) -> tuple[list[tuple], list[tuple]]:
    """The features and the labels of what has landed."""
    model = run_model(
        pipeline.landing, start=START, end=day(days + 1), window_days=2, timezone="UTC"
    )
    known = memory_model.compute_features(model.raw, [day(n) for n in range(1, days + 1)])
    return known, memory_model.compute_labels(model.fact, day(days), following=following)


def check_agreement(pipeline: Pipeline, days: int) -> None:
    known, labels = model_tables(pipeline, days)
    assert table_rows(pipeline, "features") == known != []
    assert table_rows(pipeline, "labels_daily") == labels != []
    assert table_rows(pipeline, "training_daily") == memory_model.join_training_rows(known, labels)


def test_plain_python_agrees_with_a_range_and_the_days_after_it(life: Life, engine) -> None:
    check_agreement(life.pipeline, 9)
    assert len(life.turned.training) > 5
    results = run_verify(life.pipeline.settings, engine, Window(day(6), day(7)), TABLES)
    assert {(result.table, result.day) for result in results} == {(name, day(6)) for name in TABLES}
    assert {result.outcome for result in results} == {VerifyOutcome.MATCHES}


# --- labels ---------------------------------------------------------------------------------------


def test_a_label_is_final_as_soon_as_the_last_day_after_it_is_there(life: Life) -> None:
    """Empty or not."""
    assert life.loaded.days_by_state() == {"final": {*range(1, 6)}, "open": {6, 7}}
    assert life.turned.days_by_state() == {"final": {*range(1, 7)}, "open": {7, 8, 9}}
    for stage, final in ((life.loaded, 5), (life.turned, 6)):
        assert {d for d, _ in stage.training} == {day(n) for n in range(1, final + 1)}
    # Who came back is known before that, and stays open: or the early ones alone were learned from.
    row = life.loaded.labels[day(6), "soon"]
    assert (row["churned_30d"], row["label_state"]) == (False, "open")
    assert life.turned.labels[day(9), "c2"]["churned_30d"]


def test_a_late_order_turns_a_label(life: Life) -> None:
    """The day that it tells of has been published; its window is open."""
    once = (day(5), "once")

    def read_label(stage: Stage) -> tuple[bool, str]:
        return stage.labels[once]["churned_30d"], stage.labels[once]["label_state"]

    assert read_label(life.loaded) == (True, "final")
    assert life.loaded.training[once]["churned_30d"]
    assert life.turned.behind == {*range(5, 10)}
    assert read_label(life.turned) == (False, "final")
    assert not life.turned.training[once]["churned_30d"]
    # What was known of the features is as it was, though the order now counts for staging.
    rows = life.pipeline.rows("features")
    known = {r["event_date"]: r["orders_30d"] for r in rows if r["user_id"] == "once"}
    assert known == {**dict.fromkeys(map(day, (5, 6, 7, 8)), 1), day(9): 2}


# --- what is caught -------------------------------------------------------------------------------


def test_rows_that_an_old_job_doubled_are_caught(pipeline: Pipeline) -> None:
    before = {name: table_rows(pipeline, name) for name in TABLES}
    known = double_day(pipeline, "features", day(4))
    message = pipeline.failure(pipeline.run(3, 4, ("training_daily",), fails=True))
    assert f"training_daily[{day(4)}]" in message
    assert f"features[{day(4)}] has {known} row(s) that repeat a (user_id)" in message
    assert "rebuild it first" in message
    assert "unique_key" in message  # the rows of the day itself
    assert f"training_daily[{day(3)}]" not in message
    pipeline.run(3, 4, ("features", "training_daily"))
    assert {name: table_rows(pipeline, name) for name in TABLES} == before


@pytest.mark.parametrize(
    ("leaking", "rule"),
    [
        ("leaking_features", "features_through <= event_date"),
        pytest.param("leaking_labels_daily", "label_from > dt", marks=pytest.mark.slow),
    ],
)
def test_what_leaks_is_not_published(life: Life, tmp_path: Path, leaking: str, rule: str) -> None:
    """A join that is off by a day, in what is known and in what came of it."""
    place = f"backfill_assets_tests.training_tables_leaking:{leaking.upper()}"
    pipeline = life.copy(tmp_path, tables=place)
    failed = pipeline.run(2, 3, (leaking,), fails=True)
    assert f"break the rule {rule}" in pipeline.failure(failed)
    assert day(2) not in read_ledgers(pipeline.deployment)[leaking].published_days


# --- features -------------------------------------------------------------------------------------


def test_a_score_is_added_to_the_last_days_of_history_by_a_backfill_of_one_table(
    life: Life, tmp_path: Path
) -> None:
    then = life.copy(tmp_path, tables=BEFORE)
    shutil.rmtree(then.warehouse / "features")
    then.run(1, 9, ("features",))
    before = table_rows(then, "features")
    modelled_then, _ = model_tables(then, 9)
    assert before == [row[:6] for row in modelled_then]

    now = make_pipeline(life.engine, tmp_path)
    window = Window(day(6), day(10))
    plan = make_plan(now, str(window), tables=("features",))
    assert set(plan.tables) == {"features"}
    ((reason, planned_days),) = plan.tables["features"].why.items()
    assert reason.startswith("other code: column ")
    assert planned_days == (str(window),)
    untouched = now.log("stg_orders").version()
    now.run(6, 9, ("features",))
    rows = table_rows(now, "features")
    assert [row[:6] for row in rows] == before
    scores = {row[:2]: row[6] for row in modelled_then}
    assert [row[6] for row in rows] == [
        scores[row[:2]] if row[0] in window else None for row in before
    ]
    ledger = read_ledgers(now.deployment)["features"]
    assert {str(day(n)): ledger.latest[day(n)].version for n in (1, 5)} == {
        str(day(n)): ledger.records[0].version for n in (1, 5)
    }
    assert now.log("stg_orders").version() == untouched


@pytest.mark.slow
def test_rows_are_merged_by_their_key_where_that_is_asked_for(pipeline: Pipeline) -> None:
    more = order("more", 9, "5.00", customer="c1", ingested=f"{day(9)}T20:00:00Z")
    pipeline.land(9, [more], "more.jsonl")
    pipeline.run(9, 9, LOG)
    before = table_rows(pipeline, "features")
    pipeline.run(9, 9, ("features",), tags={"backfill_assets/write_mode": "merge"})
    assert table_rows(pipeline, "features") == model_tables(pipeline, 9)[0] != before
    assert read_ledgers(pipeline.deployment)["features"].latest[day(9)].is_merge


def test_drift_is_warned_of_and_shown_with_its_numbers(engine, spark, tmp_path: Path) -> None:
    pipeline = make_pipeline(engine, tmp_path)

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
        return "warnings" in metadata, metadata["drift_of_revenue_30d"].value

    assert read_drift(3) == (False, 0)  # as on the day before: nothing came
    pipeline.land(3, make_orders(3, "900.00"), "wrong.jsonl")
    result = pipeline.run(3, 3, (*LOG, "features"))
    warned, index = read_drift(3)
    assert (warned, index > 1) == (True, True)
    (check,) = (e for e in result.get_asset_check_evaluations() if e.check_name == "drift")
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "120 rows against 120 of version" in check.description
    assert check.metadata["drift_of_revenue_30d"].value == index
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


@pytest.mark.slow
def test_a_training_set_is_rebuilt_in_chunks_and_stops_at_the_first_bad_one(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "missing_daemons", lambda _: [])
    shutil.rmtree(pipeline.warehouse / "training_daily")
    # A day of the second chunk.
    double_day(pipeline, "features", day(3))
    options = {"tables": ("training_daily",), "chunk_days": 2, "reason": "new set"}
    plan = make_plan(pipeline, f"{day(1)}...{day(6)}", **options)
    graph = pipeline.repository.asset_graph
    backfill_jobs.launch_plan(pipeline.deployment, graph, pipeline.instance, pipeline.code, plan.id)
    assert run_stage(pipeline) == f"{plan.id}-001"
    assert run_stage(pipeline, fails=True) == f"{plan.id}-002"
    tick_planned_backfills(pipeline)
    assert "did not pass" in tick_planned_backfills(pipeline)
    assert not state_store.active_ids(pipeline.instance)
    ledger = read_ledgers(pipeline.deployment)["training_daily"]
    assert ledger.published_days == {day(1), day(2), day(4)}
    made_of = ledger.latest[day(1)]
    assert set(made_of.inputs) == {"features", "labels_daily"}
    assert made_of.backfill_id == f"{plan.id}-001"


@pytest.mark.slow
def test_stages_through_the_daemon_with_a_bad_one_in_the_middle(engine, spark, tmp_path):
    days, last, bad = 28, 58, 10
    pipeline = make_pipeline(engine, tmp_path, tables=THIRTY)
    deployment = ServedDeployment(tmp_path, pipeline.settings)
    try:
        deployment.wait_for_daemons()
        deployment.stop_rebuilding()
        land_lines(pipeline, draw_lines(5, last), range(1, last + 1))
        pipeline.run(1, last, (*ORDER_TABLES, "features", "labels_daily"))
        # A day of the second chunk.
        double_day(pipeline, "features", day(bad))
        arguments = (f"{day(1)}...{day(days)}", "--table", "training_daily", "--chunk-days", "7")
        result = deployment.run("backfill", *arguments)
        print(result.stdout)
        assert result.returncode == 1, result.stderr
        (plan,) = re.findall(r"^Plan (\w+)", result.stdout)
        remaining = [str(w) for w in Window(day(15), day(days + 1)).split_by_length(7)]
        assert f"{plan}-002 did not pass" in result.stdout
        assert f"; not launched: {', '.join(remaining)}\n" in result.stdout
        stopped_ledger = read_ledgers(pipeline.deployment)["training_daily"]
        assert stopped_ledger.published_days == {*Window(day(1), day(15))} - {day(bad)}
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
    known, labels = model_tables(pipeline, last, following=30)
    expected = memory_model.join_training_rows(known, labels)
    assert (
        table_rows(pipeline, "training_daily") == [r for r in expected if r[0] <= day(days)] != []
    )
