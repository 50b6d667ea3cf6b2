"""A whole run in the environment of somebody else: another Spark, another Hadoop, no UTF-8.

`test_connect` starts a server and clients in the same environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal

import pytest
from deltalake import DeltaTable

from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import FACT, RAW, STAGED
from backfill_assets.settings import load_settings
from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers.hostile_environment import make_hostile_variables
from backfill_assets_tests.helpers.paths import BIN, PROJECT, dagster_yaml
from backfill_assets_tests.helpers.pipeline import END, START, day, order

pytestmark = pytest.mark.skipif("SPARK_REMOTE" in os.environ, reason="starts engines of its own")


def test_a_run_and_names_beyond_ascii(tmp_path):
    """By `dg launch`, which supersedes `dagster asset materialize`: a range is one run, with it."""
    landing, warehouse, home = tmp_path / "Eingänge", tmp_path / "lager-ö", tmp_path / "home"
    for n in (1, 2, 3):
        folder = landing / "orders" / f"arrival_date={day(n)}"
        folder.mkdir(parents=True)
        line = json.dumps(order(f"o{n}", n, "1.50"))
        (folder / "bestellungen-ä.jsonl").write_text(f"{line}\n")
    home.mkdir()
    (home / "dagster.yaml").write_text(dagster_yaml().read_text())
    environment = {
        **{name: value for name, value in os.environ.items() if name != "LANG"},
        **make_hostile_variables(tmp_path),
        "DAGSTER_HOME": str(home),
        "BACKFILL_ASSETS_LANDING": str(landing),
        "BACKFILL_ASSETS_WAREHOUSE": str(warehouse),
        "BACKFILL_ASSETS_START": str(START),
        "BACKFILL_ASSETS_END": str(END),
        "BACKFILL_ASSETS_PARTITIONS_PER_RUN": "2",
        "BACKFILL_ASSETS_SPARK_CONF": json.dumps(SMALL),
    }
    assets = ",".join((RAW.name, STAGED.name, FACT.name))
    result = subprocess.run(
        [
            *(BIN / "dg", "launch", "-m", "backfill_assets.definitions"),
            *("--assets", assets, "--partition-range", f"{day(1)}...{day(3)}"),
        ],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert {path.name for path in tmp_path.iterdir()} >= {"lager-ö", "Eingänge"}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("lager-?")]
    facts = DeltaTable(str(warehouse / FACT.name)).to_pyarrow_table().to_pylist()
    assert {(fact["run_date"], fact["orders"], fact["revenue"]) for fact in facts} == {
        (day(n), 1, Decimal("1.50")) for n in (1, 2, 3)
    }
    assert f"One run makes all 3 days of {day(1)}...{day(3)}, more than the 2 of" in result.stderr
    assert result.stderr.count("One run makes") == 1
    settings = load_settings(warehouse=str(warehouse), start=START, end=END)
    records = read_ledgers(Deployment(settings))[FACT.name].records
    assert {record.launched_by for record in records} == {"person"}


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
