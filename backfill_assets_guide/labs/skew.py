"""Lab `skew`: one customer with most of the rows, a bucket of nulls, and what each task does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.transforms.point_in_time import as_of_join
from backfill_assets_guide.labs.lab import Lab

_ROWS, _FILES, _TASKS, _CUSTOMERS, _VERSIONS = 40_000, 8, 8, 1000, 4
_START = 1_704_067_200
_VIEW = "lab_rows"
#: Joins without broadcast, and a task for each file that is read, on every machine.
_PLAIN = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": str(_TASKS),
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.files.maxPartitionBytes": "16MB",
    "spark.sql.files.openCostInBytes": "16MB",
}
#: Adaptive execution, as it acts on partitions of 256 MB.
_ADAPTIVE = {
    **_PLAIN,
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16KB",
    "spark.sql.adaptive.skewJoin.enabled": "true",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "32KB",
    "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "5",
}
#: A join of the orders with the customers' versions.
Form = Callable[[DataFrame, DataFrame], DataFrame]


def skew_lab(lab: Lab) -> None:
    """Orders, most of them of one customer or of none, are joined with the customers."""
    _create_tables(lab)
    lab.say(
        f"{_ROWS:,} orders, and {_CUSTOMERS:,} customers with {_VERSIONS} versions each. 60 % of "
        f"the orders are of one customer, and 20 % of none. Spark joins in {_TASKS} tasks: an even "
        f"share is {_ROWS // _TASKS:,} rows."
    )
    lab.step("A join with the newest addresses, plain.")
    _show_tasks(lab, _join_newest, _PLAIN)
    lab.step(
        "The same with adaptive execution. It splits the rows of a large task, and each part reads "
        "the customers of that task again. Its threshold is lowered from 256 MB to 32 KB, so that "
        "it shows on few rows."
    )
    _show_tasks(lab, _join_newest, _ADAPTIVE)
    lab.step(
        "A join with the address that held then, `as_of_join`, with adaptive execution as well. "
        "Spark does not split it, as it gathers the versions of a customer before it joins."
    )
    _show_tasks(lab, _join_as_of, _ADAPTIVE)
    lab.step("Nulls isolated: orders of no customer are not joined, but added afterwards.")
    _show_tasks(lab, _isolate_nulls, _PLAIN)
    lab.step(
        "Salted, `as_of_join(..., hot=0.05)`: orders of a hot customer, and of none, get a number "
        "below 16, and the versions of a hot customer are there once for each number."
    )
    _show_tasks(lab, partial(_join_as_of, hot=0.05), _PLAIN)
    lab.lesson(
        "all rows of a key are the work of one task, and all rows without a key as well: more "
        "workers do not help. Adaptive execution splits a plain join, so leave that as it is. "
        "Isolated nulls cost another scan, and leave the hot key. Salt spreads both; it costs "
        "another scan, and copies."
    )


def _join_newest(orders: DataFrame, versions: DataFrame) -> DataFrame:
    newest = versions.where(F.col("since") == F.timestamp_seconds(F.lit(_START)))
    return orders.join(newest, "customer", "left")


def _join_as_of(orders: DataFrame, versions: DataFrame, hot: float | None = None) -> DataFrame:
    moments = {"at": "ordered", "valid_from": "since", "known": "since", "cutoff": "ordered"}
    return as_of_join(orders, versions, key="customer", **moments, hot=hot)


def _isolate_nulls(orders: DataFrame, versions: DataFrame) -> DataFrame:
    known = F.col("customer").isNotNull()
    return _join_as_of(orders.where(known), versions).unionByName(
        orders.where(~known), allowMissingColumns=True
    )


def _create_tables(lab: Lab) -> None:
    """The orders and the customers."""
    share = F.pmod("id", F.lit(10))
    numbered = [F.lit("c-"), F.pmod(F.xxhash64("id"), F.lit(_CUSTOMERS)).cast("string")]
    customer = F.when(share < 6, "c-0").when(share < 8, F.concat(*numbered))
    lab.spark.range(0, _ROWS, 1, _FILES).select(
        customer.alias("customer"),
        F.timestamp_seconds(F.lit(_START) + F.pmod("id", F.lit(86400))).alias("ordered"),
        F.md5(F.col("id").cast("string")).alias("order_id"),
    ).write.format("delta").save(lab.table_url("orders"))
    number = F.pmod("id", F.lit(_CUSTOMERS)).cast("string")
    lab.spark.range(_CUSTOMERS * _VERSIONS).select(
        F.concat(F.lit("c-"), number).alias("customer"),
        F.timestamp_seconds(_START - F.floor(F.col("id") / _CUSTOMERS) * 86400).alias("since"),
        F.sha2(F.col("id").cast("string"), 256).alias("address"),
    ).write.format("delta").save(lab.table_url("customers"))


def _show_tasks(lab: Lab, form: Form, conf: Mapping[str, str]) -> None:
    """Tell what the tasks of a join have to do, and what comes out of it."""
    with _use_conf(lab, conf):
        orders, versions = (
            lab.spark.read.format("delta").load(lab.table_url(table))
            for table in ("orders", "customers")
        )
        joined = form(orders, versions)
        joined.withColumn("task", F.spark_partition_id()).createOrReplaceTempView(_VIEW)
        tasks = lab.spark.sql(
            "SELECT task, count(order_id) AS rows, count_if(customer = 'c-0') AS hot, "
            "count_if(customer IS NULL) AS nulls, count(address) AS found "
            f"FROM {_VIEW} GROUP BY task"
        ).collect()
        plan = lab.spark.sql(f"EXPLAIN SELECT * FROM {_VIEW}").collect()[0][0]
        lab.spark.catalog.dropTempView(_VIEW)
    whole = sum(row["rows"] for row in tasks)
    largest = max(row["rows"] for row in tasks)
    lab.show("tasks", f"with rows {len(tasks)}   rows of the largest {largest:,}")
    lab.show(
        "tasks with rows of",
        f"the one customer {sum(row['hot'] > 0 for row in tasks)}   no customer "
        f"{sum(row['nulls'] > 0 for row in tasks)}",
    )
    lab.show("scans of the orders", f"times {plan.count('/orders]')}")
    lab.show("reader", f"rows {whole:,}   with an address {sum(row['found'] for row in tasks):,}")


@contextmanager
def _use_conf(lab: Lab, conf: Mapping[str, str]) -> Iterator[None]:
    """The session with other settings, which are put back."""
    before = {name: str(lab.spark.conf.get(name)) for name in conf}
    try:
        for name, value in conf.items():
            lab.spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            lab.spark.conf.set(name, value)
