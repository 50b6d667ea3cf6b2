"""Migrations: change a table's columns in place, and carry over the records of its days.

Other commits that compute no rows use the same records: the acceptance of code, and the switch-over
of a target.

A migration has three steps. First, the names of dropped columns are noted in a property, and
constraints on changed columns are dropped. Then one commit changes columns and files; readers see
only this one. Last, properties and constraints are set. A killed migration can be run again: until
the last step, the schema version is the old one, and no code writes to the table. All parts of a
table are migrated together.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame

from backfill_assets.audit.verdicts import DayMetrics, empty_day, measure_days
from backfill_assets.calendar.partitions import to_ranges, to_windows
from backfill_assets.dagster_ext.failures import is_engine_lost
from backfill_assets.delta import migration_plan, records, table_schema
from backfill_assets.delta.commits import (
    PartRecord,
    PublishError,
    Writer,
    summarize_error,
    with_other_parts,
)
from backfill_assets.delta.data_files import count_rows, list_data_files, rows_of_files
from backfill_assets.delta.delta_rs import RACE_ATTEMPTS, delta_log, race_attempts
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.runtime_versions import package_version
from backfill_assets.spark.jars import EngineError
from backfill_assets.spark.session import SPARK_ERRORS
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.columns import renamed_from
from backfill_assets.tables.table import SchemaError, Table


@dataclass
class _RewrittenDays:
    """By day, its old data files, and its new ones that no commit names yet, with their metrics."""

    source_files: dict[date, frozenset[str]] = field(default_factory=dict)
    files: dict[date, list[AddAction]] = field(default_factory=dict)
    measured: dict[date, DayMetrics] = field(default_factory=dict)


def build_migration_record(
    migration: migration_plan.Migration, ledger: Ledger, rewritten: _RewrittenDays
) -> dict[str, Any]:
    """The record of a migration for one of its ledgers: those of rewritten days, with new figures.

    Days that other writers changed since they were published get no record.
    """
    rewritten_days = sorted(migration.days & rewritten.source_files.keys())
    days = [day for day in rewritten_days if ledger.current_record(day)]
    reason = "; ".join(change.text for change in migration.changes)
    # An undo must find the commit that computed a day's rows, and not the migration.
    as_of = {str(ledger.version): to_ranges(rewritten_days)} if rewritten_days else {}
    return {
        **build_carried_record(
            ledger,
            # Row count, verdict and findings stay as published.
            {
                day: msgspec.structs.replace(
                    ledger.latest[day].days[day], **records.encode_metrics(rewritten.measured[day])
                )
                for day in days
            },
            {day: ledger.latest[day].day_provenance(day) for day in days},
            _without_row_changes(ledger, days, records.CommitDetails(as_of=as_of)),
        ),
        "reason": reason,
        "since": ledger.version,
        "days": [str(window) for window in to_windows(rewritten_days)],
        "reasons": {"schema change": to_ranges(days)},
    }


def build_acceptance_record(
    ledger: Ledger, days: Collection[date], code: Code, reason: str
) -> dict[str, Any]:
    """The record of an acceptance: the days count as computed by the current code, rows unchanged.

    Each day must have a current record.
    """
    by_version: dict[str, list[date]] = defaultdict(list)
    for day in sorted(days):
        by_version[ledger.latest[day].code_version].append(day)
    accepts = {version: to_ranges(version_days) for version, version_days in by_version.items()}
    present_code = {
        "code_version": code.table_version(ledger.table.name),
        "release": code.version,
        "package": package_version(),
        "git_commit": code.commit,
        "git_dirty": code.dirty,
    }
    provenances = {
        day: msgspec.structs.replace(ledger.latest[day].day_provenance(day), **present_code)
        for day in days
    }
    return {
        **build_carried_record(
            ledger,
            {day: ledger.latest[day].days[day] for day in sorted(days)},
            provenances,
            _without_row_changes(
                ledger, days, records.CommitDetails(kind=records.ACCEPTED_CODE, accepts=accepts)
            ),
        ),
        "run_id": f"accept-{uuid4().hex[:12]}",
        "reason": reason,
        "since": ledger.version,
        "reasons": {"code accepted": to_ranges(days)},
    }


def build_carried_record(
    ledger: Ledger,
    published: Mapping[date, records.PublishedDay],
    provenances: Mapping[date, records.Provenance],
    details: records.CommitDetails,
) -> dict[str, Any]:
    """The record of days whose rows were computed by earlier commits."""
    made_under = {day: ledger.latest[day].made_under(day) for day in published}
    config = Counter(made_under.values()).most_common(1)[0][0] if made_under else ""
    common = _common_provenance(provenances.values())

    def carry_day(day: date, figures: records.PublishedDay) -> records.PublishedDay:
        provenance = provenances[day]
        return msgspec.structs.replace(
            figures,
            made_under="" if made_under[day] == config else made_under[day],
            provenance=None if provenance == common else provenance,
        )

    return {
        "asset": ledger.table.name,
        "config_digest": config,
        **{name: getattr(common, name) for name in _CODE_FIELDS},
        "inputs": dict(common.inputs),
        "audit": {
            str(day): records.encode_day(carry_day(day, figures))
            for day, figures in published.items()
        },
        "final": to_ranges(ledger.final_days & published.keys()),
        "details": msgspec.to_builtins(
            msgspec.structs.replace(details, references=common.references)
        ),
    }


#: The code fields that a commit and a `Provenance` both have.
_CODE_FIELDS = ("code_version", "release", "package", "git_commit", "git_dirty")


def _common_provenance(provenances: Collection[records.Provenance]) -> records.Provenance:
    """The values that all days have in common, and their oldest inputs."""
    git_dirty = {provenance.git_dirty for provenance in provenances}
    references = [provenance.references for provenance in provenances]
    all_equal = references and all(each == references[0] for each in references)
    texts = {
        name: _common_value(getattr(provenance, name) for provenance in provenances)
        for name in _CODE_FIELDS
        if name != "git_dirty"
    }
    return records.Provenance(
        **texts,
        git_dirty=git_dirty.pop() if len(git_dirty) == 1 else None,
        inputs=_oldest_inputs(provenances),
        references=references[0] if all_equal else {},
    )


def _common_value(values: Iterable[str]) -> str:
    """The value that all have; empty if they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else ""


def _oldest_inputs(provenances: Collection[records.Provenance]) -> dict[str, int]:
    oldest: dict[str, int] = {}
    for provenance in provenances:
        for name, version in provenance.inputs.items():
            oldest[name] = min(version, oldest.get(name, version))
    return oldest


def _without_row_changes(
    ledger: Ledger, days: Collection[date], details: records.CommitDetails
) -> records.CommitDetails:
    """The details of a commit that changes no row of these days."""
    by_day = {day: ledger.latest[day].details for day in days}
    spans = [carried.spans for carried in by_day.values()]
    return msgspec.structs.replace(
        details,
        landing={day: d.landing[day] for day, d in by_day.items() if day in d.landing},
        event_days=[],
        current_days=[],
        log_days=[],
        spans=None
        if None in spans
        else {day: d.spans[day] for day, d in by_day.items() if d.spans and day in d.spans},
        late={day: d.late[day] for day, d in by_day.items() if day in d.late},
        spreads={day: d.spreads[day] for day, d in by_day.items() if day in d.spreads},
        on_hold={
            day: input_digest for day, input_digest in ledger.on_hold.items() if day in by_day
        },
    )


#: Number of days of a part that Spark rewrites at a time.
CHUNK_DAYS = 200
#: Their records are one text in the commit, at some 1.2 KB each; JSON parsers of readers may take
#: 20 million characters at most (jackson-core).
_CELLS_PER_COMMIT = 15_000


def read_migration(url: str, table: Table, *other_parts: Table) -> migration_plan.Migration | None:
    """Plan the migration of a table, of all its parts together; None if there is no table.

    Raises:
        PublishError: other runs commit all the time.
    """
    ledger, *others = ledgers = _read_ledgers(url, [table, *other_parts])
    if ledger.version is None or all(each.retirement_commit for each in ledgers):
        return None
    actions = pa.table(delta_log(url, ledger.version).load().get_add_actions(flatten=True))
    migration = migration_plan.plan_migration(ledger, _null_days(ledger, actions), others)
    if migration.changes and (parts := _undeclared_parts(migration, actions)):
        migration.refused.append(
            f"it has rows of {', '.join(parts)}, which its dimension does not have: put them back, "
            "`retired` if nothing is expected of them, or delete their rows"
        )
    cells = sum(len(migration.days & each.stored.keys()) for each in ledgers)
    if cells > _CELLS_PER_COMMIT:
        migration.refused.append(
            f"{cells:,} days of all parts would be rewritten, and one commit has the records of at "
            f"most {_CELLS_PER_COMMIT:,}: move its folder away, and launch its days"
        )
    return migration


def _read_ledgers(url: str, tables: Sequence[Table]) -> list[Ledger]:
    """The ledgers of parts of a table, all at one version.

    Raises:
        PublishError: a commit comes between the reads, each time.
    """
    for _ in race_attempts():
        ledgers = [read_ledger(url, table) for table in tables]
        if len({ledger.version for ledger in ledgers}) == 1:
            return ledgers
    raise _overtaken_error(tables[0])


def _overtaken_error(table: Table) -> PublishError:
    return PublishError(
        f"{table.asset_name}: other runs committed first {RACE_ATTEMPTS} times in a row. Its "
        "columns and days are as they left them. Migrate it when they are through."
    )


def _undeclared_parts(migration: migration_plan.Migration, actions: pa.Table) -> list[str]:
    """The parts that have rows in the table, by its files in the log, and are not in the plan."""
    if not (column := migration.table.part_column) or not actions.num_rows:
        return []
    stored = {*actions[f"partition.{column}"].to_pylist()}
    undeclared = stored - {ledger.table.part for ledger in migration.ledgers}
    return sorted(part or f"no {column}" for part in undeclared)


def _null_days(ledger: Ledger, actions: pa.Table) -> dict[str, dict[date, int | None]]:
    """By column that becomes required, the days with nulls and their number; None if unknown."""
    assert ledger.metadata is not None
    table = ledger.table
    required = set()
    for name, column in table.columns.items():
        if not column.nullable:
            required |= {name, renamed_from(column)}
    names = [c.name for c in ledger.metadata.struct if c.nullable and c.name in required]
    if not names or ledger.metadata.partitioned_by != table.partition_columns:
        return {}
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


def migrate_table(writer: Writer, *other_parts: Table) -> Iterator[str]:
    """Migrate a table to the columns of its model; yields one sentence for each step.

    `other_parts` are those of the table besides the part of the writer.

    Raises:
        SchemaError: something cannot be changed in place. Nothing was written.
        PublishError: columns and days are unchanged.
        EngineError: the engine was lost; run the migration again.
    """
    staged_by_part = {part.part: _RewrittenDays() for part in (writer.table, *other_parts)}
    for _ in race_attempts():  # days that others have changed are rewritten again
        migration = read_migration(writer.url, writer.table, *other_parts)
        if migration is None:
            return
        raise_if_refused(migration)
        if not migration.changes:
            _remove_all_staged(writer, staged_by_part)  # somebody else was first
            yield from _finish_migration(writer, migration)
            return
        for change in migration.changes:
            yield f"{change.text} ({change.cost})"
        if (version := _apply_changes(writer, migration, staged_by_part)) is not None:
            yield f"version {version} has the columns of the model"
            yield from _finish_migration(writer, migration)
            return
        yield "another run committed first; what it changed is looked at again"
    _remove_all_staged(writer, staged_by_part)
    raise _overtaken_error(writer.table)


def raise_if_refused(migration: migration_plan.Migration) -> None:
    """Raise if a change cannot be made in place.

    Raises:
        SchemaError: names the changes and what to do.
    """
    if migration.refused:
        raise SchemaError(
            f"{migration.table.asset_name} cannot be migrated: {'; '.join(migration.refused)}. "
            "Nothing was written; the table is as it was."
        )


def _apply_changes(
    writer: Writer,
    migration: migration_plan.Migration,
    staged_by_part: Mapping[str, _RewrittenDays],
) -> int | None:
    """Change the columns and files in one commit; None if another commit came first."""
    ledgers = migration.ledgers
    try:
        if migration.days:
            for ledger in ledgers:
                part_writer = replace(writer, table=ledger.table)
                staged = staged_by_part[ledger.table.part]
                _rewrite_days(part_writer, migration.days, ledger, staged)
        if _prepare_log(writer.url, migration):
            # What others have recorded of the same files meanwhile is carried over.
            ledgers = _read_ledgers(writer.url, [ledger.table for ledger in ledgers])
            if not _have_same_files(writer.url, migration.ledgers, ledgers):
                return None
        return _commit_migration(writer, migration, staged_by_part, ledgers)
    except (DeltaError, OSError, *SPARK_ERRORS) as error:
        _raise_if_engine_lost(writer.table, error)
        raise PublishError(
            f"{writer.table.asset_name}: the migration failed ({summarize_error(error)}). Its "
            "columns and days are as they were, and data files that no commit names are left to "
            "VACUUM. Migrate it again."
        ) from error


def _prepare_log(url: str, migration: migration_plan.Migration) -> bool:
    """Do the first step in the log; return whether it changed anything."""
    log = delta_log(url, migration.ledger.version).load()
    rules, properties = (
        list(migration_plan.constraints_to_drop(migration)),
        migration_plan.properties_before(migration),
    )
    if properties:
        log.alter.set_table_properties(properties, raise_if_not_exists=False)
    for name in rules:
        delta_log(url).load().alter.drop_constraint(name)
    return bool(rules or properties)


def _have_same_files(url: str, previous: Sequence[Ledger], current: Sequence[Ledger]) -> bool:
    """Whether a table has the same data files at both versions; False if unknown."""
    if any(ledger.rows is None for ledger in current):  # deletion vectors change no file
        return False
    first, second = (
        set(delta_log(url, ledgers[0].version).load().file_uris())
        for ledgers in (previous, current)
    )
    return first == second


def _rewrite_days(
    writer: Writer, migrated_days: Collection[date], ledger: Ledger, staged: _RewrittenDays
) -> None:
    """Rewrite the days of a ledger whose files are not staged yet, or have changed since."""
    table = ledger.table
    version = ledger.version or 0
    source_files: dict[date, set[str]] = {}
    for file in list_data_files(writer.url, table, migrated_days, version).to_pylist():
        source_files.setdefault(file["day"], set()).add(file["path"])
    comparable = ledger.rows is not None  # deletion vectors remove rows without a new file
    old = [
        day
        for day, paths in staged.source_files.items()
        if not comparable or source_files.get(day) != paths
    ]
    _remove_staged(writer, staged, old)
    remaining_days = sorted(source_files.keys() - staged.source_files.keys())
    if not remaining_days:
        return
    rows = writer.spark.read.format("delta").option("versionAsOf", version).load(writer.url)
    for start in range(0, len(remaining_days), CHUNK_DAYS):
        days = remaining_days[start : start + CHUNK_DAYS]
        frame = table.with_current_columns(rows.where(table.days_condition(days)))
        files = writer.write_rows(frame, days, None, rebalance=True)
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
    """Measure the new files, and compare them with the old rows by row count and digest.

    Raises:
        PublishError: they differ. No commit names the new files.
    """
    table = writer.table
    new = measure_days(rows_of_files(writer.spark, writer.url, table, files, days), table)
    old = measure_days(frame, table)
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
                f"{measured.digest}, the old ones {expected_rows} with {old_day.digest}. No commit "
                "names the new ones; columns and days are as they were. Migrate it again; if this "
                "stays so, look at the rows of the day."
            )
        measured_by_day[day] = measured
    return measured_by_day


def _commit_migration(
    writer: Writer,
    migration: migration_plan.Migration,
    staged_by_part: Mapping[str, _RewrittenDays],
    ledgers: Sequence[Ledger],
) -> int | None:
    """Commit columns and files as the version after the ledgers'; None if another came first."""
    run = {"run_id": f"migrate-{uuid4().hex[:12]}"}
    files = defaultdict[date, list[AddAction]](list)
    for rewritten in staged_by_part.values():
        for day, day_files in rewritten.files.items():
            files[day] += day_files
    # Of parts without rewritten days, nothing is to be recorded; but a commit has a record.
    recorded = [each for each in ledgers if staged_by_part[each.table.part].source_files]
    (metadata, ledger), *others = (
        PartRecord(
            {**build_migration_record(migration, each, staged_by_part[each.table.part]), **run},
            each,
        )
        for each in recorded or ledgers[:1]
    )
    return replace(writer, table=ledger.table).commit_files(
        files,
        sorted(migration.days),
        with_other_parts({**metadata, "commit_id": uuid4().hex}, others),
        ledger,
        table_schema.delta_schema(writer.table),
    )


def _finish_migration(writer: Writer, migration: migration_plan.Migration) -> Iterator[str]:
    """Set the properties, and add the constraints that no row violates."""
    url, table = writer.url, writer.table
    log = delta_log(url).load()
    properties, expected = log.metadata().configuration, migration_plan.properties_after(migration)
    for name, rule in table_schema.declared_constraints(table).items():
        if f"{table_schema.CONSTRAINT}{name}" in properties:
            continue
        try:
            table_schema.add_constraints(writer.session, url, table, {name: rule})
        except (ConnectionError, *SPARK_ERRORS) as error:
            _raise_if_engine_lost(table, error)
            yield f"rule {name} ({rule}) is held by the audit alone: {summarize_error(error)}"
    if not expected.items() <= properties.items():
        log = delta_log(url).load()
        log.alter.set_table_properties(expected, raise_if_not_exists=False)


def _raise_if_engine_lost(table: Table, error: Exception) -> None:
    """Raise if the engine was lost.

    Raises:
        EngineError: the table itself is fine.
    """
    if is_engine_lost(error):
        raise EngineError(
            f"the Spark engine was lost while {table.asset_name} was migrated "
            f"({summarize_error(error)}). The table is as it was, or has the columns of the model "
            "already; data files that no commit names are left to VACUUM. See that the engine has "
            f"memory and disk, and run `backfill-assets migrate {table.asset_name}` again: it "
            "does what is left."
        ) from error


def _remove_all_staged(writer: Writer, staged_by_part: Mapping[str, _RewrittenDays]) -> None:
    for staged in staged_by_part.values():
        _remove_staged(writer, staged, staged.files)


def _remove_staged(
    writer: Writer, staged: _RewrittenDays, days: Sequence[date] | Mapping[date, Any]
) -> None:
    for day in list(days):
        writer.remove_files(staged.files.pop(day, ()))
        staged.source_files.pop(day, None)
        staged.measured.pop(day, None)
