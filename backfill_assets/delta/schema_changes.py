"""What is to change in a table for it to be the one of its model, and which days are rewritten.

Decided from the model and the log alone; no row is read. `migrating` does it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date

import pyspark.sql.types as T

from backfill_assets.calendar.partitions import spelled
from backfill_assets.delta.evolution import (
    DROPPED,
    GAPS,
    SCHEMA_VERSION,
    dropped,
    gaps_as_json,
    unfilled,
    version_of,
)
from backfill_assets.delta.ledgers import Ledger, Metadata
from backfill_assets.tables.schemas import gaps_of, renamed_from, widens
from backfill_assets.tables.table import Table


@dataclass(frozen=True)
class Change:
    """One change of a table.

    Attributes:
        text: what changes.
        days: the days that are rewritten for it; none if it is a matter of the log alone.
    """

    text: str
    days: frozenset[date] = frozenset()

    @property
    def cost(self) -> str:
        """What it takes, as the plan has it."""
        return f"{len(self.days)} days are rewritten" if self.days else "metadata only"


@dataclass(frozen=True)
class Migration:
    """All that is to change in a table.

    Attributes:
        ledger: that of the table; all rests on it.
        changes: one after the other.
        refused: what cannot be changed in place, a sentence each; nothing is done then.
        sources: by column of the model, the column of the table that it is made of; none for null.
        loose: columns of the table whose constraints are dropped before the change.
        unwritten: columns that the data files go on having, and the table has no longer.
    """

    ledger: Ledger
    changes: list[Change] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    sources: dict[str, str | None] = field(default_factory=dict)
    loose: set[str] = field(default_factory=set)
    unwritten: set[str] = field(default_factory=set)

    @property
    def days(self) -> frozenset[date]:
        """The days that are rewritten."""
        return frozenset().union(*(change.days for change in self.changes))

    @property
    def whole(self) -> bool:
        """Whether all data files are rewritten."""
        return bool(self.days) and self.days == frozenset(self.ledger.stored)


def migration_of(ledger: Ledger, nulls: Mapping[str, Mapping[date, int | None]]) -> Migration:
    """What is to change in a table for it to be the one of its model.

    Args:
        ledger: that of the table, which is there.
        nulls: by column of the table, the days that have nulls in it or of which the log does not
            tell, with how many, as far as it tells.
    """
    assert ledger.metadata is not None
    found = Migration(ledger)
    table, metadata = ledger.table, ledger.metadata
    _form(found, table, metadata)
    if found.refused:
        return found
    there = {column.name: column for column in metadata.struct}
    for column in table.struct:
        _column(found, table, column, there, nulls)
    _dropped(found, table, there)
    _gaps(found, table, metadata)
    kept = [name for name in metadata.struct.names if name in table.columns]
    if kept != [name for name in table.columns if name in there] and not found.days:
        found.changes.append(Change("the columns have another order"))
    was, now = version_of(metadata), table.schema_version
    if was < now:
        found.changes.append(Change(f"the schema has version {now}, not {was}"))
    elif found.changes:
        found.refused.append(
            f"the model has schema_version {now} as the table has, and the columns differ: give it "
            f"{now + 1}, by which older code knows that the table is not its own"
        )
    return found


def _form(found: Migration, table: Table, metadata: Metadata) -> None:
    """What of the table as such cannot be changed in place."""
    if (was := version_of(metadata)) > table.schema_version:
        found.refused.append(
            f"the table's schema has version {was}, and this code has {table.schema_version}: "
            "install the code that has it"
        )
    if metadata.partitioned_by != (table.partition,):
        columns = ", ".join(metadata.partitioned_by) or "nothing"
        found.refused.append(f"it is partitioned by {columns}, not by {table.partition}")
    if None in set(found.ledger.stored):
        found.refused.append(f"it has rows without a {table.partition}: delete them")
    if (mode := metadata.properties.get("delta.columnMapping.mode", "none")) != "none":
        found.refused.append(
            f"its columns have other names in the files (delta.columnMapping.mode {mode})"
        )


def _column(
    found: Migration,
    table: Table,
    column: T.StructField,
    there: Mapping[str, T.StructField],
    nulls: Mapping[str, Mapping[date, int | None]],
) -> None:
    """What becomes of one column of the model."""
    assert found.ledger.metadata is not None
    name, model = column.name, table.columns[column.name]
    days = frozenset(found.ledger.stored)
    old = renamed_from(model)
    source = name if name in there else old if old in there else None
    found.sources[name] = source
    if source is None:
        if old is not None and name not in dropped(found.ledger.metadata):
            found.refused.append(
                f"column {name} is renamed from {old}, and the table has neither: migrate it with "
                "the code of each schema_version in between first, or leave renamed_from away if "
                "the column is new"
            )
        elif not column.nullable:
            found.refused.append(
                f"column {name} is new and required, and the days that are there have no values of "
                "it: declare it nullable, or by `added` with a default"
            )
        elif name in dropped(found.ledger.metadata):
            text = f"column {name} is there again, without its values from before it was dropped"
            found.changes.append(Change(text, days))
        else:
            found.changes.append(
                Change(f"column {name} is added; it is null where nobody fills it")
            )
        return
    has = there[source]
    if source != name:
        found.changes.append(Change(f"column {source} is renamed to {name}", days))
        found.loose.add(source)
    if has.dataType.simpleString() != column.dataType.simpleString():
        text = f"{has.dataType.simpleString()} to {column.dataType.simpleString()}"
        if widens(has.dataType, column.dataType):
            found.changes.append(Change(f"column {name} is widened from {text}", days))
        else:
            found.refused.append(
                f"column {name} would change from {text}, which does not hold all values as they "
                "are: give the new column another name, or rebuild the table"
            )
    _nullability(found, column, has, nulls.get(source, {}))
    comment = has.metadata.get("comment")
    if comment != model.description and source == name:
        found.changes.append(Change(f"column {name} has another description"))


def _nullability(
    found: Migration, column: T.StructField, has: T.StructField, nulls: Mapping[date, int | None]
) -> None:
    assert found.ledger.metadata is not None
    rule = f"delta.constraints.{has.name}_required".lower()
    required = not has.nullable or rule in map(str.lower, found.ledger.metadata.properties)
    if column.nullable and required:
        found.changes.append(Change(f"column {column.name} may be null"))
        found.loose.add(has.name)
    if column.nullable or not has.nullable:
        return
    if nulls:
        unknown = [day for day, count in nulls.items() if count is None]
        told = spelled(nulls)
        count = sum(filter(None, nulls.values()))
        said = f"the log does not tell for {spelled(unknown)}" if unknown else f"{count} in all"
        found.refused.append(
            f"column {column.name} is to be required, and may be null on {told} ({said}): rebuild "
            "these days, or leave it nullable"
        )
    else:
        found.changes.append(Change(f"column {column.name} is required; no day has a null in it"))


def _dropped(found: Migration, table: Table, there: Mapping[str, T.StructField]) -> None:
    """The columns that the model has no longer."""
    used = {*filter(None, found.sources.values())}
    for name in there:
        if name in table.columns or name in used:
            continue
        days = len(found.ledger.stored)
        text = f"column {name} is dropped"
        if days:
            text += "; its values stay in data files until their days are written again"
        found.changes.append(Change(text))
        found.loose.add(name)
        found.unwritten.add(name)


def _gaps(found: Migration, table: Table, metadata: Metadata) -> None:
    """The days that a default is to be written on."""
    before = json.loads(metadata.properties.get(GAPS, "{}"))
    for name in unfilled(table, metadata):
        gap = gaps_of(table.columns)[name]
        if name in before and (was := before[name]["default"]) is not None:
            found.refused.append(
                f"column {name} is {was!r} before {before[name]['since']}, which its rows hold: "
                "nobody can tell that from values of the source. Leave its gap as it is, or "
                "rebuild the table"
            )
            continue
        days = frozenset(day for day in found.ledger.stored if day < gap.since)
        found.changes.append(Change(f"column {name} is {gap.default!r} before {gap.since}", days))


def properties_after(found: Migration) -> dict[str, str]:
    """The properties of the table once all is changed."""
    assert found.ledger.metadata is not None
    table = found.ledger.table
    left = set() if found.whole else dropped(found.ledger.metadata) | found.unwritten
    return {
        SCHEMA_VERSION: str(table.schema_version),
        DROPPED: json.dumps(sorted(left - table.columns.keys())),
        GAPS: gaps_as_json(table),
    }


def properties_before(found: Migration) -> dict[str, str]:
    """The properties that must be there before the columns change; none if there are such."""
    assert found.ledger.metadata is not None
    there = json.loads(found.ledger.metadata.properties.get(DROPPED, "[]"))
    if found.unwritten <= set(there):
        return {}
    return {DROPPED: json.dumps(sorted(found.unwritten.union(there)))}


def loose_rules(found: Migration) -> Iterator[str]:
    """The names of the constraints that speak of columns whose name or nullability changes."""
    assert found.ledger.metadata is not None
    begin = "delta.constraints."
    for name, rule in found.ledger.metadata.properties.items():
        words = {word.lower() for word in re.findall(r"\w+", rule)}
        if name.startswith(begin) and words & {of.lower() for of in found.loose}:
            yield name.removeprefix(begin)
