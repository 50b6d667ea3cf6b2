"""Whether all that was imported is where it belongs: the counts, from the table to staging."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from itertools import chain
from typing import Any

import msgspec
import pyspark.sql.types as T
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import format_ranges
from backfill_assets.delta.logs import load_log
from backfill_assets.engine.frames import create_frame
from backfill_assets.imports.manifests import TableImport
from backfill_assets.settings import Settings
from backfill_assets.tables.sources import Source
from backfill_assets.tables.table import Table
from backfill_assets.tables.versions import (
    greatest_first,
    is_superseded,
    with_event_day,
    within_window,
)


class ImportCheck(msgspec.Struct, frozen=True):
    """Where the imported rows of a source are.

    Attributes:
        read: rows of the tables, up to the versions that were imported.
        landed: those in landing files.
        raw: those in the raw log.
        rejected: those among the rejected lines.
        staged: those that count, each for a key, on their event day.
        superseded: those that came in time, and a greater version of their key as well.
        late: those that came after the window of their day.
        early: those that tell of days before the first one of all; none of the three.
        in_staging: those of `staged` that are in the staging table.
        problems: what does not add up, each in a sentence.
    """

    read: int
    landed: int
    raw: int = 0
    rejected: int = 0
    staged: int = 0
    superseded: int = 0
    late: int = 0
    early: int = 0
    in_staging: int = 0
    problems: list[str] = []


def check_import(
    settings: Settings, spark: SparkSession, source: Source, imports: Collection[TableImport]
) -> ImportCheck:
    """Count the imported rows where they are.

    Args:
        settings: the deployment's settings.
        spark: the session.
        source: the source.
        imports: all imports into it.
    """
    landed = {
        file: rows for table_import in imports for file, rows in table_import.landed_files.items()
    }
    read = sum(step.row_count for table_import in imports for step in table_import.steps)
    problems = [
        f"{table_import.table}: {sum(step.landed.values()):,} of {step.row_count:,} rows of {step.name} have "
        "landed: import again"
        for table_import in imports
        if (step := table_import.unfinished_step)
    ]
    files = _files_frame(spark, landed)
    raw_rows = _read_published(settings, spark, source.raw)
    raw = _by_file(raw_rows, files)
    rejected = _by_file(_read_published(settings, spark, source.rejected), files)
    problems += _not_loaded(landed, raw, rejected)
    outcomes: dict[str, Any] = {}
    if raw_rows is not None:
        outcomes = _count_outcomes(settings, spark, source, raw_rows, files)
    counts = ImportCheck(
        read, sum(landed.values()), sum(raw.values()), sum(rejected.values()), **outcomes
    )
    if counts.in_staging != counts.staged:
        problems.append(
            f"{counts.staged - counts.in_staging:,} row(s) that count are not in "
            f"{source.staged.name}: materialize its days"
        )
    return msgspec.structs.replace(counts, problems=problems)


def _files_frame(spark: SparkSession, names: Iterable[str]) -> DataFrame:
    struct = T.StructType([T.StructField("source_file", T.StringType())])
    return F.broadcast(create_frame(spark, struct, ((name,) for name in names)))


def _read_published(settings: Settings, spark: SparkSession, table: Table) -> DataFrame | None:
    """The rows of a table; none if it is not there yet."""
    url = settings.table(table.name)
    if load_log(url) is None:
        return None
    return table.with_current_columns(spark.read.format("delta").load(url))


def _by_file(rows: DataFrame | None, files: DataFrame) -> dict[str, int]:
    if rows is None:
        return {}
    of_files = rows.join(files, "source_file", "left_semi").groupBy("source_file")
    return dict(of_files.agg(F.count(F.lit(1))).toLocalIterator())


def _not_loaded(
    landed: Mapping[str, int], raw: Mapping[str, int], rejected: Mapping[str, int]
) -> list[str]:
    """Which files are not in the tables, and which have other rows there."""
    loaded = {file: raw.get(file, 0) + rejected.get(file, 0) for file in landed}
    none = [file for file in landed if not loaded[file]]
    other = [file for file in landed if loaded[file] not in (0, landed[file])]
    return list(
        chain(
            [f"not loaded yet: {len(none)} file(s) of {_format_days(none)}"] if none else [],
            [f"loaded with other rows than landed: {', '.join(other[:20])}"] if other else [],
        )
    )


def _format_days(files: Sequence[str]) -> str:
    return format_ranges(date.fromisoformat(file[13:23]) for file in files)


def _count_outcomes(
    settings: Settings, spark: SparkSession, source: Source, raw: DataFrame, files: DataFrame
) -> dict[str, int]:
    """What became of the imported rows of the raw log, by the rules of staging."""
    policy = source.policy(settings)
    late, early = ~within_window(policy.window_days), F.col("event_date") < F.lit(policy.start)
    versions = greatest_first(source, *source.key)
    outcome = (
        F.when(early, "early")
        .when(late, "late")
        .when(is_superseded(versions, policy.window_days), "superseded")
        .otherwise("staged")
    )
    rows = with_event_day(raw, source, settings.timezone).withColumn("_kind", outcome)
    rows = rows.join(files, "source_file", "left_semi")
    counts: dict[str, int] = dict(rows.groupBy("_kind").agg(F.count(F.lit(1))).toLocalIterator())
    staging = _read_published(settings, spark, source.staged)
    in_staging = 0
    if staging is not None:
        same = ["event_date", "log_date", *source.key]
        counted = rows.where(F.col("_kind") == "staged")
        in_staging = counted.join(staging.select(*same), same, "left_semi").count()
    return {**counts, "in_staging": in_staging}
