"""A table by two definitions and retired, and one whose columns change: for each kind of commit."""

from __future__ import annotations

from datetime import date

from backfill_assets import table
from backfill_assets.orders.tables import ORDERS
from backfill_assets_tests import (
    migrating_tables,
    migrating_tables_after,
    target_tables,
    target_tables_after,
)
from backfill_assets_tests.target_tables import Score

#: From this day on nobody feeds the scores, in `RETIRED`.
RETIRES = date(2024, 1, 10)

FIRST = [*ORDERS, target_tables.scores, migrating_tables.notes]
#: By other code, and in the next version of the schema.
SECOND = [*ORDERS, target_tables_after.scores, migrating_tables_after.notes]
RETIRED = [
    *ORDERS,
    table(Score, partition="run_date", key=["customer_id"], totals=["score"], retired=RETIRES)(
        target_tables_after.scores.transform
    ),
    migrating_tables_after.notes,
]
