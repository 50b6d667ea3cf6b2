"""Tables that a function makes: its parameters are the inputs, its rows the days."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame

from backfill_assets.calendar.grain import Grain
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.reach import SAME_DAY, WEEK, Reach
from backfill_assets.tables.arguments import (
    Argument,
    check_arguments,
    is_text,
    none_or,
)
from backfill_assets.tables.table import (
    Dependency,
    Equation,
    Figure,
    Inputs,
    Lineage,
    Table,
    decided_by,
)
from backfill_assets.tables.unpartitioned import Answers, Unpartitioned, UnpartitionedInput

#: The column that says for which day of the table a row of an input counts. A row of an input that
#: decides seven days is there seven times.
FOR_DAY = "for_day"

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
        reach: which days of it decide a day: `SAME_DAY`, `last_days(n)`, `following_days(n)`,
            `PREVIOUS_DAY`, or `WEEK`, which makes the table one by week.
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

    Where several checks name a total, it is the sum of what they say. A day that does not pass is
    not published.

    Args:
        parameter: the name of the input's parameter.
        column: the column to sum; none to count rows.
        total: one of the model's `totals`.

    Raises:
        DeclarationError: one of them is no name.
    """
    name = "the name of one"
    check_arguments(
        "conserves",
        [
            Argument("the parameter", parameter, is_text, name),
            Argument("the column", column, none_or(is_text), f"{name}, or None to count rows"),
            Argument("the total", total, is_text, "the name of one of the model's totals"),
        ],
    )
    return Conserved(parameter, column, total)


def carries_state(table: Table) -> bool:
    """Whether a day of a table is made of its own day before."""
    return isinstance(table, Derived) and any(read.table is table for read in table.reads.values())


def versions_in(tables: Mapping[str, Table], first: str) -> list[Derived]:
    """The versions of one table among some, in ascending order.

    Args:
        tables: by name.
        first: name of the first version.
    """
    versions = [
        table for table in tables.values() if isinstance(table, Derived) and table.first == first
    ]
    return sorted(versions, key=lambda table: table.version)


@dataclass(frozen=True, kw_only=True)
class Derived(Table):
    """A table that a function makes of other tables. It can be called as that function.

    Attributes:
        transform: the function.
        reads: its inputs by day, by parameter.
        unpartitioned: its inputs without days, by parameter.
        published: the inputs of which it is told which days are published, by parameter.
        answers: what it asks of services, by parameter.
        conserved: the totals that must follow from the inputs.
        group: the asset group.
        version: which version it is of a declaration; see `declaring.version_of`.
        first: name of the first version; its own if there is no other.
        lineage: by column, the columns of the inputs that it is made of, where that is said.
        decided_by: the settings that decide its inputs, and so its rows.
    """

    transform: Transform
    reads: Mapping[str, Reads]
    unpartitioned: Mapping[str, Unpartitioned] = field(default_factory=dict)
    published: Mapping[str, Published] = field(default_factory=dict)
    answers: Mapping[str, Answers] = field(default_factory=dict)
    conserved: Sequence[Conserved] = ()
    group: str = "derived"
    version: int = 1
    first: str = ""
    lineage: Lineage = field(default_factory=dict)
    decided_by: tuple[str, ...] = field(init=False)
    inputs: Callable[[Policy], Inputs] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "first", self.first or self.name)
        reads = {
            name: replace(read, table=self) if read.table is SELF else read
            for name, read in self.reads.items()
        }
        object.__setattr__(self, "reads", reads)
        # Dagster is told the same day: with an offset in the mapping, a launch of the newest day
        # of the input would ask for days of this table whose own input day does not exist yet. The
        # days after it follow by themselves, as all that is behind its inputs. Of a table that
        # depends on itself, Dagster must know that the days are earlier ones.
        dependencies = tuple(
            Dependency(
                read.table,
                read.reach,
                launched=None if read.table is self or read.reach == SAME_DAY else SAME_DAY,
            )
            for read in {read.table.name: read for read in self.inputs_by_day.values()}.values()
        )
        object.__setattr__(self, "inputs", lambda _: dependencies)
        others = [read.table for read in self.inputs_by_day.values() if read.table is not self]
        object.__setattr__(self, "decided_by", decided_by(others))

    @property
    def kind(self) -> str:
        """A function of its project makes it."""
        return "derived"

    @property
    def grain(self) -> Grain:
        """How far apart its partitions are: a week, if it is made of weeks."""
        others = [read for read in self.inputs_by_day.values() if read.table is not self]
        weekly = any(read.reach == WEEK or read.table.grain is Grain.WEEKLY for read in others)
        return Grain.WEEKLY if weekly else Grain.DAILY

    @property
    def inputs_by_day(self) -> Mapping[str, Reads | Published]:
        """Its inputs with days, by parameter."""
        return {**self.reads, **self.published}

    @property
    def unpartitioned_inputs(self) -> Sequence[UnpartitionedInput]:
        """Its inputs without days, and the tables of answers."""
        return [
            *self.unpartitioned.values(),
            *(answers.lookup for answers in self.answers.values()),
        ]

    @property
    def layer_equations(self) -> list[Equation]:
        """What is conserved of inputs of the same day, where their commits have the number."""
        equations = []
        # A day that carries state holds what came before, too.
        for check in () if carries_state(self) else self.conserved:
            read = self.reads[check.parameter]
            name = "rows" if check.column is None else check.column
            if read.of_the_day and name in ("rows", *read.table.totals):
                has = "has {} rows" if name == "rows" else f"has {name} {{}}"
                equations.append(
                    Equation(Figure(read.table, name, has), self.total_figure(check.total))
                )
        return equations

    def total_figure(self, total: str) -> Figure:
        """A total of a day, said as what it is: a number of rows of an input, or a sum."""
        counts = any(c.total == total and c.column is None for c in self.conserved)
        return Figure(self, total, f"has {{}} {total}" if counts else f"has {total} {{}}")

    def __call__(self, *frames: DataFrame, **named: DataFrame) -> DataFrame:
        """What the function gives, for tests: frames with the column `for_day`."""
        return self.transform(*frames, **named)
