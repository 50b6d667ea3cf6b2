"""The definitions as Dagster sees them: a snapshot, so that nothing changes unnoticed."""

from __future__ import annotations

import os
import subprocess
from datetime import date, timedelta

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value

from backfill_assets.dagster_ext.executor import one_process_executor
from backfill_assets.dagster_ext.internals import AssetGraph
from backfill_assets.definitions import build_defs, defs
from backfill_assets.delta import targets
from backfill_assets.deployment import ENGINE_KEY, IO_MANAGER_KEY, Deployment
from backfill_assets.orders.tables import TABLES
from backfill_assets.settings import SettingsError, load_settings
from backfill_assets_tests.helpers.paths import BIN, PROJECT, VALIDATE_COMMAND

KEYLESS = {"row_count", "nulls", "conservation", "days"}
KEYED = KEYLESS | {"unique_key"}
#: Checks on the asset as a whole, and those that hold no day back.
WHOLE, NOTICES = {"days", "final_days", "one_code"}, {"late_lines", "rejected_lines"}
PAGE = "lateness_dashboard"
FACTS = ("fact_daily_orders", "fact_daily_orders_current", "fact_order_corrections")
#: By asset: what it reads, its group, its checks.
EXPECTED = {
    "raw_orders": (set(), "raw", KEYLESS | {"rejected_lines"}),
    "raw_orders_rejected": (set(), "raw", KEYLESS),
    "stg_orders": ({"raw_orders"}, "staging", KEYED),
    "late_orders": ({"raw_orders"}, "staging", KEYLESS | {"late_lines"}),
    "fact_daily_orders": ({"stg_orders"}, "fact", KEYED | {"final_days", "one_code"}),
    "fact_daily_orders_current": ({"raw_orders"}, "fact", KEYED),
    "fact_order_corrections": ({"fact_daily_orders", "fact_daily_orders_current"}, "fact", KEYED),
    "arrival_lateness": ({"raw_orders", "raw_orders_rejected"}, "lateness", KEYED),
    PAGE: ({"arrival_lateness"}, "lateness", set()),
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


def resolve_graph(**overrides):
    return build_defs(load_settings(**overrides)).resolve_asset_graph()


def executable_keys(asset_graph: AssetGraph) -> set[dg.AssetKey]:
    """Those that runs make; comparisons of targets are observed only."""
    return {key for key in asset_graph.get_all_asset_keys() if not asset_graph.get(key).is_external}


@pytest.fixture(scope="module")
def assets():
    asset_graph = resolve_graph(
        warehouse="/w",
        start=date(2024, 1, 1),
        end=date(2024, 2, 1),
        timezone="Asia/Tokyo",
        owners="team:data, ann@example.org",
    )
    return {key.to_user_string(): asset_graph.get(key) for key in asset_graph.get_all_asset_keys()}


def test_assets_and_what_they_read(assets):
    actual = {
        name: (
            {parent.to_user_string() for parent in asset.parent_keys},
            asset.group_name,
            {check.name for check in asset.check_keys},
        )
        for name, asset in assets.items()
    }
    assert actual == EXPECTED


def test_every_check_of_the_audit_blocks_and_is_partitioned_like_its_asset():
    repository = build_defs(load_settings()).get_repository_def()
    specs = [
        spec
        for definition in repository.assets_defs_by_key.values()
        for spec in definition.check_specs
    ]
    assert {(s.asset_key.to_user_string(), s.name) for s in specs} == {
        (name, check) for name, (_, _, checks) in EXPECTED.items() for check in checks - WHOLE
    }
    for spec in specs:
        assert spec.blocking is (spec.name not in NOTICES)
        assert spec.description
        asset = repository.assets_defs_by_key[spec.asset_key]
        assert spec.partitions_def == asset.partitions_def


def test_one_partitions_definition(assets):
    definitions = {
        asset.partitions_def
        for name, asset in assets.items()
        if name != PAGE and not asset.is_external
    }
    assert len(definitions) == 1
    (definition,) = definitions
    assert isinstance(definition, dg.DailyPartitionsDefinition)
    assert definition.timezone == "Asia/Tokyo"
    keys = definition.get_partition_keys()
    assert (keys[0], keys[-1], len(keys)) == ("2024-01-01", "2024-01-31", 31)


def test_one_backfill_policy():
    for overrides, policy in (
        ({}, dg.BackfillPolicy.multi_run(31)),
        ({"partitions_per_run": 4}, dg.BackfillPolicy.multi_run(4)),
    ):
        asset_graph = resolve_graph(**overrides)
        keys = executable_keys(asset_graph) - {dg.AssetKey(PAGE)}
        assert {asset_graph.get(key).backfill_policy for key in keys} == {policy}
        # It has no days; but a range on the command line asks this of every asset.
        assert asset_graph.get(dg.AssetKey(PAGE)).backfill_policy == dg.BackfillPolicy.single_run()


@pytest.mark.parametrize("window_days", [0, 7])
def test_the_window_is_the_mapping_of_what_reads_the_log_by_event_day(window_days):
    asset_graph = resolve_graph(window_days=window_days)
    raw = dg.AssetKey("raw_orders")
    for name in ("stg_orders", "fact_daily_orders_current"):
        mapping = asset_graph.get(dg.AssetKey(name)).partition_mappings[raw]
        assert isinstance(mapping, dg.TimeWindowPartitionMapping)
        assert (mapping.start_offset, mapping.end_offset) == (0, window_days)
    assert not asset_graph.get(dg.AssetKey("late_orders")).partition_mappings
    assert not asset_graph.get(dg.AssetKey("fact_order_corrections")).partition_mappings
    assert not asset_graph.get(dg.AssetKey("fact_daily_orders")).partition_mappings


def test_what_the_ui_shows(assets):
    for name, asset in assets.items():
        assert asset.owners == ["team:data", "ann@example.org"]
        assert asset.description
        if name == PAGE or asset.is_external:
            continue
        assert asset.kinds == {"pyspark", "deltalake"}
        assert asset.metadata["dagster/uri"] == f"/w/{name}"
        assert asset.metadata["dagster/table_name"] == name
        assert asset.metadata["partition_expr"] == TABLES[name].partition
        assert asset.metadata["dagster/column_schema"] == TABLES[name].column_schema
        assert asset.code_version == Deployment(load_settings()).code.table_version(name)


def test_column_lineage(assets):
    for name, columns in LINEAGE.items():
        lineage = assets[name].metadata["dagster/column_lineage"].deps_by_column
        actual = {
            column: {(dep.asset_key.to_user_string(), dep.column_name) for dep in deps}
            for column, deps in lineage.items()
        }
        assert actual == columns
        assert set(actual) == set(TABLES[name].columns)
        for asset, column in (pair for pairs in actual.values() for pair in pairs):
            assert column in TABLES[asset].columns


def test_a_launch_of_log_days_rebuilds_only_what_they_may_change():
    """Downstream of ten raw days, as the UI computes it: not every day before them."""
    asset_graph = resolve_graph(start=date(2024, 1, 1), end=date(2024, 6, 1), window_days=7)
    raw = dg.AssetKey("raw_orders")
    daily = asset_graph.get(raw).partitions_def
    chosen = daily.subset_with_partition_keys([f"2024-02-{day:02d}" for day in range(10, 20)])
    for name in ("stg_orders", "fact_daily_orders_current"):
        mapping = asset_graph.get(dg.AssetKey(name)).partition_mappings[raw]
        rebuilt = mapping.get_downstream_partitions_for_partitions(chosen, daily, daily)
        assert sorted(rebuilt.get_partition_keys()) == [f"2024-02-{d:02d}" for d in range(3, 20)]


def test_comparisons_are_there_once_there_is_a_target(tmp_path):
    settings = load_settings(warehouse=str(tmp_path))
    tables = ("stg_orders", "late_orders", "arrival_lateness", *FACTS)

    def comparison_names() -> set[str]:
        asset_graph = build_defs(settings).resolve_asset_graph()
        keys = {key for key in asset_graph.get_all_asset_keys() if key.path[0] == "comparisons"}
        assert all(asset_graph.get(key).is_external for key in keys)
        return {key.path[1] for key in keys}

    assert comparison_names() == set()
    targets.save_target(
        Deployment(settings), targets.Target(name="v2", tables=(), requested_days=(), pins={})
    )
    assert comparison_names() == {*tables}


def test_jobs_schedules_and_sensors():
    settings = load_settings(timezone="Europe/Berlin")
    repository = build_defs(settings, automate=True).get_repository_def()
    by_hand = {"plan_backfill", "backfill", "reconcile", "undo", "close", "maintenance"}
    by_hand |= {"shadow_backfill", "compare_target", "switch_over"}
    assert {job.name for job in repository.get_all_jobs()} == {
        "__ASSET_JOB",
        "daily",
        "housekeeping",
        *by_hand,
    }
    schedule, housekeeping = sorted(
        repository.schedule_defs, key=lambda schedule_def: schedule_def.name
    )[::-1]
    assert housekeeping.name == "housekeeping"
    assert housekeeping.execution_timezone == "Europe/Berlin"
    assert housekeeping.default_status is dg.DefaultScheduleStatus.STOPPED
    assert (schedule.name, schedule.cron_schedule) == ("nightly", "0 2 * * *")
    assert schedule.execution_timezone == "Europe/Berlin"
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
    running = {
        sensor.name: sensor.default_status is dg.DefaultSensorStatus.RUNNING
        for sensor in repository.sensor_defs
    }
    assert running == {
        "landed_files": False,
        "touched_days": True,
        "watch_days": True,
        "alerts": True,
        "planned_backfills": True,
        "switch_overs": True,
        "lost_retries": True,
    }


def test_every_asset_has_a_freshness_policy_unless_the_calendar_has_an_end():
    asset_graph = resolve_graph(timezone="Asia/Tokyo", nightly_at="03:30", deadline="05:00")
    policies = {asset_graph.get(key).freshness_policy for key in executable_keys(asset_graph)}
    (policy,) = policies
    assert (policy.deadline_cron, policy.timezone) == ("0 5 * * *", "Asia/Tokyo")
    assert policy.lower_bound_delta == timedelta(hours=5)
    ended = resolve_graph(end=date(2024, 2, 1))
    assert {ended.get(key).freshness_policy for key in ended.get_all_asset_keys()} == {None}


def test_a_run_is_one_process():
    job = defs().get_repository_def().get_implicit_global_asset_job_def()
    assert job.executor_def is one_process_executor


def test_resources_can_be_replaced():
    other = dg.ResourceDefinition.hardcoded_resource("x")
    definitions = build_defs(load_settings(), resources={IO_MANAGER_KEY: other})
    assert definitions.resources[IO_MANAGER_KEY] is other
    assert set(definitions.resources) == {ENGINE_KEY, IO_MANAGER_KEY}


def test_dagster_neither_shows_nor_stores_secrets():
    settings = load_settings(
        spark_remote="sc://host:15002/;token=hush-1",
        spark_conf={"spark.hadoop.fs.s3a.secret.key": "hush-2", "spark.x": "plain"},
    )
    snapshot = serialize_value(RepositorySnap.from_def(build_defs(settings).get_repository_def()))
    assert f'"{IO_MANAGER_KEY}"' in snapshot  # or this test looks in the wrong place
    assert "hush-" not in snapshot


OTHERS = {
    "another server": {ENGINE_KEY: {"spark_config": {"spark.remote": "sc://evil.example:1"}}},
    "options of the JVM": {
        ENGINE_KEY: {"spark_config": {"spark.driver.extraJavaOptions": "-Xlog:all:file=/tmp/x"}}
    },
    "other jars": {ENGINE_KEY: {"jars": "/tmp/jars"}},
    "another warehouse": {IO_MANAGER_KEY: {"warehouse": "/tmp/elsewhere"}},
    "another engine of the IO manager": {
        IO_MANAGER_KEY: {"engine": {"spark_config": {"spark.remote": "sc://evil.example:1"}}}
    },
}


@pytest.mark.parametrize("config", OTHERS.values(), ids=OTHERS)
def test_a_run_cannot_configure_the_resources(config):
    """Whoever may launch runs is not to name the server that is shown the engine's token."""
    repository = build_defs(load_settings()).get_repository_def()
    jobs = repository.get_all_jobs()
    assert {"__ASSET_JOB", "undo", "maintenance"} <= {job.name for job in jobs}
    for job in jobs:
        resources = {name: {"config": values} for name, values in config.items()}
        with pytest.raises(dg.DagsterInvalidConfigError, match="resources"):
            dg.validate_run_config(job, {"resources": resources})


def test_a_run_cannot_give_an_asset_its_inputs():
    """Dagster can load an input from a file that a run names: of a pickle, code."""
    repository = build_defs(load_settings()).get_repository_def()
    job = repository.get_implicit_global_asset_job_def()
    subset = job.get_subset(asset_selection={dg.AssetKey("stg_orders"), dg.AssetKey("late_orders")})
    for tested_job in (job, subset):
        ops = tested_job.run_config_schema.config_type.fields["ops"].config_type.fields
        assert "stage_orders" in ops
        assert not any("inputs" in op.config_type.fields for op in ops.values())


def test_a_bad_setting_is_refused_when_definitions_load(monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_WINDOW_DAYS", "-1")
    with pytest.raises(SettingsError, match="BACKFILL_ASSETS_WINDOW_DAYS='-1'"):
        build_defs()


def validate_workspace(tmp_path, **variables):
    return subprocess.run(
        [str(BIN / "dagster"), *VALIDATE_COMMAND.split()[1:]],
        cwd=PROJECT,
        env={**os.environ, "DAGSTER_HOME": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_dagster_validates_the_workspace(tmp_path):
    result = validate_workspace(tmp_path)
    assert result.returncode == 0, result.stderr
    assert "backfill_assets.definitions" in result.stdout + result.stderr


def test_dagster_does_not_validate_a_bad_setting(tmp_path):
    result = validate_workspace(tmp_path, BACKFILL_ASSETS_START="20240101")
    assert result.returncode != 0
    assert "BACKFILL_ASSETS_START='20240101': must be a day as YYYY-MM-DD" in (
        result.stdout + result.stderr
    )
