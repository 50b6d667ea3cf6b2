"""The orders pipeline: what a line of its source is, and the tables that are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field

from backfill_assets.lateness import Policy
from backfill_assets.reach import SAME_DAY, Known
from backfill_assets.sources import Role, Source
from backfill_assets.tables import Dependency, Inputs, Table, nullable


class OrderLine(pa.DataFrameModel):
    """A version of an order, as a line of the landing has it."""

    order_id: T.StringType = Field(description="The source's order id, verbatim.")
    customer_id: T.StringType = nullable(0.25, 0.9, "The source's customer id; null if unknown.")
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
RAW, REJECTED, STAGED, LATE, LATENESS = ORDER_LINES.tables


class DailyOrders(pa.DataFrameModel):
    """Orders and revenue of every customer on every day."""

    run_date: T.DateType = Field(description="Event day, in the business time zone.")
    customer_id: T.StringType = Field(
        description="Customer, or `unknown` where the source has none."
    )
    orders: T.LongType = Field(ge=1, description="Number of orders.")
    revenue: T.DecimalType(28, 2) = Field(description="Sum of their amounts, exact.")  # type: ignore[valid-type]

    class Config:
        """One row for each day and customer."""

        strict = True
        metadata: ClassVar = {
            "partition": "run_date",
            "key": ["customer_id"],
            "totals": ["orders", "revenue"],
            "merge": True,
        }


class OrderCorrections(pa.DataFrameModel):
    """What is known of each day beyond its facts: current less facts, by customer."""

    run_date: T.DateType = Field(description="The corrected day, in the business time zone.")
    customer_id: T.StringType = Field(
        description="Customer, or `unknown` where the source has none."
    )
    orders: T.LongType = Field(description="Orders to add; negative to take away.")
    revenue: T.DecimalType(28, 2) = Field(description="Revenue to add, exact.")  # type: ignore[valid-type]

    class Config:
        """One row for each day and customer with a difference."""

        strict = True
        metadata: ClassVar = {
            "partition": "run_date",
            "key": ["customer_id"],
            "totals": ["orders", "revenue"],
        }


class DailyOrdersCurrent(pa.DataFrameModel):
    """Orders and revenue of every customer on every day, with everything that is known now."""

    run_date: T.DateType = Field(description="Event day, in the business time zone.")
    customer_id: T.StringType = Field(
        description="Customer, or `unknown` where the source has none."
    )
    orders: T.LongType = Field(ge=1, description="Number of orders.")
    revenue: T.DecimalType(28, 2) = Field(description="Sum of their amounts, exact.")  # type: ignore[valid-type]

    class Config:
        """One row for each day and customer."""

        strict = True
        metadata: ClassVar = {
            "partition": "run_date",
            "key": ["customer_id"],
            "totals": ["orders", "revenue"],
            "merge": True,
        }


def _current(policy: Policy) -> Inputs:
    # As a mapping, its reach would make a launch of one raw day in the UI build every earlier day.
    # The raw log's commits say which of them need it.
    return (Dependency(RAW, Known(), "current_days", launched=policy.reach),)


FACT = Table(
    "fact_daily_orders",
    DailyOrders,
    ("backfill_assets.assets.fact",),
    ("window_days",),
    lambda _: (Dependency(STAGED, SAME_DAY),),
    frozen=True,
)
CURRENT = Table(
    "fact_daily_orders_current",
    DailyOrdersCurrent,
    ("backfill_assets.assets.corrections",),
    ("window_days", "late_lines"),
    _current,
)
CORRECTIONS = Table(
    "fact_order_corrections",
    OrderCorrections,
    ("backfill_assets.assets.corrections",),
    ("window_days", "late_lines"),
    lambda _: (Dependency(FACT, SAME_DAY), Dependency(CURRENT, SAME_DAY)),
)
#: The tables of the orders pipeline, inputs first; and the same by name.
ORDERS = (RAW, REJECTED, STAGED, LATE, FACT, CURRENT, CORRECTIONS, LATENESS)
TABLES: Mapping[str, Table] = {table.name: table for table in ORDERS}
