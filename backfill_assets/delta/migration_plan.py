"""The plan of a migration: what changes in a table, and which days are rewritten.

It is made from the model and the log alone; no row is read. `migrate` runs it.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property

import pyspark.sql.types as T

from backfill_assets.calendar.partitions import format_ranges
from backfill_assets.delta import table_schema
from backfill_assets.delta.ledgers import Ledger, TableMetadata
from backfill_assets.tables.columns import gaps_of, is_wider_type, renamed_from
from backfill_assets.tables.table import Table


@dataclass(frozen=True)
class SchemaChange:
    """One change of a table, with the days to rewrite; no days if only the log changes."""

    text: str
    days: frozenset[date] = frozenset()

    @property
    def cost(self) -> str:
        """The cost of the change, as shown in the plan."""
        return f"{len(self.days)} days are rewritten" if self.days else "metadata only"


@dataclass(frozen=True)
class Migration:
    """All changes of a table.

    Attributes:
        ledger: the ledger that the plan is based on.
        others: of a table with parts, the ledgers of its other parts.
        changes: the changes in order.
        refused: changes that cannot be made in place, a sentence each; if any, nothing is done.
        sources: by column of the model, the column of the table to read; None for null.
        relaxed_columns: columns of the table whose constraints are dropped first.
        retained_columns: dropped columns that are still in the data files.
    """

    ledger: Ledger
    others: Sequence[Ledger] = ()
    changes: list[SchemaChange] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    sources: dict[str, str | None] = field(default_factory=dict)
    relaxed_columns: set[str] = field(default_factory=set)
    retained_columns: set[str] = field(default_factory=set)

    @property
    def table(self) -> Table:
        """The declaration of the table."""
        return self.ledger.table

    @property
    def ledgers(self) -> Sequence[Ledger]:
        """The ledgers of all parts; of a table without parts, its own."""
        return [self.ledger, *self.others]

    @cached_property
    def stored_days(self) -> frozenset[date]:
        """The days with rows, of all parts; None is among them if rows have no day."""
        return frozenset().union(*(ledger.stored for ledger in self.ledgers))

    @property
    def metadata(self) -> TableMetadata:
        """The columns and properties that the table has now."""
        assert self.ledger.metadata is not None
        return self.ledger.metadata

    @cached_property
    def stored(self) -> Mapping[str, T.StructField]:
        """The columns that the table has now, by name."""
        return {column.name: column for column in self.metadata.struct}

    def change(self, text: str, days: frozenset[date] = frozenset()) -> None:
        """Add a change; see `SchemaChange`."""
        self.changes.append(SchemaChange(text, days))

    @property
    def days(self) -> frozenset[date]:
        """The days to rewrite."""
        return frozenset().union(*(change.days for change in self.changes))

    @property
    def rewrites_all_files(self) -> bool:
        """Whether every day is rewritten."""
        return bool(self.days) and self.days == self.stored_days


def plan_migration(
    ledger: Ledger,
    nulls: Mapping[str, Mapping[date, int | None]],
    others: Sequence[Ledger] = (),
) -> Migration:
    """Plan the changes that turn an existing table into the one of its model.

    `nulls` has, by column of the table, the days with nulls and their number; None if unknown.
    `others` are the ledgers of other parts of the table.
    """
    migration = Migration(ledger, others)
    table, stored = ledger.table, migration.stored
    _check_table(migration)
    if migration.refused:
        return migration
    for column in table.struct_type:
        _plan_column(migration, column, nulls)
    _plan_dropped(migration)
    _plan_gaps(migration)
    stored_order = [name for name in stored if name in table.columns]
    if stored_order != [name for name in table.columns if name in stored] and not migration.days:
        migration.change("the columns have another order")
    stored_version = table_schema.read_schema_version(migration.metadata)
    declared_version = table.schema_version
    if stored_version < declared_version:
        migration.change(f"the schema has version {declared_version}, not {stored_version}")
    elif migration.changes:
        migration.refused.append(
            f"the model has schema_version {declared_version} as the table has, and the columns "
            f"differ: give it {declared_version + 1}, by which older code knows that the table is "
            "not its own"
        )
    return migration


def _check_table(migration: Migration) -> None:
    """Add what cannot be changed in place in the table as a whole."""
    table, metadata = migration.table, migration.metadata
    if (stored_version := table_schema.read_schema_version(metadata)) > table.schema_version:
        migration.refused.append(
            f"the table's schema has version {stored_version}, and this code has "
            f"{table.schema_version}: install the code that has it"
        )
    migration.refused.extend(table_schema.layout_differences(table, metadata))
    if None in migration.stored_days:
        migration.refused.append(f"it has rows without a {table.partition}: delete them")


def _plan_column(
    migration: Migration, column: T.StructField, nulls: Mapping[str, Mapping[date, int | None]]
) -> None:
    """Add the changes of a column of the model, or why the stored columns cannot give it.

    It also sets the column's source, which `_plan_dropped` reads.
    """
    name, model, stored = column.name, migration.table.columns[column.name], migration.stored
    days = migration.stored_days
    old = renamed_from(model)
    source = name if name in stored else old if old in stored else None
    migration.sources[name] = source
    if source is None:
        is_back = table_schema.has_old_values(name, migration.metadata)
        is_back = is_back or name.lower() in map(str.lower, stored)
        if old is not None and not is_back:
            migration.refused.append(
                f"column {name} is renamed from {old}, and the table has neither: migrate it with "
                "the code of each schema_version in between first, or leave renamed_from away if "
                "the column is new"
            )
        elif not column.nullable:
            migration.refused.append(
                f"column {name} is new and required, and the days that are there have no values of "
                "it: declare it nullable, or by `added_column` with a default"
            )
        elif is_back:
            text = f"column {name} is there again, without its values from before it was dropped"
            migration.change(text, days)
        else:
            migration.change(f"column {name} is added; it is null where nobody fills it")
        return
    stored_column = stored[source]
    if source != name:
        migration.change(f"column {source} is renamed to {name}", days)
        migration.relaxed_columns.add(source)
    if stored_column.dataType.simpleString() != column.dataType.simpleString():
        text = f"{stored_column.dataType.simpleString()} to {column.dataType.simpleString()}"
        if is_wider_type(stored_column.dataType, column.dataType):
            migration.change(f"column {name} is widened from {text}", days)
        else:
            migration.refused.append(
                f"column {name} would change from {text}, which does not hold all values as they "
                "are: give the new column another name, or rebuild the table"
            )
    _plan_nullability(migration, column, stored_column, nulls.get(source, {}))
    comment = stored_column.metadata.get("comment")
    if comment != model.description and source == name:
        migration.change(f"column {name} has another description")


def _plan_nullability(
    migration: Migration,
    column: T.StructField,
    stored_column: T.StructField,
    nulls: Mapping[date, int | None],
) -> None:
    """Add the change of a column to nullable or required; days with nulls forbid required."""
    rule = f"{table_schema.CONSTRAINT}{stored_column.name}_required".lower()
    required = not stored_column.nullable or rule in map(str.lower, migration.metadata.properties)
    if column.nullable and required:
        migration.change(f"column {column.name} may be null")
        migration.relaxed_columns.add(stored_column.name)
    if column.nullable or not stored_column.nullable:
        return
    if nulls:
        unknown = [day for day, count in nulls.items() if count is None]
        null_days = format_ranges(nulls)
        count = sum(filter(None, nulls.values()))
        detail = (
            f"the log does not tell for {format_ranges(unknown)}" if unknown else f"{count} in all"
        )
        migration.refused.append(
            f"column {column.name} is to be required, and may be null on {null_days} ({detail}): "
            "rebuild these days, or leave it nullable"
        )
    else:
        migration.change(f"column {column.name} is required; no day has a null in it")


def _plan_dropped(migration: Migration) -> None:
    """Add the drop of each stored column that is in the model neither by name nor as a source."""
    used = {*filter(None, migration.sources.values())}
    for name in migration.stored:
        if name in migration.table.columns or name in used:
            continue
        text = f"column {name} is dropped"
        if migration.stored_days:
            text += "; its values stay in data files until their days are written again"
        migration.change(text)
        migration.relaxed_columns.add(name)
        migration.retained_columns.add(name)


def _plan_gaps(migration: Migration) -> None:
    """Plan the days on which a default must be written."""
    table, metadata = migration.table, migration.metadata
    stored_gaps = json.loads(metadata.properties.get(table_schema.COLUMN_GAPS, "{}"))
    for name in table_schema.unfilled_columns(table, metadata):
        gap = gaps_of(table.columns)[name]
        if name in stored_gaps and (previous_default := stored_gaps[name]["default"]) is not None:
            migration.refused.append(
                f"column {name} is {previous_default!r} before {stored_gaps[name]['since']}, which "
                "its rows hold: nobody can tell that from values of the source. Leave its gap as "
                "it is, or rebuild the table"
            )
            continue
        days = frozenset(day for day in migration.stored_days if day < gap.since)
        migration.change(f"column {name} is {gap.default!r} before {gap.since}", days)


def properties_after(migration: Migration) -> dict[str, str]:
    """The properties of the table after the migration."""
    table = migration.table
    dropped_names = (
        set()
        if migration.rewrites_all_files
        else table_schema.dropped_columns(migration.metadata) | migration.retained_columns
    )
    return {
        table_schema.SCHEMA_VERSION: str(table.schema_version),
        table_schema.DROPPED_COLUMNS: json.dumps(sorted(dropped_names - table.columns.keys())),
        table_schema.COLUMN_GAPS: table_schema.encode_gaps(table),
    }


def properties_before(migration: Migration) -> dict[str, str]:
    """The properties to set before the columns change; empty if they are already set."""
    name = table_schema.DROPPED_COLUMNS
    dropped_names = {*json.loads(migration.metadata.properties.get(name, "[]"))}
    if migration.retained_columns <= dropped_names:
        return {}
    return {name: json.dumps(sorted(migration.retained_columns | dropped_names))}


def constraints_to_drop(migration: Migration) -> Iterator[str]:
    """The names of the constraints on columns whose name or nullability changes."""
    relaxed = {column.lower() for column in migration.relaxed_columns}
    for name, rule in table_schema.stored_constraints(migration.metadata).items():
        if relaxed & {word.lower() for word in re.findall(r"\w+", rule)}:
            yield name
