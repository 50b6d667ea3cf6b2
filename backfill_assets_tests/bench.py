"""`make bench`: ours against a job written by hand, in one run on one warm session.

Ratios are the result; seconds depend on the machine. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window as SqlWindow

from backfill_assets.assets import fact, raw, staging
from backfill_assets.landing import Landing, read_lines, survey
from backfill_assets.partitions import Window
from backfill_assets.schemas import FACT, LATE, RAW, REJECTED, STAGED, Table
from backfill_assets.settings import load_settings
from backfill_assets.spark import Engine
from backfill_assets_tests.connect_server import connect_server
from backfill_assets_tests.pipeline import LAYERS, START, Pipeline, order

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
    save(staged, "stg_orders", "event_date")
    save(logged.where(~timely), "late_orders", "log_date")
    staged = spark.read.format("delta").load(str(warehouse / "stg_orders"))
    sums = (
        staged.where((F.col("event_date") >= F.lit(start)) & (F.col("event_date") < F.lit(end)))
        .groupBy(
            F.col("event_date").alias("run_date"),
            F.coalesce("customer_id", F.lit("unknown")).alias("customer_id"),
        )
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))
    )
    save(sums, "fact_daily_orders", "run_date")


def same_transforms(spark: SparkSession, found: Landing, folder: Path, days: Window) -> None:
    """Our own pure transforms with one replaceWhere a table: no audit, no Dagster, no pinning."""

    def save(frame: DataFrame, table: Table) -> DataFrame:
        url = str(folder / table.name)
        writer = frame.write.format("delta").partitionBy(table.partition).mode("overwrite")
        writer.option("replaceWhere", days.predicate(table.partition)).save(url)
        saved = spark.read.format("delta").load(url)
        return saved.where(days.predicate(table.partition))

    read = raw.read_orders(read_lines(spark, found), "UTC").persist()
    log = save(raw.raw_orders(read).where(days.predicate("log_date")), RAW)
    save(raw.rejected_orders(read).where(days.predicate("arrival_date")), REJECTED)
    read.unpersist()
    dated = staging.with_event_day(log, "UTC")
    save(staging.late_orders(dated, 7), LATE)
    staged = save(staging.staged_orders(staging.ranked(dated, days, 7)), STAGED)
    save(fact.daily_orders(staged), FACT)


def timed(label: str, work: Callable[[], object]) -> float:
    """Seconds that the work takes, printed."""
    began = perf_counter()
    work()
    took = perf_counter() - began
    print(f"  {label:<58}{took:8.1f} s", flush=True)
    return took


def steps(result: object) -> str:
    """Where the seconds of a run went, by step."""
    done = [e for e in result.all_events if e.event_type_value == "STEP_SUCCESS"]
    return ", ".join(f"{e.step_key} {e.event_specific_data.duration_ms / 1000:.1f}" for e in done)


def one_day_runs(pipeline: Pipeline, label: str) -> float:
    """Median seconds of five one-day runs of all assets, each printed with its steps."""
    taken = []
    for n in range(5):
        results: list[object] = []
        work = partial(_keep, results, pipeline, START + timedelta(days=n))
        taken.append(timed(f"{label}: one day ({n + 1})", work))
        in_steps = steps(results[0])
        print(f"    {in_steps}; the rest is Dagster's", flush=True)
    return sorted(taken)[2]


def _keep(results: list[object], pipeline: Pipeline, first: date, last: date | None = None) -> None:
    results.append(pipeline.run(first, last))


def three_late_lines(engine: Engine, root: Path, days: int) -> float:
    """Seconds to find the days that three late lines touch, with so many days of history."""
    pipeline = Pipeline(engine, root, end=START + timedelta(days=days + 2))
    for n in range(1, days + 1):
        pipeline.land(n, [order(f"o-{n}-{i}", n) for i in range(50)])
    tables = (RAW.name, REJECTED.name, STAGED.name, FACT.name)
    last = START + timedelta(days=days - 1)
    timed(f"{days} days loaded", lambda: pipeline.run(START, last, tables))
    taken = []
    for n in range(3):  # the first one warms up
        told = [days - 4, days - 2, days]
        at = f"{last + timedelta(days=1)}T10:00:00Z"
        lines = [order(f"late-{n}-{d}", d, ingested=at) for d in told]
        pipeline.land(days + 1, lines, f"late-{n}.jsonl")
        run = partial(pipeline.run, days + 1, days + 1, (RAW.name, REJECTED.name))
        loading = timed(f"{days} days: load three late lines, find what they touch", run)
        pipeline.now = datetime.combine(last + timedelta(days=2), time(3), tzinfo=timezone.utc)
        began = perf_counter()
        asked = pipeline.tick("touched_days").run_requests or []
        tick = perf_counter() - began
        found = {r.tags["dagster/asset_partition_range_start"] for r in asked if "stg" in r.run_key}
        # The new day itself is in one range with the last of them.
        assert found == {str(START + timedelta(days=d - 1)) for d in told}, found
        print(f"    the sensor's tick: {tick:.2f} s", flush=True)
        taken.append(loading + tick)
    return min(taken[1:])


def finding_late_lines(root: Path) -> None:
    """Whether the time to find what late lines touch grows with the history."""
    engine = Engine.of(load_settings(spark_conf=SPARK))
    short, long = (three_late_lines(engine, root / str(days), days) for days in (73, 730))
    print(f"\nthree late lines, 730 days of history : 73 days = {long / short:.2f}", flush=True)
    engine.spark_session.stop()


def on_connect(root: Path) -> None:
    """One-day runs on a warm Connect server, in a process that has no session of its own."""
    with connect_server(root, SPARK) as url:
        command = [sys.executable, "-m", "backfill_assets_tests.bench", "--attach", str(root)]
        subprocess.run(command, env={**os.environ, "SPARK_REMOTE": url}, check=True)


def attached(root: Path) -> None:
    """The child of `on_connect`: five one-day runs after one that warms the server up."""
    pipeline = Pipeline(Engine.of(load_settings()), root, warehouse=str(root / "on-connect"))
    timed("Connect: first run on the fresh server", lambda: pipeline.run(START))
    print(
        f"one-day run on a warm Connect server: {one_day_runs(pipeline, 'Connect'):.1f} s (median)"
    )


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--orders", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--part", choices=["load", "late", "connect"])
    parser.add_argument("--attach", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    if given.attach:
        attached(given.attach)
        return
    root = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        if given.part in (None, "load"):
            embedded(root, given.days, given.orders, given.rounds)
        if given.part in (None, "late"):
            finding_late_lines(root / "late")
        if given.part in (None, "connect"):
            on_connect(root)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def embedded(root: Path, days: int, orders: int, rounds: int) -> None:
    """Ours and the job by hand in turn on one embedded session, then one-day runs."""
    engine = Engine.of(load_settings(spark_conf=SPARK))
    spark = engine.spark_session
    ours = Pipeline(engine, root)
    last = START + timedelta(days=days - 1)
    print(f"{days} days x {orders:,} orders, one warm session")
    timed("landing data written", lambda: write_landing(spark, ours.landing, days, orders))
    calendar = Window(START, last + timedelta(days=1))
    found = survey(spark, str(ours.landing), calendar.widened(before=1))
    ratios = []
    for n in range(rounds + 1):
        print("warm-up" if n == 0 else f"round {n}")
        hand = timed(
            "a plain job, looser parsing, no audit",
            lambda: by_hand(spark, ours.landing, root / "hand", START, days),
        )
        plain = timed(
            "our transforms by hand: one replaceWhere a table, no audit",
            lambda: same_transforms(spark, found, root / "same", calendar),
        )
        results: list[object] = []
        mine = timed("ours: all assets, audited", partial(_keep, results, ours, START, last))
        print(f"    {steps(results[0])}")
        print(f"    ratios {mine / plain:.2f} and {mine / hand:.2f}", flush=True)
        ratios.append((mine / plain, mine / hand))
    commits = {
        name: sum("userMetadata" in entry for entry in ours.log(name).history()) for name in LAYERS
    }
    print(f"  commits in {rounds + 1} runs: {commits}")
    one_day = one_day_runs(ours, "embedded")
    same, loose = (median(column) for column in zip(*ratios[1:], strict=True))
    print(f"\nours : the same transforms without audit = {same:.2f} (median of {rounds})")
    print(f"ours : a plain job with looser parsing = {loose:.2f}")
    print(f"one-day run on the warm session: {one_day:.1f} s (median)", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
