"""`current` and `corrections`: a table with all late data, and its difference from final facts.

A table built from staging has only lines that came in time. `current` applies the same function to
the greatest version of every key known now, as if the window had no end. `corrections` is the
difference between the two, whatever its reason.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field

import pandera.pyspark as pa
from pandera.pyspark import Field

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.reach import SAME_DAY, RecordedReach
from backfill_assets.tables import sources
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.derived import Derived, Reads
from backfill_assets.tables.sources import Role, Source, SourceTable
from backfill_assets.tables.table import (
    ENTRY_PREFIX,
    Dependency,
    Equation,
    Figure,
    Inputs,
    Lineage,
    Table,
    decided_by,
)
from backfill_assets.tables.unpartitioned import UnpartitionedInput


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
    def key_columns(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return tuple(dict.fromkeys((self.partition, *self.key)))

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


def current(of: Derived, *, name: str | None = None, doc: str | None = None) -> Current:
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
        model=_copy_model(of.model, row),
        modules=(*of.modules, source.lines.__module__, source.declared_in),
        depends_on=of.depends_on,
        decided_by=("window_days", "late_lines"),
        inputs=log_inputs,
        forbidden=of.forbidden,
        base=of,
        source=source,
    )


def _staged_source(name: str, reads: list[Reads]) -> Source:
    """The source whose staging, of the same day, is the only input with days."""
    if len(reads) == 1:
        read, table = reads[0], reads[0].table
        if isinstance(table, SourceTable) and table.role is Role.STAGED and read.reach == SAME_DAY:
            return table.source
    names = ", ".join(read.table.name for read in reads)
    raise DeclarationError(
        f"{name}: only a table whose one input with days is the staging of a source, of the same "
        f"day, can be current; this one is made of {names}"
    )


def corrections(
    of: Derived, current: Current, *, name: str | None = None, doc: str | None = None
) -> Corrections:
    """Declare the difference between facts and what is known now: current less facts.

    It has a row for each day and key for which a total differs.

    Args:
        of: the facts.
        current: the result of `current` for these facts.
        name: of the new table; that of the facts and `_corrections`, if not given.
        doc: the meaning of a row.

    Raises:
        DeclarationError: `current` was declared for another table, or the facts have no totals.
    """
    name = name or f"{of.name}_corrections"
    if current.base is not of:
        raise DeclarationError(f"{name}: {current.name} is not the current of {of.name}")
    if not of.totals:
        raise DeclarationError(f"{name}: the model of {of.name} has no totals to correct")
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
    )


def _row_description(table: Table) -> str:
    """The meaning of a row: the first line of the model's docstring."""
    return inspect.cleandoc(table.model.__doc__ or table.name).partition("\n")[0].rstrip(".")


def _copy_model(model: type[pa.DataFrameModel], doc: str) -> type[pa.DataFrameModel]:
    """A model with the same columns and another docstring."""
    config = type("Config", (model.Config,), {})
    return type(model.__name__, (model,), {"__doc__": doc, "Config": config})


def _corrections_model(facts: Table, doc: str) -> type[pa.DataFrameModel]:
    """The model of corrections: the key, and totals without bounds, as they may be negative."""
    facts_columns = sources.model_columns(facts.model, bounded=False)
    columns = {
        **{name: facts_columns[name] for name in (facts.partition, *facts.key)},
        **{
            name: (
                facts_columns[name][0],
                Field(description=f"{name.capitalize()} to add; negative to take away."),
            )
            for name in facts.totals
        },
    }
    metadata = {"partition": facts.partition, "key": list(facts.key), "totals": list(facts.totals)}
    return sources.build_model(f"{facts.model.__name__}Corrections", doc, columns, metadata)
