"""A join whose rows of hot keys are spread over several tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyspark.sql.types as T
from pyspark.sql import DataFrame
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
