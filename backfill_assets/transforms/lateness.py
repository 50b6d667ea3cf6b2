"""The figures of lateness: how long after their day the lines of a source came, by log day."""

import json
from collections.abc import Sequence
from functools import partial, reduce

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as SqlWindow

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.spark.frames import create_frame
from backfill_assets.tables.sources import Source, SourceTable
from backfill_assets.transforms import dedup


def lateness_figures(
    raw: DataFrame,
    rejected: DataFrame,
    tables: Sequence[SourceTable],
    window: Window,
    policy: Policy,
) -> DataFrame:
    """Return one row for each part and log day of the window, also for a day without lines.

    `raw` is the result of `with_event_day` for the log days from `policy.window_days` before the
    window to its end; the days before only tell which keys were known. `rejected` has days of the
    window. `tables` are the parts of the table to compute, or the table without parts.
    """
    table, source = tables[0], tables[0].source
    keys = [*table.cell_columns]
    unread = rejected.withColumnRenamed("arrival_date", "log_date").groupBy(*keys)
    struct = T.StructType([table.struct_type[name] for name in keys])
    cells = [(*part.part_values.values(), day) for part in tables for day in window]
    days = create_frame(raw.sparkSession, struct, cells)
    logged = window.sql_condition("log_date")
    flagged = raw.withColumn(dedup.SUPERSEDED, _is_repeated(source, policy.window_days))
    days_late = delay_beyond(policy, window)
    parts = (
        _by_delay(flagged.where(logged), source, days_late, policy.window_days, keys),
        _delay_percentiles(raw.where(logged), source, days_late, keys),
        unread.agg(F.count(F.lit(1)).alias("rejected_lines")),
    )
    kinds = {name: table.struct_type[name].dataType.simpleString() for name in table.columns}
    figures = [F.first(n, ignorenulls=True).alias(n) for n in kinds if n not in keys]
    # Rows of one day are merged: joins would be a broadcast job each.
    rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts, days)
    merged = rows.groupBy(*keys).agg(*figures)
    return merged.select(*[_fill_zero(name, kind) for name, kind in kinds.items()])


def _fill_zero(name: str, kind: str) -> Column:
    """Return a column in its type of the table, with zero for days without rows in an input."""
    column = F.col(name)
    if kind.startswith("array"):
        column = F.coalesce(column, F.array().cast(kind))
    elif name.endswith(("_lines", "_amount")) or name == "lines":
        column = F.coalesce(column, F.lit(0))
    return column.cast(kind).alias(name)


def _delay_days() -> Column:
    return F.datediff("log_date", "event_date")


#: The longest delay of which the days that nothing was expected on are left out.
_MOST_WAITED = 366


def delay_beyond(policy: Policy, window: Window) -> Column:
    """Return how many days after its usual arrival a line was logged; 0 or less if in time.

    Lines of a source with `arrives_on` wait for the next day on which something is expected.
    """
    days = _delay_days() - policy.arrives_after
    first = window.start - _MOST_WAITED * DAY
    waits = [
        (policy.arrival_of(day) - day).days - policy.arrives_after
        for day in Window(first, window.end)
    ]
    if not any(waits):
        return days
    # Text that Spark makes a literal of; thousands of literals would take seconds to plan.
    waited = F.get(
        F.from_json(F.lit(json.dumps(waits)), "array<int>"), F.datediff("event_date", F.lit(first))
    )
    return days - F.when(_delay_days() <= _MOST_WAITED, waited).otherwise(0)


def _by_delay(
    logged: DataFrame, source: Source, days_late: Column, window_days: int, keys: Sequence[str]
) -> DataFrame:
    """Return counts and sums by part and log day, in all and by delay.

    Grouped by event day first, which leaves few rows. `logged` has the flag `SUPERSEDED`.
    """
    late, beyond = days_late >= 1, F.col("delay") > window_days
    entry = F.struct("delay", "count", "money")
    return (
        logged.groupBy(*keys, "event_date")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.sum(dedup.line_amount(source)).alias("amount"),
            F.sum(F.abs(dedup.line_amount(source))).alias("money"),
            F.count_if(dedup.SUPERSEDED).alias("superseded"),
        )
        .withColumn("delay", _delay_days())
        .groupBy(*keys)
        .agg(
            F.sum("count").alias("lines"),
            F.sum("superseded").alias("superseded_lines"),
            F.sum(F.when(late, F.col("count"))).alias("late_lines"),
            F.sum(F.when(late, F.col("amount"))).alias("late_amount"),
            F.sum(F.when(beyond, F.col("count"))).alias("beyond_lines"),
            F.sum(F.when(beyond, F.col("amount"))).alias("beyond_amount"),
            F.sort_array(F.collect_list(entry)).alias("entries"),
        )
        .withColumns(
            {
                "delays": F.col("entries.delay"),
                "lines_by_delay": F.col("entries.count"),
                "amount_by_delay": F.col("entries.money"),
            }
        )
        .drop("entries")
    )


def _delay_percentiles(
    logged: DataFrame, source: Source, days_late: Column, keys: Sequence[str]
) -> DataFrame:
    """Return delays by part and log day with late lines, from when the lines were expected."""
    times = [F.col(name).cast("timestamp") for name in dedup.compared_times(source)]
    micros = F.unix_micros(F.greatest(*times)) - F.unix_micros(times[0])
    # In integers: a double cannot hold the microseconds between distant times.
    minutes = F.call_function("div", micros, F.lit(60_000_000))
    delays = {"days": days_late, "minutes": minutes}
    return (
        logged.where(days_late >= 1)
        .withColumns(delays)
        .groupBy(*keys)
        .agg(
            *[
                column.alias(f"delay_{unit}_{name}")
                for unit in delays
                for name, column in (
                    ("p50", _discrete_percentile(unit, "0.5")),
                    ("p95", _discrete_percentile(unit, "0.95")),
                    ("max", F.max(unit)),
                )
            ]
        )
    )


def _discrete_percentile(name: str, share: str) -> Column:
    """Return a percentile that is one of the values, without interpolation."""
    return F.expr(f"percentile_disc({share}) WITHIN GROUP (ORDER BY {name})")


def _is_repeated(source: Source, window_days: int) -> Column:
    """Whether a line is not the first of its key in its log day and the W days before it.

    Computed for each day by itself, so that a range gives the same as its days one by one.
    """
    by_day = SqlWindow.partitionBy(*dedup.key_columns(source)).orderBy("log_date")
    since = F.datediff("log_date", F.lag("log_date").over(by_day))
    return F.coalesce(since <= window_days, F.lit(False))
