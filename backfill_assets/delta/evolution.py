"""Whether a table on disk is the one that its model describes; if not, what can be done.

A column that may be null is added by itself, as nothing that is there changes by it. Other changes
are migrations, see `schema_changes`, or ask for rows that only a rebuild can give.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyspark.sql.types as T

from backfill_assets.delta.ledgers import Ledger, Metadata
from backfill_assets.tables.schemas import gaps_of
from backfill_assets.tables.table import SchemaError, Table

#: The property with the version of a table's schema; a table without it has version 1.
SCHEMA_VERSION = "backfill_assets.schemaVersion"
#: The property with the names of columns that were dropped and that data files may still have.
DROPPED = "backfill_assets.droppedColumns"

#: The property with the gaps of columns, and what they hold there, as JSON by column.
GAPS = "backfill_assets.gaps"


def gaps_as_json(table: Table) -> str:
    """The gaps of the model as the property has them."""
    found = {}
    for name, gap in gaps_of(table.columns).items():
        held = None if gap.default is None else str(gap.default)
        found[name] = {"since": str(gap.since), "default": held}
    return json.dumps(found)


def properties_of(table: Table) -> dict[str, str]:
    """What a table that is created says of its schema."""
    gaps = gaps_as_json(table)
    return {SCHEMA_VERSION: str(table.schema_version), **({GAPS: gaps} if gaps != "{}" else {})}


def unfilled(table: Table, metadata: Metadata) -> list[str]:
    """The columns with a default on days before their source had them that days have not got."""
    there = json.loads(metadata.properties.get(GAPS, "{}"))
    wanted = json.loads(gaps_as_json(table))
    filled = {name: gap for name, gap in wanted.items() if gap["default"] is not None}
    return [name for name, gap in filled.items() if gap != there.get(name)]


def version_of(metadata: Metadata) -> int:
    """The version of a table's schema."""
    return int(metadata.properties.get(SCHEMA_VERSION, 1))


def dropped(metadata: Metadata) -> frozenset[str]:
    """Columns that were dropped: their values are still in data files.

    A column of such a name would show the old values.
    """
    names = json.loads(metadata.properties.get(DROPPED, "[]"))
    return frozenset(names).difference(metadata.struct.names)


def lacking(table: Table, metadata: Metadata) -> list[T.StructField]:
    """The columns of the model that the table has not and that may be null, in their order."""
    there = dropped(metadata).union(metadata.struct.names)
    return [column for column in table.struct if column.nullable and column.name not in there]


def differences(table: Table, metadata: Metadata) -> list[str]:
    """What keeps the table from taking rows of the model, one sentence each."""
    there = {column.name: column for column in metadata.struct}
    wanted = {column.name: column for column in table.struct}
    gone = dropped(metadata)
    said = []
    if (has_version := version_of(metadata)) != table.schema_version:
        said.append(
            f"its schema has version {has_version}, and the code has {table.schema_version}"
        )
    if metadata.partitioned_by != (table.partition,):
        columns = ", ".join(metadata.partitioned_by) or "nothing"
        said.append(f"it is partitioned by {columns}, not by {table.partition}")
    if (mode := metadata.properties.get("delta.columnMapping.mode", "none")) != "none":
        said.append(f"its columns have other names in the files (delta.columnMapping.mode {mode})")
    for name, column in wanted.items():
        type_ = column.dataType.simpleString()
        if name not in there:
            if not column.nullable:
                said.append(f"column {name} ({type_}, required) is missing")
            elif name in gone:
                said.append(f"column {name} was dropped, and its old values are in the data files")
        elif (has := there[name].dataType.simpleString()) != type_:
            said.append(f"column {name} is {has}, not {type_}")
        elif column.nullable and (
            not there[name].nullable or f"delta.constraints.{name}_required" in metadata.properties
        ):
            said.append(f"column {name} is required there, and may be null in the model")
    said += [f"column {name} has another gap, or default" for name in unfilled(table, metadata)]
    return said + [f"column {name} is not in the model" for name in there if name not in wanted]


def refuse(ledger: Ledger, url: str, made_from: Sequence[str] | None = None) -> None:
    """Refuse to go on with a table that is not the one of its model.

    Args:
        ledger: the table's.
        url: where it lives.
        made_from: the tables that it is made from, none if from the landing; not given if that
            does not matter here.

    Raises:
        SchemaError: what is different, and what to do.
    """
    table, metadata = ledger.table, ledger.metadata
    if metadata is None or not (said := differences(table, metadata)):
        return
    raise SchemaError(
        f"{table.name}: the table at {url} is not the one that this code writes: "
        f"{'; '.join(said)}. Nothing was written; the table is as it was. "
        f"{way(table, metadata, made_from)}"
    )


def way(table: Table, metadata: Metadata, made_from: Sequence[str] | None) -> str:
    """What to do about a table that is not the one of its model; see `refuse`."""
    there, wanted = version_of(metadata), table.schema_version
    if there > wanted:
        return (
            f"Install the code whose model has schema_version {there}. Older code cannot read or "
            "write this table."
        )
    if there < wanted:
        return (
            f"Run backfill-assets migrate {table.name} --plan, which tells each change; then the "
            "same without --plan."
        )
    source = "what it is made from" if made_from is None else " and ".join(made_from)
    source = source or (
        "the landing, as far as its files are still there (keep the folder that you moved: what "
        "is no longer in the landing is only in it)"
    )
    return (
        "Only columns that may be null are added by themselves. Put back the code that wrote the "
        f"table; or give the model schema_version {there + 1} and run backfill-assets migrate "
        f"{table.name} --plan, which tells what can be changed in place; or give the table up, "
        f"move its folder away and materialize all days of {table.name}: they are rebuilt from "
        f"{source}."
    )
