"""`make bench`: ours against a job written by hand, in one run on one warm session.

Ratios are the result; seconds depend on the machine. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from pyspark.sql import DataFrame, SparkSession

from backfill_assets.assets import raw_rows, staging
from backfill_assets.assets.input_frames import for_days
from backfill_assets.calendar.partitions import Window
from backfill_assets.calendar.reach import SAME_DAY
from backfill_assets.landing.files import LandingFiles, probe_files, read_lines
from backfill_assets.orders.tables import FACT, LATE, ORDER_LINES, RAW, REJECTED, STAGED
from backfill_assets.settings import load_settings
from backfill_assets.spark.session import Engine
from backfill_assets.tables.table import Table
from backfill_assets.transforms import dedup
from backfill_assets_tests.benchmarks.bench_backfills import (
    REWRITE,
    measure_caps,
    measure_engines,
    measure_history,
    measure_merge,
)
from backfill_assets_tests.benchmarks.bench_even import measure_even_stages
from backfill_assets_tests.benchmarks.bench_events import measure_events
from backfill_assets_tests.benchmarks.bench_history import measure_long_history
from backfill_assets_tests.benchmarks.bench_jobs import (
    Deployed,
    format_step_seconds,
    print_result,
    print_results,
    run_plain_job,
    time_work,
    write_landing,
)
from backfill_assets_tests.benchmarks.bench_listing import measure_file_survey, measure_many_files
from backfill_assets_tests.benchmarks.bench_migrations import measure_migrations
from backfill_assets_tests.benchmarks.bench_profile import (
    measure_cold_runs,
    measure_heavy_days,
    measure_small_days,
)
from backfill_assets_tests.benchmarks.bench_scale import measure_scale
from backfill_assets_tests.benchmarks.bench_served import (
    measure_chunks,
    measure_one_day,
    measure_planned_backfills,
)
from backfill_assets_tests.benchmarks.bench_skew import measure_skew
from backfill_assets_tests.benchmarks.bench_state import DAYS, measure_state
from backfill_assets_tests.benchmarks.bench_targets import measure_shadows
from backfill_assets_tests.benchmarks.bench_unused import measure_unused_features
from backfill_assets_tests.benchmarks.bench_windows import measure_windows
from backfill_assets_tests.helpers.connect_server import connect_server
from backfill_assets_tests.helpers.pipeline import LAYERS, START, Pipeline, order

SPARK = {"spark.driver.memory": "6g"}
PARTS = (
    "profile",
    "day",
    "small",
    "memory",
    "load",
    "late",
    "files",
    "connect",
    "planned",
    "chunks",
    "history",
    "merge",
    "engines",
    "caps",
    "answers",
    "events",
    "scale",
    "state",
    "targets",
    "migrations",
    "even",
    "skew",
    "windows",
    "unused",
)


def run_same_transforms(
    spark: SparkSession, landing: LandingFiles, folder: Path, days: Window
) -> None:
    """Our own pure transforms with one replaceWhere a table: no audit, no Dagster, no pinning."""

    def save_table(frame: DataFrame, table: Table) -> DataFrame:
        url = str(folder / table.name)
        writer = frame.write.format("delta").partitionBy(table.partition).mode("overwrite")
        writer.option("replaceWhere", days.sql_condition(table.partition)).save(url)
        saved = spark.read.format("delta").load(url)
        return saved.where(days.sql_condition(table.partition))

    landed = read_lines(spark, landing, ORDER_LINES)
    read = raw_rows.read_versions(landed, ORDER_LINES, "UTC").persist()
    log = save_table(
        raw_rows.accepted_rows(read, ORDER_LINES).where(days.sql_condition("log_date")), RAW
    )
    save_table(
        raw_rows.rejected_rows(read, ORDER_LINES).where(days.sql_condition("arrival_date")),
        REJECTED,
    )
    read.unpersist()
    dated = dedup.with_event_day(log, ORDER_LINES, "UTC")
    save_table(staging.late_lines(dated, ORDER_LINES, 7), LATE)
    ranked = dedup.rank_in_window(dated, ORDER_LINES, days, 7)
    staged = save_table(dedup.drop_superseded(ranked, ORDER_LINES), STAGED)
    save_table(FACT(for_days(staged, STAGED.partition, SAME_DAY, days)), FACT)


def time_one_day_runs(pipeline: Pipeline, label: str) -> float:
    """Median seconds of five one-day runs of all assets, each printed with its steps."""
    run_seconds = []
    for n in range(5):
        results: list[object] = []
        work = partial(_run_and_append, results, pipeline, START + timedelta(days=n))
        run_seconds.append(time_work(f"{label}: one day ({n + 1})", work))
        in_steps = format_step_seconds(results[0])
        print(f"    {in_steps}; the rest is Dagster's", flush=True)
    return sorted(run_seconds)[2]


def _run_and_append(
    results: list[object], pipeline: Pipeline, first: date, last: date | None = None
) -> None:
    # The same days again and again: without this, nothing would be done from the second run on.
    results.append(pipeline.run(first, last, tags=REWRITE))


def time_three_late_lines(engine: Engine, root: Path, days: int) -> float:
    """Seconds to find the days that three late lines touch, with so many days of history."""
    pipeline = Deployed(engine, root, end=START + timedelta(days=days + 2))
    for n in range(1, days + 1):
        pipeline.land(n, [order(f"o-{n}-{i}", n) for i in range(50)])
    tables = (RAW.name, REJECTED.name, STAGED.name, FACT.name)
    last = START + timedelta(days=days - 1)
    time_work(f"{days} days loaded", lambda: pipeline.run(START, last, tables))
    seconds = []
    for n in range(3):  # the first one warms up
        late_days = [days - 4, days - 2, days]
        at = f"{last + timedelta(days=1)}T10:00:00Z"
        late_lines = [order(f"late-{n}-{d}", d, ingested=at) for d in late_days]
        pipeline.land(days + 1, late_lines, f"late-{n}.jsonl")
        run = partial(pipeline.run, days + 1, days + 1, (RAW.name, REJECTED.name))
        loading = time_work(f"{days} days: load three late lines, find what they touch", run)
        pipeline.now = datetime.combine(last + timedelta(days=2), time(3), tzinfo=timezone.utc)
        began = perf_counter()
        requests = pipeline.tick("touched_days").run_requests or []
        tick = perf_counter() - began
        range_starts = {
            r.tags["dagster/asset_partition_range_start"] for r in requests if "stg" in r.run_key
        }
        # The new day itself is in one range with them, and so are the days between.
        assert range_starts == {str(START + timedelta(days=late_days[0] - 1))}, range_starts
        print(f"    the sensor's tick: {tick:.2f} s", flush=True)
        seconds.append(loading + tick)
    return min(seconds[1:])


def measure_late_lines(root: Path) -> None:
    """Whether the time to find what late lines touch grows with the history."""
    engine = Engine.from_settings(load_settings(spark_conf=SPARK))
    short, long = (time_three_late_lines(engine, root / str(days), days) for days in (73, 730))
    print(f"\nthree late lines, 730 days of history : 73 days = {long / short:.2f}", flush=True)
    engine.spark_session.stop()


def measure_on_connect(root: Path) -> None:
    """One-day runs on a warm Connect server, in a process that has no session of its own."""
    with connect_server(root, SPARK) as url:
        command = [
            sys.executable,
            "-m",
            "backfill_assets_tests.benchmarks.bench",
            "--attach",
            str(root),
        ]
        subprocess.run(command, env={**os.environ, "SPARK_REMOTE": url}, check=True)


def measure_attached(root: Path) -> None:
    """The child of `measure_on_connect`: five one-day runs after one that warms the server up."""
    pipeline = Deployed(
        Engine.from_settings(load_settings()), root, warehouse=str(root / "on-connect")
    )
    time_work("Connect: first run on the fresh server", lambda: pipeline.run(START))
    print(
        f"one-day run on a warm Connect server: {time_one_day_runs(pipeline, 'Connect'):.1f} s "
        "(median)"
    )


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--orders", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--runs", type=int, default=30, help="one-day runs on each kind of engine")
    parser.add_argument("--history", type=int, default=10_000, help="days of the part scale")
    parser.add_argument(
        "--state-days", type=int, default=DAYS, help="days of the parts state, targets, migrations"
    )
    parser.add_argument("--customers", type=int, default=10_000, help="those of the part state")
    parser.add_argument("--rows", type=int, default=10_000_000, help="those of the part skew")
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--attach", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    if arguments.attach:
        measure_attached(arguments.attach)
        return
    root = Path(tempfile.mkdtemp(prefix="bench-"))
    alone: dict[str, Callable[[Path], object]] = {
        "profile": lambda at: measure_cold_runs(
            at, arguments.days, arguments.orders // 5, arguments.rounds + 1
        ),
        "memory": lambda at: measure_heavy_days(at, 3, 5_000_000),
        "load": lambda at: measure_embedded(at, arguments.days, arguments.orders, arguments.rounds),
        "late": measure_late_lines,
        "files": lambda at: measure_files(at, arguments.days, arguments.orders),
        "connect": measure_on_connect,
        "events": measure_events,
    }
    engine = Engine.from_settings(load_settings(spark_conf=SPARK))
    # On one session: those before have one each.
    together: dict[str, Callable[[Path], object]] = {
        "day": lambda at: measure_one_day(engine, at, 2_000),
        "small": lambda at: measure_small_days(engine, at, 1_000, 7),
        "planned": lambda at: measure_planned_backfills(engine, at, 5, 2_000, 3),
        "chunks": lambda at: measure_chunks(engine, at, 365, 2_000),
        "history": lambda at: measure_history(engine, at, (30, 365, 1095), 200),
        "merge": lambda at: measure_merge(engine, at, 500_000),
        "engines": lambda at: measure_engines(engine, at, arguments.runs, 2_000),
        "caps": lambda at: measure_caps(engine, at, 8, 2_000),
        "answers": lambda at: measure_long_history(engine, at, (100, 10_000)),
        "scale": lambda at: measure_scale(engine, at, arguments.history),
        "state": lambda at: measure_state(engine, at, arguments.state_days, arguments.customers),
        "targets": lambda at: measure_shadows(engine, at, arguments.state_days),
        "migrations": lambda at: measure_migrations(engine, at, arguments.state_days),
        "even": lambda at: measure_even_stages(engine, at, 42, 10_000),
        "skew": lambda at: measure_skew(engine, at, arguments.rows),
        "windows": lambda at: measure_windows(engine, at, 60, 100_000),
        "unused": lambda at: measure_unused_features(engine, at, arguments.days, 2_000),
    }
    try:
        for name, work in {**alone, **together}.items():
            if arguments.part in (None, name):
                (root / name).mkdir()
                work(root / name)
        print_results()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def measure_files(root: Path, days: int, orders: int) -> None:
    """A landing of many files, and what looking through files costs before Spark reads them."""
    measure_many_files(root / "many", (1_000, 10_000, 100_000))
    measure_file_survey(root / "packed", days, orders)


def measure_embedded(root: Path, days: int, orders: int, rounds: int) -> None:
    """Ours and the job by hand in turn on one embedded session, then one-day runs."""
    engine = Engine.from_settings(load_settings(spark_conf=SPARK))
    spark = engine.spark_session
    ours = Deployed(engine, root)
    last = START + timedelta(days=days - 1)
    print(f"{days} days x {orders:,} orders, one warm session")
    time_work("landing data written", lambda: write_landing(spark, ours.landing, days, orders))
    calendar = Window(START, last + timedelta(days=1))
    landing = probe_files(spark, str(ours.landing), ORDER_LINES, calendar.widen_by(before=1))
    ratios = []
    for n in range(rounds + 1):
        print("warm-up" if n == 0 else f"round {n}")
        hand = time_work(
            "a plain job, looser parsing, no audit",
            lambda: run_plain_job(spark, ours.landing, root / "hand", START, days),
        )
        plain = time_work(
            "our transforms by hand: one replaceWhere a table, no audit",
            lambda: run_same_transforms(spark, landing, root / "same", calendar),
        )
        results: list[object] = []
        own_seconds = time_work(
            "ours: all assets, audited", partial(_run_and_append, results, ours, START, last)
        )
        print(f"    {format_step_seconds(results[0])}")
        print(f"    ratios {own_seconds / plain:.2f} and {own_seconds / hand:.2f}", flush=True)
        ratios.append((own_seconds / plain, own_seconds / hand))
    commits = {
        name: sum("userMetadata" in entry for entry in ours.log(name).history()) for name in LAYERS
    }
    print(f"  commits in {rounds + 1} runs: {commits}")
    one_day = time_one_day_runs(ours, "embedded")
    same, loose = (median(column) for column in zip(*ratios[1:], strict=True))
    what = f"{days} days x {orders:,} orders, warm, five audited tables"
    print_result(f"{what} : the same transforms by hand", f"{same:.2f}", "1.1")
    print_result(f"{what} : a plain job with looser parsing", f"{loose:.2f}", "1.25")
    print(f"one-day run on the warm session: {one_day:.1f} s (median)", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
