"""Which days a change of the raw log touches: exactly those whose rows it changes, and no other.

The cost follows what changed and the window, not the history: only the orders that changed are
looked at, and only in the log days that decide the event days in question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from pyspark.sql import DataFrame

from backfill_assets.assets.versions import ranked, staged_orders, with_event_day
from backfill_assets.audit import Verdict, measure
from backfill_assets.io_manager import Source
from backfill_assets.lateness import event_days
from backfill_assets.partitions import DAY, Window, any_of, windows
from backfill_assets.schemas import RAW, STAGED
from backfill_assets.spark import keeping


@dataclass(frozen=True)
class Touched:
    """What a new version of some log days changes downstream.

    Attributes:
        event_days: event days whose staged rows change, or that can be staged for the first time.
        log_days: log days whose corrections may change: those that changed themselves, and later
            ones that tell of the same orders.
    """

    event_days: frozenset[date] = frozenset()
    log_days: frozenset[date] = frozenset()


def touched(
    before: Source | None,
    after: DataFrame,
    verdicts: Sequence[Verdict],
    window_days: int,
    timezone: str,
) -> Touched:
    """What is touched by the days that passed.

    Args:
        before: the raw log as it is; none while there is no table.
        after: the raw rows that are about to replace it, of all days of the run.
        verdicts: the verdicts on these days.
        window_days: the reprocessing window W.
        timezone: the business time zone.
    """
    passed = {v.day: v.measured.digest for v in verdicts if v.passed}
    if before is None:
        return Touched(frozenset(passed), frozenset(passed))
    known = before.ledger.published
    first = passed.keys() - known
    changed = {day for day, digest in passed.items() if digest != before.ledger.content(day)}
    if not changed:
        return Touched()
    # An event day can only be staged once its own log day is there.
    doubtful = {d for w in windows(changed) for d in event_days(w, window_days)} & known
    later = {day for day in known if day > min(changed)} - changed
    if not doubtful and not later:
        return Touched(frozenset(first), frozenset(changed))

    changed_days = any_of(windows(changed), RAW.partition)
    new = after.where(changed_days)
    rows = new
    if changed & known:
        old = before.whole.where(changed_days)
        rows = new.exceptAll(old).unionByName(old.exceptAll(new))
    with keeping() as keep:
        orders = keep(rows.select("order_id", RAW.partition).distinct())
        # What others did to the log is in no recipe of what was staged before.
        strange = {day for day in changed & known if before.ledger.stands(day) is None}
        changing = {d for w in windows(strange) for d in event_days(w, window_days)} & doubtful
        changing |= first
        if doubtful:
            whole = before.whole.where(f"NOT ({changed_days})").unionByName(new)
            changing |= _restaged(before.whole, whole, orders, doubtful, window_days, timezone)
        follow = _mentioning(before.whole, orders, later) if later else set()
    return Touched(frozenset(changing), frozenset(changed | follow))


def _restaged(
    before: DataFrame,
    after: DataFrame,
    orders: DataFrame,
    days: set[date],
    window_days: int,
    timezone: str,
) -> set[date]:
    """Those of the days on which the staged rows of the orders differ between the two logs."""
    span = Window(min(days), max(days) + DAY)
    logged = span.widened(after=window_days).predicate(RAW.partition)
    ids = orders.where(logged).select("order_id").distinct()

    def digests(log: DataFrame) -> dict[date | None, str]:
        versions = with_event_day(log.where(logged).join(ids, "order_id", "left_semi"), timezone)
        staged = staged_orders(ranked(versions, span, window_days))
        return {day: measured.digest for day, measured in measure(staged, STAGED).items()}

    old, new = digests(before), digests(after)
    return {day for day in days if old.get(day) != new.get(day)}


def _mentioning(log: DataFrame, orders: DataFrame, days: set[date]) -> set[date]:
    """Those of the log days that have a line of an order which changed on an earlier one."""
    first = orders.groupBy("order_id").agg({RAW.partition: "min"}).toDF("order_id", "_first")
    lines = log.where(any_of(windows(days), RAW.partition)).select("order_id", RAW.partition)
    found = lines.join(first, "order_id").where(f"{RAW.partition} > _first")
    return {row[0] for row in found.select(RAW.partition).distinct().collect()}
