"""The tables of the orders, under the name that they had before `orders` was a package."""

from __future__ import annotations

from backfill_assets.orders.facts import CORRECTIONS, CURRENT, FACT, DailyOrders
from backfill_assets.orders.lines import ORDER_LINES, OrderLine
from backfill_assets.orders.tables import LATE, LATENESS, ORDERS, RAW, REJECTED, STAGED, TABLES

__all__ = [
    "CORRECTIONS",
    "CURRENT",
    "FACT",
    "LATE",
    "LATENESS",
    "ORDERS",
    "ORDER_LINES",
    "RAW",
    "REJECTED",
    "STAGED",
    "TABLES",
    "DailyOrders",
    "OrderLine",
]
