"""Which rows of a day are counted, for the UI and for the record: numbers that a model asks for.

In `Config.metadata`, `counts` names kinds of rows, each with a condition in SQL:
`{"counts": {"open labels": "label_state = 'open'"}}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backfill_assets.tables.table import Table


def counts_of(table: Table) -> Mapping[str, str]:
    """By kind of rows, the condition that they meet."""
    metadata: Mapping[str, Any] = table.model.Config.metadata or {}
    return metadata.get("counts", {})
