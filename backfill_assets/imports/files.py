"""Lines of a step as landing files, a chunk of days at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import date
from functools import reduce

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import DaySet, format_ranges
from backfill_assets.calendar.policy import Policy
from backfill_assets.engine.stores import open_store
from backfill_assets.imports.lines import ARRIVAL_DAY
from backfill_assets.imports.manifests import ImportRefusedError, ImportStep
from backfill_assets.landing.listing import folder_name
from backfill_assets.tables.sources import Source

#: Beside the folders of the arrival days; who lists those passes over it.
_SCRATCH = "_imports"
#: A day of more rows has several files.
ROWS_PER_FILE = 2_000_000
_DAY, _PART = "_day", "_part"
#: So many tasks write a chunk at most.
_WRITERS = 200


def arrival_day(policy: Policy, stray: date | None) -> Column:
    """The arrival day of a row: the one that it tells, if that is on the calendar."""
    arrival = F.col(ARRIVAL_DAY)
    known = arrival >= F.lit(policy.start)
    if policy.end is not None:
        known = known & (arrival < F.lit(policy.end))
    return F.when(known, arrival).otherwise(F.lit(stray).cast("date"))


def split_chunks(rows: Mapping[date, int], most: int) -> Iterator[list[date]]:
    """Days in ascending order, in groups of at most so many rows, or of one day."""
    group: list[date] = []
    for day in sorted(rows):
        if group and sum(rows[grouped_day] for grouped_day in group) + rows[day] > most:
            yield group
            group = []
        group.append(day)
    if group:
        yield group


def scratch_folder(landing: str, source: Source, name: str) -> str:
    """A folder for what a step writes before it lands."""
    return f"{landing}/{source.name}/{_SCRATCH}/{name}"


def clear_folder(scratch: str) -> None:
    """Remove what a step has left there."""
    filesystem, path = open_store(scratch)
    if filesystem.get_file_info(path).type == pafs.FileType.Directory:
        filesystem.delete_dir(path)


def land_files(
    lines: DataFrame,
    source: Source,
    step: ImportStep,
    days: Collection[date],
    arrival: Column,
    landing: str,
) -> dict[str, int]:
    """Write the lines of some days into their folders.

    The names follow from the step, and what is in a file from the rows: who does it again puts the
    same files in the place of those that are there.

    Args:
        lines: as `lines.map_rows` gives them.
        source: whose lines they are.
        step: the step.
        days: the arrival days.
        arrival: the arrival day of a line.
        landing: the landing folder.

    Returns:
        Number of rows by file.

    Raises:
        ImportRefusedError: they are not as many rows as were counted; none of them landed.
    """
    chunk_folder = f"{scratch_folder(landing, source, step.name)}/chunk"
    parts = {day: -(-step.rows[day] // ROWS_PER_FILE) for day in days}
    large_days = ((day, n) for day, n in parts.items() if n > 1)
    bucket = reduce(
        lambda else_, day_parts: F.when(
            F.col(_DAY) == F.lit(day_parts[0]), F.lit(day_parts[1])
        ).otherwise(else_),
        large_days,
        F.lit(1),
    )
    placed = (
        lines.withColumn(_DAY, arrival)
        .where(DaySet.from_days(days).sql_condition(_DAY))
        .withColumn(_PART, F.pmod(F.xxhash64(*source.fields), bucket))
        .select(*source.fields, _DAY, _PART)
        .repartition(min(sum(parts.values()), _WRITERS), _DAY, _PART)
        .sortWithinPartitions(_DAY, _PART, *source.fields)
    )
    writer = placed.write.mode("overwrite").option("maxRecordsPerFile", 0)
    writer.partitionBy(_DAY, _PART).parquet(chunk_folder)
    filesystem, root = open_store(chunk_folder)
    files = {}
    for info in filesystem.get_file_info(pafs.FileSelector(root, recursive=True)):
        if info.is_file and info.base_name.startswith("part-"):
            day, part, _ = info.path.removeprefix(f"{root}/").split("/")
            name = f"{step.name}-{part.partition('=')[2]}.parquet"
            file = f"{folder_name(date.fromisoformat(day.partition('=')[2]))}/{name}"
            files[file] = info.path, _count_rows(filesystem, info.path)
    _raise_if_rows_differ({file: rows for file, (_, rows) in files.items()}, step, days)
    base = f"{open_store(landing)[1]}/{source.name}"
    for file, (path, _) in sorted(files.items()):
        filesystem.create_dir(f"{base}/{file.partition('/')[0]}", recursive=True)
        filesystem.move(path, f"{base}/{file}")
    return {file: rows for file, (_, rows) in sorted(files.items())}


def _count_rows(filesystem: pafs.FileSystem, path: str) -> int:
    with filesystem.open_input_file(path) as file:
        return int(pq.read_metadata(file).num_rows)


def _raise_if_rows_differ(
    files: Mapping[str, int], step: ImportStep, days: Collection[date]
) -> None:
    written: dict[str, int] = {}
    for file, rows in files.items():
        folder = file.partition("/")[0]
        written[folder] = written.get(folder, 0) + rows
    if wrong_days := [day for day in days if written.get(folder_name(day), 0) != step.rows[day]]:
        raise ImportRefusedError(
            f"the rows that arrived on {format_ranges(wrong_days)} are not as many as were counted. None of "
            "these days landed by this attempt. An expression may depend on the clock or on "
            "chance, or files of the table were changed: mend that, and import again."
        )
