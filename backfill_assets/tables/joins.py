"""Joins of rows with what was true, and known, at the moment of each."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.tables.spreading import spread_join

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
