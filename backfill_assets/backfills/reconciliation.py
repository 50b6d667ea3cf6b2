"""Reconciliation: what each day of a table held before and after, in numbers and as a SHA-256.

It compares versions of a table and writes nothing; how a person is told is `reports`' part. Which
versions belong to a day is for the caller to say. The text that the SHA-256 is taken of is
specified in `docs/reconciliation.md`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import partial, reduce
from itertools import pairwise
from typing import Any

import pyspark.sql.types as T
from deltalake.exceptions import DeltaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window as SqlWindow

from backfill_assets.backfills.footprints import written
from backfill_assets.backfills.reports import Day, Drift, Fingerprint, Report, Sample, Versions
from backfill_assets.calendar.partitions import windows
from backfill_assets.dagster_ext.engine_failures import engine_lost
from backfill_assets.delta.commits import gist
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.snapshots import rows_as_of
from backfill_assets.engine.spark import SPARK_ERRORS
from backfill_assets.quality.drift import farthest, stability_index
from backfill_assets.tables.table import Table

#: How many rows of each kind a report shows in all.
MOST_SAMPLES = 5


class ReconciliationError(RuntimeError):
    """A version that is to be compared cannot be read."""


#: What would end a field or a line, and how it is written; the backslash comes first.
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_NULL = "\\N"
#: With more decimals than this, Spark may write a small number with an exponent.
_MOST_DECIMALS = 6
#: Lines whose hashes begin with the same digits, so many, are hashed together first.
_GROUP_DIGITS = 2
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of UTC, and printed with a Z


def _cells(table: Table) -> dict[str, Column]:
    """The fields of a row as text by column, in the order of the table."""
    return {f.name: _cell(F.col(f.name), f.dataType, table, f.name) for f in table.struct}


def _cell(value: Column, kind: T.DataType, table: Table, name: str) -> Column:
    if isinstance(kind, T.StringType):
        text = value
        for character, written in _ESCAPES.items():
            text = F.replace(text, F.lit(character), F.lit(written))
    elif isinstance(kind, T.TimestampType):
        # As a number: a text would be of the session's time zone.
        text = F.unix_micros(value).cast("string")
    elif isinstance(kind, T.ArrayType) and not isinstance(
        kind.elementType, T.StringType | T.ArrayType
    ):
        elements = F.transform(value, lambda x: _cell(x, kind.elementType, table, name))
        text = F.concat(F.lit("["), F.array_join(elements, ", "), F.lit("]"))
    elif isinstance(kind, T.DateType | T.IntegralType | T.BooleanType) or (
        isinstance(kind, T.DecimalType) and kind.scale <= _MOST_DECIMALS
    ):
        text = value.cast("string")
    else:
        raise TypeError(
            f"{table.name}.{name}: a {kind.simpleString()} has no canonical text yet, so the days "
            "of this table have no SHA-256. Add a rule to `reconciliation` and to "
            "docs/reconciliation.md."
        )
    return F.coalesce(text, F.lit(_NULL))


def fingerprints(frame: DataFrame, table: Table) -> dict[date, Fingerprint]:
    """The days of a frame in numbers, in one Spark query.

    A day without rows is not among them: see `Fingerprint.empty`.

    Args:
        frame: rows of a table.
        table: which one.

    Raises:
        TypeError: a column is of a type that has no canonical text.
    """
    found = _fingerprints(frame, table, table.partition)
    return {day: held for (day,), held in found.items()}


def _fingerprints(frame: DataFrame, table: Table, *by: str) -> dict[tuple, Fingerprint]:
    line = F.sha2(F.concat_ws("\t", *_cells(table).values()), 256).alias("line")
    first = F.substring("line", 1, _GROUP_DIGITS).alias("first")
    sums = [F.sum(f"total_{name}").alias(f"total_{name}") for name in table.totals]
    rows = frame.select(*by, line, *[F.col(x).alias(f"total_{x}") for x in table.totals])
    # Group by group, or all lines of a large day would have to be in the memory of one task.
    groups = rows.groupBy(*by, first).agg(
        F.count(F.lit(1)).alias("rows"),
        _hashed(F.sort_array(F.collect_list("line"))).alias("group"),
        *sums,
    )
    in_order = F.sort_array(F.collect_list(F.struct("first", "group")))["group"]
    days = groups.groupBy(*by).agg(
        F.sum("rows").alias("rows"), _hashed(in_order).alias("sha256"), *sums
    )
    if table.key:
        # By itself: beside the lists above, Spark would have to gather those by key as well.
        keys = F.count_distinct(F.struct(*table.key)).alias("keys")
        days = days.join(frame.groupBy(*by).agg(keys), [*by])
    return {
        tuple(row[name] for name in by): _fingerprint(row.asDict(), table) for row in days.collect()
    }


def _hashed(hashes: Column) -> Column:
    return F.sha2(F.array_join(hashes, "\n"), 256)


def _fingerprint(row: Mapping[str, Any], table: Table) -> Fingerprint:
    totals = {name: row[f"total_{name}"] or zero for name, zero in table.zeros.items()}
    return Fingerprint(row["rows"], row.get("keys"), totals, row["sha256"])


_VERSION = "_version"
#: A day as of a version.
_Place = tuple[int, date]


def reconcile(
    spark: SparkSession,
    url: str,
    table: Table,
    versions: Mapping[date, Versions],
    ledger: Ledger | None = None,
) -> Report:
    """Compare days of a table between two versions each.

    Only the files of these days are read: once, and those of the days that have changed again for
    samples and drift.

    Args:
        spark: the session.
        url: where the table lives.
        table: which one it is.
        versions: by day, the versions before and after; none where it was not published then.
        ledger: what the table's log says. With it a day is read at any version that has the same
            rows, so that many commits of a day each are not as many versions to read.

    Raises:
        ReconciliationError: a version cannot be read.
        TypeError: a column is of a type that has no canonical text.
    """
    try:
        return _reconcile(partial(_read, spark, url, table), table, versions, ledger)
    except (DeltaError, OSError, *SPARK_ERRORS) as error:
        if engine_lost(error):
            raise
        asked = sorted({v for pair in versions.values() for v in pair if v is not None})
        raise ReconciliationError(
            f"{table.name} [{', '.join(map(str, windows(versions)))}]: the days cannot be compared "
            f"as of version(s) {', '.join(map(str, asked))} of {url}. The table is as it was. If "
            "files of these versions are gone (VACUUM removes those that are older than its "
            "retention), there is nothing left to compare with: leave these days out. "
            f"Spark says: {gist(error)}"
        ) from error


def _reconcile(
    read: Callable[[Iterable[_Place]], DataFrame],
    table: Table,
    versions: Mapping[date, Versions],
    ledger: Ledger | None,
) -> Report:
    wanted = {(v, day) for day, pair in versions.items() for v in pair if v is not None}
    at = _read_at(wanted, ledger)
    found: dict[tuple, Fingerprint] = {}
    if wanted:
        found = _fingerprints(read(at.values()), table, _VERSION, table.partition)
    empty = Fingerprint.empty(table)

    def held(version: int | None, day: date) -> Fingerprint | None:
        return None if version is None else found.get(at[version, day], empty)

    days = [
        Day(day, (old, new), held(old, day), held(new, day))
        for day, (old, new) in sorted(versions.items())
    ]
    changed = [
        (at[old, day], at[new, day])
        for day, (old, new) in versions.items()
        if old is not None and new is not None and held(old, day) != held(new, day)
    ]
    if not changed:
        return Report(table, days)
    before, after = (read(places) for places in zip(*changed, strict=True))
    return Report(table, days, _samples(before, after, table), _drift(before, after, table))


def _read_at(wanted: Iterable[_Place], ledger: Ledger | None) -> dict[_Place, _Place]:
    """For each day as of a version, where to read it: at as few versions as will do.

    A day stays the same from a commit that wrote it to the next that does. For each version the
    table's whole log is gone through, whatever is read of it.
    """
    if ledger is None or ledger.version is None:
        return {place: place for place in wanted}
    wrote = defaultdict(list)
    for commit in ledger.commits:
        for day in written(commit):
            wrote[day].append(commit.version)
    same = []
    for version, day in wanted:
        own = wrote[day]
        n = bisect_right(own, version)
        first = own[n - 1] if n else 0
        last = own[n] - 1 if n < len(own) else ledger.version
        known = version <= ledger.version
        same.append((last, first, version, day) if known else (version, version, version, day))
    found: dict[_Place, _Place] = {}
    at = -1
    # By the end of each stretch: a version is added only when none so far lies in the next one.
    for last, first, version, day in sorted(same):
        at = at if at >= first else last
        found[version, day] = (at, day)
    return found


def _read(spark: SparkSession, url: str, table: Table, places: Iterable[_Place]) -> DataFrame:
    """The rows of days as of versions, each version read once, with the version as a column."""
    days = defaultdict(set)
    for version, day in places:
        days[version].add(day)
    frames = [
        rows_as_of(spark, url, table, version, own).withColumn(_VERSION, F.lit(version))
        for version, own in sorted(days.items())
    ]
    return reduce(DataFrame.unionByName, frames)


def _samples(before: DataFrame, after: DataFrame, table: Table) -> list[Sample]:
    """The first differing rows of each kind, by day and key; by the whole row without a key."""
    names = list(table.columns)
    row = F.array(*_cells(table).values()).alias("cells")
    sides = [
        frame.select(F.lit(sign).alias("sign"), table.partition, row)
        for sign, frame in ((-1, before), (1, after))
    ]
    # A row that both have as often as each other cancels out.
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
    few = pairs.withColumn("n", F.row_number().over(order)).where(F.col("n") <= MOST_SAMPLES)
    samples = [
        Sample(row[table.partition], _shown(row["before"], table), _shown(row["after"], table))
        for row in few.orderBy("n").collect()
    ]
    return sorted(samples, key=lambda sample: sample.kind)


def _shown(cells: Sequence[str] | None, table: Table) -> dict[str, str | None] | None:
    """A row's values by column as a person reads them."""
    if cells is None:
        return None
    shown: dict[str, str | None] = {}
    for column, cell in zip(table.struct, cells, strict=True):
        shown[column.name] = None if cell == _NULL else cell
        if isinstance(column.dataType, T.TimestampType) and cell != _NULL:
            shown[column.name] = _moment(int(cell))
    return shown


def _moment(micros: int) -> str:
    try:
        return f"{(_EPOCH + timedelta(microseconds=micros)).isoformat()}Z"
    except OverflowError:  # before the year 1 or after 9999
        return f"{micros} microseconds since 1970"


_TENTHS = [n / 10 for n in range(1, 10)]


def _drift(before: DataFrame, after: DataFrame, table: Table) -> dict[str, Drift]:
    """The drift of each numeric column.

    The bins are the tenths of what was there before, what lies below and above all of it, and
    null. Only their counts leave Spark.
    """
    names = [f.name for f in table.struct if isinstance(f.dataType, T.NumericType)]
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
    found = {}
    for name in names:
        old, new = (_bins(row[name]) for row in counts if row)
        found[name] = Drift(stability_index(old, new), farthest(old, new))
    return found


def _bins(ranks: Sequence[int]) -> list[int]:
    return [high - low for low, high in pairwise([0, *ranks])]
