"""The part of `make bench` about skew: one customer with 60 % of the rows, none with 20 %.

Each form runs on skewed rows and on the same number of rows that are spread evenly. On few cores a
long task need not be a long wall time; on many it is: so the longest task stands beside the median.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets import as_of_join, spread_join
from backfill_assets.spark.session import Engine
from backfill_assets_tests.benchmarks.bench_jobs import list_stages, time_work
from backfill_assets_tests.benchmarks.results import print_result

_CUSTOMERS, _VERSIONS = 100_000, 4
_OFF = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "16"}
_NO_BROADCAST = {"spark.sql.autoBroadcastJoinThreshold": "-1"}
_START = 1_704_067_200
_ON = {"at": "order_ts", "valid_from": "since", "known": "since", "cutoff": "order_ts"}


Form = Callable[[DataFrame], DataFrame]


class QueryTimes(NamedTuple):
    """What a query took: seconds, and CPU seconds of the tasks of the stage with the longest."""

    wall: float
    longest: float
    median: float


def measure_skew(engine: Engine, root: Path, rows: int) -> None:
    """Forms of groupings and joins on skewed rows, against rows that are spread evenly.

    Args:
        engine: with a classic session.
        root: a folder for all of it.
        rows: of either frame.
    """
    print(f"\n{rows:,} rows, {_CUSTOMERS:,} customers", flush=True)
    spark = engine.spark_session
    number = F.pmod(F.xxhash64("id"), F.lit(_CUSTOMERS)).cast("string")
    share = F.pmod(F.xxhash64("id", F.lit(1)), F.lit(100))
    hot = F.when(share < 60, "0").when(share >= 80, number)
    even = _write_orders(spark, root / "even", rows, number)
    skew = _write_orders(spark, root / "skew", rows, hot)
    versions = _write_parquet(
        spark.range(_CUSTOMERS * _VERSIONS).select(
            F.pmod("id", F.lit(_CUSTOMERS)).cast("string").alias("customer_id"),
            F.timestamp_seconds(_START - F.floor(F.col("id") / _CUSTOMERS) * 86400).alias("since"),
            F.sha2(F.col("id").cast("string"), 256).alias("address"),
        ),
        root / "versions",
    )
    now = versions.where(F.col("since") == F.timestamp_seconds(F.lit(_START)))
    _compare_forms(spark, even, skew, "sums by customer", _sum_by_customer)
    _compare_forms(
        spark,
        even,
        skew,
        "join",
        lambda rows: rows.join(now, "customer_id", "left"),
        lambda rows: spread_join(rows, now, "customer_id"),
    )
    _compare_forms(
        spark,
        even,
        skew,
        "as_of",
        lambda rows: as_of_join(rows, versions, key="customer_id", **_ON),
        lambda rows: as_of_join(rows, versions, key="customer_id", hot=0.05, **_ON),
    )


def _compare_forms(
    spark: SparkSession,
    even: DataFrame,
    skew: DataFrame,
    name: str,
    plain: Form,
    spread: Form | None = None,
) -> None:
    """Print what the forms of a query take on skewed rows, against the plain one on even rows."""
    time_work(f"{name}: warm-up", lambda: _execute_frame(plain(skew)))
    for adaptive, conf in {"off": {**_OFF, **_NO_BROADCAST}, "on": _NO_BROADCAST}.items():
        base = _measure_query(spark, plain(even), conf)
        for way, form in {"plain": plain, "spread": spread}.items():
            if form is None:
                continue
            took = _measure_query(spark, form(skew), conf)
            print_result(
                f"{name}, {way}, adaptive execution {adaptive}, skewed : even",
                took.wall / base.wall,
                1.3,
                note=f"{took.wall:.1f} s : {base.wall:.1f} s; longest : median task "
                f"{took.longest:.2f} s : {took.median:.2f} s",
            )


def _write_orders(spark: SparkSession, folder: Path, rows: int, customer: Column) -> DataFrame:
    """Rows of a day, on disk: each form reads them anew."""
    second = F.pmod(F.xxhash64("id", F.lit(2)), F.lit(86400))
    return _write_parquet(
        spark.range(0, rows, 1, 8).select(
            F.concat(F.lit("o-"), "id").alias("order_id"),
            customer.alias("customer_id"),
            F.timestamp_seconds(F.lit(_START) + second).alias("order_ts"),
            (F.pmod(F.xxhash64("id", F.lit(3)), F.lit(10_000)) / 100)
            .cast("decimal(18,2)")
            .alias("amount"),
        ),
        folder,
    )


def _write_parquet(frame: DataFrame, folder: Path) -> DataFrame:
    frame.write.parquet(str(folder))
    return frame.sparkSession.read.parquet(str(folder))


def _sum_by_customer(rows: DataFrame) -> DataFrame:
    return rows.groupBy("customer_id").agg(F.count(F.lit(1)), F.sum("amount"))


def _execute_frame(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _measure_query(spark: SparkSession, frame: DataFrame, conf: Mapping[str, str]) -> QueryTimes:
    """What a frame takes, under settings that hold for it alone."""
    before = {name: spark.conf.get(name) for name in conf}
    since = max((stage.stageId() for stage in list_stages(spark)), default=-1)
    try:
        for name, value in conf.items():
            spark.conf.set(name, value)
        began = perf_counter()
        _execute_frame(frame)
        wall = perf_counter() - began
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    time.sleep(0.5)  # Spark's own listener tells its store of the last tasks
    worst = max(
        (
            _task_seconds(spark, stage)
            for stage in list_stages(spark)
            if stage.stageId() > since and str(stage.status()) == "COMPLETE"
        ),
        key=max,
    )
    return QueryTimes(wall, max(worst), median(worst))


def _task_seconds(spark: SparkSession, stage: Any) -> list[float]:
    """The CPU seconds of the tasks of a stage: other work on the machine is not in them."""
    tasks = _status_store(spark).taskList(stage.stageId(), stage.attemptId(), 100_000)
    metrics = (tasks.apply(n).taskMetrics().get() for n in range(tasks.size()))
    return [task_metrics.executorCpuTime() / 1e9 for task_metrics in metrics]


def _status_store(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc().statusStore()
