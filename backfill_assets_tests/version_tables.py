"""The first version of a table: see `version_tables_second`."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import Reads
from backfill_assets.orders.tables import RAW, STAGED


class Spent(pa.DataFrameModel):
    """What each customer spent on a day."""

    run_date: T.DateType = Field(description="The day.")
    customer_id: T.StringType = Field(description="The customer.")
    orders: T.LongType = Field(ge=0, description="Number of orders.")


def spent(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    """The orders of each customer."""
    group_columns = [F.col("for_day").alias("run_date"), "customer_id"]
    return orders.groupBy(*group_columns).agg(F.count("*").alias("orders"))


def logged(lines: Annotated[DataFrame, Reads(RAW)]) -> DataFrame:
    """The lines of each customer, by log day."""
    return spent(lines)
