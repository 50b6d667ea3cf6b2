"""The parts of `make bench` about long backfills: engines, history, merge, cap."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import Window, to_windows
from backfill_assets.orders.tables import CORRECTIONS, CURRENT, STAGED
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.spark.session import Engine
from backfill_assets_tests.benchmarks.bench_jobs import (
    Deployed,
    instance_at,
    step_seconds,
    time_work,
    write_landing,
)
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers.connect_server import connect_server
from backfill_assets_tests.helpers.paths import BIN
from backfill_assets_tests.helpers.pipeline import EVERYTHING, LAYERS, START, Pipeline
from backfill_assets_tests.helpers.publish_rows import publish_frame

DAY = timedelta(days=1)
_FLAT = {"the layers": 1.15, f"{CORRECTIONS.name} and {CURRENT.name}": 1.25}
REWRITE = {REWRITE_TAG: "true"}


def day_range(first: int, count: int) -> Window:
    """So many days, from that one of the landing on."""
    return Window(START + first * DAY, START + (first + count) * DAY)


# --- one engine or many ---------------------------------------------------------------------------


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
        module = ["-m", "backfill_assets.definitions"]
        return self._time_command("dagster", "asset", "materialize", *module, *select, *range_)

    def cut_days(self, days: Window, days_per_run: int) -> float:
        """Seconds of a `materialize` that cuts the days of all tables into runs."""
        self.environment["BACKFILL_ASSETS_PARTITIONS_PER_RUN"] = str(days_per_run)
        return self._time_command("backfill-assets", "materialize", str(days))

    def _time_command(self, program: str, *words: str) -> float:
        began = perf_counter()
        process = subprocess.run(
            [str(BIN / program), *words],
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, f"{words}: {process.stderr[-4000:]}"
        return perf_counter() - began

    def run_each_day(self, days: int) -> float:
        """Seconds of a run for each of so many days."""
        return sum(self.run_days(day_range(n, 1)) for n in range(days))


def measure_engines(engine: Engine, root: Path, days: int, orders: int) -> None:
    """Short runs on a warm shared engine, with an engine each, of one command; and one run."""
    landing, days_per_run = root / "landing", 5
    write_landing(engine.spark_session, landing, days, orders)
    with connect_server(root, {}) as url:
        warm = Shell(root / "warm", landing, {"SPARK_REMOTE": url}, EVERYTHING)
        warm.run_days(day_range(0, 1))
        shutil.rmtree(root / "warm" / "warehouse")
        on_warm = warm.run_each_day(days)
        shutil.rmtree(root / "warm" / "warehouse")
        whole = warm.run_days(day_range(0, days))
    seconds = {
        "on a warm engine": on_warm,
        "with an engine each": Shell(root / "cold", landing, {}, EVERYTHING).run_each_day(days),
    }
    for where, took in seconds.items():
        what = f"{days} one-day runs of {orders:,} lines {where} : one run on the warm engine"
        print_result(what, took / whole, note=f"{took:.0f} s : {whole:.1f} s")
    uncut = Shell(root / "uncut", landing, {}, EVERYTHING).run_days(day_range(0, days))
    cut = Shell(root / "cut", landing, {}, EVERYTHING).cut_days(day_range(0, days), days_per_run)
    what = f"{days} days by a command in runs of {days_per_run} : one run, an engine each"
    print_result(what, cut / uncut, 1.3, note=f"{cut:.0f} s : {uncut:.0f} s")


def measure_caps(engine: Engine, root: Path, days: int, orders: int) -> None:
    """Throughput on one warm engine with so many runs of four days at a time."""
    landing, size = root / "landing", 4
    write_landing(engine.spark_session, landing, days, orders)
    speeds = []
    caps = (1, 2, 4, 8)
    with connect_server(root, {}) as url:
        Shell(root / "first", landing, {"SPARK_REMOTE": url}).run_days(day_range(0, size))
        for cap in caps:
            shell = Shell(root / f"cap-{cap}", landing, {"SPARK_REMOTE": url})
            began = perf_counter()
            with ThreadPoolExecutor(cap) as pool:
                list(pool.map(shell.run_days, day_range(0, days).split_by_length(size)))
            speeds.append(60 * days / (perf_counter() - began))
            print(f"  {cap} at a time: {speeds[-1]:.0f} days a minute", flush=True)
    text = " : ".join(f"{speed:.0f}" for speed in speeds)
    print_result(f"days a minute with {', '.join(map(str, caps))} runs at a time", text)


# --- history ----------------------------------------------------------------------


def measure_history(engine: Engine, root: Path, lengths: Sequence[int], orders: int) -> None:
    """Seconds of a one-day run, and of two of its steps, with so many days in the tables."""
    two = (CORRECTIONS.name, CURRENT.name)
    parts = {"the layers": LAYERS, " and ".join(two): two, "the dashboard": ("lateness_dashboard",)}
    # Steps that look at all days.
    steps = {"the layers": "check_days", "the dashboard": "draw_lateness_dashboard"}
    seconds: dict[str, list[float]] = defaultdict(list)
    for length in lengths:
        ours = Deployed(engine, root / str(length), end=START + (length + 30) * DAY)
        write_landing(engine.spark_session, ours.landing, length, orders)
        last = START + (length - 1) * DAY
        time_work(f"{length} days loaded", partial(ours.run, START, last, EVERYTHING))
        for part, tables in parts.items():
            runs = _time_rewrites(ours, START + (length // 2) * DAY, tables)
            if part in _FLAT:
                seconds[part].append(median(whole for whole, _ in runs))
            if step := steps.get(part):
                seconds[f"step {step}"].append(median(by_step[step] for _, by_step in runs))
    days = " : ".join(f"{length:,}" for length in lengths)
    for what, took in seconds.items():
        print_result(
            f"one day, {what}, with {lengths[-1]:,} days loaded : with {lengths[0]:,}",
            took[-1] / took[0],
            _FLAT.get(what),
            note=f"{' : '.join(f'{each:.2f}' for each in took)} s with {days}",
        )


def _time_rewrites(
    pipeline: Pipeline, day: date, tables: Sequence[str]
) -> list[tuple[float, dict[str, float]]]:
    """The seconds of runs of a day, and of their steps; the first run, a warm-up, is left out."""
    runs = []
    for _ in range(6):
        began = perf_counter()
        result = pipeline.run(day, None, tables, tags=REWRITE)
        runs.append((perf_counter() - began, step_seconds(result)))
    return runs[1:]


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
    for share in (0.001, 0.1, 1.0):
        ratios = []
        for _ in range(3):
            merged = time_work(f"merge, {share:.1%} changed", prepare_publish(share, merge=True))
            replaced = time_work(
                f"overwrite, {share:.1%} changed", prepare_publish(share, merge=False)
            )
            ratios.append(merged / replaced)
        what = f"merge : overwrite of a day of {rows:,} rows, {share:.1%} changed"
        print_result(what, median(ratios))
