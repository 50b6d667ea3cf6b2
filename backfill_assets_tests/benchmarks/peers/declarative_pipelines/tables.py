"""The three tables as a declarative pipeline: a streaming table, and two materialized views.

https://spark.apache.org/docs/latest/declarative-pipelines-programming-guide.html
It has no expectations in the open-source version: nothing is tested.
"""

from order_frames import LANDING, parse_lines, stage_orders, sum_orders
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(partition_cols=["log_date"])
def raw_orders() -> DataFrame:
    """The lines, by arrival day: each file is read once."""
    return parse_lines(spark.readStream.format("text").load(f"{LANDING}/orders"))


@dp.materialized_view(partition_cols=["event_date"])
def stg_orders() -> DataFrame:
    """Each order once, by event day."""
    return stage_orders(spark.table("raw_orders"))


@dp.materialized_view(partition_cols=["run_date"])
def fact_daily_orders() -> DataFrame:
    """Orders and revenue by day and customer."""
    return sum_orders(spark.table("stg_orders"))
