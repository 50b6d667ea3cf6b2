"""Runs of days with gaps: exactly these days, the same rows, one commit a table."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from random import Random

import dagster as dg
import pytest
from dagster._core.storage.partition_status_cache import AssetPartitionStatus
from dagster._core.test_utils import instance_for_test

from backfill_assets.backfills import stages, state_store
from backfill_assets.backfills.backfill_plan import materialize_command
from backfill_assets.calendar.partitions import DAYS_TAG, DaySet, Window
from backfill_assets.cli import main, runs
from backfill_assets.cli.output import Output
from backfill_assets.dagster_ext.run_locks import process_label
from backfill_assets.delta.delta_rs import load_log
from backfill_assets.orders.tables import CURRENT, FACT, RAW, STAGED
from backfill_assets.publish.types import REASON_TAG
from backfill_assets_guide.sample.landings import write_invented_landing
from backfill_assets_tests.helpers.pipeline import (
    START,
    Pipeline,
    copy_loaded,
    day,
    make_plan,
    order,
)
from backfill_assets_tests.helpers.process_kills import find_pids, is_alive, wait_for

LAST = 8
PUBLISHED = (RAW.name, STAGED.name, FACT.name)

#: Those that read other days than their own: both read the raw log. Days of a table that reads the
#: last days are set with gaps in `test_rolling.py`.
BY_DAY = (STAGED.name, CURRENT.name)


def make_pipeline(engine, root: Path) -> Pipeline:
    pipeline = Pipeline(engine, root, land=False)
    write_invented_landing(pipeline.landing, start=START, days=LAST, orders_per_day=8, seed=5)
    return pipeline


def test_sets_in_any_order_give_the_rows_of_one_range(engine, spark, tmp_path):
    """Of tables that read other days as well; a day is computed by no set but its own."""
    ranged = make_pipeline(engine, tmp_path / "range")
    ranged.run(1, LAST, (RAW.name, *BY_DAY))
    gapped = make_pipeline(engine, tmp_path / "sets")
    chance, numbers = Random(3), list(range(1, LAST + 1))
    chance.shuffle(numbers)
    parts = [{day(n) for n in numbers[:3]}, {day(n) for n in numbers[3:]}]
    assert all(isinstance(DaySet.from_days(part), DaySet) for part in parts), "each has gaps"
    for names in ((RAW.name,), BY_DAY):
        for days in parts:
            logs = {name: load_log(str(gapped.warehouse / name)) for name in names}
            gapped.run_days(days, names)
            for name, log in logs.items():
                assert log is None or gapped.log(name).version() == log.version() + 1, "one commit"
                records = gapped.io_manager.ledger(gapped.deployment.tables[name]).records
                assert records[-1].days.keys() == days
    assert gapped.digests() == ranged.digests()


def land_six_days(engine, root: Path) -> Pipeline:
    pipeline = Pipeline(engine, root, window_days=1)
    for n in range(1, 7):
        pipeline.land(n, [order(f"o{n}", n)])
    return pipeline


@pytest.fixture(scope="module")
def published_root(engine, spark, tmp_path_factory) -> Path:
    """Tables of the six days, to be copied."""
    pipeline = land_six_days(engine, tmp_path_factory.mktemp("published"))
    pipeline.run(1, 6, PUBLISHED)
    return pipeline.root


@pytest.fixture
def recorded(engine, tmp_path: Path) -> Iterator[Pipeline]:
    """Six days have landed; runs are recorded as in a deployment."""
    with record_runs(land_six_days(engine, tmp_path)) as pipeline:
        yield pipeline


@contextmanager
def record_runs(pipeline: Pipeline) -> Iterator[Pipeline]:
    """An instance for a pipeline that records its runs as in a deployment."""
    storage = {"custom": {"module": "backfill_assets.eventlog", "class": "LocalStorage"}}
    home = pipeline.root / "home"
    home.mkdir()
    with instance_for_test(temp_dir=str(home), overrides={"storage": storage}) as instance:
        pipeline.instance = instance
        yield pipeline


def statuses(pipeline: Pipeline, name: str) -> dict[int, AssetPartitionStatus | None]:
    """What Dagster shows of each day of a table."""
    key, keys = dg.AssetKey(name), [str(day(n)) for n in range(1, 7)]
    node = pipeline.repository.asset_graph.get(key)
    by_key = pipeline.instance.get_status_by_partition(key, keys, node.partitions_def)
    return {n: by_key[str(day(n))] for n in range(1, 7)}


def test_dagster_knows_of_exactly_these_days(recorded):
    """Of a run that fails as well: the days between are neither planned nor failed."""
    (recorded.folder(4) / "_control.json").write_text(json.dumps({"rows": 9, "amount": "1.00"}))
    run = recorded.run_days([day(1), day(4), day(5)], [RAW.name], fails=True)
    built, failed = AssetPartitionStatus.MATERIALIZED, AssetPartitionStatus.FAILED
    assert statuses(recorded, RAW.name) == {
        1: built, 2: None, 3: None, 4: failed, 5: built, 6: None
    }  # fmt: skip
    checks = [event for event in run.get_asset_check_evaluations() if event.partition]
    assert {event.partition for event in checks} == {str(day(n)) for n in (1, 4, 5)}
    # The same run again: what failed, in one run.
    (recorded.folder(4) / "_control.json").unlink()
    again = recorded.run_days([day(1), day(4), day(5)], [RAW.name])
    assert {e.materialization.partition for e in again.get_asset_materialization_events()} == {
        str(day(n)) for n in (1, 4, 5)
    }
    assert statuses(recorded, RAW.name)[4] is built
    assert {row["log_date"] for row in recorded.rows(RAW.name)} == {day(1), day(4), day(5)}


@dg.asset(partitions_def=dg.StaticPartitionsDefinition(["eu", "us"]))
def by_region() -> None:
    """An asset of another code location, whose partitions are no days."""


def test_runs_of_other_partitions_are_none_of_its_business(recorded):
    result = dg.materialize([by_region], partition_key="eu", instance=recorded.instance)
    assert result.success
    assert recorded.instance.get_materialized_partitions(by_region.key) == {"eu"}


def test_a_tag_that_does_not_fit_fails_the_run_and_nothing_is_written(recorded):
    for text in ("2024-01-01, 2024-01-03", "the first"):
        result = recorded.run(1, 5, [RAW.name], tags={DAYS_TAG: text}, fails=True)
        message = recorded.failure(result)
        assert "Nothing was written" in message
        assert text in message
        assert not (recorded.warehouse / RAW.name / "_delta_log").exists()


def test_a_plan_of_scattered_days_is_launched_with_these_days(recorded):
    """Dagster makes a run for each range; its title has room for 100 characters."""
    numbers = range(1, 31, 2)
    text = ",".join(str(day(n)) for n in numbers)
    plan = make_plan(recorded, text, tables=(RAW.name,), pilot_days=2, chunk_days=None)
    assert plan.runs == len(numbers)
    graph, instance = recorded.repository.asset_graph, recorded.instance
    state = stages.launch_stage(recorded.deployment, instance, graph, plan.id, plan)
    state.stage += 1
    state_store.save(instance, state)
    stages.advance(recorded.deployment, instance, graph, state)
    days = [
        launch.asset_backfill_data.get_target_partitions_subset(dg.AssetKey(RAW.name))
        for launch in state_store.find_backfill(instance, plan.id).launches
    ]
    assert [{*subset.get_partition_keys()} for subset in days] == [
        {str(day(n)) for n in part} for part in (numbers[:2], numbers[2:])
    ]


def test_the_command_of_a_run():
    days = DaySet.from_days([day(1), day(3), day(4)])
    assert materialize_command([dg.AssetKey(RAW.name)], days)[1:3] == [
        "materialize",
        "2024-01-01,2024-01-03...2024-01-04",
    ]
    assert (
        materialize_command([dg.AssetKey(RAW.name)], Window(day(1), day(3)))[-1]
        == "2024-01-01...2024-01-02"
    )


# --- the command ----------------------------------------------------------------------------------


def set_environment(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a command."""
    for name in ("landing", "warehouse", "start", "end", "window_days"):
        value = str(getattr(pipeline.settings, name))
        monkeypatch.setenv(f"BACKFILL_ASSETS_{name.upper()}", value)
    monkeypatch.setenv("DAGSTER_HOME", pipeline.instance.root_directory)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)


@pytest.fixture
def command(engine, published_root, tmp_path: Path, monkeypatch) -> Iterator[Pipeline]:
    """Six days are published; the command runs in this process."""
    copy_loaded(published_root, tmp_path)
    with record_runs(Pipeline(engine, tmp_path, window_days=1)) as pipeline:
        set_environment(pipeline, monkeypatch)

        def run_days(process, assets, days: Window, tags) -> bool:
            assert process.home == pipeline.instance.root_directory
            return pipeline.run_days(days, assets, tags=tags, fails=None).success

        monkeypatch.setattr(runs.RunProcess, "run_days", run_days)
        yield pipeline


def versions(pipeline: Pipeline) -> dict[str, int]:
    return {name: pipeline.log(name).version() for name in PUBLISHED}


def test_materialize_days_with_gaps(command, capsys):
    before = versions(command)
    for n in (2, 4, 5):
        command.land(n, [order(f"more{n}", n)], "more.jsonl")
    assert main(["materialize", "2024-01-02,2024-01-04...05", "--select", RAW.name]) == 0
    assert "Building raw_orders for 2024-01-02, 2024-01-04...2024-01-05" in capsys.readouterr().out
    after = versions(command)
    assert {name for name in PUBLISHED if after[name] != before[name]} == {RAW.name}
    assert after[RAW.name] == before[RAW.name] + 1, "one commit"
    # What follows from it, and no day between; these days are final.
    stale = ["materialize", "--stale", "--select", f"{STAGED.name},{FACT.name}"]
    assert main(stale) == 2
    message = capsys.readouterr().err
    assert "the run rewrites final days" in message
    assert f"backfill-assets materialize --stale --select {stale[-1]} --yes" in message
    assert "fact_daily_orders [2024-01-02, 2024-01-04...2024-01-05]" in message
    assert main([*stale, "--yes"]) == 0
    last = command.io_manager.ledger(FACT).records[-1]
    assert last.written_days == {day(2), day(4), day(5)}
    assert sum(row["orders"] for row in command.rows(FACT.name)) == 9
    assert main(stale) == 0
    assert capsys.readouterr().out.endswith("There is nothing to build.\n")


def test_materialize_what_failed(command, capsys):
    for n in (2, 4, 6):
        command.land(n, [order(f"more{n}", n)], "more.jsonl")
    for n in (2, 6):
        (command.folder(n) / "_control.json").write_text('{"rows": 9, "amount": "1.00"}')
    reason = {REASON_TAG: "more orders"}
    run = command.run(1, 6, [RAW.name, STAGED.name], fails=True, tags=reason).run_id[:8]
    for n in (2, 6):
        (command.folder(n) / "_control.json").unlink()
    assert main(["materialize", "--failed-of", run, "--yes"]) == 0
    output = capsys.readouterr().out
    assert "Building raw_orders, stg_orders for 2024-01-02, 2024-01-06" in output
    assert command.io_manager.ledger(RAW).records[-1].reason == "more orders"
    assert main(["materialize", "--failed-of", run, "--yes"]) == 0
    assert capsys.readouterr().out.endswith("There is nothing to build.\n")
    assert len(command.rows(RAW.name)) == len(command.rows(STAGED.name)) == 9


def test_what_is_refused(command, capsys):
    for words, message in (
        (["materialize"], "give days, or --failed-of, or --stale"),
        (["materialize", "2024-01-02", "--stale"], "give days, or --failed-of, or --stale"),
        (["materialize", "2024-01-02,2030-01-01"], "is not in the calendar"),
        (["materialize", "2024-01-02,,2024-01-04"], "is not in the calendar"),
        (["materialize", "--failed-of", "abc"], "there is no backfill or run abc"),
        # Other commands take one range.
        (["verify", "2024-01-02,2024-01-04"], "has gaps: give one range"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_process_of_a_commands_runs(recorded, monkeypatch, capsys):
    """One process for all; a new one after a run that failed, or if it or its engine has died."""
    set_environment(recorded, monkeypatch)
    control = recorded.folder(4) / "_control.json"
    control.write_text('{"rows": 9, "amount": "1.00"}')
    with runs.RunProcess(Output(), recorded.instance.root_directory) as process:

        def run(*days: int) -> bool:
            day_set = DaySet.from_days([day(n) for n in days])
            return process.run_days([RAW.name], day_set, {REASON_TAG: "a test"})

        assert run(1, 3)
        assert "published raw_orders 2 days" in capsys.readouterr().out
        assert run(2)
        assert "published raw_orders 1 day" in capsys.readouterr().out
        assert not run(4)
        assert "2024-01-04" in capsys.readouterr().out
        control.unlink()
        assert run(4)
        pid = int(run_processes(recorded)[-1].split("@")[0])
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert run(5)
        (engine,) = find_pids(Path(recorded.instance.root_directory), "embedded engine")
        os.kill(engine, signal.SIGKILL)
        wait_for(lambda: not is_alive(engine))
        capsys.readouterr()
        assert run(6)
        assert "published raw_orders 1 day" in capsys.readouterr().out
    assert {row["log_date"] for row in recorded.rows(RAW.name)} == {day(n) for n in range(1, 7)}
    assert [len([*group]) for _, group in groupby(run_processes(recorded))] == [3, 1, 1, 1]


def run_processes(pipeline: Pipeline) -> list[str]:
    """The process of each run, in their order."""
    return [process_label(run) for run in pipeline.instance.get_runs()][::-1]
