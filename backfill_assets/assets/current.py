"""The assets of current tables, and of corrections: the differences between facts and current."""

from collections.abc import Mapping
from datetime import date
from functools import reduce

import dagster as dg
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.derived import input_sums
from backfill_assets.assets.input_frames import Sums, for_days, sums_by_day
from backfill_assets.assets.table_asset import AssetInputs, table_asset
from backfill_assets.audit.verdicts import Expectation
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import Window
from backfill_assets.calendar.reach import SAME_DAY, RecordedReach
from backfill_assets.deployment import Deployment
from backfill_assets.publish.types import ComputedDays
from backfill_assets.spark.frames import Cache
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.current import Corrections, Current
from backfill_assets.transforms import dedup


def current_rows(
    table: Current, rows: DataFrame, days: Window, whole: Mapping[str, DataFrame]
) -> DataFrame:
    """Return the rows of some days.

    `rows` is the result of `rank_all`; `whole` has the unpartitioned inputs by parameter.
    """
    (parameter,) = table.base.reads
    counting = dedup.drop_superseded(rows, table.source)
    frame = for_days(counting, table.source.staged.partition, SAME_DAY, days)
    return table.base.transform(**{parameter: frame}, **whole)


def current_expectations(
    table: Current, lines: DataFrame, rows: DataFrame, days: Window, policy: Policy
) -> dict[date, Expectation]:
    """By day: lines that count (as counted from the raw log) = rows that count + superseded.

    `lines` and `rows` are the input and the result of `rank_all`.
    """
    day = table.source.staged.partition
    counted = lines.where(days.sql_condition(day))
    if not policy.corrects:
        counted = counted.where(dedup.within_window(policy.window_days))
    sums = {check.total: check.column for check in table.base.conserved if check.column}
    row_amounts = {
        total: F.when(~F.col(dedup.SUPERSEDED), F.col(column)) for total, column in sums.items()
    }
    both = counted.select(day, F.lit(1), F.lit(0), *(F.lit(None) for _ in sums)).unionAll(
        rows.select(day, F.lit(0), F.col(dedup.SUPERSEDED).cast("int"), *row_amounts.values())
    )
    # A model may have a total `lines`, but none that begins with an underscore.
    names = ["_lines", "_superseded", *sums]
    day_sums = sums_by_day(
        both.toDF(day, *names), day, {name: F.sum(name) for name in names}, table.zero_totals
    )
    nothing: Sums = {name: table.zero_totals.get(name, 0) for name in names}
    expectations = {}
    for partition in days:
        partition_sums = day_sums.get(partition, nothing)
        line_count, superseded = partition_sums["_lines"], partition_sums["_superseded"]
        counting = line_count - superseded
        totals = {
            c.total: partition_sums[c.total] if c.column else counting for c in table.base.conserved
        }
        entries = {"lines": line_count, "superseded": superseded}
        expectations[partition] = Expectation(entries=entries, totals=totals)
    return expectations


def correction_rows(table: Corrections, facts: DataFrame, current: DataFrame) -> DataFrame:
    """Return current minus facts, by day and key; only where there is a difference."""
    types = {column.name: column.dataType for column in table.struct_type}
    less = facts.select(*table.key_columns, *((-F.col(name)).alias(name) for name in table.totals))

    def total_column(name: str) -> Column:
        return F.coalesce(F.sum(name), F.lit(0)).cast(types[name]).alias(name)

    return (
        current.select(*table.key_columns, *table.totals)
        .unionByName(less)
        .groupBy(*table.key_columns)
        .agg(*map(total_column, table.totals))
        .where(reduce(Column.__or__, (F.col(name) != 0 for name in table.totals)))
    )


def correction_expectations(
    table: Corrections,
    fact_sums: Mapping[date, Sums],
    current_sums: Mapping[date, Sums],
    days: Window,
) -> dict[date, Expectation]:
    """By day: facts + corrections = current."""
    expectations = {}
    for day in days:
        fact_totals, current_totals = (
            fact_sums.get(day, table.zero_totals),
            current_sums.get(day, table.zero_totals),
        )
        expectations[day] = Expectation(
            entries={
                **fact_totals,
                **{f"current {name}": total for name, total in current_totals.items()},
            },
            totals={name: current_totals[name] - fact_totals[name] for name in table.totals},
        )
    return expectations


def build_current_asset(deployment: Deployment, code: Code, table: Current) -> dg.AssetsDefinition:
    """Build the asset of a current table."""
    source = table.source
    policy = source.policy(deployment.settings)

    def compute_days(inputs: AssetInputs, cache: Cache, days: Window) -> ComputedDays:
        """Compute current rows from all raw log days with lines of these days, however late."""
        log = inputs.tables[source.raw.name]
        logged = RecordedReach().deciding_days(log.ledger)
        raw = log.read_days({d for day in days for d in logged(day)})
        lines = dedup.with_event_day(raw, source, deployment.settings.timezone)
        rows = cache(
            dedup.rank_all(lines, source, days, policy.window_days, corrects=policy.corrects)
        )
        expected = current_expectations(table, lines, rows, days, policy)
        whole = inputs.unpartitioned_rows(table.base.unpartitioned, raw.sparkSession)
        return ComputedDays(current_rows(table, rows, days, whole), expected, scattered=True)

    return table_asset(
        deployment, code, table, compute_days, group=table.base.group, lineage=table.lineage
    )


def build_corrections_asset(
    deployment: Deployment, code: Code, table: Corrections
) -> dg.AssetsDefinition:
    """Build the asset of a table of corrections."""

    def compute_days(inputs: AssetInputs, cache: Cache, days: Window) -> ComputedDays:
        """Compute current minus facts from the same days of both tables."""
        sources = [inputs.tables[input_table.name] for input_table in (table.facts, table.current)]
        frames = [source.read_days(days) for source in sources]
        rows = cache(correction_rows(table, *frames))
        columns = {name: name for name in table.totals}
        fact_sums, current_sums = (
            input_sums(source, frame, table.partition, columns, table.zero_totals, days)
            for source, frame in zip(sources, frames, strict=True)
        )
        expected = correction_expectations(table, fact_sums, current_sums, days)
        return ComputedDays(rows, expected, scattered=True)

    return table_asset(
        deployment, code, table, compute_days, group=table.facts.group, lineage=table.lineage
    )
