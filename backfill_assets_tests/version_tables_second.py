"""Two versions of tables, a reader of each, and the same with the first ones retired."""

from __future__ import annotations

from datetime import date
from types import FunctionType
from typing import Annotated, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, conserves_total, table, version_of
from backfill_assets.orders.tables import ORDERS, RAW, STAGED
from backfill_assets.tables.derived import Derived
from backfill_assets.tables.table import Table
from backfill_assets_tests import version_tables as first

#: The business day from which on the first versions are fed no more, in `RETIRED`.
RETIRES = date(2024, 1, 10)


def spent_v2(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    """The same, each twice."""
    return first.spent(orders).withColumn("orders", F.col("orders") * 2)


def logged_v2(lines: Annotated[DataFrame, Reads(RAW)]) -> DataFrame:
    """The same, each twice."""
    return spent_v2(lines)


def most(of: DataFrame) -> DataFrame:
    """The rows as they are."""
    return of.withColumn("run_date", F.col("for_day")).drop("for_day")


def _reading_function(function: Any, name: str, upstream: Derived) -> FunctionType:
    """A function of this module under another name, with a table as its input."""
    new_function = FunctionType(function.__code__, function.__globals__, name)
    new_function.__annotations__ = {"of": Annotated[DataFrame, Reads(upstream)]}
    new_function.__module__, new_function.__qualname__ = __name__, name
    return new_function


def build_versions(
    retired: date | None = None, reader: date | None = None, *, moved: bool = False
) -> list[Table]:
    """Two versions of two tables, and a reader of each version of the first one.

    Args:
        retired: when the first versions are.
        reader: when the reader of the first version is.
        moved: whether that reader reads the second version.
    """
    spent = table(
        first.Spent,
        partition="run_date",
        key=["customer_id"],
        totals=["orders"],
        checks=[conserves_total("orders", None, "orders")],
        group="spent",
        retired=retired,
    )(first.spent)
    second_spent = version_of(spent, 2, checks=[])(spent_v2)
    logged = table(
        first.Spent, partition="run_date", key=["customer_id"], totals=["orders"], retired=retired
    )(first.logged)
    most_1 = table(
        first.Spent, partition="run_date", key=["customer_id"], totals=["orders"], retired=reader
    )(_reading_function(most, "most", second_spent if moved else spent))
    most_2 = table(first.Spent, partition="run_date", key=["customer_id"], totals=["orders"])(
        _reading_function(most, "most_v2", second_spent)
    )
    return [*ORDERS, spent, second_spent, logged, version_of(logged, 2)(logged_v2), most_1, most_2]


TABLES = build_versions()
RETIRED = build_versions(RETIRES, RETIRES)
#: Refused: a table that is read.
READ = build_versions(RETIRES)
#: Refused as well: it is read for longer.
READ_LONGER = build_versions(RETIRES, date(2024, 1, 11))
MOVED = build_versions(RETIRES, moved=True)


def spent_too(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    """Another second version."""
    return spent_v2(orders)


#: Refused: two tables are the second version.
TWICE = [*build_versions(), version_of(TABLES[len(ORDERS)], 2, checks=[])(spent_too)]
