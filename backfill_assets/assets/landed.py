"""Days of the log, and their rejected lines, from the landing and from what is published.

What lines mean is decided in `lines`, what a day is to be made of in `manifests`. Here the two
meet: files that can be read are read, and rows of files that are gone or held back are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.landed_expectations import (
    Limits,
    raw_expectations,
    rejected_expectations,
)
from backfill_assets.assets.landed_rows import (
    Kept,
    Lines,
    Reading,
    Targets,
    count_lines,
    kept_rows,
    lost_keys,
    selected_rows,
)
from backfill_assets.assets.lines import read_versions
from backfill_assets.calendar.partitions import DAY, Window, packed
from backfill_assets.calendar.policy import Policy
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.reading import read_ledger
from backfill_assets.delta.snapshots import rows_as_of
from backfill_assets.engine.caching import Cache
from backfill_assets.engine.spark import Engine
from backfill_assets.landing.caps import Caps
from backfill_assets.landing.files import Landing
from backfill_assets.landing.lines import read_lines, readable, survey
from backfill_assets.landing.listing import Entry, Listing, list_landing
from backfill_assets.landing.manifests import Loaded, Manifest, Target, due, news
from backfill_assets.publish.candidates import Built, Plan, Remarks, Snapshot
from backfill_assets.quality.audit import Verdict
from backfill_assets.settings import Settings
from backfill_assets.staleness.arrivals import manifests, targets
from backfill_assets.staleness.finality import settled_days
from backfill_assets.staleness.touched import touched
from backfill_assets.tables.sources import Source
from backfill_assets.tables.table import Table


@dataclass(frozen=True)
class Work:
    """What a run needs to read, cache and decide.

    Attributes:
        settings: the deployment's settings.
        source: whose lines are loaded.
        engine: where the session comes from.
        cache: caches a frame's rows once they are computed.
        accepted: what a person agreed to, by the run's tag.
        close: whether nothing more is expected of days without a folder, by the run's tag.
    """

    settings: Settings
    source: Source
    engine: Engine
    cache: Cache
    accepted: frozenset[str]
    close: bool
    _read: dict[Any, Reading] = field(default_factory=dict)

    @property
    def log(self) -> Ledger:
        """The ledger of the raw log as of now."""
        return read_ledger(self.settings.table(self.source.raw.name), self.source.raw)

    def listed(self, days: Iterable[date]) -> Listing:
        """What lies in the folders of arrival days now."""
        return list_landing(self.settings.landing, self.source, days)

    def plan(self, table: Table, window: Window) -> Plan:
        """The plan of days of the log, or of the rejected lines."""
        source, raw, log = self.source, self.source.raw, self.log
        recorded = manifests(log)
        before = {**self._of_old(log, window, recorded), **recorded}
        listing = self.listed(window.widened(before=1))
        policy = self.source.policy(self.settings)
        first = targets(before, listing, window, policy, accepted=self.accepted, close=self.close)

        def build(days: Window) -> Built:
            reading = self.read(days, listing)
            wanted = self.decide(reading, {day: first[day] for day in days}, before, log)
            ledger = log if table is raw else read_ledger(self.settings.table(table.name), table)
            kept = self.kept(wanted, ledger)
            rows = selected_rows(reading, wanted, source, table, days)
            if kept.rows is not None:
                rows = rows.unionByName(kept.rows)
            fingerprints = {day: one.manifest.fingerprint() for day, one in wanted.items()}
            if table is not raw:
                return Built(
                    rows,
                    rejected_expectations(reading, wanted, kept, days),
                    fingerprints=fingerprints,
                )
            limits = Limits.of(self.settings)
            expectations = raw_expectations(
                source, reading, wanted, kept, days, log, limits, self.accepted
            )

            def remarks(before: Snapshot | None, verdicts: Sequence[Verdict]) -> Remarks:
                return self.remarks(before, rows, verdicts, wanted, listing)

            return Built(rows, expectations, fingerprints=fingerprints, remarks=remarks)

        return Plan(
            {day: one.manifest.fingerprint() for day, one in first.items()},
            build,
            news={day: news(before.get(day), one) for day, one in first.items()},
        )

    def read(self, days: Window, listing: Listing) -> Reading:
        """One reading for both tables, as long as the same files are there."""
        folders = days.widened(before=1)
        entries = {name: entry for day in folders for name, entry in listing.files(day).items()}
        key = days, frozenset(entries.values())
        if key not in self._read:
            self._read[key] = self._reading(folders, listing, entries)
        return self._read[key]

    def _reading(self, folders: Window, listing: Listing, entries: Mapping[str, Entry]) -> Reading:
        spark, source = self.engine.spark_session, self.source
        caps = Caps.of(self.settings)
        found = survey(spark, self.settings.landing, source, folders, listing, caps)

        def parse(part: Landing) -> tuple[DataFrame, dict[str, Lines]]:
            # No filter before this: Spark would push it down and parse all once more.
            landed = read_lines(spark, part, source)
            lines = self.cache(read_versions(landed, source, self.settings.timezone))
            return lines, count_lines(lines, source, part.counts)

        moving: set[str] = set()
        while True:
            lines, counts = readable(spark, found, parse)
            again = self.listed(folders)
            there = {name: file for day in folders for name, file in again.files(day).items()}
            moving |= {name for name, entry in entries.items() if there.get(name) != entry}
            if not found.leave_out(moving):
                return Reading(found, frozenset(moving), lines, counts)

    def decide(
        self,
        reading: Reading,
        targets: Targets,
        before: Mapping[date, Manifest],
        log: Ledger,
    ) -> dict[date, Target]:
        """What the days are made of, now that the files have been read."""
        away = reading.moving | reading.found.unreadable
        wanted = {day: one.without(away, before.get(day)) for day, one in targets.items()}
        doubtful = {name for one in wanted.values() for name in one.replaced}
        # A file has rows on its own log day and the next: also those that this run is not for.
        near = {
            d for day, one in wanted.items() if one.replaced for d in (day - DAY, day, day + DAY)
        }
        days = sorted(near & log.published)
        if not days:
            return wanted
        lost = lost_keys(self._published(log, days), reading.lines, self.source, doubtful)
        return {
            day: one.holding(one.replaced & lost.keys(), before.get(day))
            for day, one in wanted.items()
        }

    def _of_old(
        self, log: Ledger, window: Window, recorded: Collection[date]
    ) -> dict[date, Manifest]:
        """The manifests of days that were published when none were recorded, by their rows.

        Which files there were is known, but not what they held.
        """
        days = [day for day in window if day in log.published and day not in recorded]
        found: dict[date, dict[str, Loaded]] = {day: {} for day in days}
        for table in (self.source.raw, self.source.rejected) if days else ():
            ledger = read_ledger(self.settings.table(table.name), table)
            there = [day for day in days if day in ledger.published]
            if there:
                rows = self._published(ledger, there)
                for day, name in rows.select(table.partition, "source_file").distinct().collect():
                    found[day][name] = Loaded(0, 0, "")
        return {day: Manifest(files) for day, files in found.items()}

    def kept(self, wanted: Targets, ledger: Ledger) -> Kept:
        """The rows that stay of a table."""
        days = [day for day, one in wanted.items() if day in ledger.published and one.kept]
        if not days:
            return Kept()
        table, zone = ledger.table, self.settings.timezone
        before = self._published(ledger, days)
        rows = self.cache(kept_rows(before, wanted, days, self.source, table, zone))
        counts = rows.groupBy(table.partition).agg(
            F.count(F.lit(1)), F.count_if(F.col("_elsewhere"))
        )
        found = {day: numbers for day, *numbers in counts.collect()}
        return Kept(
            rows.drop("_elsewhere"),
            {day: count for day, (count, _) in found.items()},
            {day: count for day, (_, count) in found.items()},
        )

    def _published(self, ledger: Ledger, days: Collection[date]) -> DataFrame:
        url, spark = self.settings.table(ledger.table.name), self.engine.spark_session
        return rows_as_of(spark, url, ledger.table, ledger.version or 0, days)

    def remarks(
        self,
        before: Snapshot | None,
        rows: DataFrame,
        verdicts: Sequence[Verdict],
        wanted: Targets,
        listing: Listing,
    ) -> Remarks:
        """What a commit of raw tells those who follow it.

        It is read by `arrivals`, `finality`, `backlog` and `reach`.
        """
        policy = self.source.policy(self.settings)
        changes = touched(self.source, before, rows, verdicts, policy, self.settings.timezone)
        loaded = {v.day: wanted[v.day].manifest for v in verdicts if v.passed}
        log = before.ledger if before else Ledger(self.source.raw)
        was, now = self._settled(log, loaded, listing, policy)
        details = msgspec.structs.replace(
            changes.details,
            landing={day: manifest.as_json for day, manifest in loaded.items()},
            settled=packed(now - was),
            unsettled=packed(was - now),
        )
        return Remarks(details=details)

    def _settled(
        self, log: Ledger, loaded: Mapping[date, Manifest], listing: Listing, policy: Policy
    ) -> tuple[set[date], set[date]]:
        """Of the log days that may have been settled or unsettled: settled before, and after."""
        known = {**manifests(log), **loaded}
        around = Window(min(loaded), max(loaded) + DAY).widened(
            before=policy.window_days, after=policy.window_days
        )
        # And those that waited for something, whatever became of it.
        settled = settled_days(log)
        near = [day for day in known if day in around or day not in settled]
        folders = {folder for day in near for folder in (day - DAY, day)} - listing.asked
        others = self.listed(sorted(folders))
        whole = replace(listing, folders={**others.folders, **listing.folders})
        wanted = targets(known, whole, near, policy)
        now = {
            day
            for day, one in wanted.items()
            if one.manifest.settled(day, policy.start) and not due(known[day], one)
        }
        return settled & set(near), now
