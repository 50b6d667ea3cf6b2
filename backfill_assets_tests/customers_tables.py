"""The tables with memory, some with a shorter reach: a history of days decides them all."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from backfill_assets import conserves_total, table
from backfill_assets.orders.tables import ORDERS
from backfill_assets.tables.derived import Derived
from backfill_assets_guide.examples.customers.changes import CUSTOMER_CHANGES
from backfill_assets_guide.examples.customers.cohorts import CohortValue
from backfill_assets_guide.examples.customers.cohorts import cohort_value_30d as _cohorts
from backfill_assets_guide.examples.customers.dimension import dim_customers
from backfill_assets_guide.examples.customers.enrichment import fact_orders_eur
from backfill_assets_guide.examples.customers.features import features
from backfill_assets_guide.examples.customers.labels import Labels
from backfill_assets_guide.examples.customers.labels import labels_daily as _labels
from backfill_assets_guide.examples.customers.lifetime_value import customer_lifetime_value
from backfill_assets_guide.examples.customers.orders import SettledOrder, fact_orders_enriched
from backfill_assets_guide.examples.customers.orders import fact_orders_settled as _settled
from backfill_assets_guide.examples.customers.training import Training
from backfill_assets_guide.examples.customers.training import training_daily as _training

#: In place of 30, 7 and 30.
LABEL_DAYS, SETTLES_AFTER, COHORT_DAYS = 3, 2, 2


def replace_globals(derived: Derived, **names: Any) -> FunctionType:
    """The function of a table, with other values of names of its module."""
    function = derived.transform
    assert isinstance(function, FunctionType)
    assert function.__globals__.keys() >= names.keys()
    other = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
    other.__annotations__, other.__doc__ = function.__annotations__, function.__doc__
    other.__module__, other.__qualname__ = function.__module__, function.__qualname__
    return other


labels_daily = table(
    Labels,
    partition="dt",
    key=["user_id"],
    rules=_labels.rules,
    counts=_labels.counts,
    group="training",
)(replace_globals(_labels, DAYS=LABEL_DAYS))
training_daily = table(
    Training,
    partition="dt",
    key=["user_id"],
    totals=["orders_30d", "revenue_30d"],
    rules=_training.rules,
    group="training",
)(replace_globals(_training, labels_daily=labels_daily))
fact_orders_settled = table(
    SettledOrder,
    partition="event_date",
    key=["order_id"],
    totals=["amount"],
    rules=_settled.rules,
    checks=[conserves_total("orders", "amount", "amount")],
    group="customers",
)(replace_globals(_settled, SETTLES_AFTER=SETTLES_AFTER))
cohort_value_30d = table(
    CohortValue,
    partition="first_order",
    key=["customer_id"],
    totals=["orders", "revenue"],
    counts=_cohorts.counts,
    group="customers",
)(replace_globals(_cohorts, DAYS=COHORT_DAYS))

TABLES = [
    *ORDERS,
    CUSTOMER_CHANGES,
    dim_customers,
    fact_orders_enriched,
    fact_orders_settled,
    fact_orders_eur,
    customer_lifetime_value,
    cohort_value_30d,
    features,
    labels_daily,
    training_daily,
]
