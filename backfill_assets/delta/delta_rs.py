"""Delta through delta-rs: logs, rows of tables without days, a check of the store, documents.

A commit creates a file that must not exist yet. If a store ignores this condition, two writers can
create the same version, and one commit is silently lost.

Only a Delta log does this the same way on a local disk and on an object store. The table has no
rows; the last commit holds the document.
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import date
from functools import cache
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as T
from dagster_deltalake import DeltaTableResource
from dagster_deltalake.config import LocalConfig
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    QueryBuilder,
    Schema,
    write_deltalake,
)
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.schema import Field, PrimitiveType

from backfill_assets.audit.verdicts import DayMetrics
from backfill_assets.delta.commit_log import CommitLog
from backfill_assets.delta.ledgers import StoredFiles, TableMetadata
from backfill_assets.spark.filesystems import delete_folder, in_object_store, open_store
from backfill_assets.spark.stores import ObjectStore, store_of
from backfill_assets.tables.table import Table

#: Our application id: Delta stores the number of the last commit of each application.
APPLICATION = "backfill_assets"
#: For commits after which delta-rs writes no checkpoint and deletes no log.
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def load_log(url: str) -> DeltaTable | None:
    """A table's transaction log; None if there is no table."""
    try:
        return delta_log(url).load()
    except TableNotFoundError:
        return None


def delta_log(url: str, version: int | None = None) -> DeltaTableResource:
    """dagster-deltalake's handle on a table's log, with credentials from the environment."""
    return _resource_of_store(store_of(url)).model_copy(update={"url": url, "version": version})


@cache
def _resource_of_store(store: ObjectStore | None) -> DeltaTableResource:
    """The resource of any log in a store; None is a local folder."""
    # Dagster derives the configuration schema again for each resource (7 ms), and a run loads many
    # logs. The resource is frozen; `load` opens the log again.
    if store is None:
        return DeltaTableResource(url="", storage_options=LocalConfig())
    location, client = store.delta_rs_config()
    return DeltaTableResource(url="", storage_options=location, client_options=client)


def storage_options(url: str) -> dict[str, str]:
    """The storage options of delta-rs for a table's store."""
    log = delta_log(url)
    client = log.client_options.str_dict() if log.client_options else {}
    return {**log.storage_options.str_dict(), **client}


def replace_rows(url: str, rows: pa.Table, key: Sequence[str]) -> bool:
    """Replace all rows of a table without days in one commit; none, and False, if it has them.

    A commit counts as other rows (`Unpartitioned`), and makes all days that read the table due.

    Args:
        url: of the table, which is created if it is not there.
        rows: its rows from now on.
        key: the columns that name a row, by which other tables join it.

    Raises:
        ValueError: two rows have the same key; nothing was written.
    """
    new = {tuple(row[name] for name in key): row for row in rows.to_pylist()}
    if len(new) < rows.num_rows:
        raise ValueError(
            f"{url}: {rows.num_rows - len(new)} row(s) have the same {', '.join(key)} as another, "
            "so a join would double what it joins. Nothing was written: the table is as it was"
        )
    if log := load_log(url):
        query = QueryBuilder().register("old", log).execute("SELECT * FROM old")
        old_rows = pa.table(query).to_pylist()
        if len(old_rows) == len(new) and new == {
            tuple(row.get(name) for name in key): row for row in old_rows
        }:
            return False
    write_deltalake(url, rows, mode="overwrite", storage_options=storage_options(url))
    return True


def read_metadata(log: DeltaTable) -> TableMetadata:
    """The columns, partition columns and properties of a table."""
    metadata = log.metadata()
    struct = T.StructType.fromJson(json.loads(log.schema().to_json()))
    return TableMetadata(struct, tuple(metadata.partition_columns), dict(metadata.configuration))


def files_of_part(log: DeltaTable, table: Table) -> pa.Table:
    """The data files in the log as `get_add_actions` gives them, of the table's part if it is one.

    The columns of partitions are named `partition.COLUMN`.
    """
    actions = pa.table(log.get_add_actions(flatten=True))
    for column, part in table.part_values.items() if actions.num_rows else ():
        actions = actions.filter(pc.equal(actions[f"partition.{column}"], part))
    return actions


def files_by_day(
    log: DeltaTable, table: Table
) -> tuple[Mapping[date, DayMetrics], Mapping[date, StoredFiles], Mapping[date, int] | None]:
    """From the statistics in the log by day: the metrics, the data files, and the number of rows.

    No row is read. Digest and totals are not in the log and are left empty. The numbers of rows
    lack days with a file without statistics; they are None if the table has deletion vectors.
    """
    actions = files_of_part(log, table)
    day = f"partition.{table.partition}"
    if not actions.num_rows:
        return {}, {}, {}
    rows = "num_records"
    if rows not in actions.column_names:
        actions = actions.append_column(rows, pa.nulls(actions.num_rows, pa.int64()))
    for name in table.null_bounds:
        # A file from before the column was added has no statistics of it: count each row as null.
        count = f"null_count.{name}"
        if count not in actions.column_names:
            actions = actions.append_column(count, actions[rows])
        else:
            filled = pc.coalesce(actions[count], actions[rows])
            actions = actions.set_column(actions.column_names.index(count), count, filled)
    nulls = [f"null_count.{name}" for name in table.columns]
    counts = [n for n in ("size_bytes", *nulls) if n in actions.column_names]
    sums = actions.group_by(day).aggregate(
        [
            ("path", "count"),
            (rows, "sum"),
            (rows, "count"),
            ("modification_time", "max"),
            *((n, "sum") for n in counts),
        ]
    )

    def to_measured(row: Mapping[str, Any]) -> DayMetrics:
        nulls = {name: row.get(f"null_count.{name}_sum") or 0 for name in table.columns}
        return DayMetrics(row["num_records_sum"] or 0, {}, "", nulls=nulls)

    def to_stored(row: Mapping[str, Any]) -> StoredFiles:
        return StoredFiles(row["path_count"], row["size_bytes_sum"], row["modification_time_max"])

    positions = {day: n for n, day in enumerate(sums.column(day).to_pylist())}
    row_counts = None
    # The statistics of a file still count the rows that a deletion vector removed.
    if "deletionVectors" not in (log.protocol().reader_features or ()):
        complete = sums.filter(pc.equal(sums["path_count"], sums["num_records_count"]))
        pairs = (complete.column(name).to_pylist() for name in (day, "num_records_sum"))
        row_counts = dict(zip(*pairs, strict=True))
    return (
        _LazyByDay(positions, sums, to_measured),
        _LazyByDay(positions, sums, to_stored),
        row_counts,
    )


_Value = TypeVar("_Value")


class _LazyByDay(Mapping[date, _Value]):
    """By day, a value made of the day's row of an Arrow table, on access: most are never needed."""

    def __init__(
        self,
        positions: Mapping[date, int],
        rows: pa.Table,
        convert: Callable[[Mapping[str, Any]], _Value],
    ) -> None:
        self._row_by_day, self._rows, self._convert = positions, rows, convert

    def __getitem__(self, day: date) -> _Value:
        (row,) = self._rows.slice(self._row_by_day[day], 1).to_pylist()
        return self._convert(row)

    def __contains__(self, day: object) -> bool:
        return day in self._row_by_day

    def __iter__(self) -> Iterator[date]:
        return iter(self._row_by_day)

    def __len__(self) -> int:
        return len(self._row_by_day)

    def __repr__(self) -> str:
        return repr(dict(self))


_WRITERS, _ROUNDS = 4, 3
_PROBE_SCHEMA = Schema([Field("probe", PrimitiveType("integer"))])


class UnsafeStoreError(RuntimeError):
    """The store can lose commits; nothing was written to any table."""


@cache
def raise_if_unsafe_store(warehouse: str) -> None:
    """Check once a process that of concurrent commits of a version only one succeeds.

    Only in an object store. A small table is created in the warehouse and removed.

    Raises:
        UnsafeStoreError: more than one succeeded.
        DeltaError, OSError: the store cannot be written to.
    """
    if not in_object_store(warehouse):
        return
    url = f"{warehouse}/_backfill_assets-{uuid4().hex}"
    DeltaTable.create(url, _PROBE_SCHEMA, storage_options=storage_options(url))
    try:
        with ThreadPoolExecutor(_WRITERS) as pool:
            for _ in range(_ROUNDS):
                writers = [delta_log(url).load() for _ in range(_WRITERS)]
                if sum(pool.map(_commit_succeeds, writers)) > 1:
                    raise UnsafeStoreError(
                        f"the store of {warehouse} overlooks conditions of a PUT, so that of "
                        "two runs that commit at the same time one would be lost: use a "
                        "store or a version of it that has conditional writes. No table was touched"
                    )
    finally:
        filesystem, path = open_store(url)
        with suppress(OSError):
            delete_folder(filesystem, path)


def _commit_succeeds(log: DeltaTable) -> bool:
    """Commit nothing as the next version after `log`; False if another commit took it."""
    try:
        log.create_write_transaction(
            [],
            "append",
            _PROBE_SCHEMA,
            commit_properties=CommitProperties(max_commit_retries=0),
            post_commithook_properties=NO_HOOKS,
        )
    except DeltaError:
        return False
    return True


_SCHEMA = Schema([Field("target", PrimitiveType("string"))])
#: The revision before the first commit.
NO_REVISION = -1


class Document(NamedTuple):
    """A document; its revision is the version of the log."""

    revision: int
    text: str


def read_document(url: str) -> Document | None:
    """Read the document; None if there is none."""
    commits = CommitLog(url)
    revision = max(commits.list_versions(), default=NO_REVISION)
    lines = (commits.read_commit(revision) or b"").splitlines()
    texts = (json.loads(line).get("commitInfo", {}).get("userMetadata") for line in lines)
    text = next(filter(None, texts), None)
    return None if text is None else Document(revision, text)


def write_document(url: str, text: str, base_revision: int) -> int | None:
    """Write the document if its revision is `base_revision`; returns the new revision, else None.

    Raises:
        DeltaError, OSError: the store cannot be written to.
    """
    properties = CommitProperties({"userMetadata": text}, max_commit_retries=0)
    options = storage_options(url)
    try:
        if base_revision == NO_REVISION:
            DeltaTable.create(url, _SCHEMA, storage_options=options, commit_properties=properties)
        else:
            delta_log(url, base_revision).load().create_write_transaction(
                [],
                "append",
                _SCHEMA,
                commit_properties=properties,
                post_commithook_properties=NO_HOOKS,
            )
    except DeltaError:
        current = read_document(url)
        if current is None and base_revision != NO_REVISION:
            return None  # it was dropped
        if current is None or current.revision <= base_revision:
            raise
        return base_revision + 1 if current == (base_revision + 1, text) else None
    return base_revision + 1


#: How often a commit is tried where other commits come first each time.
RACE_ATTEMPTS = 30


def race_attempts() -> Iterator[int]:
    """Yield the attempts of a commit that other commits may come before, with waits between."""
    for attempt in range(1, RACE_ATTEMPTS + 1):
        if attempt > 1:
            time.sleep(race_wait(attempt - 1))
        yield attempt


def race_wait(attempt: int) -> float:
    """Return the seconds to wait after an attempt; at random, or processes collide again."""
    return random.uniform(0.1, 0.5) * min(attempt, 4)
