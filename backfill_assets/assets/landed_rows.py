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

from backfill_assets.assets.lines import REASON, accepted_rows, rejected_rows
from backfill_assets.calendar.partitions import Window
from backfill_assets.engine.frames import create_frame
from backfill_assets.landing.files import LandingFiles
from backfill_assets.landing.listing import folder_of
from backfill_assets.landing.manifests import LoadTarget
from backfill_assets.tables.sources import Source
from backfill_assets.tables.table import Table
from backfill_assets.tables.versions import business_day

LoadTargets = Mapping[date, LoadTarget]

_NO_MONEY = Decimal("0.00")


@dataclass(frozen=True)
class FileCounts:
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

    def __add__(self, other: FileCounts) -> FileCounts:
        return FileCounts(
            self.landed + other.landed,
            self.rejected + other.rejected,
            self.early + other.early,
            self.accepted + other.accepted,
            self.amount + other.amount,
        )


@dataclass(frozen=True)
class ParsedFiles:
    """The files of a run's folders, read once.

    Attributes:
        landing_files: the files, and which of them cannot be read.
        moving: names of files that changed, came or went while they were read.
        lines: as `lines.read_versions` gives them.
        counts: by file.
    """

    landing_files: LandingFiles
    moving: frozenset[str]
    lines: DataFrame
    counts: Mapping[str, FileCounts]

    @cached_property
    def broken_by_day(self) -> Mapping[date, list[str]]:
        """By arrival day, the files that cannot be read, each with its reason."""
        return self.landing_files.broken_by_day()

    @cached_property
    def counted_by_folder(self) -> Mapping[str, list[str]]:
        """By folder, the files that have counts."""
        return _group_by_folder(self.counts)

    @cached_property
    def moving_by_folder(self) -> Mapping[str, list[str]]:
        """By folder, the files that are not at rest."""
        return _group_by_folder(self.moving)

    def counts_of(self, names: Collection[str]) -> FileCounts:
        """What some files brought together."""
        return sum((self.counts.get(name, FileCounts()) for name in names), FileCounts())


@dataclass(frozen=True)
class RetainedRows:
    """Rows of the published table that stay, as their files are gone or held back.

    Attributes:
        rows: the rows; none if there are none to keep.
        counts: how many, by day.
        moved_counts: by day, how many of them would be logged on another day now.
    """

    rows: DataFrame | None = None
    counts: Mapping[date, int] = field(default_factory=dict)
    moved_counts: Mapping[date, int] = field(default_factory=dict)


def _group_by_folder(names: Collection[str]) -> Mapping[str, list[str]]:
    by_folder: dict[str, list[str]] = defaultdict(list)
    for name in names:
        by_folder[folder_of(name)].append(name)
    return by_folder


def count_lines_by_file(
    versions: DataFrame, source: Source, landed: Mapping[str, int]
) -> dict[str, FileCounts]:
    """What each file brought.

    Args:
        versions: as `lines.read_versions` gives it.
        source: whose lines they are.
        landed: lines by file, from a scan of its own.
    """
    is_accepted, amount = F.col(REASON).isNull(), F.lit(_NO_MONEY)
    if source.amount:
        amount = F.coalesce(F.sum(F.when(is_accepted, F.col(source.amount))), amount)
    rows = versions.groupBy("source_file").agg(
        F.count_if(~is_accepted).alias("rejected"),
        F.count_if(F.col("log_date") > F.col("arrival_date")).alias("early"),
        F.count_if(is_accepted).alias("accepted"),
        amount.alias("amount"),
    )
    counts = {name: numbers for name, *numbers in rows.collect()}
    nothing = [0, 0, 0, _NO_MONEY]
    return {
        name: FileCounts(landed.get(name, 0), *counts.get(name, nothing))
        for name in landed.keys() | counts.keys()
    }


def lost_keys(
    published: DataFrame, lines: DataFrame, source: Source, names: Collection[str]
) -> dict[str, int]:
    """By replaced file, how many keys it no longer has of those that were loaded from it.

    Args:
        published: rows of the raw log.
        lines: the lines that the files have now, as `lines.read_versions` gives them.
        source: whose lines they are.
        names: the replaced files.
    """
    keys = ["source_file", *source.key]
    of_files = F.col("source_file").isin(sorted(names))
    current = accepted_rows(lines, source).where(of_files).select(*keys)
    missing = published.where(of_files).select(*keys).distinct().join(current, keys, "left_anti")
    counts = missing.groupBy("source_file").count().collect()
    return {row["source_file"]: row["count"] for row in counts}


def rows_to_retain(
    published: DataFrame,
    targets: LoadTargets,
    days: Collection[date],
    source: Source,
    table: Table,
    timezone: str,
) -> DataFrame:
    """The rows of days that come of the files that are kept, with `_elsewhere`.

    Args:
        published: the published table.
        targets: what each day is to be made of.
        days: the days that keep rows.
        source: whose rows they are.
        table: the source's log, or its rejected lines.
        timezone: the business time zone; `_elsewhere` tells of a raw row whether it would be logged
            on another day by it.
    """
    spark = published.sparkSession
    struct = T.StructType().add(table.partition, T.DateType()).add("source_file", T.StringType())
    retained_files = [(day, name) for day in days for name in targets[day].retained_files]
    files = create_frame(spark, struct, retained_files)
    rows = published.where(F.col(table.partition).isin(list(days))).join(
        F.broadcast(files), [table.partition, "source_file"], "left_semi"
    )
    elsewhere = F.lit(False)
    if table is source.raw:
        version_day = business_day(F.greatest(source.event_time, source.version_time), timezone)
        elsewhere = F.greatest("arrival_date", version_day) != F.col("log_date")
    return rows.select(*table.columns, elsewhere.alias("_elsewhere"))


def selected_rows(
    parsed_files: ParsedFiles, targets: LoadTargets, source: Source, table: Table, days: Window
) -> DataFrame:
    """The lines that were read, without those of files that are held back on a day.

    Args:
        parsed_files: the files.
        targets: what each day is to be made of.
        source: whose lines they are.
        table: the source's log, or its rejected lines.
        days: the days of the table.
    """
    of_table = accepted_rows if table is source.raw else rejected_rows
    rows = of_table(parsed_files.lines, source)
    rows = rows.where(days.sql_condition(table.partition))
    for day, target in targets.items():
        if target.manifest.awaiting_approval:
            of_held = F.col("source_file").isin(sorted(target.manifest.awaiting_approval))
            rows = rows.where(~((F.col(table.partition) == F.lit(day)) & of_held))
    return rows
