"""The part of `make bench` about features that a deployment does not use: what their hooks cost.

The same runs in turn: as they are; with the hooks of months and weeks, days with gaps, stores,
catalog and lineage replaced by what would stand there without them; and with some of them in use.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

from backfill_assets.assets import table_asset
from backfill_assets.calendar.partitions import DAY, Grain, Window
from backfill_assets.dagster_ext import eventlog
from backfill_assets.publish import io_manager
from backfill_assets.spark import stores
from backfill_assets.spark.session import Engine
from backfill_assets_tests.benchmarks.bench_backfills import REWRITE
from backfill_assets_tests.benchmarks.bench_jobs import Deployed, write_landing
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers.pipeline import LAYERS, START

_ROUNDS = 9
_MODES = ("unused", "without", "used")
#: What nothing loads but a feature in use.
_MODULES = {"openlineage", "prometheus_client", "backfill_assets.monitoring.lineage"}


def _range_of_keys(keys: Iterable[str], _tags: Mapping[str, str]) -> Window:
    days = [*map(date.fromisoformat, keys)]
    return Window(days[0], days[-1] + DAY)


#: Each hook, and what stands for it where partitions are days, runs ranges, and stores folders.
_HOOKS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (eventlog, "days_of_run", lambda _tags: None),
    (table_asset, "partitions_of_run", _range_of_keys),
    (io_manager, "partitions_of_run", _range_of_keys),
    (io_manager.DeltaIOManager, "report_commits", lambda *_: None),
    (stores, "_store_type", lambda _url: None),
    (Grain, "first_day", lambda _, day: day),
    (Grain, "days_of", lambda _, day: Window(day, day + DAY)),
    (Grain, "partitions_of", lambda _, days: sorted({*days})),
    (Grain, "partitions_before", lambda _, day, n: [day - k * DAY for k in range(1, n + 1)]),
    (Grain, "whole_partitions", lambda _, window: window),
)


def _time_calls(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def run_timed(*arguments: Any) -> Any:
        began = perf_counter()
        try:
            return function(*arguments)
        finally:
            seconds.append(perf_counter() - began)

    return run_timed


def measure_unused_features(engine: Engine, root: Path, days: int, orders: int) -> None:
    """Seconds, Spark jobs, commits and events of one-day runs and of runs of all days."""
    spark = engine.spark_session
    jars = spark.sparkContext.getConf().get("spark.jars", "")
    assert "gcs-connector" not in jars
    write_landing(spark, root, days, orders)
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS bench LOCATION '{root}/bench'")
    transport = {"type": "file", "log_file_path": str(root / "events.jsonl"), "append": True}
    os.environ["OPENLINEAGE__TRANSPORT"] = json.dumps(transport)
    settings: dict[str, Any] = {"land": False, "landing": str(root)}
    used = {"lineage": "bench", "catalog": "spark_catalog.bench", "metrics_file": root / "m.prom"}
    pipelines = {}
    for mode in _MODES:  # the used features come last; the first runs warm up
        in_use = used if mode == "used" else {}
        pipelines[mode] = pipeline = Deployed(engine, root / mode, **settings, **in_use)
        pipeline.run(START, START + (days - 1) * DAY)
        pipeline.tick("watch_days")
        assert bool(_MODULES & {*sys.modules}) is (mode == "used")
    for count in (1, days):
        _compare_runs(pipelines, count, f"{count} days x {orders:,} orders")


def _compare_runs(pipelines: Mapping[str, Deployed], count: int, what: str) -> None:
    in_hooks: list[float] = []
    seconds: dict[str, list[float]] = {mode: [] for mode in _MODES}
    work: dict[str, set[tuple[int, ...]]] = {mode: set() for mode in _MODES}
    for n in range(_ROUNDS * len(_MODES)):
        mode = _MODES[(n + n // len(_MODES)) % len(_MODES)]  # each is the first in turn
        pipeline = pipelines[mode]
        before = _count_work(pipeline)
        with ExitStack() as stack:
            for owner, name, plain in _HOOKS if mode != "used" else ():
                timed = _time_calls(getattr(owner, name), in_hooks)
                new = timed if mode == "unused" else plain
                stack.enter_context(patch.object(owner, name, new))
            began = perf_counter()
            run = pipeline.run(START, START + (count - 1) * DAY, tags=REWRITE)
            pipeline.tick("watch_days")
            seconds[mode].append(perf_counter() - began)
        jobs, commits = (b - a for a, b in zip(before, _count_work(pipeline), strict=True))
        work[mode].add((jobs, commits, len(pipeline.instance.all_logs(run.run_id))))
    print(f"    Spark jobs, commits, events of a run: {work}")
    ratios = {
        mode: median(a / b for a, b in zip(seconds[mode], seconds["without"], strict=True))
        for mode in _MODES
    }
    print_result(f"{what}, nothing used : without hooks", ratios["unused"], 1.02)
    share = 100 * sum(in_hooks) / sum(seconds["unused"])
    note = f"{len(in_hooks):,} calls"
    print_result(f"{what}, nothing used: seconds in hooks", share, 2, "%", note)
    print_result(f"{what}, catalog, lineage, metrics used : without hooks", ratios["used"])


def _count_work(pipeline: Deployed) -> tuple[int, int]:
    """Spark jobs and commits so far."""
    scheduler = pipeline.io_manager.engine.spark_session.sparkContext._jsc.sc().dagScheduler()
    return scheduler.numTotalJobs(), sum(pipeline.log(name).version() for name in LAYERS)
