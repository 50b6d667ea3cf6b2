"""Reads ledgers and unpartitioned inputs.

Only the transaction logs are read, without a JVM; `commit_log` reads their files.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import Any, NamedTuple

import pyspark.sql.types as T
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.calendar.partitions import PART_MARK
from backfill_assets.delta.commit_log import (
    CACHE_FOLDER,
    CachedCommitLog,
    CommitLog,
    changed_files,
)
from backfill_assets.delta.delta_rs import APPLICATION, files_by_day, load_log, read_metadata
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.records import (
    CommitSummary,
    ExternalCommit,
    commit_time,
    decode_commit,
    decode_version,
    encode_commit,
    encoding_id,
    to_record,
)
from backfill_assets.deployment import Deployment
from backfill_assets.spark.processes import pause_gc
from backfill_assets.tables.table import ExternalTable, Table

_PHYSICAL_NAME = "name in files"
#: Keys of a field in Delta's schema that are neither its name nor its type.
_IGNORED_TYPE_KEYS = ("metadata", "nullable", "containsNull", "valueContainsNull")
#: Application id of a growing table's commits that delete rows: their number is in its log.
DELETION_COUNTER = "backfill_assets/forgotten"


@dataclass(frozen=True)
class UnpartitionedState:
    """The current state of an unpartitioned table; version and content are None without a table.

    Attributes:
        content: identifies the rows: equal contents mean equal rows.
        grows: whether rows may be added without a change of `content`, see `UnpartitionedInput`.
    """

    url: str
    version: int | None = None
    content: str | None = None
    grows: bool = False

    def read_rows(self, spark: SparkSession) -> DataFrame:
        """All rows as of the version."""
        return spark.read.format("delta").option("versionAsOf", self.version).load(self.url)


def read_unpartitioned(url: str, *, grows: bool = False) -> UnpartitionedState:
    """The current state of an unpartitioned table, from its log alone.

    Maintenance is ignored: OPTIMIZE and VACUUM change no row. Commits missing from the log count as
    changes, and so do renamed columns, which no commit of rows shows. For a table that grows, see
    `UnpartitionedInput`, only deleted rows count as changes, and it need not exist.
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
    while (text := commits.read_commit(last_change)) is not None and not any(
        changed_files(text.splitlines())
    ):
        last_change -= 1
    # A table that is created again starts with version 0 again, so include its id.
    content = f"version {last_change} of {log.metadata().id}"
    return UnpartitionedState(url, version, f"{content}{_column_mapping(log)}")


def _column_mapping(log: DeltaTable) -> str:
    """Identifies the column mapping; empty if the columns have the same names in the files."""
    if log.metadata().configuration.get("delta.columnMapping.mode", "none") == "none":
        return ""
    names = json.dumps(_physical_type(json.loads(log.schema().to_json())))
    if _PHYSICAL_NAME not in names:
        return ""
    return f", columns {hashlib.sha256(names.encode()).hexdigest()[:12]}"


def _physical_type(type_json: Any) -> Any:
    """A type with the names of its fields, and their names in the files if they differ."""
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
    """By name, the current state of the unpartitioned inputs of a table."""
    return {
        reference.name: read_unpartitioned(reference.place(warehouse), grows=reference.grows)
        for reference in table.unpartitioned_inputs
    }


class _CachedLedger(NamedTuple):
    """The ledger that this process has last read of a table, and the digest of its last commit.

    Attributes:
        oldest_version: the first version whose commit file existed.
    """

    ledger: Ledger
    digest: str
    oldest_version: int

    def is_current(self, table: Table, commits: CachedCommitLog) -> bool:
        """Whether the log still has the commits of the ledger."""
        ledger = self.ledger
        return (
            ledger.table is table
            and commits.has_digest(ledger.version or 0, self.digest)
            # A process without a cache sees only the existing commits; this one must agree.
            and commits.has_commit(self.oldest_version)
            and not (
                ledger.missing_versions
                # Others cut their log every day.
                and not isinstance(table, ExternalTable)
                and commits.list_versions().intersection(ledger.missing_versions)
            )
        )


#: By URL and part.
_cached_ledgers: dict[tuple[str, str], _CachedLedger] = {}


class _LoadedCommits(NamedTuple):
    """The log of a table as this process has last loaded it, and its commits after a version.

    Attributes:
        since: the version before these commits; None for all.
        digest: of the last one.
    """

    since: int | None
    log: DeltaTable
    digest: str
    summaries: list[CommitSummary]
    missing_versions: list[int]


#: By URL and encoding. The parts of a table share what is the same for each.
_loaded_commits: dict[tuple[str, str], _LoadedCommits] = {}


def read_ledger(url: str, table: Table, warehouse: str = "") -> Ledger:
    """The current ledger of the table, or of its shallow clone, at a URL.

    Unpartitioned inputs are read from the warehouse, where commits of others are cached; by
    default, this is the parent folder of the URL.
    """
    warehouse = warehouse or url.rpartition("/")[0]
    if isinstance(table, ExternalTable):
        cache = f"{warehouse}/{CACHE_FOLDER}/{table.name}"
        return _read_log(url, table, cache).as_external_input
    ledger = _read_log(url, table)
    if not table.unpartitioned_inputs:
        return ledger
    references = read_unpartitioned_inputs(table, warehouse)
    return replace(
        ledger, references={name: reference.content for name, reference in references.items()}
    )


def _read_log(url: str, table: Table, cache_of_others: str = "") -> Ledger:
    """The ledger from the table's own log, without unpartitioned inputs."""
    commits = CachedCommitLog(
        url, partial(encode_commit, table), decode_version, encoding_id(table), cache_of_others
    )
    cached = _cached_ledgers.get((url, table.part))
    if cached is not None and not cached.is_current(table, commits):
        cached = None
    ledger = cached.ledger if cached else Ledger(table)
    if cached and commits.read_commit((ledger.version or 0) + 1) is None:
        return ledger
    loaded = _load_commits(table, commits, ledger.version)
    if loaded is None:
        return Ledger(table)
    with pause_gc():
        ledger = _extend_ledger(ledger, loaded)
    oldest_version = (
        cached.oldest_version if cached else commits.oldest_version(loaded.log.version())
    )
    _cached_ledgers[url, table.part] = _CachedLedger(ledger, loaded.digest, oldest_version)
    return ledger


def _load_commits(
    table: Table, commits: CachedCommitLog, since: int | None
) -> _LoadedCommits | None:
    """Load the commits after a version, up to the newest; None if there is no table."""
    key = commits.url, commits.encoding_id
    shared = _loaded_commits.get(key) if table.part else None
    if shared and shared.since == since and not shared.missing_versions:
        version = shared.log.version()
        if commits.has_digest(version, shared.digest) and not commits.has_commit(version + 1):
            return shared
    while (log := load_log(commits.url)) is not None:
        version = log.version()
        new = commits.read_lines(since, version, str(log.metadata().id))
        if commits.read_commit(version + 1) is None:
            with pause_gc():
                summaries = [*map(decode_commit, new.lines)]
            digest = commits.commit_digest(version)
            loaded = _LoadedCommits(since, log, digest, summaries, new.missing_versions)
            if table.part:
                _loaded_commits[key] = loaded
            return loaded
        # Another commit came in between: read again.
    return None


def read_ledgers(deployment: Deployment) -> Ledgers:
    """The current ledgers of all tables, inputs first; of others, those that are read."""
    # Downstream tables are read first: an input may then be newer than what was built from it,
    # which the next read corrects, but never older.
    tables = deployment.graph.all_tables
    ledgers = {
        name: read_ledger(deployment.table_url(name), table, deployment.settings.warehouse)
        for name, table in reversed([*tables.items()])
    }
    return {name: ledgers[name] for name in tables}


def _extend_ledger(ledger: Ledger, loaded: _LoadedCommits) -> Ledger:
    """A new ledger with the commits added; it has no days if the table has another partitioning."""
    log, missing = loaded.log, [*ledger.missing_versions, *loaded.missing_versions]
    metadata, table = read_metadata(log), ledger.table
    is_external, partitioned_by = isinstance(table, ExternalTable), metadata.partitioned_by
    if is_external:  # a day of others may be divided further
        partitioned_by = tuple(name for name in partitioned_by if name == table.partition)
    if partitioned_by != table.partition_columns or not any(
        column.name == table.partition and column.dataType == T.DateType()
        for column in metadata.struct
    ):
        # It is partitioned in another way, so its files have no days of ours.
        return Ledger(table, log.version(), missing_versions=missing, metadata=metadata)
    records, external, changed_columns = (
        list(ledger.records),
        list(ledger.external_commits),
        dict(ledger.changed_columns),
    )
    columns = set(ledger.metadata.struct.names) if ledger.metadata else set()
    for summary in loaded.summaries:
        if summary.columns:
            new = set(summary.columns) ^ columns if columns else ()
            changed_columns |= dict.fromkeys(new, summary.version)
            columns = set(summary.columns)
        if summary.record:
            by_part = summary.record.by_part
            if own := by_part.get(table.part):
                records.append(to_record(summary, own))
            elif is_external:  # its parts are of one day
                of_parts = [to_record(summary, record) for record in by_part.values()]
                changed = frozenset().union(*(r.days.keys() | r.revoked_days for r in of_parts))
                external.append(
                    ExternalCommit(summary.version, summary.operation, changed, of_parts[0].at)
                )
            continue
        pairs = [text.partition(PART_MARK) for text in summary.days]
        days = frozenset(date.fromisoformat(day) for day, _, part in pairs if part == table.part)
        # External commits before our first one are the creation; that of parts has no rows.
        counts = records or missing or table.part or is_external
        if (days or summary.anywhere) and counts:
            at = commit_time(summary)
            external.append(
                ExternalCommit(summary.version, summary.operation, days, at, summary.anywhere)
            )
    return Ledger(
        table,
        log.version(),
        records,
        external,
        *files_by_day(log, table),
        transaction=log.transaction_version(APPLICATION),
        missing_versions=missing,
        metadata=metadata,
        changed_columns=changed_columns,
    )
