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
from backfill_assets.delta.ledgers import Ledger, Metadata
from backfill_assets.delta.logs import delta_log, load_log, storage_options
from backfill_assets.delta.store_check import refuse_unsafe_store
from backfill_assets.engine.sharing import alone
from backfill_assets.engine.spark import SPARK_ERRORS
from backfill_assets.tables.column_checks import conditions
from backfill_assets.tables.table import Table

#: How the property of a CHECK constraint begins, before its name.
CONSTRAINT = "delta.constraints."
#: Gives the session, which starts when it is first needed.
Session = Callable[[], SparkSession]
#: The version after the one that was looked at, or none.
_NEXT = CommitProperties(max_commit_retries=0)


def rules_of(table: Table, metadata: Metadata | None) -> dict[str, str]:
    """By name, as Delta has it, what the model and the table ask of each row, in SQL."""
    properties = metadata.properties if metadata else {}
    there = {
        name.removeprefix(CONSTRAINT): rule
        for name, rule in properties.items()
        if name.startswith(CONSTRAINT)
    }
    return {**there, **own_rules(table)}


def own_rules(table: Table) -> dict[str, str]:
    """By name, as Delta has it, what the model asks of each row, in SQL."""
    return {name.lower(): rule for name, rule in table.constraints.items()}


def schema_of(table: Table) -> Schema:
    """The columns of a table as Delta has them, with their descriptions."""
    columns = T.StructType(
        [
            T.StructField(
                column.name,
                column.dataType,
                column.nullable,
                {"comment": table.columns[column.name].description},
            )
            for column in table.struct
        ]
    )
    return Schema.from_json(columns.json())


def create(session: Session, url: str, table: Table, properties: Mapping[str, str]) -> None:
    """Create the empty table, constraints included; harmless if somebody else just did.

    Raises:
        UnsafeStoreError: it would be on a store on which commits can be lost.
    """
    refuse_unsafe_store(url.rpartition("/")[0])
    try:
        DeltaTable.create(
            url,
            schema_of(table),
            mode="ignore",
            partition_by=[table.partition],
            configuration={**properties, **evolution.properties_of(table)},
            storage_options=storage_options(url),
            raise_if_key_not_exists=False,
        )
    except DeltaError:
        if load_log(url) is None:
            raise
    # What a creation that was killed has not come to.
    add_constraints(session, url, table, own_rules(table))


def is_empty(ledger: Ledger) -> bool:
    """Whether a table is as `create` has made it: nobody has written to it, or changed it."""
    metadata = ledger.metadata
    return (
        metadata is not None
        and not (ledger.records or ledger.external or ledger.measured)
        and ledger.transaction is None
        and not evolution.differences(ledger.table, metadata)
        and rules_of(ledger.table, metadata) == own_rules(ledger.table)
    )


def _column(table: Table, column: T.StructField) -> str:
    """A column as CREATE and ALTER TABLE take it."""
    required = "" if column.nullable else " NOT NULL"
    comment = _quoted(table.columns[column.name].description or "")
    return f"`{column.name}` {column.dataType.simpleString()}{required} COMMENT '{comment}'"


def add_constraints(session: Session, url: str, table: Table, rules: Mapping[str, str]) -> bool:
    """Add the rules that the table has not; whether there were any."""
    log = delta_log(url).load()
    there = log.metadata().configuration
    new = {name: rule for name, rule in rules.items() if f"{CONSTRAINT}{name}" not in there}
    for name, rule in new.items():
        if _is_plain(table, rule):
            with suppress(DeltaError):
                log.alter.add_constraint({name: rule}, commit_properties=_NEXT)
                continue
        with alone(session(), {}) as own:
            own.sql(f"ALTER TABLE delta.`{url}` ADD CONSTRAINT {name} CHECK ({rule})")
    return bool(new)


def _is_plain(table: Table, rule: str) -> bool:
    """Whether delta-rs, which needs no second for it, writes a rule down as it is.

    Others it says in words of its own, which Spark takes otherwise: `x >= 0.5` of a decimal becomes
    `x >= '50'::decimal(10, 2)`, and a name with a capital letter a text.
    """
    found = re.fullmatch(r"(?:[a-z0-9_]+ IS NULL OR )?([a-z][a-z0-9_]*) >= -?\d+", rule)
    types = {column.name: column.dataType for column in table.struct}
    return found is not None and isinstance(types.get(found[1]), T.IntegerType | T.LongType)


def add_columns(session: Session, url: str, since: Ledger) -> bool:
    """Add the columns that the model has got since, and their rules; whether there were any.

    Harmless if somebody else does just that. The names are those of the model, and `evolution`
    says which may be added.
    """
    assert since.metadata is not None
    table = since.table
    names = list(table.columns)
    new = evolution.lacking(table, since.metadata)
    for column in new:
        # Where the model has it: rows of both are compared by position.
        place = names.index(column.name)
        where = f"AFTER `{names[place - 1]}`" if place else "FIRST"
        change = f"ALTER TABLE delta.`{url}` ADD COLUMNS ({_column(table, column)} {where})"
        try:
            with alone(session(), {}) as own:
                own.sql(change)
        except SPARK_ERRORS:
            log = load_log(url)
            if log is None or column.name not in {f.name for f in log.schema().fields}:
                raise
    # Who added a column may have been killed before its rules.
    added = {*since.added, *(column.name for column in new)}
    # A rule over several columns is held by the audit alone: the rows that are there may break it.
    rules = {
        name.lower(): rule
        for column in added & table.columns.keys()
        for name, rule in conditions(column, table.columns[column]).items()
    }
    return add_constraints(session, url, table, rules) or bool(new)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
