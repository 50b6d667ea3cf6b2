"""Processes killed in the middle of a run: every day stays whole, and running again finishes it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from backfill_assets.orders.tables import FACT, RAW, STAGED, TABLES
from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers.paths import BIN
from backfill_assets_tests.helpers.pipeline import END, START, Pipeline, day, order

DAYS = 3
#: Runs after the first load. The last of them is let be.
LAUNCHES = 2
#: A table of files, one that reads a table, and an aggregate.
TABLES_OF_RUN = (RAW.name, STAGED.name, FACT.name)


def read_rows(warehouse: Path, name: str) -> list[dict]:
    try:
        return DeltaTable(str(warehouse / name)).to_pyarrow_table().to_pylist()
    except TableNotFoundError:
        return []


def launch_run(pipeline: Pipeline) -> subprocess.Popen:
    """A run in a process of its own, as the command line starts it."""
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(pipeline.root / "home"),
        "BACKFILL_ASSETS_LANDING": pipeline.settings.landing,
        "BACKFILL_ASSETS_WAREHOUSE": pipeline.settings.warehouse,
        "BACKFILL_ASSETS_START": str(START),
        "BACKFILL_ASSETS_END": str(END),
        "BACKFILL_ASSETS_SPARK_CONF": json.dumps(SMALL),
    }
    Path(environment["DAGSTER_HOME"]).mkdir(exist_ok=True)
    selection = " or ".join(f"key:{name}" for name in TABLES_OF_RUN)
    select = ["--select", selection, "--partition-range", f"{day(1)}...{day(DAYS)}"]
    command = [BIN / "dagster", "asset", "materialize", *select]
    return subprocess.Popen(
        [*map(str, command), "-m", "backfill_assets.definitions"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def amounts_by_day(warehouse: Path, name: str) -> list[tuple[str, set[str]]]:
    """By day, the distinct amounts per order that a reader sees."""
    by_day: dict[str, list[str]] = {}
    column = TABLES[name].partition
    for row in read_rows(warehouse, name):
        amount = row.get("amount") or row["revenue"] / row["orders"]
        by_day.setdefault(str(row[column]), []).append(f"{amount:.2f}")
    return [(d, set(day_amounts), len(day_amounts)) for d, day_amounts in sorted(by_day.items())]


@pytest.mark.skipif("SPARK_REMOTE" in os.environ, reason="kills engines of its own")
def test_killed_at_random_moments(pipeline):
    """Each launch finds a new version of every order: a day must be all of one version."""
    moments = random.Random(7)
    price = {}
    for n in range(LAUNCHES + 1):
        price[n] = f"{n + 1}.00"
        for d in range(1, DAYS + 1):
            when = f"{day(d)}T{10 + n}:30:00Z"
            lines = [order(f"o-{d}-{i}", d, price[n], f"c{i}", ingested=when) for i in range(20)]
            pipeline.land(d, lines, f"part-{n}.jsonl")
        if n in (0, LAUNCHES):
            pipeline.run(1, DAYS, TABLES_OF_RUN)
            continue
        before = pipeline.log(RAW.name).version()
        run = launch_run(pipeline)
        # Kill somewhere between the first commit and the end of the run.
        deadline = time.monotonic() + 240
        while pipeline.log(RAW.name).version() == before and run.poll() is None:
            assert time.monotonic() < deadline, "the run never committed"
            time.sleep(0.05)
        time.sleep(moments.uniform(0, 8))
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        for name in (STAGED.name, FACT.name):
            for d, values, count in amounts_by_day(pipeline.warehouse, name):
                assert len(values) == 1, (name, d, values)
                assert count == 20, (name, d, count)
    for name in (STAGED.name, FACT.name):
        assert amounts_by_day(pipeline.warehouse, name) == [
            (str(day(n)), {price[LAUNCHES]}, 20) for n in range(1, DAYS + 1)
        ]
    clean = Pipeline(
        pipeline.io_manager.engine,
        pipeline.root / "clean",
        land=False,
        landing=pipeline.settings.landing,
    )
    clean.run(1, DAYS, TABLES_OF_RUN)
    assert pipeline.digests() == clean.digests()
