"""The three tables by hand: a script that is given a range of days, and tests them if asked to."""

from __future__ import annotations

import sys
from datetime import date, timedelta

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
from pyspark.sql import SparkSession


def main(first: date, last: date, is_tested: bool) -> None:
    """Load the days, table by table; with tests, end at the first table that fails one."""
    spark = SparkSession.builder.getOrCreate()

    def test_table(table: str, column: str) -> None:
        if is_tested:
            rows = load_table(spark, table, in_days(column, first, last))
            if days := days_without_customers(rows, column):
                sys.exit(f"{table}: orders without customers on {', '.join(days)}")

    lines = parse_lines(spark.read.text(day_folders(first, last)))
    save_days(lines, "raw_orders", "log_date", first, last)
    test_table("raw_orders", "log_date")
    log_days = in_days("log_date", first, last + timedelta(days=WINDOW_DAYS))
    staged = stage_orders(load_table(spark, "raw_orders", log_days))
    event_days = in_days("event_date", first, last)
    save_days(staged.where(event_days), "stg_orders", "event_date", first, last)
    test_table("stg_orders", "event_date")
    facts = sum_orders(load_table(spark, "stg_orders", event_days))
    save_days(facts, "fact_daily_orders", "run_date", first, last)


if __name__ == "__main__":
    main(*map(date.fromisoformat, sys.argv[1:3]), "--test" in sys.argv)
