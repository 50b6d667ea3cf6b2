"""Tables of every kind and of the examples in one deployment, inputs first."""

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
    CUSTOMER_CHANGES,
    *MADE,
    features_v2,
    orders_weekly,
    revenue_by_market,
    PAGE_VIEWS,
    page_views_daily,
    VISITS,
    active_users_7d,
]
#: The tables that all sources have alike; those of the orders stand for them.
ALIKE = {
    CUSTOMER_CHANGES.staged.name,
    *(s.late.name for s in (CUSTOMER_CHANGES, PAGE_VIEWS, VISITS)),
    *(s.lateness.name for s in (CUSTOMER_CHANGES, PAGE_VIEWS, VISITS)),
}
