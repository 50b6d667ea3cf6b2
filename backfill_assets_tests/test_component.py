"""The component: a project of Dagster's `dg` whose `defs.yaml` says what the settings are."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date
from importlib.metadata import entry_points

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox

import backfill_assets
from backfill_assets.definitions import build_defs
from backfill_assets.orders.tables import TABLES
from backfill_assets.settings import Settings, SettingsError, load_settings
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.pipeline import io_manager_of

# Dagster makes the checks of a component anew, and warns of an argument that it gives itself.
pytestmark = pytest.mark.filterwarnings("ignore:Parameter `execution_type`:dagster.BetaWarning")

PYPROJECT = """\
[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "{name}"
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads the definitions of a project with one `defs.yaml`, as `dg dev` would."""
    name = tmp_path.name
    folder = tmp_path / name / "defs" / "daily"
    folder.mkdir(parents=True)
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.format(name=name))
    monkeypatch.syspath_prepend(tmp_path)

    def load_project(text: str) -> dg.Definitions:
        (folder / "defs.yaml").write_text(text)
        return dg.load_from_defs_folder(path_within_project=tmp_path)

    return load_project


def component_yaml(**attributes: object) -> str:
    document: dict[str, object] = {"type": "backfill_assets.BackfillAssets"}
    return yaml.safe_dump(document | ({"attributes": attributes} if attributes else {}))


def find_warehouse(defs: dg.Definitions) -> str:
    return io_manager_of(defs).deployment.settings.warehouse


def asset_partitions(defs: dg.Definitions, asset: str) -> dg.DailyPartitionsDefinition:
    partitions = defs.resolve_asset_graph().get(dg.AssetKey(asset)).partitions_def
    assert isinstance(partitions, dg.DailyPartitionsDefinition)
    return partitions


def definition_names(defs: dg.Definitions) -> dict[str, set]:
    """All that definitions consist of, by name."""
    repository = defs.get_repository_def()
    return {
        "assets": set(repository.asset_graph.get_all_asset_keys()),
        "checks": set(repository.asset_graph.asset_check_keys),
        "jobs": {job.name for job in repository.get_all_jobs()},
        "schedules": {schedule.name for schedule in repository.schedule_defs},
        "sensors": {sensor.name for sensor in repository.sensor_defs},
        "resources": set(repository.get_top_level_resources()),
    }


def load_error(load, text: str) -> BaseException | None:
    """What was wrong; Dagster says around it where."""
    with pytest.raises(Exception, match="Error while loading component daily") as caught:
        load(text)
    return caught.value.__cause__


def test_the_page_shows_a_component(load, monkeypatch):
    monkeypatch.setenv("VISITS_BUCKET", "s3a://visits")
    monkeypatch.setenv("BACKFILL_ASSETS_END", "2024-04-01")
    (block,) = code_blocks("docs/settings.md", "yaml")
    defs = load(block)
    names = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
    assert names >= {"raw_visits", "stg_visits", "active_users_7d"}
    assert names.isdisjoint(TABLES)
    partitions = asset_partitions(defs, "active_users_7d")
    assert partitions.timezone == "Europe/Berlin"
    keys = partitions.get_partition_keys()
    assert (keys[0], keys[-1]) == ("2024-03-01", "2024-03-31")


def test_it_has_all_that_the_definitions_of_the_settings_have(load):
    defs = load(component_yaml(window_days=2))
    assert definition_names(defs) == definition_names(build_defs(load_settings(window_days=2)))
    assert all(definition_names(defs).values())
    assert defs.executor is None  # that of the project's other definitions counts


def test_it_automates_if_it_is_asked_to(load):
    for attributes, status in (({}, "STOPPED"), ({"automate": True}, "RUNNING")):
        defs = load(component_yaml(window_days=2, **attributes))
        schedule = defs.get_repository_def().get_schedule_def("nightly")
        assert schedule.default_status.value == status


def test_the_environment_gives_what_the_yaml_leaves_out(load, monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", "/of/environment")
    monkeypatch.setenv("BACKFILL_ASSETS_START", "2024-02-01")
    monkeypatch.setenv("BACKFILL_ASSETS_TIMEZONE", "Asia/Tokyo")
    for text in (
        component_yaml(start=date(2024, 3, 1)),
        component_yaml(start="2024-03-01", warehouse="", timezone=None),
    ):
        defs = load(text)
        partitions = asset_partitions(defs, "stg_orders")
        assert (partitions.start.date(), partitions.timezone) == (date(2024, 3, 1), "Asia/Tokyo")
        assert find_warehouse(defs) == "/of/environment"


def test_without_attributes_all_comes_from_the_environment(load, monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_START", "2024-02-01")
    assert asset_partitions(load(component_yaml()), "stg_orders").start.date() == date(2024, 2, 1)


def test_the_yaml_wins_over_the_environment(load, monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_WAREHOUSE", "/of/environment")
    monkeypatch.setenv("BACKFILL_ASSETS_WINDOW_DAYS", "not even a number")
    defs = load(component_yaml(warehouse="/of/yaml", window_days=4))
    assert find_warehouse(defs) == "/of/yaml"
    mappings = defs.resolve_asset_graph().get(dg.AssetKey("stg_orders")).partition_mappings
    mapping = mappings[dg.AssetKey("raw_orders")]
    assert isinstance(mapping, dg.TimeWindowPartitionMapping)
    assert mapping.end_offset == 4


def make_component(**attributes: object) -> backfill_assets.BackfillAssets:
    return backfill_assets.BackfillAssets.from_attributes_dict(attributes=attributes)


def test_a_template_is_filled_in_and_other_text_stays_as_it_is(monkeypatch):
    monkeypatch.setenv("HOUSE", "/of/template")
    monkeypatch.setenv("DAYS", "5")
    conf = {"spark.sql.shuffle.partitions": "64", "spark.x": "{{ env.HOUSE }}"}
    settings = make_component(
        warehouse="{{ env.HOUSE }}/w",
        window_days="{{ env.DAYS }}",
        end="{{ env.NOT_SET }}",
        git_commit="1234567",
        spark_conf=conf,
    ).settings
    assert (settings.warehouse, settings.window_days) == ("/of/template/w", 5)
    assert settings.end is None
    assert settings.git_commit == "1234567"
    assert settings.spark_conf.items() >= (conf | {"spark.x": "/of/template"}).items()


def test_entries_of_spark_are_added_to_those_of_the_environment(monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_SPARK_CONF", '{"spark.x": "1", "spark.y": "1"}')
    conf = make_component(spark_conf={"spark.y": "2"}).settings.spark_conf
    assert conf == {"spark.x": "1", "spark.y": "2"}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("timezone", "Mars", "timezone='Mars': must be an IANA time zone such as UTC or"),
        ("start", 20240101, "start=20240101: must be a day as YYYY-MM-DD"),
        ("start", 1704067200, "start=1704067200: must be a day as YYYY-MM-DD"),
        ("window_days", -1, "window_days=-1: Input should be greater than or equal to 0"),
        ("window_days", [1], "window_days=[1]: Input should be a valid integer"),
        ("late_lines", "keep", "late_lines='keep': Input should be 'correct' or 'drop'"),
        ("spark_remote", "local", "spark_remote='local': must be a Spark Connect URL"),
        ("spark_conf", {"a": 1}, "spark_conf[a]=(hidden): Input should be a valid string"),
        ("webhook", "chat/T123", "webhook=(hidden): must be an http"),
    ],
)
def test_a_bad_value_is_named_in_one_sentence(load, name, value, said):
    error = load_error(load, component_yaml(**{name: value}))
    assert isinstance(error, SettingsError)
    assert str(error).startswith(f"bad settings: {said}")
    assert "\n" not in str(error)


def test_a_bad_variable_is_named_as_such(load, monkeypatch):
    monkeypatch.setenv("BACKFILL_ASSETS_WINDOW_DAYS", "-1")
    error = load_error(load, component_yaml(timezone="Mars"))
    assert "BACKFILL_ASSETS_WINDOW_DAYS='-1': " in str(error)
    assert " timezone='Mars': " in str(error)


def test_a_misspelt_attribute_is_named_with_its_line(load):
    message = str(load_error(load, component_yaml(warehose="/w")))
    assert re.search(
        r"attributes\.warehose at \S+/daily/defs\.yaml:2`\s+Extra inputs are not", message
    )


def test_attributes_are_the_settings():
    """As Dagster shows them: what each may be, but for its default."""
    # The last two are no rules of JSON Schema; pydantic has them of what is text or a number.
    ignored_rules = ("default", "format", "ge", "le")
    shown, fields = (
        {
            name: {rule: what for rule, what in schema.items() if rule not in ignored_rules}
            for name, schema in model.model_json_schema(by_alias=False)["properties"].items()
        }
        for model in (backfill_assets.BackfillAssets.get_model_cls(), Settings)
    )
    assert shown.pop("automate")["type"] == "boolean"
    assert shown == fields
    assert shown["window_days"]["maximum"] == 366


def test_the_package_itself_loads_no_dagster_and_a_reader_of_versions_no_pyspark(tmp_path):
    (tmp_path / "_versions.json").write_text('{"tables": {"scores": 7}}')
    code = (
        "import backfill_assets, sys; print({'dagster', 'pyspark', 'pydantic'} & {*sys.modules});"
        "from backfill_assets.delta.consistent_versions import versions_that_belong_together as v;"
        f"print(v({str(tmp_path)!r}), {{'pyspark', 'pandera'}} & {{*sys.modules}})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "set()\n{'scores': 7} set()\n"


def test_dagsters_command_finds_the_component():
    (entry,) = entry_points(group="dagster_dg_cli.registry_modules", name="backfill_assets")
    assert "BackfillAssets" in dir(entry.load())


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")  # of its references to code
def test_dagsters_command_writes_declarations_that_load():
    with create_defs_folder_sandbox() as sandbox:
        (sandbox.defs_folder_path.parent / "__init__.py").touch()  # as in projects of `dg`
        folder = sandbox.scaffold_component(backfill_assets.BackfillAssets, "lake")
        with sandbox.load_component_and_build_defs(folder) as (component, defs):
            assert isinstance(component, backfill_assets.BackfillAssets)
            keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
            assert keys >= {"raw_payments", "stg_payments", "account_totals_7d"}
            # The sample's first day is the first partition.
            sample = (folder / "sample.py").read_text()
            first = asset_partitions(defs, "account_totals_7d").get_first_partition_key()
            assert f'fromisoformat("{first}")' in sample
