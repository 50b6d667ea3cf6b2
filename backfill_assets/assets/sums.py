"""Sums of rows by day, for what the inputs say of each day."""

from collections.abc import Mapping
from datetime import date
from decimal import Decimal

from pyspark.sql import Column, DataFrame

#: By name, some numbers of a day.
Sums = dict[str, int | Decimal]


def sums_by_day(
    rows: DataFrame,
    day: str,
    aggregations: Mapping[str, Column],
    zeros: Mapping[str, int | Decimal],
) -> dict[date, Sums]:
    """By day that has rows, some sums of them.

    Args:
        rows: of any days.
        day: the column of the day.
        aggregations: the aggregations, by name.
        zeros: by name, what stands for a sum of nothing; 0 if not given.
    """
    if not aggregations:
        return {}
    names, columns = [*aggregations], [*aggregations.values()]
    result_rows = rows.groupBy(day).agg(*columns).collect()
    return {
        partition: {
            name: zeros.get(name, 0) if value is None else value
            for name, value in zip(names, values, strict=True)
        }
        for partition, *values in result_rows
    }
