"""Bounds of a comparison that a switch-over asks for: a passed one, of exactly what is switched."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import date

from backfill_assets.backfills.footprints import is_commit_of, written_days
from backfill_assets.backfills.reports import TableDiff
from backfill_assets.backfills.target_days import built_days
from backfill_assets.calendar.partitions import format_ranges
from backfill_assets.delta import targets
from backfill_assets.delta.ledgers import Ledgers
from backfill_assets.delta.records import CommitRecord
from backfill_assets.delta.targets import (
    ComparisonLimits,
    ShadowTarget,
    TargetComparison,
    TargetError,
)
from backfill_assets.settings import Settings


def exceeded_limits(report: TableDiff, limits: ComparisonLimits) -> Iterator[str]:
    """Which bounds a table does not keep, a sentence each."""
    name = report.table.name
    for column, drift in report.drift.items():
        if limits.most_drift is not None and drift.psi > limits.most_drift:
            yield f"{name}.{column} has drifted by {drift.psi:.2f}, more than {limits.most_drift:g}"
    share = row_change_ratio(report)
    if limits.most_rows is not None and abs(share) > limits.most_rows:
        yield f"{name} has {share:+.1%} rows, more than {limits.most_rows:.1%} either way"


def row_change_ratio(report: TableDiff) -> float:
    """By which share the rows of the days that were there are more, or fewer."""
    days = [day for day in report.days if day.before is not None]
    before = sum(day.before.rows for day in days if day.before)
    after = sum(day.after.rows for day in days if day.after)
    return (after - before) / before if before else 0.0


def require_comparison(
    settings: Settings, target: ShadowTarget, limits: ComparisonLimits | None
) -> ShadowTarget:
    """Let a switch-over of a target need a comparison that keeps to bounds; or none, if not given.

    Raises:
        TargetError: it is being switched over, undone or dropped.
    """
    targets.refuse_busy(target)
    return targets.save_target(settings, target.model_copy(update={"required": limits}))


def save_comparison(
    settings: Settings,
    target: ShadowTarget,
    ledgers: Ledgers,
    limits: ComparisonLimits,
    problems: Collection[str],
) -> None:
    """Keep with a target what a comparison of it found.

    Args:
        settings: the deployment's settings.
        target: as it was compared.
        ledgers: those of its tables, as they were compared.
        limits: that they were held against.
        problems: what was found.
    """
    compared = TargetComparison(
        generation=target.generation,
        versions={name: ledgers[name].version or 0 for name in target.tables},
        pins=target.pins,
        bounds=limits,
        problems=tuple(problems),
    )
    targets.update_target(
        settings, target.name, lambda current: current.model_copy(update={"compared": compared})
    )


def refuse_uncompared(
    settings: Settings, target: ShadowTarget, versions: Mapping[str, int], current: Ledgers
) -> None:
    """See that a target which must be compared was, as it is, and kept its bounds.

    Args:
        settings: the deployment's settings.
        target: the target.
        versions: by table, that of the fork that is to be switched over.
        current: the tables, as production has them.

    Raises:
        TargetError: it was not; nothing was written.
    """
    if target.required is None:
        return
    problem = _missing_comparison(
        target,
        target.required,
        versions,
        "; ".join(_days_published_since(settings, target, current)),
    )
    if not problem:
        return
    limits_text = f" with {target.required}" if str(target.required) else ""
    raise TargetError(
        f"target {target.name} is not switched over, as it must pass a comparison{limits_text} first: "
        f"{problem}. Nothing was written."
    )


def _missing_comparison(
    target: ShadowTarget,
    limits: ComparisonLimits,
    versions: Mapping[str, int],
    published_since: str,
) -> str:
    """What is missing of a passed comparison, and what to do; empty if nothing is."""
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
    settings: Settings, target: ShadowTarget, current: Ledgers
) -> Iterator[str]:
    """The days of a target that production has published since, but for those of the target."""
    for name in target.tables:
        days = _published_by_others(current[name].records, target, target.fork_version(name))
        if rewritten := days & built_days(target, target.table_ledger(settings, name)):
            yield f"{name} [{format_ranges(rewritten)}]"


def _published_by_others(
    records: Collection[CommitRecord], target: ShadowTarget, since: int
) -> set[date]:
    return {
        day
        for record in records
        if record.version > since and not is_commit_of(record, target.name)
        if (record.details.undoes or "").partition("-")[0] != target.name
        for day in written_days(record)
    }
