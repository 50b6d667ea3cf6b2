"""Tables that are declared by a function: its parameters are the inputs, its rows the days."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pandera.pyspark as pa
from pyspark.sql import DataFrame

from backfill_assets.calendar.policy import Policy
from backfill_assets.calendar.reach import SAME_DAY, Reach
from backfill_assets.tables.drifts import wrong_drifts
from backfill_assets.tables.references import Unpartitioned
from backfill_assets.tables.rules import Forbidden, wrong_names
from backfill_assets.tables.sources import Role, SourceTable
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
        reach: which days of it decide a day: `SAME_DAY`, `last_days(n)`, `following_days(n)` or
            `PREVIOUS_DAY`.
        as_known: of the raw log of a source: the parameter holds the columns of its staging, each
            key in the greatest version that was logged by `for_day`, and the event days that the
            reach has. So nothing in it became known after that day, and it never changes.
    """

    table: Table
    reach: Reach = SAME_DAY
    as_known: bool = False

    @property
    def of_the_day(self) -> bool:
        """Whether the parameter holds the rows of the same day as they are."""
        return self.reach == SAME_DAY and not self.as_known


@dataclass(frozen=True)
class Published:
    """Which days of a table are published; the annotation of a parameter.

    The parameter holds a row for each day of the reach that is there, empty days included:
    `for_day`, the day of the table that is made, and `day`. So a function can tell *nothing came*
    from *not known yet*, without a clock.

    Attributes:
        table: the table. Where another parameter reads it, that has the same reach.
        reach: which days of it are looked at.
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
        there: the inputs of which it is told which days are published, by parameter.
        conserved: the totals that must follow from the inputs.
        group: the asset group.
        lineage: by column, the columns of the inputs that it is made of, where that is said.
        decided_by: the settings that decide its inputs, and so its rows.
    """

    transform: Transform
    reads: Mapping[str, Reads]
    whole: Mapping[str, Unpartitioned] = field(default_factory=dict)
    there: Mapping[str, Published] = field(default_factory=dict)
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
            for of in {of.table.name: of for of in self.by_day.values()}.values()
        )
        object.__setattr__(self, "inputs", lambda _: dependencies)
        others = [of.table for of in self.by_day.values() if of.table is not self]
        object.__setattr__(self, "decided_by", decided_by(others))

    @property
    def by_day(self) -> Mapping[str, Reads | Published]:
        """Its inputs with days, by parameter."""
        return {**self.reads, **self.there}

    @property
    def references(self) -> Sequence[Unpartitioned]:
        """Its inputs without days."""
        return [*self.whole.values()]

    @property
    def equations(self) -> list[Equation]:
        """What is conserved of inputs of the same day, where their commits have the number."""
        found = []
        for check in self.conserved:
            of = self.reads[check.parameter]
            name = "rows" if check.column is None else check.column
            if of.of_the_day and name in ("rows", *of.table.totals):
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
    checks: Sequence[Conserved | Forbidden] = (),
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
    one that is annotated with a `Published`, which days of a table are there.

    Args:
        model: the columns. `Config.metadata` has `partition`, the name of the DATE column of the
            day; and, where there are such, `key`, `totals`, `rules` and `drift`.
        checks: what must be conserved between the inputs and a day; and which rows of a day may
            not be there beside others, see `forbids`.
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
        reads, whole, there = _inputs(function)
        made = Derived(
            name=name,
            model=model,
            made_in=(_PUBLISHES, function.__module__),
            transform=function,
            reads=reads,
            whole=whole,
            there=there,
            conserved=tuple(check for check in checks if isinstance(check, Conserved)),
            forbidden=tuple(check for check in checks if isinstance(check, Forbidden)),
            group=group,
            frozen=frozen,
            lineage=lineage or {},
        )
        return _checked(made)

    return declare


def _checked(made: Derived) -> Derived:
    """The same; refused if it names what is not there."""
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
    wrong = [*wrong_drifts(made), *wrong_names(made)]
    if wrong:
        raise DeclarationError(f"{made.name}: {'; '.join(wrong)}")
    there = {(of.table.name, column) for of in made.reads.values() for column in of.table.columns}
    for column, made_of in made.lineage.items():
        if column not in made.columns:
            raise DeclarationError(f"{made.name}: lineage of {column}, which is no column of it")
        whole = {of.name for of in made.references}
        for name, other in {of for of in made_of if of[0] not in whole} - there:
            raise DeclarationError(f"{made.name}: {column} cannot be made of {name}.{other}")
    return made


def _inputs(
    function: Transform,
) -> tuple[dict[str, Reads], dict[str, Unpartitioned], dict[str, Published]]:
    """The inputs that have days, those that have none, and those told of, by parameter."""
    hints: Mapping[str, Any] = get_type_hints(function, include_extras=True)
    found: dict[str, Reads] = {}
    whole: dict[str, Unpartitioned] = {}
    there: dict[str, Published] = {}
    for parameter in inspect.signature(function).parameters:
        hint = hints.get(parameter)
        of = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        inputs = [one for one in of if isinstance(one, Reads | Unpartitioned | Published)]
        if len(inputs) != 1:
            raise DeclarationError(
                f"{function.__name__}: annotate {parameter} as Annotated[DataFrame, Reads(TABLE)]"
            )
        if isinstance(inputs[0], Reads):
            found[parameter] = inputs[0]
        elif isinstance(inputs[0], Published):
            there[parameter] = inputs[0]
        else:
            whole[parameter] = inputs[0]
    with_days = [one.table.name for one in found.values()]
    names = [*with_days, *(one.name for one in whole.values())]
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
    _check_days(function.__name__, found, there)
    return found, whole, there


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
