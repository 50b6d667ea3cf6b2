"""The part of `make bench` about 10,000 days of twenty tables: what each look at them costs.

No Spark but for the days that are really made.

The first day is really made, and then the days at the end. Those between are commits and
materializations that nobody made, like those of the first day; so are their data files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from uuid import uuid4

import dagster as dg
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from dagster._serdes import deserialize_value, serialize_value

from backfill_assets.backfills import stages as backfills
from backfill_assets.backfills import state_store
from backfill_assets.backfills.planner import days_by_table
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import Grain, Window
from backfill_assets.definitions import build_defs
from backfill_assets.delta import ledger_reader
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.incidents import find_incidents, read_snapshot
from backfill_assets.monitoring.states import day_states
from backfill_assets.spark.session import Engine
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets_tests.benchmarks.bench_history import add_nights
from backfill_assets_tests.benchmarks.bench_jobs import Deployed
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers.invented_logs import snapshot_ledgers
from backfill_assets_tests.helpers.pipeline import START, Pipeline, make_plan, order

DAY = timedelta(days=1)
TABLES = "backfill_assets_tests.benchmarks.twenty_tables:TABLES"
#: The days at the end that are really made, one of them as a run that is timed.
RECENT = 3
EVENTS_AT_ONCE = 1000


def measure_scale(engine: Engine, root: Path, days: int) -> None:
    """Seconds, memory and bytes of each look at so many days of twenty tables."""
    pipeline = make_aged_deployment(engine, root, days)
    names = [*all_table_names(pipeline)]
    print(f"\n{days:,} days x {len(names)} tables", flush=True)
    measure_files(pipeline, names)
    measure_ledgers(pipeline)
    measure_dagster(pipeline, names)
    measure_ticks(pipeline)
    measure_plans(pipeline, names, days)
    last = START + RECENT * DAY
    pipeline.now = datetime.combine(last + DAY, time(3), tzinfo=pipeline.settings.zone)
    for n in (RECENT - 1, RECENT):
        measure_work(f"a run of one day, all tables ({n})", lambda n=n: pipeline.run(n, n, names))
    measure_work("a look at all days after it", lambda: look_for_incidents(pipeline))


def all_table_names(pipeline: Pipeline) -> Iterable[str]:
    """The names of all tables."""
    return [key.to_user_string() for key in _table_keys(pipeline)]


def _table_keys(pipeline: Pipeline) -> list[dg.AssetKey]:
    graph = pipeline.repository.asset_graph
    return [key for key in graph.toposorted_asset_keys if graph.get(key).partitions_def]


def make_aged_deployment(engine: Engine, root: Path, days: int) -> Pipeline:
    """A deployment with so many days, of which the first is really there."""
    start = START - (days - RECENT) * DAY
    pipeline = Deployed(
        engine,
        root,
        start=start,
        end=START + (RECENT + 1) * DAY,
        tables=TABLES,
        partitions_per_run=31,
    )
    first = (start - START).days + 1
    for n in (first, *range(1, RECENT + 1)):
        pipeline.land(n, [order(f"o-{n}-{i}", n, customer=f"c{i % 50}") for i in range(200)])
    names = [*all_table_names(pipeline)]
    first_run = pipeline.run(start, start, names)
    nights = [start + n * DAY for n in range(1, days - RECENT)]
    ledgers = read_ledgers(pipeline.deployment)
    offsets = {name: ledgers[name].version or 0 for name in names}
    for name in names:
        partition = ledgers[name].table.partition
        add_nights(Path(pipeline.settings.table(name)), partition, nights, offsets)
    store_night_events(pipeline.instance, first_run.run_id, str(start), nights)
    return pipeline


def store_night_events(
    instance: dg.DagsterInstance, run_id: str, first: str, nights: Iterable[date]
) -> None:
    """Materializations like those of a run of one day."""
    like = [
        serialize_value(entry)
        for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
        if entry.get_dagster_event().partition == first
    ]
    spelled = [str(night) for night in nights]
    step = EVENTS_AT_ONCE // len(like)
    for n in range(0, len(spelled), step):
        run = str(uuid4())
        texts = (
            text.replace(run_id, run).replace(first, night)
            for night in spelled[n : n + step]
            for text in like
        )
        entries = [deserialize_value(text, dg.EventLogEntry) for text in texts]
        instance.event_log_storage.store_event_batch(entries)


def measure_work(what: str, work: Callable[[], Any]) -> Any:
    """Seconds of work, those of a core, and the memory of this process, as a row of the results."""
    began, at_work = perf_counter(), process_time()
    outcome = work()
    took, of_core = perf_counter() - began, process_time() - at_work
    pages = int(re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[0])
    print_result(what, f"{took:.2f} s, {of_core:.2f} s of a core, {pages / 1024:,.0f} MB")
    return outcome


def measure_files(pipeline: Pipeline, names: Iterable[str]) -> None:
    """What lies on disk."""
    kinds = {
        "commits": "*/_delta_log/*.json",
        "checkpoints": "*/_delta_log/*.parquet",
        "copies of the records": "*/_backfill_assets/*",
    }
    read_ledgers(pipeline.deployment)  # makes the copies
    for what, pattern in kinds.items():
        _print_sizes(what, pipeline.warehouse.glob(pattern))
    _print_sizes("Dagster's event index", (pipeline.root / "home").glob("**/index.db*"))


def _print_sizes(what: str, files: Iterable[Path]) -> None:
    sizes = [file.stat().st_size for file in files]
    print_result(f"on disk: {what}", f"{len(sizes):,} files, {sum(sizes) / 1e6:,.1f} MB")


def measure_ledgers(pipeline: Pipeline) -> None:
    """Reading all that the tables say, and what follows from it."""
    settings = pipeline.settings
    for copy in pipeline.warehouse.glob("*/_backfill_assets/*"):
        copy.unlink()
    ledger_reader._cached_ledgers.clear()
    measure_work(
        "all ledgers, new process, no copy of the records",
        lambda: read_ledgers(Deployment(settings)),
    )
    ledger_reader._cached_ledgers.clear()
    measure_work("all ledgers, new process", lambda: read_ledgers(Deployment(settings)))
    ledgers = measure_work("all ledgers, nothing new", lambda: read_ledgers(Deployment(settings)))
    policy, today = Policy.from_settings(settings), pipeline.now.date()
    measure_work("backlog", lambda: find_stale_days(snapshot_ledgers(ledgers, policy, today)))
    measure_work(
        "backlog, nothing new", lambda: find_stale_days(snapshot_ledgers(ledgers, policy, today))
    )
    now = measure_work(
        "snapshot", lambda: read_snapshot(Deployment(settings), pipeline.instance, pipeline.now)
    )
    measure_work(
        "snapshot, once more",
        lambda: read_snapshot(Deployment(settings), pipeline.instance, pipeline.now),
    )
    measure_work("states of all days", lambda: {name: day_states(name, now) for name in ledgers})
    open_incidents = measure_work("incidents", lambda: find_incidents(now))
    print(f"    {len(open_incidents)} incidents", flush=True)


def look_for_incidents(pipeline: Pipeline) -> None:
    """What the sensor of alerts does."""
    find_incidents(read_snapshot(pipeline.deployment, pipeline.instance, pipeline.now))


def measure_dagster(pipeline: Pipeline, names: Iterable[str]) -> None:
    """Dagster's own: definitions, partitions, statuses."""
    measure_work("definitions", lambda: build_defs(pipeline.settings).get_repository_def())
    partitions = Grain.DAILY.partitions_def(pipeline.settings)
    measure_work("partition keys", partitions.get_partition_keys)

    def read_statuses() -> None:
        for name in names:
            get_and_update_asset_status_cache_value(
                pipeline.instance, dg.AssetKey(name), partitions
            )

    measure_work("status of all partitions of all assets", read_statuses)
    measure_work("status of all partitions of all assets, once more", read_statuses)
    measure_work(
        "materialized partitions of one asset",
        lambda: pipeline.instance.get_materialized_partitions(dg.AssetKey("fact_daily_orders")),
    )


def measure_ticks(pipeline: Pipeline) -> None:
    """Ticks of the sensors, the second of two: the code server has ticked before."""
    for sensor in ("planned_backfills", "touched_days", "landed_files", "watch_days"):
        pipeline.tick(sensor)
        measure_work(f"tick of {sensor}", lambda sensor=sensor: pipeline.tick(sensor))
    measure_work("tick of the schedule", pipeline.tick_schedule)
    measure_work("look of alerts", lambda: look_for_incidents(pipeline))


def measure_plans(pipeline: Pipeline, names: Iterable[str], days: int) -> None:
    """Plans of few days and of all; handing a stage of all days to Dagster."""
    graph = pipeline.repository.asset_graph
    first, last = pipeline.settings.start, START - DAY
    recent_days, all_ = f"{last - 29 * DAY}...{last}", f"{first}...{last}"
    tables = tuple(names)
    measure_work("plan of 30 days", lambda: make_plan(pipeline, recent_days, tables=tables))
    plan = measure_work(f"plan of {days:,} days", lambda: make_plan(pipeline, all_, tables=tables))
    whole = Window(first, last + DAY)
    measure_work(
        "the days that follow from them",
        lambda: days_by_table(pipeline.deployment, tables, whole),
    )
    measure_work(
        "handing them to Dagster as one backfill",
        lambda: backfills.launch_stage(
            pipeline.deployment, pipeline.instance, graph, plan.id, plan
        ),
    )
    measure_work("tick of planned_backfills with it", lambda: pipeline.tick("planned_backfills"))
    state = state_store.load(pipeline.instance, plan.id)
    print_result("the plan as it is kept", f"{len(state.model_dump_json()) / 1e3:,.0f} kB")
    pipeline.instance.delete_dynamic_partition(state_store.ACTIVE, plan.id)
