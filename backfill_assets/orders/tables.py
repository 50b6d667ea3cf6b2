"""The tables of the orders pipeline."""

from __future__ import annotations

from collections.abc import Mapping

from backfill_assets.orders.facts import CORRECTIONS, CURRENT, FACT, DailyOrders
from backfill_assets.orders.lines import ORDER_LINES, OrderLine
from backfill_assets.tables.table import Table

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

RAW, REJECTED, STAGED, LATE, LATENESS = ORDER_LINES.tables
#: All of them, inputs first; and the same by name.
ORDERS = (RAW, REJECTED, STAGED, LATE, FACT, CURRENT, CORRECTIONS, LATENESS)
TABLES: Mapping[str, Table] = {table.name: table for table in ORDERS}
