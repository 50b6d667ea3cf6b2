"""Bounds of a comparison that a switch-over asks for: a passed one, of exactly what is switched."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import date

from backfill_assets.backfills.footprints import belongs, written
from backfill_assets.backfills.reports import Report
from backfill_assets.backfills.target_days import made
from backfill_assets.calendar.partitions import spelled
from backfill_assets.delta import targets
from backfill_assets.delta.ledgers import Ledgers
from backfill_assets.delta.records import Record
from backfill_assets.delta.targets import Bounds, Compared, Target, TargetError
from backfill_assets.settings import Settings


def beyond(report: Report, bounds: Bounds) -> Iterator[str]:
    """Which bounds a table does not keep, a sentence each."""
    name = report.table.name
    for column, drift in report.drift.items():
        if bounds.most_drift is not None and drift.psi > bounds.most_drift:
            yield f"{name}.{column} has drifted by {drift.psi:.2f}, more than {bounds.most_drift:g}"
    share = rows_moved(report)
    if bounds.most_rows is not None and abs(share) > bounds.most_rows:
        yield f"{name} has {share:+.1%} rows, more than {bounds.most_rows:.1%} either way"


def rows_moved(report: Report) -> float:
    """By which share the rows of the days that were there are more, or fewer."""
    days = [day for day in report.days if day.before is not None]
    before = sum(day.before.rows for day in days if day.before)
    after = sum(day.after.rows for day in days if day.after)
    return (after - before) / before if before else 0.0


def require(settings: Settings, target: Target, bounds: Bounds | None) -> Target:
    """Let a switch-over of a target need a comparison that keeps to bounds; or none, if not given.

    Raises:
        TargetError: it is being switched over, undone or dropped.
    """
    targets.refuse_busy(target)
    return targets.keep(settings, target.model_copy(update={"required": bounds}))


def keep_verdict(
    settings: Settings, target: Target, ledgers: Ledgers, bounds: Bounds, problems: Collection[str]
) -> None:
    """Keep with a target what a comparison of it found.

    Args:
        settings: the deployment's settings.
        target: as it was compared.
        ledgers: those of its tables, as they were compared.
        bounds: that they were held against.
        problems: what was found.
    """
    compared = Compared(
        generation=target.generation,
        versions={name: ledgers[name].version or 0 for name in target.tables},
        pins=target.pins,
        bounds=bounds,
        problems=tuple(problems),
    )
    targets.change(settings, target.name, lambda now: now.model_copy(update={"compared": compared}))


def refuse_uncompared(
    settings: Settings, target: Target, versions: Mapping[str, int], now: Ledgers
) -> None:
    """See that a target which must be compared was, as it is, and kept its bounds.

    Args:
        settings: the deployment's settings.
        target: the target.
        versions: by table, that of the fork that is to be switched over.
        now: the tables, as production has them.

    Raises:
        TargetError: it was not; nothing was written.
    """
    if target.required is None:
        return
    why = _lacking(target, target.required, versions, "; ".join(_moved(settings, target, now)))
    if not why:
        return
    bounds = f" with {target.required}" if str(target.required) else ""
    raise TargetError(
        f"target {target.name} is not switched over, as it must pass a comparison{bounds} first: "
        f"{why}. Nothing was written."
    )


def _lacking(target: Target, bounds: Bounds, versions: Mapping[str, int], moved: str) -> str:
    """What is missing of a passed comparison, and what to do; empty if nothing is."""
    compared = target.compared
    again = f"run `backfill-assets compare {target.name}` and ask again"
    if compared is None:
        return f"there was none: {again}"
    if compared.bounds != bounds:
        return f"the last one had other bounds: {again}"
    as_then = (compared.generation, compared.versions, compared.pins)
    if as_then != (target.generation, versions, target.pins):
        return f"the target was built on since the last one: {again}"
    if moved:
        days = target.windows[-1]
        return (
            f"production has published {moved} since the last one: catch up "
            f"(`backfill-assets backfill {days} --target {target.name}`), then {again}"
        )
    if compared.problems:
        return (
            f"the last one found that {'; '.join(compared.problems)}. Mend the code and build "
            f"again; or, if that is as it should be, give other bounds (`backfill-assets compare "
            f"{target.name} --require`, with --most-drift and --most-rows)"
        )
    return ""


def _moved(settings: Settings, target: Target, now: Ledgers) -> Iterator[str]:
    """The days of a target that production has published since, but for those of the target."""
    for name in target.tables:
        days = _published(now[name].records, target, target.since(name))
        if met := days & made(target, target.ledger(settings, name)):
            yield f"{name} [{spelled(met)}]"


def _published(records: Collection[Record], target: Target, since: int) -> set[date]:
    return {
        day
        for record in records
        if record.version > since and not belongs(record, target.name)
        if (record.details.undoes or "").partition("-")[0] != target.name
        for day in written(record)
    }
