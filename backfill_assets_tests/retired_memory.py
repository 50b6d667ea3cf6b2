"""A table that carries state, and one by the week: both are retired, and what they read is not."""

from __future__ import annotations

from typing import Annotated

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import PREVIOUS_DAY, SELF, WEEK, Reads, table
from backfill_assets.orders.tables import ORDERS, STAGED
from backfill_assets_tests import version_tables as first
from backfill_assets_tests.version_tables_second import RETIRES


@table(first.Spent, partition="run_date", key=["customer_id"], totals=["orders"])
def spent(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    return first.spent(orders)


def _sum_orders(rows: DataFrame) -> DataFrame:
    keys = [F.col("for_day").alias("run_date"), "customer_id"]
    return rows.groupBy(*keys).agg(F.sum("orders").alias("orders"))


@table(first.Spent, partition="run_date", key=["customer_id"], totals=["orders"], retired=RETIRES)
def so_far(
    of: Annotated[DataFrame, Reads(spent)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame:
    columns = ["for_day", "customer_id", "orders"]
    return _sum_orders(before.select(columns).unionByName(of.select(columns)))


@table(first.Spent, partition="run_date", key=["customer_id"], totals=["orders"], retired=RETIRES)
def by_week(of: Annotated[DataFrame, Reads(spent, WEEK)]) -> DataFrame:
    return _sum_orders(of)


TABLES = [*ORDERS, spent, so_far, by_week]
