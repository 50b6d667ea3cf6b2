"""Drift: how far the distribution of a column has moved from what it was.

Told by the population stability index: the sum of (p - q) * ln(p / q) over bins, where p and q are
the shares of rows now and then. Below 0.1 little has moved; above 0.25 it is another distribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import accumulate
from typing import NamedTuple

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.quality.audit import Severity
from backfill_assets.tables.drifts import drifts_of
from backfill_assets.tables.table import Table

#: By column, the rows of a day in each bin.
Histograms = Mapping[str, Mapping[str, int]]

#: With fewer rows on either side, chance alone moves the index.
ENOUGH_ROWS = 100
#: Added to each bin, so that an empty one does not make the sum infinite.
_SMOOTHING = 0.5


class Baseline(NamedTuple):
    """What a day is held against.

    Attributes:
        name: what it is, for a reader.
        histograms: its distributions.
    """

    name: str
    histograms: Histograms


def measure_histograms(frame: DataFrame, table: Table) -> dict[date, Histograms]:
    """By day that has rows, the distributions of the columns that are watched, in one Spark query.

    A number lies in a bin with those of its sign and of its power of two, so bins are the same for
    all days. Null and zero have bins of their own.

    Args:
        frame: the rows.
        table: which columns are watched, see `tables.drifts`.
    """
    types = {column.name: column.dataType for column in table.struct_type}
    watched = drifts_of(table)
    if not watched:
        return {}
    cells = [
        F.struct(F.lit(name).alias("name"), _bin_name(F.col(name), types[name]).alias("bin"))
        for name in watched
    ]
    rows = frame.select(F.col(table.partition).alias("_day"), F.explode(F.array(*cells)).alias("c"))
    by_day: dict[date, dict[str, dict[str, int]]] = {}
    for day, name, bin_name, count in rows.groupBy("_day", "c.name", "c.bin").count().collect():
        by_day.setdefault(day, {}).setdefault(name, {})[bin_name] = count
    # In an order of their own: the same rows are the same record.
    return {
        day: {name: dict(sorted(by_column[name].items())) for name in watched}
        for day, by_column in by_day.items()
    }


def _bin_name(value: Column, kind: T.DataType) -> Column:
    if isinstance(kind, T.BooleanType):
        label = value.cast("string")
    else:
        number = value.cast("double")
        sign = F.when(number < 0, "-").otherwise("")
        power = F.floor(F.log2(F.abs(number))).cast("string")
        label = F.when(number == 0, "0").otherwise(F.concat(sign, F.lit("2^"), power))
    return F.when(value.isNull(), "null").otherwise(label)


def stability_index(before: Sequence[int], after: Sequence[int]) -> float:
    """The population stability index of two counts by bin; 0 if their shares are equal."""
    old, new = (
        [(count + _SMOOTHING) / (sum(side) + _SMOOTHING * len(side)) for count in side]
        for side in (before, after)
    )
    return sum((b - a) * math.log(b / a) for a, b in zip(old, new, strict=True))


def ks_statistic(before: Sequence[int], after: Sequence[int]) -> float:
    """The Kolmogorov-Smirnov statistic of two counts by bin: the largest gap of cumulated shares.

    0 if one side has no rows.
    """
    if not (sum(before) and sum(after)):
        return 0.0
    old, new = ([n / sum(side) for n in accumulate(side)] for side in (before, after))
    return max(abs(b - a) for a, b in zip(old, new, strict=True))


def _drift_index(before: Mapping[str, int], after: Mapping[str, int]) -> float:
    bins = sorted({*before, *after})
    previous, current = ([side.get(bin_name, 0) for bin_name in bins] for side in (before, after))
    return round(stability_index(previous, current), 6)


def histogram_rows(histograms: Histograms) -> int:
    """The number of rows that a spread is of."""
    return max((sum(bins.values()) for bins in histograms.values()), default=0)


def judge_drift(
    table: Table, current: Histograms, baseline: Baseline | None
) -> tuple[tuple[Severity, str], dict[str, float]]:
    """How far a day has moved: the finding, and numbers for the UI.

    Args:
        table: the table.
        current: the day as it is about to be published.
        baseline: what it is held against; none if there is nothing.
    """
    rows = histogram_rows(current)
    if baseline is None or not rows or not histogram_rows(baseline.histograms):
        return (Severity.OK, f"{rows} rows, and nothing to compare them with"), {}
    bounds = drifts_of(table)
    indexes = {
        name: _drift_index(baseline.histograms[name], current[name])
        for name in bounds
        if name in baseline.histograms
    }
    few = min(rows, histogram_rows(baseline.histograms)) < ENOUGH_ROWS
    exceeding = (
        {name for name, index in indexes.items() if index > bounds[name]} if not few else set()
    )
    text = ", ".join(
        f"{name} {index:.3f}" + (f" (allowed {bounds[name]:g})" if name in exceeding else "")
        for name, index in indexes.items()
    )
    summary = f"{rows} rows against {histogram_rows(baseline.histograms)} of {baseline.name}; stability index: {text}"
    if few:
        summary += f"; below {ENOUGH_ROWS} rows nothing is warned of"
    numbers = {f"drift of {name}": index for name, index in indexes.items()}
    severity = Severity.WARN if exceeding else Severity.OK
    return (severity, summary), {**numbers, "rows before": histogram_rows(baseline.histograms)}
