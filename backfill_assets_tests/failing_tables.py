"""Tables whose functions fail, each in its own way."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, table
from backfill_assets.orders.tables import ORDERS, STAGED


class Count(pa.DataFrameModel):
    """The orders of a day."""

    run_date: T.DateType = Field(description="Day.")
    orders: T.LongType = Field(description="Orders.")


Orders = Annotated[DataFrame, Reads(STAGED)]


def counted(orders: DataFrame) -> DataFrame:
    """The orders by day."""
    return orders.groupBy(F.col("for_day").alias("run_date")).agg(F.count("*").alias("orders"))


@table(Count, partition="run_date", key=["run_date"])
def unknown_column(orders: Orders) -> DataFrame:
    """It names a column that is not there."""
    return counted(orders.where(F.col("amonut") > 0))


@table(Count, partition="run_date", key=["run_date"])
def key_error(orders: Orders) -> DataFrame:
    """Its Python is wrong."""
    return counted(orders.where(F.col("amount") > {}["least"]))


@table(Count, partition="run_date", key=["run_date"])
def failing_udf(orders: Orders) -> DataFrame:
    """Its UDF fails when rows are computed."""
    inverse = F.udf(lambda amount: 1 // 0, "long")
    return counted(orders).withColumn("orders", inverse("orders"))


@table(Count, partition="run_date", key=["run_date"])
def wrong_cast(orders: Orders) -> DataFrame:
    """Rows of the first day cannot be cast."""
    text = F.when(F.dayofmonth("run_date") == 1, "many").otherwise("3")
    return counted(orders).withColumn("orders", text.cast("long"))


@table(Count, partition="run_date", key=["run_date"])
def nothing(orders: Orders) -> DataFrame:
    """It forgets to return its rows."""
    counted(orders)


TABLES = [*ORDERS, unknown_column, key_error, failing_udf, wrong_cast, nothing]
