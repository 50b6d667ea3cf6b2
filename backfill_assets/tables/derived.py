"""Tables that are declared by a function: its parameters are the inputs, its rows the days."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import pandera.pyspark as pa
from pyspark.sql import DataFrame

from backfill_assets.calendar.policy import Policy
from backfill_assets.calendar.reach import SAME_DAY, Reach
from backfill_assets.tables.lookups import Answers
from backfill_assets.tables.references import Unpartitioned, WithoutDays
from backfill_assets.tables.table import (
    DeclarationError,
    Dependency,
    Equation,
    Figure,
    Inputs,
    Lineage,
    Table,
    decided_by,
)

#: The column that says for which day of the table a row of an input counts. A row of an input that
#: decides seven days is there seven times.
FOR_DAY = "for_day"

#: The module that runs the functions and publishes their rows.
_PUBLISHES = "backfill_assets.assets.derived"

Transform = Callable[..., DataFrame]


class _Self:
    """Stands for a table in its own declaration, which has no name for it yet."""

    name = "the table itself"


#: In `Reads`, the table that is being declared. Any type will do: `Derived` takes its place.
SELF: Any = _Self()


@dataclass(frozen=True)
class Reads:
    """Which days of a table a parameter holds; the annotation of a parameter.

    Attributes:
        table: the input; `SELF` is the table that is being declared.
        reach: which days of it decide a day: `SAME_DAY`, `last_days(n)` or `PREVIOUS_DAY`.
    """

    table: Table
    reach: Reach = SAME_DAY


@dataclass(frozen=True)
class Conserved:
    """A total of a day that must equal what its input rows say.

    Attributes:
        parameter: the input.
        column: the column of it that is summed; none counts the rows.
        total: the column of the table whose sum it must be; it is one of the model's `totals`.
    """

    parameter: str
    column: str | None
    total: str


def conserves(parameter: str, column: str | None, total: str) -> Conserved:
    """A check: the day's sum of `total` is the sum of an input's `column`, or its row count.

    A day that does not pass is not published.

    Args:
        parameter: the name of the input's parameter.
        column: the column to sum; none to count rows.
        total: one of the model's `totals`.
    """
    return Conserved(parameter, column, total)


@dataclass(frozen=True, kw_only=True)
class Derived(Table):
    """A table that a function makes of other tables. It can be called as that function.

    Attributes:
        transform: the function.
        reads: its inputs by day, by parameter.
        whole: its inputs without days, by parameter.
        asks: what it asks of services, by parameter.
        conserved: the totals that must follow from the inputs.
        group: the asset group.
        lineage: by column, the columns of the inputs that it is made of, where that is said.
        decided_by: the settings that decide its inputs, and so its rows.
    """

    transform: Transform
    reads: Mapping[str, Reads]
    whole: Mapping[str, Unpartitioned] = field(default_factory=dict)
    asks: Mapping[str, Answers] = field(default_factory=dict)
    conserved: Sequence[Conserved] = ()
    group: str = "derived"
    lineage: Lineage = field(default_factory=dict)
    decided_by: tuple[str, ...] = field(init=False)
    inputs: Callable[[Policy], Inputs] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        reads = {
            name: replace(of, table=self) if of.table is SELF else of
            for name, of in self.reads.items()
        }
        object.__setattr__(self, "reads", reads)
        # Dagster is told the same day: with an offset in the mapping, a launch of the newest day
        # of the input would ask for days of this table whose own input day does not exist yet. The
        # days after it follow by themselves, as all that is behind its inputs. Of a table that
        # depends on itself, Dagster must know that the days are earlier ones.
        dependencies = tuple(
            Dependency(
                of.table,
                of.reach,
                launched=None if of.table is self or of.reach == SAME_DAY else SAME_DAY,
            )
            for of in reads.values()
        )
        object.__setattr__(self, "inputs", lambda _: dependencies)
        others = [of.table for of in reads.values() if of.table is not self]
        object.__setattr__(self, "decided_by", decided_by(others))

    @property
    def references(self) -> Sequence[WithoutDays]:
        """Its inputs without days, and the tables of answers."""
        return [*self.whole.values(), *(of.lookup for of in self.asks.values())]

    @property
    def equations(self) -> list[Equation]:
        """What is conserved of inputs of the same day, where their commits have the number."""
        found = []
        for check in self.conserved:
            of = self.reads[check.parameter]
            name = "rows" if check.column is None else check.column
            if of.reach == SAME_DAY and name in ("rows", *of.table.totals):
                has = "has {} rows" if name == "rows" else f"has {name} {{}}"
                found.append(Equation(Figure(of.table, name, has), self.figure(check.total)))
        return found

    def figure(self, total: str) -> Figure:
        """A total of a day, said as what it is: a number of rows of an input, or a sum."""
        counts = any(c.total == total and c.column is None for c in self.conserved)
        return Figure(self, total, f"has {{}} {total}" if counts else f"has {total} {{}}")

    def __call__(self, *frames: DataFrame, **named: DataFrame) -> DataFrame:
        """What the function gives, for tests: frames with the column `for_day`."""
        return self.transform(*frames, **named)


def table(
    model: type[pa.DataFrameModel],
    *,
    checks: Sequence[Conserved] = (),
    group: str = "derived",
    frozen: bool = False,
    lineage: Lineage | None = None,
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
    A parameter that is annotated with an `Unpartitioned` holds all rows of a table without days;
    one with `Answers` holds what a service answers.

    Args:
        model: the columns. `Config.metadata` has `partition`, the name of the DATE column of the
            day; and, where there are such, `key` and `totals`.
        checks: what must be conserved between the inputs and a day.
        group: the asset group in the UI.
        frozen: whether a check says so if a final day was changed by no person.
        lineage: for the UI, by column of the table, the (table, column) pairs it is made of.

    Raises:
        DeclarationError: a parameter has neither, or something is named that is not there.
    """

    def declare(function: Transform) -> Derived:
        name = function.__name__
        if "<" in function.__qualname__ or not name.isidentifier():
            raise DeclarationError(f"{function.__qualname__}: a table needs a function in a module")
        found = _inputs(function)
        made = Derived(
            name=name,
            model=model,
            made_in=(_PUBLISHES, function.__module__, *found.asking_modules),
            transform=function,
            **found._asdict(),
            conserved=tuple(checks),
            group=group,
            frozen=frozen,
            lineage=lineage or {},
        )
        _check(made)
        return made

    return declare


def _check(made: Derived) -> None:
    """Refuse a declaration that names what is not there."""
    for check in made.conserved:
        if check.parameter not in made.reads:
            raise DeclarationError(f"{made.name}: there is no parameter {check.parameter}")
        if check.total not in made.totals:
            raise DeclarationError(
                f"{made.name}: {check.total} is none of the model's totals ({list(made.totals)})"
            )
        source = made.reads[check.parameter].table
        if check.column is not None and check.column not in source.columns:
            raise DeclarationError(f"{made.name}: {source.name} has no column {check.column}")
    _check_asks(made)
    there = {(of.table.name, column) for of in made.reads.values() for column in of.table.columns}
    for column, made_of in made.lineage.items():
        if column not in made.columns:
            raise DeclarationError(f"{made.name}: lineage of {column}, which is no column of it")
        whole = {of.name for of in made.references}
        for name, other in {of for of in made_of if of[0] not in whole} - there:
            raise DeclarationError(f"{made.name}: {column} cannot be made of {name}.{other}")


def _check_asks(made: Derived) -> None:
    """Refuse requests that are made of nothing, and pools that a step cannot have."""
    for parameter, asked in made.asks.items():
        if not asked.parameters or not {*asked.parameters} <= {*made.reads, *made.whole}:
            raise DeclarationError(
                f"{made.name}: the requests of {parameter} are made of {[*asked.parameters]}; they "
                f"must be parameters with rows: {[*made.reads, *made.whole]}"
            )
    if len({of.lookup.pool or of.lookup.name for of in made.asks.values()}) > 1:
        raise DeclarationError(
            f"{made.name}: a step has one pool; give its lookups the same: "
            f"{[of.lookup.name for of in made.asks.values()]}"
        )


class _Inputs(NamedTuple):
    """The inputs of a function by parameter, each kind by itself."""

    reads: dict[str, Reads]
    whole: dict[str, Unpartitioned]
    asks: dict[str, Answers]

    @property
    def asking_modules(self) -> list[str]:
        """The modules of the functions that make requests."""
        return [of.of.__module__ for of in self.asks.values()]


def _inputs(function: Transform) -> _Inputs:
    """The inputs of a function, as its parameters are annotated."""
    hints: Mapping[str, Any] = get_type_hints(function, include_extras=True)
    made = _Inputs({}, {}, {})
    found, whole, asks = made
    for parameter in inspect.signature(function).parameters:
        hint = hints.get(parameter)
        of = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        inputs = [one for one in of if isinstance(one, Reads | Unpartitioned | Answers)]
        if len(inputs) != 1:
            raise DeclarationError(
                f"{function.__name__}: annotate {parameter} as Annotated[DataFrame, Reads(TABLE)]"
            )
        if isinstance(inputs[0], Reads):
            found[parameter] = inputs[0]
        elif isinstance(inputs[0], Unpartitioned):
            whole[parameter] = inputs[0]
        else:
            asks[parameter] = inputs[0]
    with_days = [one.table.name for one in found.values()]
    others: list[WithoutDays] = [*whole.values(), *(of.lookup for of in asks.values())]
    names = [*with_days, *(one.name for one in others)]
    if {*with_days} <= {SELF.name} or len(set(names)) < len(names):
        raise DeclarationError(
            f"{function.__name__}: it needs inputs with days besides itself, each table once: "
            f"{names}"
        )
    for parameter, one in found.items():
        if one.table is SELF and not one.reach.of_the_past:
            raise DeclarationError(
                f"{function.__name__}: {parameter} has days that are being made; of itself, a "
                "table reads earlier days: Reads(SELF, PREVIOUS_DAY)"
            )
    return made
