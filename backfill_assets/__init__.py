"""What a project imports to declare tables of its own; everything else may change."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from backfill_assets.spark.processes import choose_pyspark_api, tune_gc

if TYPE_CHECKING:
    from backfill_assets.calendar.reach import (
        PREVIOUS_DAY,
        SAME_DAY,
        WEEK,
        following_days,
        last_days,
    )
    from backfill_assets.component import BackfillAssets
    from backfill_assets.definitions import build_defs, delta_io_manager
    from backfill_assets.orders.tables import CURRENT, FACT, LATE, ORDERS, RAW, REJECTED, STAGED
    from backfill_assets.settings import load_settings
    from backfill_assets.tables.columns import added, json_text, nullable
    from backfill_assets.tables.current import corrections, current
    from backfill_assets.tables.derived import SELF, Published, Reads, conserves
    from backfill_assets.tables.rules import forbids, no_leaks
    from backfill_assets.tables.sources import Source
    from backfill_assets.tables.table_function import table, version_of
    from backfill_assets.tables.unpartitioned import Answers, Lookup, Quota, Unpartitioned
    from backfill_assets.transforms.point_in_time import History, as_of, spread_join

#: By name, the module that has it. Nothing is imported before it is asked for: the package's own
#: modules are imported by way of this one, and some of them need no Spark.
_MODULES = {
    "BackfillAssets": "component",
    "build_defs": "definitions",
    "delta_io_manager": "definitions",
    "Published": "tables.derived",
    "Reads": "tables.derived",
    "SELF": "tables.derived",
    "conserves": "tables.derived",
    "table": "tables.table_function",
    "History": "transforms.point_in_time",
    "version_of": "tables.table_function",
    "as_of": "transforms.point_in_time",
    "forbids": "tables.rules",
    "no_leaks": "tables.rules",
    "corrections": "tables.current",
    "current": "tables.current",
    "PREVIOUS_DAY": "calendar.reach",
    "SAME_DAY": "calendar.reach",
    "WEEK": "calendar.reach",
    "following_days": "calendar.reach",
    "last_days": "calendar.reach",
    "CURRENT": "orders.tables",
    "FACT": "orders.tables",
    "LATE": "orders.tables",
    "ORDERS": "orders.tables",
    "RAW": "orders.tables",
    "REJECTED": "orders.tables",
    "STAGED": "orders.tables",
    "load_settings": "settings",
    "Source": "tables.sources",
    "spread_join": "transforms.point_in_time",
    "Answers": "tables.unpartitioned",
    "Lookup": "tables.unpartitioned",
    "Quota": "tables.unpartitioned",
    "Unpartitioned": "tables.unpartitioned",
    "json_text": "tables.columns",
    "nullable": "tables.columns",
    "added": "tables.columns",
}
__all__ = [
    "CURRENT",
    "FACT",
    "LATE",
    "ORDERS",
    "PREVIOUS_DAY",
    "RAW",
    "REJECTED",
    "SAME_DAY",
    "SELF",
    "STAGED",
    "WEEK",
    "Answers",
    "BackfillAssets",
    "History",
    "Lookup",
    "Published",
    "Quota",
    "Reads",
    "Source",
    "Unpartitioned",
    "added",
    "as_of",
    "build_defs",
    "conserves",
    "corrections",
    "current",
    "delta_io_manager",
    "following_days",
    "forbids",
    "json_text",
    "last_days",
    "load_settings",
    "no_leaks",
    "nullable",
    "spread_join",
    "table",
    "version_of",
]


tune_gc()
choose_pyspark_api()


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
