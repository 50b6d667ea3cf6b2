"""Reading ledgers: what was read before in this process goes on with the commits since.

Only the transaction logs are read, without a JVM; how their files are read is known to
`commit_files`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from functools import partial
from typing import NamedTuple

import pyspark.sql.types as T
from deltalake import DeltaTable

from backfill_assets.delta.commit_files import CachedCommitLog, CommitLines
from backfill_assets.delta.entries import (
    commit_time,
    decode_commit,
    decode_version,
    encode_commit,
    encoding_id,
    to_record,
)
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.logs import APPLICATION, files_by_day, load_log, read_metadata
from backfill_assets.delta.records import ExternalCommit
from backfill_assets.delta.references import read_unpartitioned_inputs
from backfill_assets.engine.garbage import pause_gc
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import tables_of
from backfill_assets.tables.table import Table


class _CachedLedger(NamedTuple):
    """What was last read of a table in this process.

    Attributes:
        ledger: as of then.
        digest: that of its last commit.
        oldest_version: the first version whose commit was there.
    """

    ledger: Ledger
    digest: str
    oldest_version: int

    def is_current(self, table: Table, commits: CachedCommitLog) -> bool:
        """Whether the log still has what was read of it."""
        ledger = self.ledger
        return (
            ledger.table is table
            and commits.has_digest(ledger.version or 0, self.digest)
            # Who has not read the log before knows no more than what is there, and so shall we.
            and commits.has_commit(self.oldest_version)
            and not (
                ledger.missing_versions
                and commits.list_versions().intersection(ledger.missing_versions)
            )
        )


_cached_ledgers: dict[str, _CachedLedger] = {}


def read_ledger(url: str, table: Table, warehouse: str = "") -> Ledger:
    """The ledger of a table as of now.

    Args:
        url: where the table lives, or a fork of it.
        table: which one it is.
        warehouse: where the tables without days are; the folder of the table, if not given.
    """
    ledger = _read_log(url, table)
    if not table.unpartitioned_inputs:
        return ledger
    references = read_unpartitioned_inputs(table, warehouse or url.rpartition("/")[0])
    return replace(
        ledger, references={name: reference.content for name, reference in references.items()}
    )


def _read_log(url: str, table: Table) -> Ledger:
    """What a table's own log says."""
    commits = CachedCommitLog(
        url, partial(encode_commit, table), decode_version, encoding_id(table)
    )
    cached = _cached_ledgers.get(url)
    if cached is not None and not cached.is_current(table, commits):
        cached = None
    ledger = cached.ledger if cached else Ledger(table)
    if cached and commits.read_commit((ledger.version or 0) + 1) is None:
        return ledger
    while (log := load_log(url)) is not None:
        new_commits = commits.read_lines(ledger.version, log.version(), str(log.metadata().id))
        if commits.read_commit(log.version() + 1) is None:
            with pause_gc():
                ledger = _extend_ledger(ledger, new_commits, log)
            oldest_version = (
                cached.oldest_version if cached else commits.oldest_version(log.version())
            )
            _cached_ledgers[url] = _CachedLedger(
                ledger, commits.commit_digest(log.version()), oldest_version
            )
            return ledger
        # Somebody committed in between.
    return Ledger(table)


def read_ledgers(settings: Settings) -> Ledgers:
    """The ledgers of all tables as of now, inputs first."""
    # Those that are built last are read first: an input may be newer than what was looked at
    # before, which the next look mends, but not older than what was built from it.
    tables = tables_of(settings)
    ledgers = {
        name: read_ledger(settings.table(name), table)
        for name, table in reversed([*tables.items()])
    }
    return {name: ledgers[name] for name in tables}


def _extend_ledger(ledger: Ledger, new_commits: CommitLines, log: DeltaTable) -> Ledger:
    """A ledger with the commits that came since."""
    missing = [*ledger.missing_versions, *new_commits.missing_versions]
    metadata = read_metadata(log)
    if metadata.partitioned_by != (ledger.table.partition,) or not any(
        column.name == ledger.table.partition and column.dataType == T.DateType()
        for column in metadata.struct
    ):
        # Its days are not those of the table that is meant.
        return Ledger(ledger.table, log.version(), missing_versions=missing, metadata=metadata)
    records, external, changed_columns = (
        list(ledger.records),
        list(ledger.external_commits),
        dict(ledger.changed_columns),
    )
    columns = set(ledger.metadata.struct.names) if ledger.metadata else set()
    for summary in map(decode_commit, new_commits.lines):
        if summary.columns:
            new = set(summary.columns) ^ columns if columns else ()
            changed_columns |= dict.fromkeys(new, summary.version)
            columns = set(summary.columns)
        if summary.said:
            records.append(to_record(summary, summary.said))
        # What came before our first one was the creation.
        elif (summary.days or summary.anywhere) and (records or missing):
            days = frozenset(map(date.fromisoformat, summary.days))
            at = commit_time(summary)
            external.append(
                ExternalCommit(summary.version, summary.operation, days, at, summary.anywhere)
            )
    return Ledger(
        ledger.table,
        log.version(),
        records,
        external,
        *files_by_day(log, ledger.table),
        transaction=log.transaction_version(APPLICATION),
        missing_versions=missing,
        metadata=metadata,
        changed_columns=changed_columns,
    )
