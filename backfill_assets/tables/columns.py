"""What a column of a model may be declared as, besides pandera's own: nullable, or JSON text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pandera.pyspark import Field

#: In the metadata of a column that holds JSON text.
_JSON = "json"


def nullable(warn: float, error: float, description: str) -> Any:
    """A column that may be null: the *rate* of nulls in a day is bounded instead.

    Args:
        warn: a day with a larger share of nulls (0 to 1) is published with a warning.
        error: a day with a larger share of nulls is not published.
        description: what the column means.
    """
    return Field(
        nullable=True, description=description, metadata={"null_warn": warn, "null_error": error}
    )


@dataclass(frozen=True)
class Bounds:
    """The largest share of nulls (0 to 1) that is in order, and that is still published."""

    warn: float
    error: float


def json_text(description: str, *, optional: bool = False) -> Any:
    """A string column of a line that holds JSON text: what is nested in the line is kept in it.

    Args:
        description: what the column means.
        optional: whether it may be null, as often as it likes.
    """
    bounds = {"null_warn": 1.0, "null_error": 1.0} if optional else {}
    return Field(nullable=optional, description=description, metadata={**bounds, _JSON: True})


def holds_json(column: Any) -> bool:
    """Whether a pandera column was declared by `json_text`."""
    return bool((column.metadata or {}).get(_JSON))
