"""Where the time of a run goes, by part: in a process of its own, and on its session once warm."""

from __future__ import annotations

import functools
import logging
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from dagster_pyspark.resources import spark_session_from_config

from backfill_assets.delta.commits import Writer
from backfill_assets.publish import publication
from backfill_assets.publish.publisher import Publisher
from backfill_assets.settings import load_settings
from backfill_assets.spark.configuration import spark_config
from backfill_assets.spark.session import Engine
from backfill_assets_tests.benchmarks.bench_backfills import REWRITE, Shell, day_range
from backfill_assets_tests.benchmarks.bench_jobs import (
    Deployed,
    format_step_seconds,
    print_result,
    run_plain_job,
    write_landing,
)
from backfill_assets_tests.helpers.pipeline import EVERYTHING, LAYERS, START, Pipeline

#: What is timed: the part, and the function that is it, in its class or module. A part has its own
#: seconds alone.
_TIMED: Sequence[tuple[str, Any, str]] = (
    ("plan", Publisher, "plan_days"),
    ("audit", publication, "audit_days"),
    ("write", Writer, "write_rows"),
    ("commit", publication.AuditedDays, "publish"),
)
_COLD = {"five": "1.0", "eight": "1.2"}
_THREE = ("raw_orders", "stg_orders", "fact_daily_orders")


class Clock:
    """The seconds of each part since the last reading."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()
        for part, owner, name in _TIMED:
            setattr(owner, name, self._wrap_function(part, getattr(owner, name)))

    def _wrap_function(self, part: str, function: Any) -> Any:
        @functools.wraps(function)
        def run_timed(*args: Any, **named: Any) -> Any:
            began = perf_counter()
            try:
                return function(*args, **named)
            finally:
                self._seconds[part] += perf_counter() - began

        return run_timed

    def read_parts(self, total: float, in_steps: float) -> dict[str, float]:
        """By part, the seconds of a run that took so many, so many of them in its steps."""
        seconds, self._seconds = self._seconds, Counter()
        return {
            "plan": seconds["plan"],
            "audit": seconds["audit"],
            "write": seconds["write"],
            "commit": seconds["commit"] - seconds["write"],
            "inputs, compute, events": in_steps
            - sum(seconds[part] for part in ("plan", "audit", "commit")),
            "around the steps": total - in_steps,
        }


def _run_and_print(clock: Clock, pipeline: Pipeline, days: int, **how: Any) -> None:
    began = perf_counter()
    result = pipeline.run(START, START + timedelta(days=days - 1), EVERYTHING, **how)
    took = perf_counter() - began
    events = [e for e in result.all_events if e.event_type_value == "STEP_SUCCESS"]
    in_steps = sum(e.event_specific_data.duration_ms for e in events) / 1000
    parts = clock.read_parts(took, in_steps)
    print(
        f"    {took:6.1f} s: " + ", ".join(f"{name} {x:.1f}" for name, x in parts.items()),
        flush=True,
    )


def profile_own_runs(root: Path, days: int) -> None:
    """A first load of all tables in this process, then one-day runs."""
    clock = Clock()
    began = perf_counter()
    engine = Engine.from_settings(load_settings())
    engine.spark_session.range(1).count()
    session = perf_counter() - began
    print(f"    {session:6.1f} s: session", flush=True)
    end = START + timedelta(days=days)
    pipeline = Deployed(engine, root / "ours", land=False, landing=str(root), end=end)
    _run_and_print(clock, pipeline, days)
    jobs = engine.spark_session.sparkContext._jsc.sc().dagScheduler
    for _ in range(3):
        before = jobs().numTotalJobs()
        _run_and_print(clock, pipeline, 1, tags=REWRITE)
        print(f"             {jobs().numTotalJobs() - before} Spark jobs")


def profile_plain_job(root: Path, days: int) -> None:
    """The plain job in this process: with our settings of Spark, and with Java's own defaults."""
    config = {**spark_config(load_settings()), "spark.driver.extraJavaOptions": ""}
    spark = spark_session_from_config(config)
    run_plain_job(spark, root, root / "hand", START, days, _THREE)


def measure_cold_runs(root: Path, days: int, orders: int, rounds: int) -> None:
    """Cold runs in processes of their own, as the command line starts them, beside a plain job."""
    print(f"{days} days x {orders:,} orders, each in a new process")
    _run_child("landing", root, days, orders)
    hands: list[float] = []
    audited: dict[str, list[float]] = {"five": [], "eight": []}
    for n in range(rounds):
        began = perf_counter()
        _run_child("hand", root, days, orders)
        hands.append(perf_counter() - began)
        print(f"  {hands[-1]:6.1f} s: three tables by hand", flush=True)
        for kind, tables in (("five", LAYERS), ("eight", EVERYTHING)):
            place = root / f"{kind}-{n}"
            audited[kind].append(Shell(place, root, {}, tables).run_days(day_range(0, days)))
            print(f"  {audited[kind][-1]:6.1f} s: {kind} tables, audited", flush=True)
            # Dagster may still be clearing its own folder.
            shutil.rmtree(place, ignore_errors=True)
    for kind, seconds in audited.items():
        ratio = median(seconds) / median(hands)
        what = f"{days} days x {orders:,} orders, new process, {kind} audited tables"
        print_result(f"{what} : three by hand", f"{ratio:.2f}", _COLD[kind])
    print("\nby part, the steps one after another:")
    print(_run_child("eight", root, days, orders), flush=True)


def _run_child(kind: str, place: Path, days: int, orders: int) -> str:
    """What it prints."""
    arguments = (kind, str(place), str(days), str(orders))
    process = subprocess.run(
        [sys.executable, "-m", __name__, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return process.stdout


def measure_small_days(engine: Engine, root: Path, days: int, lines: int) -> None:
    """Many nearly empty days of all tables in one run, in a new process; and the same again."""
    write_landing(engine.spark_session, root, days, lines)
    shell = Shell(root / "small", root, {}, EVERYTHING)
    first, second = (shell.run_days(day_range(0, days)) for _ in range(2))
    each = 1000 * first / days / len(EVERYTHING)
    what = f"{days} days x {lines} lines, all tables, new process"
    print_result(what, f"{first:.0f} s, {each:.1f} ms a day and table", "80 s, 8 ms of 1,096 days")
    print_result(f"{what}, nothing changed", f"{second:.0f} s", "10 s")


def measure_heavy_days(root: Path, days: int, orders: int) -> None:
    """Days of millions of lines in one run, a new process with the engine's default memory."""
    _run_child("landing", root, days, orders)
    summary = _run_child("heavy", root, days, orders).splitlines()[-1]
    print_result(
        f"{days} days x {orders:,} orders, all tables, one run", summary, "completes with 3 GB"
    )


def profile_heavy_days(root: Path, days: int, orders: int) -> None:
    """All tables in this process; what Spark had to put on disk, and what its process took."""
    engine = Engine.from_settings(load_settings())
    context = engine.spark_session.sparkContext
    end = START + timedelta(days=days)
    pipeline = Deployed(engine, root / "heavy", land=False, landing=str(root), end=end)
    began = perf_counter()
    run_result = pipeline.run(START, end - timedelta(days=1), EVERYTHING)
    took = perf_counter() - began
    print(format_step_seconds(run_result))
    store = context._jsc.sc().statusStore()
    none = context._gateway.new_array(context._jvm.double, 0)
    stages = store.stageList(None, False, False, none, None)
    spilled = sum(stages.apply(n).diskBytesSpilled() for n in range(stages.size()))
    pid = context._jvm.java.lang.ProcessHandle.current().pid()
    status = Path(f"/proc/{pid}/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 2**20
    lines = days * orders
    landed = sum(file.stat().st_size for file in root.glob("orders/*/*.jsonl"))
    tables = sum(file.stat().st_size for file in pipeline.warehouse.glob("*/*/*.parquet"))
    print(
        f"bytes a line: {landed / lines:.0f} landed, {tables / lines:.0f} in all tables; ", end=""
    )
    print(
        f"engine with {context.getConf().get('spark.driver.memory')}: {took:.0f} s; Spark put "
        f"{spilled / 2**30:.1f} GB on disk, its process took at most {peak:.1f} GB"
    )


def main(kind: str, place: str, days: str, orders: str) -> None:
    """One of the processes."""
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    root = Path(place)
    if kind == "landing":
        write_landing(
            Engine.from_settings(load_settings()).spark_session, root, int(days), int(orders)
        )
    elif kind == "heavy":
        profile_heavy_days(root, int(days), int(orders))
    elif kind == "hand":
        profile_plain_job(root, int(days))
    else:
        profile_own_runs(root, int(days))


if __name__ == "__main__":
    main(*sys.argv[1:])
