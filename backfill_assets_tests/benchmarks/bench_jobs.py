"""What the benches share: a deployment, landing data by Spark, the job by hand, a clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window as SqlWindow

from backfill_assets.settings import load_settings
from backfill_assets.spark.session import Engine
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.pipeline import LAYERS, START, Pipeline

#: What the job by hand has: the tables that a first version would.
THREE = ("raw_orders", "stg_orders", "fact_daily_orders")


def instance_at(home: Path, *, is_quiet: bool = False) -> dg.DagsterInstance:
    """Dagster's instance of a deployment, with `dagster.yaml`; quiet, it prints errors alone."""
    home.mkdir(parents=True, exist_ok=True)
    config = (PROJECT / "dagster.yaml").read_text()
    quiet = "\npython_logs: {python_log_level: ERROR}\n" if is_quiet else ""
    (home / "dagster.yaml").write_text(config + quiet)
    os.environ["DAGSTER_HOME"] = str(home)
    return dg.DagsterInstance.get()


class Deployed(Pipeline):
    """The project's definitions, with Dagster's storage on disk as in a deployment."""

    def __init__(self, engine: Engine, root: Path, **how: Any) -> None:
        super().__init__(engine, root, **how)
        self.engine = engine
        self.instance = instance_at(root / "home", is_quiet=True)

    def run_in_threads(self, first: date, last: date, tables: Sequence[str]) -> None:
        """A run of these days with the project's executor, as a deployment has it.

        `run` has its steps one after another.
        """
        keys = frozenset(dg.AssetKey(name) for name in tables)
        job = self.repository.get_implicit_global_asset_job_def().get_subset(asset_selection=keys)
        tags = {
            "dagster/asset_partition_range_start": str(first),
            "dagster/asset_partition_range_end": str(last),
        }
        run = self.instance.create_run_for_job(job, tags=tags, asset_selection=keys)
        assert execute_run(InMemoryJob(job), run, self.instance).success, f"{first} to {last}"


def write_landing(spark: SparkSession, landing: Path, days: int, orders: int) -> None:
    """`days` arrival days of `orders` lines each: 3 % sent again, 2 % late, some broken.

    A task writes a day: nothing is shuffled.
    """
    n = F.col("id")
    line_day = (n / orders).cast("int")
    late = F.when(n % 50 == 0, F.least(line_day, (n / 50 % 10).cast("int"))).otherwise(0)
    resent = n % 33 == 0
    order_day = line_day - late
    stamp = F.timestamp_seconds(
        F.unix_timestamp(F.lit(str(START)), "yyyy-MM-dd") + order_day * 86400 + (n * 7919 % 86400)
    )
    ingested = F.timestamp_seconds(
        F.unix_timestamp(F.lit(str(START)), "yyyy-MM-dd") + line_day * 86400 + 86399
    )
    iso = "yyyy-MM-dd'T'HH:mm:ss'Z'"
    fields = F.struct(
        F.format_string("o-%010d", F.when(resent, F.greatest(n - 1, F.lit(0))).otherwise(n)).alias(
            "order_id"
        ),
        F.when(n % 97 != 0, F.format_string("c-%06d", n * n % 20011)).alias("customer_id"),
        F.date_format(stamp, iso).alias("order_ts"),
        ((n * 31 % 20000 + 1) / 100).cast("decimal(18,2)").cast("string").alias("amount"),
        F.date_format(ingested, iso).alias("ingestion_ts"),
    )
    text = F.when(n % 9973 == 0, F.lit('{"order_id": broken')).otherwise(F.to_json(fields))
    lines = spark.range(0, days * orders, 1, days).select(
        text.alias("value"), F.date_add(F.lit(START), line_day).alias("arrival_date")
    )
    lines.write.partitionBy("arrival_date").mode("overwrite").text(str(landing / "orders"))
    for path in landing.glob("orders/*/part-*.txt"):
        path.rename(path.with_suffix(".jsonl"))


def run_child(
    module: str, *arguments: object, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a module in a process of its own, and print its lines.

    Returns:
        Its last line, which is JSON.

    Raises:
        RuntimeError: it fails; the message has the end of its log.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    line = ""
    with tempfile.TemporaryFile("w+") as log:
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process:
            for line in process.stdout or ():
                if not line.startswith("{"):
                    print(f"  {line}", end="", flush=True)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed:\n{log.read()[-20_000:]}")
    values: dict[str, Any] = json.loads(line)
    return values


def write_landing_apart(landing: Path, days: int, orders: int) -> None:
    """Write a landing in a process of its own, whose session takes no memory afterwards."""
    run_child(__name__, landing, days, orders)


def run_plain_job(
    spark: SparkSession,
    landing: Path,
    warehouse: Path,
    start: date,
    days: int,
    tables: Collection[str] = LAYERS,
) -> None:
    """What an engineer would write in an afternoon: the same tables, no audit, one commit each."""
    end = start + timedelta(days=days)

    def save_table(frame: DataFrame, name: str, column: str) -> None:
        if name not in tables:
            return
        frame.write.format("delta").partitionBy(column).mode("overwrite").option(
            "replaceWhere", f"{column} >= '{start}' AND {column} < '{end}'"
        ).save(str(warehouse / name))

    folders = [
        str(p)
        for n in range(-1, days)
        if (p := landing / "orders" / f"arrival_date={start + timedelta(days=n)}").exists()
    ]
    schema = (
        "order_id STRING, customer_id STRING, order_ts TIMESTAMP, amount DECIMAL(18,2), "
        "ingestion_ts TIMESTAMP"
    )
    path = F.col("_metadata.file_path")
    lines = (
        spark.read.text(folders)
        .select(
            F.regexp_extract(path, r"arrival_date=([0-9-]+)", 1).cast("date").alias("arrival_date"),
            F.regexp_extract(path, r"(arrival_date=.*)$", 1).alias("source_file"),
            F.col("value").alias("text"),
            F.from_json("value", schema).alias("order"),
        )
        .select("*", "order.*")
        .withColumn("version_ts", F.greatest("order_ts", "ingestion_ts"))
        .withColumn("ahead", F.datediff(F.to_date("version_ts"), "arrival_date"))
        .withColumn(
            "good",
            F.col("order_id").isNotNull()
            & F.col("order_ts").isNotNull()
            & F.col("amount").isNotNull()
            & F.col("ingestion_ts").isNotNull()
            & (F.col("ahead") <= 1),
        )
        .withColumn("log_date", F.date_add("arrival_date", F.greatest("ahead", F.lit(0))))
        .persist()
    )
    inside = (F.col("log_date") >= F.lit(start)) & (F.col("log_date") < F.lit(end))
    order_columns = ["order_id", "customer_id", "order_ts", "amount", "ingestion_ts"]
    save_table(
        lines.where("good")
        .where(inside)
        .select("log_date", "arrival_date", *order_columns, "source_file"),
        "raw_orders",
        "log_date",
    )
    save_table(
        lines.where(
            ~F.coalesce("good", F.lit(False)) & (F.col("arrival_date") >= F.lit(start))
        ).select("arrival_date", "source_file", "text", F.lit("bad line").alias("reason")),
        "raw_orders_rejected",
        "arrival_date",
    )
    lines.unpersist()
    logged = spark.read.format("delta").load(str(warehouse / "raw_orders"))
    logged = logged.where(inside).withColumn("event_date", F.to_date("order_ts"))
    newest = SqlWindow.partitionBy("order_id").orderBy(
        F.greatest("order_ts", "ingestion_ts").desc(), F.desc("log_date"), F.desc("amount")
    )
    before = newest.rowsBetween(SqlWindow.unboundedPreceding, -1)
    timely = F.datediff("log_date", "event_date") <= 7
    staged = (
        logged.withColumn("newer", F.min("log_date").over(before))
        .where(F.col("newer").isNull() | (F.datediff("newer", "event_date") > 7))
        .where(timely & (F.col("event_date") >= F.lit(start)) & (F.col("event_date") < F.lit(end)))
        .select("event_date", *order_columns, "log_date")
    )
    save_table(staged, "stg_orders", "event_date")
    save_table(logged.where(~timely), "late_orders", "log_date")
    staged = spark.read.format("delta").load(str(warehouse / "stg_orders"))
    sums = (
        staged.where((F.col("event_date") >= F.lit(start)) & (F.col("event_date") < F.lit(end)))
        .groupBy(
            F.col("event_date").alias("run_date"),
            F.coalesce("customer_id", F.lit("unknown")).alias("customer_id"),
        )
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))
    )
    save_table(sums, "fact_daily_orders", "run_date")


def step_seconds(result: dg.ExecuteInProcessResult) -> dict[str, float]:
    """The seconds of each step of a run."""
    events = [e for e in result.all_events if e.event_type_value == "STEP_SUCCESS"]
    return {str(e.step_key): e.event_specific_data.duration_ms / 1000 for e in events}


def time_work(label: str, work: Callable[[], object]) -> float:
    """Seconds that the work takes, printed."""
    began = perf_counter()
    work()
    took = perf_counter() - began
    print(f"  {label:<58}{took:8.1f} s", flush=True)
    return took


def list_stages(spark: SparkSession) -> list[Any]:
    """The stages in Spark's status store."""
    jvm, gateway = spark.sparkContext._jvm, spark.sparkContext._gateway
    none = jvm.java.util.ArrayList()
    quantiles = gateway.new_array(jvm.double, 0)
    store = spark.sparkContext._jsc.sc().statusStore()
    stages = store.stageList(none, False, False, quantiles, none)
    return [stages.apply(n) for n in range(stages.size())]


if __name__ == "__main__":
    write_landing(
        Engine.from_settings(load_settings()).spark_session,
        Path(sys.argv[1]),
        *map(int, sys.argv[2:]),
    )
    print("{}")
