"""A migration: the columns of a table change, and with them, in the same commit, its data files.

Three steps, of which the second is what readers see. Before it, names of columns that are dropped
are noted, and constraints that speak of a changed column are dropped; after it, the properties and
the model's constraints are set. Killed anywhere, the same again does what is left: until the last
step, the version of the schema is the old one, and no code writes to the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame

from backfill_assets.calendar.partitions import any_window_condition, to_windows
from backfill_assets.dagster_ext.engine_failures import is_engine_lost
from backfill_assets.delta.carried_records import build_migration_record
from backfill_assets.delta.commits import PublishError, Writer, summarize_error
from backfill_assets.delta.creation import (
    CONSTRAINT,
    add_constraints,
    declared_constraints,
    delta_schema,
)
from backfill_assets.delta.data_files import count_rows
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.logs import APPLICATION, delta_log
from backfill_assets.delta.reading import read_ledger
from backfill_assets.delta.schema_changes import (
    Migration,
    constraints_to_drop,
    plan_migration,
    properties_after,
    properties_before,
)
from backfill_assets.delta.snapshots import list_data_files, rows_of_files
from backfill_assets.engine.jars import EngineError
from backfill_assets.engine.spark import SPARK_ERRORS
from backfill_assets.quality.audit import DayMetrics, empty_day, measure
from backfill_assets.tables.schemas import renamed_from
from backfill_assets.tables.table import SchemaError, Table

#: Days that Spark rewrites at a time.
CHUNK_DAYS = 200
#: Days that others write meanwhile are rewritten again, as often.
_ATTEMPTS = 10
#: No table has this day: a commit that replaces it changes no data file.
_NO_DAY = "0001-01-01"


@dataclass
class _RewrittenDays:
    """Days that are rewritten in data files that no commit names.

    Attributes:
        source_files: by day, the data files that it had in the table.
        files: by day, those that it is to have.
        measured: by day, what they hold.
    """

    source_files: dict[date, frozenset[str]] = field(default_factory=dict)
    files: dict[date, list[AddAction]] = field(default_factory=dict)
    measured: dict[date, DayMetrics] = field(default_factory=dict)


def read_migration(url: str, table: Table) -> Migration | None:
    """What is to change in a table; none if there is no table.

    Args:
        url: where it lives.
        table: the declaration.
    """
    ledger = read_ledger(url, table)
    if ledger.version is None:
        return None
    return plan_migration(ledger, _null_days(url, ledger))


def _null_days(url: str, ledger: Ledger) -> dict[str, dict[date, int | None]]:
    """By column that is to be required, the days with nulls, or of which nobody tells."""
    assert ledger.metadata is not None
    table = ledger.table
    required = set()
    for name, column in table.columns.items():
        if not column.nullable:
            required |= {name, renamed_from(column)}
    names = [c.name for c in ledger.metadata.struct if c.nullable and c.name in required]
    if not names or ledger.metadata.partitioned_by != (table.partition,):
        return {}
    actions = pa.table(delta_log(url, ledger.version).load().get_add_actions(flatten=True))
    null_days: dict[str, dict[date, int | None]] = {name: {} for name in names}
    for name in names:
        count = f"null_count.{name}"
        if name == table.partition:
            continue
        if count not in actions.column_names:
            actions = actions.append_column(count, pa.nulls(actions.num_rows, pa.int64()))
        with_nulls = actions.filter(pc.fill_null(pc.not_equal(actions[count], 0), True))
        days = with_nulls[f"partition.{table.partition}"].to_pylist()
        for day, nulls in zip(days, with_nulls[count].to_pylist(), strict=True):
            previous = null_days[name].get(day, 0)
            null_days[name][day] = None if nulls is None or previous is None else previous + nulls
    return null_days


def migrate_table(writer: Writer) -> Iterator[str]:
    """Bring a table to the columns of its model; what was done, a sentence each.

    Args:
        writer: commits to the table, which is there.

    Raises:
        SchemaError: something cannot be changed in place. Nothing was written.
        PublishError: the columns and the days are as they were.
        EngineError: the engine was lost; the same again does what is left.
    """
    staged = _RewrittenDays()
    for _ in range(_ATTEMPTS):
        migration = read_migration(writer.url, writer.table)
        if migration is None:
            return
        raise_if_refused(migration)
        if not migration.changes:
            yield from _finish_migration(writer, migration)
            return
        for change in migration.changes:
            yield f"{change.text} ({change.cost})"
        if (version := _apply_changes(writer, migration, staged)) is not None:
            yield f"version {version} has the columns of the model"
            yield from _finish_migration(writer, migration)
            return
        yield "another run committed first; what it changed is looked at again"
    _remove_staged(writer, staged, staged.files)
    raise PublishError(
        f"{writer.table.name}: other runs committed first {_ATTEMPTS} times in a row. Its columns "
        "and days are as they left them. Migrate it when they are through."
    )


def raise_if_refused(migration: Migration) -> None:
    """Refuse what cannot be changed in place.

    Raises:
        SchemaError: what, and what to do.
    """
    if migration.refused:
        raise SchemaError(
            f"{migration.ledger.table.name} cannot be migrated: {'; '.join(migration.refused)}. Nothing "
            "was written; the table is as it was."
        )


def _apply_changes(writer: Writer, migration: Migration, staged: _RewrittenDays) -> int | None:
    """Change the columns, and the files with them; none if another commit came first."""
    ledger = migration.ledger
    try:
        if migration.days:
            _rewrite_days(writer, migration, staged)
        if _prepare_log(writer.url, migration):
            current = read_ledger(writer.url, writer.table)
            if not _have_same_files(writer, ledger, current):
                return None
            ledger = current
        return _commit_migration(writer, migration, staged, ledger)
    except (DeltaError, OSError, *SPARK_ERRORS) as error:
        _raise_if_engine_lost(writer.table, error)
        raise PublishError(
            f"{writer.table.name}: the migration failed ({summarize_error(error)}). Its columns and days are "
            "as they were, and data files that no commit names are left to VACUUM. Migrate it "
            "again."
        ) from error


def _prepare_log(url: str, migration: Migration) -> bool:
    """What must be in the log before the columns change; whether anything was not."""
    log = delta_log(url, migration.ledger.version).load()
    rules, properties = list(constraints_to_drop(migration)), properties_before(migration)
    if properties:
        log.alter.set_table_properties(properties, raise_if_not_exists=False)
    for name in rules:
        delta_log(url).load().alter.drop_constraint(name)
    return bool(rules or properties)


def _have_same_files(writer: Writer, previous: Ledger, current: Ledger) -> bool:
    """Whether the days hold the same data files as of two versions; no if nobody can tell."""
    if current.rows is None:  # deletion vectors take rows away from files that stay
        return False
    versions = (previous.version or 0, current.version or 0)
    first, second = (
        set(list_data_files(writer.url, writer.table, previous.stored, version)["path"].to_pylist())
        for version in versions
    )
    return first == second and previous.stored.keys() == current.stored.keys()


def _rewrite_days(writer: Writer, migration: Migration, staged: _RewrittenDays) -> None:
    """Write the days that are rewritten, but for those that are staged as they are now."""
    ledger, table = migration.ledger, writer.table
    version = ledger.version or 0
    source_files: dict[date, set[str]] = {}
    for file in list_data_files(writer.url, table, migration.days, version).to_pylist():
        source_files.setdefault(file["day"], set()).add(file["path"])
    comparable = ledger.rows is not None  # deletion vectors take rows away from files that stay
    old = [
        day
        for day, paths in staged.source_files.items()
        if not comparable or source_files.get(day) != paths
    ]
    _remove_staged(writer, staged, old)
    remaining_days = sorted(source_files.keys() - staged.source_files.keys())
    rows = writer.spark.read.format("delta").option("versionAsOf", version).load(writer.url)
    for start in range(0, len(remaining_days), CHUNK_DAYS):
        days = remaining_days[start : start + CHUNK_DAYS]
        frame = table.with_current_columns(
            rows.where(any_window_condition(to_windows(days), table.partition))
        )
        files = writer.write_rows(frame, days, scattered=True).files
        staged.files |= files
        staged.source_files |= {day: frozenset(source_files[day]) for day in days}
        staged.measured |= _verify_rewrite(writer, frame, files, days, ledger)


def _verify_rewrite(
    writer: Writer,
    frame: DataFrame,
    files: Mapping[date, list[AddAction]],
    days: Sequence[date],
    ledger: Ledger,
) -> dict[date, DayMetrics]:
    """What the new files of days hold: the old rows under the change, by rows and digest.

    Raises:
        PublishError: they do not. No commit names them.
    """
    table = writer.table
    new = measure(rows_of_files(writer.spark, writer.url, table, files, days), table)
    old = measure(frame, table)
    measured_by_day = {}
    for day in days:
        measured = new.get(day, empty_day(table))
        old_day, counted = old.get(day, empty_day(table)), count_rows(files.get(day, ()))
        expected_rows = (ledger.rows or {}).get(day, old_day.rows)
        if (measured.digest, counted, expected_rows) != (
            old_day.digest,
            measured.rows,
            measured.rows,
        ):
            raise PublishError(
                f"{table.name} [{day}]: the new data files hold {counted} row(s) with digest "
                f"{measured.digest}, the old ones {expected_rows} with {old_day.digest}. No commit names the new "
                "ones; columns and days are as they were. Migrate it again; if this stays so, look "
                "at the rows of the day."
            )
        measured_by_day[day] = measured
    return measured_by_day


def _commit_migration(
    writer: Writer, migration: Migration, staged: _RewrittenDays, ledger: Ledger
) -> int | None:
    """Commit columns and files as the version after the ledger's; none if another came first."""
    table, days = writer.table, sorted(migration.days)
    metadata = {
        **build_migration_record(migration, staged.measured, ledger),
        "commit_id": uuid4().hex,
    }
    log = delta_log(writer.url, ledger.version).load()
    partition = table.partition
    replaced = ("in", list(map(str, days))) if days else ("=", _NO_DAY)
    failure: Exception | None = None
    try:
        log.create_write_transaction(
            [file for day in days for file in staged.files.get(day, ())],
            "overwrite",
            delta_schema(table),
            [partition],
            [(partition, *replaced)],
            commit_properties=CommitProperties(
                {"userMetadata": json.dumps(metadata)},
                max_commit_retries=0,
                app_transactions=[Transaction(APPLICATION, (ledger.transaction or 0) + 1)],
            ),
            post_commithook_properties=PostCommitHookProperties(
                create_checkpoint=False, cleanup_expired_logs=False
            ),
        )
    except DeltaError as error:
        failure = error
    current = read_ledger(writer.url, table)
    own_versions = [
        record.version for record in current.records if record.commit_id == metadata["commit_id"]
    ]
    if not own_versions and failure and current.version == ledger.version:
        raise failure
    return own_versions[-1] if own_versions else None


def _finish_migration(writer: Writer, migration: Migration) -> Iterator[str]:
    """Set the properties, and the constraints that rows do not break."""
    url, table = writer.url, writer.table
    log = delta_log(url).load()
    properties, expected = log.metadata().configuration, properties_after(migration)
    for name, rule in declared_constraints(table).items():
        if f"{CONSTRAINT}{name}" in properties:
            continue
        try:
            add_constraints(writer.session, url, table, {name: rule})
        except (ConnectionError, *SPARK_ERRORS) as error:
            _raise_if_engine_lost(table, error)
            yield f"rule {name} ({rule}) is held by the audit alone: {summarize_error(error)}"
    if not expected.items() <= properties.items():
        log = delta_log(url).load()
        log.alter.set_table_properties(expected, raise_if_not_exists=False)


def _raise_if_engine_lost(table: Table, error: Exception) -> None:
    """See that it was not the engine that failed.

    Raises:
        EngineError: it did; nothing is wrong with the table.
    """
    if is_engine_lost(error):
        raise EngineError(
            f"the Spark engine was lost while {table.name} was migrated ({summarize_error(error)}). The table "
            "is as it was, or has the columns of the model already; data files that no commit "
            "names are left to VACUUM. See that the engine has memory and disk, and run "
            f"`backfill-assets migrate {table.name}` again: it does what is left."
        ) from error


def _remove_staged(
    writer: Writer, staged: _RewrittenDays, days: Sequence[date] | Mapping[date, Any]
) -> None:
    """Remove the staged files of days."""
    for day in list(days):
        writer.remove_files(staged.files.pop(day, ()))
        staged.source_files.pop(day, None)
        staged.measured.pop(day, None)
