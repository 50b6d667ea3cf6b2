"""The parts of `make bench` about long backfills: engines, history, merge, cap."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, time

import dagster as dg
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import Window, to_windows
from backfill_assets.orders.tables import CORRECTIONS, CURRENT, STAGED
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.spark.session import Engine
from backfill_assets_tests.benchmarks.bench_jobs import (
    Deployed,
    instance_at,
    print_result,
    time_work,
    write_landing,
)
from backfill_assets_tests.helpers.connect_server import connect_server
from backfill_assets_tests.helpers.paths import BIN
from backfill_assets_tests.helpers.pipeline import EVERYTHING, LAYERS, START
from backfill_assets_tests.helpers.publish_rows import publish_frame

DAY = timedelta(days=1)
_FLAT = {"the layers": "1.15", f"{CORRECTIONS.name} and {CURRENT.name}": "1.25"}
REWRITE = {REWRITE_TAG: "true"}


def day_range(first: int, count: int) -> Window:
    """So many days, from that one of the landing on."""
    return Window(START + first * DAY, START + (first + count) * DAY)


# --- one engine or many ---------------------------------------------------------------------------


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


class Shell:
    """Runs as the command line starts them: a process each, on an instance of their own."""

    def __init__(
        self,
        root: Path,
        landing: Path,
        environment: Mapping[str, str],
        tables: Sequence[str] = LAYERS,
    ) -> None:
        self.tables = tables
        self.home = root / "home"
        # Dagster's processes do not agree on who creates the databases of a new home.
        instance_at(self.home).dispose()
        self.environment = {
            **os.environ,
            "DAGSTER_HOME": str(self.home),
            "BACKFILL_ASSETS_LANDING": str(landing),
            "BACKFILL_ASSETS_WAREHOUSE": str(root / "warehouse"),
            "BACKFILL_ASSETS_START": str(START),
            "BACKFILL_ASSETS_END": str(START + 1200 * DAY),
            **environment,
        }

    def run_days(self, days: Window) -> float:
        """Seconds from the start of the process to its end."""
        select = ["--select", " or ".join(f"key:{name}" for name in self.tables)]
        range_ = ["--partition-range", f"{days.start}...{days.end - DAY}"]
        command = [BIN / "dagster", "asset", "materialize"]
        began = perf_counter()
        process = subprocess.run(
            [*map(str, command), "-m", "backfill_assets.definitions", *select, *range_],
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, f"{days}: {process.stderr[-4000:]}"
        return perf_counter() - began

    def run_day_by_day(self, runs: int) -> list[tuple[float, float, float, float]]:
        """Of each of so many one-day runs: the seconds in all, and those of its phases.

        Before the steps: Python, the imports and the definitions.
        """
        run_seconds = []
        os.environ["DAGSTER_HOME"] = str(self.home)
        for n in range(runs):
            began = time()
            whole = self.run_days(day_range(n, 1))
            ended = time()
            with dg.DagsterInstance.get() as instance:
                (run,) = instance.get_runs(limit=1)
                run_seconds.append((whole, *run_phases(instance, run.run_id, began, ended)))
        return run_seconds


def measure_engines(engine: Engine, root: Path, runs: int, orders: int) -> None:
    """One-day runs on a warm shared engine, with an engine each, and one run for all days."""
    landing = root / "landing"
    write_landing(engine.spark_session, landing, runs, orders)
    with connect_server(root, {}) as url:
        warm = Shell(root / "warm", landing, {"SPARK_REMOTE": url})
        warm.run_days(day_range(0, 1))
        shutil.rmtree(root / "warm" / "warehouse")
        days = warm.run_day_by_day(runs)
    totals = [whole for whole, *_ in days]
    print(f"  warm shared engine: {median(totals):.1f} s a one-day run (median of {runs})")
    before, within, after = (median(column) for column in [*zip(*days, strict=True)][1:])
    print(f"    before its steps {before:.1f} s, in them {within:.1f} s, after them {after:.1f} s")
    cold = Shell(root / "cold", landing, {})
    each = [cold.run_days(day_range(n, 1)) for n in range(runs)]
    print(f"  an engine each: {median(each):.1f} s a one-day run (median of {runs})")
    whole = Shell(root / "whole", landing, {}).run_days(day_range(0, runs))
    print(f"  one run of {runs} days: {whole:.1f} s")
    print(
        f"\n(a) {runs} one-day runs on a warm engine : with an engine each : one run = "
        f"{sum(totals) / whole:.1f} : {sum(each) / whole:.1f} : 1\n"
        f"(e) one-day run on the warm engine, process and all : its steps = "
        f"{median(whole / within for whole, _, within, _ in days):.2f}",
        flush=True,
    )


def measure_caps(engine: Engine, root: Path, chunks: int, orders: int) -> None:
    """Throughput on one warm engine with so many runs at a time."""
    landing, size = root / "landing", 4
    write_landing(engine.spark_session, landing, chunks * size, orders)
    speeds = {}
    with connect_server(root, {}) as url:
        Shell(root / "first", landing, {"SPARK_REMOTE": url}).run_days(day_range(0, size))
        for cap in (1, 2, 4, 8):
            shell = Shell(root / f"cap-{cap}", landing, {"SPARK_REMOTE": url})
            began = perf_counter()
            with ThreadPoolExecutor(cap) as pool:
                list(pool.map(shell.run_days, day_range(0, chunks * size).split_by_length(size)))
            speeds[cap] = 60 * chunks * size / (perf_counter() - began)
            print(f"  cap {cap}: {speeds[cap]:.0f} days a minute", flush=True)
    ratios_text = " : ".join(f"{speed / speeds[1]:.2f}" for speed in speeds.values())
    print(f"\n(g) throughput with 1, 2, 4 and 8 runs at a time = {ratios_text}", flush=True)


# --- history ----------------------------------------------------------------------


def measure_history(engine: Engine, root: Path, lengths: tuple[int, ...], orders: int) -> None:
    """Seconds of a one-day run when so many days are in the tables already."""
    two = [CORRECTIONS.name, CURRENT.name]
    parts = {
        "the layers": LAYERS,
        " and ".join(two): two,
        "the others": [name for name in EVERYTHING if name not in (*LAYERS, *two)],
    }
    seconds_by_part: dict[str, dict[int, float]] = {what: {} for what in parts}
    for length in lengths:
        ours = Deployed(engine, root / str(length), end=START + (length + 30) * DAY)
        write_landing(engine.spark_session, ours.landing, length, orders)
        last = START + (length - 1) * DAY
        time_work(f"{length} days loaded", partial(ours.run, START, last, EVERYTHING))
        day = START + (length // 2) * DAY
        for what, tables in parts.items():
            run = partial(ours.run, day, None, tables, tags=REWRITE)
            run()  # warms up
            seconds_by_part[what][length] = median(
                time_work(f"one day of {length}: {what}", run) for _ in range(5)
            )
    for what, seconds in seconds_by_part.items():
        ratios_text = " : ".join(f"{x / seconds[lengths[0]]:.2f}" for x in seconds.values())
        days = " : ".join(f"{length:,}" for length in lengths)
        print_result(f"one day, {what}, with {days} days loaded", ratios_text, _FLAT.get(what, "-"))


# --- merge ----------------------------------------------------------------------------------------


def measure_merge(engine: Engine, root: Path, rows: int) -> None:
    """Merge against overwrite of one day, by the share of its rows that changed."""
    spark = engine.spark_session
    pipeline = Deployed(engine, root)
    n = F.col("id")
    base = spark.range(rows).select(
        F.lit(START).alias("event_date"),
        F.format_string("o-%09d", n).alias("order_id"),
        F.format_string("c-%06d", n % 20011).alias("customer_id"),
        F.lit(f"{START} 10:00:00").cast("timestamp").alias("order_ts"),
        (n % 1000).cast("decimal(18,2)").alias("amount"),
        F.lit(f"{START} 10:00:00").cast("timestamp").alias("ingestion_ts"),
        F.lit(START).alias("log_date"),
    )
    day = to_windows([START])[0]
    rounds = iter(range(1, 1000))

    def prepare_publish(share: float, *, merge: bool) -> Callable[[], object]:
        changed = F.when(n % 1000 < share * 1000, next(rounds)).otherwise(0)
        amount = (F.col("amount") + changed).cast("decimal(18,2)")
        numbered = base.withColumn("id", F.substring("order_id", 3, 9).cast("long"))
        frame = numbered.withColumn("amount", amount).drop("id").repartition(4)
        return lambda: publish_frame(pipeline, frame, day, table=STAGED, run="bench", merge=merge)

    prepare_publish(1, merge=False)()
    ratios = {}
    for share in (0.001, 0.1, 1.0):
        pairs = []
        for _ in range(3):
            merged = time_work(f"merge, {share:.1%} changed", prepare_publish(share, merge=True))
            replaced = time_work(
                f"overwrite, {share:.1%} changed", prepare_publish(share, merge=False)
            )
            pairs.append(merged / replaced)
        ratios[share] = median(pairs)
    ratios_text = ", ".join(f"{ratio:.2f} ({share:.1%} changed)" for share, ratio in ratios.items())
    print(f"\n(f) merge : overwrite of a day of {rows:,} rows = {ratios_text}", flush=True)
