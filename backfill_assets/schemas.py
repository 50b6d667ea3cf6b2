"""The tables of the orders, under the name that they had before `orders` was a package."""

from __future__ import annotations

from backfill_assets.orders.tables import (
    CORRECTIONS,
    CURRENT,
    FACT,
    LATE,
    LATENESS,
    ORDER_LINES,
    ORDERS,
    RAW,
    REJECTED,
    STAGED,
    TABLES,
    DailyOrders,
    OrderLine,
)

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
