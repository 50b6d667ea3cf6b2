"""Declaring a table by a function: what its parameters say, and what cannot be."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pandera.pyspark as pa

from backfill_assets.calendar.cadences import Cadence
from backfill_assets.calendar.reach import SAME_DAY, WEEK
from backfill_assets.tables.arguments import (
    Argument,
    DeclarationError,
    is_bool,
    is_date,
    is_text,
    is_whole,
    mapping,
    optional,
    refuse_arguments,
    sequence,
    shown,
)
from backfill_assets.tables.derived import Conserved, Derived, Reads, Transform
from backfill_assets.tables.drifts import wrong_drifts
from backfill_assets.tables.model_metadata import closest, is_model
from backfill_assets.tables.parameters import inputs_of
from backfill_assets.tables.rules import Forbidden, wrong_names
from backfill_assets.tables.skews import wrong_skews
from backfill_assets.tables.table import Lineage

#: A column is told by its table and its name.
_PAIR = 2


def table(
    model: type[pa.DataFrameModel],
    *,
    checks: Sequence[Conserved | Forbidden] = (),
    group: str = "derived",
    frozen: bool = False,
    lineage: Lineage | None = None,
    retired: date | None = None,
    depends_on: Sequence[str | Path] = (),
) -> Callable[[Transform], Derived]:
    """Declare the table that a function makes; it is named like the function.

    Each parameter is an input, annotated with the table and its reach::

        @table(CustomerSpend, checks=[conserves("orders", "amount", "spend")])
        def customer_spend_7d(
            orders: Annotated[DataFrame, Reads(STAGED, last_days(7))],
        ) -> DataFrame:
            return orders.groupBy(F.col("for_day").alias("run_date"), "customer_id").agg(
                F.sum("amount").alias("spend")
            )

    The function gets all rows that decide some days, with the column `for_day`: the day of the
    table that a row counts for. It gives the rows of these days. It reads no clock and no table.
    That of an `Unpartitioned` has all rows; that of a `Published`, which days are there; that of
    `Answers`, what a service says.

    Args:
        model: the columns. `Config.metadata` has `partition`, the name of the DATE column of the
            day; and, where there are such, `key`, `totals`, `rules` and `drift`.
        checks: what must be conserved between the inputs and a day; and which rows of a day may
            not be there beside others, see `forbids`.
        group: the asset group in the UI.
        frozen: whether a check says so if a final day was changed by no person.
        lineage: for the UI, by column of the table, the (table, column) pairs it is made of.
        retired: the business day from which on nobody feeds it, see `version_of`.
        depends_on: what decides the rows and cannot be seen from the imports of the module. The
            name of a module: its source counts for the code version, or, if it is installed, the
            version of its distribution. A `Path`, from the folder of the module: a data file.

    Raises:
        DeclarationError: a parameter has neither, or something is named that is not there.
    """
    refuse_arguments("@table", [_model_argument(model)])
    return partial(
        _declared,
        model=model,
        checks=checks,
        group=group,
        frozen=frozen,
        lineage={} if lineage is None else lineage,
        retired=retired,
        depends_on=depends_on,
    )


def version_of(
    other: Derived,
    number: int,
    *,
    model: type[pa.DataFrameModel] | None = None,
    checks: Sequence[Conserved | Forbidden] | None = None,
    lineage: Lineage | None = None,
    retired: date | None = None,
    depends_on: Sequence[str | Path] | None = None,
) -> Callable[[Transform], Derived]:
    """Declare another version of a table, made by another function; it is named like the function.

    Both are tables: each has its days, its code version and its readers, and is fed until it is
    retired. What is not given is as the other declares it::

        @version_of(features, 2)
        def features_v2(orders: Annotated[DataFrame, Reads(...)]) -> DataFrame: ...

    Args:
        other: a version of the table.
        number: of the version that is declared.
        model: the columns, if they are others.
        checks: as of `table`, if they are others.
        lineage: as of `table`, if it is another.
        retired: the business day from which on nobody feeds it.
        depends_on: as of `table`, if it is another.

    Raises:
        DeclarationError: as `table`; the number is not above that of the other version; or the
            function stands in the module of the other one, so that the code of both would be one.
    """
    refuse_arguments(
        "@version_of",
        [
            Argument("other", other, lambda value: isinstance(value, Derived), "a table"),
            Argument("number", number, is_whole, "a whole number"),
        ],
    )

    def declare(function: Transform) -> Derived:
        _refuse_version(function, other, number)
        return _declared(
            function,
            model=model or other.model,
            checks=[*other.conserved, *other.forbidden] if checks is None else checks,
            group=other.group,
            frozen=other.frozen,
            lineage=other.lineage if lineage is None else lineage,
            retired=retired,
            depends_on=other.depends_on if depends_on is None else depends_on,
            version=number,
            first=other.first,
        )

    return declare


def _refuse_version(function: Transform, other: Derived, number: int) -> None:
    if number <= other.version:
        raise DeclarationError(
            f"{function.__name__}: {other.name} is version {other.version}; give a new version "
            "a number above that"
        )
    if function.__module__ == other.transform.__module__:
        raise DeclarationError(
            f"{function.__name__}: it is declared in {function.__module__}, where {other.name} "
            "is. The code of a table is that of its module: a change of one version would be "
            "one of both. Declare each version in a module of its own"
        )


def _model_argument(model: object) -> Argument:
    return Argument("model", model, is_model, "a class of pandera.pyspark.DataFrameModel")


def _arguments(
    checks: object, group: object, frozen: object, lineage: object, retired: object, others: object
) -> list[Argument]:
    """What a table is given besides its model and its function."""

    def is_check(value: object) -> bool:
        return isinstance(value, Conserved | Forbidden)

    def is_group(value: object) -> bool:
        return isinstance(value, str) and re.fullmatch(r"\w+(/\w+)*", value, re.ASCII) is not None

    def is_code(value: object) -> bool:
        return is_text(value) or isinstance(value, Path)

    def is_column(value: object) -> bool:
        return sequence(is_text, 2)(value) and len(value) == _PAIR  # type: ignore[arg-type]

    return [
        Argument("checks", checks, sequence(is_check), "a list of conserves(...) and forbids(...)"),
        Argument("group", group, is_group, "letters, digits and _, as Dagster has it"),
        Argument("frozen", frozen, is_bool, "True or False"),
        Argument(
            "lineage",
            lineage,
            mapping(sequence(is_column)),
            'pairs of table and column by column, as {"hits": [("visits", "clicks")]}',
        ),
        Argument("retired", retired, optional(is_date), "a date, as date(2025, 3, 20)"),
        Argument(
            "depends_on", others, sequence(is_code), "a list of names of modules and of paths"
        ),
    ]


def _declared(
    function: Transform,
    *,
    model: type[pa.DataFrameModel],
    checks: Sequence[Conserved | Forbidden],
    group: str,
    frozen: bool,
    lineage: Lineage,
    retired: date | None,
    depends_on: Sequence[str | Path],
    **version: Any,
) -> Derived:
    """The table that a function makes."""
    name = getattr(function, "__name__", "")
    if not inspect.isfunction(function):
        raise DeclarationError(f"@table stands before {shown(function)}: it takes a function")
    if "<" in function.__qualname__ or not name.isidentifier():
        raise DeclarationError(f"{function.__qualname__}: a table needs a function in a module")
    arguments = _arguments(checks, group, frozen, lineage, retired, depends_on)
    refuse_arguments(name, [_model_argument(model), *arguments])
    found = inputs_of(function)
    made = Derived(
        name=name,
        model=model,
        modules=(function.__module__, model.__module__, *found.asking_modules),
        depends_on=tuple(_located(dependency, function) for dependency in depends_on),
        transform=function,
        **found._asdict(),
        conserved=tuple(check for check in checks if isinstance(check, Conserved)),
        forbidden=tuple(check for check in checks if isinstance(check, Forbidden)),
        group=group,
        frozen=frozen,
        lineage=lineage,
        retired=retired,
        **version,
    )
    return _checked(made)


def _located(dependency: str | Path, function: Transform) -> str | Path:
    """A module as it is; a data file from the folder of the function's module."""
    if isinstance(dependency, str):
        return dependency
    return Path(inspect.getfile(function)).resolve().parent / dependency


def _checked(made: Derived) -> Derived:
    """The same; refused if it names what is not there."""
    for check in made.conserved:
        if check.parameter not in made.reads:
            raise DeclarationError(
                f"{made.name}: there is no parameter {check.parameter}"
                f"{closest(check.parameter, made.reads)}"
            )
        if check.total not in made.totals:
            raise DeclarationError(
                f"{made.name}: {check.total} is none of the model's totals ({list(made.totals)})"
            )
        source = made.reads[check.parameter].table
        if check.column is not None and check.column not in source.columns:
            raise DeclarationError(
                f"{made.name}: {source.name} has no column {check.column}"
                f"{closest(check.column, source.columns)}"
            )
    if wrong := [*wrong_drifts(made), *wrong_skews(made), *wrong_names(made)]:
        raise DeclarationError(f"{made.name}: {'; '.join(wrong)}")
    _check_asks(made)
    _check_weeks(made)
    there = {(of.table.name, column) for of in made.reads.values() for column in of.table.columns}
    for column, made_of in made.lineage.items():
        if column not in made.columns:
            raise DeclarationError(f"{made.name}: lineage of {column}, which is no column of it")
        whole = {of.name for of in made.references}
        for name, other in {of for of in made_of if of[0] not in whole} - there:
            raise DeclarationError(f"{made.name}: {column} cannot be made of {name}.{other}")
    return made


def _check_asks(made: Derived) -> None:
    """Refuse requests that are made of nothing, and pools that a step cannot have."""
    rows = [*made.by_day, *made.whole]
    for parameter, asked in made.asks.items():
        if not asked.parameters or not {*asked.parameters} <= {*rows}:
            raise DeclarationError(
                f"{made.name}: the requests of {parameter} are made of {[*asked.parameters]}; they "
                f"must be parameters with rows: {rows}"
            )
    if len({of.lookup.pool or of.lookup.name for of in made.asks.values()}) > 1:
        raise DeclarationError(
            f"{made.name}: a step has one pool; give its lookups the same: "
            f"{[of.lookup.name for of in made.asks.values()]}"
        )


def _check_weeks(made: Derived) -> None:
    """Refuse what has no week, or more than one, in a table by week."""
    if made.cadence is Cadence.DAILY:
        return
    for parameter, of in made.by_day.items():
        weekly = of.table is made or of.table.cadence is Cadence.WEEKLY
        as_known = isinstance(of, Reads) and of.as_known
        if as_known or of.reach != (SAME_DAY if weekly else WEEK):
            raise DeclarationError(
                f"{made.name}: it is a table by week, and {parameter} does not hold the rows of a "
                "week; read tables by day with Reads(TABLE, WEEK), and tables by week with "
                "Reads(TABLE). A table by day reads tables by day"
            )
