"""Tables whose functions make other rows of a day within a range, and one whose does not."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from backfill_assets import PREVIOUS_DAY, SELF, Reads, table
from backfill_assets.orders.tables import ORDERS, STAGED


class Spend(pa.DataFrameModel):
    """What a customer spent on a day."""

    run_date: T.DateType = Field(description="Day.")
    customer_id: T.StringType = Field(description="Customer.")
    orders: T.LongType = Field(description="Orders.")
    share: T.DoubleType = Field(description="Something that is not exact.")


Orders = Annotated[DataFrame, Reads(STAGED)]


def spend(orders: DataFrame, day: object) -> DataFrame:
    """The orders and their mean by customer and `day`."""
    return orders.groupBy("customer_id", *([day] if day is not None else [])).agg(
        F.count("*").alias("orders"), F.avg(F.col("amount").cast("double")).alias("share")
    )


@table(Spend, partition="run_date", key=["customer_id"])
def by_day(orders: Orders) -> DataFrame:
    """As it should be."""
    return spend(orders, F.col("for_day").alias("run_date"))


@table(Spend, partition="run_date", key=["customer_id"])
def by_range(orders: Orders) -> DataFrame:
    """It groups without the day: the last of the range has all rows."""
    last = orders.agg(F.max("for_day").alias("run_date"))
    return spend(orders, None).crossJoin(last)


@table(Spend, partition="run_date", key=["customer_id"])
def since_the_day_before(orders: Orders) -> DataFrame:
    """It looks at the row before, whichever day that is of."""
    rows = spend(orders, F.col("for_day").alias("run_date"))
    before = F.lag("orders", 1, 0).over(Window.partitionBy("customer_id").orderBy("run_date"))
    return rows.withColumn("orders", F.col("orders") - before)


@table(Spend, partition="run_date", key=["customer_id"])
def spend_so_far(
    orders: Orders, before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)]
) -> DataFrame:
    """A state that forgets for which day a row counts: the last day has all rows."""
    rows = orders.select("customer_id", "for_day", F.lit(1).alias("orders")).unionByName(
        before.select("customer_id", "for_day", "orders")
    )
    last = rows.agg(F.max("for_day").alias("run_date"))
    sums = rows.groupBy("customer_id").agg(F.sum("orders").cast("long").alias("orders"))
    return sums.withColumn("share", F.lit(0.0)).crossJoin(last)


TABLES = [*ORDERS, spend_so_far, by_day, by_range, since_the_day_before]
