"""Input frames of a step: the rows of inputs for each day, and items of arrays in them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from functools import reduce
from typing import Any, Protocol

import dagster as dg
import msgspec
import pandera.pyspark as pa
import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.audit.verdicts import Expectation, total_value
from backfill_assets.calendar.partitions import DAY, Grain, Window, days_condition, to_windows
from backfill_assets.calendar.reach import SAME_DAY, GrainReach, PartitionsReach, Reach
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.delta_rs import load_log
from backfill_assets.delta.ledger_reader import UnpartitionedState, read_unpartitioned_inputs
from backfill_assets.publish.types import ComputedDays
from backfill_assets.spark.frames import Cache, Share, create_frame, part_key, split_by_part
from backfill_assets.tables import unpartitioned
from backfill_assets.tables.arguments import Argument, DeclarationError, check_arguments, is_name
from backfill_assets.tables.columns import count_items, holds_json
from backfill_assets.tables.derived import (
    FIRST_FOR_DAY,
    FOR_DAY,
    LAST_FOR_DAY,
    Derived,
    ExternalTable,
    Reads,
    carries_state,
)
from backfill_assets.tables.source_models import without_aliases
from backfill_assets.tables.sources import FIELD_TYPES, SourceTable
from backfill_assets.tables.table import Table
from backfill_assets.tables.table_options import model_argument, suggest_name, wrong_model
from backfill_assets.transforms.dedup import as_known, with_event_day
from backfill_assets.transforms.raw_rows import field_reason, parse_text
from backfill_assets.transforms.rolling import repeat_for_each_day

#: Numbers of a day, by name.
Sums = dict[str, int | Decimal]


def sums_by_day(
    rows: DataFrame,
    day: str,
    aggregations: Mapping[str, Column],
    zeros: Mapping[str, int | Decimal],
    part_column: str = "",
) -> dict[str, dict[date, Sums]]:
    """Return some sums by part, and by day that has rows; without a column, the part is ''.

    `zeros` has the values of empty sums, by default 0.
    """
    if not aggregations:
        return {}
    sums = [column.alias(f"_sum_{n}") for n, column in enumerate(aggregations.values())]
    grouped = rows.groupBy(*part_key(part_column), F.col(day).alias("_day"))
    return {
        str(part): {
            row["_day"]: {
                name: total_value(row[f"_sum_{n}"], zeros.get(name, 0))
                for n, name in enumerate(aggregations)
            }
            for row in part_rows
        }
        for part, part_rows in split_by_part(grouped.agg(*sums).collect()).items()
    }


_PUBLISHED_SCHEMA = T.StructType(
    [T.StructField(name, T.DateType(), False) for name in (FOR_DAY, "day")]
)


def for_days(rows: DataFrame, partition: str, reach: Reach, days: Window) -> DataFrame:
    """Repeat each row of an input for each of the days that it decides.

    Returns:
        The columns of the input, and `for_day`.
    """
    day = F.col(partition)
    if reach == SAME_DAY:
        return rows.withColumn(FOR_DAY, day).where(days.sql_condition(partition))
    if isinstance(reach, GrainReach):
        first_day = _first_day(day, reach.grain)
        return rows.withColumn(FOR_DAY, first_day).where(days.sql_condition(FOR_DAY))
    if isinstance(reach, PartitionsReach):
        is_monthly = reach.grain is Grain.MONTHLY
        last = F.add_months(day, reach.before) if is_monthly else day + 7 * reach.before
        step = F.expr("INTERVAL '1' MONTH" if is_monthly else "INTERVAL '7' DAY")
        repeated = rows.withColumn(FOR_DAY, F.explode(F.sequence(day, last, step)))
        return repeated.where(days.sql_condition(FOR_DAY))
    repeated_rows = repeat_for_each_day(add_day_ranges(rows, partition, reach, days))
    return repeated_rows.where(days.sql_condition(FOR_DAY))


def _first_day(day: Column, grain: Grain) -> Column:
    """Return `Grain.first_day` of a column, for weeks and months."""
    if grain.first_weekday is None:
        return F.trunc(day, "month")
    return F.date_sub(day, F.pmod(F.weekday(day) - F.lit(grain.first_weekday), F.lit(7)))


def add_day_ranges(rows: DataFrame, partition: str, reach: Reach, days: Window) -> DataFrame:
    """Add to each row of an input the first and the last of the days for which it counts."""
    day, last = F.col(partition), days.end - DAY
    return rows.withColumns(
        {
            FIRST_FOR_DAY: F.greatest(F.date_sub(day, reach.after), F.lit(days.start)),
            LAST_FOR_DAY: F.least(F.date_add(day, reach.before), F.lit(last)),
        }
    ).where(F.col(FIRST_FOR_DAY) <= F.col(LAST_FOR_DAY))


def input_frames(
    table: Derived,
    parts: Sequence[Mapping[str, TableSnapshot]],
    days: Window,
    timezone: str,
) -> dict[str, DataFrame]:
    """Return the rows of the partitioned inputs by parameter, with the days they count for.

    `parts` has the inputs by parameter: of the table, or of each of some parts of it.
    """
    if carries_state(table):
        (sources,) = parts
        return _stateful_frames(table, sources, days)
    frames: dict[str, DataFrame] = {}
    for name, reads in table.reads.items():
        rows = TableSnapshot.read_together(
            [sources[name] for sources in parts], reads.reach.input_days(days)
        )
        if reads.as_known:
            frames[name] = known_rows(rows, reads, days, timezone)
        else:
            add_days = add_day_ranges if reads.each_row_once else for_days
            frames[name] = add_days(rows, reads.table.partition, reads.reach, days)
    return frames


def _stateful_frames(
    table: Derived, sources: Mapping[str, TableSnapshot], days: Window
) -> dict[str, DataFrame]:
    """Return the inputs of a stateful table.

    For each range of days without a gap, the state is that of the day before it, repeated for all
    its days; a row of another input is repeated for its own day and the later ones of the range.
    """
    frames: dict[str, DataFrame] = {}
    for name, reads in table.reads.items():
        if reads.table is not table:
            # The rows first: reading them starts the Spark session that a column needs.
            frames[name] = _repeat_over_stretches(
                (sources[name].read_days(stretch), F.col(reads.table.partition), stretch)
                for stretch in to_windows(days)
            )
    spark = next(iter(frames.values())).sparkSession
    for name, reads in table.reads.items():
        if reads.table is table:
            frames[name] = _repeat_over_stretches(
                (
                    _state_rows(sources[name], stretch.start - DAY, spark),
                    F.lit(stretch.start),
                    stretch,
                )
                for stretch in to_windows(days)
            )
    return frames


def _repeat_over_stretches(parts: Iterable[tuple[DataFrame, Column, Window]]) -> DataFrame:
    """Repeat rows for each day of their range, from a first day on."""
    return reduce(
        DataFrame.unionAll,
        (
            rows.withColumn(FOR_DAY, F.explode(F.sequence(first, F.lit(stretch.end - DAY))))
            for rows, first, stretch in parts
        ),
    )


def _state_rows(source: TableSnapshot, day: date, spark: SparkSession) -> DataFrame:
    """Return the rows of a day of the stateful table itself; empty if it does not exist yet."""
    if source.ledger.version is None:
        return create_frame(spark, source.table.struct_type, [])
    return source.read_days([day])


def known_rows(rows: DataFrame, reads: Reads, days: Window, timezone: str) -> DataFrame:
    """Return what was known of a source at the end of each day.

    `rows` are those of its raw log, of the days in the reach.
    """
    assert isinstance(reads.table, SourceTable)
    source = reads.table.source
    known = as_known(with_event_day(rows, source, timezone), source, reads.reach, days)
    if reads.each_row_once:
        return known
    return repeat_for_each_day(known).where(days.sql_condition(FOR_DAY))


def published_days(
    table: Derived, sources: Mapping[str, TableSnapshot], days: Window, spark: SparkSession
) -> dict[str, DataFrame]:
    """Return the published input days, for each parameter that requests them."""
    frames = {}
    for name, reads in table.published.items():
        ledger = sources[name].ledger
        deciding = reads.reach.deciding_days(ledger)
        rows = [(day, d) for day in days for d in deciding(day) if d in ledger.published_days]
        frames[name] = create_frame(spark, _PUBLISHED_SCHEMA, rows)
    return frames


def repeated_key_problems(
    table: Derived, sources: Mapping[str, TableSnapshot], days: Window
) -> dict[date, str]:
    """Return, by day, the input days that decide it and have several rows of one key.

    Commits of this package have passed the check of keys. So only tables of others are read, and
    input days that another writer has changed: typically an old job appended its rows twice.
    """
    messages: dict[date, list[str]] = {}
    for name, reads in table.reads.items():
        ledger, key = sources[name].ledger, (reads.table.partition, *reads.table.key)
        is_external = isinstance(reads.table, ExternalTable)
        deciding = reads.reach.deciding_days(ledger)
        reached = {day: {*deciding(day)} for day in days}
        foreign_days = {
            day
            for day in set().union(*reached.values()) & ledger.published_days
            if reads.table.key and (is_external or ledger.current_record(day) is None)
        }
        if foreign_days and (
            repeated_rows := _count_repeated_rows(
                sources[name].read_days(foreign_days), foreign_days, key
            )
        ):
            for day in days:
                messages.setdefault(day, []).extend(
                    f"{reads.table.name}[{d}] has {repeated_rows[d]} row(s) that repeat a "
                    f"({', '.join(reads.table.key)}), as another writer left it; "
                    + ("have it mended there" if is_external else "rebuild it first")
                    for d in sorted(reached[day] & repeated_rows.keys())
                )
    return {day: "; ".join(texts) for day, texts in messages.items() if texts}


def _count_repeated_rows(
    rows: DataFrame, days: Iterable[date], key: tuple[str, ...]
) -> dict[date, int]:
    """Return, by day with repeated keys, the number of rows beyond the first of their key."""
    day = key[0]
    keys = rows.where(days_condition(days, day)).groupBy(*dict.fromkeys(key))
    # No column of a table has a blank in its name.
    more = keys.agg((F.count(F.lit(1)) - 1).alias("more rows")).where(F.col("more rows") > 0)
    counts = more.groupBy(day).agg(F.sum("more rows"))
    return dict(counts.collect())


@dataclass(frozen=True)
class ServiceAnswers:
    """Answers of services to the requests of some days.

    Attributes:
        frames: by parameter, the requests with their answers, and `for_day`.
        problems: by day, why it cannot be published.
        numbers: by day, figures for the UI.
    """

    frames: Mapping[str, DataFrame] = field(default_factory=dict)
    problems: Mapping[date, Sequence[str]] = field(default_factory=dict)
    numbers: Mapping[date, Mapping[str, int]] = field(default_factory=dict)

    def add_problems(self, expectations: Mapping[date, Expectation]) -> dict[date, Expectation]:
        """Return the expectations by day, with the problems added."""
        return {
            day: replace(expectation, problems=[*expectation.problems, *self.problems.get(day, ())])
            for day, expectation in expectations.items()
        }


class Services(Protocol):
    """Answers the requests that tables declare; `lookups.answers` calls services for them."""

    def create_answer_tables(self, lookups: Iterable[unpartitioned.Lookup]) -> None:
        """Create missing answer tables, before days are planned with their content."""

    def ask_services(
        self,
        asks: Mapping[str, unpartitioned.LookupAnswers],
        frames: Mapping[str, DataFrame],
        cache: Cache,
        days: Window,
    ) -> ServiceAnswers:
        """Return the answers to the requests of days."""


#: Gives the services of a step, by its context and the warehouse.
OpenServices = Callable[[dg.AssetExecutionContext, str], Services]


@dataclass(frozen=True)
class AssetInputs:
    """The inputs of a table in a run, each input at one version.

    Attributes:
        table: the table that is computed.
        tables: the partitioned inputs, by name.
        references: the unpartitioned inputs, by name.
        services: answers the requests of the run; None if the table has none.
        run_tables: the tables of the run.
        share: shares a cached frame with other steps of the run.
    """

    table: Any
    tables: Mapping[str, TableSnapshot]
    references: Mapping[str, UnpartitionedState]
    services: Services | None
    run_tables: AbstractSet[str]
    share: Share

    def unpartitioned_rows(
        self, inputs: Mapping[str, unpartitioned.Unpartitioned], spark: SparkSession
    ) -> dict[str, DataFrame]:
        """Return all rows of unpartitioned inputs, by parameter."""
        return {
            name: self.references[reference.name].read_rows(spark)
            for name, reference in inputs.items()
        }


def read_inputs(
    parts: Sequence[AssetInputs], find_input: Callable[[Any], Table], days: Iterable[date]
) -> DataFrame:
    """Read some days of an input of tables, which may be parts of one; `find_input` names it."""
    return TableSnapshot.read_together(
        [inputs.tables[find_input(inputs.table).name] for inputs in parts], days
    )


def reference_observations(table: Table, warehouse: str) -> Iterator[dg.AssetObservation]:
    """Yield an observation of each unpartitioned input: its version and columns.

    This package defines no asset for them: if Dagster builds such a table, it has one of that name.
    """
    for name, reference in read_unpartitioned_inputs(table, warehouse).items():
        log = load_log(reference.url)
        if log is None:
            continue
        columns = [
            dg.TableColumn(field.name, str(getattr(field.type, "type", field.type)))
            for field in log.schema().fields
        ]
        yield dg.AssetObservation(
            name,
            metadata={
                "dagster/uri": reference.url,
                "delta_version": log.version(),
                "dagster/column_schema": dg.TableSchema(columns),
            },
            tags={"dagster/data_version": str(reference.content)},
        )


def reference_digests(
    table: Table, references: Mapping[str, UnpartitionedState], window: Window
) -> dict[str, str]:
    """Return the content of the unpartitioned inputs, by name.

    Raises:
        dagster.Failure: one of them does not exist.
    """
    digests = {
        name: reference.content
        for name, reference in references.items()
        if reference.content is not None
    }
    if missing := [
        f"{name} at {reference.url}"
        for name, reference in references.items()
        if name not in digests
    ]:
        raise dg.Failure(
            f"{table.name} [{window}] cannot be made: there is no Delta table {', '.join(missing)}."
            " Nothing was written. Put the table there, and launch these days again.",
            allow_retries=False,
        )
    return digests


def record_references(
    computed: ComputedDays, references: Mapping[str, UnpartitionedState], days: Window
) -> ComputedDays:
    """Add the content of the unpartitioned inputs to what the commit records.

    A change of such an input makes these days stale.
    """
    if not references:
        return computed
    # A later version of a growing input has the same rows for a day.
    numbers = {
        f"input version {name}": reference.version
        for name, reference in references.items()
        if not reference.grows
    }
    contents = {name: reference.content for name, reference in references.items()}
    details = msgspec.structs.replace(computed.notes.details, references=contents)
    with_versions = computed.with_numbers(dict.fromkeys(days, numbers))
    return replace(with_versions, notes=replace(computed.notes, details=details))


# --- items of arrays ------------------------------------------------------------------------------

_ARRAY, _ITEM = "_array", "_item"


def explode_json(
    frame: DataFrame,
    column: str,
    model: type[pa.DataFrameModel],
    *,
    number: str = "item_number",
    problem: str = "item_problem",
    timezone: str = "UTC",
) -> DataFrame:
    """The items of arrays in JSON text, a row each: for a column that `json_column` declares.

    No item is lost. One that is not as the model says has null in all fields, and the reason in the
    column `problem`; a text that is no array is one such row. So the fields are nullable in the
    model of the table, with bounds on the share of such items. `counts` tells their number, and
    `conserves_total` checks that a day has as many rows as its input has items::

        @table(
            TicketItem,
            partition="run_date",
            key=["ticket_id", "item_number"],
            counts={"rejected_items": "item_problem IS NOT NULL"},
            checks=[conserves_total("tickets", "items")],
        )
        def ticket_items(tickets: Annotated[DataFrame, Reads(TICKETS.staged)]) -> DataFrame:
            items = explode_json(tickets, "items", Item)
            return items.withColumnRenamed("for_day", "run_date").select(*COLUMNS)

    Args:
        frame: the rows.
        column: the column with the arrays. Null and an empty array have no items.
        model: the pandera model of an item, with the types that a source's lines may have. A field
            is found by its name in the item, or by its `alias`.
        number: the name of the column with the number of an item in its array, from 1.
        problem: the name of the column with the reason why an item is not as the model says; null
            if it is.
        timezone: IANA name of the zone of times that have no offset.

    Returns:
        The columns of the frame without `column`, then `number`, the fields, and `problem`.

    Raises:
        DeclarationError: the frame has no such column, a name is there twice, or the model has a
            type that no field of a line may have.
    """
    own_names = {"number": number, "problem": problem}
    arguments = [Argument(*pair, is_name, "a name") for pair in own_names.items()]
    check_arguments("explode_json", [model_argument(model), *arguments])
    items, aliases = without_aliases(model)
    _raise_if_wrong(frame, column, items, [number, problem])
    fields: dict[str, Any] = dict(items.to_schema().columns)
    others = [name for name in frame.columns if name != column]
    rows = _item_rows(frame, column, number)
    file_names = {name: alias for alias, name in aliases.items()}
    texts = {name: _field_text(file_names.get(name, name)) for name in fields}
    rows = rows.withColumns({f"_text_{name}": value for name, value in texts.items()})
    kinds = {name: declared.dtype.type for name, declared in fields.items()}
    values = {
        name: text if _is_plain_text(fields[name]) else parse_text(text, kinds[name], timezone)
        for name, text in ((name, F.col(f"_text_{name}")) for name in fields)
    }
    rows = rows.withColumns(values)
    reasons = [_field_problem(n, file_names.get(n, n), fields[n]) for n in fields]
    not_taken_apart = (
        F.when(~F.col(_ARRAY), "not a JSON array")
        .when(F.col(_ITEM).isNull(), "in an array in which a key is there twice in an item")
        .when(~F.schema_of_variant(_ITEM).startswith("OBJECT"), "not a JSON object")
    )
    rows = rows.withColumn(problem, F.coalesce(not_taken_apart, *reasons))
    return rows.select(
        *others,
        number,
        *(F.when(F.col(problem).isNull(), F.col(name)).alias(name) for name in fields),
        problem,
    )


def _item_rows(frame: DataFrame, column: str, number: str) -> DataFrame:
    """A row for each item, as a VARIANT; it is null if its text could not be taken apart."""
    text = F.col(column)
    array = F.try_variant_get(F.try_parse_json(text), F.lit("$"), "array<variant>")
    unreadable = F.array_repeat(F.lit(None).cast("variant"), count_items(text))
    items = F.posexplode(F.coalesce(array, unreadable)).alias(number, _ITEM)
    is_array = F.json_array_length(text).isNotNull().alias(_ARRAY)
    rows = frame.select(*(n for n in frame.columns if n != column), is_array, items)
    return rows.withColumn(number, F.col(number).cast("long") + 1)


def _raise_if_wrong(
    frame: DataFrame, column: str, model: type[pa.DataFrameModel], own: Sequence[str]
) -> None:
    """Raise if a frame has no such column, a name is there twice, or a type is impossible."""
    if column not in frame.columns:
        raise DeclarationError(
            f"explode_json: the frame has no column {column}{suggest_name(column, frame.columns)}"
        )
    if wrong := wrong_model(model):
        raise DeclarationError(f"explode_json: {'; '.join(wrong)}")
    names = [name for name in frame.columns if name != column]
    for name, declared in model.to_schema().columns.items():
        if not isinstance(kind := declared.dtype.type, FIELD_TYPES):
            raise DeclarationError(
                f"explode_json: {name} is {kind.simpleString()}, which no field may be"
            )
        names.append(name)
    lower_names = [name.lower() for name in (*names, *own)]
    if repeated := [name for name in (*names, *own) if lower_names.count(name.lower()) > 1]:
        raise DeclarationError(
            f"explode_json: the items and the frame both have {repeated[0]}: rename one of them"
        )


def _path(name: str) -> Column:
    quote = '"' if "'" in name else "'"
    return F.lit(f"$[{quote}{name}{quote}]")


def _field_text(name: str) -> Column:
    """A field of an item as text, nested values as JSON; null if there is none, or no text."""
    return F.nullif(F.try_variant_get(F.col(_ITEM), _path(name), "string"), F.lit(""))


def _is_plain_text(declared: Any) -> bool:
    return isinstance(declared.dtype.type, T.StringType) and not holds_json(declared)


def _field_problem(name: str, file_name: str, declared: Any) -> Column:
    """Why a field of an item is invalid; a text may be a string, or a whole number as written."""
    text = F.col(f"_text_{name}")
    reason = field_reason(name, declared, text, is_text=True)
    if not _is_plain_text(declared):
        return reason
    kind = F.schema_of_variant(F.try_variant_get(F.col(_ITEM), _path(file_name), "variant"))
    is_identifier = kind.isin("STRING", "BIGINT") | kind.rlike(r"^DECIMAL\(\d+,0\)$")
    wrong_type = F.when(text.isNotNull() & ~is_identifier, f"bad {name}: not a string")
    return F.coalesce(wrong_type, reason)
