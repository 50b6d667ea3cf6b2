"""Maintenance: compacts small files and deletes files past the undo time; it changes no row.

The setting `undo_days` says how long replaced files are kept. Each table has it as a property too,
so that a VACUUM by anybody keeps them. Only this module compacts tables and deletes replaced files.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from math import ceil
from urllib.parse import unquote

import dagster as dg
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pydantic import Field
from pyspark.sql import SparkSession
from rich.filesize import decimal as in_bytes

from backfill_assets.audit.verdicts import NO_ROWS, measure_days, rows_differ
from backfill_assets.calendar.partitions import format_ranges
from backfill_assets.dagster_ext.failures import is_engine_lost
from backfill_assets.delta import commits, ledger_reader
from backfill_assets.delta.commit_log import CommitLog
from backfill_assets.delta.commits import (
    PublishError,
    Writer,
    format_properties,
    is_conflict,
    summarize_error,
    table_properties,
)
from backfill_assets.delta.consistent_versions import VERSIONS_FILE, versions_that_belong_together
from backfill_assets.delta.data_files import abandoned_folders, rows_as_of
from backfill_assets.delta.delta_rs import delta_log, files_of_part, load_log, read_metadata
from backfill_assets.delta.table_schema import schema_differences, suggest_fix
from backfill_assets.delta.targets import ANY_AGE, targets_older_than
from backfill_assets.deployment import ENGINE_KEY, Deployment
from backfill_assets.escaping import escape_markdown
from backfill_assets.report import ReportTable
from backfill_assets.settings import PREFIX
from backfill_assets.spark.filesystems import delete_folder, open_store
from backfill_assets.spark.session import SPARK_ERRORS
from backfill_assets.tables.table import Table

#: Target file size of OPTIMIZE, in bytes.
_FILE_SIZE = 1 << 30


@dataclass(frozen=True)
class TableFiles:
    """Number and bytes of the data files of one table version, by day."""

    version: int
    by_day: Counter[date]
    bytes_by_day: Counter[date]

    @classmethod
    def from_log(cls, log: DeltaTable, table: Table) -> "TableFiles":
        """The data files in a log."""
        actions = files_of_part(log, table)
        files, sizes = Counter[date](), Counter[date]()
        if actions.num_rows:
            days = actions.column(f"partition.{table.partition}").to_pylist()
            for day, size in zip(days, actions.column("size_bytes").to_pylist(), strict=True):
                files[day] += 1
                sizes[day] += size
        return cls(log.version(), files, sizes)

    @property
    def fragmented_days(self) -> list[date]:
        """The days whose rows would fit into fewer files."""
        return [
            day
            for day, count in sorted(self.by_day.items())
            if count > ceil(self.bytes_by_day[day] / _FILE_SIZE)
        ]


@dataclass(frozen=True)
class MaintenanceResult:
    """The result of maintenance of a table, or the expected one of a dry run.

    Attributes:
        after: its files after; the same if nothing was changed.
        removed: number of removed files past the undo time, and of removed empty folders; None if
            this was not checked.
        notes: information for a person, as sentences.
        problems: what a person must fix, as sentences; if there are any, no file was removed.
    """

    table: str
    before: TableFiles
    after: TableFiles
    compacted: Sequence[date] = ()
    removed: int | None = None
    notes: Sequence[str] = field(default_factory=list)
    problems: Sequence[str] = field(default_factory=list)


_HEADINGS = ("table", "versions", "files", "size", "days compacted", "removed")


def format_cells(result: MaintenanceResult) -> list[str]:
    """The result of a table as the cells of a row, see `_HEADINGS`."""

    def format_change(before: object, after: object) -> str:
        return f"{before}" if before == after else f"{before} → {after}"

    sizes = [in_bytes(files.bytes_by_day.total()) for files in (result.before, result.after)]
    return [
        result.table,
        format_change(result.before.version, result.after.version),
        format_change(result.before.by_day.total(), result.after.by_day.total()),
        format_change(*sizes),
        str(len(result.compacted)),
        "not looked at" if result.removed is None else str(result.removed),
    ]


def as_table(results: Sequence[MaintenanceResult]) -> ReportTable:
    """The results as a table for a person."""
    return ReportTable.from_rows(_HEADINGS, map(format_cells, results), numbers=_HEADINGS[1:])


def format_notes(results: Sequence[MaintenanceResult], *, dry_run: bool = False) -> list[str]:
    """The notes of all tables, then the problems."""
    days = sum(len(result.compacted) for result in results)
    problems = [text for result in results for text in result.problems]
    notes = [text for result in results for text in result.notes]
    if dry_run:
        notes.append("a dry run: nothing was done")
    elif days and not problems:
        notes.append(f"{days} day(s) were compacted and hold what they held, by their digests")
    return notes + problems


def run_maintenance(
    spark: SparkSession,
    deployment: Deployment,
    names: Sequence[str] = (),
    *,
    dry_run: bool = False,
    today: date | None = None,
) -> Iterator[MaintenanceResult]:
    """Maintain tables, one after the other; all if no names are given.

    Days whose files fit into fewer are compacted; each compacted day must keep its rows, checked by
    digest. Files that no version of the last `undo_days` days uses are removed, including those
    left by killed runs, unless `_versions.json` names a version that uses them. The log is kept
    whole. A run that writes the same days at the same time is not disturbed: if the run commits
    second, it commits once more; if maintenance does, it leaves the table to the next maintenance.
    A table that has been retired for `undo_days` days loses its rows and all files, see
    `commits.delete_all_rows`. Tables that do not exist yet are skipped.

    Raises:
        ValueError: a name is not that of a table.
    """
    tables = deployment.tables
    today = today or deployment.today
    if unknown := sorted(set(names) - tables.keys()):
        raise ValueError(f"no such table: {', '.join(unknown)}; there are {', '.join(tables)}")
    consistent_versions: dict[str, int] = {}
    with suppress(FileNotFoundError, ValueError, KeyError):
        consistent_versions = versions_that_belong_together(deployment.settings.warehouse)
    changed_urls = set[str]()
    for name, table in tables.items():
        url = deployment.table_url(name)
        log = load_log(url) if name in names or not names else None
        if log is not None and log.metadata().partition_columns != [*table.partition_columns]:
            no_files = TableFiles(log.version(), Counter(), Counter())
            metadata = read_metadata(log)
            message = "; ".join(schema_differences(table, metadata))
            advice = suggest_fix(table, metadata, None)
            problem = f"{name}: {message}. It was left as it is. {advice}"
            yield MaintenanceResult(name, no_files, no_files, problems=[problem])
        elif log is not None:
            # A target may use files that no version of the table uses (any more).
            is_retired = commits.can_delete_rows(table, deployment.settings.undo_days, today)
            age = ANY_AGE if is_retired else max(deployment.settings.undo_days - 1, 0)
            parts = deployment.graph.assets[table.asset_name]
            chosen_parts = [part for part in parts if part.name in names or not names]
            retaining_targets = [
                target
                for part in parts
                for target in targets_older_than(deployment, part.name, age)
            ]
            maintenance = _TableMaintenance(
                spark,
                url,
                table,
                deployment.settings.undo_days,
                dry_run,
                is_retired,
                retaining_targets,
                consistent_versions.get(table.asset_name),
                # The parts of a table have one folder: once all are compacted, it is vacuumed.
                vacuums=table is chosen_parts[-1] and url not in changed_urls,
            )
            yield maintenance.run(log)
            if maintenance.has_changed_properties:
                changed_urls.add(url)


@dataclass
class _TableMaintenance:
    spark: SparkSession
    url: str
    table: Table
    undo_days: int
    dry_run: bool
    is_retired: bool
    retaining_targets: list[str] = field(default_factory=list)
    consistent_version: int | None = None
    vacuums: bool = True
    has_changed_properties: bool = False
    compacted: list[date] = field(default_factory=list)
    removed: int | None = None
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def run(self, log: DeltaTable) -> MaintenanceResult:
        """Run all steps, or those up to the first failure."""
        before = TableFiles.from_log(log, self.table)
        try:
            if self.is_retired:
                self._retire_table()
            else:
                self._compact_and_vacuum(before, log)
        except (DeltaError, OSError, PublishError, *SPARK_ERRORS) as error:
            if is_engine_lost(error):
                raise
            if is_conflict(error):
                self.notes.append(
                    f"{self.table.name}: a run published at the same time and went first; what is "
                    "left to do is done by the next maintenance"
                )
            else:
                self.problems.append(
                    f"{self.table.name}: maintenance failed ({summarize_error(error)}); all days "
                    "hold what they held. Run it again"
                )
        after = TableFiles.from_log(load_log(self.url) or log, self.table)
        return MaintenanceResult(
            self.table.name,
            before,
            after,
            self.compacted,
            self.removed,
            self.notes,
            self.problems,
        )

    def _compact_and_vacuum(self, before: TableFiles, log: DeltaTable) -> None:
        self.has_changed_properties = self._set_properties(log.metadata().configuration)
        self._compact_days(before)
        if self.vacuums and not self.has_changed_properties and not self.problems:
            self._vacuum_files()

    def _retire_table(self) -> None:
        """Delete all rows and files of a table that has been retired for long enough."""
        if self._is_retained():
            return
        ledger, retired = ledger_reader.read_ledger(self.url, self.table), self.table.retired
        days = format_ranges(ledger.published_days)
        if days and not self.dry_run:
            writer = Writer(lambda: self.spark, self.url, self.table, self.undo_days)
            if not commits.delete_all_rows(writer, ledger):
                self.notes.append(
                    f"{self.table.name}: somebody committed at the same time and went first; the "
                    "next maintenance takes the rows of the retired table away"
                )
                return
        self.removed = commits.delete_data_files(self.url, self.table, dry_run=self.dry_run)
        if days:
            self.notes.append(
                f"{self.table.name}: retired since {retired}; its days {days} are given up "
                f"{self.undo_days} day(s) after it, and the data files of all versions removed. "
                "Its log stays, so its history does; now its declaration can go"
            )

    def _set_properties(self, properties: dict[str, str]) -> bool:
        """Update the table's properties; return whether they differed."""
        expected = table_properties(self.undo_days)
        if expected.items() <= properties.items():
            return False
        if not self.dry_run:
            self._run_sql(
                f"ALTER TABLE {self._sql_name} SET TBLPROPERTIES ({format_properties(expected)})"
            )
        previous = [f"{name} was {properties.get(name, 'not set')}" for name in expected]
        # Removed files cannot be restored, so the run that changes the retention removes none: it
        # may be a shell without the deployment's settings.
        self.notes.append(
            f"{self.table.name}: replaced files are kept for {self.undo_days} days from now on "
            f"({PREFIX}UNDO_DAYS; {', '.join(previous)}); the next maintenance takes older ones "
            "away"
        )
        return True

    def _compact_days(self, before: TableFiles) -> None:
        """Run OPTIMIZE on fragmented days and verify its commits; a dry run only names the days."""
        days = before.fragmented_days
        if self.dry_run or not days:
            self.compacted = days
            return
        condition = self.table.days_condition(days)
        self._run_sql(f"OPTIMIZE {self._sql_name} WHERE {condition}")
        log = load_log(self.url)
        assert log is not None
        for version in range(before.version + 1, log.version() + 1):
            if compacted := self._compacted_days(version):
                self.compacted = sorted({*self.compacted, *compacted})
                self._verify_compaction(version, compacted)

    def _compacted_days(self, version: int) -> list[date]:
        """The days that a commit compacted; empty if its operation is not OPTIMIZE."""
        text = CommitLog(self.url).read_commit(version) or b""
        actions = [json.loads(line) for line in text.splitlines()]
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        if not any(info.get("operation") == "OPTIMIZE" for info in infos):
            return []
        files = [action[kind] for action in actions for kind in ("add", "remove") if kind in action]
        values = [file.get("partitionValues") or {} for file in files]
        of_part = [v for v in values if self.table.part_values.items() <= v.items()]
        days = {v.get(self.table.partition) for v in of_part}
        return sorted(date.fromisoformat(day) for day in days if day)

    def _verify_compaction(self, version: int, days: Sequence[date]) -> None:
        """Verify that a compaction changed no row.

        Its days must have the rows of their records. Days with other rows than their record, or
        without a record, must have the same rows as before the compaction.
        """
        ledger = ledger_reader.read_ledger(self.url, self.table).as_of(version - 1)
        digests = self._read_digests(version, days)
        different_days = [day for day in days if ledger.content_key(day) != digests.get(day)]
        if not different_days:
            return
        previous_digests = self._read_digests(version - 1, different_days)
        changed = [day for day in different_days if digests.get(day) != previous_digests.get(day)]
        if changed:
            self.problems.append(
                f"{self.table.name} [{format_ranges(changed)}]: the compaction "
                f"of version {version} changed what these days hold. Version {version - 1} has the "
                "rows as they were and no file was taken away: launch these days with the tag "
                "backfill_assets/rewrite = true"
            )
        # Days changed by other writers have no current record; that is reported elsewhere. Records
        # from before a column was added do not cover that column.
        unexplained_days = [
            day
            for day in different_days
            if ledger.current_record(day)
            and day not in changed
            and not ledger.columns_changed_since(ledger.latest[day])
            and rows_differ(ledger.content_key(day), digests.get(day, NO_ROWS))
        ]
        if unexplained_days:
            self.problems.append(
                f"{self.table.name} [{format_ranges(unexplained_days)}]: these "
                "days hold other rows than their records say, before the compaction and after it: "
                "run backfill-assets verify"
            )

    def _read_digests(self, version: int, days: Sequence[date]) -> dict[date | None, str]:
        rows = rows_as_of(self.spark, self.url, self.table, version, days)
        return {day: measured.digest for day, measured in measure_days(rows, self.table).items()}

    def _vacuum_files(self) -> None:
        """Run VACUUM and delete the folders of killed writes, unless targets need files."""
        if self._is_retained():
            return
        # A dry run first: VACUUM makes two commits even if it removes nothing.
        old_files = self.spark.sql(f"VACUUM {self._sql_name} DRY RUN").collect()
        if named_files := self._consistent_files().intersection(
            row["path"].rpartition("/")[2] for row in old_files
        ):
            self.notes.append(
                f"{self.table.name}: no replaced file was taken away, as {VERSIONS_FILE} names "
                f"version {self.consistent_version} and {len(named_files)} of them are its own. "
                "The sensor watch_days names newer versions once no day is behind: build the days "
                f"that are. If nobody reads by {VERSIONS_FILE}, remove it"
            )
            old_files = []
        if old_files and not self.dry_run:
            self._run_sql(f"VACUUM {self._sql_name}")
        # VACUUM does not look into the staging folders of killed writes.
        retention = timedelta(days=max(self.undo_days, 1))
        filesystem, _ = open_store(self.url)
        abandoned = abandoned_folders(self.url, datetime.now(timezone.utc) - retention)
        for folder in abandoned if not self.dry_run else ():
            delete_folder(filesystem, folder)
        self.removed = len(old_files) + len(abandoned)

    def _consistent_files(self) -> set[str]:
        """The names of the data files of the version named in `_versions.json`."""
        log = load_log(self.url)
        # A table that was created again starts with version 0 again.
        if (
            self.consistent_version is None
            or log is None
            or self.consistent_version > log.version()
        ):
            return set()
        actions = pa.table(delta_log(self.url, self.consistent_version).load().get_add_actions())
        return {unquote(path).rpartition("/")[2] for path in actions["path"].to_pylist()}

    def _is_retained(self) -> bool:
        """Whether targets may need files of the table."""
        if self.retaining_targets:
            self.notes.append(
                f"{self.table.name}: no file was taken away, as the target(s) "
                f"{', '.join(self.retaining_targets)} may still need it; switch over or drop them "
                "first"
            )
        return bool(self.retaining_targets)

    @property
    def _sql_name(self) -> str:
        return f"delta.`{self.url}`"

    def _run_sql(self, statement: str) -> None:
        self.spark.sql(statement).collect()


class MaintenanceConfig(dg.Config):
    """What to maintain."""

    tables: list[str] = Field([], description="Only these tables; all of them if empty.")
    dry_run: bool = Field(False, description="Tell what would be done, and do nothing.")


def maintenance_job(deployment: Deployment) -> dg.JobDefinition:
    """Maintenance as a Dagster job, for the UI and for the deployment's own schedule."""

    @dg.op(
        name=deployment.automation_name("maintain_tables"),
        required_resource_keys={deployment.resource_key(ENGINE_KEY)},
        out=dg.Out(dg.Nothing),
    )
    def maintain_tables(context: dg.OpExecutionContext, config: MaintenanceConfig) -> None:
        spark = deployment.spark_session(context.resources)
        results = []
        for result in run_maintenance(spark, deployment, config.tables, dry_run=config.dry_run):
            context.log.info(", ".join(format_cells(result)))
            results.append(result)
        notes = format_notes(results, dry_run=config.dry_run)
        metadata = {
            "maintenance": dg.MetadataValue.md(as_table(results).to_markdown()),
            "notes": dg.MetadataValue.md(
                "\n".join(f"- {escape_markdown(text)}" for text in notes) or "none"
            ),
        }
        if problems := [text for result in results for text in result.problems]:
            raise dg.Failure("; ".join(problems), metadata, allow_retries=False)
        context.add_output_metadata(metadata)

    @dg.job(
        name=deployment.automation_name("maintenance"),
        description="Puts small files together and takes those away that are past the time to "
        "undo. No row changes; the digests of the days are compared.",
    )
    def maintenance() -> None:
        maintain_tables()

    return maintenance
