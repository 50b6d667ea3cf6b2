"""Which columns of a table are watched for skew: one key with a large share of a day's rows.

In `Config.metadata`, `skew` names columns and the share of a day's rows beyond which a plan says
that one key has so many, or that so many have none: `{"skew": {"customer_id": 0.2}}`. Of a source,
the model of its lines names them, and its staging is watched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as T

if TYPE_CHECKING:
    from backfill_assets.tables.table import Table

#: The name in the metadata of a model.
SKEW = "skew"


def skews_of(table: Table) -> Mapping[str, float]:
    """By column, the share of a day's rows (0 to 1) beyond which a plan tells of it."""
    metadata: Mapping[str, Any] = table.model.Config.metadata or {}
    return metadata.get(SKEW, {})


def most_rows_of(column: str) -> str:
    """What the rows of the most frequent value of a column are called among a day's numbers."""
    return f"most rows of one {column}"


def wrong_skews(table: Table) -> list[str]:
    """What cannot be watched, one sentence each."""
    types = {column.name: column.dataType for column in table.struct_type}
    problems = []
    for name, share in skews_of(table).items():
        if not isinstance(types.get(name), T.AtomicType):
            problems.append(f"skew of {name}, which is no column of it that can be a key")
        elif not 0 < share < 1:
            problems.append(f"skew of {name} beyond {share}, which is no share between 0 and 1")
    return problems
