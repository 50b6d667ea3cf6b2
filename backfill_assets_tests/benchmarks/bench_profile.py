"""Where the time of a run goes, by part: in a process of its own, and on its session once warm."""

from __future__ import annotations

import functools
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from backfill_assets.delta import commits
from backfill_assets.engine.spark import Engine
from backfill_assets.publish import computing, publisher
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.settings import load_settings
from backfill_assets_tests.benchmarks.bench_backfills import REWRITE
from backfill_assets_tests.benchmarks.bench_jobs import by_hand, write_landing
from backfill_assets_tests.pipeline import EVERYTHING, LAYERS, START, Pipeline

#: What is timed: the part, and the function that is it. A part has its own seconds alone.
_TIMED: Sequence[tuple[str, Any, str]] = (
    ("plan", publisher.Publisher, "_look"),
    ("compute", publisher, "compute"),
    ("audit", computing, "measure"),
    ("write", commits, "write_files"),
    ("commit", commits.Writer, "commit"),
    ("events", DeltaIOManager, "publish"),
)
_THREE = ("raw_orders", "stg_orders", "fact_daily_orders")


class Clock:
    """The seconds of each part since the last reading."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()
        for part, owner, name in _TIMED:
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, function: Any) -> Any:
        @functools.wraps(function)
        def timed(*args: Any, **named: Any) -> Any:
            began = perf_counter()
            try:
                return function(*args, **named)
            finally:
                self._seconds[part] += perf_counter() - began

        return timed

    def read(self, total: float, in_steps: float) -> dict[str, float]:
        """By part, the seconds of a run that took so many, so many of them in its steps."""
        of, self._seconds = self._seconds, Counter()
        return {
            "plan": of["plan"],
            "compute": of["compute"] - of["audit"],
            "audit": of["audit"],
            "write": of["write"],
            "commit": of["commit"],
            "events": in_steps - of["events"],
            "around the steps": total - in_steps,
        }


def _run(clock: Clock, pipeline: Pipeline, tables: Sequence[str], days: int, **how: Any) -> float:
    began = perf_counter()
    result = pipeline.run(START, START + timedelta(days=days - 1), tables, **how)
    took = perf_counter() - began
    done = [e for e in result.all_events if e.event_type_value == "STEP_SUCCESS"]
    in_steps = sum(e.event_specific_data.duration_ms for e in done) / 1000
    parts = clock.read(took, in_steps)
    print(
        f"    {took:6.1f} s: " + ", ".join(f"{name} {x:.1f}" for name, x in parts.items()),
        flush=True,
    )
    return took


def ours(root: Path, days: int, tables: Sequence[str]) -> None:
    """A first load in this process, then one-day runs."""
    clock = Clock()
    began = perf_counter()
    engine = Engine.of(load_settings())
    engine.spark_session.range(1).count()
    session = perf_counter() - began
    print(f"    {session:6.1f} s: session", flush=True)
    end = START + timedelta(days=days)
    pipeline = Pipeline(engine, root / "ours", land=False, landing=str(root), end=end)
    took = _run(clock, pipeline, tables, days)
    for _ in range(3):
        _run(clock, pipeline, tables, 1, tags=REWRITE)
    print(f"seconds {session + took:.1f}", flush=True)


def hand(root: Path, days: int) -> None:
    """The plain job in this process."""
    began = perf_counter()
    spark = Engine.of(load_settings()).spark_session
    by_hand(spark, root, root / "hand", START, days, _THREE)
    print(f"seconds {perf_counter() - began:.1f}", flush=True)


def profile(root: Path, days: int, orders: int, rounds: int) -> None:
    """Cold runs in processes of their own, ours beside three tables by hand without audit."""
    kinds = {"three tables by hand": "hand", "five tables": "five", "eight tables": "eight"}
    print(f"{days} days x {orders:,} orders, each in a new process")
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for n in range(rounds):
        for name, kind in kinds.items():
            place = root / f"{kind}-{n}"
            _child("landing", place, days, orders)
            print(f"  {name}", flush=True)
            taken[name].append(_child(kind, place, days, orders))
    plain, five, eight = (median(of) for of in taken.values())
    print(f"\nfive audited tables : three by hand = {five / plain:.2f} (medians of {rounds})")
    print(f"eight audited tables : three by hand = {eight / plain:.2f}", flush=True)


def _child(kind: str, place: Path, days: int, orders: int) -> float:
    arguments = (kind, str(place), str(days), str(orders))
    done = subprocess.run(
        [sys.executable, "-m", __name__, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    *said, last = done.stdout.splitlines() or [""]
    if said:
        print("\n".join(said), flush=True)
    return float(last.removeprefix("seconds ") or 0)


def main(kind: str, place: str, days: str, orders: str) -> None:
    """One of the processes."""
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    root = Path(place)
    if kind == "landing":
        write_landing(Engine.of(load_settings()).spark_session, root, int(days), int(orders))
    elif kind == "hand":
        hand(root, int(days))
    else:
        ours(root, int(days), LAYERS if kind == "five" else EVERYTHING)


if __name__ == "__main__":
    main(*sys.argv[1:])
