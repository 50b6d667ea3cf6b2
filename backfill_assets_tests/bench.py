"""`make bench`: ours against a job written by hand, in one run on one warm session.

Ratios are the result; seconds depend on the machine. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window as SqlWindow

from backfill_assets.settings import load_settings
from backfill_assets.spark import Engine
from backfill_assets_tests.pipeline import START, Pipeline

SPARK = {"spark.driver.memory": "6g"}


def write_landing(spark: SparkSession, landing: Path, days: int, orders: int) -> None:
    """`days` arrival days of `orders` lines each: 3 % sent again, 2 % late, some broken."""
    n = F.col("id")
    line_day = (n / orders).cast("int")
    late = F.when(n % 50 == 0, F.least(line_day, (n / 50 % 10).cast("int"))).otherwise(0)
    resent = n % 33 == 0
    order_day = line_day - late
    stamp = F.timestamp_seconds(
        F.unix_timestamp(F.lit(str(START)), "yyyy-MM-dd") + order_day * 86400 + (n * 7919 % 86400)
    )
    taken = F.timestamp_seconds(
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
        F.date_format(taken, iso).alias("ingestion_ts"),
    )
    text = F.when(n % 9973 == 0, F.lit('{"order_id": broken')).otherwise(F.to_json(fields))
    lines = spark.range(days * orders).select(
        text.alias("value"), F.date_add(F.lit(START), line_day).alias("arrival_date")
    )
    lines.repartition(days, "arrival_date").write.partitionBy("arrival_date").mode(
        "overwrite"
    ).text(str(landing / "orders"))
    for path in landing.glob("orders/*/part-*.txt"):
        path.rename(path.with_suffix(".jsonl"))


def by_hand(spark: SparkSession, landing: Path, warehouse: Path, start: date, days: int) -> None:
    """What an engineer would write in an afternoon: the same tables, no audit, one commit each."""
    end = start + timedelta(days=days)

    def save(frame: DataFrame, name: str, column: str) -> None:
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
    save(
        lines.where("good")
        .where(inside)
        .select("log_date", "arrival_date", *order_columns, "source_file"),
        "raw_orders",
        "log_date",
    )
    save(
        lines.where(
            ~F.coalesce("good", F.lit(False)) & (F.col("arrival_date") >= F.lit(start))
        ).select("arrival_date", "source_file", "text", F.lit("bad line").alias("reason")),
        "raw_orders_rejected",
        "arrival_date",
    )
    lines.unpersist()
    raw = spark.read.format("delta").load(str(warehouse / "raw_orders"))
    raw = raw.where(inside).withColumn("event_date", F.to_date("order_ts"))
    newest = SqlWindow.partitionBy("order_id").orderBy(
        F.greatest("order_ts", "ingestion_ts").desc(), F.desc("log_date"), F.desc("amount")
    )
    before = newest.rowsBetween(SqlWindow.unboundedPreceding, -1)
    timely = F.datediff("log_date", "event_date") <= 7
    staged = (
        raw.withColumn("newer", F.min("log_date").over(before))
        .where(F.col("newer").isNull() | (F.datediff("newer", "event_date") > 7))
        .where(timely & (F.col("event_date") >= F.lit(start)) & (F.col("event_date") < F.lit(end)))
        .select("event_date", *order_columns, "log_date")
    )
    save(staged, "stg_orders", "event_date")
    save(raw.where(~timely), "late_orders", "log_date")
    staged = spark.read.format("delta").load(str(warehouse / "stg_orders"))
    fact = (
        staged.where((F.col("event_date") >= F.lit(start)) & (F.col("event_date") < F.lit(end)))
        .groupBy(
            F.col("event_date").alias("run_date"),
            F.coalesce("customer_id", F.lit("unknown")).alias("customer_id"),
        )
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))
    )
    save(fact, "fact_daily_orders", "run_date")


def timed(label: str, work: Callable[[], object]) -> float:
    """Seconds that the work takes, printed."""
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    print(f"  {label:<58}{took:8.1f} s", flush=True)
    return took


def steps(result: object) -> str:
    """Where the seconds of a run went, by step."""
    done = [e for e in result.all_events if e.event_type_value == "STEP_SUCCESS"]
    return ", ".join(f"{e.step_key} {e.event_specific_data.duration_ms / 1000:.1f}" for e in done)


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--orders", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-"))
    engine = Engine.of(load_settings(spark_conf=SPARK))
    spark = engine.spark_session
    try:
        ours = Pipeline(engine, root)
        print(f"{given.days} days x {given.orders:,} orders, one warm session")
        timed(
            "landing data written",
            lambda: write_landing(spark, ours.landing, given.days, given.orders),
        )
        last = START + timedelta(days=given.days - 1)
        pairs: list[tuple[float, float]] = []
        results: list[object] = []
        for n in range(given.rounds + 1):
            print("warm-up" if n == 0 else f"round {n}")
            hand = timed(
                "written by hand, one replaceWhere a table, no audit",
                lambda: by_hand(spark, ours.landing, root / "hand", START, given.days),
            )
            mine = timed("ours: all assets, audited", lambda: results.append(ours.run(START, last)))
            print(f"    {steps(results[-1])}")
            print(f"    ratio {mine / hand:.2f}")
            pairs.append((mine, hand))
        commits = {
            name: len(ours.log(name).history())
            for name in ("raw_orders", "stg_orders", "fact_daily_orders")
        }
        print(f"  versions after {given.rounds + 1} runs (creation included): {commits}")
        one_day = [
            timed(f"ours: one day ({n + 1})", lambda n=n: results.append(ours.run(n + 1)))
            for n in range(5)
        ]
        print(f"    the last by step: {steps(results[-1])}")
        best = sorted(mine / hand for mine, hand in pairs[1:])
        print(f"\nours / by hand: {best[len(best) // 2]:.2f} (median of {given.rounds})")
        print(f"one-day run: {sorted(one_day)[2]:.1f} s (median of 5)")
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
