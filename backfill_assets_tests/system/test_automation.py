"""Schedule, sensors and the checks on states, on real tables; nights on end are `test_nights`."""

from __future__ import annotations

import shutil
from datetime import datetime, timezone

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_spec import AssetCheckKey
from dagster._core.test_utils import create_run_for_test

from backfill_assets.calendar.partitions import DAYS_TAG
from backfill_assets.cli import main
from backfill_assets.monitoring.incidents import Monitor, find_incidents
from backfill_assets.monitoring.next_runs import tables_in_progress
from backfill_assets.orders.tables import (
    CORRECTIONS,
    CURRENT,
    FACT,
    LATE,
    RAW,
    REJECTED,
    STAGED,
)
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order

LOADING = {
    "raw_orders",
    "raw_orders_rejected",
    "late_orders",
    "arrival_lateness",
    "lateness_dashboard",
}
CHAIN = "stg_orders+fact_daily_orders+fact_daily_orders_current+fact_order_corrections"


def days_of(request: dg.RunRequest) -> tuple[str, str]:
    tags = request.tags
    first, last = (f"dagster/asset_partition_range_{end}" for end in ("start", "end"))
    return tags[first], tags[last]


def set_clock(pipeline: Pipeline, n: int, hour: int = 2) -> Pipeline:
    pipeline.now = datetime(2024, 1, n, hour, tzinfo=timezone.utc)
    return pipeline


def late_evaluation(pipeline: Pipeline, name: str, check: str):
    """The latest evaluation of a check."""
    key = AssetCheckKey(dg.AssetKey(name), check)
    (record, *_) = pipeline.instance.event_log_storage.get_asset_check_execution_history(key, 1)
    return record.event.dagster_event.asset_check_evaluation_data


# --- ticks before anything was loaded: no table, no Spark -----------------------------------------


@pytest.fixture
def waiting(engine, tmp_path) -> Pipeline:
    """Three days have landed, and nothing was ever loaded."""
    pipeline = Pipeline(engine, tmp_path)
    for n in (1, 2, 4):
        pipeline.land(n, [order(f"o{n}", n)])
    return pipeline


def test_the_night_asks_for_all_that_is_over_as_one_run(waiting):
    (request,) = set_clock(waiting, 5).tick_schedule()
    # The third day has no folder: its time has passed, so it is an empty day.
    assert days_of(request) == ("2024-01-01", "2024-01-04")
    assert {key.to_user_string() for key in request.asset_selection} == LOADING
    assert request.run_key.startswith("2024-01-05:raw_orders+")
    assert request.tags["dagster/schedule_name"] == "nightly"
    (second_request,) = set_clock(waiting, 5).tick_schedule()
    assert second_request.run_key == request.run_key, "asked for twice in one night, it is run once"
    (next_night,) = set_clock(waiting, 6).tick_schedule()
    assert next_night.run_key != request.run_key


def test_a_day_is_not_loaded_before_it_is_over(waiting):
    (request,) = set_clock(waiting, 2, 0).tick_schedule()
    assert days_of(request) == ("2024-01-01", "2024-01-01")
    assert set_clock(waiting, 1).tick_schedule() == []


def test_with_a_lag_a_day_without_files_is_waited_for(engine, waiting):
    patient = Pipeline(engine, waiting.root, lag_days=3)
    (request,) = set_clock(patient, 5).tick_schedule()
    assert days_of(request) == ("2024-01-01", "2024-01-04")
    assert request.tags[DAYS_TAG] == "2024-01-01...2024-01-02, 2024-01-04"
    assert [days_of(r) for r in set_clock(patient, 6).tick_schedule()] == [
        ("2024-01-01", "2024-01-04")
    ]


def test_long_ranges_are_cut(engine, waiting):
    chunks = Pipeline(engine, waiting.root, partitions_per_run=3)
    assert [days_of(r) for r in set_clock(chunks, 5).tick_schedule()] == [
        ("2024-01-01", "2024-01-03"),
        ("2024-01-04", "2024-01-04"),
    ]


def test_the_sensor_asks_once_for_the_same_files(waiting):
    set_clock(waiting, 3)
    (request,) = waiting.tick("landed_files").run_requests
    assert days_of(request) == ("2024-01-01", "2024-01-02")
    (second_request,) = waiting.tick("landed_files").run_requests
    assert second_request.run_key == request.run_key, (
        "a key is launched once, whoever has died meanwhile"
    )
    run = create_run_for_test(
        waiting.instance,
        tags={**request.tags, "dagster/run_key": request.run_key},
        status=dg.DagsterRunStatus.FAILURE,
    )
    assert not waiting.tick("landed_files").run_requests
    waiting.instance.delete_run(run.run_id)
    waiting.land(1, [order("more", 1)], "part-1.jsonl")
    (more,) = waiting.tick("landed_files").run_requests
    assert more.run_key != request.run_key


def test_without_tables_there_is_nothing_to_rebuild(waiting):
    assert not set_clock(waiting, 5).tick("touched_days").run_requests


# --- what is under way ----------------------------------------------------------------------------


def test_a_run_that_builds_what_follows_is_left_to_it(engine, spark, tmp_path):
    pipeline = set_clock(Pipeline(engine, tmp_path), 3)
    pipeline.land(1, [order("a", 1)])
    run = pipeline.run(1, 1, (RAW.name,)).dagster_run
    requested_tables = {r.run_key.split(":")[1] for r in pipeline.tick("touched_days").run_requests}
    assert CHAIN in requested_tables
    pipeline.cursors.clear()
    # The same, while the run that loaded the day goes on to build late_orders.
    going_on = run.with_status(dg.DagsterRunStatus.STARTED)._replace(
        asset_selection=frozenset({dg.AssetKey(RAW.name), dg.AssetKey(LATE.name)})
    )
    pipeline.instance.delete_run(run.run_id)
    pipeline.instance.add_run(going_on)
    assert tables_in_progress(pipeline.instance, pipeline.deployment) == {
        run.run_id: frozenset({RAW.name, LATE.name})
    }
    remaining_tables = {r.run_key.split(":")[1] for r in pipeline.tick("touched_days").run_requests}
    assert not any(LATE.name in tables for tables in remaining_tables)
    assert CHAIN in remaining_tables


# --- states and checks ----------------------------------------------------------------------------


def current_snapshot(pipeline: Pipeline):
    look = Monitor(pipeline.deployment, lambda: pipeline.now)
    return look.read_snapshot(pipeline.instance)


def incident_kinds(pipeline: Pipeline) -> set[tuple[str, str, str]]:
    return {(i.kind, i.subject, i.item) for i in find_incidents(current_snapshot(pipeline))}


#: What is run of the tables.
LOG = (RAW.name, REJECTED.name)
WATCHED = (*LOG, STAGED.name, FACT.name, CURRENT.name, CORRECTIONS.name)


def watched_incidents(pipeline: Pipeline) -> set[tuple[str, str, str]]:
    return {(k, s, i) for k, s, i in incident_kinds(pipeline) if s in WATCHED}


def test_final_days(engine, spark, tmp_path, monkeypatch, capsys):
    """Not written by a schedule; watched against others; a person may rebuild them."""
    pipeline = Pipeline(engine, tmp_path, window_days=0)
    for n in (1, 2):
        pipeline.land(n, [order(f"o{n}", n), order(f"p{n}", n, "2.00", "c2")])
    pipeline.run(1, 2, WATCHED)
    set_clock(pipeline, 3)
    pipeline.tick("watch_days")
    assert late_evaluation(pipeline, FACT.name, "final_days").passed
    evaluation = late_evaluation(pipeline, FACT.name, "days")
    assert evaluation.passed
    assert evaluation.metadata["final"].value == 2
    assert watched_incidents(pipeline) == set()

    # New lines in an old folder: the log takes them in, the final day does not by itself.
    pipeline.land(1, [order("added", 1, "5.00")], "part-1.jsonl")
    pipeline.run(1, 1, LOG)
    asked_for = {
        key.to_user_string()
        for request in pipeline.tick("touched_days").run_requests
        for key in request.asset_selection
    }
    assert asked_for & {*WATCHED} == {CURRENT.name, CORRECTIONS.name}
    pipeline.run(1, 1, (CURRENT.name, CORRECTIONS.name))
    assert watched_incidents(pipeline) == {("new input for final days", STAGED.name, "2024-01-01")}
    # The commands say so as well.
    for name in ("landing", "warehouse", "start", "window_days"):
        monkeypatch.setenv(f"BACKFILL_ASSETS_{name.upper()}", str(getattr(pipeline.settings, name)))
    assert main(["night", "--as-of", "2024-01-03"]) == 0
    assert f"# {STAGED.name} [2024-01-01] is final, and new input" in capsys.readouterr().out
    main(["status", "--select", STAGED.name])
    assert f"new input for final days: {STAGED.name} [2024-01-01]; " in capsys.readouterr().out
    pipeline.tick("watch_days")
    # It is what it is to be; what is known since is in the tables that follow.
    assert late_evaluation(pipeline, STAGED.name, "days").passed
    assert [(r["run_date"], r["orders"]) for r in pipeline.rows(CORRECTIONS.name)] == [(day(1), 1)]

    # A person takes them in.
    pipeline.run(1, 1, (STAGED.name, FACT.name, CORRECTIONS.name))
    assert len(pipeline.rows(STAGED.name)) == 5
    assert pipeline.rows(CORRECTIONS.name) == []
    assert watched_incidents(pipeline) == set()

    # Another writer changes a final day behind our back.
    url = f"delta.`{pipeline.warehouse / FACT.name}`"
    spark.sql(f"UPDATE {url} SET revenue = revenue * 2 WHERE run_date = DATE'2024-01-02'")
    pipeline.tick("watch_days")
    evaluation = late_evaluation(pipeline, FACT.name, "final_days")
    assert not evaluation.passed
    assert evaluation.description == "2024-01-02 changed by another writer (UPDATE, version 4)"
    pipeline.run(2, 2, [FACT.name])
    pipeline.tick("watch_days")
    assert late_evaluation(pipeline, FACT.name, "final_days").passed

    # Landing files that were loaded and are gone are nobody's business.
    shutil.rmtree(pipeline.folder(2))
    assert watched_incidents(pipeline) == set()


def test_dropped_lines_leave_a_trace_that_cannot_be_overlooked(engine, spark, tmp_path):
    pipeline = Pipeline(engine, tmp_path, window_days=0, late_lines="drop")
    pipeline.land(1, [order("a", 1)])
    stamp = "2024-01-02T10:00:00Z"
    pipeline.land(2, [order("b", 1, "7.25", ingested=stamp), order("c", 1, "1", ingested=stamp)])
    pipeline.run(1, 2, (RAW.name, LATE.name, CURRENT.name))
    set_clock(pipeline, 3)
    evaluation = late_evaluation(pipeline, LATE.name, "late_lines")
    assert (evaluation.passed, evaluation.severity, evaluation.blocking, evaluation.partition) == (
        False,
        dg.AssetCheckSeverity.ERROR,
        False,
        "2024-01-02",
    )
    assert evaluation.description.startswith(
        "2 line(s) worth 8.25 came after the window of their day"
    )
    assert "DROPPED" in evaluation.description
    assert pipeline.rows(LATE.name) == []
    assert pipeline.materialized(LATE.name) == {"2024-01-01", "2024-01-02"}
    assert [r["orders"] for r in pipeline.rows(CURRENT.name)] == [1]
    (incident,) = [i for i in find_incidents(current_snapshot(pipeline)) if i.subject == LATE.name]
    assert (incident.kind, incident.item) == ("late money", "2024-01-02")
    assert "2 line(s) worth 8.25" in incident.detail


@pytest.mark.slow
def test_holes_stale_days_and_failed_days_are_named(engine, spark, tmp_path):
    pipeline = Pipeline(engine, tmp_path, window_days=0, end=day(6))
    for n in range(1, 6):
        pipeline.land(n, [order(f"o{n}", n)])
    pipeline.run_days([day(1), day(2), day(4)], LOG)

    def log_incidents() -> set[tuple[str, str]]:
        return {(k, i) for k, s, i in incident_kinds(pipeline) if s == RAW.name}

    set_clock(pipeline, 6, 12)
    assert log_incidents() == {("hole", "2024-01-03"), ("stale", "2024-01-05")}
    pipeline.tick("watch_days")
    evaluation = late_evaluation(pipeline, RAW.name, "days")
    assert not evaluation.passed
    assert evaluation.description.startswith("missing: 2024-01-03, 2024-01-05 (")
    assert evaluation.metadata["missing"].value == 2
    # Before the deadline, the newest day may still be on its way.
    set_clock(pipeline, 6, 5)
    assert log_incidents() == {("hole", "2024-01-03")}
    # Filling the last day in does not hide the hole; a day that fails its audit is named.
    set_clock(pipeline, 6, 12)
    (pipeline.folder(3) / "_control.json").write_text('{"rows": 9, "amount": "1.00"}')
    pipeline.run_days([day(3), day(5)], LOG, fails=True)
    assert log_incidents() == {("check failed", "2024-01-03")}
