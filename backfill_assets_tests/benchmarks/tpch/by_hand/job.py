"""The five tables by hand: a PySpark script that is given a range of days, and replaces them.

It runs in an environment of its own: it imports nothing of this project.
"""

from __future__ import annotations

import os
import sys
from datetime import date, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

WINDOW_DAYS = 14
LANDING = Path(os.environ["PEER_LANDING"]) / "items"
WAREHOUSE = Path(os.environ["PEER_WAREHOUSE"])
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
    lines = spark.read.parquet(str(LANDING)).withColumnRenamed("arrival_date", "log_date")
    return lines.where(f"log_date >= '{first}' AND log_date <= '{last}'")


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


def make_days(spark: SparkSession, first: date, last: date) -> None:
    """Replace the days of all tables, one table after another.

    https://docs.delta.io/latest/delta-batch.html#selective-overwrite
    """

    def load(table: str, condition: str) -> DataFrame:
        return spark.read.format("delta").load(str(WAREHOUSE / table)).where(condition)

    def in_days(column: str, until: date = last) -> str:
        return f"{column} >= '{first}' AND {column} <= '{until}'"

    def save(frame: DataFrame, table: str) -> None:
        column = DAY_COLUMNS[table]
        writer = frame.where(in_days(column)).write.format("delta").partitionBy(column)
        if table_version(table) is not None:
            writer = writer.option("replaceWhere", in_days(column))
        writer.mode("overwrite").save(str(WAREHOUSE / table))

    save(read_days(spark, first, last), "raw_items")
    window = in_days("log_date", last + timedelta(days=WINDOW_DAYS))
    in_time = load("raw_items", window).where(f"datediff(log_date, l_shipdate) <= {WINDOW_DAYS}")
    save(latest_versions(in_time), "stg_items")
    save(sum_modes(load("stg_items", in_days("l_shipdate"))), "mode_days")
    # A line may have come at any time after its day.
    known = load("raw_items", f"log_date >= '{first}'").where(in_days("l_shipdate"))
    save(sum_modes(latest_versions(known)), "mode_days_current")
    current, facts = (
        load(table, in_days("run_date")) for table in ("mode_days_current", "mode_days")
    )
    save(subtract_facts(current, facts), "mode_days_corrections")


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
        make_days(session, *map(date.fromisoformat, sys.argv[1:3]))
