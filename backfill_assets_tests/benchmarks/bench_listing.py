"""The part of `make bench` about many files, and files to look through: without Spark."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import TypeVar

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import Window
from backfill_assets.landing.files import open_files
from backfill_assets.landing.listing import list_landing
from backfill_assets.landing.load_manifest import LoadManifest
from backfill_assets.landing.size_limits import SizeLimits
from backfill_assets.orders.tables import ORDER_LINES
from backfill_assets.settings import load_settings
from backfill_assets.staleness.unloaded import load_targets
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers.pipeline import START, order

T = TypeVar("T")
DAYS = Window(START, START + timedelta(days=100))


def measure_files(root: Path, days: int, lines: int) -> None:
    """A landing of many files, and what looking through files costs before Spark reads them."""
    measure_many_files(root / "many", (lines // 100, lines // 10, lines))
    measure_file_survey(root / "packed", days, lines)


def measure_many_files(root: Path, counts: tuple[int, ...]) -> None:
    """Seconds of a first look at so many CSV files of 100 days, and of the next one."""
    seconds_by_count = {count: _measure_listing(root / str(count), count) for count in counts}
    for what in seconds_by_count[counts[0]]:
        text = " : ".join(f"{seconds_by_count[count][what]:.2f}" for count in counts)
        print_result(f"{' : '.join(f'{count:,}' for count in counts)} files: {what}", f"{text} s")
    first, last = (
        sum(seconds_by_count[count].values()) / count for count in (counts[-2], counts[-1])
    )
    what = f"a file among {counts[-1]:,} : one among {counts[-2]:,}, listed and looked into"
    print_result(what, last / first, 1.2)


def _measure_listing(root: Path, count: int) -> dict[str, float]:
    header = ",".join(order("o", 1)) + "\n"
    days = list(DAYS)
    for day in days:
        (root / "orders" / f"arrival_date={day}").mkdir(parents=True)
    for n in range(count):
        folder = root / "orders" / f"arrival_date={days[n % len(days)]}"
        line = ",".join(order(f"o-{n}", n % len(days) + 1).values())
        (folder / f"part-{n:06}.csv").write_text(header + line + "\n")
    seconds: dict[str, float] = {}

    def time_step(what: str, work: Callable[[], T]) -> T:
        began = perf_counter()
        result = work()
        seconds[what] = perf_counter() - began
        return result

    policy = Policy.from_settings(load_settings(start=DAYS.start))
    listing = time_step("list all folders", lambda: list_landing(str(root), ORDER_LINES))
    time_step("list them day by day", lambda: list_landing(str(root), ORDER_LINES, days))
    targets = time_step(
        "digests of the files of each day", lambda: load_targets({}, listing, days, policy)
    )
    recorded = {
        day: LoadManifest.from_record(load_target.manifest.as_json)
        for day, load_target in targets.items()
    }
    time_step("the same, nothing changed", lambda: load_targets(recorded, listing, days, policy))
    time_step(
        "headers and size limits",
        lambda: open_files(str(root), ORDER_LINES, DAYS, listing, SizeLimits.default_limits()),
    )
    return seconds


def measure_file_survey(root: Path, days: int, orders: int) -> None:
    """Seconds of looking through compressed files, and how many bytes they expand to."""
    lines = [
        json.dumps(order(f"o-{n * 7919 % 1_000_003:07}", 1, f"{n % 977}.{n % 97:02}"))
        for n in range(orders)
    ]
    packed = gzip.compress(("\n".join(lines) + "\n").encode(), 6)
    for n in range(days):
        folder = root / "orders" / f"arrival_date={START + timedelta(days=n)}"
        folder.mkdir(parents=True)
        (folder / "part-0.jsonl.gz").write_bytes(packed)
    listing = list_landing(str(root), ORDER_LINES)
    began = perf_counter()
    surveyed = open_files(str(root), ORDER_LINES, DAYS, listing, SizeLimits.default_limits())
    seconds = perf_counter() - began
    assert len(surveyed.files) == days
    size = days * sum(len(line) + 1 for line in lines) / 1e6
    what = f"{days} gz files of {orders:,} lines ({size:,.0f} MB) looked through"
    print_result(what, seconds, unit="s")
