"""The part of `make bench` about even stages: wall times of runs where one day is much larger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.spark.session import Engine
from backfill_assets_tests.benchmarks.bench_jobs import time_work
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers.pipeline import START, Pipeline, make_plan, order

#: How many times the lines of another day the large one has, and the most days of a run.
_TIMES, _MOST = 20, 7


def measure_even_stages(engine: Engine, root: Path, days: int, lines: int) -> None:
    """Runs of equal numbers of days against those of `--chunk-days auto`, one after another.

    Args:
        engine: with a session.
        root: a folder for all of it.
        days: that land.
        lines: of each but one.
    """
    print(f"\n{days} days x {lines:,} lines, one of them x {_TIMES}", flush=True)
    window = Window(START, START + days * DAY)
    settings = {"start": START, "end": window.end, "window_days": 0, "partitions_per_run": _MOST}
    warm = Pipeline(engine, root / "warm", **settings)
    for n in range(1, days + 1):
        count = lines * (_TIMES if n == days * 9 // 10 else 1)
        warm.land(n, [order(f"o{n}-{k}", n, customer=f"c{k}") for k in range(count)])
    stages = {
        "equal": window.split_by_length(_MOST),
        "auto": [run_window for _, run_window in make_plan(warm, str(window)).stages],
    }
    warm.run(window.start, window.start + DAY)
    for name, windows in stages.items():
        print(
            f"    {name}: {', '.join(str(len(run_window)) for run_window in windows)} days",
            flush=True,
        )
        at = Pipeline(engine, root / name, land=False, landing=str(warm.landing), **settings)
        _print_spread(
            name, _time_runs(at, [run for stage in windows for run in stage.split_by_length(_MOST)])
        )


def _time_runs(pipeline: Pipeline, runs: Sequence[Window]) -> list[float]:
    """The seconds of each run."""
    return [
        time_work(
            f"{run_days}",
            lambda run_days=run_days: pipeline.run(run_days.start, run_days.end - DAY),
        )
        for run_days in runs
    ]


def _print_spread(name: str, seconds: Sequence[float]) -> None:
    usual = mean(seconds)
    apart = max(abs(run_seconds / usual - 1) for run_seconds in seconds)
    print_result(
        f"{len(seconds)} runs, {name}: a run, apart from their mean by at most",
        apart,
        0.3 if name == "auto" else None,
        note=f"{min(seconds):.1f} to {max(seconds):.1f} s, {sum(seconds):.0f} s in all",
    )
