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

from backfill_assets.calendar.partitions import any_of, windows
from backfill_assets.dagster_ext.engine_failures import engine_lost
from backfill_assets.delta.carried_records import migration_record
from backfill_assets.delta.commits import PublishError, Writer, gist
from backfill_assets.delta.creation import CONSTRAINT, add_constraints, own_rules, schema_of
from backfill_assets.delta.data_files import rows_in
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.logs import APPLICATION, delta_log
from backfill_assets.delta.reading import read_ledger
from backfill_assets.delta.schema_changes import (
    Migration,
    loose_rules,
    migration_of,
    properties_after,
    properties_before,
)
from backfill_assets.delta.snapshots import data_files, rows_of_files
from backfill_assets.engine.jars import EngineError
from backfill_assets.engine.spark import SPARK_ERRORS
from backfill_assets.quality.audit import Measured, empty_day, measure
from backfill_assets.tables.schemas import renamed_from
from backfill_assets.tables.table import SchemaError, Table

#: Days that Spark rewrites at a time.
CHUNK_DAYS = 200
#: Days that others write meanwhile are rewritten again, as often.
_ATTEMPTS = 10
#: No table has this day: a commit that replaces it changes no data file.
_NO_DAY = "0001-01-01"


@dataclass
class _Staged:
    """Days that are rewritten in data files that no commit names.

    Attributes:
        held: by day, the data files that it had in the table.
        files: by day, those that it is to have.
        measured: by day, what they hold.
    """

    held: dict[date, frozenset[str]] = field(default_factory=dict)
    files: dict[date, list[AddAction]] = field(default_factory=dict)
    measured: dict[date, Measured] = field(default_factory=dict)


def look(url: str, table: Table) -> Migration | None:
    """What is to change in a table; none if there is no table.

    Args:
        url: where it lives.
        table: the declaration.
    """
    ledger = read_ledger(url, table)
    if ledger.version is None:
        return None
    return migration_of(ledger, _nulls(url, ledger))


def _nulls(url: str, ledger: Ledger) -> dict[str, dict[date, int | None]]:
    """By column that is to be required, the days with nulls, or of which nobody tells."""
    assert ledger.metadata is not None
    table = ledger.table
    wanted = set()
    for name, column in table.columns.items():
        if not column.nullable:
            wanted |= {name, renamed_from(column)}
    names = [c.name for c in ledger.metadata.struct if c.nullable and c.name in wanted]
    if not names or ledger.metadata.partitioned_by != (table.partition,):
        return {}
    actions = pa.table(delta_log(url, ledger.version).load().get_add_actions(flatten=True))
    found: dict[str, dict[date, int | None]] = {name: {} for name in names}
    for name in names:
        count = f"null_count.{name}"
        if name == table.partition:
            continue
        if count not in actions.column_names:
            actions = actions.append_column(count, pa.nulls(actions.num_rows, pa.int64()))
        some = actions.filter(pc.fill_null(pc.not_equal(actions[count], 0), True))
        days = some[f"partition.{table.partition}"].to_pylist()
        for day, nulls in zip(days, some[count].to_pylist(), strict=True):
            before = found[name].get(day, 0)
            found[name][day] = None if nulls is None or before is None else before + nulls
    return found


def migrate(writer: Writer) -> Iterator[str]:
    """Bring a table to the columns of its model; what was done, a sentence each.

    Args:
        writer: commits to the table, which is there.

    Raises:
        SchemaError: something cannot be changed in place. Nothing was written.
        PublishError: the columns and the days are as they were.
        EngineError: the engine was lost; the same again does what is left.
    """
    staged = _Staged()
    for _ in range(_ATTEMPTS):
        found = look(writer.url, writer.table)
        if found is None:
            return
        refuse(found)
        if not found.changes:
            yield from _finish(writer, found)
            return
        for change in found.changes:
            yield f"{change.text} ({change.cost})"
        if (version := _change(writer, found, staged)) is not None:
            yield f"version {version} has the columns of the model"
            yield from _finish(writer, found)
            return
        yield "another run committed first; what it changed is looked at again"
    _remove(writer, staged, staged.files)
    raise PublishError(
        f"{writer.table.name}: other runs committed first {_ATTEMPTS} times in a row. Its columns "
        "and days are as they left them. Migrate it when they are through."
    )


def refuse(found: Migration) -> None:
    """Refuse what cannot be changed in place.

    Raises:
        SchemaError: what, and what to do.
    """
    if found.refused:
        raise SchemaError(
            f"{found.ledger.table.name} cannot be migrated: {'; '.join(found.refused)}. Nothing "
            "was written; the table is as it was."
        )


def _change(writer: Writer, found: Migration, staged: _Staged) -> int | None:
    """Change the columns, and the files with them; none if another commit came first."""
    ledger = found.ledger
    try:
        if found.days:
            _rewrite(writer, found, staged)
        if _prepare(writer.url, found):
            now = read_ledger(writer.url, writer.table)
            if not _same_days(writer, ledger, now):
                return None
            ledger = now
        return _commit(writer, found, staged, ledger)
    except (DeltaError, OSError, *SPARK_ERRORS) as error:
        _refuse_lost(writer.table, error)
        raise PublishError(
            f"{writer.table.name}: the migration failed ({gist(error)}). Its columns and days are "
            "as they were, and data files that no commit names are left to VACUUM. Migrate it "
            "again."
        ) from error


def _prepare(url: str, found: Migration) -> bool:
    """What must be in the log before the columns change; whether anything was not."""
    log = delta_log(url, found.ledger.version).load()
    rules, properties = list(loose_rules(found)), properties_before(found)
    if properties:
        log.alter.set_table_properties(properties, raise_if_not_exists=False)
    for name in rules:
        delta_log(url).load().alter.drop_constraint(name)
    return bool(rules or properties)


def _same_days(writer: Writer, before: Ledger, now: Ledger) -> bool:
    """Whether the days hold the same data files as of two versions; no if nobody can tell."""
    if now.rows is None:  # deletion vectors take rows away from files that stay
        return False
    wanted = (before.version or 0, now.version or 0)
    first, second = (
        set(data_files(writer.url, writer.table, before.stored, version)["path"].to_pylist())
        for version in wanted
    )
    return first == second and before.stored.keys() == now.stored.keys()


def _rewrite(writer: Writer, found: Migration, staged: _Staged) -> None:
    """Write the days that are rewritten, but for those that are staged as they are now."""
    ledger, table = found.ledger, writer.table
    version = ledger.version or 0
    held: dict[date, set[str]] = {}
    for file in data_files(writer.url, table, found.days, version).to_pylist():
        held.setdefault(file["day"], set()).add(file["path"])
    same = ledger.rows is not None  # deletion vectors take rows away from files that stay
    old = [day for day, paths in staged.held.items() if not same or held.get(day) != paths]
    _remove(writer, staged, old)
    todo = sorted(held.keys() - staged.held.keys())
    rows = writer.spark.read.format("delta").option("versionAsOf", version).load(writer.url)
    for at in range(0, len(todo), CHUNK_DAYS):
        days = todo[at : at + CHUNK_DAYS]
        frame = table.filled(rows.where(any_of(windows(days), table.partition)))
        files = writer.write(frame, days, scattered=True).files
        staged.files |= files
        staged.held |= {day: frozenset(held[day]) for day in days}
        staged.measured |= _checked(writer, frame, files, days, ledger)


def _checked(
    writer: Writer,
    frame: DataFrame,
    files: Mapping[date, list[AddAction]],
    days: Sequence[date],
    ledger: Ledger,
) -> dict[date, Measured]:
    """What the new files of days hold: the old rows under the change, by rows and digest.

    Raises:
        PublishError: they do not. No commit names them.
    """
    table = writer.table
    new = measure(rows_of_files(writer.spark, writer.url, table, files, days), table)
    old = measure(frame, table)
    found = {}
    for day in days:
        measured = new.get(day, empty_day(table))
        was, counted = old.get(day, empty_day(table)), rows_in(files.get(day, ()))
        due = (ledger.rows or {}).get(day, was.rows)
        if (measured.digest, counted, due) != (was.digest, measured.rows, measured.rows):
            raise PublishError(
                f"{table.name} [{day}]: the new data files hold {counted} row(s) with digest "
                f"{measured.digest}, the old ones {due} with {was.digest}. No commit names the new "
                "ones; columns and days are as they were. Migrate it again; if this stays so, look "
                "at the rows of the day."
            )
        found[day] = measured
    return found


def _commit(writer: Writer, found: Migration, staged: _Staged, ledger: Ledger) -> int | None:
    """Commit columns and files as the version after the ledger's; none if another came first."""
    table, days = writer.table, sorted(found.days)
    said = {**migration_record(found, staged.measured, ledger), "commit_id": uuid4().hex}
    log = delta_log(writer.url, ledger.version).load()
    partition = table.partition
    replaced = ("in", list(map(str, days))) if days else ("=", _NO_DAY)
    failure: Exception | None = None
    try:
        log.create_write_transaction(
            [file for day in days for file in staged.files.get(day, ())],
            "overwrite",
            schema_of(table),
            [partition],
            [(partition, *replaced)],
            commit_properties=CommitProperties(
                {"userMetadata": json.dumps(said)},
                max_commit_retries=0,
                app_transactions=[Transaction(APPLICATION, (ledger.transaction or 0) + 1)],
            ),
            post_commithook_properties=PostCommitHookProperties(
                create_checkpoint=False, cleanup_expired_logs=False
            ),
        )
    except DeltaError as error:
        failure = error
    now = read_ledger(writer.url, table)
    ours = [record.version for record in now.records if record.commit_id == said["commit_id"]]
    if not ours and failure and now.version == ledger.version:
        raise failure
    return ours[-1] if ours else None


def _finish(writer: Writer, found: Migration) -> Iterator[str]:
    """Set the properties, and the constraints that rows do not break."""
    url, table = writer.url, writer.table
    log = delta_log(url).load()
    there, wanted = log.metadata().configuration, properties_after(found)
    for name, rule in own_rules(table).items():
        if f"{CONSTRAINT}{name}" in there:
            continue
        try:
            add_constraints(writer.session, url, table, {name: rule})
        except (ConnectionError, *SPARK_ERRORS) as error:
            _refuse_lost(table, error)
            yield f"rule {name} ({rule}) is held by the audit alone: {gist(error)}"
    if not wanted.items() <= there.items():
        log = delta_log(url).load()
        log.alter.set_table_properties(wanted, raise_if_not_exists=False)


def _refuse_lost(table: Table, error: Exception) -> None:
    """See that it was not the engine that failed.

    Raises:
        EngineError: it did; nothing is wrong with the table.
    """
    if engine_lost(error):
        raise EngineError(
            f"the Spark engine was lost while {table.name} was migrated ({gist(error)}). The table "
            "is as it was, or has the columns of the model already; data files that no commit "
            "names are left to VACUUM. See that the engine has memory and disk, and run "
            f"`backfill-assets migrate {table.name}` again: it does what is left."
        ) from error


def _remove(writer: Writer, staged: _Staged, days: Sequence[date] | Mapping[date, Any]) -> None:
    """Remove the staged files of days."""
    for day in list(days):
        writer.remove(staged.files.pop(day, ()))
        staged.held.pop(day, None)
        staged.measured.pop(day, None)
