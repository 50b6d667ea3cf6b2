"""Point-in-time transforms: as-of joins, histories of versions (SCD 2), and salted joins.

A history is a table that carries state: each of its days has all changes that were logged by then,
each in its latest version. So a day is computed from the day before and its own changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyspark.sql.types as T
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window, WindowSpec

from backfill_assets.tables.columns import Forbidden, Rule, forbids_rows
from backfill_assets.tables.derived import FOR_DAY

#: Temporary columns; no column of a table has such a name.
_HASH, _SALT, _HOT = "_key_hash", "_salt", "_hot"
#: Types whose values are equal if and only if their hashes are, except for collisions.
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

    Its rows are those of `rows.join(other, key, how)`. Spark moves all rows of a key into one
    task, and all rows without a key as well. Here, each row of a hot key gets a number below
    `tasks`, and the other frame's rows of this key are repeated for each number. Rows without a
    key match nothing: they get a number too.

    Spark counts the rows by key when the join runs, to find the hot keys. So `rows` are read twice,
    and must be the same each time, or a row may miss its match. Use it for a join that was measured
    to wait for one task. The other frame should have few rows per hot key.

    Args:
        rows: the frame with the hot keys.
        other: the other frame.
        key: columns that both have, of the same types.
        how: the join.
        hot: share of the rows with a key (0 to 1) beyond which a key is hot.
        tasks: number of tasks over which the rows of a hot key are spread.

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
    """The hashes of the hot keys, with true; exact counts, so that each run finds the same keys."""
    counts = hashes.groupBy(_HASH).agg(F.count(F.lit(1)).alias("rows"))
    total = F.broadcast(counts.agg(F.sum("rows").alias("total")))
    hot_hashes = counts.crossJoin(total).where(F.col("rows") > F.col("total") * hot)
    return hot_hashes.select(_HASH, F.lit(True).alias(_HOT))


def _hashable_columns(frame: DataFrame) -> list[str]:
    """The columns that Spark can hash; maps, and types that contain one, have no hash."""
    return [
        field.name for field in frame.schema.fields if "map<" not in field.dataType.simpleString()
    ]


def _check_key(rows: DataFrame, other: DataFrame, keys: Sequence[str]) -> None:
    """Raise if a column of the key is missing, or equal values may have different hashes."""
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


#: Temporary columns; no column of a table has such a name.
_VERSIONS, _VERSION = "_versions", "_version"


def as_of_join(
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
    """Rows, each with the version of its key that was valid at its moment, as far as it was known.

    Of the versions with `valid_from <= at` and `known <= cutoff`, it is the one with the latest
    `valid_from`; of several, the one that became known last; of several, the greatest in its other
    columns. A version is valid until the next one begins: an end is a version too, such as one
    with `is_deleted`.

    The cutoff has no default: data written after the moment of a row must not be used unless this
    is chosen explicitly. Let `cutoff` be `at` for what was known at that moment.

    Each row occurs once. Without such a version, or with a null key, it has nulls. Both frames are
    shuffled once, by the key. All versions of a key are in one row of Spark: these may be
    thousands, but not millions.

    Args:
        rows: any frame.
        versions: has the columns of the key; none of its other columns may be in the rows.
        key: columns that both have. If the inputs of a table have `for_day`, it is one of them.
        at: column of the rows: the moment.
        valid_from: column of the versions: the time since which it is valid.
        known: column of the versions: the time since which it is known.
        cutoff: column of the rows, or an expression over them: versions known later are ignored.
        hot: share of the rows (0 to 1) beyond which those of a key are spread, see `spread_join`.

    Returns:
        The columns of the rows, and those of the versions that are not part of the key.

    Raises:
        ValueError: a column is missing, or both frames have it.
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
    """The versions of each key in one row, as structs that sort by the columns of `order`."""
    struct = F.struct(*dict.fromkeys(order))
    return (
        versions.dropna(subset=[*keys]).groupBy(*keys).agg(F.collect_list(struct).alias(_VERSIONS))
    )


def _check_columns(
    rows: DataFrame, versions: DataFrame, keys: Sequence[str], at: str, moments: set[str]
) -> None:
    """Raise if a column is missing, or both frames have it."""
    for frame_name, frame, names in (
        ("the rows", rows, {*keys, at}),
        ("the versions", versions, {*keys, *moments}),
    ):
        if missing := sorted(names - {*frame.columns}):
            raise ValueError(f"as_of_join: {frame_name} have no column {', '.join(missing)}")
    if both := sorted({*rows.columns} & {*versions.columns} - {*keys}):
        raise ValueError(
            f"as_of_join: rows and versions both have {', '.join(both)}: rename or drop one of them"
        )


#: Temporary columns; no column of a table has such a name.
_FIRST, _LATEST, _NEXT, _CURRENT = "_first", "_of", "_next", "_current"


@dataclass(frozen=True)
class VersionHistory:
    """The declaration of a history: `rules` are for its model, `checks` for its table.

    Besides the columns that are named here, the table has `valid_from` (start of the version),
    `valid_to` (its end, exclusive; null if it is still valid; equal to `valid_from` if it never
    was), `is_current` (whether it is still valid) and `logged_on` (the log day on which this
    version of the change was first logged).

    Attributes:
        day: the DATE column that the table is partitioned by: the log day at whose end the rows
            were known.
        key: the column of the key of the history, such as a customer.
        change: identifies a change; its versions correct each other.
        known: the time since which a version of a change is known. Of the versions of a change the
            latest counts, of several the greatest by `valid_from`, key and values, in this order.
        values: the columns that a change sets, such as a flag for the deletion of the key.
    """

    day: str
    key: str
    change: str
    known: str
    values: Sequence[str]

    @property
    def rules(self) -> dict[str, Rule]:
        """The conditions on each row, for the `rules` of the table."""
        return {
            "ends_no_earlier": Rule(
                "valid_to IS NULL OR valid_to >= valid_from",
                "A version ends no earlier than it began.",
            ),
            "current_is_open": Rule(
                "is_current = (valid_to IS NULL)",
                "A version is current if it has not ended, and no other is.",
            ),
            "logged_by_its_day": Rule(
                f"logged_on <= {self.day}", "A day of the log knows nothing of later ones."
            ),
        }

    @property
    def checks(self) -> list[Forbidden]:
        """The conditions between the rows of a day, for `checks` of `table`."""
        return [
            forbids_rows("overlap", self.overlaps, f"No two versions of one {self.key} overlap."),
            forbids_rows(
                "gap", self.gaps, f"Between two versions of one {self.key} there is no gap."
            ),
            forbids_rows(
                "one_current", self.without_one_current, f"Each {self.key} has one current version."
            ),
        ]

    def overlaps(self, rows: DataFrame) -> DataFrame:
        """Versions of a key that end after the next one begins."""
        begins = F.col(_NEXT) < F.col("valid_to")
        never_ends = F.col(_NEXT).isNotNull() & F.col("valid_to").isNull()
        return self._with_next(rows).where(begins | never_ends)

    def gaps(self, rows: DataFrame) -> DataFrame:
        """Versions of a key that end before the next one begins."""
        return self._with_next(rows).where(F.col(_NEXT) > F.col("valid_to"))

    def without_one_current(self, rows: DataFrame) -> DataFrame:
        """Versions of keys without a current version, or with several."""
        current = F.sum(F.col("is_current").cast("int")).over(self._key_window())
        return rows.withColumn(_CURRENT, current).where(F.col(_CURRENT) != 1)

    def versions(self, changes: DataFrame, before: DataFrame) -> DataFrame:
        """The rows of the days: all known changes, in the order in which they are valid.

        Args:
            changes: the logged changes, with `for_day`; columns `key`, `change`, `known`, `values`,
                `valid_from`, and `logged_on`, their log day. Other columns are ignored.
            before: the table itself as of the day before the first, with `for_day`.
        """
        version = (self.known, "valid_from", self.key, *self.values)
        columns = (FOR_DAY, self.change, *version, "logged_on")
        all_changes = changes.select(*columns).unionByName(before.select(*columns))
        # A line that is sent again is known since its first log day: the greatest negated day is
        # the earliest one.
        first = (-F.unix_date("logged_on")).alias(_FIRST)
        latest = all_changes.groupBy(F.col(FOR_DAY).alias(self.day), self.change).agg(
            F.max(F.struct(*version, first)).alias(_LATEST)
        )
        in_order = self._key_window().orderBy("valid_from", self.known, self.change)
        return (
            latest.select(self.day, self.change, f"{_LATEST}.*")
            .withColumn("logged_on", F.date_from_unix_date(-F.col(_FIRST)))
            .withColumn("valid_to", F.lead("valid_from").over(in_order))
            .withColumn("is_current", F.col("valid_to").isNull())
            .drop(_FIRST)
        )

    def _key_window(self) -> WindowSpec:
        return Window.partitionBy(self.day, self.key)

    def _with_next(self, rows: DataFrame) -> DataFrame:
        """The versions, each with the start of the next one."""
        in_order = self._key_window().orderBy("valid_from", F.col("valid_to").asc_nulls_last())
        return rows.withColumn(_NEXT, F.lead("valid_from").over(in_order))
