"""Tables that a function computes, and the annotations that declare its parameters as inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame

from backfill_assets.calendar.grain import Grain
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.reach import SAME_DAY, WEEK, Reach
from backfill_assets.tables import arguments
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

#: The column with the day of the table for which a row of an input counts. A row that decides seven
#: days occurs seven times.
FOR_DAY = "for_day"

Transform = Callable[..., DataFrame]


class _Self:
    """Stands for a table in its own declaration, where it has no name yet."""

    name = "the table itself"


#: In `Reads`, the table that is being declared; `Derived` replaces it by itself.
SELF: Any = _Self()


@dataclass(frozen=True)
class Reads:
    """The days of a table that a parameter holds; the annotation of a parameter.

    Attributes:
        table: the input; `SELF` is the table that is being declared.
        reach: the input days that decide a day: `SAME_DAY`, `last_days(n)`, `following_days(n)`,
            `PREVIOUS_DAY`, or `WEEK`, which makes the table a weekly one.
        as_known: only for the raw log of a source: the parameter holds the columns of its staging,
            for the event days of the reach, with each key in the greatest version that was logged
            by `for_day`. So no row became known after that day, and the rows never change.
    """

    table: Table
    reach: Reach = SAME_DAY
    as_known: bool = False

    @property
    def of_the_day(self) -> bool:
        """Whether the parameter holds the rows of the same day, unchanged."""
        return self.reach == SAME_DAY and not self.as_known


@dataclass(frozen=True)
class Published:
    """Which days of a table are published; the annotation of a parameter.

    The parameter has a row for each published day of the reach, empty days included: `for_day`, the
    day of the table to compute, and `day`. So a function can distinguish *nothing came* from
    *not known yet*, without a clock.

    Attributes:
        table: the table. If another parameter reads it, both have the same reach.
        reach: the days of the table to look at.
    """

    table: Table
    reach: Reach = SAME_DAY


@dataclass(frozen=True)
class Conserved:
    """A total of a day that must equal a sum, or the row count, of its input; see `conserves`."""

    parameter: str
    column: str | None
    total: str


def conserves(parameter: str, column: str | None, total: str) -> Conserved:
    """A check: the day's sum of `total` is the sum of an input's `column`, or its row count.

    If several checks name the same total, it must be the sum of their values. A day that fails is
    not published.

    Args:
        parameter: the name of the input's parameter.
        column: the column to sum; None to count rows.
        total: one of the model's `totals`.

    Raises:
        DeclarationError: an argument is not a name.
    """
    name = "the name of one"
    arguments.check_arguments(
        "conserves",
        [
            arguments.Argument("the parameter", parameter, arguments.is_text, name),
            arguments.Argument(
                "the column",
                column,
                arguments.none_or(arguments.is_text),
                f"{name}, or None to count rows",
            ),
            arguments.Argument(
                "the total", total, arguments.is_text, "the name of one of the model's totals"
            ),
        ],
    )
    return Conserved(parameter, column, total)


def carries_state(table: Table) -> bool:
    """Whether a day of a table is built from the previous day of the same table."""
    return isinstance(table, Derived) and any(read.table is table for read in table.reads.values())


def versions_in(tables: Mapping[str, Table], first: str) -> list[Derived]:
    """The versions of the table whose first version has this name, in ascending order."""
    versions = [
        table for table in tables.values() if isinstance(table, Derived) and table.first == first
    ]
    return sorted(versions, key=lambda table: table.version)


@dataclass(frozen=True, kw_only=True)
class Derived(Table):
    """A table that a function computes from other tables. It can be called like that function.

    Attributes:
        transform: the function.
        reads: its inputs with days, by parameter.
        unpartitioned: its inputs without days, by parameter.
        published: the inputs whose published days it gets, by parameter.
        answers: its requests to lookups, by parameter.
        conserved: the totals that must equal those of the inputs.
        group: the asset group.
        version: its version number, see `table_function.version_of`.
        first: name of the first version; its own if there is no other.
        lineage: by column, the input columns that it is built from, if declared.
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
        # Dagster gets the same-day mapping: with an offset, a launch of the newest day of the
        # input would request days of this table whose own input day does not exist yet. The later
        # days are built when they are found stale, as all days behind their inputs. For a table
        # that depends on itself, Dagster must know that the days are earlier ones.
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
        """A function of its project computes it."""
        return "derived"

    @property
    def grain(self) -> Grain:
        """Weekly if one of its inputs is read by week, daily otherwise."""
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
        """What a diff of tables compares: `conserves` checks as equations between two tables.

        Each side is of the same day. Only rows and totals that the commits of the input record;
        none for a table that carries state, as its day also holds rows of earlier days.
        """
        if carries_state(self):
            return []
        equations = []
        for check in self.conserved:
            read = self.reads[check.parameter]
            name = "rows" if check.column is None else check.column
            if read.of_the_day and name in ("rows", *read.table.totals):
                text = "has {} rows" if name == "rows" else f"has {name} {{}}"
                equations.append(
                    Equation(Figure(read.table, name, text), self.total_figure(check.total))
                )
        return equations

    def total_figure(self, total: str) -> Figure:
        """A total of a day, worded as a number of rows or as a sum."""
        counts = any(c.total == total and c.column is None for c in self.conserved)
        return Figure(self, total, f"has {{}} {total}" if counts else f"has {total} {{}}")

    def __call__(self, *frames: DataFrame, **named: DataFrame) -> DataFrame:
        """Call the function, for tests: on frames with the column `for_day`."""
        return self.transform(*frames, **named)
