"""The columns and constraints of a table: created, compared with the declaration, and added.

A nullable column is added automatically, as it changes no existing row. Other changes are
migrations, see `migration_plan`, or need a rebuild.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import pyspark.sql.types as T
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from backfill_assets.delta import delta_rs
from backfill_assets.delta.ledgers import Ledger, TableMetadata
from backfill_assets.spark.frames import quote_name
from backfill_assets.spark.session import SPARK_ERRORS, commit_session
from backfill_assets.tables.columns import gaps_of, is_wider_type, sql_conditions
from backfill_assets.tables.table import ExternalTable, SchemaError, Table

#: The property with the schema version; a table without it has version 1.
SCHEMA_VERSION = "backfill_assets.schemaVersion"
#: The property with the names of dropped columns that data files may still have.
DROPPED_COLUMNS = "backfill_assets.droppedColumns"

#: The property with the gaps of columns and their defaults, as JSON by column.
COLUMN_GAPS = "backfill_assets.gaps"
_COLUMN_MAPPING = "delta.columnMapping.mode"


def encode_gaps(table: Table) -> str:
    """The gaps of the model as the text of the property."""
    gaps = {}
    for name, gap in gaps_of(table.columns).items():
        default = None if gap.default is None else str(gap.default)
        gaps[name] = {"since": str(gap.since), "default": default}
    return json.dumps(gaps)


def schema_properties(table: Table) -> dict[str, str]:
    """The schema properties of a new table."""
    gaps = encode_gaps(table)
    return {
        SCHEMA_VERSION: str(table.schema_version),
        **({COLUMN_GAPS: gaps} if gaps != "{}" else {}),
    }


def unfilled_columns(table: Table, metadata: TableMetadata) -> list[str]:
    """The columns whose declared gap has a default that the rows of the table do not have yet."""
    stored = json.loads(metadata.properties.get(COLUMN_GAPS, "{}"))
    declared = json.loads(encode_gaps(table))
    filled = {name: gap for name, gap in declared.items() if gap["default"] is not None}
    return [name for name, gap in filled.items() if gap != stored.get(name)]


def read_schema_version(metadata: TableMetadata) -> int:
    """The schema version of a table; 1 if it has none."""
    return int(metadata.properties.get(SCHEMA_VERSION, 1))


def dropped_columns(metadata: TableMetadata) -> frozenset[str]:
    """The dropped columns whose values are still in data files.

    A new column of the same name would show the old values.
    """
    names = json.loads(metadata.properties.get(DROPPED_COLUMNS, "[]"))
    return frozenset(names).difference(metadata.struct.names)


def has_old_values(name: str, metadata: TableMetadata) -> bool:
    """Whether a new column would show values of a dropped one: Spark ignores the case of names."""
    return name.lower() in {dropped.lower() for dropped in dropped_columns(metadata)}


def missing_columns(table: Table, metadata: TableMetadata) -> list[T.StructField]:
    """The nullable columns of the model that can be added to the table, in model order."""
    return [
        column
        for column in table.struct_type
        if column.nullable
        and column.name not in metadata.struct.names
        and not has_old_values(column.name, metadata)
    ]


def layout_differences(table: Table, metadata: TableMetadata) -> Iterator[str]:
    """The differences in how files are laid out, which no change of columns mends."""
    if metadata.partitioned_by != table.partition_columns:
        columns = ", ".join(metadata.partitioned_by) or "nothing"
        yield f"it is partitioned by {columns}, not by {', '.join(table.partition_columns)}"
    if (mode := metadata.properties.get(_COLUMN_MAPPING, "none")) != "none":
        yield f"its columns have other names in the files ({_COLUMN_MAPPING} {mode})"


def schema_differences(table: Table, metadata: TableMetadata) -> list[str]:
    """The differences that keep the table from taking rows of the model, one sentence each."""
    stored = {column.name: column for column in metadata.struct}
    declared = {column.name: column for column in table.struct_type}
    messages = []
    if (stored_version := read_schema_version(metadata)) != table.schema_version:
        messages.append(
            f"its schema has version {stored_version}, and the code has {table.schema_version}"
        )
    messages += layout_differences(table, metadata)
    for name, column in declared.items():
        type_ = column.dataType.simpleString()
        if name not in stored:
            if not column.nullable:
                messages.append(f"column {name} ({type_}, required) is missing")
            elif has_old_values(name, metadata):
                messages.append(
                    f"column {name} was dropped, and its old values are in the data files"
                )
        elif (stored_type := stored[name].dataType.simpleString()) != type_:
            messages.append(f"column {name} is {stored_type}, not {type_}")
        elif column.nullable and (
            not stored[name].nullable or f"{CONSTRAINT}{name}_required" in metadata.properties
        ):
            messages.append(f"column {name} is required there, and may be null in the model")
    messages += [
        f"column {name} has another gap, or default" for name in unfilled_columns(table, metadata)
    ]
    return messages + [
        f"column {name} is not in the model" for name in stored if name not in declared
    ]


def raise_if_schema_differs(ledger: Ledger, url: str, inputs: Sequence[str] | None = None) -> None:
    """Raise if the table does not have the schema of its model.

    The message names the input tables; `inputs` is empty for a table loaded from the landing.

    Raises:
        SchemaError: names the differences and what to do.
    """
    table, metadata = ledger.table, ledger.metadata
    if metadata is not None and isinstance(table, ExternalTable):
        if messages := unreadable_reasons(table, metadata):
            raise SchemaError(
                f"{table.name}: the table at {url}, which others write, is not as it is declared: "
                f"{'; '.join(messages)}. Nothing was written. Have the table mended, or change "
                f"external_table({table.name!r}, ...); then launch these days again."
            )
        return
    if metadata is None or not (messages := schema_differences(table, metadata)):
        return
    raise SchemaError(
        f"{table.name}: the table at {url} is not the one that this code writes: "
        f"{'; '.join(messages)}. Nothing was written; the table is as it was. "
        f"{suggest_fix(table, metadata, inputs)}"
    )


def unreadable_reasons(table: ExternalTable, metadata: TableMetadata) -> list[str]:
    """Why a table that others write has not the days and columns that are read of it."""
    stored = {column.name: column.dataType for column in metadata.struct}
    messages = []
    if table.partition not in metadata.partitioned_by:
        columns = ", ".join(metadata.partitioned_by) or "nothing"
        messages.append(f"it is partitioned by {columns}, not by {table.partition}")
    if (mode := metadata.properties.get(_COLUMN_MAPPING, "none")) != "none":
        messages.append(f"its columns have other names in the files ({_COLUMN_MAPPING} {mode})")
    for column in table.struct_type:
        kind, stored_kind = column.dataType, stored.get(column.name)
        if stored_kind is None:
            messages.append(f"it has no column {column.name}")
        elif stored_kind.simpleString() != kind.simpleString() and not (
            is_wider_type(stored_kind, kind) and column.name != table.partition
        ):
            messages.append(
                f"column {column.name} is {stored_kind.simpleString()}, not {kind.simpleString()}"
            )
    return messages


def explain_absence(ledger: Ledger) -> str:
    """What a message says of days that a table lacks."""
    if not isinstance(ledger.table, ExternalTable):
        return "has never been published"
    reasons = unreadable_reasons(ledger.table, ledger.metadata) if ledger.metadata else ()
    if reasons:
        return f"is not as it is declared: {'; '.join(reasons)}"
    return "is not there, and others write it"


def suggest_fix(table: Table, metadata: TableMetadata, inputs: Sequence[str] | None) -> str:
    """How to fix a table that differs from its model; see `raise_if_schema_differs`."""
    stored_version, declared_version = read_schema_version(metadata), table.schema_version
    if stored_version > declared_version:
        return (
            f"Install the code whose model has schema_version {stored_version}. Older code cannot "
            "read or write this table."
        )
    if stored_version < declared_version:
        return (
            f"Run backfill-assets migrate {table.asset_name} --plan, which tells each change; then "
            "the same without --plan."
        )
    source = "what it is made from" if inputs is None else " and ".join(inputs)
    source = source or (
        "the landing, as far as its files are still there (keep the folder that you moved: what "
        "is no longer in the landing is only in it)"
    )
    return (
        "Only columns that may be null are added by themselves. Put back the code that wrote the "
        f"table; or give the model schema_version {stored_version + 1} and run backfill-assets "
        f"migrate {table.asset_name} --plan, which tells what can be changed in place; or give the "
        f"table up, move its folder away and materialize all days of {table.asset_name}: they are "
        f"rebuilt from {source}."
    )


#: Prefix of the property of a CHECK constraint, before its name.
CONSTRAINT = "delta.constraints."
#: Starts the Spark session on first use.
SessionFactory = Callable[[], SparkSession]
#: Commit only the version right after the one that was read.
_NO_RETRY = CommitProperties(max_commit_retries=0)


def all_constraints(table: Table, metadata: TableMetadata | None) -> dict[str, str]:
    """By lower-case name, the SQL conditions of the model and of the table."""
    stored = stored_constraints(metadata) if metadata else {}
    return {**stored, **declared_constraints(table)}


def stored_constraints(metadata: TableMetadata) -> dict[str, str]:
    """By name, the SQL conditions of the table."""
    return {
        name.removeprefix(CONSTRAINT): rule
        for name, rule in metadata.properties.items()
        if name.startswith(CONSTRAINT)
    }


def declared_constraints(table: Table) -> dict[str, str]:
    """By lower-case name, the SQL conditions of the model."""
    return {name.lower(): rule for name, rule in table.check_constraints.items()}


def delta_schema(table: Table) -> Schema:
    """The Delta schema of a table, with column descriptions."""
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
    """Create an empty table with its constraints; does nothing if another process just did.

    The first commit has all constraints but one. The second commit adds this one, and with it
    Delta's protocol version by which other writers keep all of them: `DeltaTable.create` cannot set
    the version without a property of its name in the table.

    Raises:
        UnsafeStoreError: the store can lose commits.
    """
    delta_rs.raise_if_unsafe_store(url.rpartition("/")[0])
    rules = declared_constraints(table)
    last = next((name for name in rules if _is_portable(table, rules[name])), next(iter(rules), ""))
    constraints = {f"{CONSTRAINT}{name}": rule for name, rule in rules.items() if name != last}
    try:
        DeltaTable.create(
            url,
            delta_schema(table),
            mode="ignore",
            partition_by=[*table.partition_columns],
            configuration={**properties, **schema_properties(table), **constraints},
            storage_options=delta_rs.storage_options(url),
            raise_if_key_not_exists=False,
        )
    except DeltaError:
        if delta_rs.load_log(url) is None:
            raise
    # Also what a killed creation left out.
    add_constraints(session, url, table, rules)


def is_empty(ledger: Ledger) -> bool:
    """Whether a table is unchanged since `create_table`."""
    metadata = ledger.metadata
    return (
        metadata is not None
        and not (ledger.records or ledger.external_commits or ledger.measured)
        and ledger.transaction is None
        and not schema_differences(ledger.table, metadata)
        and all_constraints(ledger.table, metadata) == declared_constraints(ledger.table)
    )


def _column_ddl(table: Table, column: T.StructField) -> str:
    required = "" if column.nullable else " NOT NULL"
    comment = escape_sql(table.columns[column.name].description or "")
    return (
        f"{quote_name(column.name)} {column.dataType.simpleString()}{required} COMMENT '{comment}'"
    )


def add_constraints(
    session: SessionFactory, url: str, table: Table, rules: Mapping[str, str]
) -> bool:
    """Add the missing constraints; return whether there were any."""
    log = delta_rs.delta_log(url).load()
    properties = log.metadata().configuration
    new = {name: rule for name, rule in rules.items() if f"{CONSTRAINT}{name}" not in properties}
    for name, rule in new.items():
        if _is_portable(table, rule):
            with suppress(DeltaError):
                log.alter.add_constraint({name: rule}, commit_properties=_NO_RETRY)
                continue
        with commit_session(session(), {}) as spark:
            spark.sql(f"ALTER TABLE delta.`{url}` ADD CONSTRAINT {quote_name(name)} CHECK ({rule})")
    return bool(new)


def _is_portable(table: Table, rule: str) -> bool:
    """Whether delta-rs, which takes far less than a second, writes a rule unchanged.

    It rewrites other rules in a way that Spark reads differently: `x >= 0.5` of a decimal becomes
    `x >= '50'::decimal(10, 2)`, and a name with a capital letter becomes a text.
    """
    match = re.fullmatch(r"(?:[a-z0-9_]+ IS NULL OR )?([a-z][a-z0-9_]*) >= -?\d+", rule)
    types = {column.name: column.dataType for column in table.struct_type}
    return match is not None and isinstance(types.get(match[1]), T.IntegerType | T.LongType)


def add_columns(session: SessionFactory, url: str, ledger: Ledger) -> bool:
    """Add the new columns of the model and their rules; return whether there were any.

    Does nothing if another process just did the same. `missing_columns` says which columns can be
    added.
    """
    assert ledger.metadata is not None
    table = ledger.table
    names = list(table.columns)
    new = missing_columns(table, ledger.metadata)
    for column in new:
        # At the position in the model, as rows of both are compared by position.
        index = names.index(column.name)
        position = f"AFTER `{names[index - 1]}`" if index else "FIRST"
        change = f"ALTER TABLE delta.`{url}` ADD COLUMNS ({_column_ddl(table, column)} {position})"
        try:
            with commit_session(session(), {}) as spark:
                spark.sql(change)
        except SPARK_ERRORS:
            log = delta_rs.load_log(url)
            if log is None or column.name not in {f.name for f in log.schema().fields}:
                raise
    # A process may have been killed after it added a column and before it added the rules.
    added = {*ledger.changed_columns, *(column.name for column in new)}
    # Rules over several columns are checked by the audit alone: existing rows may violate them.
    rules = {
        name.lower(): rule
        for column in added & table.columns.keys()
        for name, rule in sql_conditions(column, table.columns[column]).items()
    }
    return add_constraints(session, url, table, rules) or bool(new)


def escape_sql(text: str) -> str:
    """Escape a text for a literal in single quotes."""
    return text.replace("\\", "\\\\").replace("'", "\\'")
