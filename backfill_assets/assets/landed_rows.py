"""Rows and numbers of what landed: what each file brought, which rows stay, what a file lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from backfill_assets.assets.lines import REASON, accepted, rejected
from backfill_assets.calendar.partitions import Window
from backfill_assets.engine.frames import frame_of
from backfill_assets.landing.files import Landing
from backfill_assets.landing.listing import folder_of
from backfill_assets.landing.manifests import Target
from backfill_assets.tables.sources import Source
from backfill_assets.tables.table import Table
from backfill_assets.tables.versions import business_day

Targets = Mapping[date, Target]

_NO_MONEY = Decimal("0.00")


@dataclass(frozen=True)
class Lines:
    """What one file brought, in numbers.

    Attributes:
        landed: lines, counted apart from parsing.
        rejected: those that could not be read.
        early: accepted lines that are logged on the day after.
        accepted: the others.
        amount: the sum of their amounts; zero where the source declares none.
    """

    landed: int = 0
    rejected: int = 0
    early: int = 0
    accepted: int = 0
    amount: Decimal = _NO_MONEY

    def __add__(self, other: Lines) -> Lines:
        return Lines(
            self.landed + other.landed,
            self.rejected + other.rejected,
            self.early + other.early,
            self.accepted + other.accepted,
            self.amount + other.amount,
        )


@dataclass(frozen=True)
class Reading:
    """The files of a run's folders, read once.

    Attributes:
        found: the files, and which of them cannot be read.
        moving: names of files that changed, came or went while they were read.
        lines: as `lines.read_versions` gives them.
        counts: by file.
    """

    found: Landing
    moving: frozenset[str]
    lines: DataFrame
    counts: Mapping[str, Lines]

    @cached_property
    def broken(self) -> Mapping[date, list[str]]:
        """By arrival day, the files that cannot be read, each with its reason."""
        return self.found.broken_by_day()

    @cached_property
    def counted(self) -> Mapping[str, list[str]]:
        """By folder, the files that have counts."""
        return _by_folder(self.counts)

    @cached_property
    def moved(self) -> Mapping[str, list[str]]:
        """By folder, the files that are not at rest."""
        return _by_folder(self.moving)

    def of(self, names: Collection[str]) -> Lines:
        """What some files brought together."""
        return sum((self.counts.get(name, Lines()) for name in names), Lines())


@dataclass(frozen=True)
class Kept:
    """Rows of the published table that stay, as their files are gone or held back.

    Attributes:
        rows: the rows; none if there are none to keep.
        counts: how many, by day.
        elsewhere: by day, how many of them would be logged on another day now.
    """

    rows: DataFrame | None = None
    counts: Mapping[date, int] = field(default_factory=dict)
    elsewhere: Mapping[date, int] = field(default_factory=dict)


def _by_folder(names: Collection[str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found[folder_of(name)].append(name)
    return found


def count_lines(read: DataFrame, source: Source, landed: Mapping[str, int]) -> dict[str, Lines]:
    """What each file brought.

    Args:
        read: as `lines.read_versions` gives it.
        source: whose lines they are.
        landed: lines by file, from a scan of its own.
    """
    fine, amount = F.col(REASON).isNull(), F.lit(_NO_MONEY)
    if source.amount:
        amount = F.coalesce(F.sum(F.when(fine, F.col(source.amount))), amount)
    rows = read.groupBy("source_file").agg(
        F.count_if(~fine).alias("rejected"),
        F.count_if(F.col("log_date") > F.col("arrival_date")).alias("early"),
        F.count_if(fine).alias("accepted"),
        amount.alias("amount"),
    )
    seen = {name: numbers for name, *numbers in rows.collect()}
    nothing = [0, 0, 0, _NO_MONEY]
    return {
        name: Lines(landed.get(name, 0), *seen.get(name, nothing))
        for name in landed.keys() | seen.keys()
    }


def lost_keys(
    before: DataFrame, lines: DataFrame, source: Source, names: Collection[str]
) -> dict[str, int]:
    """By replaced file, how many keys it no longer has of those that were loaded from it.

    Args:
        before: rows of the raw log.
        lines: the lines that the files have now, as `lines.read_versions` gives them.
        source: whose lines they are.
        names: the replaced files.
    """
    keys = ["source_file", *source.key]
    of_files = F.col("source_file").isin(sorted(names))
    now = accepted(lines, source).where(of_files).select(*keys)
    gone = before.where(of_files).select(*keys).distinct().join(now, keys, "left_anti")
    counts = gone.groupBy("source_file").count().collect()
    return {row["source_file"]: row["count"] for row in counts}


def kept_rows(
    before: DataFrame,
    targets: Targets,
    days: Collection[date],
    source: Source,
    table: Table,
    timezone: str,
) -> DataFrame:
    """The rows of days that come of the files that are kept, with `_elsewhere`.

    Args:
        before: the published table.
        targets: what each day is to be made of.
        days: the days that keep rows.
        source: whose rows they are.
        table: the source's log, or its rejected lines.
        timezone: the business time zone; `_elsewhere` tells of a raw row whether it would be logged
            on another day by it.
    """
    spark = before.sparkSession
    struct = T.StructType().add(table.partition, T.DateType()).add("source_file", T.StringType())
    kept = [(day, name) for day in days for name in targets[day].kept]
    files = frame_of(spark, struct, kept)
    rows = before.where(F.col(table.partition).isin(list(days))).join(
        F.broadcast(files), [table.partition, "source_file"], "left_semi"
    )
    elsewhere = F.lit(False)
    if table is source.raw:
        version_day = business_day(F.greatest(source.event_time, source.version_time), timezone)
        elsewhere = F.greatest("arrival_date", version_day) != F.col("log_date")
    return rows.select(*table.columns, elsewhere.alias("_elsewhere"))


def selected_rows(
    reading: Reading, targets: Targets, source: Source, table: Table, days: Window
) -> DataFrame:
    """The lines that were read, without those of files that are held back on a day.

    Args:
        reading: the files.
        targets: what each day is to be made of.
        source: whose lines they are.
        table: the source's log, or its rejected lines.
        days: the days of the table.
    """
    of_table = accepted if table is source.raw else rejected
    rows = of_table(reading.lines, source)
    rows = rows.where(days.predicate(table.partition))
    for day, one in targets.items():
        if one.manifest.held:
            of_held = F.col("source_file").isin(sorted(one.manifest.held))
            rows = rows.where(~((F.col(table.partition) == F.lit(day)) & of_held))
    return rows
