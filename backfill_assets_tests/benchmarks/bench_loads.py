"""The parts of `make bench` about many lines: on a warm session, and on the default memory."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from datetime import timedelta
from functools import partial
from math import prod
from pathlib import Path
from statistics import median

from backfill_assets.settings import load_settings
from backfill_assets.spark.session import Engine
from backfill_assets_tests.benchmarks.bench_backfills import day_range
from backfill_assets_tests.benchmarks.bench_jobs import (
    THREE,
    Deployed,
    list_stages,
    run_child,
    run_plain_job,
    time_work,
    write_landing,
    write_landing_apart,
)
from backfill_assets_tests.benchmarks.bench_profile import KINDS, TARGETS
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers.pipeline import EVERYTHING, START

DAY = timedelta(days=1)
#: Of a line, on disk: landed, in all tables, and in Spark's folders while a run is at work.
_BYTES = 144 + 50 + 36
#: What a user may have set for the engine: the large load has the defaults.
_ENGINE_VARIABLES = ("BACKFILL_ASSETS_SPARK_CONF", "BACKFILL_ASSETS_SPARK_MASTER", "SPARK_REMOTE")


def measure_warm_loads(engine: Engine, root: Path, days: int, orders: int, rounds: int) -> None:
    """First loads of five and of eight tables in turn with the job by hand, on one session."""
    spark = engine.spark_session
    size = f"{days} days x {orders:,} lines"
    print(f"{size}, one warm session")
    landing = root / "landing"
    time_work("landing data written", lambda: write_landing(spark, landing, days, orders))
    hand = partial(run_plain_job, spark, landing, root / "hand", START, days, THREE)
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for n in range(rounds + 1):
        print("warm-up" if n == 0 else f"round {n}")
        by_hand = time_work("three tables by hand", hand)
        shutil.rmtree(root / "hand")
        for kind, tables in KINDS.items():
            pipeline = _deploy(engine, root / f"{kind}-{n}", landing, days)
            load = partial(pipeline.run_in_threads, START, START + (days - 1) * DAY, tables)
            ratio = time_work(f"{kind} tables, audited", load) / by_hand
            shutil.rmtree(pipeline.warehouse)
            ratios[kind] += [ratio] if n else []
    for kind, measured in ratios.items():
        what = f"{size}, warm, {kind} audited tables : three by hand"
        note = f"{min(measured):.2f} to {max(measured):.2f} in {rounds} rounds"
        print_result(what, median(measured), TARGETS[kind], note=note)


def _deploy(engine: Engine, root: Path, landing: Path, days: int) -> Deployed:
    """A deployment without tables yet."""
    return Deployed(engine, root, land=False, landing=str(landing), end=START + days * DAY)


def missing_disk_reason(folder: Path, days: int, orders: int) -> str:
    """Why so many lines cannot be loaded here; empty if they can."""
    needed, free = days * orders * _BYTES, shutil.disk_usage(folder).free
    if needed <= free:
        return ""
    return (
        f"{days} days x {orders:,} lines need {needed / 1e9:.1f} GB of disk, and {folder} has "
        f"{free / 1e9:.1f} GB free: give a smaller number of --lines, or set TMPDIR to a folder "
        "on a larger disk."
    )


def measure_large_days(
    root: Path, days: int, orders: int, run_days: int, usual: tuple[int, int]
) -> None:
    """All tables in runs of some days, in a new process with the engine's default memory.

    Args:
        root: a folder for all of it.
        days: that land.
        orders: lines of each.
        run_days: days of a run, at most.
        usual: days and lines a day of the load that the seconds are held against.
    """
    sizes = {"usual": usual, "large": (days, orders)}
    for name, size in sizes.items():
        time_work(f"{name} landing written", partial(write_landing_apart, root / name, *size))
    environment = {
        name: value for name, value in os.environ.items() if name not in _ENGINE_VARIABLES
    }
    arguments = (root, *usual, days, orders, run_days)
    figures = run_child(__name__, *arguments, environment=environment)
    what = f"{days} days x {orders:,} lines, all tables, {figures['memory']} of memory"
    runs = -(-days // run_days)
    print_result(what, figures["seconds"], unit="s", note=f"{runs} runs")
    each, of_usual = figures["seconds"] / (days * orders), figures["usual"] / prod(usual)
    print_result(
        f"{what}, seconds a million lines : of {usual[0]} days x {usual[1]:,}",
        each / of_usual,
        1.15,
        note=f"{each * 1e6:.1f} s : {of_usual * 1e6:.1f} s",
    )
    print_result(f"{what}: the engine's process, at most", figures["peak"] / 2**30, unit="GB")
    shutil.rmtree(root)
    on_disk = (f"{name} {size / (days * orders):.0f}" for name, size in figures["disk"].items())
    print_result(f"{what}: bytes a line", ", ".join(on_disk))


def load_large_days(
    root: Path, usual_days: int, usual_orders: int, days: int, orders: int, run_days: int
) -> None:
    """Load the usual landing, the second time on the warm session; then the large one."""
    engine = Engine.from_settings(load_settings())
    for n in range(2):
        pipeline = _deploy(engine, root / f"usual-{n}", root / "usual", usual_days)
        usual = _time_runs(pipeline, usual_days, usual_days)[0]
        # Its home stays: Spark's scratch files lie in that of the first deployment.
        shutil.rmtree(pipeline.warehouse)
    pipeline = _deploy(engine, root / "tables", root / "large", days)
    seconds, spilled = _time_runs(pipeline, days, run_days)
    context = engine.spark_session.sparkContext
    pid = context._jvm.java.lang.ProcessHandle.current().pid()
    status = Path(f"/proc/{pid}/status").read_text()
    disk = {
        "landed": _folder_size(root / "large", "orders/*/*.jsonl"),
        "in all tables": _folder_size(pipeline.warehouse, "*/*/*.parquet"),
        "spilled by Spark": spilled,
    }
    figures = {
        "usual": usual,
        "seconds": seconds,
        "memory": context.getConf().get("spark.driver.memory"),
        "peak": int(status.partition("VmHWM:")[2].split()[0]) * 1024,
        "disk": disk,
    }
    print(json.dumps(figures))


def _time_runs(pipeline: Deployed, days: int, run_days: int) -> tuple[float, int]:
    """Seconds of all runs, and the bytes that Spark spilled to disk."""
    spark = pipeline.engine.spark_session
    seconds, spilled, last_stage = 0.0, 0, -1
    for window in day_range(0, days).split_by_length(run_days):
        run = partial(pipeline.run_in_threads, window.start, window.end - DAY, EVERYTHING)
        seconds += time_work(f"{len(window)} days from {window.start}", run)
        # Read after each run: Spark retains the last stages only.
        stages = [stage for stage in list_stages(spark) if stage.stageId() > last_stage]
        spilled += sum(stage.diskBytesSpilled() for stage in stages)
        last_stage = max((stage.stageId() for stage in stages), default=last_stage)
    return seconds, spilled


def _folder_size(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.glob(pattern))


if __name__ == "__main__":
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    load_large_days(Path(sys.argv[1]), *map(int, sys.argv[2:]))
