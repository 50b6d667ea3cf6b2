"""The definitions as Dagster sees them: a snapshot, so that nothing changes unnoticed."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value

from backfill_assets.definitions import build_defs, code_version
from backfill_assets.schemas import TABLES
from backfill_assets.settings import SettingsError, load_settings

PROJECT = Path(__file__).parents[1]
KEYED = {"row_count", "nulls", "conservation", "unique_key"}
KEYLESS = {"row_count", "nulls", "conservation"}
#: By asset: what it reads, its group, its checks.
EXPECTED = {
    "raw_orders": (set(), "raw", KEYLESS),
    "raw_orders_rejected": (set(), "raw", KEYLESS),
    "stg_orders": ({"raw_orders"}, "staging", KEYED),
    "late_orders": ({"raw_orders"}, "staging", KEYLESS),
    "fact_daily_orders": ({"stg_orders"}, "fact", KEYED),
}
#: By column of staging and fact: the columns that it is made of.
LINEAGE = {
    "stg_orders": {
        "event_date": {("raw_orders", "order_ts")},
        "order_id": {("raw_orders", "order_id")},
        "customer_id": {("raw_orders", "customer_id")},
        "order_ts": {("raw_orders", "order_ts")},
        "amount": {("raw_orders", "amount")},
        "ingestion_ts": {("raw_orders", "ingestion_ts")},
        "log_date": {("raw_orders", "log_date")},
    },
    "late_orders": {
        "log_date": {("raw_orders", "log_date")},
        "event_date": {("raw_orders", "order_ts")},
        "arrival_date": {("raw_orders", "arrival_date")},
        "order_id": {("raw_orders", "order_id")},
        "customer_id": {("raw_orders", "customer_id")},
        "order_ts": {("raw_orders", "order_ts")},
        "amount": {("raw_orders", "amount")},
        "ingestion_ts": {("raw_orders", "ingestion_ts")},
        "source_file": {("raw_orders", "source_file")},
    },
    "fact_daily_orders": {
        "run_date": {("stg_orders", "event_date")},
        "customer_id": {("stg_orders", "customer_id")},
        "orders": {("stg_orders", "order_id")},
        "revenue": {("stg_orders", "amount")},
    },
}


def graph(**overrides):
    return build_defs(load_settings(**overrides)).resolve_asset_graph()


@pytest.fixture(scope="module")
def assets():
    found = graph(
        warehouse="/w", start=date(2024, 1, 1), end=date(2024, 2, 1), timezone="Asia/Tokyo"
    )
    return {key.to_user_string(): found.get(key) for key in found.get_all_asset_keys()}


def test_assets_and_what_they_read(assets):
    seen = {
        name: (
            {parent.to_user_string() for parent in asset.parent_keys},
            asset.group_name,
            {check.name for check in asset.check_keys},
        )
        for name, asset in assets.items()
    }
    assert seen == EXPECTED


def test_every_check_blocks_and_is_partitioned_like_its_asset():
    repository = build_defs(load_settings()).get_repository_def()
    specs = [
        spec
        for definition in repository.assets_defs_by_key.values()
        for spec in definition.check_specs
    ]
    assert {(s.asset_key.to_user_string(), s.name) for s in specs} == {
        (name, check) for name, (_, _, checks) in EXPECTED.items() for check in checks
    }
    for spec in specs:
        assert spec.blocking
        assert spec.description
        asset = repository.assets_defs_by_key[spec.asset_key]
        assert spec.partitions_def == asset.partitions_def


def test_one_partitions_definition(assets):
    definitions = {asset.partitions_def for asset in assets.values()}
    assert len(definitions) == 1
    (found,) = definitions
    assert isinstance(found, dg.DailyPartitionsDefinition)
    assert found.timezone == "Asia/Tokyo"
    keys = found.get_partition_keys()
    assert (keys[0], keys[-1], len(keys)) == ("2024-01-01", "2024-01-31", 31)


def test_one_backfill_policy():
    for overrides, policy in (
        ({}, dg.BackfillPolicy.single_run()),
        ({"partitions_per_run": 4}, dg.BackfillPolicy.multi_run(4)),
    ):
        found = graph(**overrides)
        assert {found.get(k).backfill_policy for k in found.get_all_asset_keys()} == {policy}


@pytest.mark.parametrize("window_days", [0, 7])
def test_the_window_is_the_mapping_of_staging_alone(window_days):
    found = graph(window_days=window_days)
    raw = dg.AssetKey("raw_orders")
    mapping = found.get(dg.AssetKey("stg_orders")).partition_mappings[raw]
    assert isinstance(mapping, dg.TimeWindowPartitionMapping)
    assert (mapping.start_offset, mapping.end_offset) == (0, window_days)
    assert not found.get(dg.AssetKey("late_orders")).partition_mappings
    assert not found.get(dg.AssetKey("fact_daily_orders")).partition_mappings


def test_what_the_ui_shows(assets):
    for name, asset in assets.items():
        assert asset.owners == ["team:data-platform"]
        assert asset.kinds == {"pyspark", "deltalake"}
        assert asset.description
        assert asset.metadata["dagster/uri"] == f"/w/{name}"
        assert asset.metadata["dagster/table_name"] == name
        assert asset.metadata["partition_expr"] == TABLES[name].partition
        assert asset.metadata["dagster/column_schema"] == TABLES[name].column_schema
        assert asset.code_version == code_version()


def test_column_lineage(assets):
    for name, columns in LINEAGE.items():
        lineage = assets[name].metadata["dagster/column_lineage"].deps_by_column
        seen = {
            column: {(dep.asset_key.to_user_string(), dep.column_name) for dep in deps}
            for column, deps in lineage.items()
        }
        assert seen == columns
        assert set(seen) == set(TABLES[name].columns)
        for asset, column in (pair for pairs in seen.values() for pair in pairs):
            assert column in TABLES[asset].columns


def test_a_run_is_one_process():
    repository = build_defs(load_settings()).get_repository_def()
    job = repository.get_implicit_global_asset_job_def()
    assert job.executor_def is dg.in_process_executor


def test_resources_can_be_replaced():
    other = dg.ResourceDefinition.hardcoded_resource("x")
    defs = build_defs(load_settings(), resources={"io_manager": other})
    assert defs.resources["io_manager"] is other
    assert set(defs.resources) == {"engine", "io_manager"}


def test_dagster_neither_shows_nor_stores_secrets():
    settings = load_settings(
        spark_remote="sc://host:15002/;token=hush-1",
        spark_conf={"spark.hadoop.fs.s3a.secret.key": "hush-2", "spark.x": "plain"},
    )
    snapshot = serialize_value(RepositorySnap.from_def(build_defs(settings).get_repository_def()))
    assert "plain" in snapshot  # or this test looks in the wrong place
    assert "hush-" not in snapshot


def test_a_bad_setting_is_refused_when_definitions_load(monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_WINDOW_DAYS", "-1")
    with pytest.raises(SettingsError, match="BACKFILL_ASSETS_WINDOW_DAYS='-1'"):
        build_defs()


def validate(tmp_path, **variables):
    return subprocess.run(
        [
            *(str(Path(sys.executable).with_name("dagster")), "definitions", "validate"),
            *("-w", "workspace.yaml"),
        ],
        cwd=PROJECT,
        env={**os.environ, "DAGSTER_HOME": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_dagster_validates_the_workspace(tmp_path):
    done = validate(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "backfill_assets.definitions" in done.stdout + done.stderr


def test_dagster_does_not_validate_a_bad_setting(tmp_path):
    done = validate(tmp_path, BACKFILL_ASSETS_START="20240101")
    assert done.returncode != 0
    assert "BACKFILL_ASSETS_START='20240101': must be a day as YYYY-MM-DD" in (
        done.stdout + done.stderr
    )
