"""The parts of `make bench` on a deployment: runs as Dagster's daemon and queue launch them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import dagster as dg
from dagster import AssetKey
from dagster_graphql import DagsterGraphQLClient

from backfill_assets.backfills import state_store
from backfill_assets.backfills.stages import RECONCILES_TAG
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.settings import Settings, load_settings
from backfill_assets.spark.session import Engine
from backfill_assets_guide.examples import web_events
from backfill_assets_guide.examples.host_project import definitions as host_project
from backfill_assets_guide.examples.host_project.definitions import LAKE
from backfill_assets_guide.examples.host_project.sample import write_visits
from backfill_assets_guide.examples.web_events import VISITS, active_users_7d
from backfill_assets_tests.benchmarks.bench_backfills import day_range
from backfill_assets_tests.benchmarks.bench_jobs import (
    run_plain_job,
    time_work,
    write_landing,
)
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers.deployment import ServedDeployment
from backfill_assets_tests.helpers.pipeline import EVERYTHING, LAYERS, START
from backfill_assets_tests.helpers.stock_dagster import StockDeployment


@contextmanager
def _serve_deployment(
    engine: Engine, root: Path, days: int, orders: int
) -> Iterator[ServedDeployment]:
    """A deployment as `make ui` starts it, with landed files of so many days."""
    write_landing(engine.spark_session, root / "landing", days, orders)
    settings = load_settings(
        landing=str(root / "landing"),
        warehouse=str(root / "warehouse"),
        start=START,
        end=START + days * DAY,
    )
    deployment = ServedDeployment(root, settings)
    for name in ("SPARK_MASTER", "SPARK_CONF"):  # those of the tests
        del deployment.environment[f"BACKFILL_ASSETS_{name}"]
    try:
        deployment.wait_for_daemons()
        deployment.stop_rebuilding()
        yield deployment
    finally:
        deployment.stop()


def _busy_seconds(runs: Sequence[dg.RunRecord]) -> float:
    """Seconds in which at least one of the runs was at work."""
    spans = sorted((run.start_time or 0, run.end_time or 0) for run in runs)
    seconds = until = 0.0
    for began, ended in spans:
        seconds += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return seconds


def measure_planned_backfills(
    engine: Engine, root: Path, days: int, orders: int, rounds: int
) -> None:
    """Planned backfills of some days: from launch to the end, and while a run was at work."""
    ratios = []
    with _serve_deployment(engine, root, days * (rounds + 1), orders) as deployment:
        for n in range(rounds + 1):
            window = day_range(n * days, days)
            process = deployment.run("backfill", f"{window.start}...{window.end - DAY}", "--yes")
            assert process.returncode == 0, f"{process.stdout}\n{process.stderr[-4000:]}"
            with deployment.instance() as instance:
                state = state_store.load(instance, state_store.list_ids(instance)[-1])
                runs = [
                    run
                    for tag in ("dagster/backfill", RECONCILES_TAG)
                    for run in instance.get_run_records(
                        dg.RunsFilter(tags={tag: state.backfill_id})
                    )
                ]
            work = _busy_seconds(runs)
            print(f"  {state.took:6.1f} s, {len(runs)} runs at work for {work:.1f} s", flush=True)
            ratios.append(state.took / work)
    what = f"a planned backfill of {days} days, wall clock : the time its runs work"
    print_result(what, median(ratios[1:]), 1.5)


def _run_backfill(deployment: ServedDeployment, days: Window) -> None:
    """One of Dagster's backfills of the layers, launched as the UI does, to its end."""
    launched = deployment.launch([str(day) for day in days], LAYERS)
    with deployment.instance() as instance:
        while True:
            backfill = instance.get_backfill(launched)
            assert backfill is not None, launched
            if backfill.status.name not in ("REQUESTED", "COMPLETED"):
                assert backfill.status.name == "COMPLETED_SUCCESS", backfill.error
                return
            time.sleep(0.2)


def run_phases(
    instance: dg.DagsterInstance, run_id: str, began: float, ended: float
) -> tuple[float, float, float]:
    """Where the seconds of a run went: before its steps, in them, and after them.

    In the steps: attaching to the engine, what Spark does, and telling Dagster of it.
    """
    stats = instance.get_run_step_stats(run_id)
    first = min(s.start_time or 0 for s in stats)
    last = max(s.end_time or 0 for s in stats)
    return first - began, last - first, ended - last


def measure_one_day(engine: Engine, root: Path, orders: int, runs: int = 20) -> None:
    """One-day runs of all tables on the warm engine: from launch by the daemon to the end."""
    run_seconds = []
    with (
        _serve_deployment(engine, root, runs, orders) as deployment,
        deployment.instance() as instance,
    ):
        client = DagsterGraphQLClient("127.0.0.1", port_number=deployment.port)
        for day in day_range(0, runs):
            run_id = client.submit_job_execution(
                "__ASSET_JOB",
                repository_location_name="backfill_assets.definitions",
                tags={"dagster/partition": str(day)},
                asset_selection=[AssetKey(name) for name in EVERYTHING],
            )
            while (
                not (dagster_run := instance.get_run_by_id(run_id)) or not dagster_run.is_finished
            ):
                time.sleep(0.2)
            run = instance.get_run_stats(run_id)
            launched, ended = run.launch_time or 0, run.end_time or 0
            run_seconds.append((ended - launched, *run_phases(instance, run_id, launched, ended)))
    whole, before, within, after = (
        median(column) for column in zip(*run_seconds[-5:], strict=True)
    )
    first = ", ".join(f"{seconds:.1f}" for seconds, *_ in run_seconds[:3])
    what = f"one day x {orders:,} lines, all tables, warm engine, from launch to end"
    note = f"before the steps {before:.1f} s, in them {within:.1f} s, after them {after:.1f} s"
    print_result(what, whole, 5.0, "s", f"{note}; the first runs {first} s")


def measure_chunks(engine: Engine, root: Path, days: int, orders: int) -> None:
    """A year in chunks through daemon and queue, and by hand; then again, with no change."""
    spark, size = engine.spark_session, 31
    year = day_range(size, days)
    with _serve_deployment(engine, root, size + days, orders) as deployment:
        _run_backfill(deployment, day_range(0, size))  # warms up
        load = partial(_run_backfill, deployment, year)
        own_seconds = time_work(f"ours: {days} days in runs of {size}", load)
        second_seconds = time_work("ours: the same again, nothing changed", load)
    hand = partial(run_plain_job, spark, root / "landing")
    hand(root / "loop", START, size)  # warms up

    def run_loop() -> None:
        for chunk in year.split_by_length(size):
            hand(root / "loop", chunk.start, len(chunk))

    by_loop = time_work("by hand: the same chunks in a loop", run_loop)
    what = f"{days} days in runs of {size} through daemon and queue"
    note = f"{own_seconds:.0f} s : {by_loop:.0f} s"
    print_result(f"{what} : a loop by hand", own_seconds / by_loop, 1.3, note=note)
    note = f"{second_seconds:.1f} s : {own_seconds:.0f} s"
    what = f"{what}, nothing changed : first load"
    print_result(what, second_seconds / own_seconds, 0.08, note=note)


def measure_stock(root: Path, days: int, lines: int) -> None:
    """A load on Dagster as it comes, and on this package's options for one machine."""
    tables = [VISITS.raw.name, VISITS.rejected.name, VISITS.staged.name, active_users_7d.name]
    write_visits(root / "landing", days, lines)
    stock = partial(StockDeployment, module=host_project.__name__)
    for name, kind, prefix in (("ours", ServedDeployment, []), ("stock", stock, LAKE)):
        settings = load_settings(
            landing=str(root / "landing"),
            warehouse=str(root / name / "warehouse"),
            tables=f"{web_events.__name__}:TABLES",
            start=host_project.FIRST_DAY,
            end=host_project.FIRST_DAY + days * DAY,
            key_prefix="/".join(prefix) or None,
        )
        deployment = kind(root / name, settings)
        for variable in ("SPARK_MASTER", "SPARK_CONF"):  # those of the tests
            del deployment.environment[f"BACKFILL_ASSETS_{variable}"]
        try:
            deployment.wait_for_daemons()
            deployment.stop_rebuilding()
            keys = [AssetKey([*prefix, table]) for table in tables]
            for what in ("the first load", "the same again, nothing changed"):
                _measure_run(deployment, keys, settings, f"{name}: {what}")
        finally:
            deployment.stop()


def _measure_run(
    deployment: ServedDeployment, keys: Sequence[AssetKey], settings: Settings, what: str
) -> None:
    """One run of all days, launched as the UI does: where its seconds went, and its events."""
    client = DagsterGraphQLClient("127.0.0.1", port_number=deployment.port)
    days = {"start": settings.start, "end": settings.end - DAY}
    run_id = client.submit_job_execution(
        "__ASSET_JOB",
        repository_location_name=deployment.location,
        tags={f"dagster/asset_partition_range_{end}": str(day) for end, day in days.items()},
        asset_selection=keys,
    )
    with deployment.instance() as instance:
        while not (run := instance.get_run_by_id(run_id)) or not run.is_finished:
            time.sleep(0.5)
        assert run.is_success, run_id
        stats = instance.get_run_stats(run_id)
        queued, ended = stats.enqueued_time or 0, stats.end_time or 0
        before, within, after = run_phases(instance, run_id, queued, ended)
        events = len(instance.all_logs(run_id))
    note = f"before the steps {before:.1f} s, in them {within:.1f} s, after them {after:.1f} s"
    print_result(f"{what}, from the queue to the end", ended - queued, None, "s", note)
    print_result(f"{what}, events", events)
