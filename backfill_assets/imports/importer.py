"""Imports an external table: plans the import, lands rows, follows the table, checks the counts."""

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from datetime import date
from typing import Any
from uuid import uuid4

import msgspec
import pyspark.sql.types as T
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import format_ranges
from backfill_assets.delta.delta_rs import load_log
from backfill_assets.deployment import Deployment
from backfill_assets.imports import import_state, landing_files
from backfill_assets.imports.external_table import (
    ImportableTable,
    NewData,
    normalize_url,
    open_external_table,
)
from backfill_assets.spark.frames import create_frame
from backfill_assets.spark.session import Engine
from backfill_assets.spark.stores import store_types
from backfill_assets.tables.sources import Source
from backfill_assets.tables.table import Table
from backfill_assets.transforms import dedup

#: Maximum rows of a chunk of several days.
ROWS_PER_CHUNK = 20_000_000


@dataclass(frozen=True)
class ImportRequest:
    """What to import, and how.

    Attributes:
        table: the folder or URL of the external table.
        mapping: how rows become lines; empty parts are taken from the saved import.
        skip: versions of the table that are not followed.
        chunk_rows: maximum rows that land at a time.
    """

    deployment: Deployment
    spark: SparkSession
    source: Source
    table: str
    mapping: import_state.ImportMapping = field(default_factory=import_state.ImportMapping)
    skip: tuple[int, ...] = ()
    chunk_rows: int = ROWS_PER_CHUNK

    @property
    def late_data_policy(self) -> Policy:
        """The late-data policy of the source."""
        return self.source.policy(self.deployment.settings)

    def open_import(self) -> tuple[ImportableTable, import_state.TableImport]:
        """The table and its saved import, or a new one.

        Raises:
            ImportRefusedError: the saved import has another mapping, or the source is hourly.
        """
        if self.source.hourly:
            raise import_state.ImportRefusedError(
                f"the source {self.source.name} lands by the hour, and an import lands by day. "
                "Nothing was written. Declare the source without `hourly`."
            )
        url = normalize_url(self.table)
        external_table = open_external_table(url)
        table_import = import_state.load_imports(self.deployment, self.source.name).get(url)
        if table_import is None:
            table_import = import_state.TableImport(
                self.source.name, url, external_table.kind, external_table.table_id, self.mapping
            )
        mapping = import_state.ImportMapping(
            self.mapping.fields or table_import.mapping.fields,
            self.mapping.arrived or table_import.mapping.arrived,
            self.mapping.stray_day or table_import.mapping.stray_day,
        )
        if (mapping.fields, mapping.arrived) != (
            table_import.mapping.fields,
            table_import.mapping.arrived,
        ):
            raise import_state.ImportRefusedError(
                f"{url} is imported into {self.source.name} already, with other expressions: "
                f"{_format_mapping(table_import.mapping)}. Nothing was written. Leave --field and "
                "--arrived out to follow the table as before."
            )
        skipped = sorted({*table_import.skipped, *self.skip})
        return external_table, msgspec.structs.replace(
            table_import, mapping=mapping, skipped=skipped
        )

    def read_lines(
        self,
        external_table: ImportableTable,
        new_data: NewData,
        mapping: import_state.ImportMapping,
        scratch: str,
    ) -> landing_files.SourceLines:
        """The new rows of the table as lines."""
        read = external_table.read_rows(self.spark, new_data, scratch)
        timezone = self.deployment.settings.timezone
        return landing_files.map_rows(read.rows, self.source, mapping, timezone, read.unreadable)

    @contextmanager
    def open_scratch(self, name: str) -> Iterator[str]:
        """A temporary folder beside the arrival days, removed at the end."""
        folder = landing_files.scratch_folder(self.deployment.settings.landing, self.source, name)
        try:
            yield folder
        finally:
            landing_files.clear_folder(folder)


def _format_mapping(mapping: import_state.ImportMapping) -> str:
    options = [f"--field {name}={text!r}" for name, text in sorted(mapping.fields.items())]
    return (
        " ".join([*options, *([f"--arrived {mapping.arrived!r}"] if mapping.arrived else [])])
        or "none"
    )


def spark_for(deployment: Deployment, tables: Iterable[str]) -> SparkSession:
    """The Spark session that reads the tables.

    Raises:
        ImportRefusedError: a table is in an object store, and neither landing nor warehouse is.
    """
    engine = Engine.from_settings(deployment.settings)
    if names := [store.name for store in store_types(tables) if store.name not in engine.stores]:
        raise import_state.ImportRefusedError(
            f"the table lies on {names[0]}, and neither landing nor warehouse do, so the engine "
            "has no way there. Nothing was written. Put the landing there, or copy the table."
        )
    return engine.spark_session


@dataclass(frozen=True)
class RowCounts:
    """Numbers of rows of an arrival day.

    Attributes:
        rows: all rows.
        repeated: rows equal to another one in all fields of the source, without the first of each.
        no_key: rows without a key; they will be rejected.
        late: rows that arrived after the window of their day; they count as corrections.
        ahead: rows whose version time is after the day following their arrival; they will be
            rejected.
    """

    rows: int = 0
    repeated: int = 0
    no_key: int = 0
    late: int = 0
    ahead: int = 0

    def __add__(self, other: "RowCounts") -> "RowCounts":
        return RowCounts(*map(operator.add, astuple(self), astuple(other)))


@dataclass(frozen=True)
class ImportPlan:
    """What an import would land now.

    Attributes:
        by_day: counts by arrival day, in ascending order.
        stray: counts of rows without an arrival day on the calendar.
        keys: number of distinct keys.
        versions: number of distinct rows with a key.
        max_repeats: how often the most repeated row occurs.
        absent: fields that the table does not have.
        unused: columns of the table that no field is read from.
        chunks: the arrival days of each chunk.
    """

    table_import: import_state.TableImport
    new_data: NewData
    by_day: Mapping[date, RowCounts]
    stray: RowCounts
    keys: int
    versions: int
    max_repeats: int
    absent: list[str]
    unused: list[str]
    chunks: list[list[date]]

    @property
    def total(self) -> RowCounts:
        """The counts of all rows, stray ones included."""
        return sum(self.by_day.values(), self.stray)


def plan_import(request: ImportRequest) -> ImportPlan:
    """Plan an import; only temporary files are written.

    Raises:
        ImportRefusedError: the table cannot be imported.
    """
    external_table, table_import = request.open_import()
    if step := table_import.unfinished_step:
        raise import_state.ImportRefusedError(
            f"an import of {table_import.table} was ended before its end: "
            f"{sum(step.landed.values()):,} of {step.row_count:,} rows have landed. Import again "
            "to land the others."
        )
    new_data = external_table.find_new_data(table_import)
    with request.open_scratch(f"plan-{uuid4().hex}") as scratch:
        if new_data.is_empty:
            return ImportPlan(table_import, new_data, {}, RowCounts(), 0, 0, 0, [], [], [])
        lines = request.read_lines(external_table, new_data, table_import.mapping, scratch)
        by_day, stray = _count_by_day(lines.rows, request)
        keys, versions, max_repeats = _count_keys(lines.rows, request.source)
        landing = _rows_by_folder(by_day, stray, table_import.mapping.stray_day)
        return ImportPlan(
            table_import,
            new_data,
            by_day,
            stray,
            keys,
            versions,
            max_repeats,
            lines.absent,
            lines.unused,
            list(landing_files.split_chunks(landing, request.chunk_rows)),
        )


def _count_by_day(
    rows: DataFrame, request: ImportRequest, *, count_repeats: bool = True
) -> tuple[dict[date, RowCounts], RowCounts]:
    """Count the rows by arrival day, and those without an arrival day on the calendar."""
    policy = request.late_data_policy
    repeated: dict[date | None, int] = {}
    if count_repeats:
        repeats_by_row = rows.groupBy(landing_files.ARRIVAL_DAY, *request.source.fields).agg(
            (F.count(F.lit(1)) - 1).alias("_more")
        )
        repeated = dict(
            repeats_by_row.groupBy(landing_files.ARRIVAL_DAY).agg(F.sum("_more")).toLocalIterator()
        )
    by_day, stray = dict[date, RowCounts](), RowCounts()
    counted = landing_files.counts_by_day(
        rows, request.source, policy, request.deployment.settings.timezone
    )
    for day, count, *others in counted.orderBy(landing_files.ARRIVAL_DAY).toLocalIterator():
        counts = RowCounts(count, repeated.get(day, 0), *others)
        on_calendar = day is not None and policy.start <= day
        if on_calendar and (policy.end is None or day < policy.end):
            by_day[day] = counts
        else:
            stray += counts
    return by_day, stray


def _count_keys(rows: DataFrame, source: Source) -> tuple[int, int, int]:
    """Number of distinct keys and of distinct rows with a key, and the maximum of equal rows."""
    distinct_rows = rows.groupBy(*source.fields).agg(F.count(F.lit(1)).alias("_same"))
    by_key = distinct_rows.groupBy(*source.key).agg(
        F.count(F.lit(1)).alias("_versions"), F.max("_same").alias("_same")
    )
    for name in source.key:
        by_key = by_key.where(F.col(name).isNotNull())
    totals = by_key.agg(F.count(F.lit(1)), F.sum("_versions"), F.max("_same")).first()
    assert totals is not None
    keys, versions, max_repeats = (int(number or 0) for number in totals)
    return keys, versions, max_repeats


def _rows_by_folder(
    by_day: Mapping[date, RowCounts], stray: RowCounts, stray_day: date | None
) -> dict[date, int]:
    """Number of rows by the arrival day of the folder that they land in."""
    rows = {day: counts.rows for day, counts in by_day.items()}
    if stray.rows and stray_day is not None:
        rows[stray_day] = rows.get(stray_day, 0) + stray.rows
    return rows


def run_import(
    request: ImportRequest, note: Callable[[str], None] = lambda _: None
) -> import_state.TableImport:
    """Land the rows of the table that have not landed; progress goes to `note`.

    The step is saved before any row lands, so that a killed import continues with the same rows.

    Raises:
        ImportRefusedError: the table cannot be imported or followed, or another process imports it.
    """
    with import_state.lock_import(
        request.deployment, request.source.name, normalize_url(request.table)
    ):
        return _run_import(request, note)


def _run_import(request: ImportRequest, note: Callable[[str], None]) -> import_state.TableImport:
    """Called with the import's lock: end the step of a killed import, then land the new data."""
    external_table, table_import = request.open_import()
    if step := table_import.unfinished_step:
        note(f"going on with {step.name}, which was not ended")
        table_import = _land_step(request, external_table, table_import, step, note)
    new_data = external_table.find_new_data(table_import)
    if new_data.is_empty:
        if new_data.version == table_import.version:
            return table_import
        return import_state.save_import(
            request.deployment, msgspec.structs.replace(table_import, version=new_data.version)
        )
    name = f"import-{_step_digest(table_import, new_data)}"
    with request.open_scratch(name) as scratch:
        lines = request.read_lines(external_table, new_data, table_import.mapping, scratch)
        by_day, stray = _count_by_day(lines.rows, request, count_repeats=False)
        _raise_if_stray(request, table_import, stray)
        rows = _rows_by_folder(by_day, stray, table_import.mapping.stray_day)
    step = import_state.ImportStep(
        name,
        new_data.since,
        new_data.version,
        rows,
        read=new_data.files,
        skipped=table_import.skipped,
    )
    return _land_step(
        request,
        external_table,
        import_state.save_import(request.deployment, table_import.with_step(step)),
        step,
        note,
    )


def _step_digest(table_import: import_state.TableImport, new_data: NewData) -> str:
    """The same new data and mapping give the same name of the step, and so of its landing files."""
    files = [f"{file.path} {file.size} {file.mtime}" for file in new_data.files]
    mapping = table_import.mapping
    # By the names of the first release with imports: an unfinished step is found by its digest.
    parts = {"arrived": mapping.arrived, "fields": mapping.fields, "stray": mapping.stray_day}
    return import_state.short_digest(
        table_import.table,
        table_import.table_id,
        f"{new_data.since}...{new_data.version}",
        msgspec.json.encode(parts, order="sorted").decode(),
        *files,
    )


def _raise_if_stray(
    request: ImportRequest, table_import: import_state.TableImport, stray: RowCounts
) -> None:
    """Raise if rows have no day on the calendar and `--stray` gives them none that is on it."""
    if stray.rows and table_import.mapping.stray_day is None:
        policy = request.late_data_policy
        until = f" to {policy.end}" if policy.end else ""
        raise import_state.ImportRefusedError(
            f"{stray.rows:,} row(s) of {table_import.table} tell no day of the calendar "
            f"({policy.start}{until}): their time is null, before the first day or after the last. "
            "Nothing was written. Set BACKFILL_ASSETS_START if the history begins earlier, or give "
            "an arrival day for them with --stray DAY: they are then rejected, or counted as lines "
            "of days before the first."
        )
    if (
        day := table_import.mapping.stray_day
    ) and day not in request.late_data_policy.partitions_until(day):
        raise import_state.ImportRefusedError(
            f"--stray {day} is not on the calendar of {request.source.name}. Nothing was written. "
            "Give a day that is."
        )


def _land_step(
    request: ImportRequest,
    external_table: ImportableTable,
    table_import: import_state.TableImport,
    step: import_state.ImportStep,
    note: Callable[[str], None],
) -> import_state.TableImport:
    """Land the remaining days of a step."""
    new_data = NewData(step.version, step.since, 0, step.read, skipped=step.skipped)
    landed_days = landing_files.arrival_days(step.landed)
    remaining = {day: rows for day, rows in step.rows.items() if day not in landed_days}
    arrival = landing_files.arrival_day(request.late_data_policy, table_import.mapping.stray_day)
    with request.open_scratch(step.name) as scratch:
        lines = (
            request.read_lines(external_table, new_data, table_import.mapping, scratch)
            if remaining
            else None
        )
        for days in landing_files.split_chunks(remaining, request.chunk_rows):
            assert lines is not None
            files = landing_files.land_files(
                lines.rows, request.source, step, days, arrival, request.deployment.settings.landing
            )
            step = msgspec.structs.replace(step, landed={**step.landed, **files})
            table_import = import_state.save_import(
                request.deployment, table_import.with_step(step)
            )
            note(f"landed {days[0]}...{days[-1]}: {sum(files.values()):,} rows")
    return import_state.save_import(
        request.deployment, table_import.with_step(msgspec.structs.replace(step, done=True))
    )


class ImportCheck(msgspec.Struct, frozen=True):
    """Where the imported rows of a source are.

    Attributes:
        read: rows of the external tables, up to the imported versions.
        landed: rows in landing files.
        raw: rows in the raw log.
        rejected: rows among the rejected lines.
        staged: rows that count: for each key one, on its event day.
        superseded: rows in time for which a greater version of their key came in time as well.
        late: rows that came after the window of their day.
        early: rows of event days before the first day; not counted as staged, superseded or late.
        in_staging: the rows of `staged` that are in the staging table.
        problems: differences, a sentence each.
    """

    read: int
    landed: int
    raw: int = 0
    rejected: int = 0
    staged: int = 0
    superseded: int = 0
    late: int = 0
    early: int = 0
    in_staging: int = 0
    problems: list[str] = []


def check_import(
    deployment: Deployment,
    spark: SparkSession,
    source: Source,
    imports: Collection[import_state.TableImport],
) -> ImportCheck:
    """Count the imported rows of a source in each table."""
    landed = {
        file: rows for table_import in imports for file, rows in table_import.landed_files.items()
    }
    read = sum(step.row_count for table_import in imports for step in table_import.steps)
    problems = [
        f"{table_import.table}: {sum(step.landed.values()):,} of {step.row_count:,} rows of "
        f"{step.name} have landed: import again"
        for table_import in imports
        if (step := table_import.unfinished_step)
    ]
    files = _files_frame(spark, landed)
    raw_rows = _read_published(deployment, spark, source.raw)
    raw = _count_by_file(raw_rows, files)
    rejected = _count_by_file(_read_published(deployment, spark, source.rejected), files)
    problems += _describe_unloaded_files(landed, raw, rejected)
    outcomes: dict[str, Any] = {}
    if raw_rows is not None:
        outcomes = _count_outcomes(deployment, spark, source, raw_rows, files)
    counts = ImportCheck(
        read, sum(landed.values()), sum(raw.values()), sum(rejected.values()), **outcomes
    )
    if counts.in_staging != counts.staged:
        problems.append(
            f"{counts.staged - counts.in_staging:,} row(s) that count are not in "
            f"{source.staged.name}: materialize its days"
        )
    return msgspec.structs.replace(counts, problems=problems)


def _files_frame(spark: SparkSession, names: Iterable[str]) -> DataFrame:
    struct = T.StructType([T.StructField("source_file", T.StringType())])
    return F.broadcast(create_frame(spark, struct, ((name,) for name in names)))


def _read_published(deployment: Deployment, spark: SparkSession, table: Table) -> DataFrame | None:
    """The rows of a table; None if it does not exist yet."""
    url = deployment.table_url(table.name)
    if load_log(url) is None:
        return None
    return table.with_current_columns(spark.read.format("delta").load(url))


def _count_by_file(rows: DataFrame | None, files: DataFrame) -> dict[str, int]:
    if rows is None:
        return {}
    of_files = rows.join(files, "source_file", "left_semi").groupBy("source_file")
    return dict(of_files.agg(F.count(F.lit(1))).toLocalIterator())


def _describe_unloaded_files(
    landed: Mapping[str, int], raw: Mapping[str, int], rejected: Mapping[str, int]
) -> Iterator[str]:
    """Report files that are not in the tables, and files with another number of rows there."""
    loaded = {file: raw.get(file, 0) + rejected.get(file, 0) for file in landed}
    if none := [file for file in landed if not loaded[file]]:
        days = format_ranges(landing_files.arrival_days(none))
        yield f"not loaded yet: {len(none)} file(s) of {days}"
    if other := [file for file in landed if loaded[file] not in (0, landed[file])]:
        yield f"loaded with other rows than landed: {', '.join(other[:20])}"


def _count_outcomes(
    deployment: Deployment, spark: SparkSession, source: Source, raw: DataFrame, files: DataFrame
) -> dict[str, int]:
    """Count the imported rows of the raw log by outcome, by the rules of staging."""
    policy = source.policy(deployment.settings)
    late, early = dedup.is_late(policy.window_days), F.col("event_date") < F.lit(policy.start)
    versions = dedup.greatest_first(source, *source.key)
    outcome = (
        F.when(early, "early")
        .when(late, "late")
        .when(F.expr(dedup.is_superseded(versions, policy.window_days)), "superseded")
        .otherwise("staged")
    )
    rows = dedup.with_event_day(raw, source, deployment.settings.timezone).withColumn(
        "_kind", outcome
    )
    rows = rows.join(files, "source_file", "left_semi")
    counts: dict[str, int] = dict(rows.groupBy("_kind").agg(F.count(F.lit(1))).toLocalIterator())
    staging = _read_published(deployment, spark, source.staged)
    in_staging = 0
    if staging is not None:
        same = ["event_date", "log_date", *source.key]
        counted = rows.where(F.col("_kind") == "staged")
        in_staging = counted.join(staging.select(*same), same, "left_semi").count()
    return {**counts, "in_staging": in_staging}
