"""The event log with open connections keeps what Dagster's own would, in the same files."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections import Counter
from contextlib import closing
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import DagsterEventType
from dagster._core.test_utils import instance_for_test

from backfill_assets.dagster_ext import eventlog
from backfill_assets.dagster_ext.eventlog import LocalEventLog, LocalStorage
from backfill_assets_tests.helpers.dagster_events import (
    DAYS,
    OF_EVENTS,
    asset_event,
    make_run_events,
)
from backfill_assets_tests.helpers.dagster_homes import make_home
from backfill_assets_tests.helpers.memory_instance import memory_instance
from backfill_assets_tests.helpers.paths import PROJECT

OURS = {"event_log_storage": {"module": "backfill_assets.eventlog", "class": "LocalEventLog"}}


@dg.asset(partitions_def=DAYS)
def numbers() -> int:
    return 1


with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.BetaWarning)

    @dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
    def numbers_of_many() -> None:
        pass


def materialize_day(instance: dg.DagsterInstance, key: str) -> dg.ExecuteInProcessResult:
    return dg.materialize([numbers], instance=instance, partition_key=key)


@pytest.fixture
def home(tmp_path, monkeypatch):
    make_home(tmp_path, "telemetry: {enabled: false}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    return str(tmp_path)


def test_instances_in_memory_begin_with_the_tables_of_dagster():
    """Copied from the first, and each has its own from there on."""

    def read_database(storage) -> tuple[list, list]:
        connection = storage._held_conn.connection.driver_connection
        tables = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        return tables, connection.execute("SELECT * FROM alembic_version").fetchall()

    with dg.DagsterInstance.ephemeral() as original, memory_instance() as instance:
        instance.add_dynamic_partitions("names", ["a"])
        with memory_instance() as another:
            for copied in (instance, another):
                for kind in ("run_storage", "event_log_storage"):
                    database = read_database(getattr(copied, kind))
                    assert database == read_database(getattr(original, kind))
            assert not another.get_dynamic_partitions("names")


def test_what_it_writes_the_default_storage_reads_and_the_other_way_round(home):
    with instance_for_test(temp_dir=home, overrides=OURS) as instance:
        assert isinstance(instance.event_log_storage, LocalEventLog)
        run = materialize_day(instance, "2024-01-01").run_id
    with instance_for_test(temp_dir=home) as instance:
        assert instance.get_materialized_partitions(dg.AssetKey("numbers")) == {"2024-01-01"}
        expected = [log.message for log in instance.all_logs(run)]
        assert expected
        materialize_day(instance, "2024-01-02")
    with instance_for_test(temp_dir=home, overrides=OURS) as instance:
        assert instance.get_materialized_partitions(dg.AssetKey("numbers")) == {
            "2024-01-01",
            "2024-01-02",
        }
        assert [log.message for log in instance.all_logs(run)] == expected


def test_connections_stay_open(home, monkeypatch):
    opened: Counter[str] = Counter()
    connect = sqlite3.connect

    def count_connections(database, *args, **kwargs):
        opened[str(database)] += 1
        return connect(database, *args, **kwargs)

    monkeypatch.setattr(sqlite3.dbapi2, "connect", count_connections)
    with instance_for_test(temp_dir=home, overrides=OURS) as instance:
        materialize_day(instance, "2024-01-01")
        opened.clear()
        run = materialize_day(instance, "2024-01-02")
        events = len(instance.all_logs(run.run_id))
    log = {name: count for name, count in opened.items() if "/history/runs/" in name}
    assert events > 10
    assert log
    # Its first use looks whether the run's database is there.
    assert max(log.values()) <= 3, log


def test_no_more_than_a_few_databases_stay_open(home, monkeypatch):
    monkeypatch.setattr("backfill_assets.dagster_ext.eventlog._OPEN", 2)
    with instance_for_test(temp_dir=home, overrides=OURS) as instance:
        runs = [materialize_day(instance, key).run_id for key in DAYS.get_partition_keys()[:4]]
        assert len(instance.event_log_storage._engines) == 2
        for run in runs:
            assert any(log.dagster_event for log in instance.all_logs(run))
        instance.event_log_storage.dispose()
        assert not instance.event_log_storage._engines
        assert instance.all_logs(runs[0])


def test_threads_and_storages_side_by_side_lose_nothing(home):
    """As the workers of several runs write to one index."""
    keys = DAYS.get_partition_keys()
    with (
        instance_for_test(temp_dir=home, overrides=OURS) as first,
        dg.DagsterInstance.from_ref(first.get_ref()) as second,
    ):

        def report_days(instance: dg.DagsterInstance, own_keys: list[str]) -> None:
            for key in own_keys:
                instance.report_runless_asset_event(
                    dg.AssetMaterialization("numbers", partition=key)
                )

        threads = [
            threading.Thread(target=report_days, args=(instance, keys[n::4]))
            for n, instance in enumerate((first, first, second, second))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert first.get_materialized_partitions(dg.AssetKey("numbers")) == set(keys)


OPEN = """
import sys
import dagster as dg
print("ready", flush=True)
sys.stdin.readline()
with dg.DagsterInstance.get() as instance:
    assert instance.get_runs() == []
"""


def test_processes_that_open_a_new_home_at_once(tmp_path):
    shutil.copy(PROJECT / "dagster.yaml", tmp_path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN],
            env={**os.environ, "DAGSTER_HOME": str(tmp_path)},
            text=True,
            **pipes,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 3, errors


def test_the_storage_of_the_project_has_dagsters_files(home):
    storage = {
        "storage": {"custom": {"module": "backfill_assets.eventlog", "class": "LocalStorage"}}
    }
    with instance_for_test(temp_dir=home, overrides=storage) as instance:
        assert isinstance(instance.event_log_storage, LocalEventLog)
        run = materialize_day(instance, "2024-01-01").run_id
    with instance_for_test(temp_dir=home) as instance:
        assert instance.get_run_by_id(run).is_success
        assert instance.get_materialized_partitions(dg.AssetKey("numbers")) == {"2024-01-01"}


def test_an_older_dagster_is_told_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(eventlog, "STORES_IN_TRANSACTIONS", False)
    with pytest.raises(dg.DagsterInvariantViolationError) as caught:
        LocalEventLog(str(tmp_path))
    assert str(caught.value) == (
        f"LocalEventLog needs dagster 1.13.13 or later and {dg.__version__} is installed: upgrade "
        "dagster, or take it out of dagster.yaml. Dagster's own storage then reads the same "
        "database."
    )


def test_without_a_place_it_says_so(monkeypatch):
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    with pytest.raises(dg.DagsterInvariantViolationError, match="needs DAGSTER_HOME"):
        LocalEventLog.from_config_value(None, {})
    with pytest.raises(dg.DagsterInvariantViolationError, match="needs DAGSTER_HOME"):
        LocalStorage.from_config_value(None, {})


def all_rows(home: str) -> dict[tuple[str, str], list[str]]:
    """Every row of the event log, by database and table; without when it was stored."""
    contents = {}
    for file in Path(home, "history", "runs").glob("*.db"):
        with closing(sqlite3.connect(file)) as database:
            for name in OF_EVENTS:
                columns = [c[1] for c in database.execute(f"pragma table_info({name})")]
                column_list = ", ".join(f'"{c}"' for c in columns if c != "create_timestamp")
                rows = (
                    database.execute(f"select {column_list} from {name}").fetchall()
                    if column_list
                    else []
                )
                contents[file.name, name] = sorted(map(str, rows))
    return contents


def test_a_batch_leaves_what_its_events_leave_one_by_one(tmp_path, monkeypatch):
    stored_rows = {}
    for place, overrides in (("theirs", {}), ("ours", OURS)):
        home = tmp_path / place
        home.mkdir()
        monkeypatch.setenv("DAGSTER_HOME", str(home))
        with instance_for_test(temp_dir=str(home), overrides=overrides) as instance:
            log = instance.event_log_storage
            for events in make_run_events():
                if overrides:
                    log.store_event_batch(events)
                else:
                    for event in events:
                        log.store_event(event)
        stored_rows[place] = all_rows(str(home))
    assert stored_rows["theirs"].keys() == stored_rows["ours"].keys()
    for where, rows in stored_rows["theirs"].items():
        assert stored_rows["ours"][where] == rows, where
    assert len(stored_rows["ours"]["index.db", "asset_check_executions"]) == 7


def test_a_batch_that_fails_leaves_nothing(home):
    with instance_for_test(temp_dir=home, overrides=OURS) as instance:
        planned, _, evaluations = make_run_events()
        instance.event_log_storage.store_event_batch(planned)
        before = all_rows(home)
        bad = asset_event(DagsterEventType.ASSET_OBSERVATION, None)
        with pytest.raises(AttributeError):
            instance.event_log_storage.store_event_batch([*evaluations, bad])
        assert all_rows(home) == before


def test_a_run_stores_its_events_in_batches(home, monkeypatch):
    batches: list[Counter[str]] = []
    store = LocalEventLog.store_event_batch

    def count_batch(self, events):
        batches.append(Counter(event.dagster_event_type.value for event in events))
        store(self, events)

    monkeypatch.setattr(LocalEventLog, "store_event_batch", count_batch)
    with instance_for_test(temp_dir=home, overrides=OURS) as instance:
        dg.materialize(
            [numbers_of_many],
            instance=instance,
            tags={
                "dagster/asset_partition_range_start": "2024-01-01",
                "dagster/asset_partition_range_end": "2024-01-09",
            },
        )
        assert len(instance.get_materialized_partitions(dg.AssetKey("numbers_of_many"))) == 9
    assert {"ASSET_MATERIALIZATION_PLANNED": 9} in batches
    assert {"ASSET_MATERIALIZATION": 9} in batches


def report_day(instance: dg.DagsterInstance, key: str) -> None:
    instance.report_runless_asset_event(dg.AssetMaterialization("numbers", partition=key))


def materialized_days(instance: dg.DagsterInstance) -> set[str]:
    return instance.get_materialized_partitions(dg.AssetKey("numbers"))


@pytest.mark.parametrize("what", ["index.db*", "*"])
def test_a_log_that_is_deleted_is_made_again(home, what):
    """Connections that stay open would go on writing to files that nobody can read."""
    runs = Path(home, "history", "runs")
    with (
        instance_for_test(temp_dir=home, overrides=OURS) as daemon,
        dg.DagsterInstance.from_ref(daemon.get_ref()) as run,
    ):
        report_day(daemon, "2024-01-01")
        assert materialized_days(run) == {"2024-01-01"}
        for file in runs.glob(what):
            file.unlink()
        if what == "*":
            runs.rmdir()
        report_day(run, "2024-01-02")
        assert materialized_days(daemon) == {"2024-01-02"}
        report_day(daemon, "2024-01-03")
        assert materialized_days(run) == {"2024-01-02", "2024-01-03"}
        marks = ("asset_key_index_columns",)
        assert all(run.event_log_storage.has_secondary_index(name) for name in marks)


def test_a_log_that_is_restored_is_read(home, tmp_path_factory):
    backup = tmp_path_factory.mktemp("backup") / "index.db"
    index = Path(home, "history", "runs", "index.db")
    with instance_for_test(temp_dir=home, overrides=OURS) as instance:
        report_day(instance, "2024-01-01")
        with closing(sqlite3.connect(index)) as database:
            database.execute(f"VACUUM INTO '{backup}'")
        report_day(instance, "2024-01-02")
        for file in index.parent.glob("index.db*"):
            file.unlink()
        shutil.copy(backup, index)
        assert materialized_days(instance) == {"2024-01-01"}
        report_day(instance, "2024-01-03")
        with dg.DagsterInstance.from_ref(instance.get_ref()) as other:
            assert materialized_days(other) == {"2024-01-01", "2024-01-03"}


def test_the_events_of_a_run_that_another_process_wiped(home):
    with (
        instance_for_test(temp_dir=home, overrides=OURS) as first,
        dg.DagsterInstance.from_ref(first.get_ref()) as second,
    ):
        run = materialize_day(first, "2024-01-01")
        assert second.all_logs(run.run_id)
        first.event_log_storage.wipe()
        assert second.all_logs(run.run_id) == []
        first.report_engine_event("said after", run.dagster_run)
        assert [log.user_message for log in second.all_logs(run.run_id)]
