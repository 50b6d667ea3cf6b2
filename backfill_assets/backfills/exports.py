"""Exports: days of a table as of one version, as Parquet files with a manifest."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.calendar.partitions import Window, packed, spelled
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.reading import read_ledger
from backfill_assets.delta.records import Record
from backfill_assets.delta.snapshots import rows_as_of
from backfill_assets.quality.audit import differ, empty_day, measure
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import tables_of
from backfill_assets.tables.table import Table

MANIFEST = "manifest.json"
_FORM = 1


class ExportError(RuntimeError):
    """Days cannot be exported, or a folder holds no export; the message says why."""


class File(msgspec.Struct, frozen=True):
    """A Parquet file of one day.

    Attributes:
        path: in the folder of the export.
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


class Origin(msgspec.Struct, frozen=True):
    """What some of the days were made by, as the commit that speaks of them says.

    Attributes:
        days: as ranges.
        version: of the table: the commit.
        run: the Dagster run.
        inputs: the version of each input that they were made of.
        references: what the inputs without days held.
        code: version of the code that made them.
        git_commit: of that code; empty if unknown.
        config: digests of the settings that they were made under.
    """

    days: list[str]
    version: int
    run: str
    inputs: dict[str, int]
    references: dict[str, str | None]
    code: str
    git_commit: str
    config: list[str]


class Manifest(msgspec.Struct, frozen=True):
    """What an export holds. No time is in it: the same export is the same text.

    Attributes:
        table: the table's name.
        days: the days, as one range.
        version: of the table, as of which its rows were read.
        columns: their Spark types by name, in the order of the files.
        rows: number of rows in all.
        digests: by day, the digest of the audit, as the commit has it.
        made_by: what the days were made by.
        files: the data files. A day without rows has none.
        form: of the manifest.
    """

    table: str
    days: str
    version: int
    columns: dict[str, str]
    rows: int
    digests: dict[date, str]
    made_by: list[Origin]
    files: list[File]
    form: int = _FORM


def export(
    settings: Settings, spark: SparkSession, name: str, days: Window, to: Path
) -> tuple[Manifest, bool]:
    """Write days of a table, as of its version of now, into a new folder.

    Files are written beside the folder first: it appears as a whole, or not at all. The rows of a
    day are sorted, so the same days give the same bytes, whoever exports them.

    Args:
        settings: the deployment's settings.
        spark: the session.
        name: the table.
        days: the days.
        to: the folder.

    Returns:
        The manifest, and whether the folder is new; it is not if it holds this very export.

    Raises:
        ExportError: a day is not published, or not as its commit says; or the folder holds
            something else.
    """
    table = tables_of(settings)[name]
    ledger = read_ledger(settings.table(name), table)
    _refuse_unpublished(ledger, days)
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.") as made:
        folder = Path(made) / to.name
        folder.mkdir()
        files = [
            file
            for day in days
            if (file := _written(settings, spark, ledger, day, folder)) is not None
        ]
        manifest = _manifest(ledger, days, files)
        (folder / MANIFEST).write_bytes(text_of(manifest))
        try:
            folder.rename(to)
        except OSError:
            if not to.exists():
                raise
            _refuse_other(to, manifest)
            return manifest, False
    return manifest, True


def _refuse_unpublished(ledger: Ledger, days: Window) -> None:
    name = ledger.table.name
    if missing := [day for day in days if day not in ledger.published]:
        raise ExportError(
            f"{name} [{spelled(missing)}] has never been published: nothing was exported. "
            "Materialize these days first."
        )
    if strange := [day for day in days if ledger.current_record(day) is None]:
        raise ExportError(
            f"{name} [{spelled(strange)}] is not what our commits say: another writer changed it, "
            "or the log was cut. Nothing was exported. Materialize these days again."
        )


def _written(
    settings: Settings, spark: SparkSession, ledger: Ledger, day: date, folder: Path
) -> File | None:
    """The file of a day; none if it has no rows.

    Raises:
        ExportError: the rows are not those that the commit speaks of.
    """
    table, version = ledger.table, ledger.version
    assert version is not None
    said = ledger.latest[day].days[day]
    frame = rows_as_of(spark, settings.table(table.name), table, version, [day])
    rows = plain(frame.toArrow())
    found = measure(frame_of(spark, table, rows), table).get(day, empty_day(table))
    if differ(found.digest, said.digest):
        raise ExportError(
            f"{table.name} [{day}]: version {version} holds {found.rows} rows (digest "
            f"{found.digest}), and its commit speaks of {said.rows} (digest {said.digest}). "
            "Nothing was exported. Look with `backfill-assets verify`, and build the day again."
        )
    if not rows.num_rows:
        return None
    path = f"{table.partition}={day}.parquet"
    order = [name for name in (*table.key, *rows.column_names) if _sorts(rows, name)]
    rows = rows.sort_by([(name, "ascending") for name in dict.fromkeys(order)])
    pq.write_table(rows, folder / path, compression="zstd")
    return file_of(folder, path, day, rows.num_rows)


def plain(rows: pa.Table) -> pa.Table:
    """The rows alone, without what an engine adds of itself."""
    return rows.replace_schema_metadata(None).combine_chunks()


def _sorts(rows: pa.Table, name: str) -> bool:
    return not pa.types.is_nested(rows.schema.field(name).type)


def frame_of(spark: SparkSession, table: Table, rows: pa.Table) -> DataFrame:
    """Rows of a table as Spark takes them."""
    return spark.createDataFrame(rows, table.struct)


def file_of(folder: Path, path: str, day: date, rows: int) -> File:
    """A file as it is now."""
    content = (folder / path).read_bytes()
    return File(path, day, rows, len(content), hashlib.sha256(content).hexdigest())


def _manifest(ledger: Ledger, days: Window, files: Sequence[File]) -> Manifest:
    assert ledger.version is not None
    # Days of one commit may have been made by and from different things.
    by_record: dict[tuple[int, bytes], list[date]] = {}
    for day in days:
        record = ledger.latest[day]
        made = msgspec.json.encode(record.provenance(day), order="sorted")
        by_record.setdefault((record.version, made), []).append(day)
    return Manifest(
        table=ledger.table.name,
        days=str(days),
        version=ledger.version,
        columns={column.name: column.dataType.simpleString() for column in ledger.table.struct},
        rows=sum(file.rows for file in files),
        digests={day: ledger.latest[day].days[day].digest for day in days},
        made_by=[_origin(ledger.latest[of[0]], of) for _, of in sorted(by_record.items())],
        files=[*files],
    )


def _origin(record: Record, days: Sequence[date]) -> Origin:
    return Origin(
        days=packed(days),
        version=record.version,
        run=record.run_id,
        inputs=dict(record.inputs),
        references=dict(record.details.references),
        code=record.code_version,
        git_commit=record.git_commit,
        config=sorted({record.made_under(day) for day in days}),
    )


def text_of(manifest: Manifest) -> bytes:
    """The file of a manifest."""
    return json.dumps(msgspec.to_builtins(manifest), indent=2).encode() + b"\n"


def _refuse_other(to: Path, manifest: Manifest) -> None:
    """Refuse a folder that holds anything but this export.

    Raises:
        ExportError: it does.
    """
    there = {path.name for path in to.iterdir()} if to.is_dir() else set()
    if there != {MANIFEST, *(file.path for file in manifest.files)}:
        said = "holds something else"
    elif (to / MANIFEST).read_bytes() != text_of(manifest):
        said = "holds another export"
    elif changed := [f.path for f in manifest.files if file_of(to, f.path, f.day, f.rows) != f]:
        said = f"holds this export with other files: {', '.join(changed)}"
    else:
        return
    raise ExportError(f"{to} {said}; it is as it was. Give a folder that is not there yet.")
