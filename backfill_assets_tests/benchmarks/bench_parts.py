"""The part of `make bench` about a second dimension: a day as one, and as 3 and 24 parts."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Dimension, Reads, Source, conserves_total, table
from backfill_assets.calendar.partitions import DAY
from backfill_assets.spark.session import Engine
from backfill_assets_guide.examples import regions
from backfill_assets_guide.examples.regions import ORDERS, WorldOrders
from backfill_assets_tests.benchmarks.bench_backfills import REWRITE
from backfill_assets_tests.benchmarks.bench_jobs import Deployed, time_work
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers.pipeline import START

_ROUNDS = 3
_ONE = (replace(ORDERS, dimension=None), 1)
_THREE, _MANY = (
    (replace(ORDERS, dimension=Dimension("region", [f"r{n:02}" for n in range(count)])), count)
    for count in (3, 24)
)


@table(
    WorldOrders,
    partition="run_date",
    key=[],
    totals=["orders", "revenue"],
    checks=[
        conserves_total("orders", None, "orders"),
        conserves_total("orders", "amount", "revenue"),
    ],
)
def region_orders(orders: Annotated[DataFrame, Reads(_ONE[0].staged)]) -> DataFrame:
    """The example's table without a dimension."""
    return orders.groupBy(F.col("for_day").alias("run_date")).agg(
        F.count(F.lit(1)).alias("orders"), F.sum("amount").cast("decimal(28,2)").alias("revenue")
    )


#: What the settings name: the tables of each number of parts.
ONE = [_ONE[0], region_orders]
THREE, MANY = (
    [source, replace(regions.region_orders, reads={"orders": Reads(source.staged)})]
    for source, _ in (_THREE, _MANY)
)
_TABLES = ("raw_orders", "raw_orders_rejected", "stg_orders", region_orders.name)


def measure_parts(engine: Engine, root: Path, days: int, lines: int) -> None:
    """Seconds of a run of the same lines by the number of parts, and of as many cells as days."""
    engine.spark_session  # noqa: B018 - its start is not measured
    kinds = {"ONE": _ONE, "THREE": _THREE, "MANY": _MANY}
    seconds = {
        name: _time_runs(engine, root / name, name, *kind, days, lines)
        for name, kind in kinds.items()
    }
    for name in ("THREE", "MANY"):
        what = f"{days} days x {lines:,} lines: {kinds[name][1]} parts, compared with none"
        print_result(what, seconds[name] / seconds["ONE"])
    count = _MANY[1]
    cells = _time_runs(engine, root / "cells", "MANY", *_MANY, days, count * 7)
    days_alone = _time_runs(engine, root / "days", "ONE", *_ONE, days * count, 7)
    what = f"{days * count} cells of 7 lines: {count} parts of {days} days, compared with days"
    print_result(what, cells / days_alone)


def _time_runs(
    engine: Engine, root: Path, name: str, source: Source, parts: int, days: int, lines: int
) -> float:
    """The least seconds of a run of all days that computes and writes them anew."""
    pipeline = Deployed(
        engine,
        root,
        tables=f"{__name__}:{name}",
        end=START + (days + 4) * DAY,
        # As deployments have it: without, what a function computes is not joined. The first run
        # shows that the code mixes neither days nor parts, the timed ones do not.
        check_independence=True,
    )
    values: Sequence[str] = source.dimension.values if source.dimension else [""]
    for n in range(days):
        for number, value in enumerate(values):
            folder = root / f"landing/orders/arrival_date={START + n * DAY}"
            folder = folder / f"region={value}" if value else folder
            folder.mkdir(parents=True)
            rows = (_line(n, number, k) for k in range(lines // parts))
            (folder / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    ends = {"start": START, "end": START + (days - 1) * DAY}
    tags = {
        f"dagster/asset_partition_range_{end}": f"{day}|{part}" if part else str(day)
        for (end, day), part in zip(ends.items(), (values[0], values[-1]), strict=True)
    }
    run = partial(pipeline.run, START, ends["end"], _TABLES)
    run(tags=tags)
    label = f"{days} days in {parts} part(s), {lines:,} lines a day"
    return min(time_work(label, partial(run, tags=tags | REWRITE)) for _ in range(_ROUNDS))


def _line(n: int, part: int, number: int) -> dict[str, str]:
    day = START + n * DAY
    return {
        "order_id": f"{day}-{part}-{number}",
        "customer": f"c{number % 100}",
        "ordered_at": f"{day}T10:00:00Z",
        "updated_at": f"{day}T10:00:00Z",
        "amount": f"{number % 50}.25",
    }
