"""Tables of which one watches a column for skew, and the others are made of it."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, Source, nullable_column, table
from backfill_assets.orders.tables import ORDERS, STAGED, OrderLine


class Taken(pa.DataFrameModel):
    """An order of a day."""

    run_date: T.DateType = Field(description="The day.")
    order_id: T.StringType = Field(description="The order.")
    customer_id: T.StringType = nullable_column(1.0, 1.0, "The customer; null if unknown.")


class Count(pa.DataFrameModel):
    """The orders of a customer on a day."""

    run_date: T.DateType = Field(description="The day.")
    customer_id: T.StringType = nullable_column(1.0, 1.0, "The customer; null if unknown.")
    orders: T.LongType = Field(ge=0, description="How many.")


@table(Taken, partition="run_date", key=["order_id"], skew={"customer_id": 0.5})
def taken(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    return orders.select(F.col("for_day").alias("run_date"), "order_id", "customer_id")


@table(Count, partition="run_date", key=[], totals=["orders"])
def order_counts(of: Annotated[DataFrame, Reads(taken)]) -> DataFrame:
    keys = [F.col("for_day").alias("run_date"), "customer_id"]
    return of.groupBy(*keys).agg(F.count("*").alias("orders"))


class Weighed(Count):
    """The orders of each customer that is known, each of which is some work."""


#: Milliseconds that a row takes, on a busy machine as well.
_WORK = 40


@table(Weighed, partition="run_date", key=[], totals=["orders"])
def weighed(of: Annotated[DataFrame, Reads(taken)]) -> DataFrame:
    known = of.where("customer_id IS NOT NULL").repartition(8, "customer_id")
    work = F.expr(f"reflect('java.lang.Thread', 'sleep', {_WORK}L) AS done")
    worked = known.select(F.col("for_day").alias("run_date"), "customer_id", work)
    return worked.groupBy("run_date", "customer_id").agg(F.count("done").alias("orders"))


TABLES = [*ORDERS, taken, order_counts, weighed]


class Purchase(OrderLine):
    """A line of orders whose customers are watched."""


PURCHASES = Source(
    "orders",
    Purchase,
    skew={"customer_id": 0.5},
    key=["order_id"],
    event_time="order_ts",
    version_time="ingestion_ts",
)
LANDED = [PURCHASES]
