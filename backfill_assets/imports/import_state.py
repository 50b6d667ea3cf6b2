"""The saved state of imports: which rows of which external table have landed, or are about to."""

import hashlib
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Self

import msgspec
import pyarrow.fs as pafs
from deltalake.exceptions import DeltaError

from backfill_assets.delta import delta_rs
from backfill_assets.deployment import Deployment
from backfill_assets.spark.filesystems import open_store, replace_file
from backfill_assets.spark.processes import process_start_time

#: The content of a lock that no process holds.
_FREE = "free"
#: In the warehouse: a folder for each source, with a file for each table.
_FOLDER = "_imports"


class ImportRefusedError(RuntimeError):
    """A table cannot be imported or followed as requested; the message says what to do."""


class ParquetFile(msgspec.Struct, frozen=True, order=True):
    """A file of a folder: relative path, bytes, time of the last change in ns since 1970."""

    path: str
    size: int
    mtime: int


class ImportStep(msgspec.Struct, frozen=True):
    """Rows that land together: all rows of the table, or those appended since.

    Attributes:
        name: prefix of its landing files.
        since: the last version imported before; None for all rows.
        version: the last version of the step. The versions of a Parquet folder count its steps.
        rows: number of rows by arrival day, counted before any of them landed.
        landed: number of rows by landing file, of the files that have landed.
        done: whether all rows have landed.
        read: the files of a Parquet folder that are read.
        skipped: versions of a Delta table that are left out.
    """

    name: str
    since: int | None
    version: int
    rows: dict[date, int]
    landed: dict[str, int] = {}
    done: bool = False
    read: list[ParquetFile] = []
    skipped: list[int] = []

    @property
    def row_count(self) -> int:
        """Number of rows of all days."""
        return sum(self.rows.values())


class ImportMapping(msgspec.Struct, frozen=True):
    """How rows of the table become lines of the source.

    Attributes:
        fields: by field, an SQL expression over the table's columns; other fields are columns of
            the same name.
        arrived: an SQL expression of the arrival time; empty for the later of event and version
            time.
        stray_day: the arrival day of rows without one on the calendar; None to refuse such rows.
    """

    fields: dict[str, str] = {}
    arrived: str = ""
    stray_day: date | None = None


class TableImport(msgspec.Struct, frozen=True):
    """The import of one external table.

    Attributes:
        table: folder or URL of the table.
        kind: `delta` or `parquet`.
        table_id: Delta's id of the table.
        version: the last version that was checked; -1 if none.
        steps: only the last one may be unfinished.
        skipped: versions that a person has decided not to follow.
    """

    source: str
    table: str
    kind: str
    table_id: str
    mapping: ImportMapping
    version: int = -1
    steps: list[ImportStep] = []
    skipped: list[int] = []

    @property
    def unfinished_step(self) -> ImportStep | None:
        """The last step, if not all of its rows have landed."""
        return self.steps[-1] if self.steps and not self.steps[-1].done else None

    @property
    def landed_files(self) -> Mapping[str, int]:
        """Number of rows by landing file."""
        return {name: rows for step in self.steps for name, rows in step.landed.items()}

    def with_step(self, step: ImportStep) -> "TableImport":
        """The import with a step added, or replaced if it has the same name."""
        others = [existing for existing in self.steps if existing.name != step.name]
        return msgspec.structs.replace(self, steps=[*others, step], version=step.version)


def load_imports(deployment: Deployment, source: str) -> dict[str, TableImport]:
    """The imports into a source, by folder or URL of the table."""
    filesystem, path = open_store(_imports_folder(deployment, source))
    listed = filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    imports = {}
    for info in sorted(listed, key=lambda info: str(info.path)):
        if info.base_name.endswith(".json") and not info.base_name.startswith("."):
            with filesystem.open_input_stream(info.path) as stream:
                table_import = _decode_import(stream.read())
            imports[table_import.table] = table_import
    return imports


def _decode_import(text: bytes) -> TableImport:
    """The import of a file, also of one of an earlier release, which had other names."""
    values = json.loads(text)
    if "how" in values:
        mapping = values["mapping"] = values.pop("how")
        mapping["stray_day"] = mapping.pop("stray", None)
    return msgspec.convert(values, TableImport, str_keys=True)


def save_import(deployment: Deployment, table_import: TableImport) -> TableImport:
    """Save the state of an import."""
    text = json.dumps(msgspec.to_builtins(table_import), indent=2).encode() + b"\n"
    replace_file(
        _imports_folder(deployment, table_import.source),
        f"{short_digest(table_import.table)}.json",
        text,
    )
    return table_import


class _LockHolder(msgspec.Struct, frozen=True):
    """The process that holds the lock of an import.

    Attributes:
        since: start of the import, in UTC.
        start: start of the process, as the system counts it.
        namespace: PID namespace; containers have their own.
    """

    host: str
    process: int
    since: datetime
    start: str | None
    namespace: str

    @classmethod
    def of_this_process(cls) -> Self:
        """The lock holder of this process, from now on."""
        host, process = socket.gethostname(), os.getpid()
        current_time = datetime.now(timezone.utc)
        return cls(host, process, current_time, process_start_time(process), _pid_namespace())

    def is_alive(self) -> bool:
        """Whether the process may still run; True for another machine or container."""
        if (self.host, self.namespace) != (socket.gethostname(), _pid_namespace()):
            return True
        return process_start_time(self.process) == self.start


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        return ""


@contextmanager
def lock_import(deployment: Deployment, source: str, table: str) -> Iterator[None]:
    """Lock the import of a table into a source for this process.

    Raises:
        ImportRefusedError: another process imports it; the message names the process.
    """
    url = f"{_imports_folder(deployment, source)}/{short_digest(table)}.lock"
    lock = delta_rs.read_document(url)
    if lock and lock.text != _FREE:
        holder = msgspec.json.decode(lock.text, type=_LockHolder)
        if holder.is_alive():
            raise ImportRefusedError(
                f"{table} is being imported into {source} by process {holder.process} on "
                f"{holder.host} since {holder.since:%Y-%m-%d %H:%M} UTC. Nothing was written. Wait "
                f"until that has ended. If there is no such process any more, remove {url}."
            )
    text = msgspec.json.encode(_LockHolder.of_this_process()).decode()
    revision = delta_rs.write_document(url, text, lock.revision if lock else delta_rs.NO_REVISION)
    if revision is None:
        raise ImportRefusedError(
            f"{table} is being imported into {source} by another process, which has begun just "
            "now. Nothing was written. Wait until that has ended."
        )
    try:
        yield
    finally:
        # If this fails, the lock stays, but its process ends and the lock becomes free.
        with suppress(DeltaError, OSError):
            delta_rs.write_document(url, _FREE, revision)


def short_digest(*texts: str) -> str:
    """A short digest of texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def _imports_folder(deployment: Deployment, source: str) -> str:
    return f"{deployment.settings.warehouse}/{_FOLDER}/{source}"
