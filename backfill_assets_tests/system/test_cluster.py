"""A Spark cluster: a standalone master and two workers, by master URL and by Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backfill_assets_tests.helpers.connect_server import connect_server
from backfill_assets_tests.helpers.paths import BIN, PROJECT
from backfill_assets_tests.helpers.pipeline import END, EVERYTHING, START, Pipeline, day, order
from backfill_assets_tests.helpers.postgres import option
from backfill_assets_tests.helpers.process_kills import wait_for
from backfill_assets_tests.helpers.spark_cluster import (
    MASTER,
    SMALL,
    Cluster,
    kill_process,
    run_cluster,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        "SPARK_REMOTE" in os.environ or MASTER in os.environ, reason="this is the run on a cluster"
    ),
]

#: The suite's core, run once more in a process that computes on the cluster.
CORE = ["test_pipeline.py", "test_cdnow.py"]
CHOICE = "digest or same_day_end or empty_day or thirty or moved"
#: Executors need no Python; their machines may have another time zone.
ELSEWHERE = {"TZ": "Asia/Tokyo"}
NO_PYTHON = {"PYSPARK_PYTHON": "/no/python/here"}
DAYS, ORDERS = 3, 3000


@pytest.fixture(scope="module")
def machines(tmp_path_factory) -> Iterator[Cluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster"), **ELSEWHERE) as spark_cluster:
        yield spark_cluster


def run_core_tests(tmp_path: Path, choice: str = CHOICE, **environment: str) -> None:
    """Run the suite's core in a process of its own, with Dagster's storage in Postgres."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-k", choice]
    tests = [str(Path(__file__).with_name(name)) for name in CORE]
    result = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'inner'}", "--durations=5", *option(), *tests],
        env={**os.environ, **NO_PYTHON, **environment},
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    assert " passed" in result.stdout


def test_the_core_of_the_suite_passes_by_master_url(machines, tmp_path):
    run_core_tests(tmp_path, f"cdnow or {CHOICE}", **{MASTER: machines.master})
    assert "Registered app backfill_assets" in machines.read_log("master")


def test_the_core_of_the_suite_passes_by_a_connect_server(machines, tmp_path):
    before = machines.read_log("master").count("Registered app backfill_assets")
    with connect_server(tmp_path, SMALL, spark_master=machines.master) as url:
        run_core_tests(tmp_path, SPARK_REMOTE=url)
    assert machines.read_log("master").count("Registered app backfill_assets") == before + 1


START_SESSION = """
from backfill_assets.spark.session import Engine
from backfill_assets.settings import load_settings
spark = Engine.from_settings(load_settings()).spark_session
"""
ZONES = """
from pyspark.sql import functions as F
zone = F.expr("reflect('java.lang.System', 'getProperty', 'user.timezone')")
environment = F.expr("reflect('java.lang.System', 'getenv', 'TZ')")
folder = F.expr("reflect('java.lang.System', 'getProperty', 'user.dir')")
for row in spark.range(0, 8, 1, 8).select(zone, environment, folder).distinct().collect():
    print(*row)
"""


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own: this one may have a session already."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_executors_elsewhere_keep_utc(machines):
    conf = {**SMALL, "spark.executor.extraJavaOptions": "-Xss4m"}
    result = run_python(
        START_SESSION + ZONES,
        BACKFILL_ASSETS_SPARK_MASTER=machines.master,
        BACKFILL_ASSETS_SPARK_CONF=json.dumps(conf),
    )
    assert result.returncode == 0, result.stderr[-4000:]
    rows = [line.split() for line in result.stdout.splitlines()]
    assert {(zone, environment) for zone, environment, _ in rows} == {("UTC", "UTC")}
    assert all(Path(folder).is_relative_to(machines.folder) for *_, folder in rows)


def launch_run(pipeline: Pipeline, master: str) -> subprocess.Popen:
    """A run in a process of its own, as the command line starts it, on a cluster."""
    environment = {
        **os.environ,
        **NO_PYTHON,
        "DAGSTER_HOME": str(pipeline.root / "home"),
        "BACKFILL_ASSETS_LANDING": str(pipeline.landing),
        "BACKFILL_ASSETS_WAREHOUSE": str(pipeline.warehouse),
        "BACKFILL_ASSETS_START": str(START),
        "BACKFILL_ASSETS_END": str(END),
        "BACKFILL_ASSETS_SPARK_MASTER": master,
        "BACKFILL_ASSETS_SPARK_CONF": json.dumps(SMALL),
    }
    Path(environment["DAGSTER_HOME"]).mkdir(exist_ok=True)
    days = ["--select", "*", "--partition-range", f"{day(1)}...{day(DAYS)}"]
    command = [BIN / "dagster", "asset", "materialize", *days, "-m", "backfill_assets.definitions"]
    with (pipeline.root / "run.log").open("wb") as log:
        return subprocess.Popen(
            [*map(str, command)], env=environment, stdout=log, stderr=log, start_new_session=True
        )


def writing_probe(pipeline: Pipeline, name: str) -> Callable[[], bool]:
    """Whether a task writes files of a table that are not committed yet."""
    return lambda: any((pipeline.warehouse / name).glob("writing-*/_temporary/0/_temporary/*"))


def test_an_executor_and_a_worker_are_killed_while_they_write(pipeline, tmp_path_factory):
    for n in range(1, DAYS + 1):
        lines = [order(f"o-{n}-{i}", n, f"{i}.{n:02d}", f"c{i % 50}") for i in range(ORDERS)]
        for part in range(4):
            pipeline.land(n, lines[part::4], f"part-{part}.jsonl")
    with run_cluster(tmp_path_factory.mktemp("killed")) as machines:
        run = launch_run(pipeline, machines.master)
        try:
            wait_for(lambda: writing_probe(pipeline, "raw_orders")() or run.poll() is not None)
            (first, *_) = machines.executors()
            kill_process(first)
            wait_for(lambda: writing_probe(pipeline, "stg_orders")() or run.poll() is not None)
            machines.workers[0].kill_command()
            assert run.wait() == 0, (pipeline.root / "run.log").read_text()[-4000:]
        finally:
            run.kill()
        master_log = machines.read_log("master")
    assert "Removing worker" in master_log
    # The one that was killed got a successor.
    assert master_log.count("Launching executor") >= 3
    clean = Pipeline(
        pipeline.io_manager.engine,
        pipeline.root / "clean",
        land=False,
        landing=str(pipeline.landing),
    )
    clean.run(1, DAYS, EVERYTHING)
    assert pipeline.digests() == clean.digests()
    assert not [*pipeline.warehouse.glob("*/writing-*")]


def test_a_server_without_delta_is_refused_by_name(tmp_path):
    with connect_server(tmp_path, {}, jars=tmp_path / "none") as url:
        result = run_python(START_SESSION, SPARK_REMOTE=url)
    assert result.returncode
    message = result.stderr.splitlines()[-1]
    assert "has no Delta Lake: it lacks Delta's jars (spark.jars.packages=" in message
    assert "token=***" in message
