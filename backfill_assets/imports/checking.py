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

from backfill_assets.calendar.partitions import spelled
from backfill_assets.delta.logs import load_log
from backfill_assets.engine.frames import frame_of
from backfill_assets.imports.manifests import Import
from backfill_assets.settings import Settings
from backfill_assets.tables.sources import Source
from backfill_assets.tables.table import Table
from backfill_assets.tables.versions import greatest_first, in_time, superseded, with_event_day


class Counts(msgspec.Struct, frozen=True):
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


def check(
    settings: Settings, spark: SparkSession, source: Source, imports: Collection[Import]
) -> Counts:
    """Count the imported rows where they are.

    Args:
        settings: the deployment's settings.
        spark: the session.
        source: the source.
        imports: all imports into it.
    """
    landed = {file: rows for one in imports for file, rows in one.landed.items()}
    read = sum(step.count for one in imports for step in one.steps)
    problems = [
        f"{one.table}: {sum(step.landed.values()):,} of {step.count:,} rows of {step.name} have "
        "landed: import again"
        for one in imports
        if (step := one.unfinished)
    ]
    files = _files(spark, landed)
    raw_rows = _published(settings, spark, source.raw)
    raw = _by_file(raw_rows, files)
    rejected = _by_file(_published(settings, spark, source.rejected), files)
    problems += _not_loaded(landed, raw, rejected)
    kinds: dict[str, Any] = {}
    if raw_rows is not None:
        kinds = _kinds(settings, spark, source, raw_rows, files)
    found = Counts(read, sum(landed.values()), sum(raw.values()), sum(rejected.values()), **kinds)
    if found.in_staging != found.staged:
        problems.append(
            f"{found.staged - found.in_staging:,} row(s) that count are not in "
            f"{source.staged.name}: materialize its days"
        )
    return msgspec.structs.replace(found, problems=problems)


def _files(spark: SparkSession, names: Iterable[str]) -> DataFrame:
    struct = T.StructType([T.StructField("source_file", T.StringType())])
    return F.broadcast(frame_of(spark, struct, ((name,) for name in names)))


def _published(settings: Settings, spark: SparkSession, table: Table) -> DataFrame | None:
    """The rows of a table; none if it is not there yet."""
    url = settings.table(table.name)
    if load_log(url) is None:
        return None
    return table.filled(spark.read.format("delta").load(url))


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
            [f"not loaded yet: {len(none)} file(s) of {_days(none)}"] if none else [],
            [f"loaded with other rows than landed: {', '.join(other[:20])}"] if other else [],
        )
    )


def _days(files: Sequence[str]) -> str:
    return spelled(date.fromisoformat(file[13:23]) for file in files)


def _kinds(
    settings: Settings, spark: SparkSession, source: Source, raw: DataFrame, files: DataFrame
) -> dict[str, int]:
    """What became of the imported rows of the raw log, by the rules of staging."""
    policy = source.policy(settings)
    late, before = ~in_time(policy.window_days), F.col("event_date") < F.lit(policy.start)
    versions = greatest_first(source, *source.key)
    kind = (
        F.when(before, "early")
        .when(late, "late")
        .when(superseded(versions, policy.window_days), "superseded")
        .otherwise("staged")
    )
    rows = with_event_day(raw, source, settings.timezone).withColumn("_kind", kind)
    rows = rows.join(files, "source_file", "left_semi")
    counts: dict[str, int] = dict(rows.groupBy("_kind").agg(F.count(F.lit(1))).toLocalIterator())
    staging = _published(settings, spark, source.staged)
    there = 0
    if staging is not None:
        same = ["event_date", "log_date", *source.key]
        counted = rows.where(F.col("_kind") == "staged")
        there = counted.join(staging.select(*same), same, "left_semi").count()
    return {**counts, "in_staging": there}
