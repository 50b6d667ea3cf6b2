"""`make bench`: ours against a job written by hand, and what else the documentation has figures of.

Ratios are the result; seconds depend on the machine. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from backfill_assets.settings import load_settings
from backfill_assets.spark.session import Engine
from backfill_assets_tests.benchmarks.bench_backfills import (
    measure_caps,
    measure_engines,
    measure_history,
    measure_merge,
)
from backfill_assets_tests.benchmarks.bench_even import measure_even_stages
from backfill_assets_tests.benchmarks.bench_events import measure_events
from backfill_assets_tests.benchmarks.bench_history import measure_long_history
from backfill_assets_tests.benchmarks.bench_listing import measure_files
from backfill_assets_tests.benchmarks.bench_loads import (
    measure_large_days,
    measure_warm_loads,
    missing_disk_reason,
)
from backfill_assets_tests.benchmarks.bench_migrations import measure_migrations
from backfill_assets_tests.benchmarks.bench_parts import measure_parts
from backfill_assets_tests.benchmarks.bench_profile import measure_cold_runs, measure_small_days
from backfill_assets_tests.benchmarks.bench_scale import measure_scale
from backfill_assets_tests.benchmarks.bench_served import (
    measure_chunks,
    measure_one_day,
    measure_planned_backfills,
    measure_stock,
)
from backfill_assets_tests.benchmarks.bench_skew import measure_skew
from backfill_assets_tests.benchmarks.bench_state import measure_state
from backfill_assets_tests.benchmarks.bench_targets import measure_shadows
from backfill_assets_tests.benchmarks.bench_unused import measure_unused_features
from backfill_assets_tests.benchmarks.bench_windows import measure_windows
from backfill_assets_tests.benchmarks.results import begin_part, print_results

SPARK = {"spark.driver.memory": "6g"}


@dataclass(frozen=True)
class Work:
    """What a part is given: the engine, which starts at its first use, a folder, and sizes."""

    engine: Engine
    root: Path
    days: int
    lines: int
    rounds: int
    run_days: int
    customers: int


@dataclass(frozen=True)
class Part:
    """A part of the bench.

    Attributes:
        measure: prints its results.
        days: unless `--days` is given.
        lines: of each day, or rows of a table, unless `--lines` is given.
        is_usual: whether it runs unless parts are named.
    """

    measure: Callable[[Work], None]
    days: int = 0
    lines: int = 0
    is_usual: bool = True


_LOAD_DAYS, _LOAD_LINES = 30, 100_000
#: In this order: those first that do not use the engine of this process.
PARTS = {
    "profile": Part(lambda w: measure_cold_runs(w.root, w.days, w.lines, w.rounds), 30, 20_000),
    "large": Part(
        lambda w: measure_large_days(
            w.root, w.days, w.lines, w.run_days, (_LOAD_DAYS, min(_LOAD_LINES, w.lines))
        ),
        30,
        3_000_000,
        is_usual=False,
    ),
    "files": Part(lambda w: measure_files(w.root, w.days, w.lines), 30, 100_000),
    "events": Part(lambda w: measure_events(w.root)),
    "stock": Part(lambda w: measure_stock(w.root, w.days, w.lines), 31, 2_000),
    "load": Part(
        lambda w: measure_warm_loads(w.engine, w.root, w.days, w.lines, w.rounds),
        _LOAD_DAYS,
        _LOAD_LINES,
    ),
    "day": Part(lambda w: measure_one_day(w.engine, w.root, w.lines, w.days), 20, 2_000),
    "small": Part(lambda w: measure_small_days(w.engine, w.root, w.days, w.lines), 1_000, 7),
    "planned": Part(
        lambda w: measure_planned_backfills(w.engine, w.root, w.days, w.lines, w.rounds), 5, 2_000
    ),
    "chunks": Part(lambda w: measure_chunks(w.engine, w.root, w.days, w.lines), 365, 2_000),
    "history": Part(
        lambda w: measure_history(
            w.engine, w.root, sorted({min(30, w.days), w.days // 3, w.days}), w.lines
        ),
        1_095,
        200,
    ),
    "merge": Part(lambda w: measure_merge(w.engine, w.root, w.lines), lines=500_000),
    "engines": Part(lambda w: measure_engines(w.engine, w.root, w.days, w.lines), 30, 2_000),
    "caps": Part(lambda w: measure_caps(w.engine, w.root, w.days, w.lines), 32, 2_000),
    "answers": Part(lambda w: measure_long_history(w.engine, w.root, (100, w.days)), 10_000),
    "scale": Part(lambda w: measure_scale(w.engine, w.root, w.days), 10_000),
    "state": Part(
        lambda w: measure_state(w.engine, w.root, w.days, w.lines, w.customers), 1_095, 300
    ),
    "targets": Part(lambda w: measure_shadows(w.engine, w.root, w.days), 1_095),
    "migrations": Part(lambda w: measure_migrations(w.engine, w.root, w.days), 1_095),
    "even": Part(lambda w: measure_even_stages(w.engine, w.root, w.days, w.lines), 42, 10_000),
    "skew": Part(lambda w: measure_skew(w.engine, w.root, w.lines), lines=10_000_000),
    "windows": Part(lambda w: measure_windows(w.engine, w.root, w.days, w.lines), 60, 100_000),
    "parts": Part(lambda w: measure_parts(w.engine, w.root, w.days, w.lines), 42, 2_400),
    "unused": Part(lambda w: measure_unused_features(w.engine, w.root, w.days, w.lines), 30, 2_000),
}


def parse_arguments(root: Path) -> argparse.Namespace:
    """The arguments, which are refused if the disk of `root` is too small for them."""
    parser = argparse.ArgumentParser(description=__doc__)
    help_text = f"those alone; large runs only if named: {', '.join(PARTS)}"
    parser.add_argument("--part", nargs="+", choices=PARTS, metavar="PART", help=help_text)
    parser.add_argument("--days", type=int, help="of each part, in place of its own number")
    parser.add_argument("--lines", type=int, help="of each day, in place of the part's number")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run-days", type=int, default=5, help="days of a run of the part large")
    parser.add_argument("--customers", type=int, default=10_000, help="those of the part state")
    arguments = parser.parse_args()
    arguments.part = arguments.part or [name for name, part in PARTS.items() if part.is_usual]
    if "large" in arguments.part:
        large = PARTS["large"]
        days, lines = arguments.days or large.days, arguments.lines or large.lines
        if reason := missing_disk_reason(root, days, lines):
            parser.error(f"--part large: {reason}")
    return arguments


def main() -> None:
    """Run the parts, and print the table of their results, also if one of them fails."""
    arguments = parse_arguments(Path(tempfile.gettempdir()))
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    # Connections of threads that have ended are collected in others, which SQLite refuses.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL + 1)
    root = Path(tempfile.mkdtemp(prefix="bench-"))
    engine = Engine.from_settings(load_settings(spark_conf=SPARK))
    try:
        for name, part in PARTS.items():
            if name in arguments.part:
                (root / name).mkdir()
                begin_part(name)
                part.measure(
                    Work(
                        engine,
                        root / name,
                        arguments.days or part.days,
                        arguments.lines or part.lines,
                        arguments.rounds,
                        arguments.run_days,
                        arguments.customers,
                    )
                )
    finally:
        print_results()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
