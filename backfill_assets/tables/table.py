"""A table: its pandera model, its options, its inputs, and all properties that follow from them.

It is the one source for Spark types, Delta constraints, checks and UI metadata: a rule about a
column belongs here, its evaluation in `audit`.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.config import ValidationDepth, config_context
from pyspark.sql import DataFrame

from backfill_assets.calendar.late_data import ArrivalDays, ArrivesOn, Policy
from backfill_assets.calendar.partitions import (
    BY_DIMENSION,
    PART_MARK,
    Dimension,
    Grain,
    days_condition,
    range_of_run,
    split_key,
)
from backfill_assets.calendar.reach import Reach, RecordedReach
from backfill_assets.settings import Settings, normalize_location
from backfill_assets.tables import table_options
from backfill_assets.tables.arguments import (
    Argument,
    DeclarationError,
    arguments_by_rules,
    check_arguments,
    is_text,
    sequence_of,
)
from backfill_assets.tables.columns import (
    Forbidden,
    NullBounds,
    Rule,
    convert_columns,
    nullable_bounds,
    sql_conditions,
    with_defaults,
    wrong_schema,
)
from backfill_assets.tables.unpartitioned import UnpartitionedInput


class SchemaError(ValueError):
    """A frame does not have the columns and types of its table; nothing was written."""


@dataclass(frozen=True)
class Dependency:
    """An input of a table.

    A day of the table needs the input days of `Reach.required_days` to be published; the other days
    of the reach are read if they are published.

    Attributes:
        source: the input; the table itself, if it reads its own earlier days.
        reach: which input days decide a day.
        recorded: the field of `records.CommitDetails` in which a commit of the input records the
            days of the table that it changes; if a commit has none, all days of the reach change.
        launched: the reach given to Dagster as the partition mapping, if it differs from `reach`.
    """

    source: "Table"
    reach: Reach | RecordedReach
    recorded: str = ""
    launched: Reach | None = None


Inputs = tuple[Dependency, ...]
#: By column of a table, the (table, column) pairs that it is built from.
Lineage = Mapping[str, Sequence[tuple[str, str]]]


#: The prefix of the name of a number that a commit recorded of a day's inputs.
ENTRY_PREFIX = "recorded "


class Figure(NamedTuple):
    """A number of a day of a table.

    Attributes:
        name: `rows`, a total, or a number recorded in the commit, with the prefix `ENTRY_PREFIX`.
        text: what the table has, with `{}` for the number.
    """

    table: "Table"
    name: str
    text: str


class Equation(NamedTuple):
    """Two numbers of the same day that must be equal; `later` belongs to the later layer."""

    earlier: Figure
    later: Figure


@dataclass(frozen=True)
class Table(table_options.TableOptions):
    """The declaration of one table, and the properties that follow from its pandera model.

    Its options are fields as well, see `TableOptions`. The model counts as strict, whatever its
    `Config` says: a frame has its columns and no others.

    Attributes:
        name: name of the asset and the folder.
        model: the pandera model.
        modules: the full names of the modules that declare it; see `code_version`.
        depends_on: what else decides its rows: modules, and absolute paths of data files.
        decided_by: the settings that decide its rows, besides those that decide all tables, see
            `Settings.digest_of`.
        inputs: its inputs under a late-data policy; empty if it is loaded from the landing.
        frozen: whether a check reports that a final day was changed other than by a person.
        forbidden: checks for rows that must not be in a day beside others.
        retired: the first business day on which it is no longer built; None if not declared.
        dimension: its second dimension of partitions; None if it has days alone.
        part: of one part of a table with a second dimension, its value there. Such a table is
            declared without a part, and a graph has one for each part, named `TABLE/PART`.

    Raises:
        DeclarationError: a column has an unknown check, or an option does not fit the columns: the
            partition is no DATE, or a total is neither DECIMAL nor a whole number.
    """

    name: str
    model: type[pa.DataFrameModel]
    modules: tuple[str, ...] = ()
    decided_by: tuple[str, ...] = ()
    inputs: Callable[[Policy], Inputs] = lambda _policy: ()
    frozen: bool = False
    forbidden: Sequence[Forbidden] = ()
    retired: date | None = None
    depends_on: tuple[str | Path, ...] = ()
    dimension: Dimension | None = None
    part: str = ""

    def __post_init__(self) -> None:
        check_arguments(self.name, table_options.option_arguments(self))
        object.__setattr__(self, "notices", table_options.with_drift(self.notices, self.drift))
        if wrong := table_options.wrong_model(self.model) or [
            *table_options.wrong_options(self.model, self),
            *wrong_schema(self.columns),
            *_wrong_names(self),
        ]:
            raise DeclarationError(f"{self.name}: {'; '.join(wrong)}")
        object.__setattr__(self, "key", tuple(self.key or table_options.unique_columns(self.model)))
        object.__setattr__(self, "totals", tuple(self.totals))
        object.__setattr__(self, "rules", {n: Rule(*rule) for n, rule in self.rules.items()})

    @property
    def end(self) -> date | None:
        """The day from which on nothing is expected of its part; None if that is not retired."""
        return self.dimension.retired.get(self.part) if self.dimension else None

    def is_retired(self, today: date) -> bool:
        """Whether it is no longer built on a business day."""
        return self.retired is not None and self.retired <= today

    def place(self, warehouse: str) -> str:
        """Its location, in a deployment with this warehouse."""
        return f"{warehouse}/{self.asset_name}"

    @property
    def asset_name(self) -> str:
        """The name of its asset and of its folder, which it shares with the other parts."""
        return asset_name(self.name)

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The columns that the Delta table is partitioned by: the day and, if any, the part."""
        return (self.partition, self.dimension.name) if self.dimension else (self.partition,)

    @property
    def part_column(self) -> str:
        """The column of its second dimension; empty if it has days alone."""
        return self.dimension.name if self.dimension else ""

    @property
    def cell_columns(self) -> list[str]:
        """The columns with the part, if it is one of several, and the day of a row."""
        return [*filter(None, [self.part_column]), self.partition]

    @property
    def part_values(self) -> Mapping[str, str]:
        """The value of the column of the part; empty without a part."""
        return {self.dimension.name: self.part} if self.dimension and self.part else {}

    def rows_of_part(self, frame: DataFrame) -> DataFrame:
        """Of rows of several parts, those of this one."""
        conditions = [f"`{column}` = '{part}'" for column, part in self.part_values.items()]
        return frame.where(*conditions) if conditions else frame

    def days_condition(self, days: Iterable[date], *, relation: str = "") -> str:
        """The SQL condition for the rows of some days, in the part of the table if it is one."""
        condition = days_condition(days, self.partition, relation=relation)
        prefix = relation and f"{relation}."
        parts = [f"{prefix}`{column}` = '{part}'" for column, part in self.part_values.items()]
        return " AND ".join([f"({condition})", *parts]) if parts else condition

    @property
    def by_hour(self) -> bool:
        """Whether its parts are the hours of a day: they are due during the day."""
        return self.dimension is not None and self.dimension.is_hours

    def days_def(self, settings: Settings) -> dg.TimeWindowPartitionsDefinition:
        """The days, weeks or months of Dagster's partitions."""
        return self.grain.partitions_def(settings, by_hour=self.by_hour)

    def partitions_def(self, settings: Settings) -> dg.PartitionsDefinition:
        """The partitions definition for Dagster."""
        days = self.days_def(settings)
        return self.dimension.partitions_def(days) if self.dimension else days

    def partition_key(self, day: date) -> str:
        """Dagster's key of a day."""
        return self.dimension.partition_key(day, self.part) if self.dimension else str(day)

    @property
    def job_name(self) -> str:
        """The name of the job of the tables with the same partitions definition."""
        by = f"{BY_DIMENSION}{self.dimension.name}" if self.dimension else ""
        return f"{self.grain.job_name}{by}"

    def run_tags(self, days: Iterable[date]) -> dict[str, str]:
        """The tags of a run of exactly these days."""
        return self.grain.run_tags(days, self.partition_key)

    def is_in_run(self, tags: Mapping[str, str]) -> bool:
        """Whether the partitions of a run, by its tags, may be those of this part."""
        if self.dimension is None:
            return True
        with suppress(ValueError):
            first, last = (split_key(key)[1] for key in range_of_run(tags))
            values = [*self.dimension.values]
            return values.index(first) <= values.index(self.part) <= values.index(last)
        return False

    @property
    def kind(self) -> str:
        """The key of `code_version.ROWS_VERSION` for the code that computes its rows."""
        return "asset"

    @property
    def unpartitioned_inputs(self) -> Sequence[UnpartitionedInput]:
        """Its inputs without days, which `inputs` does not have."""
        return ()

    @property
    def grain(self) -> Grain:
        """Whether its partitions are days or weeks."""
        return Grain.DAILY

    def expects_rows(self, _day: date) -> bool:
        """Whether lines of all its sources usually come for a day, so that it usually has rows."""
        return True

    @property
    def page_assets(self) -> tuple[str, ...]:
        """The assets without partitions that are rebuilt with it."""
        return ()

    @property
    def layer_equations(self) -> list[Equation]:
        """The numbers of a day that must equal those of earlier layers.

        Staging has none: the lines of an event day are in many log days; the check `conservation`
        compares them.
        """
        return []

    @property
    def columns(self) -> Mapping[str, Any]:
        """The pandera columns by name, in the order of the table."""
        return dict(self.model.to_schema().columns)

    @property
    def struct_type(self) -> T.StructType:
        """The Spark type; pandera's own `to_structtype` makes every column nullable."""
        return T.StructType(
            [T.StructField(n, c.dtype.type, bool(c.nullable)) for n, c in self.columns.items()]
        )

    @property
    def zero_totals(self) -> Mapping[str, int | Decimal]:
        """The totals of a day without rows, each in the type of its column."""
        money = {f.name for f in self.struct_type if isinstance(f.dataType, T.DecimalType)}
        return {name: Decimal("0.00") if name in money else 0 for name in self.totals}

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that identify a row: the day, the part, and the natural key."""
        return tuple(dict.fromkeys((*self.partition_columns, *self.key)))

    @property
    def rows_figure(self) -> Figure:
        """The number of a day's rows."""
        return Figure(self, "rows", "has {} rows")

    @property
    def null_bounds(self) -> Mapping[str, NullBounds]:
        """The bounds on the share of nulls, by nullable column."""
        return {
            name: nullable_bounds(column)
            for name, column in self.columns.items()
            if column.nullable
        }

    def same_key(self, left: str, right: str) -> str:
        """The SQL condition that rows of two relations have the same day and natural key.

        A null is equal to a null in the columns that may be null.
        """
        may_be_null = self.null_bounds
        return " AND ".join(
            f"{left}.`{name}` {'<=>' if name in may_be_null else '='} {right}.`{name}`"
            for name in self.key_columns
        )

    @property
    def check_constraints(self) -> Mapping[str, str]:
        """The conditions on each row as SQL, by the name of the Delta CHECK constraint."""
        bounds = [sql_conditions(name, column) for name, column in self.columns.items()]
        rules = {name: rule.condition for name, rule in self.rules.items()}
        return {name: rule for by_name in [*bounds, rules] for name, rule in by_name.items()}

    @property
    def check_descriptions(self) -> Mapping[str, str]:
        """The asset checks of this table, with their descriptions."""
        descriptions = {
            "row_count": "The day's rows, against the days before it.",
            "nulls": "No null in a required column, and bounded shares of nulls in the others.",
            "conservation": "No row was lost or invented between the inputs and this day.",
        }
        if self.key:
            descriptions["unique_key"] = f"({', '.join(self.key_columns)}) is unique."
        forbidden = {check.name: check.description for check in self.forbidden}
        return {**descriptions, **forbidden, **self.notices}

    @property
    def column_schema(self) -> dg.TableSchema:
        """The columns and constraints as Dagster's UI shows them."""
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
                            *(["partition column"] if name in self.partition_columns else []),
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
            SchemaError: a column is missing, unknown or of another type; found without a Spark job.
        """
        missing = [name for name in self.columns if name not in frame.columns]
        unknown = [name for name in frame.columns if name not in self.columns]
        if missing or unknown:
            # Pandera's own message would contain a row of the data.
            lower_names = {name.lower(): name for name in unknown}
            other_case = {name: lower_names.get(name.lower()) for name in missing}
            lacking = [
                f"{name} (it has {other}: another case)" if other else name
                for name, other in other_case.items()
            ]
            besides = [name for name in unknown if name not in other_case.values()]
            differences = {"lacks": lacking, "has besides": besides}
            problems = [
                f"{verb} {', '.join(names)}" for verb, names in differences.items() if names
            ]
            raise SchemaError(
                f"{self.name}: the frame {' and '.join(problems)}; its columns are "
                f"{', '.join(self.columns)}. Nothing was written; the table is as it was."
            )
        with config_context(validation_depth=ValidationDepth.SCHEMA_ONLY):
            # Types first: pandera fails with an assertion if a decimal column has another type.
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
        """Rows that were written before a schema change, see `columns.convert_columns`."""
        return convert_columns(frame, self.partition, self.columns)

    def _wrong_types(self, frame: DataFrame) -> dict[str, str]:
        types = {f.name: f.dataType for f in frame.schema}
        return {
            f.name: f"column '{f.name}' is {types[f.name]}, not {f.dataType}"
            for f in self.struct_type
            if f.name in types and types[f.name] != f.dataType
        }

    def _types_only_schema(self, without: Iterable[str] = ()) -> Any:
        """The model's names and types alone: for rules on values pandera would run Spark jobs."""
        schema = copy.deepcopy(self.model.to_schema())
        for name in without:
            del schema.columns[name]
        for column in schema.columns.values():
            column.nullable, column.checks = True, []
        return schema


@dataclass(frozen=True, kw_only=True)
class ExternalTable(Table):
    """A Delta table by day that others write: an input, and nothing else.

    Attributes:
        url: its location; empty if it is in the warehouse under its name.
        asset_key: of the asset that writes it; empty if that is its name.
        start: its first day; None if it has all days of the calendar.
        arrival_days: the days on which it has rows.
    """

    url: str = ""
    asset_key: tuple[str, ...] = ()
    start: date | None = None
    arrival_days: ArrivalDays = field(default=ArrivalDays())

    def expects_rows(self, day: date) -> bool:
        """Whether others usually write rows of a day; without any, it counts as missing."""
        return day in self.arrival_days

    def place(self, warehouse: str) -> str:
        """Its location, in a deployment with this warehouse."""
        return self.url or super().place(warehouse)


def external_table(
    name: str,
    model: "type[pa.DataFrameModel[Any]]",
    *,
    partition: str,
    key: Sequence[str] = (),
    url: str = "",
    asset_key: Sequence[str] = (),
    start: date | None = None,
    arrives_on: ArrivesOn | None = None,
) -> ExternalTable:
    """Declare a Delta table by day that others write, as an input: `Reads(their_orders)`.

    A commit of theirs makes the days due that are built from the days which it changed; a day
    without rows counts as missing, if rows are expected. Nothing is ever written to the table.

    Args:
        name: its name in reasons and in messages.
        model: the columns that are read; it may have more.
        partition: the DATE column with its day, by which it is partitioned.
        key: the columns that are unique within a day: no day is built from one that repeats them.
        url: its location, as Spark reads it; in the warehouse under its name, if not given.
        asset_key: the key of the asset that writes it; its name, if not given.
        start: its first day, if that is later than the first day of the calendar.
        arrives_on: the days on which it has rows, each day if not given; as of `Source`.

    Raises:
        DeclarationError: an argument does not fit.
        ValueError: the URL is of a store that is not supported, or has a password.
    """
    is_key = sequence_of(is_text)
    name_rule = (lambda text: is_text(text) and text.isidentifier(), "letters, digits and _")
    check_arguments(
        "external_table",
        [
            Argument("the name", name, *name_rule),
            Argument("the model", model, *table_options.MODEL_RULE),
            Argument("asset_key", asset_key, is_key, 'a list, as ["shop", "orders"]'),
            *arguments_by_rules(
                {"start": start, "arrives_on": arrives_on}, table_options.DELIVERY_RULES
            ),
        ],
    )
    return ExternalTable(
        name=name,
        model=model,
        partition=partition,
        key=key,
        url=normalize_location(url),
        asset_key=tuple(asset_key),
        start=start,
        arrival_days=ArrivalDays.parse(arrives_on),
    )


def asset_name(name: str) -> str:
    """The name of the asset of a table, from the name of the table or of one of its parts."""
    return name.partition(PART_MARK)[0]


def table_name(asset: str, part: str) -> str:
    """The name of the table of an asset and a part; the asset's own without a part."""
    return f"{asset}{PART_MARK}{part}" if part else asset


def run_tags(tables: Sequence[Table], days: Iterable[date]) -> dict[str, str]:
    """The tags of a run of exactly these days of tables, which may have parts that are adjacent."""
    tags, ends = tables[0].run_tags(days), tables[-1].run_tags(days)
    return {name: ends[name] if name.endswith("_end") else text for name, text in tags.items()}


def decided_by(tables: Iterable[Table]) -> tuple[str, ...]:
    """The settings that decide the rows of any of the tables."""
    return tuple(dict.fromkeys(name for table in tables for name in table.decided_by))


def _wrong_names(table: Table) -> list[str]:
    """Why rules and checks cannot have their names, one sentence each."""
    bounds = {n for name, column in table.columns.items() for n in sql_conditions(name, column)}
    others = {"row_count", "nulls", "conservation", "unique_key", *table.notices}
    return [
        f"a {kind} cannot be named {name!r}: a name has letters, digits and _, and is that of one"
        for kind, names, reserved in (
            ("rule", [*table.rules], bounds),
            ("check", [check.name for check in table.forbidden], others),
        )
        for name in dict.fromkeys(names)
        if not name.isidentifier() or name in reserved or names.count(name) > 1
    ]
