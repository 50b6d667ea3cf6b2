"""A table on disk that is the one of its model: created, and given the columns that came since."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress

import pyspark.sql.types as T
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from backfill_assets.delta import evolution
from backfill_assets.delta.ledgers import Ledger, TableMetadata
from backfill_assets.delta.logs import delta_log, load_log, storage_options
from backfill_assets.delta.store_check import refuse_unsafe_store
from backfill_assets.engine.sharing import commit_session
from backfill_assets.engine.spark import SPARK_ERRORS
from backfill_assets.tables.column_checks import sql_conditions
from backfill_assets.tables.table import Table

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
            configuration={**properties, **evolution.schema_properties(table)},
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
        and not evolution.schema_differences(ledger.table, metadata)
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
    new = evolution.missing_columns(table, ledger.metadata)
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
