"""A table's columns and constraints: created, compared with the declaration, and added.

A column that may be null is added by itself, as nothing that is there changes by it. Other changes
are migrations, see `schema_changes`, or ask for rows that only a rebuild can give.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import pyspark.sql.types as T
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from backfill_assets.delta.delta_rs import delta_log, load_log, refuse_unsafe_store, storage_options
from backfill_assets.delta.ledgers import Ledger, TableMetadata
from backfill_assets.spark.session import SPARK_ERRORS, commit_session
from backfill_assets.tables.columns import gaps_of, sql_conditions
from backfill_assets.tables.table import SchemaError, Table

#: The property with the version of a table's schema; a table without it has version 1.
SCHEMA_VERSION = "backfill_assets.schemaVersion"
#: The property with the names of columns that were dropped and that data files may still have.
DROPPED_COLUMNS = "backfill_assets.droppedColumns"

#: The property with the gaps of columns, and what they hold there, as JSON by column.
COLUMN_GAPS = "backfill_assets.gaps"


def encode_gaps(table: Table) -> str:
    """The gaps of the model as the property has them."""
    gaps = {}
    for name, gap in gaps_of(table.columns).items():
        default = None if gap.default is None else str(gap.default)
        gaps[name] = {"since": str(gap.since), "default": default}
    return json.dumps(gaps)


def schema_properties(table: Table) -> dict[str, str]:
    """What a table that is created says of its schema."""
    gaps = encode_gaps(table)
    return {
        SCHEMA_VERSION: str(table.schema_version),
        **({COLUMN_GAPS: gaps} if gaps != "{}" else {}),
    }


def unfilled_columns(table: Table, metadata: TableMetadata) -> list[str]:
    """The columns with a default on days before their source had them that days have not got."""
    stored = json.loads(metadata.properties.get(COLUMN_GAPS, "{}"))
    declared = json.loads(encode_gaps(table))
    filled = {name: gap for name, gap in declared.items() if gap["default"] is not None}
    return [name for name, gap in filled.items() if gap != stored.get(name)]


def read_schema_version(metadata: TableMetadata) -> int:
    """The version of a table's schema."""
    return int(metadata.properties.get(SCHEMA_VERSION, 1))


def dropped_columns(metadata: TableMetadata) -> frozenset[str]:
    """Columns that were dropped: their values are still in data files.

    A column of such a name would show the old values.
    """
    names = json.loads(metadata.properties.get(DROPPED_COLUMNS, "[]"))
    return frozenset(names).difference(metadata.struct.names)


def missing_columns(table: Table, metadata: TableMetadata) -> list[T.StructField]:
    """The columns of the model that the table has not and that may be null, in their order."""
    existing = dropped_columns(metadata).union(metadata.struct.names)
    return [
        column for column in table.struct_type if column.nullable and column.name not in existing
    ]


def schema_differences(table: Table, metadata: TableMetadata) -> list[str]:
    """What keeps the table from taking rows of the model, one sentence each."""
    stored = {column.name: column for column in metadata.struct}
    declared = {column.name: column for column in table.struct_type}
    dropped_names = dropped_columns(metadata)
    messages = []
    if (stored_version := read_schema_version(metadata)) != table.schema_version:
        messages.append(
            f"its schema has version {stored_version}, and the code has {table.schema_version}"
        )
    if metadata.partitioned_by != (table.partition,):
        columns = ", ".join(metadata.partitioned_by) or "nothing"
        messages.append(f"it is partitioned by {columns}, not by {table.partition}")
    if (mode := metadata.properties.get("delta.columnMapping.mode", "none")) != "none":
        messages.append(
            f"its columns have other names in the files (delta.columnMapping.mode {mode})"
        )
    for name, column in declared.items():
        type_ = column.dataType.simpleString()
        if name not in stored:
            if not column.nullable:
                messages.append(f"column {name} ({type_}, required) is missing")
            elif name in dropped_names:
                messages.append(
                    f"column {name} was dropped, and its old values are in the data files"
                )
        elif (stored_type := stored[name].dataType.simpleString()) != type_:
            messages.append(f"column {name} is {stored_type}, not {type_}")
        elif column.nullable and (
            not stored[name].nullable or f"delta.constraints.{name}_required" in metadata.properties
        ):
            messages.append(f"column {name} is required there, and may be null in the model")
    messages += [
        f"column {name} has another gap, or default" for name in unfilled_columns(table, metadata)
    ]
    return messages + [
        f"column {name} is not in the model" for name in stored if name not in declared
    ]


def raise_if_schema_differs(ledger: Ledger, url: str, inputs: Sequence[str] | None = None) -> None:
    """Refuse to go on with a table that is not the one of its model.

    Args:
        ledger: the table's.
        url: where it lives.
        inputs: the tables that it is made from, none if from the landing; not given if that
            does not matter here.

    Raises:
        SchemaError: what is different, and what to do.
    """
    table, metadata = ledger.table, ledger.metadata
    if metadata is None or not (messages := schema_differences(table, metadata)):
        return
    raise SchemaError(
        f"{table.name}: the table at {url} is not the one that this code writes: "
        f"{'; '.join(messages)}. Nothing was written; the table is as it was. "
        f"{suggest_fix(table, metadata, inputs)}"
    )


def suggest_fix(table: Table, metadata: TableMetadata, inputs: Sequence[str] | None) -> str:
    """What to do about a table that is not the one of its model; see `raise_if_schema_differs`."""
    stored_version, declared_version = read_schema_version(metadata), table.schema_version
    if stored_version > declared_version:
        return (
            f"Install the code whose model has schema_version {stored_version}. Older code cannot "
            "read or write this table."
        )
    if stored_version < declared_version:
        return (
            f"Run backfill-assets migrate {table.name} --plan, which tells each change; then the "
            "same without --plan."
        )
    source = "what it is made from" if inputs is None else " and ".join(inputs)
    source = source or (
        "the landing, as far as its files are still there (keep the folder that you moved: what "
        "is no longer in the landing is only in it)"
    )
    return (
        "Only columns that may be null are added by themselves. Put back the code that wrote the "
        f"table; or give the model schema_version {stored_version + 1} and run backfill-assets "
        f"migrate {table.name} --plan, which tells what can be changed in place; or give the table "
        f"up, move its folder away and materialize all days of {table.name}: they are rebuilt from "
        f"{source}."
    )


#: How the property of a CHECK constraint begins, before its name.
CONSTRAINT = "delta.constraints."
#: Gives the session, which starts when it is first needed.
SessionFactory = Callable[[], SparkSession]
#: The version after the one that was looked at, or none.
_NO_RETRY = CommitProperties(max_commit_retries=0)


def all_constraints(table: Table, metadata: TableMetadata | None) -> dict[str, str]:
    """By name, as Delta has it, what the model and the table ask of each row, in SQL."""
    properties = metadata.properties if metadata else {}
    stored = {
        name.removeprefix(CONSTRAINT): rule
        for name, rule in properties.items()
        if name.startswith(CONSTRAINT)
    }
    return {**stored, **declared_constraints(table)}


def declared_constraints(table: Table) -> dict[str, str]:
    """By name, as Delta has it, what the model asks of each row, in SQL."""
    return {name.lower(): rule for name, rule in table.check_constraints.items()}


def delta_schema(table: Table) -> Schema:
    """The columns of a table as Delta has them, with their descriptions."""
    columns = T.StructType(
        [
            T.StructField(
                column.name,
                column.dataType,
                column.nullable,
                {"comment": table.columns[column.name].description},
            )
            for column in table.struct_type
        ]
    )
    return Schema.from_json(columns.json())


def create_table(
    session: SessionFactory, url: str, table: Table, properties: Mapping[str, str]
) -> None:
    """Create the empty table, constraints included; harmless if somebody else just did.

    Raises:
        UnsafeStoreError: it would be on a store on which commits can be lost.
    """
    refuse_unsafe_store(url.rpartition("/")[0])
    try:
        DeltaTable.create(
            url,
            delta_schema(table),
            mode="ignore",
            partition_by=[table.partition],
            configuration={**properties, **schema_properties(table)},
            storage_options=storage_options(url),
            raise_if_key_not_exists=False,
        )
    except DeltaError:
        if load_log(url) is None:
            raise
    # What a creation that was killed has not come to.
    add_constraints(session, url, table, declared_constraints(table))


def is_empty(ledger: Ledger) -> bool:
    """Whether a table is as `create_table` has made it: nobody has written to it, or changed it."""
    metadata = ledger.metadata
    return (
        metadata is not None
        and not (ledger.records or ledger.external_commits or ledger.measured)
        and ledger.transaction is None
        and not schema_differences(ledger.table, metadata)
        and all_constraints(ledger.table, metadata) == declared_constraints(ledger.table)
    )


def _column_ddl(table: Table, column: T.StructField) -> str:
    """A column as CREATE and ALTER TABLE take it."""
    required = "" if column.nullable else " NOT NULL"
    comment = _escape_sql(table.columns[column.name].description or "")
    return f"`{column.name}` {column.dataType.simpleString()}{required} COMMENT '{comment}'"


def add_constraints(
    session: SessionFactory, url: str, table: Table, rules: Mapping[str, str]
) -> bool:
    """Add the rules that the table has not; whether there were any."""
    log = delta_log(url).load()
    properties = log.metadata().configuration
    new = {name: rule for name, rule in rules.items() if f"{CONSTRAINT}{name}" not in properties}
    for name, rule in new.items():
        if _is_portable(table, rule):
            with suppress(DeltaError):
                log.alter.add_constraint({name: rule}, commit_properties=_NO_RETRY)
                continue
        with commit_session(session(), {}) as spark:
            spark.sql(f"ALTER TABLE delta.`{url}` ADD CONSTRAINT {name} CHECK ({rule})")
    return bool(new)


def _is_portable(table: Table, rule: str) -> bool:
    """Whether delta-rs, which needs no second for it, writes a rule down as it is.

    Others it says in words of its own, which Spark takes otherwise: `x >= 0.5` of a decimal becomes
    `x >= '50'::decimal(10, 2)`, and a name with a capital letter a text.
    """
    match = re.fullmatch(r"(?:[a-z0-9_]+ IS NULL OR )?([a-z][a-z0-9_]*) >= -?\d+", rule)
    types = {column.name: column.dataType for column in table.struct_type}
    return match is not None and isinstance(types.get(match[1]), T.IntegerType | T.LongType)


def add_columns(session: SessionFactory, url: str, ledger: Ledger) -> bool:
    """Add the columns that the model has got since, and their rules; whether there were any.

    Harmless if somebody else does just that. The names are those of the model, and `evolution`
    says which may be added.
    """
    assert ledger.metadata is not None
    table = ledger.table
    names = list(table.columns)
    new = missing_columns(table, ledger.metadata)
    for column in new:
        # Where the model has it: rows of both are compared by position.
        index = names.index(column.name)
        position = f"AFTER `{names[index - 1]}`" if index else "FIRST"
        change = f"ALTER TABLE delta.`{url}` ADD COLUMNS ({_column_ddl(table, column)} {position})"
        try:
            with commit_session(session(), {}) as spark:
                spark.sql(change)
        except SPARK_ERRORS:
            log = load_log(url)
            if log is None or column.name not in {f.name for f in log.schema().fields}:
                raise
    # Who added a column may have been killed before its rules.
    added = {*ledger.changed_columns, *(column.name for column in new)}
    # A rule over several columns is held by the audit alone: the rows that are there may break it.
    rules = {
        name.lower(): rule
        for column in added & table.columns.keys()
        for name, rule in sql_conditions(column, table.columns[column]).items()
    }
    return add_constraints(session, url, table, rules) or bool(new)


def _escape_sql(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
