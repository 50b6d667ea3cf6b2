"""How a model tells of its own change: schema version, renamed columns, columns added since.

How a table on disk is brought there is the business of `delta.schema_changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.tables.arguments import Argument, check_arguments, is_date
from backfill_assets.tables.columns import bounds_arguments

#: Whole numbers, the narrower first.
_WHOLE_TYPES = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
#: In the metadata of a model, and of a column.
_VERSION, _RENAMED, _GAP = "schema_version", "renamed_from", "gap"


@dataclass(frozen=True)
class ColumnGap:
    """The days before the source had a column, and what the column holds on them.

    Attributes:
        since: the first day that has values of the source.
        default: what the column holds on the days before; none for null.
    """

    since: date
    default: Any

    @property
    def description_text(self) -> str:
        """The gap in one sentence, for the description of the column."""
        value = "null" if self.default is None else repr(self.default)
        return f"The source has it since {self.since}; on the days before it is {value}."


def added(
    default: Any, since: date, description: str, *, warn: float = 1.0, error: float = 1.0
) -> Any:
    """A column that the source has since a day; on the days before, a default takes a null's place.

    A value that the table's function gives on the days before is kept.

    Args:
        default: what a null is on the days before; none if it stays null.
        since: the first day of the table with values of the source.
        description: what the column means. The gap is told after it.
        warn: a day with a larger share of nulls (0 to 1) is published with a warning.
        error: a day with a larger share of nulls is not published.

    Raises:
        DeclarationError: `since` is no date, or a share is none.
    """
    since_date = Argument("since", since, is_date, "a date, as date(2025, 3, 20)")
    check_arguments("added", [since_date, *bounds_arguments(warn, error, description)])
    gap = ColumnGap(since, default)
    return Field(
        nullable=True,
        description=f"{description} {gap.description_text}",
        metadata={"null_warn": warn, "null_error": error, _GAP: gap},
    )


def gap_of(column: Any) -> ColumnGap | None:
    """The gap of a pandera column that was declared by `added`."""
    return (column.metadata or {}).get(_GAP)


def gaps_of(columns: Mapping[str, Any]) -> dict[str, ColumnGap]:
    """By column, the days before its source had it."""
    return {name: gap for name, column in columns.items() if (gap := gap_of(column))}


def renamed_from(column: Any) -> str | None:
    """The name that a pandera column had before; none if its metadata has no `renamed_from`."""
    return (column.metadata or {}).get(_RENAMED)


def schema_version(metadata: Mapping[str, Any]) -> int:
    """The version of a model's schema, from the model's metadata; 1 if that names none."""
    return metadata.get(_VERSION, 1)


def wrong_schema(metadata: Mapping[str, Any], columns: Mapping[str, Any]) -> list[str]:
    """What a model says wrongly of its schema, one sentence each."""
    version = metadata.get(_VERSION, 1)
    problems = []
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        problems.append(f'"{_VERSION}" is {version!r}, not a whole number of 1 or more')
    for name, column in columns.items():
        default = gap.default if (gap := gap_of(column)) else None
        if isinstance(default, str) and not _parses_as(default, column.dtype.type):
            kind = column.dtype.type.simpleString()
            problems.append(f"{name} is added with the default {default!r}, which is no {kind}")
        if (old := renamed_from(column)) is not None and (not isinstance(old, str) or old == name):
            problems.append(f'"{_RENAMED}" of {name} is {old!r}, not the name that it had before')
        elif old in columns:
            problems.append(f'"{_RENAMED}" of {name} is {old!r}, which the model still has')
    return problems


def _parses_as(text: str, kind: T.DataType) -> bool:
    """Whether a text is a value of a type, as a cast takes it; also where that is not known."""
    try:
        if isinstance(kind, T.NumericType):
            Decimal(text)
        elif isinstance(kind, T.DateType):
            date.fromisoformat(text)
    except (ArithmeticError, ValueError):
        return False
    return True


def with_defaults(frame: DataFrame, partition: str, columns: Mapping[str, Any]) -> DataFrame:
    """A frame with the defaults of its columns on the days before their source had them.

    Args:
        frame: rows in the columns of a table.
        partition: the partition column.
        columns: the pandera columns by name.
    """
    filled = {
        name: fill_default(F.col(name), partition, gap, column.dtype.type)
        for name, column in columns.items()
        if (gap := gap_of(column)) and gap.default is not None
    }
    return frame.withColumns(filled) if filled else frame


def fill_default(column: Column, partition: str, gap: ColumnGap, kind: Any) -> Column:
    """A column with its default where it is null on a day of its gap."""
    before = F.col(partition) < F.lit(gap.since)
    return F.when(before, F.coalesce(column, F.lit(gap.default).cast(kind))).otherwise(column)


def convert_columns(frame: DataFrame, partition: str, columns: Mapping[str, Any]) -> DataFrame:
    """Rows from before schema changes in the columns of now.

    What was renamed has its name, what was widened its type; a column that may be null and was not
    there is null, or its default on the days of its gap.

    Args:
        frame: the rows.
        partition: the partition column.
        columns: the pandera columns by name.
    """
    types = {column.name: column.dataType for column in frame.schema}

    def convert_column(name: str, column: Any) -> Column:
        kind, old = column.dtype.type, renamed_from(column)
        source = name if name in types or old not in types else old
        if source not in types:
            return F.lit(None).cast(kind) if column.nullable else F.col(name)
        value = F.col(f"`{source}`")
        return value.cast(kind) if is_wider_type(types[source], kind) else value

    rows = frame.select(
        *(convert_column(name, column).alias(name) for name, column in columns.items())
    )
    return with_defaults(rows, partition, columns)


def files_match_schema(stored: T.StructType, columns: Mapping[str, Any]) -> bool:
    """Whether data files of a table's columns hold what they are to hold under those of a model.

    Args:
        stored: the columns of the table as of then.
        columns: the pandera columns by name.
    """
    types = {column.name: column.dataType.simpleString() for column in stored}
    for name, column in columns.items():
        if name in types:
            if types[name] != column.dtype.type.simpleString():
                return False
        elif not column.nullable or renamed_from(column) in types or gap_of(column):
            return False
    return types.keys() <= columns.keys()


def is_wider_type(old: T.DataType, new: T.DataType) -> bool:
    """Whether a type holds all values of another as they are."""
    if isinstance(old, T.DecimalType) and isinstance(new, T.DecimalType):
        whole = new.precision - new.scale >= old.precision - old.scale
        return whole and new.scale >= old.scale
    if type(old) in _WHOLE_TYPES and type(new) in _WHOLE_TYPES:
        return _WHOLE_TYPES.index(type(old)) < _WHOLE_TYPES.index(type(new))
    return isinstance(old, T.FloatType) and isinstance(new, T.DoubleType)
