"""Tables of each kind, and of the examples each that reads its inputs in a way of its own.

Late lines, lateness, corrections and the rejected lines of orders are compared with the orders in
another time zone.
"""

from __future__ import annotations

from backfill_assets.orders.tables import CURRENT, FACT, ORDER_LINES
from backfill_assets_guide.examples.customers.changes import CUSTOMER_CHANGES
from backfill_assets_guide.examples.customers.dimension import dim_customers
from backfill_assets_guide.examples.customers.enrichment import fact_orders_eur
from backfill_assets_guide.examples.customers.features import features
from backfill_assets_guide.examples.customers.lifetime_value import customer_lifetime_value
from backfill_assets_guide.examples.customers.markets import revenue_by_market
from backfill_assets_guide.examples.customers.orders import fact_orders_enriched
from backfill_assets_guide.examples.customers.page_views import PAGE_VIEWS
from backfill_assets_guide.examples.customers.weekly import orders_weekly
from backfill_assets_guide.examples.web_events import VISITS, active_users_7d
from backfill_assets_tests.customers_tables import fact_orders_settled, labels_daily

TABLES = [
    ORDER_LINES,
    FACT,
    CURRENT,
    CUSTOMER_CHANGES,
    dim_customers,
    fact_orders_enriched,
    fact_orders_settled,
    fact_orders_eur,
    customer_lifetime_value,
    features,
    labels_daily,
    orders_weekly,
    revenue_by_market,
    PAGE_VIEWS,
    VISITS,
    active_users_7d,
]
#: The tables that all sources have alike. The rejected lines of visits break rules of their own.
ALIKE = {
    CUSTOMER_CHANGES.staged.name,
    *(s.rejected.name for s in (ORDER_LINES, CUSTOMER_CHANGES, PAGE_VIEWS)),
    *(s.late.name for s in (ORDER_LINES, CUSTOMER_CHANGES, PAGE_VIEWS, VISITS)),
    *(s.lateness.name for s in (ORDER_LINES, CUSTOMER_CHANGES, PAGE_VIEWS, VISITS)),
}
