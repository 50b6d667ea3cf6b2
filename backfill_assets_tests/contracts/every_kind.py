"""A deployment that has a table of every kind: the setting `tables` names this module."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from pyspark.sql import DataFrame

from backfill_assets import Reads, last_days, version_of
from backfill_assets_guide.examples.customers import tables as customers
from backfill_assets_guide.examples.customers.features_v2 import features_v2
from backfill_assets_guide.examples.customers.training_v2 import training_daily_v2
from backfill_assets_guide.examples.web_events import TABLES as WEB_EVENTS
from backfill_assets_guide.examples.web_events import VISITS, active_users_7d


@version_of(active_users_7d, 2, retired=date(2024, 3, 1))
def active_users_7d_v2(visits: Annotated[DataFrame, Reads(VISITS.staged, last_days(7))]):
    """The same; nobody builds it from March on."""
    return active_users_7d(visits)


TABLES = [*customers.TABLES, features_v2, training_daily_v2, *WEB_EVENTS, active_users_7d_v2]
