"""The session for few rows: which steps have it, what differs in it, and which files it writes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.assets.table_asset import _Part
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.landing.listing import list_landing
from backfill_assets.orders.tables import FACT, ORDER_LINES
from backfill_assets.settings import load_settings
from backfill_assets.spark import session as sessions
from backfill_assets.spark.configuration import small_data_config
from backfill_assets.spark.frames import (
    ADAPTIVE_EXECUTION,
    SHUFFLE_PARTITIONS,
    SMALL_DATA_CONF,
    SMALL_DATA_ROWS,
    gather_rows,
)
from backfill_assets.spark.session import Engine
from backfill_assets.tables.table import Table
from backfill_assets_guide.examples.customers.lifetime_value import customer_lifetime_value
from backfill_assets_tests.helpers.pipeline import START, Pipeline, day, order


def test_few_rows_have_a_session_of_their_own(engine: Engine, spark: SparkSession):
    session = engine.session_for_rows(SMALL_DATA_ROWS)
    assert session is not spark
    assert session is engine.session_for_rows(0)
    assert {name: session.conf.get(name) for name in SMALL_DATA_CONF} == SMALL_DATA_CONF
    assert engine.session_for_rows(SMALL_DATA_ROWS + 1) is spark
    assert spark.conf.get(ADAPTIVE_EXECUTION) == "true"
    assert engine.started_sessions == [spark, session]
    # All other settings are those of the deployment.
    for name in ("spark.sql.session.timeZone", "spark.sql.parquet.columnarReaderBatchSize"):
        assert session.conf.get(name) == spark.conf.get(name)


def test_spark_describes_no_stack_of_its_own_in_any_thread(engine: Engine, spark: SparkSession):
    """Of each RDD that it plans, and nobody reads it. The line in Python is told all the same."""

    def describe_stage(rows: int) -> tuple[str, str]:
        session = engine.session_for_rows(rows)
        session.range(1).collect()
        tracker = session.sparkContext.statusTracker()
        job = max(tracker.getJobIdsForGroup(None))
        stage = (
            session._jsc.sc().statusStore().lastStageAttempt(tracker.getJobInfo(job).stageIds[0])
        )
        return stage.details(), stage.name().partition(":")[0]

    with ThreadPoolExecutor(1) as pool:
        for rows in (1, SMALL_DATA_ROWS + 1):
            assert pool.submit(describe_stage, rows).result() == ("", f"collect at {__file__}")


@pytest.mark.parametrize("name", [SHUFFLE_PARTITIONS, ADAPTIVE_EXECUTION])
def test_a_deployment_that_sets_its_partitions_has_one_session(name: str, spark: SparkSession):
    settings = load_settings(spark_conf={name: "4"})
    assert small_data_config(settings) == {}
    assert small_data_config(load_settings(spark_conf={"spark.x": "1"})) == SMALL_DATA_CONF


def test_an_engine_without_these_settings_has_one_session(one_session_engine: Engine, spark):
    assert one_session_engine.session_for_rows(0) is spark


def days_in_many_partitions(session: SparkSession) -> DataFrame:
    column = F.date_add(F.lit(START), (F.col("id") % 3).cast("int"))
    return session.range(0, 60, 1, 6).withColumn("day", column)


def files_by_day(rows: DataFrame, folder: Path) -> list[int]:
    rows.write.partitionBy("day").parquet(str(folder))
    return [len([*path.glob("*.parquet")]) for path in sorted(folder.glob("day=*"))]


def test_a_day_is_in_one_file(engine: Engine, spark: SparkSession, tmp_path: Path):
    assert files_by_day(days_in_many_partitions(spark), tmp_path / "scattered") == [6, 6, 6]
    small_data_session = engine.session_for_rows(0)
    for name, session in (("large", spark), ("small", small_data_session)):
        rows = gather_rows(days_in_many_partitions(session), "day")
        assert files_by_day(rows, tmp_path / name) == [1, 1, 1]


def test_rows_of_files_are_estimated_from_their_sizes(tmp_path: Path):
    folder = tmp_path / "orders" / f"arrival_date={START}"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_bytes(b"x" * 5000)
    (folder / "b.jsonl.gz").write_bytes(b"x" * 5000)
    listing = list_landing(str(tmp_path), ORDER_LINES, Window(START, START + DAY))
    assert listing.estimate_rows() == 5000 // 50 + 5000 // 10


def test_each_step_has_the_session_of_its_rows(
    engine: Engine, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    row_counts: list[int] = []
    session_for_rows = Engine.session_for_rows

    def note_rows(engine: Engine, rows: int) -> SparkSession:
        row_counts.append(rows)
        return session_for_rows(engine, rows)

    monkeypatch.setattr(Engine, "session_for_rows", note_rows)
    pipeline = Pipeline(engine, tmp_path)
    pipeline.land(1, [order("o1", 1), order("o2", 1)])
    pipeline.land(2, [order("o3", 2)])
    pipeline.run(1, 2)
    listed = sum(path.stat().st_size // 50 for path in pipeline.landing.rglob("*.jsonl"))
    ledgers = read_ledgers(pipeline.deployment)
    logged, staged = (
        sum(ledgers[name].estimate_rows(day(n)) for n in (1, 2))
        for name in ("raw_orders", "stg_orders")
    )
    # Both days of staging read the second day of the log, which a step reads once.
    assert {*row_counts} == {listed, logged, staged}


def test_rows_of_a_day_are_estimated(pipeline: Pipeline):
    pipeline.land(1, [order("o1", 1), order("o2", 1)])
    pipeline.run(1, 2)
    log = read_ledgers(pipeline.deployment)["raw_orders"]
    assert log.estimate_rows(day(1)) == max(2, log.stored[day(1)].size // 50)
    assert log.estimate_rows(day(2)) == log.estimate_rows(day(9)) == 0
    # As of a version the files are not known, and the record is.
    assert log.as_of(log.version or 0).estimate_rows(day(1)) == 2


@pytest.mark.parametrize(("table", "rows"), [(FACT, 10), (customer_lifetime_value, 30)])
def test_state_counts_for_each_day(table: Table, rows: int):
    snapshot = SimpleNamespace(table=FACT, count_input_rows=lambda window, *, each_once: 10)
    plan: Any = SimpleNamespace(table=table, request=SimpleNamespace(window=Window(day(1), day(4))))
    inputs: Any = SimpleNamespace(tables={FACT.name: snapshot})
    assert _Part(plan, inputs).count_input_rows() == rows


def test_all_sessions_are_interrupted_when_the_process_ends(monkeypatch: pytest.MonkeyPatch):
    interrupted = []

    def make_session(name: str, set_retry_policies: Callable[[object], None]) -> SimpleNamespace:
        return SimpleNamespace(
            client=SimpleNamespace(set_retry_policies=set_retry_policies),
            interruptTag=lambda tag: interrupted.append(name),
        )

    def raise_error(policies: object) -> None:
        raise OSError("the engine is gone")

    both = [make_session("gone", raise_error), make_session("alive", lambda policies: None)]
    monkeypatch.setattr(sessions, "_interrupted_sessions", both)
    monkeypatch.setattr(sessions, "_process_ending", sessions.Event())
    sessions._interrupt_operations()
    assert interrupted == ["alive"]
