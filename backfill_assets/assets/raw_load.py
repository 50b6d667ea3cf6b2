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

from backfill_assets.assets.table_asset import (
    delta_assets,
    yield_outputs,
)
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
from backfill_assets.publish.compute import compute_each, compute_together, explain_spark_errors
from backfill_assets.publish.publisher import Publisher
from backfill_assets.spark.frames import Cache, cache_frames
from backfill_assets.staleness.impact import LogChange
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.unloaded import load_targets, loaded_manifests
from backfill_assets.tables.sources import Role, Source, SourceTable
from backfill_assets.transforms import raw_rows


@dataclass(frozen=True)
class PlannedLoad:
    """Days of a source, or of a part of it, that are to be loaded into one of its two tables.

    Attributes:
        plan: of the table.
        log: the ledger of the raw log.
        listing: the folders of the days, and of the day before each.
        targets: by day, what is loaded.
        previous: by day, what was loaded last.
    """

    plan: types.ComputePlan
    log: Ledger
    listing: Listing
    targets: raw_rows.LoadTargets
    previous: Mapping[date, load_manifest.LoadManifest]

    @property
    def table(self) -> SourceTable:
        """The table that is loaded."""
        table: Any = self.plan.table
        return table

    @property
    def source(self) -> Source:
        """The source, or the part of it."""
        return self.table.source

    @property
    def files(self) -> dict[str, ListedFile]:
        """The listed files of the planned days, and of the day before each, by name."""
        folders = self.plan.days.widen_by(before=1)
        return {n: file for day in folders for n, file in self.listing.files_on(day).items()}

    def estimate_rows(self) -> int:
        """Estimate the rows that the days are loaded from."""
        window, log = self.plan.request.window, self.log
        retained_rows = sum(map(self.plan.ledger.estimate_rows, window))
        # Rows that replaced files are compared with.
        compared_rows = sum(map(log.estimate_rows, window.widen_by(before=1, after=1)))
        return self.listing.estimate_rows() + retained_rows + compared_rows


@dataclass(frozen=True)
class RawLoader:
    """Plans and computes the raw days of one run.

    Attributes:
        deployment: whose tables they are.
        sources: the source to load, or its parts, by part.
        publisher: knows what is published, and provides the Spark session.
        cache: caches a frame's rows once they are computed.
        accepted: what a person accepted, from the run's tag.
        close: whether to stop expecting missing folders, from the run's tag.
        reopen: whether to expect them again, from the run's tag.
    """

    deployment: Deployment
    sources: Mapping[str, Source]
    publisher: Publisher
    cache: Cache
    accepted: frozenset[str]
    close: bool = False
    reopen: bool = False
    _parsed: dict[Any, Mapping[str, raw_rows.ParsedFiles]] = field(default_factory=dict)

    def compute(
        self, role: Role, requests: Mapping[str, types.RunRequest]
    ) -> Iterator[Sequence[types.Candidate]]:
        """Yield the days of requests by part, of the log or of the rejected lines.

        Parts with the same days are loaded together.
        """
        tables = {
            part: source.raw if role is Role.LOG else source.rejected
            for part, source in self.sources.items()
        }
        plan = partial(self._plan_parts, tables)

        def load_alone(part: str, request: types.RunRequest) -> Iterator[Sequence[types.Candidate]]:
            yield from self._load(plan({part: request}))

        if len(requests) < 2:
            yield from compute_each(load_alone, requests)
            return
        yield from compute_together(
            tables,
            requests,
            plan=plan,
            group=lambda load: (*load.plan.reasons,),
            compute_planned=self._load,
            compute_alone=load_alone,
        )

    def _plan_parts(
        self, tables: Mapping[str, SourceTable], requests: Mapping[str, types.RunRequest]
    ) -> list[PlannedLoad]:
        """Plan the days of requests; all are read in the session that suits their rows together."""
        loads: list[PlannedLoad] = []
        for part, request in requests.items():
            loads.append(self._plan(tables[part], request, loads))
        return loads

    def _plan(
        self, table: SourceTable, request: types.RunRequest, loads: Sequence[PlannedLoad]
    ) -> PlannedLoad:
        """Plan the days of a request, to be read in the session that suits the rows of `loads`."""
        source, window = table.source, request.window
        ledger = self.publisher.ledger(table)
        log = ledger if table is source.raw else self._raw_ledger(source)
        recorded = loaded_manifests(log)
        previous = {**self._manifests_from_rows(source, log, window, recorded), **recorded}
        listing = self.list_folders(source, window.widen_by(before=1))
        targets = load_targets(
            previous,
            listing,
            window,
            source.policy(self.deployment.settings),
            accepted=self.accepted,
            close=window if self.close else (),
            reopen=window if self.reopen else (),
        )
        snapshot = self._snapshot(request, ledger, targets, previous)
        plan = self.publisher.plan_days(request, table, snapshot, [], partial(self._session, loads))
        return PlannedLoad(plan, log, listing, targets, previous)

    def _session(self, loads: Sequence[PlannedLoad]) -> SparkSession:
        """Return the session that suits the rows that are loaded."""
        return self.publisher.engine.session_for_rows(sum(load.estimate_rows() for load in loads))

    def _raw_ledger(self, source: Source) -> Ledger:
        """Return the current ledger of the raw log of a source."""
        return read_ledger(self.deployment.table_url(source.raw.name), source.raw)

    def list_folders(self, source: Source, days: Iterable[date]) -> Listing:
        """List the folders of arrival days."""
        return list_landing(self.deployment.settings.landing, source, days)

    def _load(self, loads: Sequence[PlannedLoad]) -> Iterator[Sequence[types.Candidate]]:
        """Yield the planned days, the same of each part, loaded from files."""
        first = loads[0]
        if not first.plan.reasons:
            yield [types.Candidate(load.plan) for load in loads]
            return
        days = first.plan.days
        with explain_spark_errors(first.table, days):
            parsed = self.parse_files(first.plan.writer.session, loads)
            lines = parsed[first.source.part].lines
            targets, retained = {}, {}
            for load in loads:
                part = load.source.part
                targets[part] = self.hold_back_lossy_files(load, parsed[part])
                retained[part] = self.retain_rows(lines.sparkSession, load, targets[part])
        parts = [(load.table, targets[load.source.part]) for load in loads]
        rows = raw_rows.selected_rows(lines, parts, days)
        for retained_rows in retained.values():
            if retained_rows.rows is not None:
                rows = rows.unionByName(retained_rows.rows)
        yield [
            types.Candidate(
                load.plan,
                self._expect(
                    load,
                    rows,
                    parsed[load.source.part],
                    targets[load.source.part],
                    retained[load.source.part],
                ),
            )
            for load in loads
        ]

    def _expect(
        self,
        load: PlannedLoad,
        rows: DataFrame,
        parsed_files: raw_rows.ParsedFiles,
        targets: Mapping[date, load_manifest.LoadTarget],
        retained: raw_rows.RetainedRows,
    ) -> types.ComputedDays:
        """Return the loaded days with what is expected of them."""
        source, table, days = load.source, load.table, load.plan.days
        # The input digests are of the files that were really loaded.
        manifests = {day: target.manifest for day, target in targets.items()}
        computed = types.ComputedDays(
            rows,
            raw_expectations.rejected_expectations(parsed_files, targets, retained, days),
            input_digests={day: manifest.content_digest() for day, manifest in manifests.items()},
            numbers=_missing_folder_figures(manifests),
        )
        if table is not source.raw:
            return computed
        figures = raw_expectations.ambiguous_figures(source, parsed_files, targets, days)
        return replace(
            computed.with_numbers(figures),
            expectations=raw_expectations.raw_expectations(
                source,
                parsed_files,
                targets,
                retained,
                days,
                _published_counts(load.log, days),
                self.deployment.settings,
                self.accepted,
            ),
            log_change=LogChange(
                source,
                table.rows_of_part(rows),
                manifests,
                self.deployment.settings.landing,
                load.listing,
                source.policy(self.deployment.settings),
                self.deployment.settings.timezone,
            ),
        )

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

    def parse_files(
        self, session: SessionFactory, loads: Sequence[PlannedLoad]
    ) -> Mapping[str, raw_rows.ParsedFiles]:
        """Parse the files once for both tables, as long as the listing is the same; by part.

        The lines of all parts are in one frame.
        """
        files_by_part = [(load.source.part, frozenset(load.files.values())) for load in loads]
        key = (*loads[0].plan.days,), (*files_by_part,)
        if key not in self._parsed:
            self._parsed[key] = self._parse_folders(session(), loads)
        return self._parsed[key]

    def _parse_folders(
        self, spark: SparkSession, loads: Sequence[PlannedLoad]
    ) -> dict[str, raw_rows.ParsedFiles]:
        """Parse the files; repeat without those that changed since the listing, until none does."""
        source, settings = loads[0].source, self.deployment.settings
        folders, limits = loads[0].plan.days.widen_by(before=1), SizeLimits.from_settings(settings)
        opened = [
            files.open_files(settings.landing, load.source, folders, load.listing, limits)
            for load in loads
        ]
        joined = opened[0].join(opened[1:])
        files.count_lines(spark, source, joined)

        def parse_lines(
            some_files: files.LandingFiles,
        ) -> tuple[DataFrame, dict[str, raw_rows.FileCounts]]:
            # No filter before this: Spark would push it down and parse everything again.
            landed = files.read_lines(spark, some_files, source)
            lines = self.cache(raw_rows.read_versions(landed, source, settings.timezone))
            return lines, raw_rows.count_lines_by_file(lines, source, some_files.line_counts)

        moving: list[set[str]] = [set() for _ in loads]
        while True:
            lines, counts = files.retry_without_bad_files(spark, joined, parse_lines)
            if raw_expectations.drop_ambiguous_files(source, joined, counts):
                continue
            for load, names, part_files in zip(loads, moving, opened, strict=True):
                listed_now = replace(load, listing=self.list_folders(load.source, folders)).files
                names |= {n for n, entry in load.files.items() if listed_now.get(n) != entry}
                part_files.exclude_files(names)
            readable = {file for part_files in opened for file in part_files.files}
            joined.broken = {f: why for f, why in joined.broken.items() if f in readable}
            stale = [file for file in joined.files if file not in readable]
            if not stale:
                break
            joined.files = [file for file in joined.files if file in readable]
        for part_files in opened:
            for file in [file for file in part_files.files if file in joined.broken]:
                part_files.drop_file(file, joined.broken[file])
        return {
            load.source.part: raw_rows.ParsedFiles(
                part_files,
                frozenset(names),
                lines,
                {
                    f.source_file: counts[f.full_name]
                    for f in part_files.files
                    if f.full_name in counts
                },
            )
            for load, names, part_files in zip(loads, moving, opened, strict=True)
        }

    def hold_back_lossy_files(
        self, load: PlannedLoad, parsed_files: raw_rows.ParsedFiles
    ) -> dict[date, load_manifest.LoadTarget]:
        """Return the load targets without unreadable files and replaced files that lose keys."""
        previous, log = load.previous, load.log
        targets = {day: load.targets[day] for day in load.plan.days}
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
            load.source,
            doubtful,
        )
        return {
            day: target.hold_back_files(target.replaced & missing_keys.keys(), previous.get(day))
            for day, target in load_targets.items()
        }

    def _manifests_from_rows(
        self, source: Source, log: Ledger, window: Window, recorded: Collection[date]
    ) -> dict[date, load_manifest.LoadManifest]:
        """Derive the manifests of published days without a recorded one, such as of lost commits.

        The rows tell which files there were, but not their content.
        """
        days = [day for day in window if day in log.published_days and day not in recorded]
        files_by_day: dict[date, dict[str, load_manifest.LoadedFile]] = {day: {} for day in days}
        for table in (source.raw, source.rejected) if days else ():
            ledger = read_ledger(self.deployment.table_url(table.name), table)
            published_days = [day for day in days if day in ledger.published_days]
            if published_days:
                rows = self._published_rows(self.publisher.start_session(), ledger, published_days)
                for day, name in rows.select(table.partition, "source_file").distinct().collect():
                    files_by_day[day][name] = load_manifest.LoadedFile(0, 0, "")
        return {day: load_manifest.LoadManifest(files) for day, files in files_by_day.items()}

    def retain_rows(
        self, spark: SparkSession, load: PlannedLoad, load_targets: raw_rows.LoadTargets
    ) -> raw_rows.RetainedRows:
        """Return the published rows that stay."""
        ledger = load.plan.ledger
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
            raw_rows.rows_to_retain(published, load_targets, days, load.source, table, zone)
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
            loader = RawLoader(
                deployment,
                {part.part: part for part in parts},
                deployment.io_manager(context.resources),
                cache,
                frozenset(name.strip() for name in accepted) - {""},
                close,
                reopen,
            )
            steps = [
                ([part.raw for part in parts], partial(loader.compute, Role.LOG)),
                ([part.rejected for part in parts], partial(loader.compute, Role.REJECTED)),
            ]
            yield from yield_outputs(deployment, context, steps)

    return read_source
