"""What the parameters of a table's function say: its inputs, and which days of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from backfill_assets.calendar.reach import PREVIOUS_DAY, Reach
from backfill_assets.tables.arguments import (
    Argument,
    DeclarationError,
    is_bool,
    is_text,
    refuse_arguments,
)
from backfill_assets.tables.derived import SELF, Published, Reads, Transform
from backfill_assets.tables.lookups import Answers, Lookup
from backfill_assets.tables.references import Unpartitioned, WithoutDays
from backfill_assets.tables.sources import Role, Source, SourceTable
from backfill_assets.tables.table import Table

#: What a parameter may be annotated with.
_KINDS = (Reads, Unpartitioned, Published, Answers)


class FunctionInputs(NamedTuple):
    """The inputs of a function by parameter, each kind by itself."""

    reads: dict[str, Reads]
    whole: dict[str, Unpartitioned]
    there: dict[str, Published]
    asks: dict[str, Answers]

    @property
    def asking_modules(self) -> list[str]:
        """The modules of the functions that make requests."""
        return [of.of.__module__ for of in self.asks.values()]


def inputs_of(function: Transform) -> FunctionInputs:
    """The inputs of a function, as its parameters are annotated."""
    try:
        hints: Mapping[str, Any] = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, ValueError, AttributeError) as error:
        raise DeclarationError(
            f"{function.__name__}: the annotation of a parameter is none: {error}"
        ) from error
    made = FunctionInputs({}, {}, {}, {})
    found, whole, there, asks = made
    for parameter in inspect.signature(function).parameters:
        hint = hints.get(parameter)
        of = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        inputs = [one for one in of if isinstance(one, _KINDS)]
        if len(inputs) != 1:
            raise DeclarationError(
                f"{function.__name__}: annotate {parameter} as Annotated[DataFrame, Reads(TABLE)]"
            )
        refuse_arguments(f"{function.__name__}: {parameter}", _input_arguments(inputs[0]))
        if isinstance(inputs[0], Reads):
            found[parameter] = inputs[0]
        elif isinstance(inputs[0], Published):
            there[parameter] = inputs[0]
        elif isinstance(inputs[0], Answers):
            asks[parameter] = inputs[0]
        else:
            whole[parameter] = inputs[0]
    with_days = [one.table.name for one in found.values()]
    others: list[WithoutDays] = [*whole.values(), *(of.lookup for of in asks.values())]
    names = [*with_days, *(one.name for one in others)]
    if {*with_days} <= {SELF.name} or len(set(names)) < len(names):
        raise DeclarationError(
            f"{function.__name__}: it needs inputs with days besides itself, each table once: "
            f"{names}"
        )
    if SELF.name in with_days:
        _check_state(function.__name__, found)
    _check_days(function.__name__, found, there)
    return made


def _input_arguments(given: Any) -> list[Argument]:
    """What an annotation of a parameter is made of."""
    if isinstance(given, Unpartitioned):
        return [Argument("the name", given.name, is_text, "a name")]
    if isinstance(given, Answers):
        return [
            Argument("lookup", given.lookup, lambda value: isinstance(value, Lookup), "a Lookup"),
            Argument("of", given.of, callable, "a function that gives the requests"),
        ]
    tables = "a table"
    if isinstance(given.table, Source):
        tables = f"one of its tables, as that of {given.table.name} is .staged"
    return [
        Argument(
            "the table of Reads",
            given.table,
            lambda value: value is SELF or isinstance(value, Table),
            tables,
        ),
        Argument(
            "the reach",
            given.reach,
            lambda value: isinstance(value, Reach),
            "SAME_DAY, last_days(7), following_days(7), PREVIOUS_DAY or WEEK",
        ),
        Argument("as_known", getattr(given, "as_known", False), is_bool, "True or False"),
    ]


def _check_state(name: str, reads: Mapping[str, Reads]) -> None:
    """Refuse what a table that is made of its own day before cannot be made of."""
    for parameter, one in reads.items():
        if one.table is SELF and one.reach != PREVIOUS_DAY:
            raise DeclarationError(
                f"{name}: {parameter} has days that are being made; of itself, a table reads the "
                "day before: Reads(SELF, PREVIOUS_DAY)"
            )
        if one.table is not SELF and not one.of_the_day:
            raise DeclarationError(
                f"{name}: {parameter} reaches for other days than the day itself; a table that is "
                "made of its own day before has them in its state"
            )


def _check_days(name: str, reads: Mapping[str, Reads], there: Mapping[str, Published]) -> None:
    """Refuse what no day can be made of."""
    for parameter, one in reads.items():
        log = isinstance(one.table, SourceTable) and one.table.role is Role.LOG
        if one.as_known and (not log or one.reach.after):
            raise DeclarationError(
                f"{name}: {parameter} is as it was known on a day: of the raw log of a source, "
                "and of days that end with the day itself, as last_days(n) has them"
            )
    reaches = {one.table.name: one.reach for one in reads.values()}
    for parameter, told in there.items():
        if told.table is SELF or reaches.setdefault(told.table.name, told.reach) != told.reach:
            raise DeclarationError(
                f"{name}: {parameter} tells which days of {told.table.name} are published: of "
                "another table, and with the reach that it is read with"
            )
