"""The part of `make bench` about input windows: 7 and 90 days by partials, and 90 by copies."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import PartialAggregate, Reads, combine_days, conserves_total, last_days, table
from backfill_assets.calendar.partitions import Window
from backfill_assets.orders.tables import ORDERS, STAGED
from backfill_assets.spark.session import Engine
from backfill_assets_tests.benchmarks.bench_backfills import REWRITE
from backfill_assets_tests.benchmarks.bench_jobs import (
    Deployed,
    time_work,
    write_landing,
)
from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers.pipeline import START, Pipeline


class Spend(pa.DataFrameModel):
    """What a customer spent in some days up to a day."""

    run_date: T.DateType = Field(description="The last of the days.")
    customer_id: T.StringType = Field(description="Customer, or `unknown`.")
    orders: T.LongType = Field(ge=1, description="Orders.")
    spend: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")  # type: ignore[valid-type]
    newest: T.TimestampType = Field(description="Time of the newest order.")


CHECKS = [conserves_total("orders", None, "orders"), conserves_total("orders", "amount", "spend")]


def _with_customer(orders: DataFrame) -> DataFrame:
    return orders.withColumn("customer_id", F.coalesce("customer_id", F.lit("unknown")))


def _combine(orders: DataFrame) -> DataFrame:
    return combine_days(
        _with_customer(orders),
        "customer_id",
        orders=PartialAggregate.count(),
        spend=PartialAggregate.sum("amount"),
        newest=PartialAggregate.max("order_ts"),
    ).select(
        F.col("for_day").alias("run_date"),
        "customer_id",
        "orders",
        "spend",
        "newest",
    )


@table(Spend, partition="run_date", key=["customer_id"], totals=["orders", "spend"], checks=CHECKS)
def spend_7d(
    orders: Annotated[DataFrame, Reads(STAGED, last_days(7), each_row_once=True)],
) -> DataFrame:
    """By partials."""
    return _combine(orders)


@table(Spend, partition="run_date", key=["customer_id"], totals=["orders", "spend"], checks=CHECKS)
def spend_90d(
    orders: Annotated[DataFrame, Reads(STAGED, last_days(90), each_row_once=True)],
) -> DataFrame:
    """By partials."""
    return _combine(orders)


@table(Spend, partition="run_date", key=["customer_id"], totals=["orders", "spend"], checks=CHECKS)
def spend_90d_by_copies(orders: Annotated[DataFrame, Reads(STAGED, last_days(90))]) -> DataFrame:
    """Each row once for each day."""
    return (
        _with_customer(orders)
        .groupBy(F.col("for_day").alias("run_date"), "customer_id")
        .agg(
            F.count(F.lit(1)).alias("orders"),
            F.sum("amount").cast("decimal(28,2)").alias("spend"),
            F.max("order_ts").alias("newest"),
        )
    )


TABLES = [*ORDERS, spend_7d, spend_90d, spend_90d_by_copies]
_NAME = "backfill_assets_tests.benchmarks.bench_windows:TABLES"
_LOADED = ("raw_orders", "raw_orders_rejected", "stg_orders")


def measure_windows(engine: Engine, root: Path, days: int, orders: int) -> None:
    """Seconds of a window of 7 and of 90 days over the same input, and whether copies agree."""
    write_landing(engine.spark_session, root, days, orders)
    end = START + timedelta(days=days)
    pipeline = Deployed(
        engine, root / "windows", land=False, landing=str(root), end=end, tables=_NAME
    )
    # One run for all days, as the windows of several runs would be read several times.
    for window in Window(START, end).split_by_length(31):
        pipeline.run(window.start, window.end - timedelta(days=1), _LOADED)
    week, quarter, copies = (
        _time_run(pipeline, name, end)
        for name in (spend_7d.name, spend_90d.name, spend_90d_by_copies.name)
    )
    what = f"{days} days x {orders:,} orders"
    print_result(f"{what}, a window of 90 days : of 7 days", quarter / week, 1.5)
    print_result(f"{what}, 90 days by copies : by partials", copies / quarter)
    ledgers = [pipeline.io_manager.ledger(declared) for declared in TABLES[-2:]]
    digests = [
        {day: ledger.content_key(day) for day in ledger.published_days} for ledger in ledgers
    ]
    assert digests[0] == digests[1]
    assert len(digests[0]) == days


def _time_run(pipeline: Pipeline, name: str, end: date) -> float:
    """Seconds of a run of all days, the second of two."""
    last = end - timedelta(days=1)
    for n in range(2):
        seconds = time_work(
            f"{name} ({n + 1})", lambda: pipeline.run(START, last, [name], tags=REWRITE)
        )
    return seconds
