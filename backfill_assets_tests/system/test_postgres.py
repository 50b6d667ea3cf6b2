"""Dagster's storage in Postgres: what it keeps is what Dagster's own keeps, and how fast."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import dagster as dg
import pytest
import yaml
from dagster._core.events import DagsterEventType
from dagster._core.test_utils import create_run_for_test, instance_for_test
from dagster_postgres import DagsterPostgresStorage
from sqlalchemy.exc import OperationalError

from backfill_assets.backfills.stages import _refuse_long_tag
from backfill_assets.backfills.state_store import BackfillRefusedError
from backfill_assets.calendar.partitions import Window
from backfill_assets.dagster_ext.internals import max_tag_bytes
from backfill_assets.postgres import PooledEventLog, PostgresStorage
from backfill_assets_tests.drills import drills
from backfill_assets_tests.helpers.dagster_events import (
    DAYS,
    OF_EVENTS,
    asset_event,
    make_run_events,
)
from backfill_assets_tests.helpers.paths import PROJECT, dagster_yaml
from backfill_assets_tests.helpers.postgres import Database, Server
from backfill_assets_tests.helpers.process_kills import kill_random_process, wait_for

CONFIG = PROJECT / "backfill_assets/deploy/dagster.postgres.yaml"


def test_the_two_instances_differ_in_their_storage_alone():
    ours, local = (yaml.safe_load(path.read_text()) for path in (CONFIG, PROJECT / "dagster.yaml"))
    storage, _ = ours.pop("storage"), local.pop("storage")
    assert ours == local
    comments = [path.read_text().split("\n\n", 2)[2] for path in (CONFIG, PROJECT / "dagster.yaml")]
    assert comments[0] == comments[1]
    connection = storage["custom"]["config"]["postgres_db"]
    assert all(value.keys() == {"env"} for value in connection.values()), (
        "no credentials in the file"
    )


@contextmanager
def open_storage(kind: type, database: Database) -> Iterator[DagsterPostgresStorage]:
    """A storage on a database, without an instance."""
    config = {name[11:].lower(): value for name, value in database.environment.items()}
    connection = {
        "hostname": config["host"],
        "port": int(config["port"]),
        "db_name": config["db"],
        "username": config["username"],
        "password": config["password"],
    }
    # To Dagster's own, `postgresql` is a driver that it does not bring along.
    scheme = {} if kind is PostgresStorage else {"scheme": "postgresql+psycopg2"}
    storage = kind.from_config_value(None, {"postgres_db": {**connection, **scheme}})
    try:
        yield storage
    finally:
        storage.event_log_storage.dispose()


def all_rows(database: Database) -> dict[str, list[str]]:
    """Every row of the event log, without when it was stored."""
    rows_by_table = {}
    for name in OF_EVENTS:
        rows = database.ask(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY 1",
            name,
        )
        # An id of an asset is used up by each event that finds the asset there.
        left_out = {"create_timestamp", "id" if name == "asset_keys" else ""}
        columns = ", ".join(f'"{column}"' for (column,) in rows if column not in left_out)
        rows_by_table[name] = sorted(map(str, database.ask(f"SELECT {columns} FROM {name}")))
    return rows_by_table


def test_a_batch_leaves_what_its_events_leave_one_by_one(postgres_server: Server):
    stored_rows = []
    for kind in (DagsterPostgresStorage, PostgresStorage):
        database = postgres_server.database()
        with open_storage(kind, database) as storage:
            log = storage.event_log_storage
            for events in make_run_events():
                if kind is PostgresStorage:
                    log.store_event_batch(events)
                else:
                    for event in events:
                        log.store_event(event)
        stored_rows.append(all_rows(database))
    theirs, ours = stored_rows
    assert theirs == ours
    assert len(ours["asset_check_executions"]) == 7


def test_a_batch_that_fails_leaves_nothing(database):
    with open_storage(PostgresStorage, database) as storage:
        planned, _, events = make_run_events()
        storage.event_log_storage.store_event_batch(planned)
        before = all_rows(database)
        bad = asset_event(DagsterEventType.ASSET_OBSERVATION, None)
        with pytest.raises(AttributeError):
            storage.event_log_storage.store_event_batch([*events, bad])
        assert all_rows(database) == before


@pytest.fixture
def instance(database, tmp_path, monkeypatch) -> Iterator[dg.DagsterInstance]:
    """The project's instance on Postgres."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (tmp_path / "dagster.yaml").write_text(dagster_yaml().read_text())
    with dg.DagsterInstance.get() as instance:
        assert isinstance(instance.event_log_storage, PooledEventLog)
        yield instance


def count_connections(database: Database) -> int:
    """How many the server has for this database, but for this one."""
    ((count,),) = database.ask(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
        database.name,
    )
    return count


def test_a_process_keeps_one_connection(instance, database):
    for key in DAYS.get_partition_keys()[:5]:
        instance.report_runless_asset_event(dg.AssetMaterialization("numbers", partition=key))
        instance.get_runs()
        instance.all_instigator_state()
    assert count_connections(database) == 1
    instance.dispose()
    assert count_connections(database) == 0


def test_threads_and_instances_side_by_side_lose_nothing(instance):
    keys = DAYS.get_partition_keys()
    with dg.DagsterInstance.from_ref(instance.get_ref()) as two:

        def report_keys(dagster_instance: dg.DagsterInstance, partition_keys: list[str]) -> None:
            for key in partition_keys:
                dagster_instance.report_runless_asset_event(
                    dg.AssetMaterialization("numbers", partition=key)
                )

        threads = [
            threading.Thread(target=report_keys, args=(writer, keys[n::4]))
            for n, writer in enumerate((instance, instance, two, two))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert instance.get_materialized_partitions(dg.AssetKey("numbers")) == set(keys)


def test_a_server_that_is_restarted_is_found_again(instance, postgres_server):
    instance.report_runless_asset_event(dg.AssetMaterialization("numbers", partition="2024-01-01"))
    postgres_server.stop()
    postgres_server.start()
    instance.report_runless_asset_event(dg.AssetMaterialization("numbers", partition="2024-01-02"))
    assert len(instance.get_materialized_partitions(dg.AssetKey("numbers"))) == 2


def test_without_the_variables_it_says_which(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("DAGSTER_PG_")]:
        monkeypatch.delenv(name)
    storage = yaml.safe_load(CONFIG.read_text())["storage"]
    with pytest.raises(Exception, match="DAGSTER_PG_HOST"):  # noqa: SIM117
        with instance_for_test(temp_dir=str(tmp_path), overrides={"storage": storage}):
            pass


def test_names_that_are_too_long_for_an_index_are_refused(instance):
    """Dagster's daemon would try to launch the run for ever."""
    limit = max_tag_bytes(instance)
    assert limit is not None
    name = "".join(f"{n:03x}" for n in random.Random(0).sample(range(4096), 4000))[:limit]
    create_run_for_test(instance, tags={"backfill_assets/accept": name})
    with pytest.raises(OperationalError, match="index row size"):
        create_run_for_test(instance, tags={"backfill_assets/accept": name * 3 + name[::-1] * 3})
    plan = SimpleNamespace(id="x", parameters=SimpleNamespace(accept=[name, "b"]))
    with pytest.raises(BackfillRefusedError, match="accepts 2 files by name"):
        _refuse_long_tag(instance, SimpleNamespace(plan=plan))
    plan.parameters.accept.pop()
    _refuse_long_tag(instance, SimpleNamespace(plan=plan))


@dg.asset(pool="alone")
def pooled() -> None:
    pass


def test_pools_are_held_and_freed(instance):
    assert dg.materialize([pooled], instance=instance).success
    info = instance.event_log_storage.get_concurrency_info("alone")
    assert (info.slot_count, info.active_slot_count) == (1, 0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("SPARK_REMOTE" in os.environ, reason="starts an engine of its own")
def test_a_planned_backfill_on_a_deployment(database, tmp_path):
    """Daemons, queue, planned backfills; a run whose process is killed; nothing left in files."""
    with drills.Drill(tmp_path, Window.parse("2025-01-09...2025-01-14"), short=True) as drill:
        drills.land_orders(drill, drill.days, "more.jsonl", drills.RIGHT)
        before = drills.total_revenue(drill.read_facts(), drill.days)
        id_ = drill.create_plan(drill.days, "more orders")
        home = drill.deployment.home
        with ThreadPoolExecutor(1) as beside:
            future = beside.submit(drill.run_backfill, id_)
            wait_for(
                lambda: kill_random_process(home, "run worker", random.Random(0)) or future.done()
            )
            future.result()
        more = drills.total_revenue(drill.read_facts(), drill.days) - before
        assert more == len(drill.days) * drills.RIGHT
        drill.run_reconcile(id_)
        drill.run_verify(drill.days)
        with drill.deployment.instance() as instance:
            assert isinstance(instance.event_log_storage, PooledEventLog)
            retried = [run for run in instance.get_runs() if "dagster/retry_number" in run.tags]
            assert retried and retried[0].is_success
        assert not list(home.rglob("*.db"))
        assert database.ask("SELECT count(*) > 100 FROM event_logs") == [(True,)]
