"""The pandera models of a source's tables, built from the model of its lines."""

from collections.abc import Mapping
from copy import copy
from typing import Any

import pandera.pyspark as pa
import pyspark.sql.types as T
from pandera.pyspark import Field

from backfill_assets.tables.columns import NullBounds, nullable_bounds, nullable_column

#: A column of a model: its type, and its `Field`.
TypeAndField = tuple[Any, Any]

#: The attribute of a model with the aliases that its columns had.
_ALIASES = "_aliases"

_LOG_DAY = "Log day: the day of the arrival folder, or the next for an early line."
_ARRIVAL_DAY = "Day of the arrival folder, from its path."


def build_model(
    name: str, doc: str, columns: Mapping[str, TypeAndField]
) -> type[pa.DataFrameModel]:
    """A pandera model built from columns; `doc` is its docstring, the meaning of a row."""
    body: dict[str, Any] = {name: column for name, (_, column) in columns.items()}
    body["__annotations__"] = {name: kind for name, (kind, _) in columns.items()}
    body |= {"__doc__": doc, "__module__": __name__}
    return type(name, (pa.DataFrameModel,), body)


def without_aliases(
    lines: type[pa.DataFrameModel],
) -> tuple[type[pa.DataFrameModel], dict[str, str]]:
    """A model of lines whose columns have the names that they have in Python, and its aliases.

    Only of columns with an `alias` that is no name of a column, as `Order Date`; without such, it
    is the model itself. The aliases have the name by alias. The model that is returned knows its
    aliases, so that a source may be declared with it again, as `dataclasses.replace` does.
    """
    if known := vars(lines).get(_ALIASES):
        return lines, known
    fields = lines.__fields__
    aliases = {n: info.original_name for n, (_, info) in fields.items() if not n.isidentifier()}
    if not aliases:
        return lines, {}
    body: dict[str, Any] = {"__annotations__": {}, "Config": lines.Config}
    for column, (annotation, info) in fields.items():
        name = aliases.get(column, column)
        body["__annotations__"][name] = annotation.raw_annotation
        body[name] = copy(info)
        if column in aliases:
            body[name].alias = None
    body |= {"__doc__": lines.__doc__, "__module__": lines.__module__, _ALIASES: aliases}
    return type(lines.__name__, (pa.DataFrameModel,), body), aliases


def model_columns(
    lines: type[pa.DataFrameModel], *, bounded: bool = True
) -> dict[str, TypeAndField]:
    """The columns of a model of lines, for use in the model of a table.

    With `bounded`, its bounds on the share of nulls hold for the table as well.
    """
    return {
        name: (column.dtype.type, _copied_field(column, bounded))
        for name, column in lines.to_schema().columns.items()
    }


def _copied_field(column: Any, bounded: bool) -> Any:
    bounds = nullable_bounds(column) if bounded else NullBounds(1.0, 1.0)
    rates = {"null_warn": bounds.warn, "null_error": bounds.error}
    nulls: Any = {"nullable": True, "metadata": rates} if column.nullable else {}
    copied = Field(description=column.description, **nulls)
    copied.checks = [*column.checks]
    return copied


def day_column(description: str) -> TypeAndField:
    """A DATE column."""
    return T.DateType, Field(description=description)


def _declare_text(description: str) -> TypeAndField:
    """A STRING column."""
    return T.StringType, Field(description=description)


def _declare_file(source: str) -> TypeAndField:
    return _declare_text(f"Landing file, relative to the folder {source}.")


def add_part(model: type[pa.DataFrameModel], partition: str, name: str) -> type[pa.DataFrameModel]:
    """A model with the column of a part after the day, if it has none; its type is STRING."""
    columns = model_columns(model)
    part = columns.pop(name, None) or _declare_text(f"The {name}, from the path of the folder.")
    columns = {partition: columns.pop(partition), name: part, **columns}
    return build_model(model.__name__, model.__doc__ or "", columns)


def raw_model(source: str, lines: type[pa.DataFrameModel]) -> type[pa.DataFrameModel]:
    """The model of the raw log. It has no key: the same line may be sent twice."""
    columns = {
        "log_date": day_column(_LOG_DAY),
        "arrival_date": day_column(_ARRIVAL_DAY),
        **model_columns(lines),
        "source_file": _declare_file(source),
    }
    doc = f"The immutable log of the lines of {source} as they arrived, by log day."
    return build_model("Raw", doc, columns)


def rejected_model(source: str) -> type[pa.DataFrameModel]:
    """The model of the rejected lines. They have no reliable key."""
    columns = {
        "arrival_date": day_column(_ARRIVAL_DAY),
        "source_file": _declare_file(source),
        "text": _declare_text("The line as it arrived; a Parquet row as JSON."),
        "reason": _declare_text("Why it is rejected."),
    }
    doc = f"Landed lines of {source} that could not be read, kept as text with the reason."
    return build_model("Rejected", doc, columns)


def staged_model(source: str, lines: type[pa.DataFrameModel]) -> type[pa.DataFrameModel]:
    """The model of staging: each key has one row a day."""
    columns = {
        "event_date": day_column("Day of the event, in the business time zone."),
        **model_columns(lines),
        "log_date": day_column("Log day of the version that won."),
    }
    doc = f"{source}: each key once on its event day, in the greatest version that came in time."
    return build_model("Staged", doc, columns)


def late_model(source: str, lines: type[pa.DataFrameModel]) -> type[pa.DataFrameModel]:
    """The model of the late lines. It has no key: the same line may be sent twice."""
    columns = {
        "log_date": day_column("Log day."),
        "event_date": day_column("The closed day that the line tells of."),
        "arrival_date": day_column(_ARRIVAL_DAY),
        **model_columns(lines, bounded=False),
        "source_file": _declare_file(source),
    }
    doc = f"Lines of {source} that were logged after the window of their event day had closed."
    return build_model("Late", doc, columns)


#: The type of sums of amounts, unless these have more digits before the point.
_MONEY = T.DecimalType(28, 2)
#: The digits that a sum of ten billion numbers has more than they, and the most that there are.
_MORE_DIGITS, _MOST_DIGITS = 10, 38


class ArrivalLateness(pa.DataFrameModel):
    """How late the lines of each log day were; one row a day."""

    log_date: T.DateType = Field(description="Log day.")
    lines: T.LongType = Field(ge=0, description="Lines logged on this day.")
    late_lines: T.LongType = Field(
        ge=0,
        description="Those of them that came a day or more after they were to: after their event "
        "day, or as many days later as the source says (`arrives_after`), and then on the next day "
        "on which it delivers (`arrives_on`).",
    )
    late_amount: _MONEY = Field(description="Sum of the late lines' amounts.")  # type: ignore[valid-type]
    beyond_lines: T.LongType = Field(ge=0, description="Late lines beyond the window.")
    beyond_amount: _MONEY = Field(  # type: ignore[valid-type]
        description="Sum of the amounts of the lines beyond the window."
    )
    superseded_lines: T.LongType = Field(
        ge=0,
        description="Versions that this day's lines made obsolete: lines of a key that was "
        "known already, by this day or the W days before it.",
    )
    rejected_lines: T.LongType = Field(
        ge=0, description="Lines of this arrival day that could not be read."
    )
    delay_days_p50: T.LongType = nullable_column(
        1.0, 1.0, "Median of how late the late lines are, in days."
    )
    delay_days_p95: T.LongType = nullable_column(1.0, 1.0, "95th percentile of it, in days.")
    delay_days_max: T.LongType = nullable_column(1.0, 1.0, "Longest of it, in days.")
    delay_minutes_p50: T.LongType = nullable_column(
        1.0, 1.0, "Median of version time less event time of the late lines, in minutes."
    )
    delay_minutes_p95: T.LongType = nullable_column(1.0, 1.0, "95th percentile of it, in minutes.")
    delay_minutes_max: T.LongType = nullable_column(1.0, 1.0, "Longest of it, in minutes.")
    delays: T.ArrayType(T.LongType()) = Field(  # type: ignore[valid-type]
        description="Days between event and log day that occur among the lines, ascending."
    )
    lines_by_delay: T.ArrayType(T.LongType()) = Field(  # type: ignore[valid-type]
        description="For each of these delays, how many lines."
    )
    amount_by_delay: T.ArrayType(_MONEY) = Field(  # type: ignore[valid-type]
        description="For each of these delays, the sum of the lines' amounts without their signs."
    )


def lateness_model(amount: T.DataType | None) -> type[pa.DataFrameModel]:
    """The model of the figures of lateness, with sums that are wide enough for a source's amounts.

    `amount` is the type of the amounts; None if the source has none.
    """
    whole = amount.precision - amount.scale if isinstance(amount, T.DecimalType) else 0
    if whole + _MORE_DIGITS <= _MONEY.precision - _MONEY.scale:
        return ArrivalLateness
    digits = min(whole + _MORE_DIGITS + _MONEY.scale, _MOST_DIGITS)
    kind = T.DecimalType(digits, digits - whole - _MORE_DIGITS)
    columns = model_columns(ArrivalLateness)
    for name, wide in {
        "late_amount": kind,
        "beyond_amount": kind,
        "amount_by_delay": T.ArrayType(kind),
    }.items():
        columns[name] = (wide, columns[name][1])
    return build_model("ArrivalLateness", ArrivalLateness.__doc__ or "", columns)
