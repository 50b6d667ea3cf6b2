"""Conditions on the rows of a table: rules of a row, totals, and rows that are forbidden.

A rule of a row is a SQL condition: Delta has it as a CHECK constraint, and the audit counts the
rows that break it. A condition over several rows is a function that returns the forbidden rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyspark.sql.types as T
from pyspark.sql import DataFrame

from backfill_assets.tables.arguments import Argument, check_arguments, is_text


class Rule(NamedTuple):
    """A condition in SQL that must be true for each row of a table, and its meaning in a sentence.

    A row for which the condition is null breaks it, as in Delta: cover null columns in it.
    """

    condition: str
    description: str


@dataclass(frozen=True)
class Forbidden:
    """A check between the rows of a day, see `forbids`."""

    name: str
    find: Callable[[DataFrame], DataFrame]
    description: str


def forbids(name: str, find: Callable[[DataFrame], DataFrame], description: str) -> Forbidden:
    """A check that a function finds no forbidden row.

    Use it for conditions over several rows, such as two versions that overlap. A day with such a
    row is not published; the finding has their number, and the keys of up to three of them. Each
    is an asset check of its own::

        @table(Customers, checks=[forbids("overlap", overlaps, "No two versions overlap.")])

    Args:
        name: of the check.
        find: a pure function of the rows that are about to be published, of all days of the run;
            it returns the forbidden rows, with the partition column and the columns of the key.
        description: what must hold, in one sentence.

    Raises:
        DeclarationError: the name is empty, or `find` is not a function.
    """
    check_arguments(
        "forbids",
        [
            Argument("the name", name, is_text, "a name"),
            Argument("find", find, callable, "a function of a DataFrame"),
            Argument("the description", description, is_text, "a sentence"),
        ],
    )
    return Forbidden(name, find, description)


def rules_in(metadata: Mapping[str, Any]) -> dict[str, Rule]:
    """The row rules in a model's metadata, by name."""
    return {name: Rule(*rule) for name, rule in metadata.get("rules", {}).items()}


def wrong_totals(columns: Mapping[str, Any], totals: Sequence[str]) -> list[str]:
    """Why columns cannot be totals, one sentence each.

    The sum of floating-point numbers depends on the order of the rows: the same day computed twice
    would have two totals.
    """
    kinds = {name: column.dtype.type for name, column in columns.items()}
    return [
        f"{name} is one of the totals and no column"
        if name not in kinds
        else f"{name} is one of the totals and has the type {kinds[name].simpleString()}, whose "
        "sum depends on the order of the rows: make it a DECIMAL, such as decimal(18,2), or a "
        "whole number"
        for name in totals
        if not isinstance(kinds.get(name), T.DecimalType | T.IntegralType)
    ]


def no_leaks(at: str, *, carries: Sequence[str], began: str, known: str) -> dict[str, Rule]:
    """Row rules: no value that a row carries began, or became known, after the row's moment.

    They are for the model of a table that is joined by `as_of`::

        metadata: ClassVar = {
            "rules": no_leaks(
                "order_ts", carries=["segment"], began="valid_from", known="known_at"
            ),
        }

    A carried value without `began` and `known` is a leak as well.

    Args:
        at: the column with the moment of the row.
        carries: the columns whose values come from elsewhere; null if there is no value.
        began: the column with the time since which these values hold.
        known: the column with the time since which they are known.
    """
    both_set = f"({began} IS NOT NULL AND {known} IS NOT NULL)"
    nothing = " AND ".join(f"{name} IS NULL" for name in carries)
    return {
        f"{began}_by_{at}": Rule(
            f"{began} IS NULL OR {began} <= {at}",
            f"What the row carries began no later than {at}.",
        ),
        f"{known}_by_{at}": Rule(
            f"{known} IS NULL OR {known} <= {at}",
            f"What the row carries was known no later than {at}.",
        ),
        f"{known}_told": Rule(
            f"{both_set} OR ({nothing})",
            f"What the row carries comes with {began} and {known}.",
        ),
    }
