"""Housekeeping: what is taken out of Dagster's storage, and that Dagster knows no less of a day."""

import random
import warnings
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy

from backfill_assets.backfills import state_store
from backfill_assets.dagster_ext.eventlog import prune_runs
from backfill_assets.deployment import ENGINE_KEY, Deployment
from backfill_assets.monitoring.automation import build_housekeeping
from backfill_assets.settings import load_settings
from backfill_assets_tests.helpers.dagster_homes import make_home
from backfill_assets_tests.helpers.paths import dagster_yaml

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-08")
KEYS = DAYS.get_partition_keys()
SOON = timedelta(minutes=5)


def _orders_asset() -> dg.AssetsDefinition:
    """An asset that tells of each day by itself, as the pipeline does."""
    warnings.simplefilter("ignore", dg.BetaWarning)

    @dg.asset(
        partitions_def=DAYS,
        backfill_policy=dg.BackfillPolicy.single_run(),
        check_specs=[dg.AssetCheckSpec("fine", asset="orders")],
    )
    def orders(context: dg.AssetExecutionContext) -> Iterator[Any]:
        how, key = context.run.tags, dg.AssetKey("orders")
        metadata = {"run": context.run.run_id}
        for day in context.partition_keys:
            if day in how.get("fail", ""):
                continue
            kind = dg.AssetObservation if day in how.get("same", "") else dg.AssetMaterialization
            yield kind(key, partition=day, metadata=metadata)
            passed = day not in how.get("warn", "")
            yield dg.AssetCheckEvaluation(
                asset_key=key, check_name="fine", passed=passed, partition=day
            )
        if how.get("fail"):
            raise dg.Failure("some days are bad")
        yield dg.Output(None)
        yield dg.AssetCheckResult(check_name="fine", passed=True)

    return orders


with warnings.catch_warnings():
    ORDERS = _orders_asset()
ORDERS_JOB = dg.Definitions([ORDERS]).resolve_implicit_global_asset_job_def()


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "home"
    make_home(folder, dagster_yaml().read_text())
    monkeypatch.setenv("DAGSTER_HOME", str(folder))
    return folder


@pytest.fixture
def instance(home) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(home)) as dagster_instance:
        yield dagster_instance


def run_days(instance: dg.DagsterInstance, first: int, last: int | None = None, **tags: str) -> str:
    """A run of some days; its id."""
    days = {
        "dagster/asset_partition_range_start": KEYS[first],
        "dagster/asset_partition_range_end": KEYS[first if last is None else last],
    }
    result = ORDERS_JOB.execute_in_process(
        instance=instance, tags={**days, **tags}, raise_on_error=False
    )
    return result.run_id


def known_state(home: Path) -> dict[str, Any]:
    """What Dagster knows of the days, to somebody who comes anew."""
    key = dg.AssetKey("orders")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        storage = instance.event_log_storage
        storage.wipe_asset_cached_status(key)  # so that it is made of the events once more
        kinds = (
            dg.DagsterEventType.ASSET_MATERIALIZATION,
            dg.DagsterEventType.ASSET_OBSERVATION,
        )
        checks = storage.get_asset_check_partition_info(
            [dg.AssetCheckKey(key, "fine")], partition_keys=KEYS
        )
        last = instance.get_latest_materialization_event(key)
        return {
            "status": instance.get_status_by_partition(key, KEYS, DAYS),
            "checks": sorted((info.partition_key, info.latest_execution_status) for info in checks),
            "ids": [storage.get_latest_storage_id_by_partition(key, kind) for kind in kinds],
            "last": last and last.asset_materialization,
        }


def events_in(instance: dg.DagsterInstance) -> int:
    """Rows of events and of evaluations that are kept for all runs."""
    with instance.event_log_storage.index_connection() as index:
        return sum(
            index.execute(sqlalchemy.text(f"SELECT count(*) FROM {table}")).scalar()
            for table in ("event_logs", "asset_check_executions")
        )


def logs_of(home: Path, run_id: str) -> list[Path]:
    paths = [home / f"history/runs/{run_id}.db", home / "storage" / run_id]
    return [path for path in paths if path.exists()]


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def test_of_each_day_the_latest_stays(home, instance):
    first, second, last = (
        run_days(instance, 0, 3),
        run_days(instance, 0, 3),
        run_days(instance, 2, 4),
    )
    before, size = known_state(home), events_in(instance)
    result = prune_runs(instance, utc_now() + SOON)
    assert known_state(home) == before
    assert events_in(instance) < size / 2
    # The first made nothing that was not made again.
    assert result.runs == 1
    assert instance.get_run_by_id(first) is None
    assert instance.get_run_by_id(second)
    assert [path for run_id in (first, second, last) for path in logs_of(home, run_id)] == []
    assert result.logs == 3
    assert result.events > 0
    again_done = prune_runs(instance, utc_now() + SOON)
    assert (again_done.events, again_done.runs) == (0, 0)


def test_young_runs_stay_as_they_are(home, instance):
    runs = [run_days(instance, 0), run_days(instance, 0)]
    size = events_in(instance)
    assert str(prune_runs(instance, utc_now() - SOON)).startswith("0 run(s)")
    assert events_in(instance) == size
    assert all(logs_of(home, run_id) for run_id in runs)
    assert list(instance.all_logs(runs[0]))


def test_a_day_that_failed_stays_failed_until_it_is_made(home, instance):
    run_days(instance, 0, 2)
    failed = run_days(instance, 1, 2, fail=KEYS[1])
    before = known_state(home)
    assert before["status"][KEYS[1]] is dg.AssetPartitionStatus.FAILED
    prune_runs(instance, utc_now() + SOON)
    assert known_state(home) == before
    run_days(instance, 1, 2)
    prune_runs(instance, utc_now() + SOON)
    assert instance.get_run_by_id(failed) is None
    assert known_state(home)["status"][KEYS[1]] is dg.AssetPartitionStatus.MATERIALIZED


def test_what_has_not_ended_stays(instance):
    created_run = instance.create_run_for_job(ORDERS_JOB)
    prune_runs(instance, utc_now() + SOON)
    assert instance.get_run_by_id(created_run.run_id)


def test_the_runs_of_a_plan_that_is_kept_stay_in_the_list(instance):
    """Accounts of a backfill ask which days its runs were for."""
    own_run = run_days(instance, 0, **{"dagster/backfill": "abc-pilot"})
    other = run_days(instance, 0, **{"dagster/backfill": "xyz-pilot"})
    run_days(instance, 0)
    prune_runs(instance, utc_now() + SOON, ["abc"])
    assert instance.get_run_by_id(own_run)
    assert instance.get_run_by_id(other) is None


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_dagster_knows_no_less_whatever_ran(seed, home, instance):
    """Any runs, forgotten in between at any moment: what is known of the days is the same."""
    rng = random.Random(seed)
    for _ in range(5):
        first = rng.randrange(len(KEYS))
        last = rng.randrange(first, len(KEYS))
        tags = {name: rng.choice(KEYS) for name in ("fail", "same", "warn") if rng.random() < 0.4}
        run_days(instance, first, last, **tags)
        if rng.random() < 0.4:
            before = known_state(home)
            prune_runs(instance, utc_now() + SOON)
            assert known_state(home) == before
    before = known_state(home)
    prune_runs(instance, utc_now() + SOON)
    assert known_state(home) == before


def test_a_run_whose_log_is_gone_can_be_looked_at(home, instance):
    run_id = run_days(instance, 0)
    prune_runs(instance, utc_now() + SOON)
    with dg.DagsterInstance.from_config(str(home)) as other:
        # What counts, or nothing, where a run has a database of its own.
        assert {log.dagster_event_type for log in other.all_logs(run_id)} <= {
            dg.DagsterEventType.ASSET_MATERIALIZATION,
            dg.DagsterEventType.ASSET_CHECK_EVALUATION,
        }
        assert other.get_run_stats(run_id)


def test_the_job_takes_old_runs_and_tells(home, instance, monkeypatch):
    run_days(instance, 0)
    settings = load_settings(keep_runs_days=1, undo_days=1)
    housekeeping = build_housekeeping(Deployment(settings))
    assert housekeeping.default_status is dg.DefaultScheduleStatus.STOPPED
    calls = []
    monkeypatch.setattr(
        "backfill_assets.dagster_ext.eventlog.prune_runs",
        lambda _instance, before, spared, _owns: calls.append((before, list(spared))),
    )
    engine = dg.ResourceDefinition.none_resource()
    definitions = dg.Definitions(jobs=[housekeeping.job], resources={ENGINE_KEY: engine})
    config = {"ops": {"maintain_all_tables": {"config": {"tables": False}}}}
    job = definitions.resolve_job_def("housekeeping")
    assert job.execute_in_process(instance=instance, run_config=config).success
    ((before, spared),) = calls
    assert abs(utc_now() - timedelta(days=1) - before) < SOON
    assert spared == []


@pytest.mark.parametrize(
    ("keep", "undo", "days"), [(1, 30, 30), (90, 30, 90)], ids=["undo", "setting"]
)
def test_what_can_be_undone_is_kept_as_long(keep, undo, days, instance, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "backfill_assets.dagster_ext.eventlog.prune_runs",
        lambda _instance, before, spared, _owns: calls.append(before),
    )
    settings = load_settings(keep_runs_days=keep, undo_days=undo, keep_plans_days=keep)
    engine = dg.ResourceDefinition.none_resource()
    job = dg.Definitions(
        jobs=[build_housekeeping(Deployment(settings)).job], resources={ENGINE_KEY: engine}
    ).resolve_job_def("housekeeping")
    config = {"ops": {"maintain_all_tables": {"config": {"tables": False}}}}
    job.execute_in_process(instance=instance, run_config=config)
    assert abs(utc_now() - timedelta(days=days) - calls[0]) < SOON


# --- plans ----------------------------------------------------------------------------------------


class _Plan:
    """What `undertakings` asks of one."""

    def __init__(self, planned_at: float, began: float = 0, took: float = 0) -> None:
        self.made, self.began, self.took = planned_at, began, took


#: Plans, and whether they are forgotten when what ended before 100 is.
PLANS = {
    "over": (_Plan(planned_at=10), True),
    "young": (_Plan(planned_at=100), False),
    "long over": (_Plan(planned_at=10, began=20, took=30), True),
    "just over": (_Plan(planned_at=10, began=20, took=80), False),
    "of an earlier release": (_Plan(planned_at=0), False),
}


def test_old_plans(instance, monkeypatch):
    active = {f"{name}, under way" for name in PLANS}
    plans = {
        name: (plan, gone and name in PLANS)
        for own_name, (plan, gone) in PLANS.items()
        for name in (own_name, f"{own_name}, under way")
    }
    instance.add_dynamic_partitions("backfill_assets_plans", [*plans])
    instance.add_dynamic_partitions(state_store.ACTIVE, [*active])
    store = instance.daemon_cursor_storage
    store.set_cursor_values({f"backfill_assets/plan/{name}": "a plan" for name in plans})
    with monkeypatch.context() as patched:
        patched.setattr(state_store, "load", lambda _, name: plans[name][0])
        forgotten = state_store.delete_older(Deployment(load_settings()), instance, 100)
    assert sorted(forgotten) == sorted(name for name, (_, gone) in plans.items() if gone)
    assert {*state_store.list_ids(instance)} == plans.keys() - {*forgotten}
    for name in forgotten:
        with pytest.raises(state_store.BackfillRefusedError, match=f"there is no plan {name}"):
            state_store.load(instance, name)
