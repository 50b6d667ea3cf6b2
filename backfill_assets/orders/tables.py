"""The tables of the orders pipeline."""

from __future__ import annotations

from collections.abc import Mapping

from backfill_assets.orders.facts import CORRECTIONS, CURRENT, FACT
from backfill_assets.orders.lines import ORDER_LINES
from backfill_assets.tables.table import Table

RAW, REJECTED, STAGED, LATE, LATENESS = ORDER_LINES.tables
#: All of them, inputs first; and the same by name.
ORDERS = (RAW, REJECTED, STAGED, LATE, FACT, CURRENT, CORRECTIONS, LATENESS)
TABLES: Mapping[str, Table] = {table.name: table for table in ORDERS}
