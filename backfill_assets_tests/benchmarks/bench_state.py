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
from backfill_assets.engine.spark import Engine
from backfill_assets.examples.customers.lifetime_value import customer_lifetime_value
from backfill_assets.orders.facts import CURRENT
from backfill_assets.orders.tables import ORDERS, RAW, REJECTED
from backfill_assets_tests.benchmarks.bench_jobs import Deployed, result, timed
from backfill_assets_tests.pipeline import Pipeline, day, order

TABLES = [*ORDERS, customer_lifetime_value]
STATE = customer_lifetime_value
#: Days of the first load, orders of each, and how long ago the order was that is corrected.
DAYS, ORDERS_A_DAY, AGO = 1095, 300, 500
LINES = (RAW.name, REJECTED.name)
_NAME = "backfill_assets_tests.benchmarks.bench_state:TABLES"


def state(engine: Engine, root: Path, days: int, customers: int) -> None:
    """Seconds and days of a rebuild, of one day more, and of an order that is corrected.

    Args:
        engine: with a session.
        root: a folder for all of it.
        days: of the rebuild.
        customers: how many there are in the end.
    """
    print(f"\n{days:,} days x {customers:,} customers, {ORDERS_A_DAY} orders a day", flush=True)
    first, last, new = day(1 - days), day(0), day(1)
    pipeline = Deployed(engine, root, start=first, end=new + DAY, tables=_NAME)
    told = _land(pipeline, range(1 - days, 2), customers)
    timed("the lines loaded", lambda: pipeline.run(first, last, LINES))
    timed(f"{CURRENT.name} made", lambda: pipeline.run(first, last, [CURRENT.name]))
    began = datetime.now().astimezone()
    _stretches(_run(pipeline, "all days", first, last), began, days)
    pipeline.run(new, new, (*LINES, CURRENT.name))
    _run(pipeline, "one day more", new, new)
    old = new - (AGO if days > AGO else days // 2) * DAY
    line, ago = told[old], f"of an order of {(new - old).days} days ago corrected"
    _correct(pipeline, line | {"amount": "0.01", "ingestion_ts": f"{new}T12:00:00Z"}, old, old)
    _run(pipeline, f"the amount {ago}", old, new)
    moved = {"order_ts": f"{old - DAY}T10:00:00Z", "ingestion_ts": f"{new}T13:00:00Z"}
    _correct(pipeline, line | moved | {"amount": "0.01"}, old - DAY, old)
    _run(pipeline, f"the day {ago}", old - DAY, new)


def _correct(pipeline: Pipeline, line: Mapping[str, Any], first: date, last: date) -> None:
    """A line lands with the new day, and the days of which it tells are made again."""
    pipeline.land(1, [line], f"since-{first}.jsonl")
    pipeline.run(1, 1, LINES)
    pipeline.run(first, last, [CURRENT.name])


def _land(pipeline: Pipeline, days: Iterable[int], customers: int) -> dict[date, dict[str, Any]]:
    """Lines of each day; one of them by day."""
    chance, some = random.Random(1), {}
    for n in days:
        lines = [
            order(f"o-{n}-{i}", n, f"{chance.randint(1, 99)}.00", f"c{chance.randrange(customers)}")
            for i in range(ORDERS_A_DAY)
        ]
        pipeline.land(n, lines)
        some[day(n)] = lines[0]
    return some


def _run(pipeline: Pipeline, what: str, first: date, last: date) -> list[CommitRecord]:
    """Run the table and print seconds and days; the commits that came about."""
    before = pipeline.io_manager.ledger(STATE).version
    seconds = timed(f"{STATE.name}: {what}", lambda: pipeline.run(first, last, [STATE.name]))
    ledger = pipeline.io_manager.ledger(STATE)
    made = [r for r in ledger.records if before is None or r.version > before]
    wrote = {of for record in made for of in record.rewritten_days}
    rows = sum(ledger.measured[of].rows for of in wrote)
    said = f"{seconds:.1f} s, {len(wrote):,} days and {rows:,} rows written"
    result(what, f"{said}, {len(made)} commits, {(last - first).days + 1:,} days asked", "")
    return made


def _stretches(made: Iterable[CommitRecord], began: datetime, days: int) -> None:
    """Seconds a day of early and of late stretches; the first, which starts it all, is left out."""
    commits = sorted(made, key=lambda record: record.version)
    ends = [began, *(record.at for record in commits if record.at)]
    taken = [
        (end - start).total_seconds() / len(record.days)
        for record, (start, end) in zip(commits, pairwise(ends), strict=True)
    ][1:]
    if len(taken) < 2:
        return
    part = max(1, len(taken) // 3)
    parts = {"first": taken[:part], "middle": taken[part:-part] or taken, "last": taken[-part:]}
    said = ", ".join(f"{name} third {median(of):.3f}" for name, of in parts.items())
    result(f"seconds a day in a rebuild of {days:,} days", said, "flat")
