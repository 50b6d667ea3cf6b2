"""The tables of the orders, with features, labels and training sets."""

from backfill_assets.orders.tables import ORDERS
from backfill_assets_guide.examples.customers.features import features
from backfill_assets_guide.examples.customers.labels import labels_daily
from backfill_assets_guide.examples.customers.training import training_daily

TABLES = [*ORDERS, features, labels_daily, training_daily]
