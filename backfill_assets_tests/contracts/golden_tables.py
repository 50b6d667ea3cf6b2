"""Tables of every kind and of the examples in one deployment, inputs first.

Late lines and lateness, which all sources have alike, are there for the orders alone.
"""

from __future__ import annotations

from backfill_assets_guide.examples.customers.changes import CUSTOMER_CHANGES
from backfill_assets_guide.examples.customers.features_v2 import features_v2
from backfill_assets_guide.examples.customers.markets import revenue_by_market
from backfill_assets_guide.examples.customers.page_views import PAGE_VIEWS, page_views_daily
from backfill_assets_guide.examples.customers.weekly import orders_weekly
from backfill_assets_guide.examples.web_events import VISITS, active_users_7d
from backfill_assets_tests import customers_tables

#: With reaches that fit into a few days, see `customers_tables`.
CUSTOMERS = [table for table in customers_tables.TABLES if table is not CUSTOMER_CHANGES]
ORDERS, MADE = CUSTOMERS[:8], CUSTOMERS[8:]

TABLES = [
    *ORDERS,
    CUSTOMER_CHANGES.raw,
    CUSTOMER_CHANGES.rejected,
    *MADE,
    features_v2,
    orders_weekly,
    revenue_by_market,
    PAGE_VIEWS.raw,
    PAGE_VIEWS.rejected,
    PAGE_VIEWS.staged,
    page_views_daily,
    VISITS.raw,
    VISITS.rejected,
    VISITS.staged,
    active_users_7d,
]
