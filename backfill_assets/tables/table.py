"""A table: its pandera model, what follows from that, and what it is made of.

The one source for Spark types, Delta constraints, checks and UI metadata. No rule about a column
belongs anywhere else; how a rule is evaluated is the business of `audit` and `check_descriptions`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import dagster as dg
import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.config import ValidationDepth, config_context
from pyspark.sql import DataFrame

from backfill_assets.calendar.grain import Grain
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import from_ranges
from backfill_assets.calendar.reach import Reach, RecordedReach
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.columns import (
    NullBounds,
    convert_columns,
    nullable_bounds,
    schema_version,
    sql_conditions,
    with_defaults,
    wrong_schema,
)
from backfill_assets.tables.model_metadata import (
    key_of,
    metadata_of,
    notices_of,
    wrong_metadata,
    wrong_model,
    wrong_partition,
)
from backfill_assets.tables.rules import Forbidden, Rule, rules_in, wrong_totals
from backfill_assets.tables.unpartitioned import UnpartitionedInput

if TYPE_CHECKING:
    from backfill_assets.delta.ledgers import Ledger
    from backfill_assets.delta.records import CommitRecord


class SchemaError(ValueError):
    """A frame does not have the columns and types of its table; nothing was written."""


@dataclass(frozen=True)
class Dependency:
    """An input of a table.

    A day of the table needs one day of the input to be published, see `Reach.needed`; whatever
    else it reaches is read if it is there.

    Attributes:
        source: the input; the table itself, if it reads days of its own.
        reach: which days of it decide a day.
        recorded: the field of `records.CommitDetails` in which a commit of the input records the
            days of the table that it changes; where it does not, all that it may change are meant.
        launched: the reach that Dagster is told, where it is another: what a launch of the input's
            days takes along, and no more.
    """

    source: Table
    reach: Reach | RecordedReach
    recorded: str = ""
    launched: Reach | None = None

    def due_days(self, source: Ledger) -> Callable[[CommitRecord], Iterable[date]]:
        """The days of the table that a commit of the input makes due."""

        def days_due_by(record: CommitRecord) -> Iterable[date]:
            ranges = getattr(record.details, self.recorded) if self.recorded else None
            if ranges is not None:
                return from_ranges(ranges)
            return self.reach.changed_days(source.changed_days[record.version], source)

        return days_due_by


Inputs = tuple[Dependency, ...]
#: By column of a table, the (table, column) pairs that it is made of.
Lineage = Mapping[str, Sequence[tuple[str, str]]]


def _no_inputs(_: Policy) -> Inputs:
    return ()


#: Before the name of what a commit recorded of a day's inputs.
RECORDED = "recorded "


class Figure(NamedTuple):
    """A number of a day of a table.

    Attributes:
        table: the table.
        name: `rows`, one of its totals, or what a commit recorded, after `RECORDED`.
        text: says it of the table, with `{}` for the number.
    """

    table: Table
    name: str
    text: str


class Equation(NamedTuple):
    """Two numbers of the same day that must be equal; `later` belongs to the later layer."""

    earlier: Figure
    later: Figure


@dataclass(frozen=True)
class Table:
    """The declaration of one table, and what follows from its pandera model.

    Attributes:
        name: asset and folder name.
        model: the pandera model.
        modules: the modules that declare it, by their full names; see `code_version`.
        depends_on: what else decides its rows: modules, and absolute paths of data files.
        decided_by: the settings that decide its rows, besides those that decide all tables, see
            `Settings.digest_of`.
        inputs: what it is made of, under a late-data policy; nothing if it comes from the landing.
        frozen: whether a check says so if a final day of it was changed by no person.
        forbidden: which rows of a day may not be there beside others.
        retired: the business day from which on nobody feeds it; none if that is not declared.
        partition: name of the DATE column the table is partitioned by.
        key: columns that are unique within a partition; empty where there is no natural key.
        totals: numeric columns whose daily sums are part of the audit.
        notices: checks of what the inputs say of a day, beyond conservation, with their
            descriptions; they hold a day back only if they say that it is an error.
        rules: what must hold for each row over several columns, by name.
        merges: whether a run may ask for its rows to be merged instead of replacing the days.
        schema_version: which version of its columns the model is.

    Raises:
        DeclarationError: the model has no one DATE column that the table can be partitioned by, a
            check of a column or a name in the metadata that means nothing, or a total that is no
            DECIMAL or whole number.
    """

    name: str
    model: type[pa.DataFrameModel]
    modules: tuple[str, ...] = ()
    decided_by: tuple[str, ...] = ()
    inputs: Callable[[Policy], Inputs] = _no_inputs
    frozen: bool = False
    forbidden: Sequence[Forbidden] = ()
    retired: date | None = None
    depends_on: tuple[str | Path, ...] = ()
    partition: str = field(init=False)
    key: tuple[str, ...] = field(init=False)
    totals: tuple[str, ...] = field(init=False)
    notices: Mapping[str, str] = field(init=False)
    rules: Mapping[str, Rule] = field(init=False)
    merges: bool = field(init=False)
    schema_version: int = field(init=False)

    def __post_init__(self) -> None:
        metadata = metadata_of(self.model)
        wrong = wrong_model(self.model) or wrong_metadata(self.model, metadata)
        if wrong := wrong or [
            *wrong_partition(self.model, metadata),
            *wrong_schema(metadata, self.columns),
            *wrong_totals(self.columns, metadata.get("totals", ())),
        ]:
            raise DeclarationError(f"{self.name}: {'; '.join(wrong)}")
        object.__setattr__(self, "partition", metadata["partition"])
        object.__setattr__(self, "key", tuple(key_of(self.model, metadata)))
        object.__setattr__(self, "totals", tuple(metadata.get("totals", ())))
        object.__setattr__(self, "notices", notices_of(metadata))
        object.__setattr__(self, "rules", rules_in(metadata))
        object.__setattr__(self, "merges", metadata.get("merge", False))
        object.__setattr__(self, "schema_version", schema_version(metadata))

    def is_retired(self, today: date) -> bool:
        """Whether nobody feeds it any more on a business day."""
        return self.retired is not None and self.retired <= today

    @property
    def kind(self) -> str:
        """Which code of this package makes its rows, see `code_version.ROWS_VERSION`."""
        return "asset"

    @property
    def unpartitioned_inputs(self) -> Sequence[UnpartitionedInput]:
        """What it is made of besides `inputs`: tables without days."""
        return ()

    @property
    def grain(self) -> Grain:
        """How far apart its partitions are."""
        return Grain.DAILY

    @property
    def page_assets(self) -> tuple[str, ...]:
        """The assets without days that are made anew with it."""
        return ()

    @property
    def layer_equations(self) -> list[Equation]:
        """The numbers of a day that it must share with earlier layers.

        Staging has none: an event day's lines lie in many log days; `conservation` looks at that.
        """
        return []

    @property
    def columns(self) -> Mapping[str, Any]:
        """The pandera columns by name, in the order of the table."""
        return dict(self.model.to_schema().columns)

    @property
    def struct_type(self) -> T.StructType:
        """The Spark type; pandera's own `to_structtype` calls every column nullable."""
        return T.StructType(
            [T.StructField(n, c.dtype.type, bool(c.nullable)) for n, c in self.columns.items()]
        )

    @property
    def zero_totals(self) -> Mapping[str, int | Decimal]:
        """The totals of a day without rows, each in the type of its column."""
        money = {f.name for f in self.struct_type if isinstance(f.dataType, T.DecimalType)}
        return {name: Decimal("0.00") if name in money else 0 for name in self.totals}

    @property
    def null_bounds(self) -> Mapping[str, NullBounds]:
        """The null-rate bounds of the columns that may be null."""
        return {
            name: nullable_bounds(column)
            for name, column in self.columns.items()
            if column.nullable
        }

    @property
    def check_constraints(self) -> Mapping[str, str]:
        """What must hold for each row, as SQL by name, for Delta CHECK constraints."""
        bounds = [sql_conditions(name, column) for name, column in self.columns.items()]
        rules = {name: rule.condition for name, rule in self.rules.items()}
        return {name: rule for by_name in [*bounds, rules] for name, rule in by_name.items()}

    @property
    def check_descriptions(self) -> Mapping[str, str]:
        """Which checks exist for this table, with their descriptions."""
        descriptions = {
            "row_count": "The day's rows, against the days before it.",
            "nulls": "No null in a required column, and bounded shares of nulls in the others.",
            "conservation": "No row was lost or invented between the inputs and this day.",
        }
        if self.key:
            columns = ", ".join(dict.fromkeys((self.partition, *self.key)))
            descriptions["unique_key"] = f"({columns}) is unique."
        forbidden = {check.name: check.description for check in self.forbidden}
        return {**descriptions, **forbidden, **self.notices}

    @property
    def column_schema(self) -> dg.TableSchema:
        """The columns as Dagster's UI shows them, constraints included."""
        return dg.TableSchema(
            columns=[
                dg.TableColumn(
                    name,
                    column.dtype.type.simpleString(),
                    description=column.description,
                    constraints=dg.TableColumnConstraints(
                        nullable=bool(column.nullable),
                        unique=False,
                        other=[
                            *sql_conditions(name, column).values(),
                            *(["partition column"] if name == self.partition else []),
                            *(["part of the natural key"] if name in self.key else []),
                        ],
                    ),
                )
                for name, column in self.columns.items()
            ],
            constraints=dg.TableConstraints(
                [f"{rule.condition}: {rule.description}" for rule in self.rules.values()]
            ),
        )

    def conform_frame(self, frame: DataFrame) -> DataFrame:
        """The frame with its columns in the table's order.

        Raises:
            SchemaError: a column is missing, unknown or of another type. Found from the schema
                alone; no Spark job runs.
        """
        missing = [name for name in self.columns if name not in frame.columns]
        unknown = [name for name in frame.columns if name not in self.columns]
        if missing or unknown:
            # Pandera's own words have a row of the data in them.
            differences = {"lacks": missing, "has besides": unknown}
            problems = [
                f"{verb} {', '.join(names)}" for verb, names in differences.items() if names
            ]
            raise SchemaError(
                f"{self.name}: the frame {' and '.join(problems)}; its columns are "
                f"{', '.join(self.columns)}. Nothing was written; the table is as it was."
            )
        with config_context(validation_depth=ValidationDepth.SCHEMA_ONLY):
            # Of a column in place of a decimal pandera asserts that it is one; so types come first.
            wrong = self._wrong_types(frame)
            checked = self._types_only_schema(without=wrong).validate(frame.drop(*wrong))
        problems = [
            *wrong.values(),
            *(
                str(entry["error"]).partition(" DataFrameSchema ")[0]
                for kinds in checked.pandera.errors.values()
                for entries in kinds.values()
                for entry in entries
            ),
        ]
        if problems:
            raise SchemaError(
                f"{self.name}: {'; '.join(problems)}. Nothing was written; the table is as it was."
            )
        return with_defaults(frame.select(*self.columns), self.partition, self.columns)

    def with_current_columns(self, frame: DataFrame) -> DataFrame:
        """Rows as they were written, in the table's columns of now.

        A frame from before a schema change is read under it; see `schemas.convert_columns`.
        """
        return convert_columns(frame, self.partition, self.columns)

    def _wrong_types(self, frame: DataFrame) -> dict[str, str]:
        types = {f.name: f.dataType for f in frame.schema}
        return {
            f.name: f"column '{f.name}' is {types[f.name]}, not {f.dataType}"
            for f in self.struct_type
            if f.name in types and types[f.name] != f.dataType
        }

    def _types_only_schema(self, without: Iterable[str] = ()) -> Any:
        """The model's names and types alone: for each rule on values pandera would run a job."""
        schema = copy.deepcopy(self.model.to_schema())
        for name in without:
            del schema.columns[name]
        for column in schema.columns.values():
            column.nullable, column.checks = True, []
        return schema


def decided_by(tables: Iterable[Table]) -> tuple[str, ...]:
    """The settings that decide some tables, and so all that is made of them alone."""
    return tuple(dict.fromkeys(name for table in tables for name in table.decided_by))
