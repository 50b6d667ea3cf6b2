"""Where the time of a run goes, by part: in a process of its own, and on its session once warm."""

from __future__ import annotations

import functools
import json
import logging
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from dagster_pyspark.resources import spark_session_from_config

from backfill_assets.delta.commits import Writer
from backfill_assets.orders.tables import TABLES
from backfill_assets.publish import publication
from backfill_assets.publish.publisher import Publisher
from backfill_assets.settings import load_settings
from backfill_assets.spark.configuration import spark_config
from backfill_assets.spark.session import Engine
from backfill_assets_tests.benchmarks.bench_backfills import REWRITE, Shell, day_range
from backfill_assets_tests.benchmarks.bench_jobs import (
    THREE,
    Deployed,
    run_child,
    run_plain_job,
    step_seconds,
    time_work,
    write_landing,
    write_landing_apart,
)
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers.pipeline import EVERYTHING, LAYERS, START, Pipeline

#: What is timed: the part, and the function that is it, in its class or module. A part has its own
#: seconds alone.
_TIMED: Sequence[tuple[str, Any, str]] = (
    ("plan", Publisher, "plan_days"),
    ("audit", publication, "audit_days"),
    ("write", Writer, "write_rows"),
    ("commit", publication, "_publish_days"),
)
#: Times of a job by hand, at most.
TARGETS = {"five": 1.0, "eight": 1.2}
KINDS = {"five": LAYERS, "eight": EVERYTHING}


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


def _run_timed(clock: Clock, pipeline: Pipeline, days: int, **how: Any) -> dict[str, float]:
    """By part, the seconds of a run of all tables; and `all`."""
    began = perf_counter()
    result = pipeline.run(START, START + timedelta(days=days - 1), EVERYTHING, **how)
    took = perf_counter() - began
    parts = clock.read_parts(took, sum(step_seconds(result).values()))
    print(f"{took:6.1f} s: {_format_parts(parts)}", flush=True)
    return {"all": took, **parts}


def _format_parts(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())


def profile_own_runs(root: Path, days: int) -> None:
    """A first load of all tables in this process, then one-day runs, as JSON."""
    clock = Clock()
    began = perf_counter()
    engine = Engine.from_settings(load_settings())
    engine.spark_session.range(1).count()
    start = {"Spark's start": perf_counter() - began}
    end = START + timedelta(days=days)
    pipeline = Deployed(engine, root / "ours", land=False, landing=str(root), end=end)
    first = start | _run_timed(clock, pipeline, days)
    scheduler = engine.spark_session.sparkContext._jsc.sc().dagScheduler()
    one_days = []
    for _ in range(3):
        before = scheduler.numTotalJobs()
        parts = _run_timed(clock, pipeline, 1, tags=REWRITE)
        one_days.append(parts | {"jobs": scheduler.numTotalJobs() - before})
    median_day = sorted(one_days, key=lambda parts: parts["all"])[1]
    print(json.dumps({"first": first, "one day": median_day}))


def run_by_hand(root: Path, days: int) -> None:
    """The plain job in this process, with our settings of Spark and Java's own defaults."""
    config = {**spark_config(load_settings()), "spark.driver.extraJavaOptions": ""}
    spark = spark_session_from_config(config)
    run_plain_job(spark, root, root / "hand", START, days, THREE)
    print("{}")


def measure_cold_runs(root: Path, days: int, orders: int, rounds: int) -> None:
    """Cold runs in processes of their own, as the command line starts them, beside a plain job."""
    size = f"{days} days x {orders:,} lines"
    print(f"{size}, each in a new process")
    write_landing_apart(root, days, orders)
    seconds: dict[str, list[float]] = {"hand": [], "five": [], "eight": [], "again": []}
    for n in range(rounds):
        by_hand = time_work("three tables by hand", lambda: run_child(__name__, "hand", root, days))
        shutil.rmtree(root / "hand")
        seconds["hand"].append(by_hand)
        for kind, tables in KINDS.items():
            place = root / f"{kind}-{n}"
            load = partial(Shell(place, root, {}, tables).run_days, day_range(0, days))
            seconds[kind].append(time_work(f"{kind} tables, audited", load))
            if kind == "eight":
                seconds["again"].append(time_work("eight tables, nothing changed", load))
            # Dagster may still be clearing its own folder.
            shutil.rmtree(place, ignore_errors=True)
    hand, five, eight, again = map(median, seconds.values())
    for kind, took in (("five", five), ("eight", eight)):
        note = f"{took:.1f} s : {hand:.1f} s"
        what = f"{size}, new process, {kind} audited tables : three by hand"
        print_result(what, took / hand, TARGETS[kind], note=note)
    what = f"{size}, new process, eight tables, nothing changed : first load"
    print_result(what, again / eight, 0.06, note=f"{again:.1f} s : {eight:.1f} s")
    print("by part, the steps one after another:")
    figures = run_child(__name__, "ours", root, days)
    day, first = figures["one day"], figures["first"]
    jobs = day.pop("jobs")
    what = f"one day of {orders:,} lines, all tables, warm session"
    print_result(what, day.pop("all"), 5.0, "s")
    print_result(f"{what}: Spark jobs", jobs, 25)
    print_result(f"{what}: seconds by part", _format_parts(day))
    first.pop("all")
    print_result(f"{size}, all tables, new process: seconds by part", _format_parts(first))


def measure_small_days(engine: Engine, root: Path, days: int, lines: int) -> None:
    """Many nearly empty days of all tables in one run, in a new process; and the same again."""
    write_landing(engine.spark_session, root, days, lines)
    shell = Shell(root / "small", root, {}, EVERYTHING)
    first, second = (shell.run_days(day_range(0, days)) for _ in range(2))
    each = 1000 * first / days / len(TABLES)
    what = f"{days:,} days x {lines} lines, all tables, new process"
    # 60 s for 1,096 days, of which the calendar that begins with START has not seen the last.
    print_result(what, first, 60.0 * days / 1_096, "s", f"{each:.1f} ms a day and table")
    print_result(f"{what}, nothing changed", second, 10.0, "s")


def main(kind: str, place: str, days: str) -> None:
    """One of the processes."""
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    run = run_by_hand if kind == "hand" else profile_own_runs
    run(Path(place), int(days))


if __name__ == "__main__":
    main(*sys.argv[1:])
