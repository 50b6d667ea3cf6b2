"""Which days a change of the raw log touches: exactly those whose rows it changes, and no other.

Only the keys that changed are looked at, in all their versions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import any_of, packed, windows
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.records import Details
from backfill_assets.engine.caching import caching
from backfill_assets.publish.candidates import Snapshot
from backfill_assets.quality.audit import Verdict
from backfill_assets.tables.sources import Source
from backfill_assets.tables.versions import (
    counts_now,
    greatest_first,
    in_time,
    superseded,
    with_event_day,
)


@dataclass(frozen=True)
class Touched:
    """What a new version of some log days changes downstream.

    Attributes:
        event_days: event days whose staged rows change, or that can be staged for the first time.
        current_days: the same with everything known now, by an endless window.
        log_days: log days whose lateness may change: those that changed themselves, and those of
            the W days after with a line of the same keys.
        spans: by log day, the event days that any version of the keys tells of that changed and
            have a line there. So all log days that decide an event day are those whose spans,
            over all commits, hold it.
    """

    event_days: frozenset[date] = frozenset()
    current_days: frozenset[date] = frozenset()
    log_days: frozenset[date] = frozenset()
    spans: Mapping[date, frozenset[date]] = field(default_factory=dict)

    @property
    def details(self) -> Details:
        """The same for the record of a commit, where `backlog` and `reach` read it."""
        return Details(
            event_days=packed(self.event_days),
            current_days=packed(self.current_days),
            log_days=packed(self.log_days),
            spans={day: packed(told) for day, told in self.spans.items()},
        )


def touched(
    source: Source,
    before: Snapshot | None,
    after: DataFrame,
    verdicts: Sequence[Verdict],
    policy: Policy,
    timezone: str,
) -> Touched:
    """What is touched by the days that passed.

    Args:
        source: of the raw log.
        before: the raw log as it is; none while there is no table.
        after: the raw rows that are about to replace it, of all days of the run.
        verdicts: the verdicts on these days.
        policy: the late-data policy.
        timezone: the business time zone.
    """
    passed = {v.day: v.measured.digest for v in verdicts if v.passed}
    known = before.ledger.published if before else frozenset()
    changed = {
        day
        for day, digest in passed.items()
        if before is None or digest != before.ledger.content(day)
    }
    if not changed:
        return Touched()
    first = frozenset(passed.keys() - known)
    changed_days = any_of(windows(changed), source.raw.partition)
    new = _versions(after.where(changed_days), source, timezone)
    if before is None or not known:
        # An event day can only be built once its own log day is there.
        return Touched(first, first, frozenset(changed), _spans(source, new))
    with caching() as cache:
        old = _versions(before.whole, source, timezone)
        rows = new
        if changed & known:
            was = old.where(changed_days)
            rows = new.exceptAll(was).unionByName(was.exceptAll(new))
        key = list(source.key)
        keys = cache(rows.select(*key).distinct())
        then = cache(old.join(keys, key, "left_semi"))
        now = then.where(f"NOT ({changed_days})").unionByName(new.join(keys, key, "left_semi"))
        spans = _spans(source, now)
        event_days, current_days = _restated(source, then, now, policy)
        # What others did to the log is in no fingerprint of what was built before.
        strange = {day for day in changed & known if before.ledger.current_record(day) is None}
        odd = {day for d in strange for day in policy.may_touch(d)}
        anything = {day for d in strange for day in known if day <= d}
    return Touched(
        ((event_days | odd) & known) | first,
        ((current_days | anything) & known) | first,
        frozenset(changed | _soon_after(changed, spans, policy)),
        spans,
    )


def _versions(raw: DataFrame, source: Source, timezone: str) -> DataFrame:
    """Of raw rows what the rules look at: not from which file they came."""
    dated = with_event_day(raw, source, timezone)
    return dated.select("event_date", *source.fields, "log_date")


def _restated(
    source: Source, then: DataFrame, now: DataFrame, policy: Policy
) -> tuple[frozenset[date], frozenset[date]]:
    """The event days on which other rows of the keys are staged, and count with all known."""
    sides = then.withColumn("_side", F.lit(-1)).unionByName(now.withColumn("_side", F.lit(1)))
    versions = greatest_first(source, "_side", *source.key)
    columns = source.staged.columns
    staged = in_time(policy.window_days) & ~superseded(versions, policy.window_days)
    counts = counts_now(versions, policy.window_days, corrects=policy.corrects)
    ranked = sides.select(
        *columns, _signed(staged).alias("_staged"), _signed(counts).alias("_counts")
    )
    changes = ranked.groupBy(*columns).agg(
        F.sum("_staged").alias("_staged"), F.sum("_counts").alias("_counts")
    )
    days = changes.groupBy("event_date").agg(
        F.max(F.col("_staged") != 0), F.max(F.col("_counts") != 0)
    )
    found = days.collect()
    return (
        frozenset(day for day, staged, _ in found if staged),
        frozenset(day for day, _, counts in found if counts),
    )


def _signed(condition: Column) -> Column:
    return F.when(condition, F.col("_side")).otherwise(0)


def _spans(source: Source, versions: DataFrame) -> dict[date, frozenset[date]]:
    """By log day, the event days of the keys that have a line there.

    Sets of days are slow to build. Nearly all keys have at most two lines: of these, the least
    and the greatest day are all. Keys are told apart by a hash: where two meet, a day counts for
    more log days than it must, and nothing is missed.
    """
    found: dict[date, set[date]] = defaultdict(set)

    def add(pairs: Iterable[tuple[Iterable[date], Iterable[date]]]) -> None:
        for logged, told in pairs:
            for log_day in logged:
                found[log_day].update(told)

    lines = versions.select(F.xxhash64(*source.key).alias("_key"), "log_date", "event_date")
    ends = [end(day) for day in ("log_date", "event_date") for end in (F.min, F.max)]
    names = [f"_{n}" for n in range(len(ends))]
    keys = lines.groupBy("_key").agg(
        *(end.alias(name) for end, name in zip(ends, names, strict=True)),
        F.count(F.lit(1)).alias("_lines"),
    )
    between = (F.col("_lines") > 2) & ((F.col("_0") != F.col("_1")) | (F.col("_2") != F.col("_3")))
    rows = keys.select(*names, between.alias("_between")).distinct().collect()
    add(((row["_0"], row["_1"]), (row["_2"], row["_3"])) for row in rows)
    if any(row["_between"] for row in rows):
        few = lines.join(keys.where(between), "_key", "left_semi").groupBy("_key")
        sets = few.agg(F.collect_set("log_date"), F.collect_set("event_date"))
        add((logged, told) for _, logged, told in sets.collect())
    return {day: frozenset(told) for day, told in sorted(found.items())}


def _soon_after(changed: Iterable[date], among: Iterable[date], policy: Policy) -> set[date]:
    """Those of the log days that follow a changed one within the window."""
    changed = set(changed)
    return {
        day
        for day in among
        if day not in changed and any(before in changed for before in policy.may_touch(day))
    }
