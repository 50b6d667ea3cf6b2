"""The assets of tables that a function declares: derived tables, current tables and corrections."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from functools import partial, reduce
from types import MappingProxyType

import dagster as dg
import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.input_frames import (
    AssetInputs,
    OpenServices,
    ServiceAnswers,
    Sums,
    for_days,
    input_frames,
    published_days,
    repeated_key_problems,
    sums_by_day,
)
from backfill_assets.assets.staging import LogLines
from backfill_assets.assets.table_asset import table_asset
from backfill_assets.audit.verdicts import Expectation, sum_exactly, total_value
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, Window, days_condition, to_windows
from backfill_assets.calendar.reach import SAME_DAY
from backfill_assets.delta.data_files import TableSnapshot
from backfill_assets.delta.records import CommitNotes
from backfill_assets.deployment import Deployment
from backfill_assets.publish.compute import explain_function_errors
from backfill_assets.publish.types import ComputedDays
from backfill_assets.spark.frames import Cache, exact_sums, part_key, split_by_part
from backfill_assets.tables.arguments import describe_value
from backfill_assets.tables.columns import count_items
from backfill_assets.tables.derived import (
    FIRST_FOR_DAY,
    FOR_DAY,
    LAST_FOR_DAY,
    ROWS_OF_DAY,
    Corrections,
    Current,
    Derived,
    ExternalTable,
    carries_state,
)
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import asset_name
from backfill_assets.transforms import dedup


def input_sums(
    sources: Sequence[TableSnapshot],
    rows: DataFrame,
    day_column: str,
    columns: Mapping[str, str | None],
    zeros: Mapping[str, int | Decimal],
    days: Window,
    input_days: Mapping[date, date] = MappingProxyType({}),
) -> list[dict[date, Sums]]:
    """Return sums of each input by day: from its commit if recorded there, else from its rows.

    The inputs are parts of one table, whose rows are in one frame. `columns` maps a name to the
    column to sum, or to None to count rows; `zeros` has the values of empty sums. Each day is built
    from the same day of the input, unless `input_days` has another.
    """
    recorded = [
        {
            day: sums
            for day in days
            if (sums := _recorded_sums(source, input_days.get(day, day), columns)) is not None
        }
        for source in sources
    ]
    missing = sorted({day for known in recorded for day in days if day not in known})
    if not missing:
        return recorded
    rest = rows.where(days_condition(missing, day_column))
    aggregations = _aggregations(rest, columns)
    computed = sums_by_day(rest, day_column, aggregations, zeros, sources[0].table.part_column)
    return [
        {**computed.get(source.table.part, {}), **known}
        for source, known in zip(sources, recorded, strict=True)
    ]


def _aggregations(rows: DataFrame, columns: Mapping[str, str | None]) -> dict[str, Column]:
    def aggregate(column: str | None) -> Column:
        if column is None:
            return F.count(F.lit(1))
        if _is_text(rows, column):
            return F.sum(count_items(F.col(column)))
        return sum_exactly(column, rows.schema[column].dataType)

    return {name: aggregate(column) for name, column in columns.items()}


def _is_text(rows: DataFrame, column: str) -> bool:
    """Whether a column that is conserved holds JSON, whose items are counted."""
    return isinstance(rows.schema[column].dataType, T.StringType)


def _recorded_sums(
    source: TableSnapshot, day: date, columns: Mapping[str, str | None]
) -> Sums | None:
    """Return the sums recorded when the day was published; None if not recorded.

    They still hold: a day that another writer changed has no current record.
    """
    if isinstance(source.table, ExternalTable):
        return None  # what others recorded, nobody has counted here
    record = source.ledger.current_record(day)
    known = source.table.zero_totals.keys() & record.totals.keys() if record else frozenset()
    if record is None or not {*columns.values()} <= {None, *known}:
        return None
    return {
        name: record.rows
        if column is None
        else type(source.table.zero_totals[column])(record.totals[column])
        for name, column in columns.items()
    }


def derived_expectations(
    table: Derived,
    parts: Sequence[Mapping[str, TableSnapshot]],
    frames: Mapping[str, DataFrame],
    days: Window,
) -> list[dict[date, Expectation]]:
    """Return, by day of each part, the totals that the inputs require.

    `parts` has the inputs by parameter: of the table, or of each of some parts of it. `frames` have
    the column `for_day`, or the first and the last day that a row counts for.
    """
    totals: list[dict[date, Sums]] = [{day: {} for day in days} for _ in parts]
    for parameter, frame in frames.items():
        columns = {
            check.figure: check.column
            for check in table.conserved
            if check.parameter == asset_name(parameter)
        }
        nothing = {name: table.zero_figures[name] for name in columns}
        sources = [inputs[parameter] for inputs in parts]
        with exact_sums():
            input_totals = _input_totals(table, sources, parameter, frame, columns, days)
            for part_totals, part_inputs in zip(totals, input_totals, strict=True):
                for day, day_totals in part_totals.items():
                    for name, value in part_inputs.get(day, nothing).items():
                        day_totals[name] = day_totals.get(name, table.zero_figures[name]) + value
    return [
        {
            day: _expect_figures(day_totals, {f"expected {n}": v for n, v in day_totals.items()})
            for day, day_totals in part_totals.items()
        }
        for part_totals in totals
    ]


def _expect_figures(figures: Sums, entries: Mapping[str, int | Decimal]) -> Expectation:
    """Return the expectation of a day with these totals and, if it is one of them, row count."""
    totals = {name: value for name, value in figures.items() if name != ROWS_OF_DAY}
    rows = int(figures[ROWS_OF_DAY]) if ROWS_OF_DAY in figures else None
    return Expectation(entries=entries, rows=rows, totals=totals)


def _input_totals(
    table: Derived,
    sources: Sequence[TableSnapshot],
    parameter: str,
    frame: DataFrame,
    columns: Mapping[str, str | None],
    days: Window,
) -> Sequence[Mapping[date, Sums]]:
    """Return, by day of each part of an input, its share of some totals.

    Days without rows may be left out. Of a stateful table, which has one part, the totals of a day
    are those of the day before its range, plus those of all days of the range so far.
    """
    input_reads = table.reads[parameter]
    if not columns:
        return [{} for _ in sources]
    zeros, part_column = table.zero_figures, sources[0].table.part_column
    if input_reads.each_row_once:
        by_part = _sum_day_ranges(frame, columns, zeros, days, part_column)
        return [by_part.get(source.table.part, {}) for source in sources]
    if not (input_reads.of_the_day or carries_state(table)):
        by_part = sums_by_day(frame, FOR_DAY, _aggregations(frame, columns), zeros, part_column)
        return [by_part.get(source.table.part, {}) for source in sources]
    if not carries_state(table):
        return input_sums(sources, frame, FOR_DAY, columns, table.zero_figures, days)
    if input_reads.table is table:
        before = {day: part.start - DAY for part in to_windows(days) for day in part}
        return input_sums(sources, frame, FOR_DAY, columns, table.zero_figures, days, before)
    totals_by_day: dict[date, Sums] = {}
    rows = frame.where(F.col(input_reads.table.partition) == F.col(FOR_DAY))
    (own_day_sums,) = input_sums(sources, rows, FOR_DAY, columns, table.zero_figures, days)
    for day in days:
        so_far, day_sums = totals_by_day.get(day - DAY, {}), own_day_sums.get(day, {})
        totals_by_day[day] = {
            name: so_far.get(name, table.zero_figures[name])
            + day_sums.get(name, table.zero_figures[name])
            for name in columns
        }
    return [totals_by_day]


def _sum_day_ranges(
    frame: DataFrame,
    columns: Mapping[str, str | None],
    zeros: Mapping[str, int | Decimal],
    days: Window,
    part_column: str,
) -> dict[str, dict[date, Sums]]:
    """Return sums by part and day of rows that count for a range of days each."""
    keys = [*part_key(part_column), F.col(FIRST_FOR_DAY), F.col(LAST_FOR_DAY)]
    sums = [
        column.alias(f"_sum_{n}") for n, column in enumerate(_aggregations(frame, columns).values())
    ]
    totals: dict[str, dict[date, Sums]] = {}
    for part, rows in split_by_part(frame.groupBy(*keys).agg(*sums).collect()).items():
        part_totals = totals.setdefault(str(part), {})
        for row in rows:
            for day in Window(row[FIRST_FOR_DAY], row[LAST_FOR_DAY] + DAY):
                if day in days:
                    day_totals = part_totals.setdefault(
                        day, {name: zeros[name] for name in columns}
                    )
                    for n, name in enumerate(columns):
                        day_totals[name] += total_value(row[f"_sum_{n}"], zeros[name])
    return totals


def build_derived_asset(
    deployment: Deployment, parts: Sequence[Derived], open_services: OpenServices | None = None
) -> dg.AssetsDefinition:
    """Build the asset of a derived table, or of the parts of one.

    `open_services` answers its requests, if it has any.
    """
    table = parts[0]
    return table_asset(
        deployment,
        parts,
        partial(_compute_derived, deployment),
        group=table.group,
        lineage=table.lineage,
        lookups=[answers.lookup for answers in table.answers.values()],
        open_services=open_services if table.answers else None,
    )


def _compute_derived(
    deployment: Deployment, parts: Sequence[AssetInputs], cache: Cache, days: Window
) -> list[ComputedDays]:
    """Call the table's function on the input rows of these days and the answers of services."""
    inputs, table = parts[0], parts[0].table
    sources_by_part = [
        {name: part.tables[reads.table.name] for name, reads in part.table.inputs_by_day.items()}
        for part in parts
    ]
    sources = sources_by_part[0]
    frames = input_frames(table, sources_by_part, days, deployment.settings.timezone)
    spark = next(iter(frames.values())).sparkSession
    others = {
        **inputs.unpartitioned_rows(table.unpartitioned, spark),
        **published_days(table, sources, days, spark),
    }
    arguments, answers = _join_parts({**frames, **others}), ServiceAnswers()
    if inputs.services:
        answers = inputs.services.ask_services(table.answers, arguments, cache, days)
    with explain_function_errors(table, days):
        frame = table.transform(**arguments, **answers.frames)
    if not isinstance(frame, DataFrame):
        raise dg.Failure(
            f"{table.name} [{days}]: its function gives {describe_value(frame)}, and no "
            "DataFrame. Nothing was written. Mend the function, and launch these days again.",
            allow_retries=False,
        )
    if any(reads.each_row_once for reads in table.reads.values()):
        # A range of days may have gaps, and a window of its own may reach beyond it. Rows
        # without a day stay, for the audit.
        is_requested = F.expr(days.sql_condition(table.partition))
        frame = frame.where(is_requested | F.col(table.partition).isNull())
    rows = cache(frame)
    expectations = derived_expectations(table, sources_by_part, frames, days)
    computed = []
    for part, part_sources, totals in zip(parts, sources_by_part, expectations, strict=True):
        expected = answers.add_problems(totals)
        for day, problem in repeated_key_problems(part.table, part_sources, days).items():
            expected[day] = replace(expected[day], problems=[*expected[day].problems, problem])
        final = CommitNotes(_final_days(deployment.graph, part.table, part_sources, days))
        computed.append(
            ComputedDays(rows, expected, scattered=True, numbers=answers.numbers, notes=final)
        )
    return computed


def _join_parts(frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Return the frames by parameter; one of several parts has the rows of all."""
    joined: dict[str, DataFrame] = {}
    for name, frame in frames.items():
        parameter = asset_name(name)
        joined[parameter] = joined[parameter].unionAll(frame) if parameter in joined else frame
    return joined


def _final_days(
    graph: Graph, table: Derived, sources: Mapping[str, TableSnapshot], days: Window
) -> set[date]:
    """Return the days of which all input days that decide them are final; a missing one is not."""
    final: set[date] = set()

    def is_final(source: TableSnapshot, day: date) -> bool:
        # A day of a stateful table reads days of the same commit.
        return day in source.ledger.final_days or (source.table is table and day in final)

    for day in days:
        if all(
            is_final(source, input_day)
            for name, source in sources.items()
            for input_day in table.inputs_by_day[name].reach.deciding_days(source.ledger)(day)
            if graph.expects_day(source.table.name, input_day)
        ):
            final.add(day)
    return final


def current_rows(
    table: Current, rows: DataFrame, days: Window, whole: Mapping[str, DataFrame]
) -> DataFrame:
    """Return the rows of some days.

    `rows` is the result of `rank_all`; `whole` has the unpartitioned inputs by parameter.
    """
    (parameter,) = table.base.reads
    counting = dedup.drop_superseded(rows, table.source)
    frame = for_days(counting, table.source.staged.partition, SAME_DAY, days)
    return table.base.transform(**{parameter: frame}, **whole)


def current_expectations(
    parts: Sequence[Current], lines: DataFrame, rows: DataFrame, days: Window, policy: Policy
) -> list[dict[date, Expectation]]:
    """By day of each part: lines that count (counted from the raw log) = rows + superseded.

    `lines` and `rows` are the input and the result of `rank_all`.
    """
    table = parts[0]
    day, part_column = table.source.staged.partition, table.part_column
    keys = table.source.staged.cell_columns
    counted = lines.where(days.sql_condition(day))
    if not policy.corrects:
        counted = counted.where(dedup.within_window(policy.window_days))
    sums = {check.figure: check.column for check in table.base.conserved if check.column}
    row_amounts = {
        name: F.when(
            ~F.col(dedup.SUPERSEDED),
            count_items(F.col(column)) if _is_text(rows, column) else F.col(column),
        )
        for name, column in sums.items()
    }
    both = counted.select(*keys, F.lit(1), F.lit(0), *(F.lit(None) for _ in sums)).unionAll(
        rows.select(*keys, F.lit(0), F.col(dedup.SUPERSEDED).cast("int"), *row_amounts.values())
    )
    # A model may have a total `lines`, but none that begins with an underscore.
    names = ["_lines", "_superseded", *sums]
    summed = both.toDF(*keys, *names)
    aggregations = _aggregations(summed, {name: name for name in names})
    sums_by_part = sums_by_day(summed, day, aggregations, table.zero_totals, part_column)
    nothing: Sums = {name: table.zero_totals.get(name, 0) for name in names}

    def expect(day_sums: Sums) -> Expectation:
        line_count, superseded = day_sums["_lines"], day_sums["_superseded"]
        counting = line_count - superseded
        totals = {
            c.figure: day_sums[c.figure] if c.column else counting for c in table.base.conserved
        }
        return _expect_figures(totals, {"lines": line_count, "superseded": superseded})

    return [
        {d: expect(sums_by_part.get(part.part, {}).get(d, nothing)) for d in days} for part in parts
    ]


def correction_rows(table: Corrections, facts: DataFrame, current: DataFrame) -> DataFrame:
    """Return current minus facts, by day and key; only where there is a difference."""
    types = {column.name: column.dataType for column in table.struct_type}
    less = facts.select(*table.key_columns, *((-F.col(name)).alias(name) for name in table.totals))

    def total_column(name: str) -> Column:
        return F.coalesce(F.sum(name), F.lit(0)).cast(types[name]).alias(name)

    return (
        current.select(*table.key_columns, *table.totals)
        .unionByName(less)
        .groupBy(*table.key_columns)
        .agg(*map(total_column, table.totals))
        .where(reduce(Column.__or__, (F.col(name) != 0 for name in table.totals)))
    )


def correction_expectations(
    table: Corrections,
    fact_sums: Mapping[date, Sums],
    current_sums: Mapping[date, Sums],
    days: Window,
) -> dict[date, Expectation]:
    """By day: facts + corrections = current."""
    expectations = {}
    for day in days:
        fact_totals = fact_sums.get(day, table.zero_totals)
        current_totals = current_sums.get(day, table.zero_totals)
        with exact_sums():
            differences = {name: current_totals[name] - fact_totals[name] for name in table.totals}
        expectations[day] = Expectation(
            entries={
                **fact_totals,
                **{f"current {name}": total for name, total in current_totals.items()},
            },
            totals=differences,
        )
    return expectations


def build_current_asset(deployment: Deployment, parts: Sequence[Current]) -> dg.AssetsDefinition:
    """Build the asset of a current table, or of the parts of one."""
    compute, base = partial(_compute_current, deployment), parts[0].base
    return table_asset(deployment, parts, compute, group=base.group, lineage=parts[0].lineage)


def _compute_current(
    deployment: Deployment, parts: Sequence[AssetInputs], cache: Cache, days: Window
) -> list[ComputedDays]:
    """Compute current rows from all raw log days with lines of these days, however late."""
    table = parts[0].table
    policy = table.source.policy(deployment.settings)
    lines = LogLines.read(deployment, parts, days)
    rows = lines.cache_ranked(
        lambda ranked: dedup.rank_all(
            ranked, table.source, days, policy.window_days, corrects=policy.corrects
        ),
        cache,
    )
    tables = [part.table for part in parts]
    expectations = current_expectations(tables, lines.rows, rows, days, policy)
    whole = parts[0].unpartitioned_rows(table.base.unpartitioned, rows.sparkSession)
    frame = current_rows(table, rows, days, whole)
    return [ComputedDays(frame, expected, scattered=True) for expected in expectations]


def _have_same_rows(sources: Sequence[TableSnapshot], day: date) -> bool:
    """Return whether the audits of tables with the same columns found the same rows for a day."""
    published = [source.ledger.current_record(day) for source in sources]
    return len({record and record.digest for record in published}) == 1 and None not in published


def build_corrections_asset(
    deployment: Deployment, parts: Sequence[Corrections]
) -> dg.AssetsDefinition:
    """Build the asset of a table of corrections, or of the parts of one."""
    return table_asset(
        deployment,
        parts,
        _compute_corrections,
        group=parts[0].facts.group,
        lineage=parts[0].lineage,
    )


def _compute_corrections(
    parts: Sequence[AssetInputs], cache: Cache, days: Window
) -> list[ComputedDays]:
    """Compute current minus facts from the same days of both tables."""
    table = parts[0].table
    pairs = [(p.tables[p.table.facts.name], p.tables[p.table.current.name]) for p in parts]
    differing_days = [d for d in days if not all(_have_same_rows(pair, d) for pair in pairs)]
    sides = [[*side] for side in zip(*pairs, strict=True)]
    frames = [TableSnapshot.read_together(side, differing_days) for side in sides]
    rows = cache(correction_rows(table, *frames))
    columns = {name: name for name in table.totals}
    fact_sums, current_sums = (
        input_sums(side, frame, table.partition, columns, table.zero_totals, days)
        for side, frame in zip(sides, frames, strict=True)
    )
    return [
        ComputedDays(rows, correction_expectations(table, *sums, days), scattered=True)
        for sums in zip(fact_sums, current_sums, strict=True)
    ]
