"""What a column of a model may be declared as, besides pandera's own: nullable, or JSON text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pandera.pyspark import Field

from backfill_assets.tables.arguments import Argument, check_arguments, is_share

#: In the metadata of a column that holds JSON text.
_JSON = "json"


def nullable(warn: float, error: float, description: str) -> Any:
    """A column that may be null: the *rate* of nulls in a day is bounded instead.

    Args:
        warn: a day with a larger share of nulls (0 to 1) is published with a warning.
        error: a day with a larger share of nulls is not published.
        description: what the column means.

    Raises:
        DeclarationError: a share is none, or that of the warning is the larger one.
    """
    check_arguments("nullable", bounds_arguments(warn, error, description))
    return Field(
        nullable=True, description=description, metadata={"null_warn": warn, "null_error": error}
    )


def bounds_arguments(warn: Any, error: Any, description: Any) -> list[Argument]:
    """What every column that may be null is given."""
    return [
        Argument("warn", warn, is_share, "a share of nulls from 0 to 1"),
        Argument(
            "error",
            error,
            lambda x: is_share(x) and (not is_share(warn) or x >= warn),
            "a share of nulls from 0 to 1, no smaller than that of the warning",
        ),
        Argument("the description", description, lambda x: isinstance(x, str), "a text"),
    ]


@dataclass(frozen=True)
class NullBounds:
    """The largest share of nulls (0 to 1) that is in order, and that is still published."""

    warn: float
    error: float


def nullable_bounds(column: Any) -> NullBounds:
    """The bounds of a pandera column that may be null; any share, if it has none of its own."""
    metadata = column.metadata or {}
    return NullBounds(metadata.get("null_warn", 1.0), metadata.get("null_error", 1.0))


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
