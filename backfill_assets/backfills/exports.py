"""Exports: days of a table at one version, as Parquet files with a manifest; and their checks."""

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path

import dagster as dg
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.audit.verdicts import empty_day, have_same_rows, measure_days, rows_differ
from backfill_assets.backfills.verify import verify_days
from backfill_assets.calendar import partitions
from backfill_assets.delta.data_files import rows_as_of
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitRecord
from backfill_assets.deployment import Deployment
from backfill_assets.tables.table import Table

MANIFEST = "manifest.json"
_FORMAT_VERSION = 1


class ExportError(RuntimeError):
    """Days cannot be exported, or a folder holds no export; the message says why."""


class ExportedFile(msgspec.Struct, frozen=True):
    """A Parquet file of one day.

    Attributes:
        path: relative to the folder of the export.
        day: the day.
        rows: number of rows.
        size: in bytes.
        sha256: of the file.
    """

    path: str
    day: date
    rows: int
    size: int
    sha256: str


class ExportOrigin(msgspec.Struct, frozen=True):
    """Code, settings and inputs of some of the days, as recorded by their commit.

    Attributes:
        days: as ranges.
        version: the table's version of the commit.
        run: the Dagster run.
        inputs: version of each input table.
        references: digests of the unpartitioned inputs.
        code: version of the code.
        git_commit: of that code; empty if unknown.
        config: digests of the settings.
    """

    days: list[str]
    version: int
    run: str
    inputs: dict[str, int]
    references: dict[str, str | None]
    code: str
    git_commit: str
    config: list[str]


class ExportManifest(msgspec.Struct, frozen=True):
    """The content of an export. It has no timestamp: the same export has the same text.

    Attributes:
        table: the table's name.
        days: the days, as one range.
        version: the table's version that the rows were read at.
        columns: Spark types by name, in the order of the files.
        rows: total number of rows.
        digests: by day, the audit's digest as recorded by the commit.
        made_by: origins of the days.
        files: the data files; a day without rows has none.
        form: version of the manifest's format.
    """

    table: str
    days: str
    version: int
    columns: dict[str, str]
    rows: int
    digests: dict[date, str]
    made_by: list[ExportOrigin]
    files: list[ExportedFile]
    form: int = _FORMAT_VERSION


def export_days(
    deployment: Deployment,
    spark: SparkSession,
    name: str,
    days: partitions.Window,
    destination: Path,
) -> tuple[ExportManifest, bool]:
    """Write days of a table, as of its current version, into a new folder.

    Files are written to a temporary folder first, so the export appears as a whole or not at all.
    Rows of a day are sorted, so the same days always give the same bytes.

    Returns:
        The manifest, and whether the folder is new; False if it already holds the same export.

    Raises:
        ExportError: a day is not published or its rows are not those of its commit, or the folder
            holds something else.
    """
    table = deployment.tables[name]
    ledger = read_ledger(deployment.table_url(name), table)
    _refuse_unpublished(ledger, days)
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=destination.parent, prefix=f".{destination.name}."
    ) as scratch:
        folder = Path(scratch) / destination.name
        folder.mkdir()
        files = [
            file
            for day in days
            if (file := _write_day(deployment, spark, ledger, day, folder)) is not None
        ]
        manifest = _build_manifest(ledger, days, files)
        (folder / MANIFEST).write_bytes(encode_manifest(manifest))
        try:
            folder.rename(destination)
        except OSError:
            if not destination.exists():
                raise
            _refuse_other_content(destination, manifest)
            return manifest, False
    return manifest, True


def _refuse_unpublished(ledger: Ledger, days: partitions.Window) -> None:
    """Raise `ExportError` if a day has no commit or is no longer what its commit published."""
    name = ledger.table.name
    if missing := [day for day in days if day not in ledger.published_days]:
        raise ExportError(
            f"{name} [{partitions.format_ranges(missing)}] has never been published: nothing "
            "was exported. "
            "Materialize these days first."
        )
    if unrecorded := [day for day in days if ledger.current_record(day) is None]:
        raise ExportError(
            f"{name} [{partitions.format_ranges(unrecorded)}] is not what our commits say: "
            "another writer "
            "changed it, or the log was cut. Nothing was exported. Materialize these days again."
        )


def _write_day(
    deployment: Deployment, spark: SparkSession, ledger: Ledger, day: date, folder: Path
) -> ExportedFile | None:
    """Write the file of a day; None if the day has no rows.

    Raises:
        ExportError: the rows do not match the commit's record.
    """
    table, version = ledger.table, ledger.version
    assert version is not None
    published = ledger.latest[day].days[day].content
    frame = rows_as_of(spark, deployment.table_url(table.name), table, version, [day])
    rows = strip_metadata(frame.toArrow())
    measured = measure_days(create_frame(spark, table, rows), table).get(day, empty_day(table))
    if not have_same_rows(measured, published):
        raise ExportError(
            f"{table.name} [{day}]: version {version} holds {measured.rows} rows (digest "
            f"{measured.digest}), and its commit speaks of {published.rows} (digest "
            f"{published.digest}). Nothing was exported. Look with `backfill-assets verify`, and "
            "build the day again."
        )
    if not rows.num_rows:
        return None
    path = f"{table.partition}={day}.parquet"
    order = [name for name in (*table.key, *rows.column_names) if _is_sortable(rows, name)]
    rows = rows.sort_by([(name, "ascending") for name in dict.fromkeys(order)])
    pq.write_table(rows, folder / path, compression="zstd")
    return describe_file(folder, path, day, rows.num_rows)


def strip_metadata(rows: pa.Table) -> pa.Table:
    """The rows without the schema metadata that an engine adds."""
    return rows.replace_schema_metadata(None).combine_chunks()


def _is_sortable(rows: pa.Table, name: str) -> bool:
    return not pa.types.is_nested(rows.schema.field(name).type)


def create_frame(spark: SparkSession, table: Table, rows: pa.Table) -> DataFrame:
    """Spark DataFrame of the rows, with the table's schema."""
    return spark.createDataFrame(rows, table.struct_type)


def describe_file(folder: Path, path: str, day: date, rows: int) -> ExportedFile:
    """Size and digest of a file as it is now."""
    content = (folder / path).read_bytes()
    return ExportedFile(path, day, rows, len(content), hashlib.sha256(content).hexdigest())


def _build_manifest(
    ledger: Ledger, days: partitions.Window, files: Sequence[ExportedFile]
) -> ExportManifest:
    """The manifest of the exported days; days of one commit, code and inputs share an origin."""
    assert ledger.version is not None
    # Days of one commit may differ in code and inputs.
    by_record: dict[tuple[int, bytes], list[date]] = {}
    for day in days:
        record = ledger.latest[day]
        provenance = msgspec.json.encode(record.day_provenance(day), order="sorted")
        by_record.setdefault((record.version, provenance), []).append(day)
    return ExportManifest(
        table=ledger.table.name,
        days=str(days),
        version=ledger.version,
        columns={
            column.name: column.dataType.simpleString() for column in ledger.table.struct_type
        },
        rows=sum(file.rows for file in files),
        digests={day: ledger.latest[day].days[day].digest for day in days},
        made_by=[
            _build_origin(ledger.latest[origin_days[0]], origin_days)
            for _, origin_days in sorted(by_record.items())
        ],
        files=[*files],
    )


def _build_origin(record: CommitRecord, days: Sequence[date]) -> ExportOrigin:
    """The origin of days with the same commit, code and inputs; their settings may differ."""
    return ExportOrigin(
        days=partitions.to_ranges(days),
        version=record.version,
        run=record.run_id,
        inputs=dict(record.inputs),
        references=dict(record.details.references),
        code=record.code_version,
        git_commit=record.git_commit,
        config=sorted({record.made_under(day) for day in days}),
    )


def encode_manifest(manifest: ExportManifest) -> bytes:
    """The bytes of the manifest file, always the same: existing exports are compared by them."""
    return json.dumps(msgspec.to_builtins(manifest), indent=2).encode() + b"\n"


def _refuse_other_content(destination: Path, manifest: ExportManifest) -> None:
    """Raise if a folder holds anything but this export.

    Raises:
        ExportError: it holds something else.
    """
    present_files = {path.name for path in destination.iterdir()} if destination.is_dir() else set()
    if present_files != {MANIFEST, *(file.path for file in manifest.files)}:
        problem = "holds something else"
    elif (destination / MANIFEST).read_bytes() != encode_manifest(manifest):
        problem = "holds another export"
    elif changed := [
        f.path for f in manifest.files if describe_file(destination, f.path, f.day, f.rows) != f
    ]:
        problem = f"holds this export with other files: {', '.join(changed)}"
    else:
        return
    raise ExportError(
        f"{destination} {problem}; it is as it was. Give a folder that is not there yet."
    )


def read_manifest(folder: Path) -> ExportManifest:
    """Read the manifest of an export.

    Raises:
        ExportError: there is none, or it has another format.
    """
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ExportManifest)
    except FileNotFoundError:
        raise ExportError(f"{folder} holds no export: there is no {MANIFEST} in it") from None
    except msgspec.MsgspecError as error:
        raise ExportError(f"{folder / MANIFEST} cannot be read: {error}") from error


def find_export_problems(
    deployment: Deployment, spark: SparkSession, folder: Path, manifest: ExportManifest
) -> Iterator[str]:
    """Differences between an export, its manifest and the table's log, one sentence each.

    Raises:
        ExportError: the deployment has no such table.
    """
    table = _exported_table(deployment, manifest)
    present_files = {path.name for path in folder.iterdir()} - {MANIFEST}
    if unknown_files := sorted(present_files - {file.path for file in manifest.files}):
        yield f"the manifest does not know {', '.join(unknown_files)}"
    digests = dict.fromkeys(manifest.digests, empty_day(table).digest)
    for file in manifest.files:
        if file.path not in present_files:
            yield f"{file.path} is gone"
            continue
        if describe_file(folder, file.path, file.day, file.rows) != file:
            yield f"{file.path} was changed: it has another size or SHA-256"
        try:
            rows = strip_metadata(pq.ParquetFile(folder / file.path).read())
            measured = measure_days(create_frame(spark, table, rows), table)
        except (pa.ArrowException, ValueError) as error:
            yield f"{file.path} cannot be read: {error}"
            continue
        if other_days := sorted(str(day) for day in measured.keys() - {file.day}):
            yield f"{file.path} has rows of other days: {', '.join(other_days)}"
        digests[file.day] = measured.get(file.day, empty_day(table)).digest
    url = deployment.table_url(table.name)
    ledger = read_ledger(url, table)
    if ledger.version is None or ledger.version < manifest.version:
        yield f"{table.name} has no version {manifest.version} at {url}"
        return
    yield from _find_digest_problems(manifest, digests, ledger.as_of(manifest.version))


def _find_digest_problems(
    manifest: ExportManifest, digests: Mapping[date, str], exported: Ledger
) -> Iterator[str]:
    """Days with other digests in the files, or in the log, than in the manifest."""
    for day, digest in manifest.digests.items():
        if rows_differ(digests[day], digest):
            yield f"{day}: the rows have digest {digests[day]}, the manifest says {digest}"
        record = exported.latest.get(day)
        if record is None:
            yield f"{day}: the log has no record of it in version {manifest.version}"
        elif rows_differ(recorded := record.days[day].digest, digest):
            yield f"{day}: the log says {recorded} of version {manifest.version}, not {digest}"


def _exported_table(deployment: Deployment, manifest: ExportManifest) -> Table:
    try:
        return deployment.tables[manifest.table]
    except KeyError:
        raise ExportError(f"this deployment has no table {manifest.table}") from None


def find_rebuild_problems(
    deployment: Deployment, defs: dg.Definitions, manifest: ExportManifest
) -> Iterator[str]:
    """Differences when the days are recomputed from the same input versions with the current code.

    Nothing is written; see `verify.verify_days`.

    Raises:
        ExportError: the deployment has no such table.
    """
    table = _exported_table(deployment, manifest)
    for origin in manifest.made_by:
        as_of = {**origin.inputs, table.name: manifest.version}
        for window in partitions.to_windows(partitions.from_ranges(origin.days)):
            for result in verify_days(deployment, defs, window, [table.name], as_of=as_of):
                digest = result.now.digest if result.now else "nothing"
                expected = manifest.digests[result.day]
                if result.now is None or rows_differ(digest, expected):
                    yield (
                        f"{result.day}: computed anew it has digest {digest}, not {expected}: "
                        f"{result}"
                    )
