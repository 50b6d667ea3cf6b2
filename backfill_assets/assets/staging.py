"""Staging layer: each order once on its event day, and the lines that came after its window.

The rule of DESIGN: a version of an order with event day D counts iff it was logged by D + W and no
greater version of the same order was logged by D + W.
"""

from collections.abc import Iterator
from datetime import date

import dagster as dg
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as SqlWindow

from backfill_assets.assets.publishing import delta_assets, publish, run_window
from backfill_assets.assets.raw import business_day
from backfill_assets.audit import Book
from backfill_assets.io_manager import Candidate, Source
from backfill_assets.lateness import log_days_mapping
from backfill_assets.partitions import Window
from backfill_assets.schemas import LATE, RAW, STAGED
from backfill_assets.settings import Settings


def in_time(window_days: int) -> Column:
    """Whether a raw row was logged within the reprocessing window of its event day."""
    return F.datediff("log_date", "event_date") <= window_days


def with_event_day(raw: DataFrame, timezone: str) -> DataFrame:
    """The raw log with the business day on which each order happened, `event_date`."""
    return raw.withColumn("event_date", business_day(F.col("order_ts"), timezone))


def ranked(raw: DataFrame, window: Window, window_days: int) -> DataFrame:
    """The rows in time of the window's event days, each with whether it is `superseded`.

    Args:
        raw: `with_event_day` of the log days `window.start` to `window.end + window_days`. All of
            them take part, as a greater version may tell of a day outside the window.
        window: the event days to stage.
        window_days: the reprocessing window W.

    A range decides each day by what that day alone would have seen: of the greater versions of an
    order, the one that was logged first tells whether any came in time.
    """
    greatest_first = SqlWindow.partitionBy("order_id").orderBy(
        F.greatest("order_ts", "ingestion_ts").desc(),
        F.desc("log_date"),
        F.desc("order_ts"),
        F.desc("ingestion_ts"),
        F.desc("amount"),
        F.desc_nulls_last("customer_id"),
    )
    greater = greatest_first.rowsBetween(SqlWindow.unboundedPreceding, -1)
    first_greater = F.min("log_date").over(greater)
    days_until = F.datediff(first_greater, F.col("event_date"))
    return (
        raw.withColumn("superseded", F.coalesce(days_until <= window_days, F.lit(False)))
        .where(window.predicate("event_date"))
        .where(in_time(window_days))
        .select(*STAGED.columns, "superseded")
    )


def staged_orders(rows: DataFrame) -> DataFrame:
    """The rows of `ranked` that count."""
    return rows.where(~F.col("superseded")).select(*STAGED.columns)


def late_orders(raw: DataFrame, window_days: int) -> DataFrame:
    """The rows of the raw log that came after the window of their event day had closed."""
    return raw.where(~in_time(window_days)).select(*LATE.columns)


def staged_books(
    raw: DataFrame, rows: DataFrame, window: Window, window_days: int
) -> dict[date, Book]:
    """By event day: rows in time (counted from the raw log) = staged + superseded."""
    due = (
        raw.where(window.predicate("event_date")).where(in_time(window_days)).groupBy("event_date")
    ).count()
    lost = rows.where("superseded").groupBy("event_date").count()
    came = {row["event_date"]: row["count"] for row in due.collect()}
    gone = {row["event_date"]: row["count"] for row in lost.collect()}
    return {
        day: Book(
            entries={"in time": came.get(day, 0), "superseded": gone.get(day, 0)},
            rows=came.get(day, 0) - gone.get(day, 0),
        )
        for day in window
    }


def late_books(raw: DataFrame, window: Window, window_days: int) -> dict[date, Book]:
    """By log day: rows of the raw log = in time + late; late rows are worth a warning."""
    counts = raw.groupBy("log_date").agg(
        F.count(F.lit(1)).alias("rows"), F.count_if(in_time(window_days)).alias("in_time")
    )
    seen = {row["log_date"]: (row["rows"], row["in_time"]) for row in counts.collect()}
    books = {}
    for day in window:
        rows, timely = seen.get(day, (0, 0))
        late = rows - timely
        said = f"{late} line(s) came after the window of their day and are not in staging"
        books[day] = Book(
            entries={"raw": rows, "in time": timely}, rows=late, warnings=[said] if late else []
        )
    return books


_SAME = ("order_id", "customer_id", "order_ts", "amount", "ingestion_ts", "log_date")


def build(settings: Settings, code_version: str) -> list[dg.AssetsDefinition]:
    """`stg_orders`, whose late-data window is its partition mapping, and `late_orders`."""
    lineage = {name: [(RAW.name, name)] for name in _SAME}
    lineage["event_date"] = [(RAW.name, "order_ts")]
    window_days = settings.window_days

    @delta_assets(
        settings,
        name="stage_orders",
        tables=[STAGED],
        group="staging",
        ins={RAW.name: dg.AssetIn(partition_mapping=log_days_mapping(window_days))},
        lineage=lineage,
        code_version=code_version,
    )
    def stage_orders(context: dg.AssetExecutionContext, raw_orders: Source) -> Iterator:
        window = run_window(context)
        raw = with_event_day(raw_orders.frame, settings.timezone)
        rows = ranked(raw, window, window_days).persist()
        try:
            books = staged_books(raw, rows, window, window_days)
            yield from publish(
                context,
                [Candidate(STAGED, staged_orders(rows), books, [raw_orders], scattered=True)],
            )
        finally:
            rows.unpersist()

    @delta_assets(
        settings,
        name="keep_late_orders",
        tables=[LATE],
        group="staging",
        ins={RAW.name: dg.AssetIn()},
        lineage={
            **lineage,
            "arrival_date": [(RAW.name, "arrival_date")],
            "source_file": [(RAW.name, "source_file")],
        },
        code_version=code_version,
    )
    def keep_late_orders(context: dg.AssetExecutionContext, raw_orders: Source) -> Iterator:
        window = run_window(context)
        raw = with_event_day(raw_orders.frame, settings.timezone)
        rows = late_orders(raw, window_days).persist()
        try:
            books = late_books(raw, window, window_days)
            yield from publish(context, [Candidate(LATE, rows, books, [raw_orders])])
        finally:
            rows.unpersist()

    return [stage_orders, keep_late_orders]
