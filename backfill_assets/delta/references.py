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

_PHYSICAL_NAME = "name in files"
#: What Delta's schema says of a field besides its name and its type.
_IGNORED_TYPE_KEYS = ("metadata", "nullable", "containsNull", "valueContainsNull")
#: In the log of a table that grows, the number of the last commit that took rows away.
DELETION_COUNTER = "backfill_assets/forgotten"


@dataclass(frozen=True)
class UnpartitionedState:
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

    def read_rows(self, spark: SparkSession) -> DataFrame:
        """All of its rows, as of the version."""
        return spark.read.format("delta").option("versionAsOf", self.version).load(self.url)


def read_unpartitioned(url: str, *, grows: bool = False) -> UnpartitionedState:
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
            return UnpartitionedState(url, content="nothing yet", grows=True)
        deletions = log.transaction_version(DELETION_COUNTER) or 0
        content = f"{log.metadata().id}, {deletions} times forgotten"
        return UnpartitionedState(url, log.version(), content, grows=True)
    if log is None:
        return UnpartitionedState(url)
    version, commits = log.version(), CommitLog(url)
    last_change = version
    while (text := commits.read_commit(last_change)) is not None and not changes_rows(text):
        last_change -= 1
    # A table that is made anew begins again with its versions.
    content = f"version {last_change} of {log.metadata().id}"
    return UnpartitionedState(url, version, f"{content}{_column_mapping(log)}")


def _column_mapping(log: DeltaTable) -> str:
    """By which names the columns in the files are read, where these are others (column mapping)."""
    if log.metadata().configuration.get("delta.columnMapping.mode", "none") == "none":
        return ""
    names = json.dumps(_physical_type(json.loads(log.schema().to_json())))
    if _PHYSICAL_NAME not in names:
        return ""
    return f", columns {hashlib.sha256(names.encode()).hexdigest()[:12]}"


def _physical_type(type_json: Any) -> Any:
    """A type with the name of each field, and the one in the files if it differs; no comments."""
    if isinstance(type_json, list):
        return [_physical_type(part) for part in type_json]
    if not isinstance(type_json, dict):
        return type_json
    physical_name = type_json.get("metadata", {}).get("delta.columnMapping.physicalName")
    parts = {
        name: _physical_type(part)
        for name, part in type_json.items()
        if name not in _IGNORED_TYPE_KEYS
    }
    renamed = physical_name not in (None, type_json.get("name"))
    return {**parts, _PHYSICAL_NAME: physical_name} if renamed else parts


def read_unpartitioned_inputs(table: Table, warehouse: str) -> Mapping[str, UnpartitionedState]:
    """By name, the tables without days that a table is made of, as of now."""
    return {
        reference.name: read_unpartitioned(reference.place(warehouse), grows=reference.grows)
        for reference in table.unpartitioned_inputs
    }
