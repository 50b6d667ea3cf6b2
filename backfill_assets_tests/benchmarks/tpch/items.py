"""The tables of the benchmark, as this project declares them: TPC-H's `lineitem` by day of receipt.

A line is landed on the day of its receipt, `l_receiptdate`, and is about the day of its shipment,
`l_shipdate`, 1 to 30 days before; so half of the lines come after a window of 14 days.
"""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import (
    Reads,
    Source,
    conserves_total,
    corrections_table,
    current_table,
    nullable_column,
    table,
)
from backfill_assets_tests.benchmarks.tpch import WINDOW_DAYS

Money = T.DecimalType(15, 2)


class LineItem(pa.DataFrameModel):
    """A line of an order, with the columns of TPC-H 3.0.1, 1.4.1."""

    l_orderkey: T.LongType = Field(description="The order.")
    l_partkey: T.LongType = Field(description="The part.")
    l_suppkey: T.LongType = Field(description="The supplier.")
    l_linenumber: T.LongType = Field(description="The line of the order.")
    l_quantity: Money = Field(ge=0, description="Number of parts.")  # type: ignore[valid-type]
    l_extendedprice: Money = Field(ge=0, description="Their price.")  # type: ignore[valid-type]
    l_discount: Money = Field(ge=0, le=1, description="Share of the price.")  # type: ignore[valid-type]
    l_tax: Money = Field(ge=0, le=1, description="Share of the price.")  # type: ignore[valid-type]
    l_returnflag: T.StringType = Field(description="R, A or N.")
    l_linestatus: T.StringType = Field(description="O or F.")
    l_shipdate: T.DateType = Field(description="The day of the shipment.")
    l_commitdate: T.DateType = Field(description="The day that was promised.")
    l_receiptdate: T.DateType = Field(description="The day of the receipt.")
    l_shipinstruct: T.StringType = Field(description="What the shipper is told.")
    l_shipmode: T.StringType = nullable_column(0.05, 0.5, "How it is shipped.")
    l_comment: T.StringType = Field(description="Text.")


ITEMS = Source(
    "items",
    LineItem,
    key=["l_orderkey", "l_linenumber"],
    event_time="l_shipdate",
    version_time="l_receiptdate",
    amount="l_extendedprice",
    window_days=WINDOW_DAYS,
)


class ModeDay(pa.DataFrameModel):
    """What was shipped in a mode on a day."""

    run_date: T.DateType = Field(description="The day of the shipment.")
    l_shipmode: T.StringType = Field(description="The mode, or `unknown`.")
    items: T.LongType = Field(ge=0, description="Number of lines.")
    quantity: T.DecimalType(28, 2) = Field(description="Number of parts.")  # type: ignore[valid-type]
    revenue: T.DecimalType(28, 4) = Field(description="Prices less discounts.")  # type: ignore[valid-type]


@table(
    ModeDay,
    partition="run_date",
    key=["l_shipmode"],
    totals=["items", "quantity", "revenue"],
    checks=[
        conserves_total("items", None, "items"),
        conserves_total("items", "l_quantity", "quantity"),
    ],
    frozen=True,
)
def mode_days(items: Annotated[DataFrame, Reads(ITEMS.staged)]) -> DataFrame:
    """Sum the lines of each day and mode."""
    revenue = F.col("l_extendedprice") * (1 - F.col("l_discount"))
    return items.groupBy(
        F.col("for_day").alias("run_date"),
        F.coalesce("l_shipmode", F.lit("unknown")).alias("l_shipmode"),
    ).agg(
        F.count(F.lit(1)).alias("items"),
        F.sum("l_quantity").cast("decimal(28,2)").alias("quantity"),
        F.sum(revenue).cast("decimal(28,4)").alias("revenue"),
    )


mode_days_current = current_table(mode_days)
mode_days_corrections = corrections_table(mode_days, mode_days_current)
TABLES = [ITEMS, mode_days, mode_days_current, mode_days_corrections]
