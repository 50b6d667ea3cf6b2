"""Definitions that are merged with those of a project: what they bring, and what they leave."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import date, timedelta
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, patch

import dagster as dg
import duckdb
import pytest
import yaml
from dagster._core.scheduler.instigation import SensorInstigatorData
from dagster._core.test_utils import create_run_for_test
from deltalake import DeltaTable

from backfill_assets import build_defs, load_settings
from backfill_assets.assets import backfill_jobs
from backfill_assets.backfills import stages, state_store
from backfill_assets.backfills.stages import add_backfill
from backfill_assets.backfills.state_store import BackfillRefusedError
from backfill_assets.cli.outcomes import refuse_unknown
from backfill_assets.dagster_ext import internals
from backfill_assets.delta import targets
from backfill_assets.delta.consistent_versions import save_versions, versions_that_belong_together
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.deployment import ENGINE_KEY, IO_MANAGER_KEY, Deployment
from backfill_assets.monitoring.incidents import twin_locations
from backfill_assets.monitoring.next_runs import (
    BATCH_TAG,
    LOAD,
    tables_in_progress,
    unfinished_batch_runs,
)
from backfill_assets.settings import SettingsError
from backfill_assets_guide.examples.host_project import definitions as host_project
from backfill_assets_guide.examples.host_project.definitions import LAKE, defs
from backfill_assets_guide.examples.host_project.sample import write_visits
from backfill_assets_guide.examples.web_events import VISITS, active_users_7d
from backfill_assets_tests.helpers.command_line import save_plan
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.memory_instance import memory_instance
from backfill_assets_tests.helpers.paths import DBT, PROJECT

OURS = dg.AssetKey([*LAKE, active_users_7d.name])


@pytest.fixture(scope="module")
def repository() -> dg.RepositoryDefinition:
    return defs().get_repository_def()


def test_the_page_shows_the_example():
    """The end of one module, and a part of another."""
    folder = Path(host_project.__file__).parent
    definitions, _, _, models = code_blocks("docs/your-project.md", "python")
    assert (folder / "definitions.py").read_text().endswith(f"\n{definitions}")
    assert models in (folder / "with_dbt.py").read_text()
    (instance,) = code_blocks("docs/your-project.md", "yaml")
    ours = yaml.safe_load(Path("dagster.yaml").read_text())
    lines = yaml.safe_load(instance)
    (limit,) = lines["concurrency"]["runs"].pop("tag_concurrency_limits")
    assert limit in ours["concurrency"]["runs"]["tag_concurrency_limits"]
    assert lines["run_retries"] == ours["run_retries"]


def test_the_projects_executor_and_io_manager_count(repository):
    job = repository.get_implicit_global_asset_job_def()
    assert job.executor_def.name == "multiprocess"
    resources = repository.get_top_level_resources()
    assert resources["io_manager"].configurable_resource_cls is dg.FilesystemIOManager
    ours = {name for name in resources if name.startswith("backfill_assets_")}
    assert ours == {f"{key}_lake_gold" for key in (IO_MANAGER_KEY, ENGINE_KEY)}
    assert resources.keys() - ours == {"io_manager"}
    managers = {
        key.path[-1]: node.assets_def.get_io_manager_key_for_asset_key(key)
        for key in repository.asset_graph.get_all_asset_keys()
        if (node := repository.asset_graph.get(key)).partitions_def
    }
    assert managers.pop("users_report") == "io_manager"
    assert {*managers.values()} == {f"{IO_MANAGER_KEY}_lake_gold"}


def test_all_keys_of_the_tables_begin_with_the_prefix(repository):
    graph = repository.asset_graph
    others = [key for key in graph.get_all_asset_keys() if key.path[: len(LAKE)] != LAKE]
    assert [key.path for key in others] == [["users_report"]]
    assert graph.get(OURS).parent_keys == {dg.AssetKey([*LAKE, VISITS.staged.name])}
    assert graph.get(others[0]).parent_keys == {OURS}
    assert graph.get(others[0]).partitions_def == graph.get(OURS).partitions_def
    assert all(key.asset_key.path[: len(LAKE)] == LAKE for key in graph.asset_check_keys)
    lineage = graph.get(dg.AssetKey([*LAKE, VISITS.staged.name])).metadata["dagster/column_lineage"]
    sources = [dep.asset_key for deps in lineage.deps_by_column.values() for dep in deps]
    assert {*sources} == {dg.AssetKey([*LAKE, VISITS.raw.name])}
    assert graph.asset_check_keys


def launching_automation(definitions: dg.Definitions) -> dict[str, bool]:
    """The schedules and sensors that are on when they are loaded, and whether they are."""
    repository = definitions.get_repository_def()
    return {
        each.name: each.default_status.value == "RUNNING"
        for each in (*repository.schedule_defs, *repository.sensor_defs)
    }


def test_no_run_is_launched_that_nobody_has_asked_for():
    """What goes on with a plan, looks and alerts is on; the rest is turned on by somebody."""
    arguments = {"tables": [VISITS, active_users_7d], "key_prefix": "lake"}
    as_loaded = launching_automation(build_defs(**arguments))
    assert {name for name, is_on in as_loaded.items() if is_on} == {
        *("lake_planned_backfills", "lake_switch_overs", "lake_watch_days", "lake_alerts")
    }
    automated = launching_automation(build_defs(**arguments, automate=True))
    assert {name for name, is_on in automated.items() if is_on != as_loaded[name]} == {
        *("lake_nightly", "lake_touched_days", "lake_lost_retries")
    }


def test_a_function_translates_the_specs():
    changed = build_defs(
        tables=[VISITS, active_users_7d],
        translation=lambda spec: spec.replace_attributes(group_name="gold", owners=["team:lake"]),
    )
    graph = changed.resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert (node.group_name, node.owners) == ("gold", ["team:lake"])
    for name in (active_users_7d.name, VISITS.raw.name):
        assert graph.get(dg.AssetKey(name)).code_version


def test_tables_and_settings_are_arguments(monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_WINDOW_DAYS", "5")
    given = build_defs(
        tables=[VISITS, active_users_7d], warehouse="/lake", start="2024-03-01", window_days=2
    )
    graph = given.resolve_asset_graph()
    assert {key.to_user_string() for key in graph.get_all_asset_keys()} >= {
        *(table.name for table in VISITS.tables),
        active_users_7d.name,
    }
    node = graph.get(dg.AssetKey(active_users_7d.name))
    assert node.metadata["dagster/uri"] == "/lake/active_users_7d"
    assert node.partitions_def.get_first_partition_key() == "2024-03-01"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"tables": [VISITS.raw]},
            SettingsError,
            "^bad tables=: the source visits is listed without",
        ),
        ({"tables": [active_users_7d]}, SettingsError, "^bad tables=: stg_visits, an input of"),
        ({"tables": [VISITS, VISITS]}, SettingsError, "^bad tables=: two tables are named raw_vis"),
        ({"tables": []}, SettingsError, "^bad tables=: it has no table$"),
        ({"window_days": -1}, SettingsError, "^bad settings: window_days=-1: .*at least 0"),
        ({"warehose": "/lake"}, SettingsError, "warehose"),
        ({"key_prefix": "lake.gold"}, SettingsError, "key_prefix='lake.gold'"),
        (
            {"key_prefix": ["lake", "plan"]},
            SettingsError,
            "key_prefix=.'lake', 'plan'.: must not end in",
        ),
        ({"key_prefix": "shadow"}, SettingsError, "key_prefix='shadow': must not end in plan or"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        build_defs(**arguments)


def test_settings_are_given_in_one_way():
    with pytest.raises(TypeError, match="give settings, or warehouse as arguments, not both"):
        build_defs(load_settings(), warehouse="/lake")
    with pytest.raises(TypeError, match="give settings, or tables as arguments, not both"):
        build_defs(load_settings(), tables="visits:TABLES")


PREFIXES = ("lake/gold", "silver")
VISITS_MODULE = "backfill_assets_guide.examples.web_events"


def two_deployments() -> list[Deployment]:
    """The same tables in two warehouses."""
    return [
        Deployment(
            load_settings(key_prefix=prefix, warehouse=f"/{prefix}"), (VISITS, active_users_7d)
        )
        for prefix in PREFIXES
    ]


def build_two() -> dg.Definitions:
    """The definitions of both, as the page shows them."""
    block = code_blocks("docs/your-project.md", "python")[1]
    names = {"dg": dg, "build_defs": build_defs, "TABLES": [VISITS, active_users_7d]}
    definitions = eval(block, names)
    assert isinstance(definitions, dg.Definitions)
    return definitions


def names_in(definitions: dg.Definitions) -> set[str]:
    """The names of jobs, their ops, schedules and sensors."""
    repository = definitions.get_repository_def()
    jobs = [job for job in repository.get_all_jobs() if job.name != "__ASSET_JOB"]
    ops = repository.get_implicit_global_asset_job_def().nodes
    return {each.name for each in (*jobs, *ops, *repository.schedule_defs, *repository.sensor_defs)}


def test_names_of_deployments_with_other_prefixes_are_never_the_same():
    """With a prefix that ends in the first word of a name, they could be."""
    names = set[str]()
    for tables in ([VISITS], "backfill_assets_tests.contracts.every_kind:TABLES"):
        repository = build_defs(tables=tables).get_repository_def()
        automation = (*repository.schedule_defs, *repository.sensor_defs)
        names.update(each.name for each in (*repository.get_all_jobs(), *automation))
    words = {
        name.removesuffix(f"_{other}").rpartition("_")[2]
        for name, other in permutations(names, 2)
        if name.endswith(f"_{other}")
    }
    assert words == {"plan", "shadow"}
    for word in words:
        with pytest.raises(SettingsError):
            load_settings(key_prefix=f"lake_{word}")
    assert load_settings(key_prefix="lake/planning/daily")


def test_two_deployments_in_one_project():
    two = build_two()
    repository = two.get_repository_def()
    alone = names_in(build_defs(tables=[VISITS, active_users_7d]))
    prefixed = {f"{prefix}_{name}" for prefix in ("lake_gold", "silver") for name in alone}
    assert names_in(two) == prefixed
    for job in repository.get_all_jobs():
        run = Mock(job_name=job.name, asset_selection=None)
        assert job.name == "__ASSET_JOB" or any(each.owns_run(run) for each in two_deployments())
    assert repository.get_top_level_resources().keys() == {
        f"{key}_{suffix}"
        for key in (IO_MANAGER_KEY, ENGINE_KEY)
        for suffix in ("lake_gold", "silver")
    }
    for deployment in two_deployments():
        own_key = deployment.asset_key(active_users_7d.name)
        node = repository.asset_graph.get(own_key)
        assert node.metadata["dagster/uri"] == deployment.table_url(active_users_7d.name)
        io_manager_key = node.assets_def.get_io_manager_key_for_asset_key(own_key)
        assert io_manager_key == deployment.resource_key(IO_MANAGER_KEY)
        # What a run may write, asks for and evaluates are its own.
        job = repository.get_job(deployment.automation_name("daily"))
        keys = {*job.asset_layer.selected_asset_keys}
        assert len(deployment.asset_names(keys)) == len(keys)
        for node in job.nodes:
            assert node.name.startswith(deployment.automation_name(""))
            of_others = {IO_MANAGER_KEY, ENGINE_KEY} & node.definition.required_resource_keys
            assert not of_others


@pytest.mark.parametrize("prefix", ["silver", None])
def test_two_deployments_need_prefixes_of_their_own(prefix):
    key = IO_MANAGER_KEY + (f"_{prefix}" if prefix else "")
    message = f"Definitions objects 0 and 1 have different resources with same key '{key}'"
    with pytest.raises(dg.DagsterInvariantViolationError, match=message):
        dg.Definitions.merge(
            *(build_defs(tables=[VISITS], key_prefix=prefix, warehouse=url) for url in ("/a", "/b"))
        )
    assert message.replace(key, IO_MANAGER_KEY) in Path("docs/your-project.md").read_text()


def land_visits(landing: str, day: date, count: int, bad_lines: int = 0) -> None:
    """Put visits of a day into its folder, and lines that are none."""
    folder = Path(landing, "visits", f"arrival_date={day}")
    folder.mkdir(parents=True)
    times = dict.fromkeys(["began_at", "sent_at"], f"{day}T10:00:00Z")
    visit = {"user_id": "u", "page": "/", "clicks": 2, "logged_in": True, **times}
    lines = [json.dumps({"visit_id": f"{day} {n}", **visit}) for n in range(count)]
    (folder / "part-0.jsonl").write_text("\n".join([*lines, *["no JSON"] * bad_lines]))


def published_rows(deployment: Deployment) -> dict[str, dict[date, int]]:
    """By table, the number of rows of each published day."""
    return {
        name: {day: record.days[day].rows for day, record in ledger.latest.items()}
        for name, ledger in read_ledgers(deployment).items()
    }


def test_one_run_of_two_deployments(engine, tmp_path):
    """The second day of one of them fails: the other has it, and is undone alone."""
    first, second = days = [date(2024, 1, 1), date(2024, 1, 2)]
    settings = [
        load_settings(
            key_prefix=prefix,
            landing=str(tmp_path / prefix / "landing"),
            warehouse=str(tmp_path / prefix / "warehouse"),
            end=days[-1] + timedelta(days=1),
            tables=f"{VISITS_MODULE}:TABLES",
        )
        for prefix in PREFIXES
    ]
    for count, each in enumerate(settings, 1):
        land_visits(each.landing, first, count)
        land_visits(each.landing, second, count, bad_lines=2000 * (each.key_prefix == "silver"))
    repository = dg.Definitions.merge(
        *(build_defs(each, engine=engine) for each in settings)
    ).get_repository_def()
    gold, silver = map(Deployment, settings)
    names = [VISITS.raw.name, VISITS.rejected.name, VISITS.staged.name, active_users_7d.name]
    with memory_instance() as instance:
        result = repository.get_implicit_global_asset_job_def().execute_in_process(
            instance=instance,
            asset_selection=[each.asset_key(name) for each in (gold, silver) for name in names],
            tags={
                "dagster/asset_partition_range_start": str(first),
                "dagster/asset_partition_range_end": str(second),
            },
            raise_on_error=False,
        )
        failures = {
            event.step_key: str(event.step_failure_data.user_failure_data.description)
            for event in result.all_events
            if event.is_step_failure
        }
        assert [*failures] == ["silver_check_days"]
        assert "raw_visits[2024-01-02]" in failures["silver_check_days"]
        both = dict.fromkeys(days, 1)
        assert published_rows(gold)[VISITS.staged.name] == both
        assert published_rows(gold)[active_users_7d.name] == both
        assert published_rows(silver)[VISITS.staged.name] == {first: 2}
        assert published_rows(silver)[active_users_7d.name] == {first: 1}
        records = read_ledgers(silver)[active_users_7d.name].records
        assert {record.key_prefix for record in records} == {"silver"}

        config = {"backfill": result.run_id[:8], "reason": "a ticket"}
        repository.get_job("lake_gold_undo").execute_in_process(
            instance=instance,
            run_config={"ops": {"lake_gold_put_back": {"config": config}}},
        )
    assert not any(published_rows(gold).values())
    assert published_rows(silver)[active_users_7d.name] == {first: 1}


@pytest.mark.skipif(not DBT.exists(), reason="dbt is not installed: make dbt")
def test_models_of_dbt_read_what_was_published(engine, tmp_path):
    """dbt alone; `system/test_dbt.py` has the models in a backfill of Dagster's."""
    day = date(2024, 1, 1)
    landing, warehouse, reports = (
        tmp_path / name for name in ("landing", "lake", "reports.duckdb")
    )
    write_visits(landing, days=1, lines_a_day=20)
    settings = load_settings(
        landing=str(landing),
        warehouse=str(warehouse),
        end=day + timedelta(days=1),
        tables=f"{VISITS_MODULE}:TABLES",
    )
    tables = [VISITS.raw.name, VISITS.rejected.name, VISITS.staged.name, active_users_7d.name]
    repository = build_defs(settings, engine=engine).get_repository_def()
    with memory_instance() as instance:
        repository.get_implicit_global_asset_job_def().execute_in_process(
            instance=instance,
            asset_selection=[*map(dg.AssetKey, tables)],
            partition_key=str(day),
        )
    folder = Path(host_project.__file__).parent / "dbt"
    options = {
        "--project-dir": folder,
        "--profiles-dir": folder,
        "--target-path": tmp_path / "target",
        "--log-path": tmp_path / "logs",
        "--event-time-start": day,
        "--event-time-end": settings.end,
    }
    process = subprocess.run(
        [DBT, "build", *map(str, itertools.chain.from_iterable(options.items()))],
        env={
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "BACKFILL_ASSETS_WAREHOUSE": str(warehouse),
            "REPORTS_DUCKDB": str(reports),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-6000:]
    assert "PASS=3" in process.stdout  # the model and its two tests
    (users,) = DeltaTable(str(warehouse / active_users_7d.name)).to_pyarrow_table().to_pylist()
    with duckdb.connect(reports, read_only=True) as connection:
        columns = "run_date, clicks, users, clicks_per_user"
        rows = connection.sql(f"select {columns} from clicks_per_user").fetchall()
    assert rows == [(day, users["clicks"], users["users"], users["clicks"] / users["users"])]


def test_a_deployment_waits_for_its_own_runs_alone():
    gold, silver = two_deployments()
    with memory_instance() as instance:
        batch = create_run_for_test(
            instance,
            job_name=silver.automation_name("daily"),
            status=dg.DagsterRunStatus.STARTED,
            asset_selection=frozenset([silver.asset_key(VISITS.raw.name)]),
            tags={BATCH_TAG: LOAD},
        )
        undo = create_run_for_test(
            instance, job_name=silver.automation_name("undo"), status=dg.DagsterRunStatus.STARTED
        )
        assert unfinished_batch_runs(instance, silver) == [batch.run_id]
        assert unfinished_batch_runs(instance, gold) == []
        assert tables_in_progress(instance, gold) == {}
        assert tables_in_progress(instance, silver) == {
            batch.run_id: {VISITS.raw.name},
            undo.run_id: {*silver.tables},
        }
        assert [gold.owns_run(batch), gold.owns_run(undo)] == [False, False]
        assert [silver.owns_run(batch), silver.owns_run(undo)] == [True, True]
        assert Deployment(load_settings()).owns_run(batch), "without a prefix, of the instance"
        job = gold.automation_name("undo")
        undo = create_run_for_test(instance, job_name=job, status=dg.DagsterRunStatus.STARTED)
        lake = Deployment(load_settings(key_prefix="lake"))
        assert [lake.owns_run(undo), gold.owns_run(undo)] == [False, True]
        assert tables_in_progress(instance, lake) == {}
        instance.delete_run(undo.run_id)
        # A backfill of Dagster's: all tables of its deployment wait for it.
        graph = build_two().resolve_asset_graph()
        days = {VISITS.raw.name: [silver.settings.start]}
        add_backfill(silver, instance, graph, "byhand12", days, {}, title="", reason="")
        assert tables_in_progress(instance, gold) == {}
        assert tables_in_progress(instance, silver)["byhand12"] == {*silver.tables}


def test_a_deployment_leaves_the_plans_of_another_alone():
    gold, silver = two_deployments()
    repository = build_two().get_repository_def()
    with memory_instance() as instance:
        for deployment, id_ in ((gold, "goldgold"), (silver, "silverss")):
            state = save_plan(instance, id_)
            prefix = deployment.settings.key_prefix
            state_store.save(instance, state.model_copy(update={"key_prefix": prefix, "made": 1.0}))
        instance.add_dynamic_partitions(state_store.ACTIVE, ["silverss"])
        ids = state_store.list_ids(instance)
        assert state_store.own_ids(gold, instance, ids) == ["goldgold"]
        assert state_store.own_ids(silver, instance, ids) == ["silverss"]
        assert state_store.own_ids(Deployment(load_settings()), instance, ids) == []
        with (
            patch.object(stages, "refuse_without_daemons"),
            pytest.raises(BackfillRefusedError, match="under the key prefix 'silver', and th"),
        ):
            graph = repository.asset_graph
            backfill_jobs.launch_plan(gold, graph, instance, gold.code, "silverss")

        with pytest.raises(BackfillRefusedError, match="backfill silverss is of another deploymen"):
            refuse_unknown(gold, instance, "silverss")
        refuse_unknown(silver, instance, "silverss")

        def tick(deployment: Deployment) -> str | None:
            name = deployment.automation_name("planned_backfills")
            context = dg.build_sensor_context(instance, repository_def=repository)
            return repository.get_sensor_def(name).evaluate_tick(context).skip_message

        assert tick(gold) == "no planned backfill is under way"
        # Its table is not one of this project; its own sensor ends it.
        assert "has no table fact_daily_orders" in str(tick(silver))
        assert state_store.active_ids(instance) == []
        assert state_store.delete_older(gold, instance, 2.0) == ["goldgold"]


def test_code_locations_that_share_a_sensor_share_its_plans():
    """Without prefixes, they could not tell whose a plan is."""

    def ticked(location: str, sensor: str, ago: float) -> SimpleNamespace:
        origin = SimpleNamespace(code_location_origin=SimpleNamespace(location_name=location))
        return SimpleNamespace(
            instigator_name=sensor,
            instigator_data=SensorInstigatorData(last_tick_timestamp=time.time() - ago),
            origin=SimpleNamespace(repository_origin=origin),
        )

    states = [
        ticked("here", "planned_backfills", 1),
        ticked("there", "planned_backfills", 1),
        ticked("gone", "planned_backfills", 100),
        ticked("prefixed", "silver_planned_backfills", 1),
    ]
    instance = SimpleNamespace(all_instigator_state=lambda: states)
    here = SimpleNamespace(location_name="here")
    context = SimpleNamespace(
        code_location_origin=here, sensor_name="planned_backfills", instance=instance
    )
    assert internals.other_locations(context, 60) == ["there"]
    # The alerts say so before there is a plan.
    (incident,) = twin_locations(context)
    assert incident.kind == "two deployments with one prefix"
    assert "the code location(s) gone, there have the sensor" in incident.detail
    instance.all_instigator_state = lambda: states[:1]
    assert twin_locations(context) == []
    instance.all_instigator_state = lambda: states
    definitions = build_defs(tables=[VISITS, active_users_7d])
    sensor = definitions.get_repository_def().get_sensor_def("planned_backfills")
    with memory_instance() as dagster:
        save_plan(dagster, "planplan")
        dagster.add_dynamic_partitions(state_store.ACTIVE, ["planplan"])
        context = dg.build_sensor_context(dagster, sensor_name=sensor.name)
        with (
            patch.object(internals, "other_locations", lambda *_: ["there"]),
            pytest.raises(BackfillRefusedError) as raised,
        ):
            sensor.evaluate_tick(context)
    message = str(raised.value)
    assert message.startswith("the code location(s) there have the sensor planned_backfills as")
    assert "BACKFILL_ASSETS_KEY_PREFIX" in message


def test_projects_that_share_a_warehouse_keep_each_others_versions(tmp_path):
    """Of the tables of one project, and then of another."""
    ours, theirs = (
        {name: Mock(version=n, table=Mock(asset_name=name))}
        for n, name in enumerate(("ours", "theirs"))
    )
    for name in ("ours", "theirs"):
        (tmp_path / name / "_delta_log").mkdir(parents=True)
    assert save_versions(str(tmp_path), ours)
    assert save_versions(str(tmp_path), theirs)
    assert versions_that_belong_together(str(tmp_path)) == {"ours": 0, "theirs": 1}
    assert not save_versions(str(tmp_path), ours)
    ours["ours"].version = 7
    assert save_versions(str(tmp_path), ours)
    assert versions_that_belong_together(str(tmp_path)) == {"ours": 7, "theirs": 1}
    shutil.rmtree(tmp_path / "theirs")  # dropped: a reader of all names would not open it
    assert save_versions(str(tmp_path), ours)
    assert versions_that_belong_together(str(tmp_path)) == {"ours": 7}


def test_a_target_of_another_project_in_the_warehouse_is_theirs(tmp_path, monkeypatch):
    deployment = Deployment(load_settings(warehouse=str(tmp_path)), (VISITS, active_users_7d))
    listed = {"ours": {active_users_7d.name: 1}, "theirs": {"fact_daily_orders": 1}}
    monkeypatch.setattr(targets, "list_targets", lambda _: [*listed])
    monkeypatch.setattr(
        targets, "load_target", lambda _, name: SimpleNamespace(name=name, tables=listed[name])
    )
    assert [target.name for target in targets.readable_targets(deployment)] == ["ours"]


#: Of the extras, what the plain install lacks.
EXTRAS = ["dagster_webserver", "openlineage", "prometheus_client", "psycopg2", "pyrate_limiter"]
#: The modules with private names of Dagster that a project's definitions load.
NEEDED_OF_DAGSTER = {"failures", "internals", "run_locks"}
#: Tables of which one asks a service.
ASKING = "backfill_assets_guide.drills.euro_tables:TABLES"
PLAIN_INSTALL = f"""
import sys
sys.modules |= dict.fromkeys({EXTRAS})
from backfill_assets import build_defs
from backfill_assets.cli import main
from backfill_assets_guide.examples.host_project.definitions import defs
assert defs().get_repository_def().get_all_jobs()
print("of Dagster:", *(m for m in sys.modules if m.startswith("backfill_assets.dagster_ext.")))
for arguments in ({{"metrics_file": "/m.prom"}}, {{"lineage": "shop"}}, {{"tables": "{ASKING}"}}):
    try:
        build_defs(**arguments)
    except ValueError as error:
        print(error)
print(main(["ui"]))
"""


def test_a_library_needs_no_extra(tmp_path):
    """What an extra is for says which one, and a project without it needs none.

    Nor does it load the options for one machine, with the private names of Dagster that are theirs.
    """
    process = subprocess.run(
        [sys.executable, "-c", PLAIN_INSTALL],
        env={**os.environ, "DAGSTER_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    output = process.stdout + process.stderr
    (loaded,) = re.findall(r"^of Dagster: (.*)", output, re.MULTILINE)
    assert {module.rpartition(".")[2] for module in loaded.split()} == NEEDED_OF_DAGSTER
    for extra, feature in {
        "serve": "a file of metrics",
        "openlineage": "lineage",
        "lookups": "a table that asks a service",
    }.items():
        assert f"{feature} needs a package: pip install 'backfill-assets[{extra}]'" in output
    assert "the UI needs a package: pip install 'backfill-assets[serve]'" in output
