"""The three tables as plain assets of Dagster: daily partitions, one run for a range, tests.

https://docs.dagster.io/guides/build/partitions-and-backfills/backfilling-data
https://docs.dagster.io/guides/test/asset-checks
"""

import os
from datetime import date, timedelta

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from order_frames import (
    WINDOW_DAYS,
    day_folders,
    days_without_customers,
    in_days,
    load_table,
    parse_lines,
    save_days,
    stage_orders,
    sum_orders,
)
from pyspark.sql import DataFrame

DAYS = dg.DailyPartitionsDefinition(os.environ["PEER_START"], end_date=os.environ["PEER_END"])


def run_days(context) -> tuple[date, date]:
    """The first and the last day of a run."""
    window = context.partition_time_window
    return window.start.date(), (window.end - timedelta(days=1)).date()


def check_customers(rows: DataFrame, column: str) -> dg.MaterializeResult:
    """The result of an asset: whether none of its days lacks customers."""
    days = days_without_customers(rows, column)
    check = dg.AssetCheckResult(
        passed=not days, check_name="known_customers", metadata={"days": days}
    )
    return dg.MaterializeResult(check_results=[check])


@dg.asset(
    partitions_def=DAYS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    check_specs=[dg.AssetCheckSpec("known_customers", asset="raw_orders", blocking=True)],
)
def raw_orders(
    context: dg.AssetExecutionContext, pyspark: LazyPySparkResource
) -> dg.MaterializeResult:
    """The lines, by arrival day."""
    first, last = run_days(context)
    spark = pyspark.spark_session
    lines = parse_lines(spark.read.text(day_folders(first, last)))
    save_days(lines, "raw_orders", "log_date", first, last)
    saved = load_table(spark, "raw_orders", in_days("log_date", first, last))
    return check_customers(saved, "log_date")


@dg.asset(
    partitions_def=DAYS,
    backfill_policy=dg.BackfillPolicy.single_run(),
    deps=[
        dg.AssetDep(
            raw_orders,
            partition_mapping=dg.TimeWindowPartitionMapping(
                end_offset=WINDOW_DAYS, allow_nonexistent_upstream_partitions=True
            ),
        )
    ],
    check_specs=[dg.AssetCheckSpec("known_customers", asset="stg_orders", blocking=True)],
)
def stg_orders(
    context: dg.AssetExecutionContext, pyspark: LazyPySparkResource
) -> dg.MaterializeResult:
    """Each order once, by event day."""
    first, last = run_days(context)
    spark, days = pyspark.spark_session, in_days("event_date", first, last)
    log_days = in_days("log_date", first, last + timedelta(days=WINDOW_DAYS))
    staged = stage_orders(load_table(spark, "raw_orders", log_days)).where(days)
    save_days(staged, "stg_orders", "event_date", first, last)
    return check_customers(load_table(spark, "stg_orders", days), "event_date")


@dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run(), deps=[stg_orders])
def fact_daily_orders(context: dg.AssetExecutionContext, pyspark: LazyPySparkResource) -> None:
    """Orders and revenue by day and customer."""
    first, last = run_days(context)
    staged = load_table(pyspark.spark_session, "stg_orders", in_days("event_date", first, last))
    save_days(sum_orders(staged), "fact_daily_orders", "run_date", first, last)


defs = dg.Definitions(
    assets=[raw_orders, stg_orders, fact_daily_orders],
    # One process, so that all steps share one session of Spark.
    # https://docs.dagster.io/guides/operate/run-executors
    executor=dg.in_process_executor,
    # Spark's settings come from `spark-defaults.conf`.
    resources={"pyspark": LazyPySparkResource(spark_config={})},
)
