"""Impact of a change of the raw log: the days whose rows it changes, and those it settles.

Only keys with changed lines are read, with all their versions.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.audit.verdicts import Verdict
from backfill_assets.calendar import partitions
from backfill_assets.calendar.late_data import Policy
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitDetails
from backfill_assets.landing.listing import Listing, list_landing
from backfill_assets.landing.load_manifest import LoadManifest, needs_reload
from backfill_assets.spark.frames import cache_frames
from backfill_assets.staleness.finality import settled_days
from backfill_assets.staleness.unloaded import load_targets, loaded_manifests
from backfill_assets.tables.sources import Source
from backfill_assets.transforms import dedup

#: The keys of so many rows fit into each task.
_BROADCAST_ROWS = 1_000_000


@dataclass(frozen=True)
class ChangeImpact:
    """Days affected by new versions of some log days.

    Attributes:
        event_days: event days whose staged rows change, or that can be staged for the first time.
        current_days: event days whose rows change in current tables, which have an endless window.
        log_days: log days whose lateness may change: the changed days, and those of the W days
            after with a line of the same keys.
        spans: by log day, the event days of all versions of the changed keys that have a line on
            it. The log days that decide an event day are those whose spans, over all commits,
            contain it.
    """

    event_days: frozenset[date] = frozenset()
    current_days: frozenset[date] = frozenset()
    log_days: frozenset[date] = frozenset()
    spans: Mapping[date, frozenset[date]] = field(default_factory=dict)

    @property
    def as_details(self) -> CommitDetails:
        """The details of a commit, read by `staleness.stale` and `calendar.reach`."""
        return CommitDetails(
            event_days=partitions.to_ranges(self.event_days),
            current_days=partitions.to_ranges(self.current_days),
            log_days=partitions.to_ranges(self.log_days),
            spans={day: partitions.to_ranges(event_days) for day, event_days in self.spans.items()},
        )


def impact_of(
    source: Source,
    before: TableSnapshot,
    after: DataFrame,
    verdicts: Sequence[Verdict],
    policy: Policy,
    timezone: str,
) -> ChangeImpact:
    """Return the impact of the log days that passed the audit.

    `before` is the published raw log, `after` the rows of all days of the run that will replace it.
    """
    passed = {v.day: v.metrics.digest for v in verdicts if v.may_publish}
    published_days = before.ledger.published_days
    changed = {day for day, digest in passed.items() if digest != before.ledger.content_key(day)}
    if not changed:
        return ChangeImpact()
    first_days = frozenset(passed.keys() - published_days)
    changed_days = partitions.days_condition(changed, source.raw.partition)
    changed_rows = sum(
        verdict.metrics.rows + (before.ledger.rows_of(verdict.day) or 0)
        for verdict in verdicts
        if verdict.day in changed
    )
    new_versions = _row_versions(after.where(changed_days), source, timezone)
    if not published_days:
        # An event day can only be built once its own log day is loaded.
        return ChangeImpact(
            first_days, first_days, frozenset(changed), _event_days_by_log_day(source, new_versions)
        )
    with cache_frames() as cache:
        old_versions = _row_versions(before.all_rows, source, timezone)
        key = list(source.key)
        # Of days that are published for the first time, all lines are new.
        keys = new_versions.select(*key)
        if changed & published_days:
            sides = _both_sides(old_versions.where(changed_days), new_versions)
            copies = sides.groupBy(*new_versions.columns).agg(F.sum("_side").alias("_side"))
            keys = cache(copies.where("_side != 0").select(*key).distinct())
        # The log may be long, and Spark does not know beforehand how few keys there are.
        joined_keys = F.broadcast(keys) if changed_rows <= _BROADCAST_ROWS else keys
        previous = cache(old_versions.join(joined_keys, key, "left_semi"))
        if changed & published_days:
            new_versions = new_versions.join(joined_keys, key, "left_semi")
        current = previous.where(f"NOT ({changed_days})").unionByName(new_versions)
        spans = _event_days_by_log_day(source, current)
        event_days, current_days = _changed_event_days(source, previous, current, policy)
        # Changes of the log by other writers are in no input digest of an earlier build.
        foreign_days = {
            day for day in changed & published_days if before.ledger.current_record(day) is None
        }
        foreign_event_days = {day for d in foreign_days for day in policy.affected_event_days(d)}
        earlier_days = {day for d in foreign_days for day in published_days if day <= d}
    return ChangeImpact(
        ((event_days | foreign_event_days) & published_days) | first_days,
        ((current_days | earlier_days) & published_days) | first_days,
        frozenset(changed | _days_soon_after(changed, spans, policy)),
        spans,
    )


def _row_versions(raw: DataFrame, source: Source, timezone: str) -> DataFrame:
    """Select the columns that decide versions, without the file that a row came from."""
    dated = dedup.with_event_day(raw, source, timezone)
    return dated.select(dedup.version_columns(source))


def _changed_event_days(
    source: Source, previous: DataFrame, current: DataFrame, policy: Policy
) -> tuple[frozenset[date], frozenset[date]]:
    """Return the event days whose staged rows change, and those whose current rows change."""
    sides = _both_sides(previous, current)
    versions = dedup.greatest_first(source, "_side", *source.key)
    columns = source.staged.columns
    in_time = F.expr(dedup.within_window(policy.window_days))
    staged = in_time & ~F.expr(dedup.is_superseded(versions, policy.window_days))
    counts = F.expr(dedup.is_latest(versions, policy.window_days, corrects=policy.corrects))
    ranked = sides.select(
        *columns, _signed_side(staged).alias("_staged"), _signed_side(counts).alias("_counts")
    )
    changes = ranked.groupBy(*columns).agg(
        F.sum("_staged").alias("_staged"), F.sum("_counts").alias("_counts")
    )
    days = changes.groupBy("event_date").agg(
        F.max(F.col("_staged") != 0), F.max(F.col("_counts") != 0)
    )
    changed_rows = days.collect()
    return (
        frozenset(day for day, staged, _ in changed_rows if staged),
        frozenset(day for day, _, counts in changed_rows if counts),
    )


def _both_sides(previous: DataFrame, current: DataFrame) -> DataFrame:
    """Return the rows of both, with `_side`: -1 for previous rows, 1 for current rows."""
    return previous.withColumn("_side", F.lit(-1)).unionByName(
        current.withColumn("_side", F.lit(1))
    )


def _signed_side(condition: Column) -> Column:
    return F.when(condition, F.col("_side")).otherwise(0)


def _event_days_by_log_day(source: Source, versions: DataFrame) -> dict[date, frozenset[date]]:
    """Return, by log day, the event days of the keys that have a line on it.

    Sets of days are slow to build, and nearly all keys have at most two lines: for these, the least
    and the greatest day suffice. Keys are compared by a hash: a collision adds event days to a log
    day, and loses none.
    """
    spans: dict[date, set[date]] = defaultdict(set)

    def add_spans(pairs: Iterable[tuple[Iterable[date], Iterable[date]]]) -> None:
        for log_days, event_days in pairs:
            for log_day in log_days:
                spans[log_day].update(event_days)

    lines = versions.select(F.xxhash64(*source.key).alias("_key"), "log_date", "event_date")
    ends = [end(day) for day in ("log_date", "event_date") for end in (F.min, F.max)]
    names = [f"_{n}" for n in range(len(ends))]
    keys = lines.groupBy("_key").agg(
        *(end.alias(name) for end, name in zip(ends, names, strict=True)),
        F.count(F.lit(1)).alias("_lines"),
    )
    between = (F.col("_lines") > 2) & ((F.col("_0") != F.col("_1")) | (F.col("_2") != F.col("_3")))
    rows = keys.select(*names, between.alias("_between")).distinct().collect()
    add_spans(((row["_0"], row["_1"]), (row["_2"], row["_3"])) for row in rows)
    if any(row["_between"] for row in rows):
        few = lines.join(keys.where(between), "_key", "left_semi").groupBy("_key")
        sets = few.agg(F.collect_set("log_date"), F.collect_set("event_date"))
        add_spans((log_days, event_days) for _, log_days, event_days in sets.collect())
    return {day: frozenset(event_days) for day, event_days in sorted(spans.items())}


def _days_soon_after(changed: Iterable[date], among: Iterable[date], policy: Policy) -> set[date]:
    """Return the log days of `among` that follow a changed one within the window."""
    changed = set(changed)
    return {
        day
        for day in among
        if day not in changed
        and any(before in changed for before in policy.affected_event_days(day))
    }


@dataclass(frozen=True)
class LogChange:
    """New versions of days of a raw log, that are about to be committed.

    Attributes:
        source: of the log.
        rows: of all its days.
        manifests: by day, what it is loaded from.
        landing: the URL of the landing.
        listing: of the folders that the days were loaded from.
        policy: the source's late-data policy.
        timezone: of event times.
    """

    source: Source
    rows: DataFrame
    manifests: Mapping[date, LoadManifest]
    landing: str
    listing: Listing
    policy: Policy
    timezone: str

    def details_for(self, before: TableSnapshot, verdicts: Sequence[Verdict]) -> CommitDetails:
        """Return what a commit of the days that passed the audit records for downstream tables.

        `before` is the log as it is published. The details are read in `staleness` and by
        `calendar.reach`.
        """
        impact = impact_of(self.source, before, self.rows, verdicts, self.policy, self.timezone)
        loaded = {v.day: self.manifests[v.day] for v in verdicts if v.may_publish}
        settled_before, settled_after = self._settled_before_and_after(before.ledger, loaded)
        return msgspec.structs.replace(
            impact.as_details,
            landing={day: manifest.as_json for day, manifest in loaded.items()},
            settled=partitions.to_ranges(settled_after - settled_before),
            unsettled=partitions.to_ranges(settled_before - settled_after),
        )

    def _settled_before_and_after(
        self, log: Ledger, loaded: Mapping[date, LoadManifest]
    ) -> tuple[set[date], set[date]]:
        """Return, of the log days whose state may have changed, those settled before and after."""
        known = {**loaded_manifests(log), **loaded}
        around = partitions.DaySet.from_days(loaded).widen_by(
            before=self.policy.window_days, after=self.policy.window_days
        )
        # Also all unsettled days: what they waited for may have come.
        settled = settled_days(log)
        affected_days = [day for day in known if day in around or day not in settled]
        folders = {
            folder for day in affected_days for folder in (day - partitions.DAY, day)
        } - self.listing.requested_days
        other_listing = list_landing(self.landing, self.source, sorted(folders))
        full_listing = replace(
            self.listing, folders={**other_listing.folders, **self.listing.folders}
        )
        targets = load_targets(known, full_listing, affected_days, self.policy)
        settled_after = {
            day
            for day, target in targets.items()
            if target.manifest.is_complete(day, self.policy.start)
            and not needs_reload(known[day], target)
        }
        return settled & set(affected_days), settled_after
