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

from backfill_assets.assets import lines, staging
from backfill_assets.assets.input_frames import for_days
from backfill_assets.calendar.partitions import Window
from backfill_assets.calendar.reach import SAME_DAY
from backfill_assets.engine.spark import Engine
from backfill_assets.landing.files import LandingFiles
from backfill_assets.landing.lines import probe_files, read_lines
from backfill_assets.orders.facts import FACT
from backfill_assets.orders.lines import ORDER_LINES
from backfill_assets.orders.tables import LATE, RAW, REJECTED, STAGED
from backfill_assets.settings import load_settings
from backfill_assets.tables.table import Table
from backfill_assets_tests.benchmarks.bench_backfills import (
    REWRITE,
    caps,
    engines,
    history,
    merging,
)
from backfill_assets_tests.benchmarks.bench_even import even
from backfill_assets_tests.benchmarks.bench_events import events
from backfill_assets_tests.benchmarks.bench_history import long_history
from backfill_assets_tests.benchmarks.bench_jobs import (
    Deployed,
    by_hand,
    print_results,
    result,
    steps,
    timed,
    write_landing,
)
from backfill_assets_tests.benchmarks.bench_listing import looking_through, many_files
from backfill_assets_tests.benchmarks.bench_migrations import migrations
from backfill_assets_tests.benchmarks.bench_profile import heavy_days, profile, small_days
from backfill_assets_tests.benchmarks.bench_scale import scale
from backfill_assets_tests.benchmarks.bench_served import chunked, one_day, planned
from backfill_assets_tests.benchmarks.bench_skew import skewed
from backfill_assets_tests.benchmarks.bench_state import DAYS, state
from backfill_assets_tests.benchmarks.bench_targets import shadows
from backfill_assets_tests.connect_server import connect_server
from backfill_assets_tests.pipeline import LAYERS, START, Pipeline, order

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
)


def same_transforms(spark: SparkSession, found: LandingFiles, folder: Path, days: Window) -> None:
    """Our own pure transforms with one replaceWhere a table: no audit, no Dagster, no pinning."""

    def save(frame: DataFrame, table: Table) -> DataFrame:
        url = str(folder / table.name)
        writer = frame.write.format("delta").partitionBy(table.partition).mode("overwrite")
        writer.option("replaceWhere", days.sql_condition(table.partition)).save(url)
        saved = spark.read.format("delta").load(url)
        return saved.where(days.sql_condition(table.partition))

    landed = read_lines(spark, found, ORDER_LINES)
    read = lines.read_versions(landed, ORDER_LINES, "UTC").persist()
    log = save(lines.accepted_rows(read, ORDER_LINES).where(days.sql_condition("log_date")), RAW)
    save(lines.rejected_rows(read, ORDER_LINES).where(days.sql_condition("arrival_date")), REJECTED)
    read.unpersist()
    dated = staging.with_event_day(log, ORDER_LINES, "UTC")
    save(staging.late_lines(dated, ORDER_LINES, 7), LATE)
    ranked = staging.rank_in_window(dated, ORDER_LINES, days, 7)
    staged = save(staging.staged(ranked, ORDER_LINES), STAGED)
    save(FACT(for_days(staged, STAGED.partition, SAME_DAY, days)), FACT)


def one_day_runs(pipeline: Pipeline, label: str) -> float:
    """Median seconds of five one-day runs of all assets, each printed with its steps."""
    taken = []
    for n in range(5):
        results: list[object] = []
        work = partial(_keep, results, pipeline, START + timedelta(days=n))
        taken.append(timed(f"{label}: one day ({n + 1})", work))
        in_steps = steps(results[0])
        print(f"    {in_steps}; the rest is Dagster's", flush=True)
    return sorted(taken)[2]


def _keep(results: list[object], pipeline: Pipeline, first: date, last: date | None = None) -> None:
    # The same days again and again: without this, nothing would be done from the second run on.
    results.append(pipeline.run(first, last, tags=REWRITE))


def three_late_lines(engine: Engine, root: Path, days: int) -> float:
    """Seconds to find the days that three late lines touch, with so many days of history."""
    pipeline = Deployed(engine, root, end=START + timedelta(days=days + 2))
    for n in range(1, days + 1):
        pipeline.land(n, [order(f"o-{n}-{i}", n) for i in range(50)])
    tables = (RAW.name, REJECTED.name, STAGED.name, FACT.name)
    last = START + timedelta(days=days - 1)
    timed(f"{days} days loaded", lambda: pipeline.run(START, last, tables))
    taken = []
    for n in range(3):  # the first one warms up
        told = [days - 4, days - 2, days]
        at = f"{last + timedelta(days=1)}T10:00:00Z"
        lines = [order(f"late-{n}-{d}", d, ingested=at) for d in told]
        pipeline.land(days + 1, lines, f"late-{n}.jsonl")
        run = partial(pipeline.run, days + 1, days + 1, (RAW.name, REJECTED.name))
        loading = timed(f"{days} days: load three late lines, find what they touch", run)
        pipeline.now = datetime.combine(last + timedelta(days=2), time(3), tzinfo=timezone.utc)
        began = perf_counter()
        asked = pipeline.tick("touched_days").run_requests or []
        tick = perf_counter() - began
        found = {r.tags["dagster/asset_partition_range_start"] for r in asked if "stg" in r.run_key}
        # The new day itself is in one range with them, and so are the days between.
        assert found == {str(START + timedelta(days=told[0] - 1))}, found
        print(f"    the sensor's tick: {tick:.2f} s", flush=True)
        taken.append(loading + tick)
    return min(taken[1:])


def finding_late_lines(root: Path) -> None:
    """Whether the time to find what late lines touch grows with the history."""
    engine = Engine.from_settings(load_settings(spark_conf=SPARK))
    short, long = (three_late_lines(engine, root / str(days), days) for days in (73, 730))
    print(f"\nthree late lines, 730 days of history : 73 days = {long / short:.2f}", flush=True)
    engine.spark_session.stop()


def on_connect(root: Path) -> None:
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


def attached(root: Path) -> None:
    """The child of `on_connect`: five one-day runs after one that warms the server up."""
    pipeline = Deployed(
        Engine.from_settings(load_settings()), root, warehouse=str(root / "on-connect")
    )
    timed("Connect: first run on the fresh server", lambda: pipeline.run(START))
    print(
        f"one-day run on a warm Connect server: {one_day_runs(pipeline, 'Connect'):.1f} s (median)"
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
    given = parser.parse_args()
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    if given.attach:
        attached(given.attach)
        return
    root = Path(tempfile.mkdtemp(prefix="bench-"))
    alone: dict[str, Callable[[Path], object]] = {
        "profile": lambda at: profile(at, given.days, given.orders // 5, given.rounds + 1),
        "memory": lambda at: heavy_days(at, 3, 5_000_000),
        "load": lambda at: embedded(at, given.days, given.orders, given.rounds),
        "late": finding_late_lines,
        "files": lambda at: files(at, given.days, given.orders),
        "connect": on_connect,
        "events": events,
    }
    engine = Engine.from_settings(load_settings(spark_conf=SPARK))
    # On one session: those before have one each.
    together: dict[str, Callable[[Path], object]] = {
        "day": lambda at: one_day(engine, at, 2_000),
        "small": lambda at: small_days(engine, at, 1_000, 7),
        "planned": lambda at: planned(engine, at, 5, 2_000, 3),
        "chunks": lambda at: chunked(engine, at, 365, 2_000),
        "history": lambda at: history(engine, at, (30, 365, 1095), 200),
        "merge": lambda at: merging(engine, at, 500_000),
        "engines": lambda at: engines(engine, at, given.runs, 2_000),
        "caps": lambda at: caps(engine, at, 8, 2_000),
        "answers": lambda at: long_history(engine, at, (100, 10_000)),
        "scale": lambda at: scale(engine, at, given.history),
        "state": lambda at: state(engine, at, given.state_days, given.customers),
        "targets": lambda at: shadows(engine, at, given.state_days),
        "migrations": lambda at: migrations(engine, at, given.state_days),
        "even": lambda at: even(engine, at, 42, 10_000),
        "skew": lambda at: skewed(engine, at, given.rows),
    }
    try:
        for name, work in {**alone, **together}.items():
            if given.part in (None, name):
                (root / name).mkdir()
                work(root / name)
        print_results()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def files(root: Path, days: int, orders: int) -> None:
    """A landing of many files, and what looking through files costs before Spark reads them."""
    many_files(root / "many", (1_000, 10_000, 100_000))
    looking_through(root / "packed", days, orders)


def embedded(root: Path, days: int, orders: int, rounds: int) -> None:
    """Ours and the job by hand in turn on one embedded session, then one-day runs."""
    engine = Engine.from_settings(load_settings(spark_conf=SPARK))
    spark = engine.spark_session
    ours = Deployed(engine, root)
    last = START + timedelta(days=days - 1)
    print(f"{days} days x {orders:,} orders, one warm session")
    timed("landing data written", lambda: write_landing(spark, ours.landing, days, orders))
    calendar = Window(START, last + timedelta(days=1))
    found = probe_files(spark, str(ours.landing), ORDER_LINES, calendar.widen_by(before=1))
    ratios = []
    for n in range(rounds + 1):
        print("warm-up" if n == 0 else f"round {n}")
        hand = timed(
            "a plain job, looser parsing, no audit",
            lambda: by_hand(spark, ours.landing, root / "hand", START, days),
        )
        plain = timed(
            "our transforms by hand: one replaceWhere a table, no audit",
            lambda: same_transforms(spark, found, root / "same", calendar),
        )
        results: list[object] = []
        mine = timed("ours: all assets, audited", partial(_keep, results, ours, START, last))
        print(f"    {steps(results[0])}")
        print(f"    ratios {mine / plain:.2f} and {mine / hand:.2f}", flush=True)
        ratios.append((mine / plain, mine / hand))
    commits = {
        name: sum("userMetadata" in entry for entry in ours.log(name).history()) for name in LAYERS
    }
    print(f"  commits in {rounds + 1} runs: {commits}")
    one_day = one_day_runs(ours, "embedded")
    same, loose = (median(column) for column in zip(*ratios[1:], strict=True))
    what = f"{days} days x {orders:,} orders, warm, five audited tables"
    result(f"{what} : the same transforms by hand", f"{same:.2f}", "1.1")
    result(f"{what} : a plain job with looser parsing", f"{loose:.2f}", "1.25")
    print(f"one-day run on the warm session: {one_day:.1f} s (median)", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
