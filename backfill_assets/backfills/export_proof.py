"""Proof of an export: its files against its manifest, the table's log, and days computed anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from backfill_assets.backfills.exports import (
    MANIFEST,
    ExportError,
    ExportManifest,
    create_frame,
    describe_file,
    strip_metadata,
)
from backfill_assets.backfills.verification import verify_days
from backfill_assets.calendar.partitions import from_ranges, to_windows
from backfill_assets.delta.reading import read_ledger
from backfill_assets.quality.audit import empty_day, measure, rows_differ
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import tables_of
from backfill_assets.tables.table import Table


def read_manifest(folder: Path) -> ExportManifest:
    """The manifest of an export.

    Raises:
        ExportError: there is none, or it is of another version.
    """
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ExportManifest)
    except FileNotFoundError:
        raise ExportError(f"{folder} holds no export: there is no {MANIFEST} in it") from None
    except msgspec.MsgspecError as error:
        raise ExportError(f"{folder / MANIFEST} cannot be read: {error}") from error


def find_export_problems(
    settings: Settings, spark: SparkSession, folder: Path, manifest: ExportManifest
) -> Iterator[str]:
    """What of an export is not as its manifest and the table's log say, one sentence each.

    Args:
        settings: the deployment's settings.
        spark: the session.
        folder: the folder.
        manifest: its manifest.

    Raises:
        ExportError: the deployment has no such table.
    """
    table = _exported_table(settings, manifest)
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
            measured = measure(create_frame(spark, table, rows), table)
        except (pa.ArrowException, ValueError) as error:
            yield f"{file.path} cannot be read: {error}"
            continue
        digests[file.day] = ", ".join(
            f"{d} {day_numbers.digest}" for d, day_numbers in measured.items() if d != file.day
        )
        digests[file.day] = digests[file.day] or measured[file.day].digest
    ledger = read_ledger(settings.table(table.name), table)
    if ledger.version is None or ledger.version < manifest.version:
        yield f"{table.name} has no version {manifest.version} at {settings.table(table.name)}"
        return
    exported = ledger.as_of(manifest.version)
    for day, digest in manifest.digests.items():
        if rows_differ(digests[day], digest):
            yield f"{day}: the rows have digest {digests[day]}, the manifest says {digest}"
        recorded = (
            exported.latest[day].days[day].digest if day in exported.latest else "nothing on record"
        )
        if rows_differ(recorded, digest):
            yield f"{day}: the log says {recorded} of version {manifest.version}, not {digest}"


def _exported_table(settings: Settings, manifest: ExportManifest) -> Table:
    try:
        return tables_of(settings)[manifest.table]
    except KeyError:
        raise ExportError(f"this deployment has no table {manifest.table}") from None


def find_rebuild_problems(
    settings: Settings, defs: dg.Definitions, manifest: ExportManifest
) -> Iterator[str]:
    """What differs when the days are computed anew, from the versions that they were made of.

    Nothing is written. Each day is computed by the assets as they are now, see `verification`.

    Args:
        settings: the deployment's settings.
        defs: its assets and resources.
        manifest: of the export.

    Raises:
        ExportError: the deployment has no such table.
    """
    table = _exported_table(settings, manifest)
    for origin in manifest.made_by:
        as_of = {**origin.inputs, table.name: manifest.version}
        for window in to_windows(from_ranges(origin.days)):
            for result in verify_days(settings, defs, window, [table.name], as_of=as_of):
                digest = result.now.digest if result.now else "nothing"
                if digest != manifest.digests[result.day]:
                    expected = manifest.digests[result.day]
                    yield f"{result.day}: computed anew it has digest {digest}, not {expected}: {result}"
