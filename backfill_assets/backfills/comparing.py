"""A target compared with production: reconciliation between the forks and their tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date

from pyspark.sql import SparkSession

from backfill_assets.backfills.layers import across_layers
from backfill_assets.backfills.reconciliation import reconcile
from backfill_assets.backfills.reports import Difference, Report, Versions
from backfill_assets.backfills.target_bounds import beyond, keep_verdict, rows_moved
from backfill_assets.backfills.target_days import made, refuse_migrated, unbuilt
from backfill_assets.calendar.partitions import spelled
from backfill_assets.dagster_ext.internals import BaseAssetGraph
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.delta.targets import Bounds, Target
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

    reports: list[Report] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def compare(
    settings: Settings,
    spark: SparkSession,
    graph: BaseAssetGraph,
    target: Target,
    code: Code,
    bounds: Bounds | None = None,
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
    bounds = bounds or target.required or Bounds()
    found = Comparison(problems=list(unbuilt(settings, graph, target, code)))
    ledgers = target.ledgers(settings)
    for name in target.tables:
        ledger, pin = ledgers[name], target.pins[name]
        before = frozenset[date]() if pin is None else ledger.as_of(pin).published
        versions: dict[date, Versions] = {
            day: (pin if day in before else None, ledger.version) for day in made(target, ledger)
        }
        if not versions:
            continue
        table = tables_of(settings)[name]
        report = reconcile(spark, target.url(settings, name), table, versions, ledger)
        found.reports.append(report)
        if missing := report.of(Difference.MISSING):
            found.problems.append(f"{name} [{spelled(d.day for d in missing)}] is missing")
        found.problems.extend(beyond(report, bounds))
    found.problems.extend(across_layers(found.reports, ledgers))
    keep_verdict(settings, target, ledgers, bounds, found.problems)
    return found


def figures(report: Report) -> dict[str, float | int]:
    """A table's comparison in numbers, as Dagster plots them."""
    return {
        "days": len(report.days),
        "changed days": len(report.of(Difference.CHANGED)),
        "added days": len(report.of(Difference.ADDED)),
        "missing days": len(report.of(Difference.MISSING)),
        "rows more, in percent": round(100 * rows_moved(report), 4),
        "largest PSI": round(max((d.psi for d in report.drift.values()), default=0.0), 6),
        "largest KS": round(max((d.ks for d in report.drift.values()), default=0.0), 6),
    }
