"""Rolling aggregates: partials of each key, combined for each day of an input window.

A partial aggregates the rows of a key that count for the same days, as a tile of Chronon does. So a
row is read and aggregated once, however many days it counts for; only partials are repeated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.tables.derived import FIRST_FOR_DAY, FOR_DAY, LAST_FOR_DAY


@dataclass(frozen=True)
class PartialAggregate:
    """An aggregate that is combined from partials; made by `sum`, `count` and the others.

    Attributes:
        aggregate: of the rows of a partial.
        combine: aggregates partials.
        finish: the value of what was combined, of the type of `aggregate`.
        where: a condition on `for_day`, the key and the kept columns: which partials count.
    """

    aggregate: Column
    combine: Callable[[Column], Column]
    finish: Callable[[Column, T.DataType], Column]
    where: Column | None = None

    @classmethod
    def sum(cls, column: Column | str, *, where: Column | None = None) -> Self:
        """The sum of a column; null without values."""
        return cls(F.sum(column), F.sum, _cast, where)

    @classmethod
    def count(cls, column: Column | str | None = None, *, where: Column | None = None) -> Self:
        """The number of rows, or of the values of a column that are not null."""
        counted = F.count(F.lit(1) if column is None else column)
        return cls(counted, F.sum, lambda value, _: F.coalesce(value, F.lit(0)), where)

    @classmethod
    def min(cls, column: Column | str, *, where: Column | None = None) -> Self:
        """The least value of a column; null without values."""
        return cls(F.min(column), F.min, _cast, where)

    @classmethod
    def max(cls, column: Column | str, *, where: Column | None = None) -> Self:
        """The greatest value of a column; null without values."""
        return cls(F.max(column), F.max, _cast, where)

    @classmethod
    def values(cls, column: Column | str, *, where: Column | None = None) -> Self:
        """The distinct values of a column that are not null, in ascending order, as an array."""
        return cls(
            F.collect_set(column),
            F.collect_list,
            lambda value, _: F.sort_array(F.array_distinct(F.flatten(value))),
            where,
        )


def _cast(value: Column, kind: T.DataType) -> Column:
    """Return a value in the type of its partials: the sum of sums of decimals has more digits."""
    return value.cast(kind)


def repeat_for_each_day(rows: DataFrame) -> DataFrame:
    """Repeat rows that count for a range of days for each of them: `for_day`."""
    days = F.sequence(FIRST_FOR_DAY, LAST_FOR_DAY)
    return rows.withColumn(FOR_DAY, F.explode(days)).drop(FIRST_FOR_DAY, LAST_FOR_DAY)


def combine_days(
    rows: DataFrame,
    by: str | Sequence[str],
    /,
    *,
    keep: Sequence[str] = (),
    **partials: PartialAggregate,
) -> DataFrame:
    """Aggregate the rows of a parameter with `each_row_once` by key, for each day.

    Args:
        rows: with `first_for_day` and `last_for_day`.
        by: the columns of the key.
        keep: columns that partials are made by besides, for conditions in `where`.
        partials: by name of a column, its aggregate.

    Returns:
        `for_day`, the key and the aggregates: a row for each key and day for which a row counts.

    Raises:
        ValueError: there is no partial, or one has the name of another column.
    """
    key = [by] if isinstance(by, str) else [*by]
    taken = {*key, *keep, FOR_DAY, FIRST_FOR_DAY, LAST_FOR_DAY} & partials.keys()
    if taken or not partials:
        problem = f"{min(taken)} is the name of another column" if taken else "it has no partials"
        raise ValueError(f"combine_days: {problem}; give each aggregate a name of its own")
    partial_rows = rows.groupBy(*key, *keep, FIRST_FOR_DAY, LAST_FOR_DAY).agg(
        *(partial.aggregate.alias(name) for name, partial in partials.items())
    )
    kinds = {name: partial_rows.schema[name].dataType for name in partials}
    rows_by_day = repeat_for_each_day(partial_rows)
    return rows_by_day.groupBy(FOR_DAY, *key).agg(
        *(
            partial.finish(partial.combine(_where(F.col(name), partial.where)), kinds[name]).alias(
                name
            )
            for name, partial in partials.items()
        )
    )


def _where(value: Column, condition: Column | None) -> Column:
    return value if condition is None else F.when(condition, value)
