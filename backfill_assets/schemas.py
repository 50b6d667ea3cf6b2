"""The tables as pandera models: columns, nullability, keys and bounds, and what follows from them.

The one source for Spark types, Delta constraints, checks and UI metadata. No rule about a column
belongs anywhere else; how a rule is evaluated is the business of `audit` and `checks`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar

import dagster as dg
import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.config import ValidationDepth, config_context
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.settings import Settings


class SchemaError(ValueError):
    """A frame does not have the columns and types of its table; nothing was written."""


def _nullable(warn: float, error: float, description: str) -> Any:
    """A column that may be null: the *rate* of nulls in a day is bounded instead.

    Args:
        warn: a day with a larger share of nulls (0 to 1) is published with a warning.
        error: a day with a larger share of nulls is not published.
        description: what the column means.
    """
    return Field(
        nullable=True, description=description, metadata={"null_warn": warn, "null_error": error}
    )


class RawOrders(pa.DataFrameModel):
    """The immutable log of order lines as they arrived, by log day."""

    log_date: T.DateType = Field(
        description="Log day: the day of the arrival folder, or the next for an early line."
    )
    arrival_date: T.DateType = Field(description="Day of the arrival folder, from its path.")
    order_id: T.StringType = Field(description="The source's order id, verbatim.")
    customer_id: T.StringType = _nullable(0.25, 0.9, "The source's customer id; null if unknown.")
    order_ts: T.TimestampType = Field(description="When the order happened (UTC).")
    amount: T.DecimalType(18, 2) = Field(  # type: ignore[valid-type]
        description="Money, exact to two decimals; negative for a refund."
    )
    ingestion_ts: T.TimestampType = Field(description="When the source took this version (UTC).")
    source_file: T.StringType = Field(description="Landing file, relative to the orders folder.")

    class Config:
        """A log has no key: the same line may be sent twice."""

        strict = True
        metadata: ClassVar = {
            "partition": "log_date",
            "totals": ["amount"],
            "notices": {"rejected_lines": "Few of the day's lines are rejected."},
        }


class RejectedOrders(pa.DataFrameModel):
    """Landed lines that could not be read as an order, kept as text with the reason."""

    arrival_date: T.DateType = Field(description="Day of the arrival folder, from its path.")
    source_file: T.StringType = Field(description="Landing file, relative to the orders folder.")
    text: T.StringType = Field(description="The line as it arrived; a Parquet row as JSON.")
    reason: T.StringType = Field(description="Why it is not an order.")

    class Config:
        """Rejected lines have no key that could be relied on."""

        strict = True
        metadata: ClassVar = {"partition": "arrival_date"}


class StagedOrders(pa.DataFrameModel):
    """Each order once on its event day, in the greatest version that arrived in time."""

    event_date: T.DateType = Field(description="Day the order happened, in the business zone.")
    order_id: T.StringType = Field(description="The source's order id, verbatim.")
    customer_id: T.StringType = _nullable(0.25, 0.9, "The source's customer id; null if unknown.")
    order_ts: T.TimestampType = Field(description="When the order happened (UTC).")
    amount: T.DecimalType(18, 2) = Field(  # type: ignore[valid-type]
        description="Money, exact to two decimals; negative for a refund."
    )
    ingestion_ts: T.TimestampType = Field(description="When the source took this version (UTC).")
    log_date: T.DateType = Field(description="Log day of the version that won.")

    class Config:
        """An order id counts once a day."""

        strict = True
        metadata: ClassVar = {
            "partition": "event_date",
            "key": ["order_id"],
            "totals": ["amount"],
            "merge": True,
        }


class LateOrders(pa.DataFrameModel):
    """Raw lines that were logged after the reprocessing window of their event day had closed."""

    log_date: T.DateType = Field(description="Log day.")
    event_date: T.DateType = Field(description="The closed day that the line tells of.")
    arrival_date: T.DateType = Field(description="Day of the arrival folder, from its path.")
    order_id: T.StringType = Field(description="The source's order id, verbatim.")
    customer_id: T.StringType = _nullable(1.0, 1.0, "The source's customer id; null if unknown.")
    order_ts: T.TimestampType = Field(description="When the order happened (UTC).")
    amount: T.DecimalType(18, 2) = Field(  # type: ignore[valid-type]
        description="Money, exact to two decimals; negative for a refund."
    )
    ingestion_ts: T.TimestampType = Field(description="When the source took this version (UTC).")
    source_file: T.StringType = Field(description="Landing file, relative to the orders folder.")

    class Config:
        """A log has no key: the same line may be sent twice."""

        strict = True
        metadata: ClassVar = {
            "partition": "log_date",
            "totals": ["amount"],
            "notices": {"late_lines": "No line came after the window of its day had closed."},
        }


class DailyOrders(pa.DataFrameModel):
    """Orders and revenue of every customer on every day."""

    run_date: T.DateType = Field(description="Event day, in the business time zone.")
    customer_id: T.StringType = Field(
        description="Customer, or `unknown` where the source has none."
    )
    orders: T.LongType = Field(ge=1, description="Number of orders.")
    revenue: T.DecimalType(28, 2) = Field(description="Sum of their amounts, exact.")  # type: ignore[valid-type]

    class Config:
        """One row for each day and customer."""

        strict = True
        metadata: ClassVar = {
            "partition": "run_date",
            "key": ["customer_id"],
            "totals": ["orders", "revenue"],
            "merge": True,
        }


class OrderCorrections(pa.DataFrameModel):
    """What is known of each day beyond its facts: current less facts, by customer."""

    run_date: T.DateType = Field(description="The corrected day, in the business time zone.")
    customer_id: T.StringType = Field(
        description="Customer, or `unknown` where the source has none."
    )
    orders: T.LongType = Field(description="Orders to add; negative to take away.")
    revenue: T.DecimalType(28, 2) = Field(description="Revenue to add, exact.")  # type: ignore[valid-type]

    class Config:
        """One row for each day and customer with a difference."""

        strict = True
        metadata: ClassVar = {
            "partition": "run_date",
            "key": ["customer_id"],
            "totals": ["orders", "revenue"],
        }


class DailyOrdersCurrent(pa.DataFrameModel):
    """Orders and revenue of every customer on every day, with everything that is known now."""

    run_date: T.DateType = Field(description="Event day, in the business time zone.")
    customer_id: T.StringType = Field(
        description="Customer, or `unknown` where the source has none."
    )
    orders: T.LongType = Field(ge=1, description="Number of orders.")
    revenue: T.DecimalType(28, 2) = Field(description="Sum of their amounts, exact.")  # type: ignore[valid-type]

    class Config:
        """One row for each day and customer."""

        strict = True
        metadata: ClassVar = {
            "partition": "run_date",
            "key": ["customer_id"],
            "totals": ["orders", "revenue"],
            "merge": True,
        }


class ArrivalLateness(pa.DataFrameModel):
    """How late the lines of each log day were; one row a day."""

    log_date: T.DateType = Field(description="Log day.")
    lines: T.LongType = Field(ge=0, description="Order lines logged on this day.")
    late_lines: T.LongType = Field(
        ge=0, description="Those of them that tell of an earlier day (delay of a day or more)."
    )
    late_amount: T.DecimalType(28, 2) = Field(description="Sum of the late lines' amounts.")  # type: ignore[valid-type]
    beyond_lines: T.LongType = Field(ge=0, description="Late lines beyond the window.")
    beyond_amount: T.DecimalType(28, 2) = Field(  # type: ignore[valid-type]
        description="Sum of the amounts of the lines beyond the window."
    )
    superseded_lines: T.LongType = Field(
        ge=0,
        description="Versions that this day's lines made obsolete: lines of an order that was "
        "known already, by this day or the W days before it.",
    )
    rejected_lines: T.LongType = Field(
        ge=0, description="Lines of this arrival day that could not be read."
    )
    delay_days_p50: T.LongType = _nullable(1.0, 1.0, "Median delay of the late lines, in days.")
    delay_days_p95: T.LongType = _nullable(1.0, 1.0, "95th percentile of it, in days.")
    delay_days_max: T.LongType = _nullable(1.0, 1.0, "Longest delay of the late lines, in days.")
    delay_minutes_p50: T.LongType = _nullable(
        1.0, 1.0, "Median of version time less order time of the late lines, in minutes."
    )
    delay_minutes_p95: T.LongType = _nullable(1.0, 1.0, "95th percentile of it, in minutes.")
    delay_minutes_max: T.LongType = _nullable(1.0, 1.0, "Longest of it, in minutes.")
    delays: T.ArrayType(T.LongType()) = Field(  # type: ignore[valid-type]
        description="Days between order and log day that occur among the lines, ascending."
    )
    lines_by_delay: T.ArrayType(T.LongType()) = Field(  # type: ignore[valid-type]
        description="For each of these delays, how many lines."
    )
    amount_by_delay: T.ArrayType(T.DecimalType(28, 2)) = Field(  # type: ignore[valid-type]
        description="For each of these delays, the sum of the lines' amounts without their signs."
    )

    class Config:
        """One row a day."""

        strict = True
        metadata: ClassVar = {"partition": "log_date", "key": ["log_date"]}


@dataclass(frozen=True)
class Bounds:
    """The largest share of nulls (0 to 1) that is in order, and that is still published."""

    warn: float
    error: float


@dataclass(frozen=True)
class Table:
    """What the rest of the code needs to know of one table, derived from its pandera model.

    Attributes:
        name: asset and folder name.
        model: the pandera model.
        decided_by: the settings that decide its rows, besides those that decide all tables, see
            `Settings.digest_of`.
        partition: name of the DATE column the table is partitioned by.
        key: columns that are unique within a partition; empty where there is no natural key.
        totals: numeric columns whose daily sums are part of the audit.
        notices: checks of what the inputs say of a day, beyond conservation, with their
            descriptions; they hold a day back only if they say that it is an error.
        merges: whether a run may ask for its rows to be merged instead of replacing the days.
    """

    name: str
    model: type[pa.DataFrameModel]
    decided_by: tuple[str, ...] = ()
    partition: str = field(init=False)
    key: tuple[str, ...] = field(init=False)
    totals: tuple[str, ...] = field(init=False)
    notices: Mapping[str, str] = field(init=False)
    merges: bool = field(init=False)

    def __post_init__(self) -> None:
        said: Mapping[str, Any] = self.model.Config.metadata or {}
        object.__setattr__(self, "partition", said["partition"])
        object.__setattr__(self, "key", tuple(said.get("key", ())))
        object.__setattr__(self, "totals", tuple(said.get("totals", ())))
        object.__setattr__(self, "notices", said.get("notices", {}))
        object.__setattr__(self, "merges", said.get("merge", False))

    @property
    def columns(self) -> Mapping[str, Any]:
        """The pandera columns by name, in the order of the table."""
        return dict(self.model.to_schema().columns)

    @property
    def struct(self) -> T.StructType:
        """The Spark type; pandera's own `to_structtype` calls every column nullable."""
        return T.StructType(
            [T.StructField(n, c.dtype.type, bool(c.nullable)) for n, c in self.columns.items()]
        )

    @property
    def zeros(self) -> Mapping[str, int | Decimal]:
        """The totals of a day without rows, each in the type of its column."""
        money = {f.name for f in self.struct if isinstance(f.dataType, T.DecimalType)}
        return {name: Decimal("0.00") if name in money else 0 for name in self.totals}

    @property
    def nullable(self) -> Mapping[str, Bounds]:
        """The null-rate bounds of the columns that may be null."""
        return {
            name: Bounds(column.metadata["null_warn"], column.metadata["null_error"])
            for name, column in self.columns.items()
            if column.nullable
        }

    @property
    def constraints(self) -> Mapping[str, str]:
        """Value bounds as SQL conditions by constraint name, for Delta CHECK constraints."""
        operators = {"greater_than_or_equal_to": (">=", "min_value")}
        found = {}
        for name, column in self.columns.items():
            for check in column.checks:
                sign, value = operators[check.name]
                rule = f"{name} {sign} {check.statistics[value]}"
                # What is neither true nor false does not hold.
                rule = f"{name} IS NULL OR {rule}" if column.nullable else rule
                found[f"{name}_{check.name}"] = rule
        return found

    @property
    def checks(self) -> Mapping[str, str]:
        """Which checks exist for this table, with their descriptions."""
        found = {
            "row_count": "The day's rows, against the days before it.",
            "nulls": "No null in a required column, and bounded shares of nulls in the others.",
            "conservation": "No row was lost or invented between the inputs and this day.",
        }
        if self.key:
            columns = dict.fromkeys((self.partition, *self.key))
            found["unique_key"] = f"({', '.join(columns)}) is unique."
        return {**found, **self.notices}

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
                            rule
                            for key, rule in self.constraints.items()
                            if key.startswith(f"{name}_")
                        ]
                        + (["partition column"] if name == self.partition else [])
                        + (["part of the natural key"] if name in self.key else []),
                    ),
                )
                for name, column in self.columns.items()
            ]
        )

    def conform(self, frame: DataFrame) -> DataFrame:
        """The frame with its columns in the table's order.

        Raises:
            SchemaError: a column is missing, unknown or of another type. Found from the schema
                alone; no Spark job runs.
        """
        with config_context(validation_depth=ValidationDepth.SCHEMA_ONLY):
            # Of a column in place of a decimal pandera asserts that it is one; so types come first.
            wrong = self._wrong_types(frame)
            checked = self._shape(without=wrong).validate(frame.drop(*wrong))
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
        return frame.select(*self.columns)

    def filled(self, frame: DataFrame) -> DataFrame:
        """Rows as they were written, in the table's columns of now.

        Those that may be null are null where the frame is from before they were added.
        """
        there = set(frame.columns)
        return frame.select(
            *(
                F.lit(None).cast(column.dataType).alias(column.name)
                if column.nullable and column.name not in there
                else F.col(column.name)
                for column in self.struct
            )
        )

    def _wrong_types(self, frame: DataFrame) -> dict[str, str]:
        found = {f.name: f.dataType for f in frame.schema}
        return {
            f.name: f"column '{f.name}' is {found[f.name]}, not {f.dataType}"
            for f in self.struct
            if f.name in found and found[f.name] != f.dataType
        }

    def _shape(self, without: Iterable[str] = ()) -> Any:
        """The model's names and types alone: for each rule on values pandera would run a job."""
        schema = copy.deepcopy(self.model.to_schema())
        for name in without:
            del schema.columns[name]
        for column in schema.columns.values():
            column.nullable, column.checks = True, []
        return schema


RAW = Table("raw_orders", RawOrders)
REJECTED = Table("raw_orders_rejected", RejectedOrders)
STAGED = Table("stg_orders", StagedOrders, ("window_days",))
LATE = Table("late_orders", LateOrders, ("window_days", "late_lines"))
FACT = Table("fact_daily_orders", DailyOrders, ("window_days",))
CORRECTIONS = Table("fact_order_corrections", OrderCorrections, ("window_days", "late_lines"))
CURRENT = Table("fact_daily_orders_current", DailyOrdersCurrent, ("window_days", "late_lines"))
LATENESS = Table("arrival_lateness", ArrivalLateness, ("window_days",))
TABLES: Mapping[str, Table] = {
    t.name: t for t in (RAW, REJECTED, STAGED, LATE, FACT, CURRENT, CORRECTIONS, LATENESS)
}


def config_digests(settings: Settings) -> dict[str, str]:
    """By table, a digest of all that decides its rows."""
    return {name: settings.digest_of(table.decided_by) for name, table in TABLES.items()}
