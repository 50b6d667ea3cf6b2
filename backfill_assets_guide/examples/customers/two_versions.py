"""Features, labels and training sets, with two versions of the features side by side."""

from __future__ import annotations

from backfill_assets.orders.tables import ORDERS
from backfill_assets_guide.examples.customers.features import features
from backfill_assets_guide.examples.customers.features_v2 import features_v2
from backfill_assets_guide.examples.customers.labels import labels_daily
from backfill_assets_guide.examples.customers.training import training_daily
from backfill_assets_guide.examples.customers.training_v2 import training_daily_v2

TABLES = [*ORDERS, features, features_v2, labels_daily, training_daily, training_daily_v2]
