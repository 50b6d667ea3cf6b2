"""The assets in Dagster: what is published, what is recorded by day, what a failure leaves."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster import DagsterEventType
from dagster._core.definitions.asset_checks.asset_check_spec import AssetCheckKey
from dagster._core.storage.partition_status_cache import AssetPartitionStatus
from pyspark.sql import functions as F

from backfill_assets.assets import staging
from backfill_assets.sample.generator import generate
from backfill_assets.schemas import RAW, STAGED, TABLES
from backfill_assets_tests.model import run_model
from backfill_assets_tests.pipeline import END, EVERYTHING, LAYERS, START, Pipeline, day, order

ALL_DAYS = [str(day(n)) for n in range(1, 32)]


@pytest.fixture(scope="module")
def sample(engine, spark, tmp_path_factory) -> Pipeline:
    """A month of sample orders, loaded by one run."""
    pipeline = Pipeline(engine, tmp_path_factory.mktemp("sample"), land=False)
    generate(pipeline.landing, start=START, days=31, orders_per_day=40, seed=3)
    pipeline.run(1, 31, EVERYTHING)
    return pipeline


def plain(rows, columns) -> list[tuple]:
    return sorted(tuple(str(row[c]) for c in columns) for row in rows)


def test_every_row_is_what_the_independent_model_says(sample):
    model = run_model(sample.landing, start=START, end=END, window_days=7, timezone="UTC")
    for name, rows in (
        ("raw_orders", model.raw),
        ("stg_orders", model.staged),
        ("late_orders", model.late),
    ):
        assert plain(sample.rows(name), TABLES[name].columns) == plain(rows, TABLES[name].columns)
    rejected = ("arrival_date", "source_file")
    assert plain(sample.rows("raw_orders_rejected"), rejected) == plain(model.rejected, rejected)
    fact = sample.rows("fact_daily_orders")
    assert {(r["run_date"], r["customer_id"]): (r["orders"], r["revenue"]) for r in fact} == (
        model.fact
    )
    assert len(fact) == len(model.fact)


def test_one_commit_a_table(sample):
    for name in TABLES:
        said = [e for e in sample.log(name).history() if "userMetadata" in e]
        assert len(said) == 1, name


def events(pipeline: Pipeline, name: str) -> list[dg.AssetMaterialization]:
    records = pipeline.instance.fetch_materializations(dg.AssetKey(name), limit=1000).records
    return [record.asset_materialization for record in records]


@pytest.mark.parametrize("name", TABLES)
def test_each_day_has_its_own_materialization(sample, name):
    found = events(sample, name)
    assert sorted(e.partition for e in found) == ALL_DAYS
    rows = [str(r[TABLES[name].partition]) for r in sample.rows(name)]
    digests = sample.digests()[name]
    for event in found:
        expected = rows.count(event.partition)
        assert event.metadata["dagster/partition_row_count"].value == expected
        digest = digests.get(event.partition, "0-0-0")
        assert event.tags["dagster/data_version"] == event.metadata["digest"].value == digest


def evaluations(pipeline: Pipeline, name: str, check: str) -> dict[str, str]:
    """Status of a check by partition, as Dagster's storage has it."""
    key = AssetCheckKey(dg.AssetKey(name), check)
    history = pipeline.instance.event_log_storage.get_asset_check_execution_history(key, limit=500)
    return {record.partition: record.status.value for record in reversed(history)}


@pytest.mark.parametrize("name", TABLES)
def test_each_day_has_its_own_evaluation_of_each_check(sample, name):
    for check in TABLES[name].checks:
        statuses = evaluations(sample, name, check)
        assert sorted(statuses) == ALL_DAYS
        assert set(statuses.values()) <= {"SUCCEEDED", "FAILED"}, "a planned check stayed planned"


def test_late_lines_warn_and_do_not_block(sample):
    late = {str(r["log_date"]) for r in sample.rows("late_orders")}
    statuses = evaluations(sample, "late_orders", "late_lines")
    assert late
    assert {d for d, status in statuses.items() if status == "FAILED"} == late
    assert sample.materialized("late_orders") == set(ALL_DAYS)


def test_the_same_days_one_by_one_or_in_any_order_end_the_same(sample):
    """Run again: one day, a chunk, and days in disorder, on tables that are there already."""
    before = sample.digests()
    for first, last in ((31, 31), (5, 20)):
        sample.run(first, last, TABLES)
    assert sample.digests() == before


def partition_statuses(pipeline: Pipeline, name: str) -> dict[str, AssetPartitionStatus | None]:
    node = pipeline.repository.asset_graph.get(dg.AssetKey(name))
    return pipeline.instance.get_status_by_partition(
        dg.AssetKey(name), ALL_DAYS[:30], node.partitions_def
    )


CORRUPT = {
    "unique_key": lambda rows: rows.unionByName(rows.where(f"event_date = '{day(15)}'")),
    "nulls": lambda rows: rows.withColumn(
        "order_id", F.when(F.col("event_date") != F.lit(day(15)), F.col("order_id"))
    ),
    "conservation": lambda rows: rows.where(f"event_date != '{day(15)}' OR order_id != 'o-15'"),
}


def test_one_bad_day_of_thirty(pipeline, monkeypatch):
    """29 days published, one not; every day has its verdict; only the bad day is left to launch."""
    for n in range(1, 31):
        pipeline.land(n, [order(f"o-{n}", n), order(f"p-{n}", n)])
    pipeline.run(1, 30, ["raw_orders"])
    honest = staging.staged_orders
    corrupt = CORRUPT["unique_key"]
    monkeypatch.setattr(staging, "staged_orders", lambda rows: corrupt(honest(rows)))
    result = pipeline.run(1, 30, ["stg_orders", "fact_daily_orders"], fails=True)

    text = pipeline.failure(result)
    assert "stg_orders[2024-01-15]" in text
    assert "unique_key: 2 row(s) repeat" in text
    assert "29 other day(s)" in text
    bad = {str(day(15))}
    assert pipeline.materialized("stg_orders") == set(ALL_DAYS[:30]) - bad
    assert {str(r["event_date"]) for r in pipeline.rows("stg_orders")} == set(ALL_DAYS[:30]) - bad
    assert pipeline.materialized("fact_daily_orders") == set(), "built from a failed day"
    count = 0
    for check in STAGED.checks:
        statuses = evaluations(pipeline, "stg_orders", check)
        assert sorted(statuses) == ALL_DAYS[:30]
        failed = {d for d, status in statuses.items() if status == "FAILED"}
        assert failed == (bad if check in ("unique_key", "conservation") else set())
        count += len(statuses)
    assert count == 30 * len(STAGED.checks)
    statuses = partition_statuses(pipeline, "stg_orders")
    failed = {d for d, status in statuses.items() if status == AssetPartitionStatus.FAILED}
    assert failed == bad, "what a launch of the missing and failed partitions would target"
    assert all(statuses[d] == AssetPartitionStatus.MATERIALIZED for d in set(statuses) - bad)

    # Downstream alone: the day that its source never published is refused, the others are built.
    text = pipeline.failure(pipeline.run(14, 16, ["fact_daily_orders"], fails=True))
    assert "stg_orders[2024-01-15] has never been published" in text
    assert pipeline.materialized("fact_daily_orders") == {str(day(14)), str(day(16))}

    monkeypatch.undo()
    pipeline.run(15, 15, ["stg_orders", "fact_daily_orders"])
    assert pipeline.materialized("stg_orders") == set(ALL_DAYS[:30])
    assert len(pipeline.rows("stg_orders")) == 60


@pytest.mark.parametrize("check", ["nulls", "conservation"])
def test_a_bad_day_keeps_its_old_version(pipeline, monkeypatch, check):
    for n in (14, 15, 16):
        pipeline.land(n, [order(f"o-{n}", n), order(f"p-{n}", n)])
    pipeline.run(14, 16, ["raw_orders", "stg_orders"])
    before = pipeline.digests()["stg_orders"]
    pipeline.land(15, [order("q-15", 15)], "part-1.jsonl")
    honest, corrupt = staging.staged_orders, CORRUPT[check]
    monkeypatch.setattr(staging, "staged_orders", lambda rows: corrupt(honest(rows)))
    text = pipeline.failure(pipeline.run(14, 16, ["raw_orders", "stg_orders"], fails=True))
    assert f"stg_orders[2024-01-15]  {check}" in text
    assert pipeline.digests()["stg_orders"] == before


def test_a_frame_of_the_wrong_shape_is_refused_before_any_write(pipeline, monkeypatch):
    pipeline.land(1, [order("a", 1)])
    pipeline.run(1, 1, ["raw_orders", "stg_orders"])
    version = pipeline.log("stg_orders").version()
    monkeypatch.setattr(
        staging, "staged_orders", lambda rows: rows.select("event_date", "order_id")
    )
    result = pipeline.run(1, 1, ["stg_orders"], fails=True)
    step = next(e for e in result.all_events if e.is_step_failure)
    text = step.step_failure_data.error.cause.to_string()
    assert "SchemaError: stg_orders" in text
    assert "amount" in text
    assert pipeline.log("stg_orders").version() == version


def test_empty_days_are_published_as_empty_days(pipeline):
    pipeline.land(2, [order("a", 2)])
    pipeline.run(1, 3)
    for name in LAYERS:
        assert pipeline.materialized(name) == set(ALL_DAYS[:3]), name
    assert [str(r["event_date"]) for r in pipeline.rows("stg_orders")] == ["2024-01-02"]


def test_an_order_without_a_customer_stays_in_the_totals(pipeline):
    pipeline.land(1, [order("a", 1, "1.10", None), order("b", 1, "2.20", None)])
    pipeline.run(1)
    fact = pipeline.rows("fact_daily_orders")
    assert [(r["customer_id"], r["orders"], str(r["revenue"])) for r in fact] == [
        ("unknown", 2, "3.30")
    ]


def test_late_corrected_and_moved_orders(pipeline):
    """Inside the window they change their day; beyond it they are kept as late."""
    pipeline.land(1, [order("a", 1, "1.00"), order("b", 1, "2.00"), order("c", 1, "3.00")])
    late = "2024-01-08T12:00:00Z"
    pipeline.land(8, [order("a", 1, "1.50", ingested=late), order("b", 2, "2.00", ingested=late)])
    pipeline.land(9, [order("c", 1, "9.99", ingested="2024-01-09T12:00:00Z")])
    pipeline.run(1, 9)
    staged = {
        (str(r["event_date"]), r["order_id"], str(r["amount"])) for r in pipeline.rows("stg_orders")
    }
    assert staged == {
        ("2024-01-01", "a", "1.50"),
        ("2024-01-01", "c", "3.00"),
        ("2024-01-02", "b", "2.00"),
    }
    assert [(r["order_id"], str(r["amount"])) for r in pipeline.rows("late_orders")] == [
        ("c", "9.99")
    ]


def test_the_planned_checks_carry_their_partitions(pipeline):
    pipeline.land(1, [order("a", 1)])
    result = pipeline.run(1, 2, ["raw_orders"])
    logs = pipeline.instance.all_logs(
        result.run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION
    )
    said = [log.dagster_event.asset_check_evaluation_data for log in logs]
    assert sorted((e.check_name, e.partition) for e in said if e.partition) == sorted(
        (check, str(day(n))) for check in RAW.checks for n in (1, 2)
    )
