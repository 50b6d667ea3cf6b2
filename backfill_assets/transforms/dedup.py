"""Deduplication: which version of a key counts on which event day.

A version of a key with event day D counts if and only if it was logged by D + W, and no greater
version of the same key was logged by D + W; W is the reprocessing window in days.
"""

from decimal import Decimal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as SqlWindow
from pyspark.sql.window import WindowSpec

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.calendar.reach import Reach
from backfill_assets.tables.derived import FIRST_FOR_DAY, LAST_FOR_DAY
from backfill_assets.tables.sources import Source

#: The column of `rank_in_window` and `rank_all` that is true for rows that do not count. No field
#: of a source may have such a name.
SUPERSEDED = "_superseded"
#: The columns of `rank_lines`: true for lines that do not count within the window of their event
#: day, and with everything known now.
_SUPERSEDED_IN_WINDOW = "_superseded_in_window"
_SUPERSEDED_NOW = "_superseded_now"


def business_day(moment: Column, timezone: str) -> Column:
    """The calendar day of a timestamp in the business time zone."""
    return F.to_date(F.from_utc_timestamp(moment, timezone))


def line_amount(source: Source) -> Column:
    """The amount of a line; zero if its source has no amount."""
    return F.col(source.amount) if source.amount else F.lit(Decimal("0.00"))


def greatest_first(source: Source, *partition: str) -> WindowSpec:
    """Versions in descending order: the first one of a key counts.

    The fields that are neither key nor time come last, in reverse order; they only make the order
    of the same lines deterministic.
    """
    times = (source.event_time, source.version_time)
    others = [name for name in source.fields if name not in (*source.key, *times)]
    return SqlWindow.partitionBy(*partition).orderBy(
        F.greatest(*times).desc(),
        *(F.desc(name) for name in ("log_date", *times)),
        *(F.desc_nulls_last(name) for name in reversed(others)),
    )


def is_superseded(versions: WindowSpec, window_days: int) -> Column:
    """Whether a greater version was logged while the window of the row's event day was open.

    The earliest log day of the greater versions decides whether any of them came in time.
    """
    greater = versions.rowsBetween(SqlWindow.unboundedPreceding, -1)
    days_until = F.datediff(F.min("log_date").over(greater), F.col("event_date"))
    return F.coalesce(days_until <= window_days, F.lit(False))


def within_window(window_days: int) -> Column:
    """Whether a raw row was logged within the reprocessing window of its event day."""
    return F.datediff("log_date", "event_date") <= window_days


def is_latest(versions: WindowSpec, window_days: int, *, corrects: bool) -> Column:
    """Whether a version is the one that counts with everything known now.

    It is the greatest version of a key, whenever it was logged. If late lines are dropped
    (`corrects` is false), they are ignored, with one exception: a key that a late line moved away
    from a day that was still open is removed from that day, as in staging.
    """
    if corrects:
        return F.row_number().over(versions) == 1
    greater = versions.rowsBetween(SqlWindow.unboundedPreceding, -1)
    # A version that was in time for its own day supersedes others, whenever it was logged.
    since = F.when(within_window(window_days), F.lit("0001-01-01").cast("date")).otherwise(
        F.col("log_date")
    )
    days_until = F.datediff(F.min(since).over(greater), F.col("event_date"))
    return within_window(window_days) & F.coalesce(days_until > window_days, F.lit(True))


def with_event_day(raw: DataFrame, source: Source, timezone: str) -> DataFrame:
    """The raw log with the column `event_date`, the business day of the event."""
    return raw.withColumn("event_date", business_day(F.col(source.event_time), timezone))


def rank_lines(raw: DataFrame, source: Source, window_days: int, *, corrects: bool) -> DataFrame:
    """All lines of a raw log with their rank, for `rank_in_window` and `rank_all`.

    `raw` is the result of `with_event_day`; `corrects` is whether lines after the reprocessing
    window count.
    """
    versions = greatest_first(source, *source.key)
    return raw.select(
        *source.staged.columns,
        is_superseded(versions, window_days).alias(_SUPERSEDED_IN_WINDOW),
        (~is_latest(versions, window_days, corrects=corrects)).alias(_SUPERSEDED_NOW),
    )


def rank_in_window(lines: DataFrame, source: Source, window: Window, window_days: int) -> DataFrame:
    """The rows in time for the window's event days, with the flag `SUPERSEDED`.

    Each day of a range is decided only by the log days of its own window. `lines` is the result of
    `rank_lines` for the log days `window.start` to `window.end + window_days`: all are needed, as a
    greater version may have an event day outside the window.
    """
    return (
        lines.where(window.sql_condition("event_date"))
        .where(within_window(window_days))
        .select(*source.staged.columns, F.col(_SUPERSEDED_IN_WINDOW).alias(SUPERSEDED))
    )


def rank_all(
    lines: DataFrame, source: Source, window: Window, window_days: int, *, corrects: bool
) -> DataFrame:
    """As `rank_in_window`, with everything known now, as if the window had no end.

    `lines` is the result of `rank_lines`, with the same `corrects`, for all log days with lines of
    the keys of the window's days.
    """
    late = F.lit(not corrects) & ~within_window(window_days)
    return (
        lines.where(window.sql_condition("event_date"))
        .where(~late)
        .select(*source.staged.columns, F.col(_SUPERSEDED_NOW).alias(SUPERSEDED))
    )


def as_known(raw: DataFrame, source: Source, reach: Reach, days: Window) -> DataFrame:
    """Each key as it was known at the end of each day, without lines that were logged later.

    Args:
        raw: `with_event_day` of the log days that `reach` reads. No earlier one has a greater
            version, as no line is logged before the day of its version time.
        source: of the log.
        reach: the event days that count for a day; the last of them is the day itself.
        days: the days to compute.

    Returns:
        The columns of staging, and `first_for_day` and `last_for_day`: the days on which the row
        was the greatest version, and its event day counts. `log_date` is never after them.
    """
    greater = greatest_first(source, *source.key).rowsBetween(SqlWindow.unboundedPreceding, -1)
    superseded_on = F.min("log_date").over(greater)
    until = F.least(F.date_add("event_date", reach.before), F.date_sub(superseded_on, 1))
    ends = {
        FIRST_FOR_DAY: F.greatest("log_date", F.lit(days.start)),
        LAST_FOR_DAY: F.least(until, F.lit(days.end - DAY)),
    }
    return (
        raw.withColumns(ends)
        .where(F.col(FIRST_FOR_DAY) <= F.col(LAST_FOR_DAY))
        .select(*source.staged.columns, *ends)
    )


def drop_superseded(rows: DataFrame, source: Source) -> DataFrame:
    """The rows of `rank_in_window` or `rank_all` that count."""
    return rows.where(~F.col(SUPERSEDED)).select(*source.staged.columns)
