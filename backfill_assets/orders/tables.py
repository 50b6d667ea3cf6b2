"""The default tables: orders as they arrive, their facts by day, and what follows from them.

What is made of the lines stands elsewhere: code that changes there leaves the raw log as it is.
"""

from collections.abc import Mapping
from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.tables.columns import nullable_column
from backfill_assets.tables.derived import (
    FOR_DAY,
    Reads,
    conserves_total,
    corrections_table,
    current_table,
)
from backfill_assets.tables.sources import Role, Source
from backfill_assets.tables.table import Table
from backfill_assets.tables.table_function import table


class OrderLine(pa.DataFrameModel):
    """A version of an order, as a line of the landing has it."""

    order_id: T.StringType = Field(description="The source's order id, verbatim.")
    customer_id: T.StringType = nullable_column(
        0.25, 0.9, "The source's customer id; null if unknown."
    )
    order_ts: T.TimestampType = Field(description="When the order happened (UTC).")
    amount: T.DecimalType(18, 2) = Field(  # type: ignore[valid-type]
        description="Money, exact to two decimals; negative for a refund."
    )
    ingestion_ts: T.TimestampType = Field(description="When the source took this version (UTC).")


ORDER_LINES = Source(
    "orders",
    OrderLine,
    key=["order_id"],
    event_time="order_ts",
    version_time="ingestion_ts",
    amount="amount",
    named={Role.LATENESS: "arrival_lateness", Role.PAGE: "lateness_dashboard"},
)


_STAGED = ORDER_LINES.staged
UNKNOWN_CUSTOMER = "unknown"


class DailyOrders(pa.DataFrameModel):
    """Orders and revenue of every customer on every day."""

    run_date: T.DateType = Field(description="Event day, in the business time zone.")
    customer_id: T.StringType = Field(
        description="Customer, or `unknown` where the source has none."
    )
    orders: T.LongType = Field(ge=1, description="Number of orders.")
    revenue: T.DecimalType(28, 2) = Field(description="Sum of their amounts, exact.")  # type: ignore[valid-type]


@table(
    DailyOrders,
    partition="run_date",
    key=["customer_id"],
    totals=["orders", "revenue"],
    merge=True,
    checks=[
        conserves_total("stg_orders", None, "orders"),
        conserves_total("stg_orders", "amount", "revenue"),
    ],
    group="fact",
    frozen=True,
    lineage={
        "run_date": [(_STAGED.name, "event_date")],
        "customer_id": [(_STAGED.name, "customer_id")],
        "orders": [(_STAGED.name, "order_id")],
        "revenue": [(_STAGED.name, "amount")],
    },
)
def fact_daily_orders(stg_orders: Annotated[DataFrame, Reads(_STAGED)]) -> DataFrame:
    """Orders and revenue by day and customer; without a customer they count under `unknown`."""
    return stg_orders.groupBy(
        F.col(FOR_DAY).alias("run_date"),
        F.coalesce("customer_id", F.lit(UNKNOWN_CUSTOMER)).alias("customer_id"),
    ).agg(F.count(F.lit(1)).alias("orders"), F.sum("amount").alias("revenue"))


FACT = fact_daily_orders
CURRENT = current_table(FACT)
CORRECTIONS = corrections_table(FACT, CURRENT, name="fact_order_corrections")


RAW, REJECTED, STAGED, LATE, LATENESS = ORDER_LINES.tables
#: All of them, inputs first; and the same by name.
ORDERS = (RAW, REJECTED, STAGED, LATE, FACT, CURRENT, CORRECTIONS, LATENESS)
TABLES: Mapping[str, Table] = {table.name: table for table in ORDERS}
