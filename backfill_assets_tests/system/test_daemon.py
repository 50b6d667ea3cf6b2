"""The real daemon and code server, killed again and again: nothing is lost, nothing differs."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backfill_assets.calendar.late_data import Policy
from backfill_assets.landing.listing import list_landing
from backfill_assets.orders.tables import ORDER_LINES, RAW, TABLES
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets.staleness.unloaded import find_unloaded_days
from backfill_assets_tests import conftest
from backfill_assets_tests.helpers.invented_logs import snapshot_ledgers
from backfill_assets_tests.helpers.paths import BIN, dagster_yaml
from backfill_assets_tests.helpers.pipeline import EVERYTHING, Pipeline, day, order
from backfill_assets_tests.helpers.process_kills import find_processes, kill_kinds

DAYS = 4
KILLS = 6


@contextmanager
def run_daemon(pipeline: Pipeline, home: Path) -> Iterator[subprocess.Popen]:
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "BACKFILL_ASSETS_LANDING": str(pipeline.landing),
        "BACKFILL_ASSETS_WAREHOUSE": str(pipeline.warehouse),
        "BACKFILL_ASSETS_START": str(day(1)),
        "BACKFILL_ASSETS_END": str(day(DAYS + 1)),
        "BACKFILL_ASSETS_SPARK_CONF": json.dumps({**conftest.SMALL, "spark.master": "local[2]"}),
    }
    module = ["-m", "backfill_assets.definitions"]
    subprocess.run(
        [str(BIN / "dagster"), "sensor", "start", *module, "landed_files"],
        env=environment,
        cwd=home,
        check=True,
        capture_output=True,
    )
    process = subprocess.Popen(
        [str(BIN / "dagster-daemon"), "run", *module],
        env=environment,
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        # Run workers live on, as they do when a deployment replaces daemon and code server.
        kill_kinds(home, "dagster-daemon", "api grpc")
        process.wait()


def is_done(pipeline: Pipeline) -> bool:
    policy = Policy.from_settings(pipeline.settings)
    today = day(DAYS + 1)
    ledgers = {name: pipeline.io_manager.ledger(table) for name, table in TABLES.items()}
    landed = list_landing(str(pipeline.landing), ORDER_LINES)
    if find_unloaded_days(ledgers[RAW.name], landed, policy, today).days_to_load:
        return False
    if any(len(ledger.published_days) < DAYS for ledger in ledgers.values()):
        return False
    return not find_stale_days(snapshot_ledgers(ledgers, policy, today)).open


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_during_ticks(engine, spark, tmp_path):
    pipeline = Pipeline(engine, tmp_path, end=day(DAYS + 1))
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(dagster_yaml(), home / "dagster.yaml")
    for n in range(1, DAYS + 1):
        pipeline.land(n, [order(f"o-{n}-{i}", n) for i in range(5)])
    moments = random.Random(3)
    try:
        for n in range(KILLS):
            with run_daemon(pipeline, home):
                # A tick comes within seconds of the start; the kill before, in or after it.
                time.sleep(moments.uniform(4, 25))
            if n == 1:  # late lines, and a file in an older folder, while things are killed
                stamp = f"{day(DAYS)}T23:00:00Z"
                pipeline.land(DAYS, [order("o-2-0", 3, "7.00", ingested=stamp)], "late.jsonl")
                pipeline.land(2, [order("added", 2, "9.00")], "added.jsonl")
        deadline = time.monotonic() + 420
        with run_daemon(pipeline, home):
            while not is_done(pipeline):
                assert time.monotonic() < deadline, "the daemon did not finish the work"
                time.sleep(1)
            while any("execute_run" in command for command in find_processes(home).values()):
                time.sleep(1)
    finally:
        kill_kinds(home)
    clean = Pipeline(
        engine,
        pipeline.root / "clean",
        land=False,
        landing=str(pipeline.landing),
        end=day(DAYS + 1),
    )
    clean.run(1, DAYS, EVERYTHING)
    assert pipeline.digests() == clean.digests()
