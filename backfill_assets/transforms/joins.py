"""Joins: as of a moment (point in time), and with hot keys spread over several tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

#: No column of a table has a name like these.
_HASH, _SALT, _HOT = "_key_hash", "_salt", "_hot"
#: Types whose values are equal if and only if their hashes are, but for chance.
_HASHED = (T.IntegralType, T.DecimalType, T.BooleanType, T.BinaryType, T.DateType, T.TimestampType)


def spread_join(
    rows: DataFrame,
    other: DataFrame,
    key: str | Sequence[str],
    how: Literal["left", "inner"] = "left",
    *,
    hot: float = 0.05,
    tasks: int = 16,
) -> DataFrame:
    """The join of two frames by their key, with the rows of a hot key in several tasks.

    Its rows are those of `rows.join(other, key, how)`. Spark brings all rows of a key into one
    task, and all rows without a key as well. Here, each row of a hot key gets a number below
    `tasks`, and what the other frame has of these keys is there once for each number. Rows without
    a key match nothing: they get a number too.

    Which keys are hot is counted by Spark when the join runs. So `rows` are read once more, and
    must be the same each time, or a row may miss its match. Use it for joins that were measured to
    wait for one task. Of a hot key, the other frame should have few rows.

    Args:
        rows: the frame with the hot keys.
        other: the other frame.
        key: columns that both have, of the same types.
        how: the join.
        hot: share of the rows with a key (0 to 1) beyond which a key is hot.
        tasks: over how many tasks the rows of a hot key are spread.

    Raises:
        ValueError: a column of the key is missing, or of types that are not spread.
    """
    keys = [key] if isinstance(key, str) else [*key]
    _check_key(rows, other, keys)
    hashed = F.xxhash64(*keys)
    complete = F.lit(True)
    for name in keys:
        complete &= F.col(name).isNotNull()
    number = F.pmod(F.xxhash64(*_hashable_columns(rows)), F.lit(tasks)).cast("int")
    hot_keys = F.broadcast(_hot_keys(rows.where(complete).select(hashed.alias(_HASH)), hot))
    salted = rows.withColumn(_HASH, hashed).join(hot_keys, _HASH, "left")
    salted = salted.withColumn(_SALT, F.when(~complete | F.col(_HOT), number).otherwise(F.lit(0)))
    numbers = F.when(F.col(_HOT), F.sequence(F.lit(0), F.lit(tasks - 1)))
    numbers = F.coalesce(numbers, F.array(F.lit(0)))
    copies = other.dropna(subset=keys).withColumn(_HASH, hashed).join(hot_keys, _HASH, "left")
    copies = copies.withColumn(_SALT, F.explode(numbers))
    joined = salted.drop(_HASH, _HOT).join(copies.drop(_HASH, _HOT), [*keys, _SALT], how)
    return joined.drop(_SALT)


def _hot_keys(hashes: DataFrame, hot: float) -> DataFrame:
    """The hashes of the hot keys, with true; counted exactly, so that each look finds the same."""
    counts = hashes.groupBy(_HASH).agg(F.count(F.lit(1)).alias("rows"))
    total = F.broadcast(counts.agg(F.sum("rows").alias("total")))
    hot_hashes = counts.crossJoin(total).where(F.col("rows") > F.col("total") * hot)
    return hot_hashes.select(_HASH, F.lit(True).alias(_HOT))


def _hashable_columns(frame: DataFrame) -> list[str]:
    """The columns that have a hash; maps, and what holds some, have none."""
    return [
        field.name for field in frame.schema.fields if "map<" not in field.dataType.simpleString()
    ]


def _check_key(rows: DataFrame, other: DataFrame, keys: Sequence[str]) -> None:
    """Refuse a key whose hash may differ although it is equal."""
    for frame_name, frame in (("rows", rows), ("other", other)):
        if missing := sorted({*keys} - {*frame.columns}):
            raise ValueError(f"spread_join: {frame_name} has no column {', '.join(missing)}")
    for name in keys:
        kind, others = rows.schema[name].dataType, other.schema[name].dataType
        if kind != others:
            raise ValueError(
                f"spread_join: {name} is {kind.simpleString()} in the rows and "
                f"{others.simpleString()} in the other frame: cast one of them"
            )
        if kind != T.StringType() and not isinstance(kind, _HASHED):
            raise ValueError(f"spread_join: {name} is {kind.simpleString()}, which is not spread")


#: No column of a table has a name like this.
_VERSIONS, _VERSION = "_versions", "_version"


def as_of(
    rows: DataFrame,
    versions: DataFrame,
    *,
    key: str | Sequence[str],
    at: str,
    valid_from: str,
    known: str,
    cutoff: str | Column,
    hot: float | None = None,
) -> DataFrame:
    """Rows, each with the version of its key that held at its moment, as far as it was known.

    Of the versions with `valid_from <= at` and `known <= cutoff`, the one with the latest
    `valid_from` is taken; of several, the one that became known last; of several, the greatest in
    its other columns. A version holds until the next one begins: what ends is a version too, such
    as one that says `is_deleted`.

    The cutoff has no default: what was written after the moment of a row is not to be in it, unless
    somebody says so. Let `cutoff` be `at` for what was known at that moment.

    Each row stays once. Without such a version, and where the key is null, it has nulls. Both
    frames are shuffled once, by the key. The versions of a key stand in one row of Spark: these may
    be thousands, and not millions.

    Args:
        rows: any frame.
        versions: its columns are those of the key, and others than those of the rows.
        key: columns that both have. Where the inputs of a table have `for_day`, it is one of them.
        at: column of the rows: the moment.
        valid_from: column of the versions: since when it holds.
        known: column of the versions: since when it is known.
        cutoff: column of the rows, or an expression over them: what became known later is left out.
        hot: share of the rows (0 to 1) beyond which those of a key are spread, see `spread_join`.

    Returns:
        The columns of the rows, and those of the versions that are not of the key.

    Raises:
        ValueError: a column is not there, or both frames have it.
    """
    keys = [key] if isinstance(key, str) else [*key]
    others = [name for name in versions.columns if name not in keys]
    _check_columns(rows, versions, keys, at, {valid_from, known})
    by_key = _by_key(versions, keys, (valid_from, known, *others))
    until = F.col(cutoff) if isinstance(cutoff, str) else cutoff

    def is_candidate(version: Column) -> Column:
        return (version[valid_from] <= F.col(at)) & (version[known] <= until)

    joined = spread_join(rows, by_key, keys, hot=hot) if hot else rows.join(by_key, keys, "left")
    return joined.withColumn(_VERSION, F.array_max(F.filter(_VERSIONS, is_candidate))).select(
        *rows.columns, *(F.col(_VERSION)[name].alias(name) for name in others)
    )


def _by_key(versions: DataFrame, keys: Sequence[str], order: Sequence[str]) -> DataFrame:
    """The versions of each key in one row, each as a struct whose first columns decide."""
    struct = F.struct(*dict.fromkeys(order))
    return (
        versions.dropna(subset=[*keys]).groupBy(*keys).agg(F.collect_list(struct).alias(_VERSIONS))
    )


def _check_columns(
    rows: DataFrame, versions: DataFrame, keys: Sequence[str], at: str, moments: set[str]
) -> None:
    """Refuse frames that lack a column, or both have one."""
    for frame_name, frame, names in (
        ("the rows", rows, {*keys, at}),
        ("the versions", versions, {*keys, *moments}),
    ):
        if missing := sorted(names - {*frame.columns}):
            raise ValueError(f"as_of: {frame_name} have no column {', '.join(missing)}")
    if both := sorted({*rows.columns} & {*versions.columns} - {*keys}):
        raise ValueError(
            f"as_of: rows and versions both have {', '.join(both)}: rename or drop one of them"
        )
