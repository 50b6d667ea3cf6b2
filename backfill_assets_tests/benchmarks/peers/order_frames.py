"""The three tables as PySpark frames, for the peers that are written in PySpark.

It runs in the environments of the peers: it imports nothing of this project.
"""

from __future__ import annotations

import os
from datetime import date, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

WINDOW_DAYS = 7
#: A day with a larger share of orders without a customer is not right.
UNKNOWN_SHARE = 0.9
LINE_SCHEMA = (
    "order_id STRING, customer_id STRING, order_ts TIMESTAMP, amount DECIMAL(18,2), "
    "ingestion_ts TIMESTAMP"
)
COLUMNS = ["order_id", "customer_id", "order_ts", "amount", "ingestion_ts"]
LANDING = Path(os.environ["PEER_LANDING"])
WAREHOUSE = Path(os.environ["PEER_WAREHOUSE"])


def day_folders(first: date, last: date) -> list[str]:
    """The folders of the landing, for the arrival days that have one."""
    days = (first + timedelta(days=n) for n in range((last - first).days + 1))
    folders = (LANDING / "orders" / f"arrival_date={day}" for day in days)
    return [str(folder) for folder in folders if folder.exists()]


def in_days(column: str, first: date, last: date) -> str:
    """A condition for a range of days, both ends included."""
    return f"{column} >= '{first}' AND {column} <= '{last}'"


def parse_lines(text: DataFrame) -> DataFrame:
    """The raw log: the readable lines, by arrival day."""
    return (
        text.select(
            F.regexp_extract(F.col("_metadata.file_path"), r"arrival_date=([0-9-]+)", 1)
            .cast("date")
            .alias("log_date"),
            F.from_json("value", LINE_SCHEMA).alias("line"),
        )
        .select("log_date", "line.*")
        .dropna(subset=["order_id", "order_ts", "amount", "ingestion_ts"])
    )


def stage_orders(log: DataFrame) -> DataFrame:
    """Each order once, in its greatest version within the window of its event day."""
    newer = Window.partitionBy("order_id").orderBy(
        F.greatest("order_ts", "ingestion_ts").desc(), F.desc("log_date"), F.desc("amount")
    )
    before = newer.rowsBetween(Window.unboundedPreceding, -1)
    return (
        log.withColumn("event_date", F.to_date("order_ts"))
        .withColumn("newer_date", F.min("log_date").over(before))
        .where(F.datediff("log_date", "event_date") <= WINDOW_DAYS)
        .where(
            F.col("newer_date").isNull() | (F.datediff("newer_date", "event_date") > WINDOW_DAYS)
        )
        .select("event_date", *COLUMNS, "log_date")
    )


def sum_orders(staged: DataFrame) -> DataFrame:
    """Orders and revenue by day and customer."""
    return staged.groupBy(
        F.col("event_date").alias("run_date"),
        F.coalesce("customer_id", F.lit("unknown")).alias("customer_id"),
    ).agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))


def load_table(spark: SparkSession, table: str, condition: str) -> DataFrame:
    """Rows of a Delta table."""
    return spark.read.format("delta").load(str(WAREHOUSE / table)).where(condition)


def save_days(frame: DataFrame, table: str, column: str, first: date, last: date) -> None:
    """Replace a range of days of a Delta table.

    https://docs.delta.io/latest/delta-batch.html#selective-overwrite
    """
    frame.write.format("delta").partitionBy(column).mode("overwrite").option(
        "replaceWhere", in_days(column, first, last)
    ).save(str(WAREHOUSE / table))


def days_without_customers(rows: DataFrame, column: str) -> list[str]:
    """The days on which too many orders have no customer."""
    shares = rows.groupBy(column).agg(F.avg(F.isnull("customer_id").cast("int")).alias("share"))
    return [str(row[0]) for row in shares.where(F.col("share") > UNKNOWN_SHARE).collect()]
