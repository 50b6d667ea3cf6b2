"""The cache of answers of a lookup: a Delta table with one row for each request."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from backfill_assets.delta.delta_rs import delta_log, load_log, refuse_unsafe_store, storage_options
from backfill_assets.delta.ledger_reader import DELETION_COUNTER
from backfill_assets.spark.filesystems import folder_filesystem
from backfill_assets.tables.unpartitioned import Lookup

_ATTEMPTS = 50
#: After so many small files they are put together.
_FILES = 200
#: The version after the one that was looked at, or none.
_NO_RETRIES = 0


class AnswersError(RuntimeError):
    """Answers could not be kept, or forgotten; those that were kept before are as they were."""


class KeptAnswers:
    """The answers that are kept, as of the moment at which this was made, and what is added.

    Attributes:
        version: of the table; all answers that were there, or were added here, are in it.
    """

    def __init__(self, lookup: Lookup, url: str) -> None:
        """The kept answers at a place.

        Raises:
            AnswersError: there is no such table, or it has other columns.
        """
        self._lookup, self._url = lookup, url
        log = load_log(url)
        if log is None:
            raise AnswersError(f"{lookup.name}: there is no table of answers at {url}")
        stored_columns = {field.name: field.type for field in log.schema().fields}
        model_columns = {field.name: field.type for field in _table_schema(lookup).fields}
        if stored_columns != model_columns:
            raise AnswersError(
                f"{lookup.name}: the table of answers at {url} is not the one of the model (there: "
                f"{', '.join(stored_columns)}; model: {', '.join(model_columns)}). Nothing was "
                "asked. Give the lookup another name, or move the table away: then all is asked "
                "again"
            )
        self.version = log.version()
        self._files = {*log.file_uris()}
        self._added = 0

    def add(self, answers: Sequence[Mapping[str, Any]], run_id: str) -> None:
        """Keep answers; of a request that somebody else kept meanwhile, the first answer counts.

        Args:
            answers: to different requests that had none, with the columns of the table.
            run_id: of the run that asked.

        Raises:
            AnswersError: other processes committed first, again and again.
        """
        names = self._lookup.request
        for _ in range(_ATTEMPTS):
            log = delta_log(self._url).load()
            answered = self._requests_in_new_files(log)
            new = [row for row in answers if tuple(row[name] for name in names) not in answered]
            try:
                if new:
                    self._append(log, new, run_id)
            except CommitFailedError:
                time.sleep(random.uniform(0.05, 0.5))
                continue
            self.version, self._files = log.version(), {*log.file_uris()}
            self._added += 1
            if self._added >= _FILES:
                self._compact_files()
            return
        raise AnswersError(
            f"{self._lookup.name}: other processes committed first {_ATTEMPTS} times in a row; "
            f"{len(answers)} answers are not kept, and are asked for again"
        )

    def _append(self, log: DeltaTable, rows: Sequence[Mapping[str, Any]], run_id: str) -> None:
        schema = pa.schema(log.schema().to_arrow())
        write_deltalake(
            log,
            pa.Table.from_pylist([*rows], schema=schema),
            mode="append",
            commit_properties=CommitProperties(
                custom_metadata={"run_id": run_id}, max_commit_retries=_NO_RETRIES
            ),
        )

    def _requests_in_new_files(self, log: DeltaTable) -> set[tuple[Any, ...]]:
        """The requests that others have kept since this looked last."""
        if not (new := {*log.file_uris()} - self._files):
            return set()
        names = [uri.rpartition("/")[2] for uri in new]
        columns = [*self._lookup.request]
        dataset = ds.dataset(names, filesystem=folder_filesystem(self._url), format="parquet")
        requests = dataset.to_table(columns=columns)
        return {*zip(*(requests.column(name).to_pylist() for name in columns), strict=True)}

    def _compact_files(self) -> None:
        """Put small files together; if somebody else is at the table, the next one may."""
        self._added = 0
        try:
            log = delta_log(self._url).load()
            if log.version() != self.version:
                return
            log.optimize.compact(commit_properties=CommitProperties(max_commit_retries=_NO_RETRIES))
            log.vacuum(dry_run=False)
        except DeltaError:
            return
        self.version, self._files = log.version(), {*log.file_uris()}


def create(lookup: Lookup, url: str) -> None:
    """Create the empty table of answers; harmless if it is there.

    Raises:
        UnsafeStoreError: it would be on a store on which commits can be lost.
    """
    if load_log(url) is not None:
        return
    refuse_unsafe_store(url.rpartition("/")[0])
    try:
        DeltaTable.create(
            url, _table_schema(lookup), mode="ignore", storage_options=storage_options(url)
        )
    except DeltaError:
        if load_log(url) is None:
            raise


def forget_answers(lookup: Lookup, url: str, condition: str) -> int:
    """Take answers away, so that they are asked for again; all days of the tables become due.

    Args:
        lookup: the lookup.
        url: where its answers are.
        condition: which, in SQL.

    Returns:
        How many there were.

    Raises:
        AnswersError: there is no table, the condition is none, or a run is just keeping answers.
    """
    try:
        log = delta_log(url).load()
        number = (log.transaction_version(DELETION_COUNTER) or 0) + 1
        metrics = log.delete(
            condition,
            commit_properties=CommitProperties(
                app_transactions=[Transaction(DELETION_COUNTER, number)],
                max_commit_retries=_NO_RETRIES,
            ),
        )
    except TableNotFoundError:
        raise AnswersError(f"{lookup.name}: there is no table of answers at {url}") from None
    except (DeltaError, ValueError) as error:
        raise AnswersError(
            f"{lookup.name}: nothing was forgotten: {error}. A condition is SQL over "
            f"{', '.join(lookup.kept.names)}; if a run is keeping answers, try again after it"
        ) from error
    return int(metrics["num_deleted_rows"] or 0)


def _table_schema(lookup: Lookup) -> Schema:
    return Schema.from_json(lookup.kept.json())
