"""Models of dbt downstream of the tables, by the steps of the page.

dbt is in an environment of its own, above that of the tests: see `dbt` in `pyproject.toml`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from datetime import date
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from backfill_assets_guide.examples.host_project.delta_tables import open_table
from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.paths import BIN, PROJECT

pytestmark = pytest.mark.slow

(STEPS,) = code_blocks("docs/your-project.md", "bash")
DAYS = [date(2024, 1, n) for n in (1, 2, 3)]
TABLES = ["raw_visits", "raw_visits_rejected", "stg_visits", "active_users_7d"]
#: What Dagster knows of the model: its days, and how its tests ended.
MATERIALIZED = """
import dagster as dg
key = dg.AssetKey("clicks_per_user")
with dg.DagsterInstance.get() as instance:
    print(*sorted(instance.get_materialized_partitions(key)))
    for name in ("not_null", "unique"):
        check = dg.AssetCheckKey(key, f"{name}_clicks_per_user_run_date")
        (record,) = instance.event_log_storage.get_asset_check_execution_history(check, 1)
        print(record.status.value)
"""


class Host:
    """A fresh environment in a folder, in which the steps of the page are typed."""

    def __init__(self, folder: Path):
        self.folder = folder
        below = sysconfig.get_path("purelib")
        pip = "python -m pip install -q --disable-pip-version-check --require-hashes --no-deps"
        own = {
            "python3 -m venv": f"{sys.executable} -m venv",
            # The package is that of the tests, and so is what `requirements.lock` has.
            "pip install 'backfill-assets[serve,dbt]'": f"echo {below} > "
            '"$(python -c "import sysconfig; print(sysconfig.get_path(\'purelib\'))")/below.pth"\n'
            f"{pip} -r {PROJECT}/requirements-dbt.lock",
        }
        text = STEPS
        for step, replacement in own.items():
            assert text.count(step) == 1, step
            text = text.replace(step, replacement)
        *steps, start = text.strip().splitlines()
        assert start.startswith("dagster dev -m ")
        self._materialize = "python -m dagster asset materialize" + start.removeprefix(
            "dagster dev"
        )
        self.type_commands(*steps)
        exports = [line for line in steps if line.startswith("export ")]
        self._shell = [". .venv/bin/activate", *exports]

    def type_commands(self, *commands: str) -> str:
        """What commands print."""
        process = subprocess.run(
            ["bash", "-eu", "-c", "\n".join(commands)],
            env={
                **os.environ,
                "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
                "PYTHONPATH": str(PROJECT),
                "DAGSTER_HOME": str(self.folder),
                "BACKFILL_ASSETS_SPARK_CONF": json.dumps(SMALL),
            },
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, (process.stdout + process.stderr)[-6000:]
        return process.stdout

    def materialize(self, assets: list[str], days: list[date]) -> str:
        """Materialize days of assets in one run; the days that Dagster knows of the model."""
        return self.type_commands(
            *self._shell,
            f"{self._materialize} --select {','.join(assets)} "
            f"--partition-range {days[0]}...{days[-1]} >run.log 2>&1 || tail -n 60 run.log",
            f"python -c '{MATERIALIZED}'",
        )

    def read_model(self) -> dict[date, list]:
        """The rows of the model, by day."""
        with duckdb.connect(self.folder / "data/reports.duckdb", read_only=True) as connection:
            rows = connection.sql(
                "select run_date, clicks, users, clicks_per_user from clicks_per_user"
            )
            return {day: figures for day, *figures in rows.fetchall()}


def test_models_of_dbt_read_the_published_days(tmp_path):
    host = Host(tmp_path)
    model = ["clicks_per_user"]
    known = host.materialize([*(f"lake/gold/{name}" for name in TABLES), *model], DAYS)
    assert known.split() == [*map(str, DAYS), "SUCCEEDED", "SUCCEEDED"]
    url = str(tmp_path / "data/warehouse/active_users_7d")
    published = {
        row["run_date"]: [row["clicks"], row["users"], row["clicks"] / row["users"]]
        for row in open_table(url).to_table().to_pylist()
    }
    assert sorted(published) == DAYS
    assert host.read_model() == published

    # A day of the model is what the table has of it, and other days are left alone.
    DeltaTable(url).delete("run_date < '2024-01-03'")
    host.materialize(model, DAYS[1:2])
    assert host.read_model() == {day: published[day] for day in (DAYS[0], DAYS[2])}
