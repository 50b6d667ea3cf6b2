"""The Spark queries of a diff: figures and a SHA-256 of each day, row samples, drift.

They compare versions of a table and write nothing; `diff` formats the result. The text form that
the SHA-256 is computed over is specified in `docs/reconciliation.md`.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import partial, reduce
from hashlib import sha256
from itertools import pairwise

import pyspark.sql.types as T
from deltalake.exceptions import DeltaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window as SqlWindow

from backfill_assets.audit import verdicts
from backfill_assets.audit.profile import ks_statistic, stability_index
from backfill_assets.backfills import diff
from backfill_assets.backfills.changes import written_days
from backfill_assets.calendar.partitions import format_ranges
from backfill_assets.dagster_ext.failures import is_engine_lost
from backfill_assets.delta.commits import summarize_error
from backfill_assets.delta.data_files import rows_as_of
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.spark.session import SPARK_ERRORS
from backfill_assets.tables.table import Table

#: Most sample rows of each kind, for all days of a table together.
MAX_SAMPLES = 5


class ReconciliationError(RuntimeError):
    """A version to compare cannot be read."""


#: Escapes of characters that end a field or a line; the backslash must come first.
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_NULL = "\\N"
#: With more decimals, a cast may write a small number with an exponent.
_MAX_DECIMALS = 6
#: Line hashes are grouped by this many leading digits, and hashed group by group first.
_GROUP_DIGITS = 2
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC, printed with a Z


def _text_columns(table: Table) -> dict[str, Column]:
    """The fields of a row as canonical text by column, in the order of the table."""
    return {f.name: _text_column(F.col(f.name), f.dataType) for f in table.struct_type}


def _text_column(value: Column, kind: T.DataType, *, nested: bool = False) -> Column:
    """A value in its canonical text form; `nested` if it is a part of another value.

    Each type that a model may have has one, see `table_options`.
    """
    match kind:
        case T.StringType():
            text = _escape_text(value, nested=nested)
        case T.BinaryType():
            text = F.lower(F.hex(value))
        case T.TimestampType():
            # As a number, because text depends on the session's time zone.
            text = F.unix_micros(value).cast("string")
        case T.FloatType() | T.DoubleType():
            text = _float_text(value)
        case T.DecimalType() if kind.scale > _MAX_DECIMALS:
            pattern = F.lit("0." + "0" * kind.scale)
            text = F.call_function("format_number", value, pattern)
        case T.ArrayType() | T.MapType() | T.StructType():
            text = _nested_text(value, kind)
        case _:
            text = value.cast("string")
    return F.coalesce(text, F.lit(_NULL))


def _escape_text(value: Column, *, nested: bool) -> Column:
    """A string on one line; within another value it is quoted, as its end would be unknown."""
    text, escapes = value, {**_ESCAPES, **({'"': '\\"'} if nested else {})}
    for character, escaped in escapes.items():
        text = F.replace(text, F.lit(character), F.lit(escaped))
    return F.concat(F.lit('"'), text, F.lit('"')) if nested else text


def _float_text(value: Column) -> Column:
    """The exact value as C writes it by `%a`; -0.0 as 0.0, and all NaN as `nan`.

    Java writes `%a` otherwise: 0x1.0p1, Infinity. A decimal text differs between Java's versions.
    """
    number = F.when(value == 0, 0.0).otherwise(value.cast("double"))
    text = F.replace(F.format_string("%a", number), F.lit(".0p"), F.lit("p"))
    text = F.replace(F.regexp_replace(text, r"p(\d)", r"p+$1"), F.lit("Infinity"), F.lit("inf"))
    # Of a null, `format_string` makes the text null.
    return F.when(value.isNotNull(), F.lower(text))


def _nested_text(value: Column, kind: T.ArrayType | T.MapType | T.StructType) -> Column:
    """An array in [], a struct in {}; a map as the array of its entries, ordered by their text."""
    if isinstance(kind, T.StructType):
        fields = [_text_column(value[f.name], f.dataType, nested=True) for f in kind]
        text = F.concat(F.lit("{"), F.concat_ws(", ", *fields), F.lit("}"))
        return F.when(value.isNotNull(), text)
    if isinstance(kind, T.MapType):
        entry = T.StructType().add("key", kind.keyType).add("value", kind.valueType)
        entries = F.transform(F.map_entries(value), lambda x: _nested_text(x, entry))
        parts = F.array_sort(entries)
    else:
        parts = F.transform(value, lambda x: _text_column(x, kind.elementType, nested=True))
    return F.concat(F.lit("["), F.array_join(parts, ", "), F.lit("]"))


def _measure_groups(
    frame: DataFrame, table: Table, *group_columns: str
) -> dict[tuple, verdicts.DayContent]:
    """The content by the values of the group columns, such as (version, day)."""
    line = F.sha2(F.concat_ws("\t", *_text_columns(table).values()), 256).alias("line")
    first = F.substring("line", 1, _GROUP_DIGITS).alias("first")
    kinds = {f"total_{name}": table.struct_type[name].dataType for name in table.totals}
    rows = frame.select(*group_columns, line, *[F.col(x).alias(f"total_{x}") for x in table.totals])
    # Group by group, because one task cannot hold all lines of a large day in memory.
    groups = rows.groupBy(*group_columns, first).agg(
        F.count(F.lit(1)).alias("rows"),
        _hash_lines(F.sort_array(F.collect_list("line"))).alias("group"),
        *(verdicts.sum_exactly(name, kind).alias(name) for name, kind in kinds.items()),
    )
    in_order = F.sort_array(F.collect_list(F.struct("first", "group")))["group"]
    days = groups.groupBy(*group_columns).agg(
        F.sum("rows").alias("rows"),
        _hash_lines(in_order).alias("sha256"),
        *(F.sum(name).alias(name) for name in kinds),
    )
    if table.key:
        # A separate aggregation: with the lists above, Spark would group those by key as well.
        keys = F.count_distinct(F.struct(*table.key)).alias("keys")
        days = days.join(frame.groupBy(*group_columns).agg(keys), [*group_columns])
    rows_by_group = {tuple(row[n] for n in group_columns): row.asDict() for row in days.collect()}
    return {
        group: verdicts.DayContent(
            row["rows"], verdicts.read_totals(row, table), row["sha256"], row.get("keys")
        )
        for group, row in rows_by_group.items()
    }


def _hash_lines(hashes: Column) -> Column:
    return F.sha2(F.array_join(hashes, "\n"), 256)


#: No column of a table has a blank in its name.
_VERSION = "read version"
#: A version, and a day as of it.
_DayAtVersion = tuple[int, date]


def diff_table(
    spark: SparkSession,
    url: str,
    table: Table,
    versions: Mapping[date, diff.VersionPair],
    ledger: Ledger | None = None,
) -> diff.TableDiff:
    """Compare days of a table between two versions each.

    Only the files of these days are read: once, and those of changed days again for samples and
    drift.

    Args:
        spark: the session.
        url: location of the table.
        table: its declaration.
        versions: by day, before and after; None if the day was not published then.
        ledger: allows to read a day at any version with the same rows, so that many one-day commits
            need few versions to be read; None to read exactly these versions.

    Raises:
        ReconciliationError: a version cannot be read.
    """
    try:
        return _diff_days(partial(_read_days, spark, url, table), table, versions, ledger)
    except (DeltaError, OSError, *SPARK_ERRORS) as error:
        if is_engine_lost(error):
            raise
        version_numbers = sorted({v for pair in versions.values() for v in pair if v is not None})
        raise ReconciliationError(
            f"{table.name} [{format_ranges(versions)}]: the days cannot be "
            f"compared as of version(s) {', '.join(map(str, version_numbers))} of {url}. The table "
            "is as it was. If files of these versions are gone (VACUUM removes those that are "
            "older than its retention), there is nothing left to compare with: leave these days "
            f"out. Spark says: {summarize_error(error)}"
        ) from error


def _diff_days(
    read: Callable[[Iterable[_DayAtVersion]], DataFrame],
    table: Table,
    versions: Mapping[date, diff.VersionPair],
    ledger: Ledger | None,
) -> diff.TableDiff:
    """Compare the days; `read` returns the rows of some days as of the given versions."""
    needed = {(v, day) for day, pair in versions.items() for v in pair if v is not None}
    read_from = _choose_versions(needed, ledger)
    figures: dict[tuple, verdicts.DayContent] = {}
    if needed:
        figures = _measure_groups(read(read_from.values()), table, _VERSION, table.partition)
    empty = verdicts.DayContent(
        0, table.zero_totals, sha256().hexdigest(), 0 if table.key else None
    )

    def figures_at(version: int | None, day: date) -> verdicts.DayContent | None:
        return None if version is None else figures.get(read_from[version, day], empty)

    days = [
        diff.DayDiff(day, (old, new), figures_at(old, day), figures_at(new, day))
        for day, (old, new) in sorted(versions.items())
    ]
    changed = [
        (read_from[old, day], read_from[new, day])
        for day, (old, new) in versions.items()
        if old is not None and new is not None
        if not verdicts.have_same_rows(figures_at(old, day), figures_at(new, day))
    ]
    if not changed:
        return diff.TableDiff(table, days)
    before, after = (read(places) for places in zip(*changed, strict=True))
    return diff.TableDiff(
        table, days, _sample_rows(before, after, table), _measure_drift(before, after, table)
    )


def _choose_versions(
    needed: Iterable[_DayAtVersion], ledger: Ledger | None
) -> dict[_DayAtVersion, _DayAtVersion]:
    """The version at which to read each day and version, with as few distinct versions as possible.

    A day has the same rows from the commit that wrote it up to the next one. Fewer versions are
    faster, because each version needs a pass over the table's whole log.
    """
    if ledger is None or ledger.version is None:
        return {place: place for place in needed}
    commits_by_day = defaultdict(list)
    for commit in ledger.all_commits:
        for day in written_days(commit):
            commits_by_day[day].append(commit.version)
    stretches = []
    for version, day in needed:
        day_commits = commits_by_day[day]
        n = bisect_right(day_commits, version)
        first = day_commits[n - 1] if n else 0
        last = day_commits[n] - 1 if n < len(day_commits) else ledger.version
        known = version <= ledger.version
        stretches.append((last, first, version, day) if known else (version, version, version, day))
    read_from: dict[_DayAtVersion, _DayAtVersion] = {}
    at = -1
    # Sorted by the end of each stretch; add a version only if the last one is not within it.
    for last, first, version, day in sorted(stretches):
        at = at if at >= first else last
        read_from[version, day] = (at, day)
    return read_from


def _read_days(
    spark: SparkSession, url: str, table: Table, places: Iterable[_DayAtVersion]
) -> DataFrame:
    """Rows of days as of versions, with the version as a column; each version is read once."""
    days = defaultdict(set)
    for version, day in places:
        days[version].add(day)
    frames = [
        rows_as_of(spark, url, table, version, version_days).withColumn(_VERSION, F.lit(version))
        for version, version_days in sorted(days.items())
    ]
    return reduce(DataFrame.unionByName, frames)


def _sample_rows(before: DataFrame, after: DataFrame, table: Table) -> list[diff.RowDiff]:
    """The first differing rows of each kind, by day and key; without a key, by the whole row."""
    names = list(table.columns)
    row = F.array(*_text_columns(table).values()).alias("cells")
    sides = [
        frame.select(F.lit(sign).alias("sign"), table.partition, row)
        for sign, frame in ((-1, before), (1, after))
    ]
    # A row that both sides have equally often cancels out.
    differing = (
        sides[0]
        .unionByName(sides[1])
        .groupBy(table.partition, "cells")
        .agg(F.sum("sign").alias("copies"))
        .where("copies != 0")
    )
    cells = F.col("cells")
    key = F.array(*[F.get(cells, names.index(name)) for name in table.key]) if table.key else cells
    pairs = differing.groupBy(table.partition, key.alias("key")).agg(
        F.min(F.when(F.col("copies") < 0, cells)).alias("before"),
        F.min(F.when(F.col("copies") > 0, cells)).alias("after"),
    )
    kind = [F.col("before").isNull(), F.col("after").isNull()]
    order = SqlWindow.partitionBy(*kind).orderBy(table.partition, "key")
    few = pairs.withColumn("n", F.row_number().over(order)).where(F.col("n") <= MAX_SAMPLES)
    samples = [
        diff.RowDiff(
            row[table.partition],
            _readable_row(row["before"], table),
            _readable_row(row["after"], table),
        )
        for row in few.orderBy("n").collect()
    ]
    return sorted(samples, key=lambda sample: sample.kind)


def _readable_row(cells: Sequence[str] | None, table: Table) -> dict[str, str | None] | None:
    """The canonical texts of a row by column, with null, times and floating-point numbers decoded.

    None without a row.
    """
    if cells is None:
        return None
    values: dict[str, str | None] = {}
    for column, cell in zip(table.struct_type, cells, strict=True):
        values[column.name] = None if cell == _NULL else cell
        if isinstance(column.dataType, T.TimestampType) and cell != _NULL:
            values[column.name] = _format_micros(int(cell))
        elif isinstance(column.dataType, T.FloatType | T.DoubleType) and cell != _NULL:
            values[column.name] = str(float.fromhex(cell))
    return values


def _format_micros(micros: int) -> str:
    try:
        return f"{(_EPOCH + timedelta(microseconds=micros)).isoformat()}Z"
    except OverflowError:  # before the year 1 or after 9999
        return f"{micros} microseconds since 1970"


_TENTHS = [n / 10 for n in range(1, 10)]


def _measure_drift(
    before: DataFrame, after: DataFrame, table: Table
) -> dict[str, diff.ColumnDrift]:
    """The drift of each numeric column.

    Bins: the deciles of the values before, one below and one above all of them, and null. Only
    their counts leave Spark.
    """
    names = [f.name for f in table.struct_type if isinstance(f.dataType, T.NumericType)]
    if not names:
        return {}
    edges = before.agg(
        *[
            F.array_sort(
                F.array_distinct(F.concat(F.array(F.min(x)), F.percentile_approx(x, _TENTHS)))
            ).alias(x)
            for x in names
        ],
        *[F.max(x).alias(f"_max_{x}") for x in names],
    ).first()
    assert edges is not None  # an aggregation without groups has one row
    ranks = []
    for name in names:
        value, top = F.col(name), edges[f"_max_{name}"]
        below = [F.count_if(value < F.lit(edge)) for edge in edges[name] or ()]
        upto = [] if top is None else [F.count_if(value <= F.lit(top))]
        ranks.append(F.array(*below, *upto, F.count(value), F.count(F.lit(1))).alias(name))
    counts = [frame.agg(*ranks).first() for frame in (before, after)]
    drifts = {}
    for name in names:
        old, new = (_bin_counts(row[name]) for row in counts if row)
        drifts[name] = diff.ColumnDrift(stability_index(old, new), ks_statistic(old, new))
    return drifts


def _bin_counts(ranks: Sequence[int]) -> list[int]:
    return [high - low for low, high in pairwise([0, *ranks])]
