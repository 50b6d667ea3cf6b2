"""Compare a target with production, table by table."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date

from pyspark.sql import SparkSession

from backfill_assets.backfills import diff
from backfill_assets.backfills.changes import is_commit_of, written_days
from backfill_assets.backfills.diff_query import diff_table
from backfill_assets.calendar.partitions import format_ranges
from backfill_assets.delta import targets
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.ledgers import Ledgers
from backfill_assets.delta.records import CommitRecord
from backfill_assets.delta.targets import ComparisonLimits, Target, TargetError
from backfill_assets.deployment import Deployment
from backfill_assets.shadow.build import built_days, describe_missing_days, refuse_migrated
from backfill_assets.tables.code_version import Code


@dataclass(frozen=True)
class Comparison:
    """The result of comparing a target with production.

    Attributes:
        reports: diffs by table of all days that the target has built: production before, the target
            after.
        problems: mismatches and exceeded limits, a sentence each.
    """

    reports: list[diff.TableDiff] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def compare_target(
    deployment: Deployment,
    spark: SparkSession,
    target: Target,
    code: Code,
    limits: ComparisonLimits | None = None,
) -> Comparison:
    """Compare the days that a target has built with production at the version that the target sees.

    The result is stored with the target. Without `limits`, the limits are those that a switch-over
    of the target requires.

    Raises:
        ReconciliationError: a version cannot be read.
        TargetError: the target is deleted, or a table of it was migrated since.
    """
    refuse_migrated(deployment, target, read_ledgers(deployment))
    limits = limits or target.required or ComparisonLimits()
    comparison = Comparison(problems=list(describe_missing_days(deployment, target, code)))
    ledgers = target.table_ledgers(deployment)
    for name in target.tables:
        ledger, pin = ledgers[name], target.pins[name]
        production_days = frozenset[date]() if pin is None else ledger.as_of(pin).published_days
        versions: dict[date, diff.VersionPair] = {
            day: (pin if day in production_days else None, ledger.version)
            for day in built_days(target, ledger)
        }
        if not versions:
            continue
        table = deployment.tables[name]
        report = diff_table(spark, target.table_url(deployment, name), table, versions, ledger)
        comparison.reports.append(report)
        if missing := report.days_with(diff.DayChangeKind.MISSING):
            comparison.problems.append(
                f"{name} [{format_ranges(d.day for d in missing)}] is missing"
            )
        comparison.problems.extend(exceeded_limits(report, limits))
    comparison.problems.extend(diff.cross_table_mismatches(comparison.reports, ledgers))
    save_comparison(deployment, target, ledgers, limits, comparison.problems)
    return comparison


def comparison_metrics(report: diff.TableDiff) -> dict[str, float | int]:
    """Numbers of a table's comparison that Dagster plots."""
    return {
        "days": len(report.days),
        "changed_days": len(report.days_with(diff.DayChangeKind.CHANGED)),
        "added_days": len(report.days_with(diff.DayChangeKind.ADDED)),
        "missing_days": len(report.days_with(diff.DayChangeKind.MISSING)),
        "rows_change_percent": round(100 * row_change_ratio(report), 4),
        "largest_psi": round(max((d.psi for d in report.drift.values()), default=0.0), 6),
        "largest_ks": round(max((d.ks for d in report.drift.values()), default=0.0), 6),
    }


def exceeded_limits(report: diff.TableDiff, limits: ComparisonLimits) -> Iterator[str]:
    """One sentence for each limit that a table exceeds."""
    name = report.table.name
    for column, drift in report.drift.items():
        if limits.most_drift is not None and drift.psi > limits.most_drift:
            yield f"{name}.{column} has drifted by {drift.psi:.2f}, more than {limits.most_drift:g}"
    share = row_change_ratio(report)
    if limits.most_rows is not None and abs(share) > limits.most_rows:
        yield f"{name} has {share:+.1%} rows, more than {limits.most_rows:.1%} either way"


def row_change_ratio(report: diff.TableDiff) -> float:
    """Relative change of the number of rows, over days that production has too."""
    days = [day for day in report.days if day.before is not None]
    before = sum(day.before.rows for day in days if day.before)
    after = sum(day.after.rows for day in days if day.after)
    return (after - before) / before if before else 0.0


def require_comparison(
    deployment: Deployment, target: Target, limits: ComparisonLimits | None
) -> Target:
    """Require a comparison within limits before a switch-over; None to require none.

    Raises:
        TargetError: the target is being switched over, undone or dropped.
    """
    targets.raise_if_busy(target)
    return targets.save_target(deployment, target.model_copy(update={"required": limits}))


def save_comparison(
    deployment: Deployment,
    target: Target,
    ledgers: Ledgers,
    limits: ComparisonLimits,
    problems: Collection[str],
) -> None:
    """Store the result of a comparison with the target.

    `target` and `ledgers` must be as they were when compared.
    """
    compared = targets.TargetComparison(
        generation=target.generation,
        versions={name: ledgers[name].version or 0 for name in target.tables},
        pins=target.pins,
        bounds=limits,
        problems=tuple(problems),
    )
    targets.update_target(
        deployment, target.name, lambda current: current.model_copy(update={"compared": compared})
    )


def refuse_uncompared(
    deployment: Deployment, target: Target, versions: Mapping[str, int], current: Ledgers
) -> None:
    """Raise if a required comparison of the target is missing, outdated or failed.

    `versions` are the clones' versions to switch over, `current` the ledgers of production.

    Raises:
        TargetError: a required comparison has not passed; nothing was written.
    """
    if target.required is None:
        return
    problem = _missing_comparison(
        target,
        target.required,
        versions,
        "; ".join(_days_published_since(deployment, target, current)),
    )
    if not problem:
        return
    limits_text = f" with {target.required}" if str(target.required) else ""
    raise TargetError(
        f"target {target.name} is not switched over, as it must pass a comparison{limits_text} "
        f"first: {problem}. Nothing was written."
    )


def _missing_comparison(
    target: Target,
    limits: ComparisonLimits,
    versions: Mapping[str, int],
    published_since: str,
) -> str:
    """Why there is no passed comparison, and what to do; empty if there is one."""
    compared = target.compared
    advice = f"run `backfill-assets compare {target.name}` and ask again"
    if compared is None:
        return f"there was none: {advice}"
    if compared.bounds != limits:
        return f"the last one had other bounds: {advice}"
    compared_state = (compared.generation, compared.versions, compared.pins)
    if compared_state != (target.generation, versions, target.pins):
        return f"the target was built on since the last one: {advice}"
    if published_since:
        days = target.requested_windows[-1]
        return (
            f"production has published {published_since} since the last one: catch up "
            f"(`backfill-assets backfill {days} --target {target.name}`), then {advice}"
        )
    if compared.problems:
        return (
            f"the last one found that {'; '.join(compared.problems)}. Mend the code and build "
            f"again; or, if that is as it should be, give other bounds (`backfill-assets compare "
            f"{target.name} --require`, with --most-drift and --most-rows)"
        )
    return ""


def _days_published_since(
    deployment: Deployment, target: Target, current: Ledgers
) -> Iterator[str]:
    """Built days of a target that other runs have published in production since, by table."""
    for name in target.tables:
        days = _published_by_others(current[name].records, target, target.cloned_version(name))
        if rewritten := days & built_days(target, target.table_ledger(deployment, name)):
            yield f"{name} [{format_ranges(rewritten)}]"


def _published_by_others(
    records: Collection[CommitRecord], target: Target, since: int
) -> set[date]:
    """Days written after the version `since`, except by the target's switch-over or its undo."""
    return {
        day
        for record in records
        if record.version > since and not is_commit_of(record, target.name)
        if (record.details.undoes or "").partition("-")[0] != target.name
        for day in written_days(record)
    }
