"""One life on every back end: local disks, Postgres, Spark Connect, object stores, a cluster.

The digests of a life are pinned, so each back end is compared with all others. Here the session's
own engine leads it on local disks, with Dagster's storage in Postgres; `test_connect` leads it on a
server, `test_object_storage` in each store. The long lives need a pytest session of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.launcher import DefaultRunLauncher
from dagster._core.run_coordinator import QueuedRunCoordinator

from backfill_assets.orders.tables import RAW
from backfill_assets.postgres import PooledEventLog
from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers import object_stores, s3_server
from backfill_assets_tests.helpers import pipeline as pipelines
from backfill_assets_tests.helpers.conformance_life import (
    begin_life,
    check_digests,
    conformance_life,
    continue_life,
    load_two_days,
)
from backfill_assets_tests.helpers.connect_server import connect_server
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.pipeline import LAYERS, day, run_undo
from backfill_assets_tests.helpers.spark_cluster import MASTER, run_cluster
from backfill_assets_tests.helpers.stock_dagster import StockPipeline, recorded_checks

#: Set in a nested session.
NESTED = "BACKFILL_TEST_NESTED_LIFE"
IN_STORE = object_stores.PLACE in os.environ
pytestmark = pytest.mark.timeout(1800)
outermost = pytest.mark.skipif(
    IN_STORE or "SPARK_REMOTE" in os.environ or MASTER in os.environ,
    reason="this session runs on such a back end",
)


@outermost
def test_a_life_with_dagsters_storage_in_postgres(engine, spark, database, tmp_path, monkeypatch):
    opened: list[dg.DagsterInstance] = []
    open_instance = pipelines.instance_in

    def record_instance(root: Path) -> dg.DagsterInstance:
        opened.append(open_instance(root))
        return opened[-1]

    monkeypatch.setattr(pipelines, "instance_in", record_instance)
    # What Dagster keeps of one table is of the same kinds as of all.
    pipeline = begin_life(engine, tmp_path, [RAW.name])
    (instance,) = opened
    assert isinstance(instance.event_log_storage, PooledEventLog)
    assert pipeline.materialized(RAW.name) == {str(day(n)) for n in (1, 2)}
    (run,) = {record.run_id for record in pipeline.io_manager.ledger(RAW).records}
    run_undo(pipeline, run)
    assert pipeline.rows(RAW.name) == []
    instance.dispose()


def run_life(base: Path, **environment: str) -> None:
    """A long life in a pytest session of its own.

    Args:
        base: the folder of the session's files.
        environment: names the back end.
    """
    words = ["-p", "no:cacheprovider", "-m", "", f"--basetemp={base}"]
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", *words, f"{__file__}::test_a_long_life"],
        env={**os.environ, **environment, NESTED: "1"},
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout[-6000:]
    assert "1 passed" in completed.stdout


@pytest.mark.slow
def test_a_long_life(engine, spark, tmp_path):
    """Of all layers; by itself on local disks, nested on each back end."""
    conformance_life(engine, tmp_path, LAYERS, long=True)


@outermost
@pytest.mark.slow
@pytest.mark.parametrize("store", s3_server.STORES)
def test_a_long_life_in_a_store(store, tmp_path):
    program, run_store = s3_server.STORES[store]
    if not program:
        pytest.skip(f"{object_stores.MISSING}; {s3_server.MISSING}")
    with run_store(tmp_path) as server:
        # S3's objects are files in a folder of the server.
        top = getattr(server, "bucket", tmp_path)
        place = object_stores.place(top, server.url)
        run_life(top / "inner", **server.environment, **place)
        assert server.has_written("inner")


@pytest.mark.skipif(not IN_STORE, reason="`test_object_storage` runs it on S3")
@pytest.mark.parametrize("local", ["landing", "warehouse"])
def test_a_life_of_which_a_part_is_on_local_disks(engine, spark, tmp_path, local):
    conformance_life(engine, tmp_path, **{local: str(tmp_path / local)})


@outermost
@pytest.mark.slow
def test_a_long_life_on_stock_dagster(engine, spark, tmp_path, monkeypatch):
    """Runs of `dagster dev`, a process for each step; rows, days and checks are those of ours.

    Then a planned backfill by the command, with Dagster's daemon and queue, and its undo.
    """
    prefix = {"key_prefix": "lake/gold"}
    ours = begin_life(engine, tmp_path / "ours", LAYERS, **prefix)
    with connect_server(tmp_path, SMALL) as url:
        monkeypatch.setenv("SPARK_REMOTE", url)  # for its processes
        stock = StockPipeline(engine, tmp_path / "theirs", **prefix)
        monkeypatch.delenv("SPARK_REMOTE")
        try:
            assert isinstance(stock.instance.run_launcher, DefaultRunLauncher)
            assert isinstance(stock.instance.run_coordinator, QueuedRunCoordinator)
            load_two_days(stock, LAYERS)
            checks = recorded_checks(stock)
            assert checks == recorded_checks(ours)
            assert {name for name, _, _ in checks} == {*LAYERS}
            for name in LAYERS:
                assert stock.materialized(name) == ours.materialized(name)
            continue_life(stock, LAYERS, long=True)

            days = f"{day(1)}...{day(2)}"
            planned = stock.served.run("backfill", days, "--yes", "--json")
            assert planned.returncode == 0, planned.stdout + planned.stderr
            check_digests(stock, "corrected", LAYERS)  # the late line is there still
            name = json.loads(planned.stdout)["backfill"]
            undone = stock.served.run("undo", name, "--reason", "a drill")
            assert undone.returncode == 0, undone.stdout + undone.stderr
            check_digests(stock, "loaded", LAYERS)
        finally:
            stock.stop()


@outermost
@pytest.mark.slow
def test_a_long_life_on_a_connect_server(tmp_path):
    with connect_server(tmp_path, SMALL) as url:
        run_life(tmp_path / "inner", SPARK_REMOTE=url)


@outermost
@pytest.mark.slow
def test_a_life_on_a_cluster(tmp_path):
    (tmp_path / "cluster").mkdir()
    with run_cluster(tmp_path / "cluster") as machines:
        # UDFs need a Python with their packages on the executors.
        variables = {MASTER: machines.master, "PYSPARK_PYTHON": sys.executable}
        run_life(tmp_path / "inner", **variables)
        assert "Registered app backfill_assets" in machines.read_log("master")
