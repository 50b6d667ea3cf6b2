"""All tables with memory, inputs first."""

from __future__ import annotations

from backfill_assets.orders.tables import ORDERS
from backfill_assets_guide.examples.customers import orders
from backfill_assets_guide.examples.customers.changes import CUSTOMER_CHANGES
from backfill_assets_guide.examples.customers.cohorts import cohort_value_30d
from backfill_assets_guide.examples.customers.dimension import dim_customers
from backfill_assets_guide.examples.customers.enrichment import fact_orders_eur
from backfill_assets_guide.examples.customers.features import features
from backfill_assets_guide.examples.customers.labels import labels_daily
from backfill_assets_guide.examples.customers.lifetime_value import customer_lifetime_value
from backfill_assets_guide.examples.customers.markets import revenue_by_market
from backfill_assets_guide.examples.customers.page_views import PAGE_VIEWS, page_views_daily
from backfill_assets_guide.examples.customers.training import training_daily
from backfill_assets_guide.examples.customers.weekly import orders_weekly

TABLES = [
    *ORDERS,
    CUSTOMER_CHANGES,
    dim_customers,
    orders.fact_orders_enriched,
    orders.fact_orders_settled,
    fact_orders_eur,
    customer_lifetime_value,
    cohort_value_30d,
    features,
    labels_daily,
    training_daily,
    orders_weekly,
    revenue_by_market,
    PAGE_VIEWS,
    page_views_daily,
]
