"""`dg launch`, which supersedes `dagster asset materialize`, makes a range in one run."""

from __future__ import annotations

import json
import os
import subprocess

from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import FACT
from backfill_assets_tests import conftest
from backfill_assets_tests.helpers.paths import BIN, dagster_yaml
from backfill_assets_tests.helpers.pipeline import LAYERS, Pipeline, day, order


def test_a_range_that_is_longer_than_a_run_elsewhere(engine, tmp_path):
    pipeline = Pipeline(engine, tmp_path)
    for n in (1, 2, 3):
        pipeline.land(n, [order(f"o{n}", n)])
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(dagster_yaml().read_text())
    settings = pipeline.settings
    result = subprocess.run(
        [
            *(BIN / "dg", "launch", "-m", "backfill_assets.definitions"),
            *("--assets", ",".join(LAYERS), "--partition-range", f"{day(1)}...{day(3)}"),
        ],
        env={
            **os.environ,
            "DAGSTER_HOME": str(home),
            "BACKFILL_ASSETS_LANDING": settings.landing,
            "BACKFILL_ASSETS_WAREHOUSE": settings.warehouse,
            "BACKFILL_ASSETS_END": str(settings.end),
            "BACKFILL_ASSETS_PARTITIONS_PER_RUN": "2",
            "BACKFILL_ASSETS_SPARK_CONF": json.dumps(
                {**conftest.SMALL, "spark.master": "local[2]"}
            ),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"One run makes all 3 days of {day(1)}...{day(3)}, more than the 2 of" in result.stderr
    assert result.stderr.count("One run makes") == 1
    ledger = read_ledgers(Deployment(settings))[FACT.name]
    assert ledger.published_days == {day(n) for n in (1, 2, 3)}
    assert {record.launched_by for record in ledger.records} == {"person"}
