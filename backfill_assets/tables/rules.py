"""What must hold of a table's rows: rules of a row, totals, and which rows may not be there.

A rule of a row is a SQL condition, which Delta keeps as a CHECK constraint and the audit counts.
What no single row tells is a function over a frame: it gives the rows that may not be there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyspark.sql.types as T
from pyspark.sql import DataFrame

from backfill_assets.tables.arguments import Argument, check_arguments, is_text
from backfill_assets.tables.columns import sql_conditions

if TYPE_CHECKING:
    from backfill_assets.tables.table import Table


class Rule(NamedTuple):
    """What must be true for each row of a table.

    Attributes:
        condition: in SQL, over the columns of the table. A row for which it is null breaks it, as
            Delta has it: say what holds where a column is null.
        description: what it means, in a sentence.
    """

    condition: str
    description: str


@dataclass(frozen=True)
class Forbidden:
    """A check between the rows of a day, see `forbids`.

    Attributes:
        name: of the asset check.
        find: gives the rows that may not be there.
        description: what must hold, in a sentence.
    """

    name: str
    find: Callable[[DataFrame], DataFrame]
    description: str


def forbids(name: str, find: Callable[[DataFrame], DataFrame], description: str) -> Forbidden:
    """A check: a function finds no row that may not be there.

    It is for what no row tells by itself, such as two versions that overlap. A day with such a row
    is not published; the finding has their number, and the keys of up to three. The check is an
    asset check of its own::

        @table(Customers, checks=[forbids("overlap", overlaps, "No two versions overlap.")])

    Args:
        name: of the check.
        find: a pure function of the rows that are about to be published, of all days of the run;
            it gives the offending ones, with the partition column and the columns of the key.
        description: what must hold, in a sentence.

    Raises:
        DeclarationError: the name is none, or there is no function.
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
    """The rules of a row that a model's metadata has, by name."""
    return {name: Rule(*rule) for name, rule in metadata.get("rules", {}).items()}


def wrong_totals(columns: Mapping[str, Any], totals: Sequence[str]) -> list[str]:
    """What no total can be, one sentence each.

    A sum of floating-point numbers depends on the order of the rows: the same day computed twice
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


def wrong_names(table: Table) -> list[str]:
    """What no rule and no check can be named, one sentence each."""
    bounds = {n for name, column in table.columns.items() for n in sql_conditions(name, column)}
    others = {"row_count", "nulls", "conservation", "unique_key", *table.notices}
    return [
        f"a {kind} cannot be named {name!r}: a name has letters, digits and _, and is that of one"
        for kind, names, reserved in (
            ("rule", [*table.rules], bounds),
            ("check", [check.name for check in table.forbidden], others),
        )
        for name in dict.fromkeys(names)
        if not name.isidentifier() or name in reserved or names.count(name) > 1
    ]


def no_leaks(at: str, *, carries: Sequence[str], began: str, known: str) -> dict[str, Rule]:
    """Row rules: nothing that a row carries began, or became known, after its own moment.

    They are for the model of a table that is joined by `as_of`::

        metadata: ClassVar = {
            "rules": no_leaks(
                "order_ts", carries=["segment"], began="valid_from", known="known_at"
            ),
        }

    What is carried without a word of when it began and became known is a leak as well.

    Args:
        at: the column with the moment of the row.
        carries: the columns whose values come from elsewhere; each is null where there is none.
        began: the column that says since when these values hold.
        known: the column that says since when they are known.
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
