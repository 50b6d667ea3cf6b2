"""Whole runs in the environment of somebody else: another Spark, another Hadoop, no UTF-8."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable

from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers.connect_server import connect_server, run_attached
from backfill_assets_tests.helpers.paths import BIN, PROJECT
from backfill_assets_tests.helpers.pipeline import END, START, day, order

pytestmark = pytest.mark.skipif("SPARK_REMOTE" in os.environ, reason="starts engines of its own")

#: Which Python computes a UDF, and whether it finds pandas and pyarrow.
UDF = """
import sys
from pyspark.sql import functions as F
frame = spark.range(1).select(F.udf(lambda n: sys.executable, "string")("id").alias("python"))
print(frame.select(F.pandas_udf(lambda names: names, "string")("python")).first()[0])
"""


@pytest.fixture
def hostile(tmp_path: Path) -> dict[str, str]:
    """Variables, each of which would break a run by itself."""
    configuration = tmp_path / "configuration"
    configuration.mkdir()
    (configuration / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name>"
        "<value>hdfs://nowhere.invalid:8020</value></property></configuration>"
    )
    (configuration / "spark-defaults.conf").write_text("spark.driver.memory 9000g\n")
    return {
        "HADOOP_CONF_DIR": str(configuration),
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_HOME": "/nowhere",
        "SPARK_LOCAL_IP": "203.0.113.9",
        "PYSPARK_PYTHON": "/nowhere/python",
        "PYSPARK_SUBMIT_ARGS": "--nonsense",
        "_JAVA_OPTIONS": "-Xmx16m",
        "LC_ALL": "C",
        "PATH": "/usr/bin:/bin",
    }


def test_a_run_and_names_beyond_ascii(hostile, tmp_path):
    landing, warehouse = tmp_path / "Eingänge", tmp_path / "lager-ö"
    folder = landing / "orders" / f"arrival_date={day(1)}"
    folder.mkdir(parents=True)
    (folder / "bestellungen-ä.jsonl").write_text(json.dumps(order("o1", 1, "1.50")) + "\n")
    (tmp_path / "home").mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if name != "LANG"},
        **hostile,
        "DAGSTER_HOME": str(tmp_path / "home"),
        "BACKFILL_ASSETS_LANDING": str(landing),
        "BACKFILL_ASSETS_WAREHOUSE": str(warehouse),
        "BACKFILL_ASSETS_START": str(START),
        "BACKFILL_ASSETS_END": str(END),
        "BACKFILL_ASSETS_SPARK_CONF": json.dumps(SMALL),
    }
    select = 'key:"raw_orders" or key:"stg_orders" or key:"fact_daily_orders"'
    command = [BIN / "dagster", "asset", "materialize", "-m", "backfill_assets.definitions"]
    result = subprocess.run(
        [*map(str, command), "--select", select, "--partition", str(day(1))],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert {path.name for path in tmp_path.iterdir()} >= {"lager-ö", "Eingänge"}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("lager-?")]
    (fact,) = DeltaTable(str(warehouse / "fact_daily_orders")).to_pyarrow_table().to_pylist()
    assert (fact["orders"], fact["revenue"]) == (1, Decimal("1.50"))


def test_python_workers_of_a_session_of_ones_own(hostile):
    code = (
        "from backfill_assets.spark.session import Engine\n"
        "from backfill_assets.settings import load_settings\n"
        "spark = Engine.from_settings(load_settings()).spark_session\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code + UDF],
        env={**os.environ, **hostile, "BACKFILL_ASSETS_SPARK_CONF": json.dumps(SMALL)},
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.split() == [sys.executable]


def test_python_workers_of_a_server_of_ours(hostile, tmp_path, monkeypatch):
    for name, value in hostile.items():
        monkeypatch.setenv(name, value)
    with connect_server(tmp_path, SMALL) as server:
        assert run_attached(server, UDF) == [sys.executable]


def test_a_java_that_ends_at_its_start(tmp_path):
    conf = {**SMALL, "spark.driver.memory": "1m", "spark.driver.extraJavaOptions": "-Xms90g"}
    code = (
        "from backfill_assets.spark.jars import EngineError\n"
        "from backfill_assets.spark.session import Engine\n"
        "from backfill_assets.settings import load_settings\n"
        "try:\n"
        "    Engine.from_settings(load_settings()).spark_session\n"
        "except EngineError as error:\n"
        "    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "BACKFILL_ASSETS_SPARK_CONF": json.dumps(conf)},
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    # Java's own words come first.
    message = result.stdout.splitlines()[-1]
    assert message.startswith("Java ended before Spark had started"), result.stderr[-4000:]
    assert "BACKFILL_ASSETS_SPARK_CONF" in message
