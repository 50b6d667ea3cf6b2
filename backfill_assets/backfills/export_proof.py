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
    Manifest,
    file_of,
    frame_of,
    plain,
)
from backfill_assets.backfills.verification import verify
from backfill_assets.calendar.partitions import unpacked, windows
from backfill_assets.delta.reading import read_ledger
from backfill_assets.quality.audit import differ, empty_day, measure
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import tables_of
from backfill_assets.tables.table import Table


def manifest_of(folder: Path) -> Manifest:
    """The manifest of an export.

    Raises:
        ExportError: there is none, or it is of another version.
    """
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise ExportError(f"{folder} holds no export: there is no {MANIFEST} in it") from None
    except msgspec.MsgspecError as error:
        raise ExportError(f"{folder / MANIFEST} cannot be read: {error}") from error


def problems(
    settings: Settings, spark: SparkSession, folder: Path, manifest: Manifest
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
    table = _table(settings, manifest)
    there = {path.name for path in folder.iterdir()} - {MANIFEST}
    if more := sorted(there - {file.path for file in manifest.files}):
        yield f"the manifest does not know {', '.join(more)}"
    held = dict.fromkeys(manifest.digests, empty_day(table).digest)
    for file in manifest.files:
        if file.path not in there:
            yield f"{file.path} is gone"
            continue
        if file_of(folder, file.path, file.day, file.rows) != file:
            yield f"{file.path} was changed: it has another size or SHA-256"
        try:
            rows = plain(pq.ParquetFile(folder / file.path).read())
            found = measure(frame_of(spark, table, rows), table)
        except (pa.ArrowException, ValueError) as error:
            yield f"{file.path} cannot be read: {error}"
            continue
        held[file.day] = ", ".join(f"{d} {one.digest}" for d, one in found.items() if d != file.day)
        held[file.day] = held[file.day] or found[file.day].digest
    ledger = read_ledger(settings.table(table.name), table)
    if ledger.version is None or ledger.version < manifest.version:
        yield f"{table.name} has no version {manifest.version} at {settings.table(table.name)}"
        return
    then = ledger.as_of(manifest.version)
    for day, digest in manifest.digests.items():
        if differ(held[day], digest):
            yield f"{day}: the rows have digest {held[day]}, the manifest says {digest}"
        said = then.latest[day].days[day].digest if day in then.latest else "nothing on record"
        if differ(said, digest):
            yield f"{day}: the log says {said} of version {manifest.version}, not {digest}"


def _table(settings: Settings, manifest: Manifest) -> Table:
    try:
        return tables_of(settings)[manifest.table]
    except KeyError:
        raise ExportError(f"this deployment has no table {manifest.table}") from None


def rebuilt(settings: Settings, defs: dg.Definitions, manifest: Manifest) -> Iterator[str]:
    """What differs when the days are computed anew, from the versions that they were made of.

    Nothing is written. Each day is computed by the assets as they are now, see `verification`.

    Args:
        settings: the deployment's settings.
        defs: its assets and resources.
        manifest: of the export.

    Raises:
        ExportError: the deployment has no such table.
    """
    table = _table(settings, manifest)
    for origin in manifest.made_by:
        as_of = {**origin.inputs, table.name: manifest.version}
        for window in windows(unpacked(origin.days)):
            for one in verify(settings, defs, window, [table.name], as_of=as_of):
                now = one.now.digest if one.now else "nothing"
                if now != manifest.digests[one.day]:
                    said = manifest.digests[one.day]
                    yield f"{one.day}: computed anew it has digest {now}, not {said}: {one}"
