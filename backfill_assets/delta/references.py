"""What a table without days holds now: its version, and the last change of its rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.delta.commit_files import CommitLog
from backfill_assets.delta.entries import changes_rows
from backfill_assets.delta.logs import load_log
from backfill_assets.tables.table import Table

_IN_FILES = "name in files"
#: What Delta's schema says of a field besides its name and its type.
_NOT_OF_A_TYPE = ("metadata", "nullable", "containsNull", "valueContainsNull")
#: In the log of a table that grows, the number of the last commit that took rows away.
FORGOTTEN = "backfill_assets/forgotten"


@dataclass(frozen=True)
class Reference:
    """A table without days, as of now.

    Attributes:
        url: where it lies.
        version: its latest version; none while there is no table.
        content: what it holds, as text: with equal texts it has equal rows. None without a table.
        grows: whether rows may have been added, see `WithoutDays`.
    """

    url: str
    version: int | None = None
    content: str | None = None
    grows: bool = False

    def rows(self, spark: SparkSession) -> DataFrame:
        """All of its rows, as of the version."""
        return spark.read.format("delta").option("versionAsOf", self.version).load(self.url)


def look(url: str, *, grows: bool = False) -> Reference:
    """What a table without days holds now, by its log alone.

    Maintenance does not count: OPTIMIZE and VACUUM change no row. Commits that are gone from the
    log count as changes, and so do other names of columns, which no commit of rows tells of.

    Args:
        url: where it lies.
        grows: whether only rows that are taken away count, see `WithoutDays`; the table need not
            be there.
    """
    log = load_log(url)
    if grows:
        if log is None:
            return Reference(url, content="nothing yet", grows=True)
        forgotten = log.transaction_version(FORGOTTEN) or 0
        content = f"{log.metadata().id}, {forgotten} times forgotten"
        return Reference(url, log.version(), content, grows=True)
    if log is None:
        return Reference(url)
    version, commits = log.version(), CommitLog(url)
    last = version
    while (text := commits.text(last)) is not None and not changes_rows(text):
        last -= 1
    # A table that is made anew begins again with its versions.
    content = f"version {last} of {log.metadata().id}"
    return Reference(url, version, f"{content}{_names_of_columns(log)}")


def _names_of_columns(log: DeltaTable) -> str:
    """By which names the columns in the files are read, where these are others (column mapping)."""
    if log.metadata().configuration.get("delta.columnMapping.mode", "none") == "none":
        return ""
    names = json.dumps(_mapped(json.loads(log.schema().to_json())))
    if _IN_FILES not in names:
        return ""
    return f", columns {hashlib.sha256(names.encode()).hexdigest()[:12]}"


def _mapped(kind: Any) -> Any:
    """A type with the name of each field, and the one in the files if it differs; no comments."""
    if isinstance(kind, list):
        return [_mapped(part) for part in kind]
    if not isinstance(kind, dict):
        return kind
    in_files = kind.get("metadata", {}).get("delta.columnMapping.physicalName")
    parts = {name: _mapped(part) for name, part in kind.items() if name not in _NOT_OF_A_TYPE}
    renamed = in_files not in (None, kind.get("name"))
    return {**parts, _IN_FILES: in_files} if renamed else parts


def references_of(table: Table, warehouse: str) -> Mapping[str, Reference]:
    """By name, the tables without days that a table is made of, as of now."""
    return {of.name: look(of.place(warehouse), grows=of.grows) for of in table.references}
