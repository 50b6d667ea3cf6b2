"""The part of `make bench` about a table that carries state: all days, a new one, a correction.

Its input is made by the pipeline itself, from order lines that land with each day. An order has a
customer by chance, so after some months there is an order of nearly every one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import date, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from backfill_assets.calendar.partitions import DAY
from backfill_assets.delta.records import Record
from backfill_assets.engine.spark import Engine
from backfill_assets.examples.customers.lifetime_value import customer_lifetime_value
from backfill_assets.orders.facts import CURRENT
from backfill_assets.orders.tables import ORDERS, RAW, REJECTED
from backfill_assets_tests.benchmarks.bench_jobs import Deployed, result, timed
from backfill_assets_tests.pipeline import START, Pipeline, day, order

TABLES = [*ORDERS, customer_lifetime_value]
STATE = customer_lifetime_value
#: Days of the first load, orders of each, and how long ago the order was that is corrected.
DAYS, ORDERS_A_DAY, AGO = 1095, 300, 500
LINES = (RAW.name, REJECTED.name)
_NAME = "backfill_assets_tests.benchmarks.bench_state:TABLES"


def state(engine: Engine, root: Path, days: int, customers: int) -> None:
    """Seconds and days of a rebuild, of one day more, and of an order that was another.

    Args:
        engine: with a session.
        root: a folder for all of it.
        days: of the rebuild.
        customers: how many there are in the end.
    """
    print(f"\n{days:,} days x {customers:,} customers, {ORDERS_A_DAY} orders a day", flush=True)
    pipeline = Deployed(engine, root, end=START + (days + 2) * DAY, tables=_NAME)
    told = _land(pipeline, days + 1, customers)
    last = day(days)
    timed("the lines loaded", lambda: pipeline.run(START, last, LINES))
    timed(f"{CURRENT.name} made", lambda: pipeline.run(START, last, [CURRENT.name]))
    began = datetime.now().astimezone()
    made = _run(pipeline, "all days", START, last)
    _stretches(made, began, days)
    pipeline.run(days + 1, days + 1, (*LINES, CURRENT.name))
    _run(pipeline, "one day more", last + DAY, last + DAY)
    old = day(days - AGO if days > AGO else days // 2)
    told[old]["amount"] = "0.01"
    told[old]["ingestion_ts"] = f"{last + DAY}T12:00:00Z"
    pipeline.land(days + 1, [told[old]], "corrected.jsonl")
    pipeline.run(days + 1, days + 1, LINES)
    pipeline.run(old, old, [CURRENT.name])
    ago = (last + DAY - old).days
    _run(pipeline, f"one customer's order of {ago} days ago corrected", old, last + DAY)


def _land(pipeline: Pipeline, days: int, customers: int) -> dict[date, dict[str, Any]]:
    """Lines of each day; one of them by day."""
    chance, some = random.Random(1), {}
    for n in range(1, days + 1):
        lines = [
            order(f"o-{n}-{i}", n, f"{chance.randint(1, 99)}.00", f"c{chance.randrange(customers)}")
            for i in range(ORDERS_A_DAY)
        ]
        pipeline.land(n, lines)
        some[day(n)] = lines[0]
    return some


def _run(pipeline: Pipeline, what: str, first: date, last: date) -> list[Record]:
    """Run the table and print seconds and days; the commits that came about."""
    before = pipeline.io_manager.ledger(STATE).version
    seconds = timed(f"{STATE.name}: {what}", lambda: pipeline.run(first, last, [STATE.name]))
    ledger = pipeline.io_manager.ledger(STATE)
    made = [r for r in ledger.records if before is None or r.version > before]
    wrote = {of for record in made for of in record.wrote}
    rows = sum(ledger.measured[of].rows for of in wrote)
    said = f"{seconds:.1f} s, {len(wrote):,} days and {rows:,} rows written"
    result(what, f"{said}, {len(made)} commits, {(last - first).days + 1:,} days asked", "")
    return made


def _stretches(made: Iterable[Record], began: datetime, days: int) -> None:
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
