"""Orders, each with the customer as of the order's time."""

from __future__ import annotations

from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets import (
    Reads,
    as_of_join,
    conserves_total,
    following_days,
    no_leaks,
    nullable_column,
    table,
)
from backfill_assets.orders.tables import STAGED
from backfill_assets_guide.examples.customers.dimension import dim_customers

#: So many days after an order, what is known of its customer is taken as settled.
SETTLES_AFTER = 7
_LOGGED = "logged_on IS NULL OR logged_on <="
_CARRIES = ["change_id", "is_deleted", "email_status", "segment", "country"]


class EnrichedOrder(pa.DataFrameModel):
    """An order with its customer as of the order's time, as far as the log knew it then."""

    event_date: T.DateType = Field(description="Day of the order, in the business time zone.")
    order_id: T.StringType = Field(description="The order.")
    customer_id: T.StringType = nullable_column(0.25, 0.9, "The customer; null if unknown.")
    order_ts: T.TimestampType = Field(description="When the order happened (UTC).")
    amount: T.DecimalType(18, 2) = Field(description="Money, exact.")  # type: ignore[valid-type]
    email_status: T.StringType = nullable_column(1.0, 1.0, "Of the customer; null if not known.")
    segment: T.StringType = nullable_column(1.0, 1.0, "Of the customer; null if not known.")
    country: T.StringType = nullable_column(1.0, 1.0, "Of the customer; null if not known.")
    is_deleted: T.BooleanType = nullable_column(1.0, 1.0, "Whether the customer had been deleted.")
    change_id: T.StringType = nullable_column(1.0, 1.0, "The change that made the customer so.")
    valid_from: T.TimestampType = nullable_column(1.0, 1.0, "Since when the customer was so (UTC).")
    known_at: T.TimestampType = nullable_column(1.0, 1.0, "Since when that was known (UTC).")
    logged_on: T.DateType = nullable_column(1.0, 1.0, "Log day on which it came.")


class SettledOrder(EnrichedOrder):
    """An order with its customer as of the order's time, as far as that is known days later."""

    event_date: T.DateType = Field(description="Day of the order, in the business time zone.")


def enrich_orders(orders: DataFrame, customers: DataFrame, cutoff: str | Column) -> DataFrame:
    """Orders, each with the version of its customer at its time that was known by the cutoff."""
    version_columns = ["valid_from", "known_at", "logged_on"]
    return as_of_join(
        orders.select("for_day", "order_id", "customer_id", "order_ts", "amount"),
        customers.select("for_day", "customer_id", *_CARRIES, *version_columns),
        key=["for_day", "customer_id"],
        at="order_ts",
        valid_from="valid_from",
        known="known_at",
        cutoff=cutoff,
    ).withColumnRenamed("for_day", "event_date")


@table(
    EnrichedOrder,
    partition="event_date",
    key=["order_id"],
    totals=["amount"],
    rules=no_leaks("order_ts", carries=_CARRIES, began="valid_from", known="known_at")
    | {"logged_by_the_day": (f"{_LOGGED} event_date", "The log knew it by that day.")},
    checks=[conserves_total("orders", "amount", "amount")],
    group="customers",
)
def fact_orders_enriched(
    orders: Annotated[DataFrame, Reads(STAGED)],
    customers: Annotated[DataFrame, Reads(dim_customers)],
) -> DataFrame:
    """Orders with what was known of their customers at the time of the order."""
    return enrich_orders(orders, customers, cutoff="order_ts")


@table(
    SettledOrder,
    partition="event_date",
    key=["order_id"],
    totals=["amount"],
    rules={
        "began_by_order": (
            "valid_from IS NULL OR valid_from <= order_ts",
            "What the row carries began no later than the order.",
        ),
        "logged_in_time": (
            f"{_LOGGED} date_add(event_date, {SETTLES_AFTER})",
            f"The log knew it {SETTLES_AFTER} days after the order.",
        ),
    },
    checks=[conserves_total("orders", "amount", "amount")],
    group="customers",
)
def fact_orders_settled(
    orders: Annotated[DataFrame, Reads(STAGED)],
    customers: Annotated[DataFrame, Reads(dim_customers, following_days(SETTLES_AFTER))],
) -> DataFrame:
    """Orders with what is known of their customers at the time of the order, some days later."""
    newest = customers.groupBy("for_day").agg(F.max("log_date").alias("log_date"))
    known = customers.join(F.broadcast(newest), ["for_day", "log_date"])
    settled = F.date_add("for_day", SETTLES_AFTER + 1).cast("timestamp")
    return enrich_orders(orders, known, cutoff=settled)
