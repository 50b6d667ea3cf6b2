"""Definitions that are merged with those of a project: what they bring, and what they leave."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from backfill_assets import build_defs, load_settings
from backfill_assets.deployment import IO_MANAGER_KEY
from backfill_assets.settings import SettingsError
from backfill_assets_guide.examples.host_project import definitions as host_project
from backfill_assets_guide.examples.host_project.definitions import LAKE, defs
from backfill_assets_guide.examples.web_events import VISITS, active_users_7d
from backfill_assets_tests.helpers.docs_pages import code_blocks

OURS = dg.AssetKey([*LAKE, active_users_7d.name])


@pytest.fixture(scope="module")
def repository() -> dg.RepositoryDefinition:
    return defs().get_repository_def()


def test_the_page_shows_the_example():
    block, _ = code_blocks("docs/your-project.md", "python")
    assert Path(host_project.__file__).read_text().endswith(f"\n{block}")


def test_the_projects_executor_and_io_manager_count(repository):
    job = repository.get_implicit_global_asset_job_def()
    assert job.executor_def.name == "multiprocess"
    resources = repository.get_top_level_resources()
    assert resources["io_manager"].configurable_resource_cls is dg.FilesystemIOManager
    ours = {name for name in resources if name.startswith("backfill_assets_")}
    assert resources.keys() - ours == {"io_manager"}
    managers = {
        key.path[-1]: node.assets_def.get_io_manager_key_for_asset_key(key)
        for key in repository.asset_graph.get_all_asset_keys()
        if (node := repository.asset_graph.get(key)).partitions_def
    }
    assert managers.pop("users_report") == "io_manager"
    assert {*managers.values()} == {IO_MANAGER_KEY}


def test_all_keys_of_the_tables_begin_with_the_prefix(repository):
    graph = repository.asset_graph
    others = [key for key in graph.get_all_asset_keys() if key.path[: len(LAKE)] != LAKE]
    assert [key.path for key in others] == [["users_report"]]
    assert graph.get(OURS).parent_keys == {dg.AssetKey([*LAKE, VISITS.staged.name])}
    assert graph.get(others[0]).parent_keys == {OURS}
    assert all(key.asset_key.path[: len(LAKE)] == LAKE for key in graph.asset_check_keys)
    lineage = graph.get(dg.AssetKey([*LAKE, VISITS.staged.name])).metadata["dagster/column_lineage"]
    sources = [dep.asset_key for deps in lineage.deps_by_column.values() for dep in deps]
    assert {*sources} == {dg.AssetKey([*LAKE, VISITS.raw.name])}
    assert graph.asset_check_keys


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


#: Of the extras, what the plain install lacks.
EXTRAS = ["dagster_webserver", "openlineage", "prometheus_client", "psycopg2", "pyrate_limiter"]
#: Tables of which one asks a service.
ASKING = "backfill_assets_guide.drills.euro_tables:TABLES"
PLAIN_INSTALL = f"""
import sys
sys.modules |= dict.fromkeys({EXTRAS})
from backfill_assets import build_defs
from backfill_assets.cli import main
from backfill_assets_guide.examples.host_project.definitions import defs
assert defs().get_repository_def().get_all_jobs()
for arguments in ({{"metrics_file": "/m.prom"}}, {{"lineage": "shop"}}, {{"tables": "{ASKING}"}}):
    try:
        build_defs(**arguments)
    except ValueError as error:
        print(error)
print(main(["ui"]))
"""


def test_a_library_needs_no_extra(tmp_path):
    """What an extra is for says which one, and a project without it needs none."""
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
    for extra, feature in {
        "serve": "a file of metrics",
        "openlineage": "lineage",
        "lookups": "a table that asks a service",
    }.items():
        assert f"{feature} needs a package: pip install 'backfill-assets[{extra}]'" in output
    assert "the UI needs a package: pip install 'backfill-assets[serve]'" in output
