"""The same code on Spark Connect: servers of the tests' own, on loopback, stopped at the end.

What CI looks at happens on one server, which `test_engine` has as well, in the life of `Outputs`.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.reconstruct import ReconstructableRepository

from backfill_assets.orders.tables import FACT, RAW
from backfill_assets.settings import load_settings
from backfill_assets.spark.session import Engine, session_url
from backfill_assets.spark.stores import S3
from backfill_assets_guide.examples.host_project.definitions import LAKE
from backfill_assets_guide.examples.web_events import VISITS, active_users_7d
from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers.command_line import JAN, publish_facts
from backfill_assets_tests.helpers.conformance_life import load_two_days
from backfill_assets_tests.helpers.connect_server import SESSION_ID, connect_server, run_attached
from backfill_assets_tests.helpers.object_stores import BUCKET
from backfill_assets_tests.helpers.real_engine import RealEngine
from backfill_assets_tests.helpers.stock_dagster import StockPipeline, recorded_checks

#: The suite's core, run once more in a process that has a Connect session.
CORE = [
    *("test_audit.py", "test_io_manager.py", "test_migrations.py", "test_skew.py"),
    *("test_task_times.py", "system/test_pipeline.py"),
]
CHOICE = (
    "digest or refusals or constraints or create or same_day_end or empty_day or pinned or "
    "thirty or moved or model or merge or skewed_rows or task_times_of or task_times_that or "
    "(readers_see and renamed)"
)


#: Which Python computes a UDF that finds pandas and pyarrow.
UDF_PYTHON = """
import sys
from pyspark.sql import functions as F
frame = spark.range(1).select(F.udf(lambda n: sys.executable, "string")("id").alias("python"))
print(frame.select(F.pandas_udf(lambda names: names, "string")("python")).first()[0])
"""
CATALOG = "spark_catalog.shop"
REGISTER = """
from backfill_assets.delta.catalog import register_table
from backfill_assets.orders.tables import FACT, RAW
print(register_table(lambda: spark, "{catalog}", FACT, "{url}", "run") or "registered")
print(spark.table("shop.fact_daily_orders").count())
"""
LIVE = """
from pathlib import Path
from backfill_assets_tests.helpers.conformance_life import STORED, begin_life
from backfill_assets_tests.udfs import check_udfs
begin_life(Engine.from_settings(load_settings()), Path("{folder}"), STORED)
check_udfs(spark, "{folder}/numbers")
print("lived")
"""
#: Last in its process: the session that is refused would stay this one's.
REFUSED = f"""
from backfill_assets.spark.jars import EngineError
try:
    Engine.from_settings(load_settings(warehouse="s3a://{BUCKET}/w")).spark_session
except EngineError as error:
    print(error)
"""


@dataclass(frozen=True)
class Outputs:
    """What a client of a server prints; both are started in the environment of somebody else.

    Attributes:
        url: the server's.
        words: of the client: its session, the Python of a UDF, and what it says of its life.
        refusal: why it is refused where commits would be lost.
    """

    url: str
    words: list[str]
    refusal: str


@pytest.fixture(scope="module")
def outputs(
    connect_engine: RealEngine, hostile_variables: dict[str, str], tmp_path_factory
) -> Outputs:
    """The life of the client: one process has all that needs one."""
    life = LIVE.format(folder=tmp_path_factory.mktemp("connect") / "life")
    code = SESSION_ID + UDF_PYTHON + life + REFUSED
    words = run_attached(connect_engine.url, code, **hostile_variables)
    assert "lived" in words
    return Outputs(connect_engine.url, words, " ".join(words[words.index("lived") + 1 :]))


on_connect = pytest.mark.skipif("SPARK_REMOTE" in os.environ, reason="this is the run on Connect")


@on_connect
def test_a_life_on_a_connect_server(outputs):
    assert "lived" in outputs.words


@on_connect
def test_processes_with_the_same_settings_share_a_session(outputs, monkeypatch):
    """This process would ask for the session that the client had."""
    monkeypatch.setenv("SPARK_REMOTE", outputs.url)
    config = Engine.from_settings(load_settings()).spark_config
    assert f"session_id={outputs.words[0]}" in session_url(config, 0)
    for other in (session_url({**config, "spark.sql.own": "1"}, 0), session_url(config, 1)):
        assert outputs.words[0] not in other


@on_connect
def test_python_workers_of_a_server_of_ours(outputs):
    assert outputs.words[1] == sys.executable


HOST_PROJECT = "backfill_assets_guide.examples.host_project.definitions"


#: Its steps are started as Kubernetes starts them.
STEP_PROCESSES = "backfill_assets_tests.step_processes"
FORKS = {"forkserver": {"preload_modules": [HOST_PROJECT, "pyspark.sql.connect.session"]}}


def run_steps_in_processes(
    instance: dg.DagsterInstance,
    keys: Sequence[dg.AssetKey],
    module: str,
    executor: Mapping[str, Any],
) -> dict[str, str]:
    """Materialize a day of the project's assets, and return the failures by step."""
    repository = ReconstructableRepository.for_module(module, "defs")
    result = dg.execute_job(
        repository.get_reconstructable_job("__ASSET_JOB"),
        instance=instance,
        asset_selection=keys,
        tags={"dagster/partition": "2024-01-01"},
        run_config={"execution": {"config": executor}},
    )
    failures: dict[str, str] = {}
    for event in result.filter_events(lambda event: event.is_step_failure):
        data = event.step_failure_data
        reason = data.user_failure_data and data.user_failure_data.description
        failures[event.step_key] = reason or data.error_display_string
    assert result.success is not bool(failures)
    return failures


@on_connect
def test_each_step_of_a_projects_run_may_be_a_process(connect_engine, tmp_path, monkeypatch):
    """On Dagster as it comes: SQLite, its executor, an IO manager of the project's.

    Then each is started by itself, as on Kubernetes: with the id of the run, and the instance. A
    later step knows which days an earlier one did not publish, although rows of them are there.
    """
    for name, value in {
        "LANDING": tmp_path / "landing",
        "WAREHOUSE": tmp_path / "warehouse",
        "END": "2024-01-02",
        "SPARK_CONF": json.dumps(SMALL),
    }.items():
        monkeypatch.setenv(f"BACKFILL_ASSETS_{name}", str(value))
    monkeypatch.setenv("SPARK_REMOTE", connect_engine.url)
    folder = tmp_path / "landing/visits/arrival_date=2024-01-01"
    folder.mkdir(parents=True)
    visit = {"visit_id": "v", "user_id": "u", "page": "/", "clicks": 2, "logged_in": True}
    times = dict.fromkeys(["began_at", "sent_at"], "2024-01-01T10:00:00Z")
    (folder / "part-0.jsonl").write_text(json.dumps(visit | times))
    tables = [VISITS.raw.name, VISITS.rejected.name, VISITS.staged.name, active_users_7d.name]
    keys = [dg.AssetKey([*LAKE, name]) for name in tables]
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        executor = {"max_concurrent": 1, "start_method": FORKS}
        lateness = dg.AssetKey([*LAKE, VISITS.lateness.name])
        selected = [*keys, lateness, dg.AssetKey("users_report")]
        assert run_steps_in_processes(instance, selected, HOST_PROJECT, executor) == {}
        (report,) = tmp_path.glob("storage/users_report/2024-01-01")
        assert pickle.loads(report.read_bytes()) == {"users": 1, "visits": 1, "clicks": 2}

        (folder / "part-1.jsonl").write_text("no JSON\n" * 2000)
        failures = run_steps_in_processes(instance, keys[:3], STEP_PROCESSES, {})
    assert list(failures) == ["lake_gold_check_days"], failures
    message = failures["lake_gold_check_days"]
    assert re.search(r"raw_visits\[2024-01-01\]  .*rejected", message)
    assert f"{tables[2]}[2024-01-01]  conservation: {tables[0]}[2024-01-01] failed in t" in message


@on_connect
def test_a_run_of_stock_dagster(connect_engine, tmp_path, monkeypatch):
    """Of `dagster dev` on SQLite, with its launcher, its queue, and a process for each step.

    The long life there is in `test_conformance`.
    """
    monkeypatch.setenv("SPARK_REMOTE", connect_engine.url)
    stock = StockPipeline(Engine.from_settings(load_settings()), tmp_path, key_prefix="lake/gold")
    try:
        load_two_days(stock, [RAW.name])
        days = {str(JAN[0]), str(JAN[1])}
        assert stock.materialized(RAW.name) == days
        checks = recorded_checks(stock)
        assert all(checks.values())
        assert {day for _, _, day in checks} == days
    finally:
        stock.stop()


@pytest.fixture(scope="module")
def registered(tmp_path_factory, hostile_variables: dict[str, str]) -> list[str]:
    """What is printed of a table in a metastore: by way of a server, then by an embedded engine.

    Derby is of one process at a time: the server has ended. The embedded engine is started in the
    environment of somebody else.
    """
    folder = tmp_path_factory.mktemp("metastore")
    publish_facts(folder, dict.fromkeys(JAN[:3], "ok"))
    register = REGISTER.format(catalog=CATALOG, url=folder / "warehouse" / FACT.name)
    database = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
    conf = {
        **SMALL,
        "spark.hadoop.javax.jdo.option.ConnectionURL": database,
        "spark.sql.warehouse.dir": str(folder / "schemas"),
    }
    with connect_server(folder, conf, catalog=CATALOG) as server:
        words = run_attached(server, register)
    environment = {
        **hostile_variables,
        "BACKFILL_ASSETS_CATALOG": CATALOG,
        "BACKFILL_ASSETS_SPARK_CONF": json.dumps(conf),
    }
    read = "print(spark.table('shop.fact_daily_orders').count())\n" + register
    return words + run_attached("", read + UDF_PYTHON, **environment)


@on_connect
@pytest.mark.slow
def test_a_table_is_registered_by_way_of_a_server(registered):
    assert registered[:2] == ["registered", "6"]


@on_connect
@pytest.mark.slow
def test_a_metastore_outlives_the_server_that_registered(registered):
    assert registered[2:5] == ["6", "registered", "6"]


@on_connect
@pytest.mark.slow
def test_python_workers_of_a_session_of_ones_own(registered):
    assert registered[-1] == sys.executable


@on_connect
def test_a_server_that_would_lose_commits_is_refused(outputs):
    """It was started without what keeps commits in a store apart."""
    message = outputs.refusal
    assert f"{S3.log_store_settings()[0]} must be" in message
    assert message.startswith("the Spark Connect server at")
    assert message.endswith("nothing was written.")


@pytest.fixture
def server(tmp_path):
    with connect_server(tmp_path, SMALL) as url:
        yield url


@on_connect
@pytest.mark.slow
def test_the_core_of_the_suite_passes_on_connect(server, tmp_path):
    folder = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-k", CHOICE]
    result = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'inner'}", *(str(folder / name) for name in CORE)],
        env={**os.environ, "SPARK_REMOTE": server},
        capture_output=True,
        text=True,
        cwd=folder.parent,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    assert " passed" in result.stdout


MERGING = """
from backfill_assets.spark.session import commit_session
spark.range(3).createOrReplaceTempView("mine")
with commit_session(spark, {"spark.sql.shuffle.partitions": "77"}) as own:
    print(own.session_id, own.conf.get("spark.sql.shuffle.partitions"))
    print(own.sql("SELECT count(*) FROM mine").first()[0])
print(spark.session_id, spark.conf.get("spark.sql.shuffle.partitions"))
"""
UNFINISHED = """
from backfill_assets.spark.session import commit_session
first, second = (commit_session(spark, {"spark.sql.shuffle.partitions": "77"}) for _ in range(2))
print(first.__enter__().session_id)
with second:
    pass
"""
SMALL_DATA = """
from pyspark.sql.connect.session import SparkSession
small = Engine.from_settings(load_settings()).session_for_rows(1)
print(small.session_id, small.conf.get("spark.sql.shuffle.partitions"), *small.getTags())
print(SparkSession.getActiveSession().session_id, spark.conf.get("spark.sql.shuffle.partitions"))
"""
CLOSED = """
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession
try:
    SparkSession(os.environ["CLOSED"]).range(1).count()
except PySparkException as error:
    print("SESSION_CLOSED" in str(error))
"""
GIVEN_UP = """
import threading
busy = threading.Event()
def work():
    slow = spark.range(10**9).crossJoin(spark.range(10**6)).selectExpr("sum(hash(*))")
    spark.range(1).count()
    busy.set()
    slow.collect()
from backfill_assets.spark.session import interrupt_at_exit
def run():
    interrupt_at_exit(spark)
    work()
threading.Thread(target=run, daemon=True).start()
busy.wait()
import time
time.sleep(3)
"""


@on_connect
@pytest.mark.slow
def test_processes_that_share_a_session(server, tmp_path):
    (first,) = run_attached(server, SESSION_ID)
    assert run_attached(server, SESSION_ID) == [first]
    (other,) = run_attached(server, SESSION_ID, BACKFILL_ASSETS_SPARK_CONF='{"spark.sql.own": "1"}')
    assert other != first

    # Each finds the files that there are now, though it asks as the one before did.
    count = f"print(spark.read.parquet({str(tmp_path / 'rows')!r}).count(), spark.session_id)"
    write = f"spark.range(10).write.mode('append').parquet({str(tmp_path / 'rows')!r})"
    for n in (1, 2, 3):
        run_attached(server, write)
        assert run_attached(server, count) == [str(10 * n), first]

    # What a commit says of itself nobody else sees.
    session_id, partitions, rows, after, untouched = run_attached(server, MERGING)
    assert session_id != first == after
    assert (partitions, rows) == ("77", "3") and untouched != "77"

    # Few rows have a session beside it, which processes share as well.
    small_id, partitions, tag, active_id, untouched = run_attached(server, SMALL_DATA)
    assert small_id != first == active_id
    assert (partitions, untouched) == ("1", "8")
    assert tag.startswith("process-")
    assert run_attached(server, SMALL_DATA)[0] == small_id
    # If it is closed, there is another one, and the default session goes on.
    assert run_attached(server, SMALL_DATA + "small.stop()")[0] == small_id
    other_id, _, _, active_id, _ = run_attached(server, SMALL_DATA + "spark.range(1).count()")
    assert other_id not in (small_id, first) and active_id == first

    (session_id,) = run_attached(server, UNFINISHED)
    url = re.sub("(?<=session_id=)[^;]+", session_id, server)
    assert run_attached(server, "import os\n" + CLOSED, CLOSED=url) == ["True"]

    # What nobody waits for any more does not go on.
    assert run_attached(server, GIVEN_UP) == []
    assert run_attached(server, "print(len(spark.interruptAll()))") == ["0"]

    # A session that somebody has closed is not the end.
    assert run_attached(server, SESSION_ID + "spark.stop()") == [first]
    (second,) = run_attached(server, SESSION_ID)
    assert second != first
    assert run_attached(server, SESSION_ID) == [second]
