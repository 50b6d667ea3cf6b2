"""Inputs without days: Delta tables that decide every day as a whole, kept by others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from backfill_assets.settings import normalize_location


class UnpartitionedInput(Protocol):
    """A Delta table without days that a table is made of.

    Attributes:
        grows: whether rows that are added change no day that is there: each day is made of rows
            that it asked for, and these stay as they are. Where it does not, other rows are
            another input.
    """

    grows: ClassVar[bool]

    @property
    def name(self) -> str:
        """What it is called in the UI, in reasons and in messages."""

    def place(self, warehouse: str) -> str:
        """Where it lies, in a deployment with this warehouse."""


@dataclass(frozen=True)
class Unpartitioned:
    """A Delta table that has no days; the annotation of a parameter that holds all of its rows.

    Every day is made of the version that is there when it is computed. Whoever changes rows of it
    makes all days due: open days are built again, final ones wait for a person.

    Attributes:
        name: what it is called in the UI, in reasons and in messages.
        url: where it lies, as Spark reads it; in the warehouse under its name, if not given.

    Raises:
        ValueError: the URL is of a store other than S3, or has a password.
    """

    name: str
    url: str = ""
    grows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", normalize_location(self.url))

    def place(self, warehouse: str) -> str:
        """Where it lies, in a deployment with this warehouse."""
        return self.url or f"{warehouse}/{self.name}"
