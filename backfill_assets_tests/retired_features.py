"""Two versions of the features, of which the first is retired: its reader is gone."""

from __future__ import annotations

from datetime import date

from backfill_assets import conserves_total, table, version_of
from backfill_assets.orders.tables import ORDERS
from backfill_assets_guide.examples.customers import features_v2 as second
from backfill_assets_guide.examples.customers import training_v2
from backfill_assets_guide.examples.customers.features import Features
from backfill_assets_guide.examples.customers.features import features as _features
from backfill_assets_guide.examples.customers.labels import labels_daily
from backfill_assets_guide.examples.customers.training import training_daily
from backfill_assets_tests.customers_tables import replace_globals

features = table(
    Features,
    partition="event_date",
    key=["user_id"],
    totals=["orders_30d", "revenue_30d"],
    rules=_features.rules,
    drift=_features.drift,
    merge=True,
    checks=[
        conserves_total("orders", None, "orders_30d"),
        conserves_total("orders", "amount", "revenue_30d"),
    ],
    group="training",
    retired=date(2024, 6, 1),
)(_features.transform)
features_v2 = version_of(features, 2)(second.features_v2.transform)
training_daily_v2 = version_of(training_daily, 2)(
    replace_globals(training_v2.training_daily_v2, features_v2=features_v2)
)

TABLES = [*ORDERS, features, features_v2, labels_daily, training_daily_v2]
