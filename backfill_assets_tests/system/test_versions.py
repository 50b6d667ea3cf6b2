"""Two versions of a table side by side: fed, read and retired by themselves."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import date, datetime, time, timezone
from functools import partial
from pathlib import Path

import dagster as dg
import pytest

from backfill_assets import version_of
from backfill_assets.assets import backfill_jobs
from backfill_assets.backfills import stages
from backfill_assets.backfills.backfill_plan import BackfillRequest
from backfill_assets.backfills.planner import refuse_invalid_request
from backfill_assets.backfills.verify import verify_days
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.dagster_ext.internals import BaseAssetGraph
from backfill_assets.definitions import build_defs
from backfill_assets.delta import commits, targets
from backfill_assets.delta.history import format_day_history, format_history
from backfill_assets.delta.maintenance import MaintenanceResult, run_maintenance
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.incidents import find_incidents, read_snapshot
from backfill_assets.monitoring.next_runs import RunPlanner
from backfill_assets.monitoring.states import DayState, day_states
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.settings import SettingsError, load_settings
from backfill_assets.shadow.build import target_tables
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.graph import buildable_tables, load_graph, tables_of
from backfill_assets.tables.table_options import OPTION_NAMES
from backfill_assets_tests import version_tables_second as second
from backfill_assets_tests.helpers.invented_logs import days
from backfill_assets_tests.helpers.pipeline import (
    Pipeline,
    copy_loaded,
    day,
    make_plan,
    order,
    run_undo,
)
from backfill_assets_tests.version_tables_second import RETIRES

#: A day on which nothing of before can be undone any more.
GONE = RETIRES + 100 * DAY
DATES = {"start": date(2024, 1, 1), "end": date(2024, 2, 1)}
PLACE = "backfill_assets_tests.version_tables_second:"
MADE = ("spent", "spent_v2", "logged", "logged_v2", "most", "most_v2")
STAGING = ("raw_orders", "stg_orders")
FIRST, SECOND = ("spent", "logged", "most"), ("spent_v2", "logged_v2", "most_v2")


class KilledError(Exception):
    """Stands for the end of the process."""


def _raise(*_: object, **__: object) -> None:
    raise KilledError


def deploy(engine, root: Path, tables: str, today: date) -> Pipeline:
    return Pipeline(engine, root, tables=f"{PLACE}{tables}", window_days=1, today=today)


@pytest.fixture(scope="module")
def loaded(engine, spark, tmp_path_factory) -> Path:
    """Two days by both versions, to be copied."""
    before = deploy(engine, tmp_path_factory.mktemp("loaded"), "TABLES", day(3))
    for n in (1, 2):
        before.land(n, [order(str(n), n)])
    before.run(1, 2, [*STAGING, *MADE])
    return before.root


@pytest.fixture
def deployed(engine, loaded, tmp_path):
    """Deployments on the same copy of the loaded tables, by some declaration and day."""
    copy_loaded(loaded, tmp_path)
    return partial(deploy, engine, tmp_path)


def orders_by_day(pipeline: Pipeline, name: str) -> dict[date, int]:
    return {row["run_date"]: row["orders"] for row in pipeline.rows(name)}


def requested_tables(pipeline: Pipeline, today: date) -> set[str]:
    """Of which tables the schedule and the sensors ask for days, sooner or later in a night."""
    planner = RunPlanner(pipeline.deployment)
    requests = [*planner.plan_loads(today), *planner.plan_rebuilds(today, {})]
    return {name for request in requests for name in request.tables}


def test_both_are_fed_and_read_until_one_is_retired(deployed):
    before = deployed("TABLES", day(3))
    for n, name in enumerate(MADE):
        assert orders_by_day(before, name) == dict.fromkeys((day(1), day(2)), 1 + n % 2), name
    # On the day before it retires, the table is still fed: what has landed is asked for ...
    before.land(3, [order("3", 3), order("late", 2, customer="c1")])
    after = deployed("RETIRED", RETIRES)
    assert requested_tables(after, RETIRES - DAY) >= {"logged", "logged_v2"}
    assert "logged" not in (requested := requested_tables(after, RETIRES))
    assert requested >= {"raw_orders", "logged_v2"}
    # ... and so is what follows from it, late lines included.
    after.run(2, 3, STAGING)
    assert requested_tables(after, RETIRES - DAY) >= {*MADE}
    requested = requested_tables(after, RETIRES)
    assert requested >= {*SECOND, "fact_daily_orders"}
    assert requested.isdisjoint(FIRST)
    after.run(2, 3, ["spent_v2"])
    assert orders_by_day(after, "spent_v2") == {day(1): 2, day(2): 4, day(3): 2}
    assert orders_by_day(after, "spent") == {day(1): 1, day(2): 1}
    now = read_snapshot(after.deployment, after.instance, after.now)
    for name in FIRST:
        assert set(day_states(name, now).values()) == {DayState.RETIRED}
    incident_tables = {incident.subject for incident in find_incidents(now)}
    assert "raw_orders" in incident_tables, "days 4 to 9 have not landed"
    assert incident_tables.isdisjoint(FIRST)
    # Without the date, what was missed is due again.
    back = deployed("TABLES", RETIRES)
    assert requested_tables(back, RETIRES) >= {*FIRST}


def maintain_tables(
    pipeline: Pipeline, today: date, names: Sequence[str] = ("spent",), *, dry_run: bool = False
) -> dict[str, MaintenanceResult]:
    spark = pipeline.io_manager.engine.spark_session
    results = run_maintenance(spark, pipeline.deployment, names, today=today, dry_run=dry_run)
    return {result.table: result for result in results}


def data_files(pipeline: Pipeline, name: str) -> list[Path]:
    paths = (pipeline.warehouse / name).rglob("*.parquet")
    return sorted(file for file in paths if "_delta_log" not in file.parts)


def render_history(pipeline: Pipeline, name: str, partition_day: date | None = None) -> str:
    table = (
        format_day_history(pipeline.deployment, name, partition_day)
        if partition_day
        else format_history(pipeline.deployment, name)
    )
    return "\n".join("  ".join(row) for row in table.rows)


def test_the_files_of_a_retired_table_leave_for_good_when_the_time_to_undo_is_over(deployed):
    before = deployed("TABLES", day(3))
    run = before.run(1, 2, ["spent"], tags={REWRITE_TAG: "true"}).run_id
    after = deployed("RETIRED", RETIRES)
    last = RETIRES + (after.settings.undo_days - 1) * DAY
    files = data_files(after, "spent")
    maintain_tables(after, last)
    assert data_files(after, "spent") == files
    # What was made before can be undone until then.
    run_undo(after, run)
    assert orders_by_day(after, "spent") == {day(1): 1, day(2): 1}
    preview = maintain_tables(after, last + DAY, dry_run=True)
    assert len(data_files(after, "spent")) == preview["spent"].removed >= 2
    assert orders_by_day(after, "spent") == {day(1): 1, day(2): 1}
    results = maintain_tables(after, last + DAY, FIRST)
    assert "given up, as the table is retired" in render_history(after, "spent", day(1))
    assert "taken back" in render_history(after, "spent")
    assert "retirement by maintenance" in render_history(after, "spent")
    assert results["spent"].removed == preview["spent"].removed
    assert "retired since 2024-01-10; its days 2024-01-01...2024-01-02" in results["spent"].notes[0]
    for name in FIRST:
        assert data_files(after, name) == []
        assert [*(after.warehouse / name).glob("run_date=*")] == []
        assert after.rows(name) == []
    assert {len(orders_by_day(after, name)) for name in SECOND} == {2}
    next_result = maintain_tables(after, last + 2 * DAY)["spent"]
    assert (next_result.removed, next_result.notes, next_result.problems) == (0, [], [])
    # The declaration is put back as it was: the table is not what it was.
    message = before.failure(before.run(1, 1, ["spent"], fails=True))
    assert "spent [2024-01-01]: the table is retired, and maintenance has taken its rows" in message
    assert "Nothing was written" in message
    shutil.rmtree(before.warehouse / "spent")
    before.run(1, 1, ["spent"])
    assert orders_by_day(before, "spent") == {day(1): 1}


def test_files_that_a_target_may_need_stay(deployed, monkeypatch):
    before = deployed("TABLES", day(3))
    described = targets.new_target(before.deployment, "v9", ["spent"], Window(day(1), day(2)))
    described = targets.clone_tables(before.deployment, described)
    targets.save_target(before.deployment, described)
    after = deployed("RETIRED", GONE)
    (note,) = maintain_tables(after, GONE)["spent"].notes
    assert "no file was taken away, as the target(s) v9 may still need it" in note
    assert orders_by_day(after, "spent") == {day(1): 1, day(2): 1}
    targets.drop_target(after.deployment, "v9")
    # Killed between the commit that leaves no row and the files: the next one removes them.
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(commits, "delete_data_files", _raise)
        maintain_tables(after, GONE)
    assert after.rows("spent") == []
    version, file_count = after.log("spent").version(), len(data_files(after, "spent"))
    assert maintain_tables(after, GONE)["spent"].removed == file_count == 2
    assert data_files(after, "spent") == []
    assert after.log("spent").version() == version


def test_a_table_with_memory_and_one_by_week_retire(engine, spark, tmp_path):
    tables, retired = "backfill_assets_tests.retired_memory:TABLES", ("so_far", "by_week")
    deploy = partial(Pipeline, engine, tmp_path, tables=tables, window_days=1)
    before, after = deploy(today=day(9)), deploy(today=RETIRES)
    for n in range(1, 8):
        before.land(n, [order(str(n), n)])
    before.run(1, 7, [*STAGING, "spent", "so_far"])
    before.run(1, 1, ["by_week"])
    rows = [orders_by_day(before, name) for name in retired]
    assert rows == [{day(n): n for n in range(1, 8)}, {day(1): 7}]
    # A day more, and a late line, which the week and all days of the state since would have.
    before.land(8, [order("8", 8), order("late", 7)])
    before.run(7, 8, [*STAGING, "spent"])
    assert orders_by_day(after, "spent") == {**dict.fromkeys(days((1, 8)), 1), day(7): 2}
    assert requested_tables(after, RETIRES - DAY) >= {*retired}
    assert requested_tables(after, RETIRES).isdisjoint(retired)
    now = read_snapshot(after.deployment, after.instance, after.now)
    assert {state for name in retired for state in day_states(name, now).values()} == {
        DayState.RETIRED
    }
    assert {incident.subject for incident in find_incidents(now)}.isdisjoint(retired)
    assert [orders_by_day(after, name) for name in retired] == rows
    session = after.io_manager.engine.spark_session
    for result in run_maintenance(session, after.deployment, retired, today=GONE):
        assert (result.removed or 0) >= 1
        assert after.rows(result.table) == data_files(after, result.table) == []


def test_a_kept_plan_of_a_table_that_is_retired_since_is_not_launched(deployed, monkeypatch):
    before = deployed("TABLES", day(3))
    plan = make_plan(before, str(day(1)), tables=("spent", "spent_v2"))
    after = deployed("RETIRED", RETIRES)
    monkeypatch.setattr(stages, "missing_daemons", lambda _: [])
    graph = after.repository.asset_graph
    with pytest.raises(ValueError, match="spent is retired since 2024-01-10: no day of it is"):
        backfill_jobs.launch_plan(after.deployment, graph, before.instance, after.code, plan.id)
    assert not before.instance.get_backfills()
    assert not before.instance.get_runs()


def test_dagster_shows_versions_and_retired_assets(engine):
    def asset_graph(today: date) -> BaseAssetGraph:
        settings = load_settings(tables=f"{PLACE}RETIRED", warehouse="/w", landing="/l", **DATES)
        clock = partial(datetime.combine, today, time(12), tzinfo=timezone.utc)
        defs = build_defs(settings, engine=engine, clock=clock)
        asset_keys = defs.get_repository_def().get_job("daily").asset_layer.executable_asset_keys
        selected = {key.to_user_string() for key in asset_keys}
        assert selected.isdisjoint(FIRST) == (today >= RETIRES)
        assert selected >= {*SECOND}
        return defs.resolve_asset_graph()

    before, after = asset_graph(RETIRES - DAY), asset_graph(RETIRES)
    for name in MADE:
        key = dg.AssetKey(name)
        assert before.get(key).is_materializable
        assert after.get(key).is_materializable == (name in SECOND)
        assert before.get(key).parent_keys == after.get(key).parent_keys
        assert after.get(key).partitions_def == before.get(key).partitions_def
        assert ("backfill_assets/retired" in before.get(key).tags) == (name in FIRST)
    tags = after.get(dg.AssetKey("spent_v2")).tags
    assert tags["backfill_assets/versions_of"] == "spent"
    assert tags["backfill_assets/version"] == "2"
    assert after.get(dg.AssetKey("spent")).description.endswith("Retired on 2024-01-10.")
    assert "backfill_assets/versions_of" not in after.get(dg.AssetKey("most")).tags


def test_what_is_retired_is_neither_planned_nor_verified(engine):
    settings = load_settings(tables=f"{PLACE}RETIRED", warehouse="/w", landing="/l", **DATES)
    defs = build_defs(settings, engine=engine)
    parameters = BackfillRequest(days="2024-01-01", tables=("spent",))
    for ask in (
        lambda: refuse_invalid_request(Deployment(settings), parameters),
        lambda: verify_days(Deployment(settings), defs, Window(day(1), day(2)), ["spent"]),
        lambda: target_tables(Deployment(settings), ["spent"]),
    ):
        with pytest.raises(ValueError, match="spent is retired since 2024-01-10: no day of it is"):
            ask()
    assert {*target_tables(Deployment(settings), [])} & {*MADE} == {*SECOND}


def test_what_cannot_be_declared():
    spent = second.TABLES[-6]
    with pytest.raises(DeclarationError, match="spent is version 1; give a new version a number"):
        version_of(spent, 1)(second.spent_v2)
    with pytest.raises(DeclarationError, match="logged_v2: there is no parameter orders"):
        version_of(spent, 2)(second.logged_v2)


def test_a_version_has_the_options_of_the_other_one_that_it_is_not_given():
    spent = second.TABLES[-6]
    same = version_of(spent, 2)(second.spent_v2)
    assert [getattr(same, n) for n in OPTION_NAMES] == [getattr(spent, n) for n in OPTION_NAMES]
    options = {"key": [], "totals": [], "merge": True, "drift": {"orders": 0.2}}
    other = version_of(spent, 2, checks=[], **options)(second.spent_v2)
    assert (other.partition, other.key, other.totals, other.merge) == ("run_date", (), (), True)
    assert [*other.notices] == ["drift"]
    assert [*version_of(other, 3, drift={})(second.spent_v2).notices] == []


@pytest.mark.parametrize(
    ("tables", "until"), [("READ", "is not"), ("READ_LONGER", "is retired on 2024-01-11 only")]
)
def test_a_table_that_is_read_cannot_be_retired(tables, until):
    with pytest.raises(
        SettingsError, match=f"retired on 2024-01-10, and most, .* it, {until}: let"
    ):
        tables_of(load_settings(tables=PLACE + tables))


def test_two_tables_are_not_the_same_version():
    with pytest.raises(SettingsError, match="spent_v2 and spent_too are both version 2"):
        tables_of(load_settings(tables=f"{PLACE}TWICE"))


def test_a_reader_may_have_moved_to_the_second_version():
    graph = load_graph(load_settings(tables=f"{PLACE}MOVED"))
    assert buildable_tables(graph, (), RETIRES - DAY) == (*graph.tables,)
    retired_tables = {*graph.tables} - {*buildable_tables(graph, (), RETIRES)}
    assert retired_tables == {"spent", "logged"}
    with pytest.raises(ValueError, match="spent is retired since 2024-01-10: no day of it is"):
        buildable_tables(graph, ["spent", "most"], RETIRES)
