"""The five tables by hand: a PySpark script that is given the days that it has to replace.

It runs in the environment of a peer, as `order_frames`: it imports nothing of this project.
"""

from __future__ import annotations

import os
import sys
from datetime import date, timedelta

from order_frames import LANDING, WAREHOUSE, in_days
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

WINDOW_DAYS = 14
ITEMS = LANDING / "items"
SUMS = ("items", "quantity", "revenue")
DAY_COLUMNS = {
    "raw_items": "log_date",
    "stg_items": "l_shipdate",
    "mode_days": "run_date",
    "mode_days_current": "run_date",
    "mode_days_corrections": "run_date",
}


def read_days(spark: SparkSession, first: date, last: date) -> DataFrame:
    """The lines of a range of arrival days."""
    lines = spark.read.parquet(str(ITEMS)).withColumn("log_date", F.to_date("arrival_date"))
    return lines.where(in_days("arrival_date", first, last)).drop("arrival_date")


def latest_versions(lines: DataFrame) -> DataFrame:
    """Each line of an order once, in its latest version."""
    newest = Window.partitionBy("l_orderkey", "l_linenumber").orderBy(
        F.desc("l_receiptdate"), F.desc("log_date")
    )
    return lines.withColumn("place", F.row_number().over(newest)).where("place = 1").drop("place")


def sum_modes(lines: DataFrame) -> DataFrame:
    """Lines, parts and revenue by day and mode."""
    revenue = F.col("l_extendedprice") * (1 - F.col("l_discount"))
    return lines.groupBy(
        F.col("l_shipdate").alias("run_date"),
        F.coalesce("l_shipmode", F.lit("unknown")).alias("l_shipmode"),
    ).agg(
        F.count(F.lit(1)).alias("items"),
        F.sum("l_quantity").cast("decimal(28,2)").alias("quantity"),
        F.sum(revenue).cast("decimal(28,4)").alias("revenue"),
    )


def subtract_facts(current: DataFrame, facts: DataFrame) -> DataFrame:
    """What is known now less the facts, where they differ."""
    before = facts.select("run_date", "l_shipmode", *(F.col(x).alias(f"{x}_f") for x in SUMS))
    joined = current.join(before, ["run_date", "l_shipmode"], "left").fillna(0)
    differences = joined.select(
        "run_date", "l_shipmode", *((F.col(x) - F.col(f"{x}_f")).alias(x) for x in SUMS)
    )
    return differences.where(" OR ".join(f"{x} <> 0" for x in SUMS))


def make_days(spark: SparkSession, first_arrival: date, last_arrival: date, reach: int) -> None:
    """Replace the days that lines of some arrival days may change, one table after another.

    `reach` is the number of days before the first arrival day that any of the lines are about.

    https://docs.delta.io/latest/delta-batch.html#selective-overwrite
    """

    def load(table: str, condition: str) -> DataFrame:
        return spark.read.format("delta").load(str(WAREHOUSE / table)).where(condition)

    def save(frame: DataFrame, table: str, first: date) -> None:
        column = DAY_COLUMNS[table]
        condition = in_days(column, first, last_arrival)
        writer = frame.where(condition).write.format("delta").partitionBy(column)
        if table_version(table) is not None:
            writer = writer.option("replaceWhere", condition)
        writer.mode("overwrite").save(str(WAREHOUSE / table))

    window = timedelta(days=WINDOW_DAYS)
    first_open = first_arrival - window
    first_known = first_arrival - timedelta(days=reach)
    save(read_days(spark, first_arrival, last_arrival), "raw_items", first_arrival)
    in_time = load("raw_items", in_days("log_date", first_open, last_arrival + window)).where(
        f"datediff(log_date, l_shipdate) <= {WINDOW_DAYS}"
    )
    save(latest_versions(in_time), "stg_items", first_open)
    staged = load("stg_items", in_days("l_shipdate", first_open, last_arrival))
    save(sum_modes(staged), "mode_days", first_open)
    # A line may have come at any time after its day.
    known = load("raw_items", f"log_date >= '{first_known}'").where(
        in_days("l_shipdate", first_known, last_arrival)
    )
    save(sum_modes(latest_versions(known)), "mode_days_current", first_known)
    current, facts = (
        load(table, in_days("run_date", first_known, last_arrival))
        for table in ("mode_days_current", "mode_days")
    )
    save(subtract_facts(current, facts), "mode_days_corrections", first_known)


def table_version(table: str) -> int | None:
    """The version of a table; None if there is none yet."""
    return max(
        (int(x.stem) for x in (WAREHOUSE / table / "_delta_log").glob("*.json")), default=None
    )


def restore_tables(spark: SparkSession, versions: int) -> None:
    """Put all tables back by some versions.

    https://docs.delta.io/latest/delta-utility.html#restore-a-delta-table-to-an-earlier-state
    """
    for table in DAY_COLUMNS:
        path, version = str(WAREHOUSE / table), table_version(table) - versions
        if "SPARK_REMOTE" in os.environ:
            # Sail 0.7.2 has no RESTORE.
            old = spark.read.format("delta").option("versionAsOf", version).load(path)
            old.write.format("delta").mode("overwrite").save(path)
        else:
            spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF {version}")


if __name__ == "__main__":
    session = SparkSession.builder.getOrCreate()
    if sys.argv[1] == "restore":
        restore_tables(session, int(sys.argv[2]))
    else:
        make_days(session, *map(date.fromisoformat, sys.argv[1:3]), int(sys.argv[3]))
