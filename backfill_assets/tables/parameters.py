"""What the parameters of a table's function say: its inputs, and which days of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from backfill_assets.calendar.reach import PREVIOUS_DAY, Reach
from backfill_assets.tables.arguments import (
    Argument,
    DeclarationError,
    check_arguments,
    is_bool,
    is_text,
)
from backfill_assets.tables.derived import SELF, Published, Reads, Transform
from backfill_assets.tables.lookups import Answers, Lookup
from backfill_assets.tables.references import Unpartitioned, UnpartitionedInput
from backfill_assets.tables.sources import Role, Source, SourceTable
from backfill_assets.tables.table import Table

#: What a parameter may be annotated with.
_ANNOTATIONS = (Reads, Unpartitioned, Published, Answers)


class FunctionInputs(NamedTuple):
    """The inputs of a function by parameter, each kind by itself."""

    reads: dict[str, Reads]
    unpartitioned: dict[str, Unpartitioned]
    published: dict[str, Published]
    answers: dict[str, Answers]

    @property
    def request_modules(self) -> list[str]:
        """The modules of the functions that make requests."""
        return [answers.of.__module__ for answers in self.answers.values()]


def inputs_of(function: Transform) -> FunctionInputs:
    """The inputs of a function, as its parameters are annotated."""
    try:
        hints: Mapping[str, Any] = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, ValueError, AttributeError) as error:
        raise DeclarationError(
            f"{function.__name__}: the annotation of a parameter is none: {error}"
        ) from error
    function_inputs = FunctionInputs({}, {}, {}, {})
    reads, unpartitioned, published, answers = function_inputs
    for parameter in inspect.signature(function).parameters:
        hint = hints.get(parameter)
        annotations = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        inputs = [annotation for annotation in annotations if isinstance(annotation, _ANNOTATIONS)]
        if len(inputs) != 1:
            raise DeclarationError(
                f"{function.__name__}: annotate {parameter} as Annotated[DataFrame, Reads(TABLE)]"
            )
        check_arguments(f"{function.__name__}: {parameter}", _input_arguments(inputs[0]))
        if isinstance(inputs[0], Reads):
            reads[parameter] = inputs[0]
        elif isinstance(inputs[0], Published):
            published[parameter] = inputs[0]
        elif isinstance(inputs[0], Answers):
            answers[parameter] = inputs[0]
        else:
            unpartitioned[parameter] = inputs[0]
    with_days = [read.table.name for read in reads.values()]
    others: list[UnpartitionedInput] = [
        *unpartitioned.values(),
        *(answer.lookup for answer in answers.values()),
    ]
    names = [*with_days, *(other.name for other in others)]
    if {*with_days} <= {SELF.name} or len(set(names)) < len(names):
        raise DeclarationError(
            f"{function.__name__}: it needs inputs with days besides itself, each table once: "
            f"{names}"
        )
    if SELF.name in with_days:
        _check_state(function.__name__, reads)
    _check_days(function.__name__, reads, published)
    return function_inputs


def _input_arguments(annotation: Any) -> list[Argument]:
    """What an annotation of a parameter is made of."""
    if isinstance(annotation, Unpartitioned):
        return [Argument("the name", annotation.name, is_text, "a name")]
    if isinstance(annotation, Answers):
        return [
            Argument(
                "lookup", annotation.lookup, lambda value: isinstance(value, Lookup), "a Lookup"
            ),
            Argument("of", annotation.of, callable, "a function that gives the requests"),
        ]
    tables = "a table"
    if isinstance(annotation.table, Source):
        tables = f"one of its tables, as that of {annotation.table.name} is .staged"
    return [
        Argument(
            "the table of Reads",
            annotation.table,
            lambda value: value is SELF or isinstance(value, Table),
            tables,
        ),
        Argument(
            "the reach",
            annotation.reach,
            lambda value: isinstance(value, Reach),
            "SAME_DAY, last_days(7), following_days(7), PREVIOUS_DAY or WEEK",
        ),
        Argument("as_known", getattr(annotation, "as_known", False), is_bool, "True or False"),
    ]


def _check_state(name: str, reads: Mapping[str, Reads]) -> None:
    """Refuse what a table that is made of its own day before cannot be made of."""
    for parameter, read in reads.items():
        if read.table is SELF and read.reach != PREVIOUS_DAY:
            raise DeclarationError(
                f"{name}: {parameter} has days that are being made; of itself, a table reads the "
                "day before: Reads(SELF, PREVIOUS_DAY)"
            )
        if read.table is not SELF and not read.of_the_day:
            raise DeclarationError(
                f"{name}: {parameter} reaches for other days than the day itself; a table that is "
                "made of its own day before has them in its state"
            )


def _check_days(name: str, reads: Mapping[str, Reads], published: Mapping[str, Published]) -> None:
    """Refuse what no day can be made of."""
    for parameter, read in reads.items():
        log = isinstance(read.table, SourceTable) and read.table.role is Role.LOG
        if read.as_known and (not log or read.reach.after):
            raise DeclarationError(
                f"{name}: {parameter} is as it was known on a day: of the raw log of a source, "
                "and of days that end with the day itself, as last_days(n) has them"
            )
    reaches = {read.table.name: read.reach for read in reads.values()}
    for parameter, published_input in published.items():
        if (
            published_input.table is SELF
            or reaches.setdefault(published_input.table.name, published_input.reach)
            != published_input.reach
        ):
            raise DeclarationError(
                f"{name}: {parameter} tells which days of {published_input.table.name} are published: of "
                "another table, and with the reach that it is read with"
            )
