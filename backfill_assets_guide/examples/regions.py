"""Orders of three regions: each region is loaded, judged, held back and undone apart.

Two tables have days of each region; a third has days of the world, and waits for all regions.
"""

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets import (
    ALL,
    PREVIOUS_DAY,
    SELF,
    Dimension,
    Reads,
    Source,
    conserves_total,
    nullable_column,
    table,
)

REGION = Dimension("region", ["eu", "us", "apac"])


class OrderLine(pa.DataFrameModel):
    """A version of an order, as a region's shop system sends it; ids are those of the region."""

    order_id: T.StringType = Field(description="The order, within its region.")
    customer: T.StringType = nullable_column(0.5, 1.0, "Who ordered, if known.")
    ordered_at: T.TimestampType = Field(description="When it was placed.")
    updated_at: T.TimestampType = Field(description="When this version of it was made.")
    amount: T.DecimalType(18, 2) = Field(description="Its value.")  # type: ignore[valid-type]


#: landing/orders/arrival_date=2024-01-05/region=eu/...
ORDERS = Source(
    "orders",
    OrderLine,
    key=["order_id"],
    event_time="ordered_at",
    version_time="updated_at",
    amount="amount",
    window_days=2,
    dimension=REGION,
)


class RegionOrders(pa.DataFrameModel):
    """The orders of a day of a region."""

    run_date: T.DateType = Field(description="The day.")
    region: T.StringType = Field(description="The region.")
    orders: T.LongType = Field(ge=0, description="Number of orders.")
    revenue: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")  # type: ignore[valid-type]


@table(
    RegionOrders,
    partition=("run_date", "region"),
    key=[],
    totals=["orders", "revenue"],
    checks=[
        conserves_total("orders", None, "orders"),
        conserves_total("orders", "amount", "revenue"),
    ],
)
def region_orders(orders: Annotated[DataFrame, Reads(ORDERS.staged)]) -> DataFrame:
    """Sum the orders of each day; every region is computed from its own orders."""
    return orders.groupBy(F.col("for_day").alias("run_date"), "region").agg(
        F.count(F.lit(1)).alias("orders"),
        F.sum("amount").cast("decimal(28,2)").alias("revenue"),
    )


class CustomerSpend(pa.DataFrameModel):
    """What a customer has spent in a region up to a day."""

    run_date: T.DateType = Field(description="The day.")
    region: T.StringType = Field(description="The region.")
    customer: T.StringType = Field(description="Who.")
    spent: T.DecimalType(28, 2) = Field(description="The sum of all orders so far.")  # type: ignore[valid-type]


@table(
    CustomerSpend,
    partition=("run_date", "region"),
    key=["customer"],
    totals=["spent"],
    checks=[
        conserves_total("orders", "amount", "spent"),
        conserves_total("before", "spent", "spent"),
    ],
)
def customer_spend(
    orders: Annotated[DataFrame, Reads(ORDERS.staged)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame:
    """Add the orders of a day to what was spent by the day before, in the same region."""
    now = orders.select(
        "for_day", "region", F.coalesce("customer", F.lit("unknown")).alias("customer"), "amount"
    )
    earlier = before.select("for_day", "region", "customer", F.col("spent").alias("amount"))
    return (
        now.unionByName(earlier)
        .groupBy(F.col("for_day").alias("run_date"), "region", "customer")
        .agg(F.sum("amount").cast("decimal(28,2)").alias("spent"))
    )


class WorldOrders(pa.DataFrameModel):
    """The orders of a day in all regions."""

    run_date: T.DateType = Field(description="The day.")
    orders: T.LongType = Field(ge=0, description="Number of orders.")
    revenue: T.DecimalType(28, 2) = Field(description="Sum of their amounts.")  # type: ignore[valid-type]


@table(
    WorldOrders,
    partition="run_date",
    key=[],
    totals=["orders", "revenue"],
    checks=[
        conserves_total("regions", "orders", "orders"),
        conserves_total("regions", "revenue", "revenue"),
    ],
)
def world_orders(
    regions: Annotated[DataFrame, Reads(region_orders, parts=ALL)],
) -> DataFrame:
    """Sum the regions; a day is computed when the folders of all of them have come."""
    return regions.groupBy(F.col("for_day").alias("run_date")).agg(
        F.sum("orders").alias("orders"), F.sum("revenue").cast("decimal(28,2)").alias("revenue")
    )


TABLES = [ORDERS, region_orders, customer_spend, world_orders]
