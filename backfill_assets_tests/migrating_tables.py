"""A table whose columns change: see `migrating_tables_after`."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads, nullable_column, table
from backfill_assets.orders.tables import ORDERS, STAGED


class Notes(pa.DataFrameModel):
    """Orders of each customer on a day."""

    run_date: T.DateType = Field(description="The day.")
    customer_id: T.StringType = Field(description="The customer.")
    orders: T.IntegerType = Field(ge=1, description="Their orders.")
    note: T.StringType = nullable_column(1.0, 1.0, "A note.")
    share: T.DoubleType = Field(description="A share.")


def counted(orders: DataFrame) -> DataFrame:
    """The orders of each customer on each day."""
    day = F.col("for_day").alias("run_date")
    return orders.groupBy(day, "customer_id").agg(F.count("*").alias("orders"))


@table(Notes, partition="run_date", key=["customer_id"], totals=["orders"])
def notes(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    return counted(orders).select(
        "run_date",
        "customer_id",
        F.col("orders").cast("int").alias("orders"),
        F.concat(F.lit("note of "), "customer_id").alias("note"),
        F.lit(0.5).alias("share"),
    )


TABLES = [*ORDERS, notes]
