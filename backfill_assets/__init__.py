r"""Declare Delta tables; Dagster loads and backfills them, audited, idempotent, reversible.

A source is a pandera model of its lines. A table is a function of DataFrames; its parameters say
which days of which input it reads. This is a whole project, `visits.py`:

    from typing import Annotated

    import pandera.pyspark as pa
    import pyspark.sql.types as T
    from pandera.pyspark import Field
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from backfill_assets import Reads, Source, conserves, table


    class Visit(pa.DataFrameModel):
        visit_id: T.StringType
        began_at: T.TimestampType
        sent_at: T.TimestampType


    VISITS = Source(
        "visits", Visit, key=["visit_id"], event_time="began_at", version_time="sent_at"
    )


    class DailyVisits(pa.DataFrameModel):
        run_date: T.DateType
        visits: T.LongType = Field(ge=1)


    @table(
        DailyVisits,
        partition="run_date",
        key=[],  # a row a day
        totals=["visits"],
        checks=[conserves("visits", None, "visits")],
    )
    def daily_visits(visits: Annotated[DataFrame, Reads(VISITS.staged)]) -> DataFrame:
        return visits.groupBy(F.col("for_day").alias("run_date")).agg(
            F.count(F.lit(1)).alias("visits")
        )


    TABLES = [VISITS, daily_visits]

A file has landed in `landing/visits/arrival_date=2024-01-01/`. One run loads the day:

    BACKFILL_ASSETS_TABLES=visits:TABLES dagster asset materialize \
        -m backfill_assets.definitions --select '*' --partition 2024-01-01

The next day's file has another visit of January 1st. When it is loaded, the state of the day
`daily_visits 2024-01-01` is *input newer than output* (`backfill-assets status`). The sensor
`touched_days` launches a run of that day, and it counts both visits. `backfill-assets undo` reverts
a run or a backfill in all tables.

The names below are what a project imports; everything else may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from backfill_assets.spark.processes import choose_pyspark_api, tune_gc

if TYPE_CHECKING:
    from backfill_assets.assets.input_frames import explode_json
    from backfill_assets.calendar.reach import (
        MONTH,
        PREVIOUS_DAY,
        SAME_DAY,
        WEEK,
        following_days,
        last_days,
    )
    from backfill_assets.definitions import BackfillAssets, build_defs, delta_io_manager
    from backfill_assets.orders.tables import CURRENT, FACT, LATE, ORDERS, RAW, REJECTED, STAGED
    from backfill_assets.publish.io_manager import publishes
    from backfill_assets.settings import load_settings
    from backfill_assets.tables.columns import added, forbids, json_text, no_leaks, nullable
    from backfill_assets.tables.derived import (
        SELF,
        Published,
        Reads,
        conserves,
        corrections,
        current,
    )
    from backfill_assets.tables.sources import Source
    from backfill_assets.tables.table_function import table, version_of
    from backfill_assets.tables.unpartitioned import Answers, Lookup, Quota, Unpartitioned
    from backfill_assets.transforms.point_in_time import History, as_of, spread_join
    from backfill_assets.transforms.rolling import Partial, combine_days

#: By name, the module that has it. Nothing is imported before it is asked for: the package's own
#: modules are imported by way of this one, and some of them need no Spark.
_MODULES = {
    "BackfillAssets": "definitions",
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
    "forbids": "tables.columns",
    "no_leaks": "tables.columns",
    "corrections": "tables.derived",
    "current": "tables.derived",
    "PREVIOUS_DAY": "calendar.reach",
    "SAME_DAY": "calendar.reach",
    "MONTH": "calendar.reach",
    "WEEK": "calendar.reach",
    "between": "calendar.reach",
    "previous": "calendar.reach",
    "week": "calendar.reach",
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
    "publishes": "publish.io_manager",
    "Source": "tables.sources",
    "spread_join": "transforms.point_in_time",
    "Partial": "transforms.rolling",
    "combine_days": "transforms.rolling",
    "Answers": "tables.unpartitioned",
    "Lookup": "tables.unpartitioned",
    "Quota": "tables.unpartitioned",
    "Unpartitioned": "tables.unpartitioned",
    "json_text": "tables.columns",
    "nullable": "tables.columns",
    "added": "tables.columns",
    "explode_json": "assets.input_frames",
}
__all__ = [
    "CURRENT",
    "FACT",
    "LATE",
    "MONTH",
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
    "Partial",
    "Published",
    "Quota",
    "Reads",
    "Source",
    "Unpartitioned",
    "added",
    "as_of",
    "between",
    "build_defs",
    "combine_days",
    "conserves",
    "corrections",
    "current",
    "delta_io_manager",
    "explode_json",
    "following_days",
    "forbids",
    "json_text",
    "last_days",
    "load_settings",
    "no_leaks",
    "nullable",
    "previous",
    "publishes",
    "spread_join",
    "table",
    "version_of",
    "week",
]


tune_gc()
choose_pyspark_api()


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
