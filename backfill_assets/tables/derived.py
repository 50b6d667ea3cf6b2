"""Tables that a function computes, and what declares its parameters as inputs.

A table built from staging has only lines that came in time. `current_table` applies the same
function to the greatest version of every key known now, as if the window had no end.
`corrections_table` is the difference between the two, whatever its reason.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import DataFrame

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import Dimension, Grain
from backfill_assets.calendar.reach import SAME_DAY, GrainReach, Reach, RecordedReach
from backfill_assets.tables import arguments, source_models
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.sources import Role, Source, SourceTable
from backfill_assets.tables.table import (
    ENTRY_PREFIX,
    Dependency,
    Equation,
    ExternalTable,
    Figure,
    Inputs,
    Lineage,
    Table,
    decided_by,
    table_name,
)
from backfill_assets.tables.table_options import OPTION_NAMES
from backfill_assets.tables.unpartitioned import LookupAnswers, Unpartitioned, UnpartitionedInput

#: The column with the day of the table for which a row of an input counts. A row that decides seven
#: days occurs seven times.
FOR_DAY = "for_day"
#: Of a parameter that holds each row once: the first and the last of the days to compute for which
#: a row counts.
FIRST_FOR_DAY, LAST_FOR_DAY = "first_for_day", "last_for_day"

Transform = Callable[..., DataFrame]


class _Self:
    """Stands for a table in its own declaration, where it has no name yet."""

    name = "the table itself"


#: In `Reads`, all parts of the input.
ALL: Sequence[str] = ("*",)
#: In `Reads`, the table that is being declared; `Derived` replaces it by itself.
SELF: Any = _Self()


@dataclass(frozen=True)
class Reads:
    """The days of a table that a parameter holds; the annotation of a parameter.

    Attributes:
        table: the input; `SELF` is the table that is being declared.
        reach: the input days that decide a day: `SAME_DAY`, `last_days(n)`, `following_days(n)`,
            `PREVIOUS_DAY`; or `WEEK` or `MONTH`, which make the table one by week or by month.
        as_known: only for the raw log of a source: the parameter holds the columns of its staging,
            for the event days of the reach, with each key in the greatest version that was logged
            by `for_day`. So no row became known after that day, and the rows never change.
        each_row_once: the parameter holds a row of the input once, with `first_for_day` and
            `last_for_day` in place of `for_day`, and not once for each day; see `combine_days`. Of
            what the function returns, the days to compute are taken.
        parts: of an input with a second dimension, the parts whose rows a day of a table without it
            holds together: `ALL`, or some of its values. The day requires all of them.
    """

    table: Table
    reach: Reach = SAME_DAY
    as_known: bool = False
    each_row_once: bool = False
    parts: Sequence[str] | None = None

    @property
    def of_the_day(self) -> bool:
        """Whether the parameter holds the rows of the same day, unchanged."""
        return self.reach == SAME_DAY and not self.as_known


@dataclass(frozen=True)
class PublishedDays:
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


#: Stands for the number of a day's rows among its totals; no column can have this name.
ROWS_OF_DAY = "number of rows"


@dataclass(frozen=True)
class Conserved:
    """A day's total or row count that must equal that of its input; see `conserves_total`."""

    parameter: str
    column: str | None
    total: str | None

    @property
    def figure(self) -> str:
        """The name of what must be equal: the total, or `ROWS_OF_DAY`."""
        return self.total or ROWS_OF_DAY


def conserves_total(
    parameter: str, column: str | None = None, total: str | None = None
) -> Conserved:
    """A check: the day's sum of `total`, or its row count, is that of an input.

    `conserves_total("lines")` is for a table whose rows are those of the input: a day has as many.
    If several checks name the same total, or none, the day must have the sum of their values. A
    day that fails is not published.

    Args:
        parameter: the name of the input's parameter.
        column: the column of the input to sum; None to count its rows. Of a field of a source that
            `json_column` declares, the items of its arrays are counted: see `explode_json`.
        total: one of the table's `totals`; None to count the rows of the day.

    Raises:
        DeclarationError: an argument is not a name.
    """
    name = "the name of one"
    arguments.check_arguments(
        "conserves_total",
        [
            arguments.Argument("the parameter", parameter, arguments.is_text, name),
            arguments.Argument(
                "the column",
                column,
                arguments.none_or(arguments.is_text),
                f"{name}, or None to count rows",
            ),
            arguments.Argument(
                "the total",
                total,
                arguments.none_or(arguments.is_text),
                "the name of one of the totals, or None to count the rows of the day",
            ),
        ],
    )
    return Conserved(parameter, column, total)


def carries_state(table: Table) -> bool:
    """Whether a day of a table is built from the previous day of the same table."""
    return isinstance(table, Derived) and any(read.table is table for read in table.reads.values())


def versions_in(tables: Mapping[str, Table], first: str) -> "list[Derived]":
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
        part_column: the column of its second dimension; empty if it has days alone.
        decided_by: the settings that decide its inputs, and so its rows.
    """

    transform: Transform
    reads: Mapping[str, Reads]
    unpartitioned: Mapping[str, Unpartitioned] = field(default_factory=dict)
    published: Mapping[str, PublishedDays] = field(default_factory=dict)
    answers: Mapping[str, LookupAnswers] = field(default_factory=dict)
    conserved: Sequence[Conserved] = ()
    group: str = "derived"
    version: int = 1
    first: str = ""
    lineage: Lineage = field(default_factory=dict)
    part_column: str = ""
    decided_by: tuple[str, ...] = field(init=False)
    inputs: Callable[[Policy], Inputs] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "first", self.first or self.name)
        object.__setattr__(self, "dimension", self._find_dimension())
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

    def _find_dimension(self) -> Dimension | None:
        """The dimension of its inputs that its `part_column` names.

        Raises:
            DeclarationError: it has none of them, or an input has another one.
        """
        dimensions = {
            parameter: read.table.dimension
            for parameter, read in self.inputs_by_day.items()
            if read.table is not SELF and read.table.dimension
        }
        own = [d for d in dimensions.values() if d.name == self.part_column]
        if self.part_column and not own:
            raise DeclarationError(
                f"{self.name}: no input has the dimension {self.part_column}: a table has one of "
                "its inputs, or none"
            )
        for parameter, read in self.inputs_by_day.items():
            dimension = dimensions.get(parameter)
            parts = (read.parts or ()) if isinstance(read, Reads) else ()
            known = () if dimension is None else ALL if parts == ALL else dimension.values
            if unknown := {*parts}.difference(known):
                raise DeclarationError(
                    f"{self.name}: {parameter} reads the parts {sorted(unknown)} of "
                    f"{read.table.name}, which has {[*known] or 'days alone'}"
                )
            if dimension is None:
                continue
            if own and (parts or dimension != own[0]):
                raise DeclarationError(
                    f"{self.name}: {parameter} has days of another dimension, or parts= although "
                    f"each part of {self.name} reads its own: a table has one second dimension"
                )
            if not own and not parts and not self.part:
                raise DeclarationError(
                    f"{self.name}: {read.table.name} has days by {dimension.name}: add "
                    f'partition=("{self.partition}", "{dimension.name}") for a table by '
                    f"{dimension.name} as well, or Reads({read.table.name}, parts=ALL) for the "
                    "rows of all of them"
                )
        column = self.columns.get(self.part_column)
        is_text = column is not None and isinstance(column.dtype.type, T.StringType)
        if own and (column is None or column.nullable or not is_text):
            raise DeclarationError(
                f"{self.name}: its model needs {self.part_column} as a T.StringType that is not "
                "null: the part of a row"
            )
        return own[0] if own else None

    @property
    def kind(self) -> str:
        """A function of its project computes it."""
        return "derived"

    @property
    def grain(self) -> Grain:
        """That by which its inputs are read; daily if they are read by day."""
        others = [read for read in self.inputs_by_day.values() if read.table is not self]
        grains = (
            read.reach.grain if isinstance(read.reach, GrainReach) else read.table.grain
            for read in others
        )
        return next((grain for grain in grains if grain is not Grain.DAILY), Grain.DAILY)

    def expects_rows(self, day: date) -> bool:
        """Whether each input of which it reads the day itself usually has rows."""
        inputs = [read for read in self.inputs_by_day.values() if read.reach == SAME_DAY]
        return all(read.table.expects_rows(day) for read in inputs)

    @property
    def inputs_by_day(self) -> Mapping[str, Reads | PublishedDays]:
        """Its inputs with days, by parameter."""
        return {**self.reads, **self.published}

    @property
    def functions(self) -> Sequence[Callable[..., DataFrame]]:
        """The functions of the project that decide its rows, and whether they are published."""
        requests = [answers.of for answers in self.answers.values()]
        return [self.transform, *requests, *(check.find for check in self.forbidden)]

    @property
    def unpartitioned_inputs(self) -> Sequence[UnpartitionedInput]:
        """Its inputs without days, and the tables of answers."""
        return [
            *self.unpartitioned.values(),
            *(answers.lookup for answers in self.answers.values()),
        ]

    @property
    def layer_equations(self) -> list[Equation]:
        """What a diff of tables compares: `conserves_total` checks as equations between two tables.

        Each side is of the same day. Only rows and totals that the commits of the input record;
        none for a table that carries state, as its day also holds rows of earlier days.
        """
        if carries_state(self):
            return []
        equations = []
        for check in self.conserved:
            read = self.reads.get(check.parameter)
            if read is None:  # of several parts
                continue
            name = "rows" if check.column is None else check.column
            recorded = not isinstance(read.table, ExternalTable)
            if recorded and read.of_the_day and name in ("rows", *read.table.totals):
                text = "has {} rows" if name == "rows" else f"has {name} {{}}"
                own = self.total_figure(check.total) if check.total else self.rows_figure
                equations.append(Equation(Figure(read.table, name, text), own))
        return equations

    @property
    def zero_figures(self) -> Mapping[str, int | Decimal]:
        """Nothing, in the type of each total, and of the number of rows."""
        return {ROWS_OF_DAY: 0, **self.zero_totals}

    def total_figure(self, total: str) -> Figure:
        """A total of a day, worded as a number of rows or as a sum."""
        counts = any(c.total == total and c.column is None for c in self.conserved)
        return Figure(self, total, f"has {{}} {total}" if counts else f"has {total} {{}}")

    def __call__(self, *frames: DataFrame, **named: DataFrame) -> DataFrame:
        """Call the function, for tests: on frames with the days that a row counts for."""
        return self.transform(*frames, **named)


@dataclass(frozen=True, kw_only=True)
class Current(Table):
    """A table computed like another one, `base`, but from everything that is known now.

    The only input of `base` with days is the staging of `source`.
    """

    base: Derived
    source: Source = field(repr=False)

    @property
    def kind(self) -> str:
        """One kind for all functions."""
        return "current"

    def expects_rows(self, day: date) -> bool:
        """As the other table."""
        return self.base.expects_rows(day)

    @property
    def unpartitioned_inputs(self) -> Sequence[UnpartitionedInput]:
        """Those of the other table."""
        return self.base.unpartitioned_inputs

    @property
    def lineage(self) -> Lineage:
        """As that of the other table, with the raw log in place of staging."""
        log, days = self.source.raw, {self.source.staged.partition: self.source.event_time}
        return {
            column: [(log.name, days.get(name, name)) for _, name in origins]
            for column, origins in self.base.lineage.items()
        }


@dataclass(frozen=True, kw_only=True)
class Corrections(Table):
    """A table of the amounts to add to facts to get everything that is known now."""

    facts: Derived
    current: Current

    @property
    def kind(self) -> str:
        """One kind for all functions."""
        return "corrections"

    @property
    def lineage(self) -> Lineage:
        """Each column of both tables."""
        return {name: [(self.current.name, name), (self.facts.name, name)] for name in self.columns}

    @property
    def layer_equations(self) -> list[Equation]:
        """The totals of both tables equal those that this table was built from."""

        def recorded_figure(name: str) -> Figure:
            return Figure(self, ENTRY_PREFIX + name, "was made of {}")

        figures = {total: self.facts.total_figure(total) for total in self.totals}
        return [
            *(Equation(figure, recorded_figure(total)) for total, figure in figures.items()),
            *(
                Equation(figure._replace(table=self.current), recorded_figure(f"current {total}"))
                for total, figure in figures.items()
            ),
        ]


def current_table(of: Derived, *, name: str | None = None, doc: str | None = None) -> Current:
    """Declare the table that another would be with everything that is known now, however late.

    Args:
        of: the table: its only input with days is the staging of a source, of the same day.
        name: of the new table; that of the other and `_current`, if not given.
        doc: the meaning of a row.

    Raises:
        DeclarationError: the table has another input, or reads other days of it.
    """
    name = name or f"{of.name}_current"
    if of.answers:
        raise DeclarationError(f"{name}: {of.name} asks a service, which is not possible here yet")
    source = _staged_source(name, [*of.reads.values()])
    row = doc or f"{_row_description(of)}, with everything that is known now."

    def log_inputs(policy: Policy) -> Inputs:
        """Return the raw log as the only partitioned input; called as `Table.inputs`."""
        # With its reach as a mapping, a launch of one raw day in the UI would build every earlier
        # day. The raw log's commits record which of them need it.
        return (
            Dependency(
                source.raw, RecordedReach(), "current_days", launched=source.under(policy).reach
            ),
        )

    return Current(
        name=name,
        model=type(of.model.__name__, (of.model,), {"__doc__": row}),
        modules=(*of.modules, source.lines.__module__, source.declared_in),
        depends_on=of.depends_on,
        decided_by=("window_days", "late_lines"),
        inputs=log_inputs,
        forbidden=of.forbidden,
        base=of,
        source=source,
        **{name: getattr(of, name) for name in (*OPTION_NAMES, "dimension", "part")},
    )


def _staged_source(name: str, reads: list[Reads]) -> Source:
    """The source whose staging, of the same day, is the only input with days."""
    if len(reads) == 1:
        read, table = reads[0], reads[0].table
        is_same = read.reach == SAME_DAY and not read.parts
        if isinstance(table, SourceTable) and table.role is Role.STAGED and is_same:
            return table.source
    names = ", ".join(read.table.name for read in reads)
    raise DeclarationError(
        f"{name}: only a table whose one input with days is the staging of a source, of the same "
        f"day and part, can be current; this one is made of {names}"
    )


def corrections_table(
    of: Derived, current: Current, *, name: str | None = None, doc: str | None = None
) -> Corrections:
    """Declare the difference between facts and what is known now: current less facts.

    It has a row for each day and key for which a total differs.

    Args:
        of: the facts.
        current: the result of `current_table` for these facts.
        name: of the new table; that of the facts and `_corrections`, if not given.
        doc: the meaning of a row.

    Raises:
        DeclarationError: `current` was declared for another table, or the facts have no totals.
    """
    name = name or f"{of.name}_corrections"
    if current.base is not of:
        raise DeclarationError(f"{name}: {current.name} is not the current of {of.name}")
    if not of.totals:
        raise DeclarationError(f"{name}: {of.name} has no totals to correct")
    tables = (of, current)
    dependencies = tuple(Dependency(table, SAME_DAY) for table in tables)
    return Corrections(
        name=name,
        model=_corrections_model(of, doc or f"What {current.name} has beyond {of.name}."),
        modules=of.modules,
        decided_by=decided_by(tables),
        inputs=lambda _: dependencies,
        facts=of,
        current=current,
        **{n: getattr(of, n) for n in ("partition", "key", "totals", "dimension", "part")},
    )


def _row_description(table: Table) -> str:
    """The meaning of a row: the first line of the model's docstring."""
    return inspect.cleandoc(table.model.__doc__ or table.name).partition("\n")[0].rstrip(".")


def _corrections_model(facts: Table, doc: str) -> type[pa.DataFrameModel]:
    """The model of corrections: the key, and totals without bounds, as they may be negative."""
    facts_columns = source_models.model_columns(facts.model, bounded=False)
    columns = {
        **{name: facts_columns[name] for name in facts.key_columns},
        **{
            name: (
                facts_columns[name][0],
                Field(description=f"{name.capitalize()} to add; negative to take away."),
            )
            for name in facts.totals
        },
    }
    return source_models.build_model(f"{facts.model.__name__}Corrections", doc, columns)


def expand_parts(declared: Mapping[str, Table], timezone: str) -> dict[str, Table]:
    """The tables, with one for each part in place of a table that has a second dimension.

    A part is a table of its own for all that is decided. The time zone of the deployment is for
    parts that are hours.
    """
    tables: dict[str, Table] = {}
    sources: dict[str, Source] = {}

    def find(table: Table, part: str) -> Any:
        return tables.get(table_name(table.name, part)) or tables.get(table.name, table)

    for name, table in declared.items():
        for part in table.dimension.values if table.dimension else [""]:
            new_name, doc, built = table_name(name, part), table.model.__doc__, table
            if isinstance(table, Derived):
                built = _with_parts(table, part, find)
            elif isinstance(table, SourceTable) and part:
                source_name = table_name(table.source.name, part)
                if source_name not in sources:
                    sources[source_name] = table.source.parts[part].in_business_zone(timezone)
                built = next(t for t in sources[source_name].tables if t.role is table.role)
            elif isinstance(table, Current) and part:
                built = current_table(find(table.base, part), name=new_name, doc=doc)
            elif isinstance(table, Corrections) and part:
                pair = find(table.facts, part), find(table.current, part)
                built = corrections_table(*pair, name=new_name, doc=doc)
            tables[built.name] = built
    return tables


def _with_parts(table: Derived, part: str, find: Callable[[Table, str], Any]) -> Derived:
    """A derived table whose inputs are parts: the same one, or some of an input without parts."""
    others = [read.table for read in table.inputs_by_day.values() if read.table is not table]
    if not part and not any(t.dimension or find(t, "") is not t for t in others):
        return table
    reads: dict[str, Reads] = {}
    for parameter, read in table.reads.items():
        dimension = read.table.dimension
        if read.table is table:
            reads[parameter] = replace(read, table=SELF)
        elif dimension is None or part:
            reads[parameter] = replace(read, table=find(read.table, part))
        else:
            for value in dimension.values if read.parts == ALL else read.parts or ():
                name = table_name(parameter, value)
                reads[name] = replace(read, table=find(read.table, value), parts=[value])
    return replace(
        table,
        name=table_name(table.name, part),
        first=table_name(table.first, part),
        part=part,
        reads=reads,
        published={
            parameter: replace(published, table=find(published.table, part))
            for parameter, published in table.published.items()
        },
    )
