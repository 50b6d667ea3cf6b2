"""The part of `make bench` about a table that carries state: all days, a new one, a correction.

Its input is made by the pipeline itself, from order lines that land with each day. An order has a
customer by chance, so after some months there is an order of nearly every one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from backfill_assets.calendar.partitions import DAY
from backfill_assets.delta.records import CommitRecord
from backfill_assets.orders.tables import CURRENT, ORDERS, RAW, REJECTED
from backfill_assets.spark.session import Engine
from backfill_assets_guide.examples.customers.lifetime_value import customer_lifetime_value
from backfill_assets_tests.benchmarks.bench_jobs import Deployed, time_work
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order

TABLES = [*ORDERS, customer_lifetime_value]
STATE = customer_lifetime_value
#: How long ago the order was that is corrected.
AGO = 500
LINES = (RAW.name, REJECTED.name)
_NAME = "backfill_assets_tests.benchmarks.bench_state:TABLES"


def measure_state(engine: Engine, root: Path, days: int, orders: int, customers: int) -> None:
    """Seconds and days of a rebuild, of one day more, and of an order that is corrected.

    Args:
        engine: with a session.
        root: a folder for all of it.
        days: of the rebuild.
        orders: of each day.
        customers: how many there are in the end.
    """
    print(f"\n{days:,} days x {customers:,} customers, {orders} orders a day", flush=True)
    first, last, new = day(1 - days), day(0), day(1)
    pipeline = Deployed(engine, root, start=first, end=new + DAY, tables=_NAME)
    lines_by_day = _land_orders(pipeline, range(1 - days, 2), orders, customers)
    time_work("the lines loaded", lambda: pipeline.run(first, last, LINES))
    time_work(f"{CURRENT.name} made", lambda: pipeline.run(first, last, [CURRENT.name]))
    began = datetime.now().astimezone()
    _print_stretches(_run_table(pipeline, "all days", first, last), began, days)
    pipeline.run(new, new, (*LINES, CURRENT.name))
    _run_table(pipeline, "one day more", new, new)
    old = new - (AGO if days > AGO else days // 2) * DAY
    line, ago = lines_by_day[old], f"of an order of {(new - old).days} days ago corrected"
    _correct_order(
        pipeline, line | {"amount": "0.01", "ingestion_ts": f"{new}T12:00:00Z"}, old, old
    )
    _run_table(pipeline, f"the amount {ago}", old, new)
    moved = {"order_ts": f"{old - DAY}T10:00:00Z", "ingestion_ts": f"{new}T13:00:00Z"}
    _correct_order(pipeline, line | moved | {"amount": "0.01"}, old - DAY, old)
    _run_table(pipeline, f"the day {ago}", old - DAY, new)


def _correct_order(pipeline: Pipeline, line: Mapping[str, Any], first: date, last: date) -> None:
    """A line lands with the new day, and the days of which it tells are made again."""
    pipeline.land(1, [line], f"since-{first}.jsonl")
    pipeline.run(1, 1, LINES)
    pipeline.run(first, last, [CURRENT.name])


def _land_orders(
    pipeline: Pipeline, days: Iterable[int], orders: int, customers: int
) -> dict[date, dict[str, Any]]:
    """Lines of each day; one of them by day."""
    chance, first_lines = random.Random(1), {}
    for n in days:
        lines = [
            order(f"o-{n}-{i}", n, f"{chance.randint(1, 99)}.00", f"c{chance.randrange(customers)}")
            for i in range(orders)
        ]
        pipeline.land(n, lines)
        first_lines[day(n)] = lines[0]
    return first_lines


def _run_table(pipeline: Pipeline, what: str, first: date, last: date) -> list[CommitRecord]:
    """Run the table and print seconds and days; the commits that came about."""
    before = pipeline.io_manager.ledger(STATE).version
    seconds = time_work(f"{STATE.name}: {what}", lambda: pipeline.run(first, last, [STATE.name]))
    ledger = pipeline.io_manager.ledger(STATE)
    new_records = [r for r in ledger.records if before is None or r.version > before]
    wrote = {day for record in new_records for day in record.rewritten_days}
    rows = sum(ledger.measured[day].rows for day in wrote)
    text = f"{seconds:.1f} s, {len(wrote):,} days and {rows:,} rows written"
    print_result(
        what, f"{text}, {len(new_records)} commits, {(last - first).days + 1:,} days requested"
    )
    return new_records


def _print_stretches(records: Iterable[CommitRecord], began: datetime, days: int) -> None:
    """Seconds a day of early and of late stretches; the first, which starts it all, is left out."""
    commits = sorted(records, key=lambda record: record.version)
    ends = [began, *(record.at for record in commits if record.at)]
    seconds = [
        (end - start).total_seconds() / len(record.days)
        for record, (start, end) in zip(commits, pairwise(ends), strict=True)
    ][1:]
    if len(seconds) < 2:
        return
    part = max(1, len(seconds) // 3)
    parts = {
        "first": seconds[:part],
        "middle": seconds[part:-part] or seconds,
        "last": seconds[-part:],
    }
    text = ", ".join(
        f"{name} third {median(part_seconds):.3f}" for name, part_seconds in parts.items()
    )
    print_result(f"seconds a day in a rebuild of {days:,} days", text)
