"""Tables for plans: of their own past, by week, of skewed inputs, retired, and with a service."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pyspark.sql import DataFrame

from backfill_assets import (
    MONTH,
    PREVIOUS_DAY,
    SELF,
    WEEK,
    LookupAnswers,
    Reads,
    Source,
    following_days,
    last_days,
    previous_partitions,
    table,
    version_of,
)
from backfill_assets.orders.tables import FACT, ORDERS, STAGED, DailyOrders, OrderLine
from backfill_assets_guide.examples.customers.enrichment import RATES, OrderInEuros, rates_needed
from backfill_assets_guide.examples.web_events import VISITS
from backfill_assets_tests.helpers.pipeline import FACT_OPTIONS
from backfill_assets_tests.skewed_tables import order_counts, taken


@table(DailyOrders, **FACT_OPTIONS)
def balance(
    orders: Annotated[DataFrame, Reads(STAGED)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame: ...


@table(DailyOrders, **FACT_OPTIONS)
def after_balance(of: Annotated[DataFrame, Reads(balance)]) -> DataFrame: ...


@table(DailyOrders, **FACT_OPTIONS)
def compared(
    facts: Annotated[DataFrame, Reads(FACT)],
    of: Annotated[DataFrame, Reads(balance, PREVIOUS_DAY)],
) -> DataFrame: ...


@table(DailyOrders, **FACT_OPTIONS)
def weekly(of: Annotated[DataFrame, Reads(FACT, WEEK)]) -> DataFrame: ...


@table(OrderInEuros, partition="run_date", key=["order_id"], totals=["amount", "amount_eur"])
def in_euros(
    orders: Annotated[DataFrame, Reads(STAGED)],
    rates: Annotated[DataFrame, LookupAnswers(RATES, of=rates_needed)],
) -> DataFrame: ...


@table(OrderInEuros, partition="run_date", key=["order_id"], totals=["amount", "amount_eur"])
def two_days_in_euros(
    orders: Annotated[DataFrame, Reads(STAGED, last_days(2))],
    facts: Annotated[DataFrame, Reads(FACT)],
    rates: Annotated[DataFrame, LookupAnswers(RATES, of=rates_needed)],
) -> DataFrame: ...


@version_of(taken, 2, retired=date(2024, 3, 1))
def taken_retired(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame: ...


#: Their orders and customers are watched; each order has a customer or none.
WATCHED = Source(
    "orders",
    OrderLine,
    skew={"order_id": 0.2, "customer_id": 0.5},
    key=["order_id"],
    event_time="order_ts",
    version_time="ingestion_ts",
)
#: Sources of which only the last has watched columns.
LANDED = [VISITS, WATCHED]

TABLES = [
    *ORDERS,
    balance,
    after_balance,
    compared,
    weekly,
    in_euros,
    two_days_in_euros,
    taken,
    order_counts,
    taken_retired,
]


@table(DailyOrders, **FACT_OPTIONS)
def monthly(days: Annotated[DataFrame, Reads(balance, MONTH)]) -> DataFrame: ...


@table(DailyOrders, **FACT_OPTIONS)
def two_weeks(
    weeks: Annotated[DataFrame, Reads(weekly, previous_partitions(1, WEEK))],
) -> DataFrame: ...


@table(DailyOrders, **FACT_OPTIONS)
def settled(orders: Annotated[DataFrame, Reads(STAGED, following_days(2))]) -> DataFrame: ...


@table(DailyOrders, **FACT_OPTIONS)
def balance_of_settled(
    orders: Annotated[DataFrame, Reads(settled)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame: ...


#: Each kind of reach, grain and state once.
ALL_KINDS = [*TABLES, monthly, two_weeks, settled, balance_of_settled]
