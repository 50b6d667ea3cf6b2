"""The raw assets of a source: its log and its rejected lines, loaded from the landing in one step.

Files that can be read are parsed; rows of files that are gone or held back are retained. `raw_rows`
parses lines; `landing.load_manifest` decides what a day is loaded from.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.assets.table_asset import delta_assets, yield_outputs
from backfill_assets.audit import raw_expectations
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.data_files import rows_as_of
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.table_schema import SessionFactory
from backfill_assets.deployment import Deployment
from backfill_assets.landing import files, load_manifest
from backfill_assets.landing.listing import ListedFile, Listing, list_landing
from backfill_assets.landing.size_limits import SizeLimits
from backfill_assets.publish import types
from backfill_assets.publish.compute import explain_spark_errors
from backfill_assets.publish.publisher import Publisher
from backfill_assets.spark.frames import Cache, cache_frames
from backfill_assets.staleness.impact import LogChange
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.unloaded import load_targets, loaded_manifests
from backfill_assets.tables.sources import Source
from backfill_assets.tables.table import Table
from backfill_assets.transforms import raw_rows


@dataclass(frozen=True)
class RawLoader:
    """Plans and computes the raw days of one run.

    Attributes:
        deployment: whose tables they are.
        source: the source to load.
        publisher: knows what is published, and provides the Spark session.
        cache: caches a frame's rows once they are computed.
        accepted: what a person accepted, from the run's tag.
        close: whether to stop expecting missing folders, from the run's tag.
        reopen: whether to expect them again, from the run's tag.
    """

    deployment: Deployment
    source: Source
    publisher: Publisher
    cache: Cache
    accepted: frozenset[str]
    close: bool = False
    reopen: bool = False
    _parsed: dict[Any, raw_rows.ParsedFiles] = field(default_factory=dict)

    @property
    def raw_ledger(self) -> Ledger:
        """The current ledger of the raw log."""
        return read_ledger(self.deployment.table_url(self.source.raw.name), self.source.raw)

    def list_folders(self, days: Iterable[date]) -> Listing:
        """List the folders of arrival days."""
        return list_landing(self.deployment.settings.landing, self.source, days)

    def compute(self, table: Table, request: types.RunRequest) -> Iterator[types.Candidate]:
        """Yield the days of a request, of the log or of the rejected lines, loaded from files."""
        source, raw, window = self.source, self.source.raw, request.window
        ledger = self.publisher.ledger(table)
        log = ledger if table is raw else self.raw_ledger
        recorded = loaded_manifests(log)
        previous = {**self._manifests_from_rows(log, window, recorded), **recorded}
        listing = self.list_folders(window.widen_by(before=1))
        session = partial(self._start_session, listing, log, ledger, window)
        policy = self.source.policy(self.deployment.settings)
        targets = load_targets(
            previous,
            listing,
            window,
            policy,
            accepted=self.accepted,
            close=window if self.close else (),
            reopen=window if self.reopen else (),
        )
        snapshot = self._snapshot(request, ledger, targets, previous)
        plan = self.publisher.plan_days(request, table, snapshot, [], session)
        if not plan.reasons:
            yield types.Candidate(plan)
            return
        with explain_spark_errors(table, plan.days):
            parsed_files = self.parse_files(session, plan.days, listing)
            targets = self.hold_back_lossy_files(
                parsed_files, {day: targets[day] for day in plan.days}, previous, log
            )
            retained = self.retain_rows(parsed_files.lines.sparkSession, targets, ledger)
        rows = raw_rows.selected_rows(parsed_files, targets, source, table, plan.days)
        if retained.rows is not None:
            rows = rows.unionByName(retained.rows)
        # The input digests are of the files that were really loaded.
        manifests = {day: target.manifest for day, target in targets.items()}
        computed = types.ComputedDays(
            rows,
            raw_expectations.rejected_expectations(parsed_files, targets, retained, plan.days),
            input_digests={day: manifest.content_digest() for day, manifest in manifests.items()},
            numbers=_missing_folder_figures(manifests),
        )
        if table is raw:
            figures = raw_expectations.ambiguous_figures(source, parsed_files, targets, plan.days)
            computed = replace(
                computed.with_numbers(figures),
                expectations=raw_expectations.raw_expectations(
                    source,
                    parsed_files,
                    targets,
                    retained,
                    plan.days,
                    _published_counts(log, plan.days),
                    self.deployment.settings,
                    self.accepted,
                ),
                log_change=LogChange(
                    source,
                    rows,
                    manifests,
                    self.deployment.settings.landing,
                    listing,
                    policy,
                    self.deployment.settings.timezone,
                ),
            )
        yield types.Candidate(plan, computed)

    def _snapshot(
        self,
        request: types.RunRequest,
        ledger: Ledger,
        targets: raw_rows.LoadTargets,
        previous: Mapping[date, load_manifest.LoadManifest],
    ) -> Snapshot:
        """Return what the days of a table are assessed from: the files to load, and the changes."""
        changes = {
            day: load_manifest.describe_change(day, previous.get(day), target)
            for day, target in targets.items()
        }
        digests = {day: target.manifest.content_digest() for day, target in targets.items()}
        name = ledger.table.name
        return self.publisher.snapshot(
            request,
            self.deployment.graph,
            {name: ledger},
            digests={name: digests},
            changes={name: changes},
        )

    def _start_session(
        self, listing: Listing, log: Ledger, ledger: Ledger, window: Window
    ) -> SparkSession:
        """Return the session that suits the rows that days of a table are loaded from."""
        retained_rows = sum(map(ledger.estimate_rows, window))
        # Rows that replaced files are compared with.
        compared_rows = sum(map(log.estimate_rows, window.widen_by(before=1, after=1)))
        rows = listing.estimate_rows() + retained_rows + compared_rows
        return self.publisher.engine.session_for_rows(rows)

    def parse_files(
        self, session: SessionFactory, days: Window, listing: Listing
    ) -> raw_rows.ParsedFiles:
        """Parse the files once for both tables, as long as the listing is the same."""
        folders = days.widen_by(before=1)
        entries = {name: entry for day in folders for name, entry in listing.files_on(day).items()}
        key = days, frozenset(entries.values())
        if key not in self._parsed:
            self._parsed[key] = self._parse_folders(session(), folders, listing, entries)
        return self._parsed[key]

    def _parse_folders(
        self,
        spark: SparkSession,
        folders: Window,
        listing: Listing,
        entries: Mapping[str, ListedFile],
    ) -> raw_rows.ParsedFiles:
        """Parse the files; repeat without those that changed since the listing, until none does."""
        source = self.source
        limits = SizeLimits.from_settings(self.deployment.settings)
        landing_files = files.probe_files(
            spark, self.deployment.settings.landing, source, folders, listing, limits
        )

        def parse_lines(
            part: files.LandingFiles,
        ) -> tuple[DataFrame, dict[str, raw_rows.FileCounts]]:
            # No filter before this: Spark would push it down and parse everything again.
            landed = files.read_lines(spark, part, source)
            lines = self.cache(
                raw_rows.read_versions(landed, source, self.deployment.settings.timezone)
            )
            return lines, raw_rows.count_lines_by_file(lines, source, part.line_counts)

        moving: set[str] = set()
        while True:
            lines, counts = files.retry_without_bad_files(spark, landing_files, parse_lines)
            if raw_expectations.drop_ambiguous_files(source, landing_files, counts):
                continue
            second_listing = self.list_folders(folders)
            current_files = {
                name: file for day in folders for name, file in second_listing.files_on(day).items()
            }
            moving |= {name for name, entry in entries.items() if current_files.get(name) != entry}
            if not landing_files.exclude_files(moving):
                return raw_rows.ParsedFiles(landing_files, frozenset(moving), lines, counts)

    def hold_back_lossy_files(
        self,
        parsed_files: raw_rows.ParsedFiles,
        targets: raw_rows.LoadTargets,
        previous: Mapping[date, load_manifest.LoadManifest],
        log: Ledger,
    ) -> dict[date, load_manifest.LoadTarget]:
        """Return the load targets without unreadable files and replaced files that lose keys."""
        unread = parsed_files.moving | parsed_files.landing_files.broken_names
        load_targets = {
            day: target.without_files(unread, previous.get(day)) for day, target in targets.items()
        }
        doubtful = {name for target in load_targets.values() for name in target.replaced}
        # A file has rows on its own log day and the next, also outside of the run's days.
        nearby_days = {
            d
            for day, target in load_targets.items()
            if target.replaced
            for d in (day - DAY, day, day + DAY)
        }
        days = sorted(nearby_days & log.published_days)
        if not days:
            return load_targets
        missing_keys = raw_rows.lost_keys(
            self._published_rows(parsed_files.lines.sparkSession, log, days),
            parsed_files.lines,
            self.source,
            doubtful,
        )
        return {
            day: target.hold_back_files(target.replaced & missing_keys.keys(), previous.get(day))
            for day, target in load_targets.items()
        }

    def _manifests_from_rows(
        self, log: Ledger, window: Window, recorded: Collection[date]
    ) -> dict[date, load_manifest.LoadManifest]:
        """Derive the manifests of published days without a recorded one, such as of lost commits.

        The rows tell which files there were, but not their content.
        """
        days = [day for day in window if day in log.published_days and day not in recorded]
        files_by_day: dict[date, dict[str, load_manifest.LoadedFile]] = {day: {} for day in days}
        for table in (self.source.raw, self.source.rejected) if days else ():
            ledger = read_ledger(self.deployment.table_url(table.name), table)
            published_days = [day for day in days if day in ledger.published_days]
            if published_days:
                rows = self._published_rows(self.publisher.start_session(), ledger, published_days)
                for day, name in rows.select(table.partition, "source_file").distinct().collect():
                    files_by_day[day][name] = load_manifest.LoadedFile(0, 0, "")
        return {day: load_manifest.LoadManifest(files) for day, files in files_by_day.items()}

    def retain_rows(
        self, spark: SparkSession, load_targets: raw_rows.LoadTargets, ledger: Ledger
    ) -> raw_rows.RetainedRows:
        """Return the published rows that stay."""
        days = [
            day
            for day, target in load_targets.items()
            if day in ledger.published_days and target.retained_files
        ]
        if not days:
            return raw_rows.RetainedRows()
        table, zone = ledger.table, self.deployment.settings.timezone
        published = self._published_rows(spark, ledger, days)
        rows = self.cache(
            raw_rows.rows_to_retain(published, load_targets, days, self.source, table, zone)
        )
        counts = rows.groupBy(table.partition).agg(
            F.count(F.lit(1)), F.count_if(F.col("_elsewhere"))
        )
        counts_by_day = {day: numbers for day, *numbers in counts.collect()}
        return raw_rows.RetainedRows(
            rows.drop("_elsewhere"),
            {day: count for day, (count, _) in counts_by_day.items()},
            {day: count for day, (_, count) in counts_by_day.items()},
        )

    def _published_rows(
        self, spark: SparkSession, ledger: Ledger, days: Collection[date]
    ) -> DataFrame:
        url = self.deployment.table_url(ledger.table.name)
        return rows_as_of(spark, url, ledger.table, ledger.version or 0, days)


def _missing_folder_figures(
    manifests: Mapping[date, load_manifest.LoadManifest],
) -> dict[date, dict[str, Any]]:
    """Return, by day without a folder, whether one is expected."""
    return {
        day: {"arrival_folder": "none is expected" if manifest.closed else "none yet"}
        for day, manifest in manifests.items()
        if day not in manifest.present_days
    }


def _published_counts(log: Ledger, days: Window) -> raw_expectations.PublishedCounts:
    records = {day: record for day in days if (record := log.current_record(day))}
    return raw_expectations.PublishedCounts(
        {day: record.rows for day, record in records.items()},
        {day: record.days[day].entries for day, record in log.latest.items()},
        log.published_days,
    )


def build_raw_assets(deployment: Deployment, parts: Sequence[Source]) -> dg.AssetsDefinition:
    """Build the assets of a source's log and rejected lines, or of those of the parts of one.

    They are one step, as files are read once.
    """
    source = parts[0]

    @delta_assets(
        deployment,
        name=f"read_{source.name}",
        tables=[source.raw, source.rejected],
        group="raw",
    )
    def read_source(context: dg.AssetExecutionContext) -> Iterator:
        tags = context.run.tags
        accepted = tags.get(raw_expectations.ACCEPT_TAG, "").split(",")
        close, reopen = (
            tags.get(tag, "").lower() == "true" for tag in (types.CLOSE_TAG, types.REOPEN_TAG)
        )
        with cache_frames() as cache:
            loaders = [
                RawLoader(
                    deployment,
                    part,
                    deployment.io_manager(context.resources),
                    cache,
                    frozenset(name.strip() for name in accepted) - {""},
                    close,
                    reopen,
                )
                for part in parts
            ]
            logs = [(x.source.raw, partial(x.compute, x.source.raw)) for x in loaders]
            rejected = [(x.source.rejected, partial(x.compute, x.source.rejected)) for x in loaders]
            yield from yield_outputs(deployment, context, [*logs, *rejected])

    return read_source
