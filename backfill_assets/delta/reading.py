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

from backfill_assets.delta.commit_files import CommitFiles, Lines
from backfill_assets.delta.entries import form, line_of, made_at, parsed, record_of, version_of
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.logs import APPLICATION, by_day, load_log, metadata_of
from backfill_assets.delta.records import ExternalCommit
from backfill_assets.delta.references import references_of
from backfill_assets.engine.garbage import no_collection
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import tables_of
from backfill_assets.tables.table import Table


class _Known(NamedTuple):
    """What was last read of a table in this process.

    Attributes:
        ledger: as of then.
        mark: that of its last commit.
        oldest: the first version whose commit was there.
    """

    ledger: Ledger
    mark: str
    oldest: int

    def holds(self, table: Table, commits: CommitFiles) -> bool:
        """Whether the log still has what was read of it."""
        ledger = self.ledger
        return (
            ledger.table is table
            and commits.is_marked(ledger.version or 0, self.mark)
            # Who has not read the log before knows no more than what is there, and so shall we.
            and commits.has(self.oldest)
            and not (ledger.lost and commits.there().intersection(ledger.lost))
        )


_known: dict[str, _Known] = {}


def read_ledger(url: str, table: Table, warehouse: str = "") -> Ledger:
    """The ledger of a table as of now.

    Args:
        url: where the table lives, or a fork of it.
        table: which one it is.
        warehouse: where the tables without days are; the folder of the table, if not given.
    """
    ledger = _read_log(url, table)
    if not table.references:
        return ledger
    references = references_of(table, warehouse or url.rpartition("/")[0])
    return replace(ledger, references={name: of.content for name, of in references.items()})


def _read_log(url: str, table: Table) -> Ledger:
    """What a table's own log says."""
    commits = CommitFiles(url, partial(line_of, table), version_of, form(table))
    known = _known.get(url)
    if known is not None and not known.holds(table, commits):
        known = None
    ledger = known.ledger if known else Ledger(table)
    if known and commits.text((ledger.version or 0) + 1) is None:
        return ledger
    while (log := load_log(url)) is not None:
        found = commits.lines(ledger.version, log.version(), str(log.metadata().id))
        if commits.text(log.version() + 1) is None:
            with no_collection():
                ledger = _continued(ledger, found, log)
            oldest = known.oldest if known else commits.oldest(log.version())
            _known[url] = _Known(ledger, commits.mark(log.version()), oldest)
            return ledger
        # Somebody committed in between.
    return Ledger(table)


def read_ledgers(settings: Settings) -> Ledgers:
    """The ledgers of all tables as of now, inputs first."""
    # Those that are built last are read first: an input may be newer than what was looked at
    # before, which the next look mends, but not older than what was built from it.
    tables = tables_of(settings)
    found = {
        name: read_ledger(settings.table(name), table)
        for name, table in reversed([*tables.items()])
    }
    return {name: found[name] for name in tables}


def _continued(known: Ledger, found: Lines, log: DeltaTable) -> Ledger:
    """A ledger with the commits that came since."""
    lost = [*known.lost, *found.lost]
    metadata = metadata_of(log)
    if metadata.partitioned_by != (known.table.partition,) or not any(
        column.name == known.table.partition and column.dataType == T.DateType()
        for column in metadata.struct
    ):
        # Its days are not those of the table that is meant.
        return Ledger(known.table, log.version(), lost=lost, metadata=metadata)
    records, external, added = list(known.records), list(known.external), dict(known.added)
    columns = set(known.metadata.struct.names) if known.metadata else set()
    for entry in map(parsed, found.lines):
        if entry.columns:
            new = set(entry.columns) ^ columns if columns else ()
            added |= dict.fromkeys(new, entry.version)
            columns = set(entry.columns)
        if entry.said:
            records.append(record_of(entry, entry.said))
        # What came before our first one was the creation.
        elif (entry.days or entry.anywhere) and (records or lost):
            days = frozenset(map(date.fromisoformat, entry.days))
            at = made_at(entry)
            external.append(
                ExternalCommit(entry.version, entry.operation, days, at, entry.anywhere)
            )
    return Ledger(
        known.table,
        log.version(),
        records,
        external,
        *by_day(log, known.table),
        transaction=log.transaction_version(APPLICATION),
        lost=lost,
        metadata=metadata,
        added=added,
    )
