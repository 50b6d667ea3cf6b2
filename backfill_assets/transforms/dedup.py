"""Deduplication: which version of a key counts on which day.

The rule of DESIGN: a version of a key with event day D counts iff it was logged by D + W and no
greater version of the same key was logged by D + W.
"""

from decimal import Decimal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as SqlWindow
from pyspark.sql.window import WindowSpec

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.calendar.reach import Reach
from backfill_assets.tables.derived import FOR_DAY
from backfill_assets.tables.sources import Source

#: Of the rows of `rank_in_window` and `rank_all`: whether they do not count. No field has a name
#: like this.
SUPERSEDED = "_superseded"


def business_day(moment: Column, timezone: str) -> Column:
    """The calendar day of a timestamp in the business time zone."""
    return F.to_date(F.from_utc_timestamp(moment, timezone))


def line_amount(source: Source) -> Column:
    """What a line is worth: zero if its source has no amount."""
    return F.col(source.amount) if source.amount else F.lit(Decimal("0.00"))


def greatest_first(source: Source, *partition: str) -> WindowSpec:
    """Versions in descending order: of a key in one log, the first is the one that counts.

    The fields that are neither key nor time come last, and of them the last one first: they only
    make sure that the same lines are always in the same order.
    """
    times = (source.event_time, source.version_time)
    others = [name for name in source.fields if name not in (*source.key, *times)]
    return SqlWindow.partitionBy(*partition).orderBy(
        F.greatest(*times).desc(),
        *(F.desc(name) for name in ("log_date", *times)),
        *(F.desc_nulls_last(name) for name in reversed(others)),
    )


def is_superseded(versions: WindowSpec, window_days: int) -> Column:
    """Whether a greater version was logged while the row's event day was open.

    Of the greater versions, the one that was logged first tells whether any came in time.
    """
    greater = versions.rowsBetween(SqlWindow.unboundedPreceding, -1)
    days_until = F.datediff(F.min("log_date").over(greater), F.col("event_date"))
    return F.coalesce(days_until <= window_days, F.lit(False))


def within_window(window_days: int) -> Column:
    """Whether a raw row was logged within the reprocessing window of its event day."""
    return F.datediff("log_date", "event_date") <= window_days


def is_latest(versions: WindowSpec, window_days: int, *, corrects: bool) -> Column:
    """Whether a version is the one that counts with everything known now.

    The greatest version of a key, whenever it was logged. Where late lines are dropped, they are
    as if they had never come, but for one thing: a key that such a line moved away from a day
    which was still open is gone from that day, as it is in staging.

    Args:
        versions: all known versions of a key, as `greatest_first` has them.
        window_days: the reprocessing window W.
        corrects: whether late lines count.
    """
    if corrects:
        return F.row_number().over(versions) == 1
    greater = versions.rowsBetween(SqlWindow.unboundedPreceding, -1)
    # A version in time for its own day counts against all others, whenever it came.
    since = F.when(within_window(window_days), F.lit("0001-01-01").cast("date")).otherwise(
        F.col("log_date")
    )
    days_until = F.datediff(F.min(since).over(greater), F.col("event_date"))
    return within_window(window_days) & F.coalesce(days_until > window_days, F.lit(True))


def with_event_day(raw: DataFrame, source: Source, timezone: str) -> DataFrame:
    """The raw log with the business day that each line tells of, `event_date`."""
    return raw.withColumn("event_date", business_day(F.col(source.event_time), timezone))


def rank_in_window(raw: DataFrame, source: Source, window: Window, window_days: int) -> DataFrame:
    """The rows in time of the window's event days, each with whether it is `SUPERSEDED`.

    Args:
        raw: `with_event_day` of the log days `window.start` to `window.end + window_days`. All of
            them take part, as a greater version may tell of a day outside the window.
        source: of the log.
        window: the event days to stage.
        window_days: the reprocessing window W.

    A range decides each day by what that day alone would have seen.
    """
    versions = greatest_first(source, *source.key)
    return (
        raw.withColumn(SUPERSEDED, is_superseded(versions, window_days))
        .where(window.sql_condition("event_date"))
        .where(within_window(window_days))
        .select(*source.staged.columns, SUPERSEDED)
    )


def rank_all(
    raw: DataFrame, source: Source, window: Window, window_days: int, *, corrects: bool
) -> DataFrame:
    """As `rank_in_window`, with everything known now: an endless window.

    Args:
        raw: `with_event_day` of all log days with lines of the keys of the window's days.
        source: of the log.
        window: the event days.
        window_days: the reprocessing window W, beyond which a line is late.
        corrects: whether late lines count.
    """
    versions = greatest_first(source, *source.key)
    latest = is_latest(versions, window_days, corrects=corrects)
    late = F.lit(not corrects) & ~within_window(window_days)
    return (
        raw.withColumn(SUPERSEDED, ~latest)
        .where(window.sql_condition("event_date"))
        .where(~late)
        .select(*source.staged.columns, SUPERSEDED)
    )


def as_known(raw: DataFrame, source: Source, reach: Reach, days: Window) -> DataFrame:
    """Each key as it was known at the end of each of some days: nothing that was logged later.

    Args:
        raw: `with_event_day` of the log days that `reach` reads. No earlier one has a greater
            version of what they tell of, as no line is logged before the day of its version time.
        source: of the log.
        reach: the event days that count for a day; the last of them is the day itself.
        days: the days.

    Returns:
        The columns of staging and `for_day`: a row for each key and day on which the version that
        was the greatest one then tells of a day that counts. `log_date` is never after `for_day`.
    """
    greater = greatest_first(source, *source.key).rowsBetween(SqlWindow.unboundedPreceding, -1)
    superseded_on = F.min("log_date").over(greater)
    until = F.least(F.date_add("event_date", reach.before), F.date_sub(superseded_on, 1))
    return (
        raw.withColumn("_until", F.least(until, F.lit(days.end - DAY)))
        .where(F.col("_until") >= F.col("log_date"))
        .select(*source.staged.columns, F.sequence("log_date", "_until").alias("_days"))
        .select(*source.staged.columns, F.explode("_days").alias(FOR_DAY))
        .where(days.sql_condition(FOR_DAY))
    )


def staged(rows: DataFrame, source: Source) -> DataFrame:
    """The rows of `rank_in_window`, or of `rank_all`, that count."""
    return rows.where(~F.col(SUPERSEDED)).select(*source.staged.columns)
