"""The audit of a frame, with the profile of its days: counts by kind, skew, distributions, drift.

Drift is measured by the population stability index: the sum of (p - q) * ln(p / q) over bins, where
p and q are the shares of rows of two days. Below 0.1 the distributions are similar; above 0.25 they
are different.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import reduce
from itertools import accumulate
from typing import Any, NamedTuple

import pyspark.sql.types as T
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.window import Window as SqlWindow

from backfill_assets.audit import verdicts
from backfill_assets.calendar.partitions import Window
from backfill_assets.spark.frames import PART, part_key, quote_name, split_by_part
from backfill_assets.spark.session import first_error_line
from backfill_assets.tables import table_options
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.table import Table, table_name


def check_conditions(
    frame: DataFrame, table: str, rules: Mapping[str, str], kinds: Mapping[str, str]
) -> None:
    """Raise if Spark cannot evaluate the rules of a table, or the conditions of its counts.

    No Spark job runs: Spark analyzes the columns and their types only.

    Raises:
        DeclarationError: it names the wrong conditions, with Spark's reasons.
    """
    conditions = {
        **{f"the rule {name}": rule for name, rule in rules.items()},
        **{f"the count {kind!r}": condition for kind, condition in kinds.items()},
    }
    if not conditions or not _spark_problem(frame, *conditions.values()):
        return
    raise DeclarationError(
        f"{table}: {'; '.join(_wrong_conditions(frame, conditions))}. Nothing was computed, "
        "and the table is as it was. Mend the condition in the table's declaration, or, where "
        "the table has it as a Delta constraint of its own, drop that (ALTER TABLE ... DROP "
        "CONSTRAINT)."
    )


def _wrong_conditions(frame: DataFrame, conditions: Mapping[str, str]) -> Iterator[str]:
    for name, condition in conditions.items():
        if problem := _spark_problem(frame, condition):
            yield f"{name} ({condition}) is no condition on its columns: {problem}"


def _spark_problem(frame: DataFrame, *conditions: str) -> str:
    """Why Spark cannot evaluate conditions, in one line; empty if it can."""
    try:
        # `count_if`, as in the real query: it also fails for conditions that are not boolean.
        _ = frame.agg(*(F.count_if(F.expr(condition)) for condition in conditions)).schema
    except AnalysisException as error:
        return first_error_line(error)
    return ""


#: By column, the rows of a day in each bin.
Histograms = Mapping[str, Mapping[str, int]]

#: With fewer rows on either side, the index is random.
MIN_DRIFT_ROWS = 100
#: Added to each bin, as an empty bin would make the sum infinite.
_SMOOTHING = 0.5


class Baseline(NamedTuple):
    """The day or version that a day is compared with; `name` is for display."""

    name: str
    histograms: Histograms


class ValueCounts(NamedTuple):
    """How often values occur, by day with rows: bins of watched columns, and most frequent keys.

    Attributes:
        histograms: the distributions of the columns in the model's `drift`.
        most_rows: rows of the most frequent value of each column in the model's `skew`, as figures.
    """

    histograms: Mapping[date, Histograms]
    most_rows: Mapping[date, Mapping[str, int]]


def count_values(
    frame: DataFrame,
    tables: Sequence[Table],
    days: Iterable[date],
    drift: Iterable[str],
    skew: Iterable[str],
) -> Mapping[str, ValueCounts]:
    """Count the values of columns that are watched, for drift or for skew, in one Spark query.

    The result is by part of the table; of a table without parts, it has one.

    Numbers of the same sign and power of two share a bin, so bins are the same for all days. Null
    and zero have bins of their own. For skew, nulls are no value, and a day without rows has 0.
    """
    table = tables[0]
    types = {column.name: column.dataType for column in table.struct_type}
    if not drift and not skew:
        return {part.part: ValueCounts({}, {}) for part in tables}
    # Hashes: columns of all types are counted together, and only 8 bytes of a key are shuffled.
    cells = [
        *(_cell(_DRIFT, name, _bin_column(F.col(name), types[name])) for name in drift),
        *(
            F.when(F.col(name).isNotNull(), _cell(_SKEW, name, F.xxhash64(name).cast("string")))
            for name in skew
        ),
    ]
    keys = [
        *part_key(table.part_column),
        F.col(table.partition).alias("_day"),
    ]
    rows = frame.select(*keys, F.explode(F.array(*cells)).alias("c"))
    groups = [*[PART] * (len(keys) - 1), "_day"]
    counts = rows.where("c is not null").groupBy(*groups, "c.use", "c.name", "c.value").count()
    bins = F.when(F.col("use") == _DRIFT, F.struct("value", "count"))
    by_column = counts.groupBy(*groups, "use", "name").agg(
        F.max("count").alias("most"), F.collect_list(bins).alias("bins")
    )
    rows_by_part = split_by_part(by_column.collect())
    return {
        part.part: _read_counts(rows_by_part.get(part.part, ()), days, drift, skew)
        for part in tables
    }


def _read_counts(
    rows: Iterable[Row], days: Iterable[date], drift: Iterable[str], skew: Iterable[str]
) -> ValueCounts:
    """Return the counts of a part from the rows that Spark has computed."""
    histograms: dict[date, dict[str, Mapping[str, int]]] = {}
    most_rows = {day: dict.fromkeys(map(table_options.most_rows_figure, skew), 0) for day in days}
    for row in rows:
        if row["use"] == _DRIFT:
            # Sorted, so that the same rows give the same record.
            columns = histograms.setdefault(row["_day"], {})
            columns[row["name"]] = dict(sorted((value, count) for value, count in row["bins"]))
        elif row["_day"] in most_rows:
            most_rows[row["_day"]][table_options.most_rows_figure(row["name"])] = row["most"]
    ordered = {day: {name: columns[name] for name in drift} for day, columns in histograms.items()}
    return ValueCounts(ordered, most_rows if skew else {})


def _cell(use: str, name: str, value: Column) -> Column:
    return F.struct(F.lit(use).alias("use"), F.lit(name).alias("name"), value.alias("value"))


#: What a value is counted for.
_DRIFT, _SKEW = "drift", "skew"


def _bin_column(value: Column, kind: T.DataType) -> Column:
    """Return an expression for a value's bin: `null`, `0`, a power of two, `NaN`, or a boolean."""
    if isinstance(kind, T.BooleanType):
        label = value.cast("string")
    else:
        number = value.cast("double")
        sign = F.when(number < 0, "-").otherwise("")
        power = F.floor(F.log2(F.abs(number))).cast("string")
        label = F.when(number == 0, "0").when(F.isnan(number), "NaN")
        label = label.otherwise(F.concat(sign, F.lit("2^"), power))
    return F.when(value.isNull(), "null").otherwise(label)


def stability_index(before: Sequence[int], after: Sequence[int]) -> float:
    """The population stability index of two counts by bin; 0 if their shares are equal."""
    old, new = (
        [(count + _SMOOTHING) / (sum(side) + _SMOOTHING * len(side)) for count in side]
        for side in (before, after)
    )
    return sum((b - a) * math.log(b / a) for a, b in zip(old, new, strict=True))


def ks_statistic(before: Sequence[int], after: Sequence[int]) -> float:
    """The Kolmogorov-Smirnov statistic of two counts by bin: the largest gap of cumulative shares.

    Both count the same bins, in ascending order. 0 if one side has no rows.
    """
    if not (sum(before) and sum(after)):
        return 0.0
    shares_before, shares_after = (
        [count / sum(side) for count in accumulate(side)] for side in (before, after)
    )
    return max(abs(b - a) for a, b in zip(shares_before, shares_after, strict=True))


def _drift_index(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    bins = sorted({*before, *after})
    previous, current = ([side.get(bin_name, 0) for bin_name in bins] for side in (before, after))
    return round(stability_index(previous, current), 6)


def histogram_rows(histograms: Histograms) -> int:
    """The number of rows behind histograms."""
    return max((sum(bins.values()) for bins in histograms.values()), default=0)


def judge_drift(
    bounds: Mapping[str, float], current: Histograms, baseline: Baseline | None
) -> tuple[tuple[verdicts.Severity, str], dict[str, float]]:
    """The drift of a day before it is published: severity, text, and numbers for the UI.

    `bounds` are by column; the baseline is None if there is nothing to compare with.
    """
    rows = histogram_rows(current)
    if baseline is None or not rows or not histogram_rows(baseline.histograms):
        return (verdicts.Severity.OK, f"{rows} rows, and nothing to compare them with"), {}
    indexes = {
        name: _drift_index(baseline.histograms[name], current[name])
        for name in bounds
        if name in baseline.histograms
    }
    few = min(rows, histogram_rows(baseline.histograms)) < MIN_DRIFT_ROWS
    exceeding = (
        {name for name, index in indexes.items() if index > bounds[name]} if not few else set()
    )
    text = ", ".join(
        f"{name} {index:.3f}" + (f" (allowed {bounds[name]:g})" if name in exceeding else "")
        for name, index in indexes.items()
    )
    summary = (
        f"{rows} rows against {histogram_rows(baseline.histograms)} of {baseline.name}; stability "
        f"index: {text}"
    )
    if few:
        summary += f"; below {MIN_DRIFT_ROWS} rows nothing is warned of"
    numbers = {f"drift of {name}": index for name, index in indexes.items()}
    severity = verdicts.Severity.WARN if exceeding else verdicts.Severity.OK
    return (severity, summary), {**numbers, "rows before": histogram_rows(baseline.histograms)}


#: The most forbidden rows whose keys a finding shows.
SHOWN_KEYS = 3


def find_violations(
    frame: DataFrame, tables: Sequence[Table]
) -> Mapping[str, Mapping[date | None, Mapping[str, verdicts.Violation]]]:
    """By part, day and check, the rows that are forbidden; one Spark job for all checks.

    A check gets the rows of one part: it may compare rows with others.
    """
    table = tables[0]
    if not table.forbidden:
        return {}
    frames = {t.part: t.rows_of_part(frame) if len(tables) > 1 else frame for t in tables}
    parts = [F.coalesce(F.col(name).cast("string"), F.lit("null")) for name in table.key]
    key = F.concat(F.lit("("), F.concat_ws(", ", *parts), F.lit(")")) if parts else F.lit(None)
    forbidden_rows = reduce(
        DataFrame.unionAll,
        [
            check.find(rows).select(
                F.lit(part).alias("part"),
                F.lit(check.name).alias("check"),
                F.col(table.partition).alias("day"),
                key.cast("string").alias("key"),
            )
            for part, rows in frames.items()
            for check in table.forbidden
        ],
    )
    # Only the first keys are collected: a list of all could be very long.
    groups = ("part", "check", "day")
    position = F.row_number().over(SqlWindow.partitionBy(*groups).orderBy("key"))
    first_keys = F.collect_list(F.when(F.col("place") <= SHOWN_KEYS, F.col("key")))
    by_check = (
        forbidden_rows.withColumn("place", position)
        .groupBy(*groups)
        .agg(F.count(F.lit(1)).alias("rows"), F.sort_array(first_keys).alias("keys"))
    )
    violations: dict[str, dict[date | None, dict[str, verdicts.Violation]]] = defaultdict(dict)
    for row in by_check.collect():
        violation = verdicts.Violation(row["rows"], tuple(row["keys"]))
        violations[row["part"]].setdefault(row["day"], {})[row["check"]] = violation
    return violations


def count_leftover_rows(
    frame: DataFrame, published_rows: DataFrame, table: Table
) -> dict[date, int]:
    """Count by day the published rows that a merge of the frame would wrongly leave.

    Their key is not in the frame, or the table has them more than once.
    """
    columns = list(table.key_columns)
    # No column of a table has a blank in its name.
    keys = frame.select(*columns).distinct().withColumn("wanted copies", F.lit(1))
    copies = published_rows.groupBy(*columns).agg(F.count(F.lit(1)).alias("all copies"))
    same_key = F.expr(table.same_key("published", "wanted"))
    wrong = copies.alias("published").join(keys.alias("wanted"), same_key, "left")
    surplus = F.col("all copies") - F.coalesce("wanted copies", F.lit(0))
    day = F.col(f"published.{quote_name(table.partition)}")
    counts = wrong.groupBy(day).agg(F.sum(surplus)).collect()
    return {of_day: count for of_day, count in counts if count}


@dataclass(frozen=True)
class PublishedHistory:
    """What is published of a table, to judge its days against.

    Attributes:
        metrics: of its days.
        baselines: the histograms of days whose watched columns were counted.
    """

    metrics: Mapping[date, verdicts.DayMetrics] = field(default_factory=dict)
    baselines: Mapping[date, Baseline] = field(default_factory=dict)


@dataclass(frozen=True)
class FrameAudit:
    """The audit of a frame.

    Attributes:
        verdicts: in the order of the days.
        figures: by day, figures for the UI.
        histograms: by day, of the columns that are watched for drift.
    """

    verdicts: Sequence[verdicts.Verdict]
    figures: Mapping[date, Mapping[str, Any]]
    histograms: Mapping[date, Histograms]


@dataclass(frozen=True)
class MeasuredRows:
    """What Spark has counted in the rows of a table, or of one part of it.

    Attributes:
        metrics: by day; of rows without a day, by None.
        values: of the columns that are watched.
    """

    metrics: Mapping[date | None, verdicts.DayMetrics]
    values: ValueCounts


def measure_frame(
    frame: DataFrame,
    tables: Sequence[Table],
    days: Window,
    rules: Mapping[str, str],
    expectations: Mapping[str, Mapping[date, verdicts.Expectation]],
) -> Mapping[str, MeasuredRows]:
    """Measure the rows of days of a table, or of some parts of it together; the result is by part.

    The frame has the columns and types of the table, see `Table.conform_frame`. `expectations` are
    by part.

    Raises:
        DeclarationError: a condition of the model is not valid SQL.
        RefusedError: rows outside of these days, rows without a day, or no rows where some are
            expected; or a check of the table gives rows of days that the frame does not have.
    """
    table = tables[0]
    check_conditions(frame, table.name, rules, table.counts)
    metrics = verdicts.measure_parts(frame, tables, [*rules.values()], table.counts)
    for part in tables:
        part_metrics = metrics.get(part.part, {})
        verdicts.check_frame_window(part_metrics, part, days, expectations[part.part])
    for name, violations in find_violations(frame, tables).items():
        for day, day_violations in violations.items():
            if day not in metrics.get(name, {}):
                raise verdicts.RefusedError(
                    f"{table_name(table.asset_name, name)} [{days}]: refused, the table is as it "
                    f"was: {', '.join(day_violations)} found rows of {day}, of which the frame has "
                    "none. A check gives rows of the frame."
                )
            metrics[name][day] = replace(metrics[name][day], violations=day_violations)
    values = count_values(frame, tables, days, table.drift, table.skew)
    return {t.part: MeasuredRows(metrics.get(t.part, {}), values[t.part]) for t in tables}


def judge_measured_days(
    table: Table,
    days: Window,
    measured: MeasuredRows,
    expectations: Mapping[date, verdicts.Expectation],
    history: PublishedHistory,
    leftover_rows: Mapping[date, int],
) -> FrameAudit:
    """Judge days, not those between them.

    `leftover_rows` are rows that a merge would leave, see `count_leftover_rows`.
    """
    expected = dict(expectations)
    for merged_day, rows in leftover_rows.items():
        expectation = expected.get(merged_day, verdicts.Expectation())
        expected[merged_day] = expectation.with_problem(
            f"{rows} published row(s) are absent or less frequent in the source, and a merge "
            "would leave them; launch the day without merge"
        )
    metrics, values = measured.metrics, measured.values
    figures: dict[date, dict[str, Any]] = {
        day: {
            **{
                f"count of {kind}": metrics[day].kinds[kind] if day in metrics else 0
                for kind in table.counts
            },
            **values.most_rows.get(day, {}),
        }
        for day in days
    }
    for day in days if table.drift else ():
        baseline = _find_baseline(table, values.histograms, history, day)
        notice, indexes = judge_drift(table.drift, values.histograms.get(day, {}), baseline)
        figures[day] |= indexes
        expectation = expected.get(day, verdicts.Expectation())
        expected[day] = replace(
            expectation,
            notices={**expectation.notices, table_options.DRIFT: notice},
            figures={**expectation.figures, table_options.DRIFT: indexes},
        )
    return FrameAudit(
        verdicts.judge_days(table, days, metrics, expected, history.metrics),
        figures,
        values.histograms,
    )


def _find_baseline(
    table: Table, day_histograms: Mapping[date, Histograms], history: PublishedHistory, day: date
) -> Baseline | None:
    """Return the histograms to compare a day with: those it replaces, or of the last day before."""
    published = history.baselines
    if day in published:
        return published[day]
    for earlier in table.grain.partitions_before(day, verdicts.TRAILING_DAYS):
        histograms = day_histograms.get(earlier)
        if not histograms and earlier in published:
            histograms = published[earlier].histograms
        if histograms:
            return Baseline(str(earlier), histograms)
    return None
