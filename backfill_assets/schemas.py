"""The tables of the orders pipeline: their pandera models, and what each is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field

from backfill_assets.lateness import Policy
from backfill_assets.reach import SAME_DAY, Known, last_days
from backfill_assets.tables import Dependency, Inputs, Table, nullable


class RawOrders(pa.DataFrameModel):
    """The immutable log of order lines as they arrived, by log day."""

    log_date: T.DateType = Field(
        description="Log day: the day of the arrival folder, or the next for an early line."
    )
    arrival_date: T.DateType = Field(description="Day of the arrival folder, from its path.")
    order_id: T.StringType = Field(description="The source's order id, verbatim.")
    customer_id: T.StringType = nullable(0.25, 0.9, "The source's customer id; null if unknown.")
    order_ts: T.TimestampType = Field(description="When the order happened (UTC).")
    amount: T.DecimalType(18, 2) = Field(  # type: ignore[valid-type]
        description="Money, exact to two decimals; negative for a refund."
    )
    ingestion_ts: T.TimestampType = Field(description="When the source took this version (UTC).")
    source_file: T.StringType = Field(description="Landing file, relative to the orders folder.")

    class Config:
        """A log has no key: the same line may be sent twice."""

        strict = True
        metadata: ClassVar = {
            "partition": "log_date",
            "totals": ["amount"],
            "notices": {"rejected_lines": "Few of the day's lines are rejected."},
        }


class RejectedOrders(pa.DataFrameModel):
    """Landed lines that could not be read as an order, kept as text with the reason."""

    arrival_date: T.DateType = Field(description="Day of the arrival folder, from its path.")
    source_file: T.StringType = Field(description="Landing file, relative to the orders folder.")
    text: T.StringType = Field(description="The line as it arrived; a Parquet row as JSON.")
    reason: T.StringType = Field(description="Why it is not an order.")

    class Config:
        """Rejected lines have no key that could be relied on."""

        strict = True
        metadata: ClassVar = {"partition": "arrival_date"}


class StagedOrders(pa.DataFrameModel):
    """Each order once on its event day, in the greatest version that arrived in time."""

    event_date: T.DateType = Field(description="Day the order happened, in the business zone.")
    order_id: T.StringType = Field(description="The source's order id, verbatim.")
    customer_id: T.StringType = nullable(0.25, 0.9, "The source's customer id; null if unknown.")
    order_ts: T.TimestampType = Field(description="When the order happened (UTC).")
    amount: T.DecimalType(18, 2) = Field(  # type: ignore[valid-type]
        description="Money, exact to two decimals; negative for a refund."
    )
    ingestion_ts: T.TimestampType = Field(description="When the source took this version (UTC).")
    log_date: T.DateType = Field(description="Log day of the version that won.")

    class Config:
        """An order id counts once a day."""

        strict = True
        metadata: ClassVar = {
            "partition": "event_date",
            "key": ["order_id"],
            "totals": ["amount"],
            "merge": True,
        }


class LateOrders(pa.DataFrameModel):
    """Raw lines that were logged after the reprocessing window of their event day had closed."""

    log_date: T.DateType = Field(description="Log day.")
    event_date: T.DateType = Field(description="The closed day that the line tells of.")
    arrival_date: T.DateType = Field(description="Day of the arrival folder, from its path.")
    order_id: T.StringType = Field(description="The source's order id, verbatim.")
    customer_id: T.StringType = nullable(1.0, 1.0, "The source's customer id; null if unknown.")
    order_ts: T.TimestampType = Field(description="When the order happened (UTC).")
    amount: T.DecimalType(18, 2) = Field(  # type: ignore[valid-type]
        description="Money, exact to two decimals; negative for a refund."
    )
    ingestion_ts: T.TimestampType = Field(description="When the source took this version (UTC).")
    source_file: T.StringType = Field(description="Landing file, relative to the orders folder.")

    class Config:
        """A log has no key: the same line may be sent twice."""

        strict = True
        metadata: ClassVar = {
            "partition": "log_date",
            "totals": ["amount"],
            "notices": {"late_lines": "No line came after the window of its day had closed."},
        }


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


class ArrivalLateness(pa.DataFrameModel):
    """How late the lines of each log day were; one row a day."""

    log_date: T.DateType = Field(description="Log day.")
    lines: T.LongType = Field(ge=0, description="Order lines logged on this day.")
    late_lines: T.LongType = Field(
        ge=0, description="Those of them that tell of an earlier day (delay of a day or more)."
    )
    late_amount: T.DecimalType(28, 2) = Field(description="Sum of the late lines' amounts.")  # type: ignore[valid-type]
    beyond_lines: T.LongType = Field(ge=0, description="Late lines beyond the window.")
    beyond_amount: T.DecimalType(28, 2) = Field(  # type: ignore[valid-type]
        description="Sum of the amounts of the lines beyond the window."
    )
    superseded_lines: T.LongType = Field(
        ge=0,
        description="Versions that this day's lines made obsolete: lines of an order that was "
        "known already, by this day or the W days before it.",
    )
    rejected_lines: T.LongType = Field(
        ge=0, description="Lines of this arrival day that could not be read."
    )
    delay_days_p50: T.LongType = nullable(1.0, 1.0, "Median delay of the late lines, in days.")
    delay_days_p95: T.LongType = nullable(1.0, 1.0, "95th percentile of it, in days.")
    delay_days_max: T.LongType = nullable(1.0, 1.0, "Longest delay of the late lines, in days.")
    delay_minutes_p50: T.LongType = nullable(
        1.0, 1.0, "Median of version time less order time of the late lines, in minutes."
    )
    delay_minutes_p95: T.LongType = nullable(1.0, 1.0, "95th percentile of it, in minutes.")
    delay_minutes_max: T.LongType = nullable(1.0, 1.0, "Longest of it, in minutes.")
    delays: T.ArrayType(T.LongType()) = Field(  # type: ignore[valid-type]
        description="Days between order and log day that occur among the lines, ascending."
    )
    lines_by_delay: T.ArrayType(T.LongType()) = Field(  # type: ignore[valid-type]
        description="For each of these delays, how many lines."
    )
    amount_by_delay: T.ArrayType(T.DecimalType(28, 2)) = Field(  # type: ignore[valid-type]
        description="For each of these delays, the sum of the lines' amounts without their signs."
    )

    class Config:
        """One row a day."""

        strict = True
        metadata: ClassVar = {"partition": "log_date", "key": ["log_date"]}


def _staged(policy: Policy) -> Inputs:
    return (Dependency(RAW, policy.reach, "event_days" if policy.only_touched else ""),)


def _current(policy: Policy) -> Inputs:
    # As a mapping, its reach would make a launch of one raw day in the UI build every earlier day.
    # The raw log's commits say which of them need it.
    return (Dependency(RAW, Known(), "current_days", launched=policy.reach),)


def _lateness(policy: Policy) -> Inputs:
    # With an offset in the mapping, the UI would ask for more days than the user did.
    window = last_days(policy.window_days + 1)
    return (
        Dependency(REJECTED, SAME_DAY),
        Dependency(RAW, window, "log_days", launched=SAME_DAY),
    )


_MADE_IN = "backfill_assets.assets"
RAW = Table("raw_orders", RawOrders, f"{_MADE_IN}.raw")
REJECTED = Table("raw_orders_rejected", RejectedOrders, f"{_MADE_IN}.raw")
STAGED = Table("stg_orders", StagedOrders, f"{_MADE_IN}.staging", ("window_days",), _staged)
LATE = Table(
    "late_orders",
    LateOrders,
    f"{_MADE_IN}.staging",
    ("window_days", "late_lines"),
    lambda _: (Dependency(RAW, SAME_DAY),),
)
FACT = Table(
    "fact_daily_orders",
    DailyOrders,
    f"{_MADE_IN}.fact",
    ("window_days",),
    lambda _: (Dependency(STAGED, SAME_DAY),),
    frozen=True,
)
CURRENT = Table(
    "fact_daily_orders_current",
    DailyOrdersCurrent,
    f"{_MADE_IN}.corrections",
    ("window_days", "late_lines"),
    _current,
)
CORRECTIONS = Table(
    "fact_order_corrections",
    OrderCorrections,
    f"{_MADE_IN}.corrections",
    ("window_days", "late_lines"),
    lambda _: (Dependency(FACT, SAME_DAY), Dependency(CURRENT, SAME_DAY)),
)
LATENESS = Table(
    "arrival_lateness", ArrivalLateness, f"{_MADE_IN}.lateness", ("window_days",), _lateness
)
#: The tables of the orders pipeline, inputs first; and the same by name.
ORDERS = (RAW, REJECTED, STAGED, LATE, FACT, CURRENT, CORRECTIONS, LATENESS)
TABLES: Mapping[str, Table] = {table.name: table for table in ORDERS}
