"""A target compared with production: reconciliation between the forks and their tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date

from pyspark.sql import SparkSession

from backfill_assets.backfills.layers import cross_table_mismatches
from backfill_assets.backfills.reconciliation import diff_table
from backfill_assets.backfills.reports import DayChangeKind, TableDiff, VersionPair
from backfill_assets.backfills.target_bounds import (
    exceeded_limits,
    row_change_ratio,
    save_comparison,
)
from backfill_assets.backfills.target_days import built_days, describe_missing_days, refuse_migrated
from backfill_assets.calendar.partitions import format_ranges
from backfill_assets.dagster_ext.internals import BaseAssetGraph
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.delta.targets import ComparisonLimits, ShadowTarget
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import tables_of
from backfill_assets.tables.code_version import Code


@dataclass(frozen=True)
class Comparison:
    """What a comparison of a target found.

    Attributes:
        reports: by table, each day that the target has made: before as production has it, after
            as the target does.
        problems: what does not add up, and which bounds are not kept, a sentence each.
    """

    reports: list[TableDiff] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def compare_target(
    settings: Settings,
    spark: SparkSession,
    graph: BaseAssetGraph,
    target: ShadowTarget,
    code: Code,
    bounds: ComparisonLimits | None = None,
) -> Comparison:
    """Compare the days that a target has made with those of production as the target sees it.

    What was found is kept with the target.

    Args:
        settings: the deployment's settings.
        spark: the session.
        graph: the assets.
        target: the target.
        code: the code.
        bounds: what it must keep to; what a switch-over of it requires, if none are given.

    Raises:
        ReconciliationError: a version cannot be read.
        TargetError: the target is gone, or a table of it was migrated since.
    """
    refuse_migrated(settings, target, read_ledgers(settings))
    bounds = bounds or target.required or ComparisonLimits()
    comparison = Comparison(problems=list(describe_missing_days(settings, graph, target, code)))
    ledgers = target.table_ledgers(settings)
    for name in target.tables:
        ledger, pin = ledgers[name], target.pins[name]
        production_days = frozenset[date]() if pin is None else ledger.as_of(pin).published_days
        versions: dict[date, VersionPair] = {
            day: (pin if day in production_days else None, ledger.version)
            for day in built_days(target, ledger)
        }
        if not versions:
            continue
        table = tables_of(settings)[name]
        report = diff_table(spark, target.table_url(settings, name), table, versions, ledger)
        comparison.reports.append(report)
        if missing := report.days_with(DayChangeKind.MISSING):
            comparison.problems.append(
                f"{name} [{format_ranges(d.day for d in missing)}] is missing"
            )
        comparison.problems.extend(exceeded_limits(report, bounds))
    comparison.problems.extend(cross_table_mismatches(comparison.reports, ledgers))
    save_comparison(settings, target, ledgers, bounds, comparison.problems)
    return comparison


def comparison_metrics(report: TableDiff) -> dict[str, float | int]:
    """A table's comparison in numbers, as Dagster plots them."""
    return {
        "days": len(report.days),
        "changed days": len(report.days_with(DayChangeKind.CHANGED)),
        "added days": len(report.days_with(DayChangeKind.ADDED)),
        "missing days": len(report.days_with(DayChangeKind.MISSING)),
        "rows more, in percent": round(100 * row_change_ratio(report), 4),
        "largest PSI": round(max((d.psi for d in report.drift.values()), default=0.0), 6),
        "largest KS": round(max((d.ks for d in report.drift.values()), default=0.0), 6),
    }
