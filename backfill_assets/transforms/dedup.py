"""Deduplication: which version of a key counts on which event day.

A version of a key with event day D counts if and only if it was logged by D + W, and no greater
version of the same key was logged by D + W; W is the reprocessing window in days.

The rule is SQL text, which any engine can run. The columns of a line are its fields, `log_date` and
`event_date`, see `with_event_day`.
"""

from collections.abc import Callable, Iterable
from decimal import Decimal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.calendar.reach import Reach
from backfill_assets.spark.frames import quote_name
from backfill_assets.tables.derived import FIRST_FOR_DAY, LAST_FOR_DAY
from backfill_assets.tables.sources import Source

#: The column of `rank_in_window` and `rank_all` that is true for rows that do not count. No field
#: of a source may have such a name.
SUPERSEDED = "_superseded"
#: The columns of `rank_lines`: true for lines that do not count within the window of their event
#: day, and with everything known now.
_SUPERSEDED_IN_WINDOW = "_superseded_in_window"
_SUPERSEDED_NOW = "_superseded_now"
#: The column of `with_event_day` with the moment at which a date begins in the business time zone,
#: if one of event and version time is a date and the other a timestamp.
_BEGIN_OF_DATE = "_begin_of_date"


def business_day(moment: Column, timezone: str) -> Column:
    """The calendar day of a timestamp in the business time zone."""
    return F.to_date(F.from_utc_timestamp(moment, timezone))


#: The value of a field in its type, by its name.
FieldColumn = Callable[[str], Column]


def _time_day(source: Source, name: str, timezone: str, field_column: FieldColumn) -> Column:
    """The day of an event time or version time; a date is that day in every zone."""
    time = field_column(name)
    return time if name in source.dated_times else business_day(time, timezone)


def event_day(source: Source, timezone: str, field_column: FieldColumn = F.col) -> Column:
    """The day of the event."""
    return _time_day(source, source.event_time, timezone, field_column)


def version_day(source: Source, timezone: str, field_column: FieldColumn = F.col) -> Column:
    """The day of the later one of event time and version time."""
    if source.dated_times:
        days = (_time_day(source, name, timezone, field_column) for name in source.times)
        return F.greatest(*days)
    return business_day(F.greatest(*map(field_column, source.times)), timezone)


def other_hour(source: Source, timezone: str, part: Column) -> Column:
    """Why a line's event is not of the hour that its folder says (`part`); null if it is."""
    if not source.raw.by_hour:
        return F.lit(None)
    hour = F.lpad(F.hour(F.from_utc_timestamp(source.event_time, timezone)).cast("string"), 2, "0")
    texts = F.lit(f"bad {source.event_time}: of hour "), F.lit(", its folder says ")
    return F.when(hour != part, F.concat(texts[0], hour, texts[1], part))


def compared_times(source: Source) -> list[str]:
    """The columns of `with_event_day` whose later one is the time of a version, event time first.

    They are of one type: a date beside a timestamp is replaced by the moment at which it begins.
    """
    is_mixed = len({type(source.types[name]) for name in source.times}) > 1
    replaced = source.dated_times if is_mixed else frozenset()
    return [_BEGIN_OF_DATE if name in replaced else name for name in source.times]


def version_columns(source: Source) -> list[str]:
    """The columns of `with_event_day` that decide which version counts: those of staging first."""
    return [*dict.fromkeys([*source.staged.columns, *compared_times(source)])]


def line_amount(source: Source) -> Column:
    """The amount of a line; zero if its source has no amount."""
    return F.col(source.amount) if source.amount else F.lit(Decimal("0.00"))


def key_columns(source: Source) -> list[str]:
    """The columns of a key: the part, as rows may be those of several, and its fields."""
    return [*dict.fromkeys([*filter(None, [source.raw.part_column]), *source.key])]


def greatest_first(source: Source, *partition: str) -> str:
    """The SQL window of the versions with the same values in some columns, in descending order.

    The first one of a key counts. The fields that are neither key nor time come last, in reverse
    order; they only make the order of the same lines deterministic.
    """
    others = [name for name in source.fields if name not in (*source.key, *source.times)]
    names = ["log_date", *source.times, *reversed(others)]
    values = [f"greatest({_quote_names(compared_times(source))})", *map(quote_name, names)]
    order = ", ".join(f"{value} DESC NULLS LAST" for value in values)
    return f"PARTITION BY {_quote_names(partition)} ORDER BY {order}"


def _quote_names(names: Iterable[str]) -> str:
    return ", ".join(map(quote_name, names))


def _first_of_greater(versions: str, day: str = "log_date") -> str:
    """The first of the days of the versions that are greater than a row; null if it is greatest."""
    return f"min({day}) OVER ({versions} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"


def is_superseded(versions: str, window_days: int) -> str:
    """Whether a greater version was logged while the window of the row's event day was open.

    `versions` is of `greatest_first`. The earliest log day of the greater versions decides whether
    any of them came in time.
    """
    days_until = f"datediff({_first_of_greater(versions)}, event_date)"
    return f"coalesce({days_until} <= {window_days}, false)"


def within_window(window_days: int) -> str:
    """Whether a raw row was logged within the reprocessing window of its event day."""
    return f"datediff(log_date, event_date) <= {window_days}"


def is_late(window_days: int) -> Column:
    """Whether a raw row was logged after the reprocessing window of its event day."""
    return ~F.expr(within_window(window_days))


def is_latest(versions: str, window_days: int, *, corrects: bool) -> str:
    """Whether a version is the one that counts with everything known now.

    It is the greatest version of a key, whenever it was logged. If late lines are dropped
    (`corrects` is false), they are ignored, with one exception: a key that a late line moved away
    from a day that was still open is removed from that day, as in staging.
    """
    if corrects:
        return f"row_number() OVER ({versions}) = 1"
    in_time = within_window(window_days)
    # A version that was in time for its own day supersedes others, whenever it was logged.
    since = f"CASE WHEN {in_time} THEN DATE'0001-01-01' ELSE log_date END"
    days_until = f"datediff({_first_of_greater(versions, since)}, event_date)"
    return f"{in_time} AND coalesce({days_until} > {window_days}, true)"


def with_event_day(raw: DataFrame, source: Source, timezone: str) -> DataFrame:
    """The raw log with the column `event_date`, the day of the event."""
    columns = {"event_date": event_day(source, timezone)}
    if _BEGIN_OF_DATE in compared_times(source):
        (name,) = source.dated_times
        columns[_BEGIN_OF_DATE] = F.to_utc_timestamp(F.col(name).cast("timestamp"), timezone)
    return raw.withColumns(columns)


def rank_lines(raw: DataFrame, source: Source, window_days: int, *, corrects: bool) -> DataFrame:
    """All lines of a raw log with their rank, for `rank_in_window` and `rank_all`.

    `raw` is the result of `with_event_day`; `corrects` is whether lines after the reprocessing
    window count.
    """
    versions = greatest_first(source, *key_columns(source))
    return raw.select(
        *version_columns(source),
        F.expr(is_superseded(versions, window_days)).alias(_SUPERSEDED_IN_WINDOW),
        (~F.expr(is_latest(versions, window_days, corrects=corrects))).alias(_SUPERSEDED_NOW),
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
    counting = "true" if corrects else within_window(window_days)
    return (
        lines.where(window.sql_condition("event_date"))
        .where(counting)
        .select(*source.staged.columns, F.col(_SUPERSEDED_NOW).alias(SUPERSEDED))
    )


def known_days(source: Source, reach: Reach, days: Window) -> dict[str, str]:
    """The SQL of the first and the last of some days on which a row counts, by column.

    It counts while it is the greatest version, and its event day is in the reach. If the last day
    is before the first, it never does.
    """
    superseded_on = _first_of_greater(greatest_first(source, *key_columns(source)))
    until = f"date_add(event_date, {reach.before}), date_sub({superseded_on}, 1)"
    return {
        FIRST_FOR_DAY: f"greatest(log_date, DATE'{days.start}')",
        LAST_FOR_DAY: f"least({until}, DATE'{days.end - DAY}')",
    }


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
    ends = {name: F.expr(day) for name, day in known_days(source, reach, days).items()}
    return (
        raw.withColumns(ends)
        .where(F.col(FIRST_FOR_DAY) <= F.col(LAST_FOR_DAY))
        .select(*source.staged.columns, *ends)
    )


def drop_superseded(rows: DataFrame, source: Source) -> DataFrame:
    """The rows of `rank_in_window` or `rank_all` that count."""
    return rows.where(~F.col(SUPERSEDED)).select(*source.staged.columns)
