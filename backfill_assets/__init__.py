r"""Declare Delta tables; Dagster loads and backfills them, audited, idempotent, reversible.

A source is a pandera model of its lines. A table is a function of DataFrames; its parameters say
which days of which input it reads. This is a whole project, `visits.py`:

    from typing import Annotated

    import pandera.pyspark as pa
    import pyspark.sql.types as T
    from pandera.pyspark import Field
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    from backfill_assets import Reads, Source, conserves_total, table


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
        checks=[conserves_total("visits", None, "visits")],
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
    from backfill_assets.calendar.partitions import HOURS, Dimension
    from backfill_assets.calendar.reach import (
        MONTH,
        PREVIOUS_DAY,
        SAME_DAY,
        WEEK,
        days_between,
        following_days,
        last_days,
        previous_partitions,
        week_starting,
    )
    from backfill_assets.definitions import BackfillAssets, build_defs, delta_io_manager
    from backfill_assets.delta.delta_rs import replace_rows
    from backfill_assets.publish.io_manager import publishes
    from backfill_assets.settings import load_settings
    from backfill_assets.tables.columns import (
        added_column,
        forbids_rows,
        json_column,
        no_leaks,
        nullable_column,
    )
    from backfill_assets.tables.derived import (
        ALL,
        SELF,
        PublishedDays,
        Reads,
        conserves_total,
        corrections_table,
        current_table,
    )
    from backfill_assets.tables.sources import Source
    from backfill_assets.tables.table import external_table
    from backfill_assets.tables.table_function import table, version_of
    from backfill_assets.tables.unpartitioned import Lookup, LookupAnswers, Quota, Unpartitioned
    from backfill_assets.transforms.point_in_time import VersionHistory, as_of_join, spread_join
    from backfill_assets.transforms.rolling import PartialAggregate, combine_days

#: By name, the module that has it. Nothing is imported before it is asked for: the package's own
#: modules are imported by way of this one, and some of them need no Spark.
_MODULES = {
    "ALL": "tables.derived",
    "HOURS": "calendar.partitions",
    "MONTH": "calendar.reach",
    "PREVIOUS_DAY": "calendar.reach",
    "SAME_DAY": "calendar.reach",
    "SELF": "tables.derived",
    "WEEK": "calendar.reach",
    "BackfillAssets": "definitions",
    "Dimension": "calendar.partitions",
    "Lookup": "tables.unpartitioned",
    "LookupAnswers": "tables.unpartitioned",
    "PartialAggregate": "transforms.rolling",
    "PublishedDays": "tables.derived",
    "Quota": "tables.unpartitioned",
    "Reads": "tables.derived",
    "Source": "tables.sources",
    "Unpartitioned": "tables.unpartitioned",
    "VersionHistory": "transforms.point_in_time",
    "added_column": "tables.columns",
    "as_of_join": "transforms.point_in_time",
    "build_defs": "definitions",
    "combine_days": "transforms.rolling",
    "conserves_total": "tables.derived",
    "corrections_table": "tables.derived",
    "current_table": "tables.derived",
    "days_between": "calendar.reach",
    "delta_io_manager": "definitions",
    "explode_json": "assets.input_frames",
    "external_table": "tables.table",
    "following_days": "calendar.reach",
    "forbids_rows": "tables.columns",
    "json_column": "tables.columns",
    "last_days": "calendar.reach",
    "load_settings": "settings",
    "no_leaks": "tables.columns",
    "nullable_column": "tables.columns",
    "previous_partitions": "calendar.reach",
    "publishes": "publish.io_manager",
    "replace_rows": "delta.delta_rs",
    "spread_join": "transforms.point_in_time",
    "table": "tables.table_function",
    "version_of": "tables.table_function",
    "week_starting": "calendar.reach",
}
#: By a name that the package had before its first release, what to import instead.
_RENAMED = {
    "Answers": "it is LookupAnswers now",
    "History": "it is VersionHistory now",
    "Partial": "it is PartialAggregate now",
    "Published": "it is PublishedDays now",
    "added": "it is added_column now",
    "as_of": "it is as_of_join now",
    "between": "it is days_between now",
    "conserves": "it is conserves_total now",
    "corrections": "it is corrections_table now",
    "current": "it is current_table now",
    "forbids": "it is forbids_rows now",
    "json_text": "it is json_column now",
    "nullable": "it is nullable_column now",
    "previous": "it is previous_partitions now",
    "week": "it is week_starting now, as week_starting('sunday')",
    **dict.fromkeys(
        ("CURRENT", "FACT", "LATE", "ORDERS", "RAW", "REJECTED", "STAGED"),
        f"import it from {__name__}.orders.tables",
    ),
}
__all__ = [
    "ALL",
    "HOURS",
    "MONTH",
    "PREVIOUS_DAY",
    "SAME_DAY",
    "SELF",
    "WEEK",
    "BackfillAssets",
    "Dimension",
    "Lookup",
    "LookupAnswers",
    "PartialAggregate",
    "PublishedDays",
    "Quota",
    "Reads",
    "Source",
    "Unpartitioned",
    "VersionHistory",
    "added_column",
    "as_of_join",
    "build_defs",
    "combine_days",
    "conserves_total",
    "corrections_table",
    "current_table",
    "days_between",
    "delta_io_manager",
    "explode_json",
    "external_table",
    "following_days",
    "forbids_rows",
    "json_column",
    "last_days",
    "load_settings",
    "no_leaks",
    "nullable_column",
    "previous_partitions",
    "publishes",
    "replace_rows",
    "spread_join",
    "table",
    "version_of",
    "week_starting",
]


tune_gc()
choose_pyspark_api()


if not TYPE_CHECKING:  # a type checker would take every name for an exported one

    def __dir__() -> list[str]:
        return sorted({*globals(), *_MODULES})

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        if name in _RENAMED:
            # `from backfill_assets import name` would replace the text of an AttributeError.
            raise ImportError(f"{__name__} has no {name}: {_RENAMED[name]}", name=__name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
