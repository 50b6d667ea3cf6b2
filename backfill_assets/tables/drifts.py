"""Which columns of a table are held against what they were: a check that a model asks for.

In `Config.metadata`, `drift` names columns and how far each may move before a day is published with
a warning: `{"drift": {"revenue_30d": 0.25}}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as T

if TYPE_CHECKING:
    from backfill_assets.tables.table import Table

#: The check.
DRIFT = "drift"


def drifts_of(table: Table) -> Mapping[str, float]:
    """By column, the population stability index beyond which a day is warned of."""
    metadata: Mapping[str, Any] = table.model.Config.metadata or {}
    return metadata.get(DRIFT, {})


def notices_of(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    """The notices that a model's metadata asks for, with their descriptions."""
    notices: Mapping[str, str] = metadata.get("notices", {})
    if columns := metadata.get(DRIFT):
        text = "is distributed as in the version before, or as on the day before"
        return {**notices, DRIFT: f"{', '.join(columns)} {text}."}
    return notices


def wrong_drifts(table: Table) -> list[str]:
    """What no distribution can be told of, one sentence each."""
    types = {column.name: column.dataType for column in table.struct_type}
    return [
        f"drift of {name}, which is no number and no boolean column of it"
        for name in drifts_of(table)
        if not isinstance(types.get(name), T.NumericType | T.BooleanType)
    ]
