"""What is not daily in a deployment: Dagster's daemon, its UI's answers and its command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from backfill_assets_tests.helpers.deployment import ServedDeployment
from backfill_assets_tests.helpers.graphql import ask
from backfill_assets_tests.helpers.paths import BIN, PROJECT
from backfill_assets_tests.helpers.pipeline import LAYERS, day, order
from backfill_assets_tests.neighbours import TAPS, Taps


def table_options(*names: str) -> list[str]:
    """The tables of a backfill, as options of its command."""
    return [word for name in names for word in ("--table", name)]


PLACE = "backfill_assets_tests.neighbours:TABLES"
WEEKLY, HOURS, BY_COUNTRY, STATIC = "weekly", "taps_by_hour", "country_spend", "customers"
WEEKS = table_options(*LAYERS, WEEKLY, "weekly_again", BY_COUNTRY)
HOURLY = table_options(*(table.name for table in TAPS.tables), HOURS)
PARTITIONS = """
query($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) {
    ... on AssetNode {
      isPartitioned
      isMaterializable
      partitionDefinition { description type }
      partitionStats { numPartitions numMaterialized numFailed }
      dependedByKeys { path }
    }
  }
}
"""


def asset_page(deployment: ServedDeployment, name: str) -> dict[str, Any]:
    """What the page of an asset in the UI asks for."""
    url = f"http://127.0.0.1:{deployment.port}"
    page: dict[str, Any] = ask(url, PARTITIONS, key={"path": [name]})
    return page


@pytest.mark.slow
def test_a_staged_backfill_of_days_and_weeks_and_a_week_by_command(
    engine, spark, tmp_path: Path
) -> None:
    pipeline = Taps(engine, tmp_path, tables=PLACE)
    for n in range(1, 22):
        pipeline.land(n, [order(str(n), n, f"{n}.00")])
    for n in (1, 2):
        pipeline.tap(n, 2 + n, [f"tap {n}"])
    customers = pa.table({"customer_id": ["c1"], "country": ["FR"]})
    write_deltalake(str(pipeline.warehouse / STATIC), customers)
    deployment = ServedDeployment(tmp_path, pipeline.settings)
    try:
        deployment.wait_for_daemons()
        # No stage ends with a week: each week comes with the stage of its last day.
        days = f"{day(1)}...{day(14)}"
        result = deployment.run("backfill", days, *WEEKS, "--chunk-days", "4", "--yes")
        assert result.returncode == 0, result.stdout + result.stderr
        assert {row["week"]: int(row["revenue"]) for row in pipeline.rows(WEEKLY)} == {
            day(1): sum(range(1, 8)),
            day(8): sum(range(8, 15)),
        }
        # Of the tables by week alone, some stages have nothing to do.
        weeks = ["--table", WEEKLY, "--chunk-days", "4", "--rewrite", "--yes"]
        result = deployment.run("backfill", days, *weeks)
        assert result.returncode == 0, result.stdout + result.stderr
        # A part of a week is built without the week, which follows when it is whole.
        result = deployment.run("backfill", f"{day(15)}...{day(17)}", *WEEKS, "--yes")
        assert result.returncode == 0, result.stdout + result.stderr
        assert sorted(row["week"] for row in pipeline.rows(WEEKLY)) == [day(1), day(8)]
        result = deployment.run("backfill", f"{day(1)}...{day(2)}", *HOURLY, "--yes")
        assert result.returncode == 0, result.stdout + result.stderr
        assert {row["hour"] for row in pipeline.rows(HOURS)} == {3, 4}
        assert {row["country"] for row in pipeline.rows(BY_COUNTRY)} == {"FR"}
        pages = {name: asset_page(deployment, name) for name in (WEEKLY, HOURS, BY_COUNTRY, STATIC)}
        stats = {name: page["partitionStats"] for name, page in pages.items()}
        assert stats == {
            WEEKLY: {"numPartitions": 4, "numMaterialized": 2, "numFailed": 0},
            HOURS: {"numPartitions": 31, "numMaterialized": 2, "numFailed": 0},
            BY_COUNTRY: {"numPartitions": 31, "numMaterialized": 17, "numFailed": 0},
            STATIC: None,
        }
        assert pages[WEEKLY]["partitionDefinition"]["description"].startswith("Weekly")
        for name in (HOURS, BY_COUNTRY):
            assert pages[name]["partitionDefinition"]["description"].startswith("Daily")
        static = pages[STATIC]
        assert not static["isPartitioned"]
        assert not static["isMaterializable"]
        assert static["dependedByKeys"] == [{"path": [BY_COUNTRY]}]
    finally:
        deployment.stop()
    pipeline.run(15, 21)
    command = [str(BIN / "dagster"), "asset", "materialize", "-m", "backfill_assets.definitions"]
    chosen = ["--select", WEEKLY, "--partition", str(day(15))]
    environment = {**deployment.environment, "DAGSTER_HOME": str(tmp_path / "home")}
    by_hand = subprocess.run(
        [*command, *chosen],
        env=environment,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert by_hand.returncode == 0, by_hand.stderr[-3000:]
    assert sorted(row["week"] for row in pipeline.rows(WEEKLY)) == [day(1), day(8), day(15)]
