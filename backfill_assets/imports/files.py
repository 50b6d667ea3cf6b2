"""Lines of a step as landing files, a chunk of days at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import date
from functools import reduce

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.calendar.partitions import Days, spelled
from backfill_assets.calendar.policy import Policy
from backfill_assets.engine.stores import open_store
from backfill_assets.imports.lines import TOLD
from backfill_assets.imports.manifests import ImportRefusedError, Step
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
    told = F.col(TOLD)
    known = told >= F.lit(policy.start)
    if policy.end is not None:
        known = known & (told < F.lit(policy.end))
    return F.when(known, told).otherwise(F.lit(stray).cast("date"))


def chunks(rows: Mapping[date, int], most: int) -> Iterator[list[date]]:
    """Days in ascending order, in groups of at most so many rows, or of one day."""
    group: list[date] = []
    for day in sorted(rows):
        if group and sum(rows[one] for one in group) + rows[day] > most:
            yield group
            group = []
        group.append(day)
    if group:
        yield group


def scratch_of(landing: str, source: Source, name: str) -> str:
    """A folder for what a step writes before it lands."""
    return f"{landing}/{source.name}/{_SCRATCH}/{name}"


def clear(scratch: str) -> None:
    """Remove what a step has left there."""
    filesystem, path = open_store(scratch)
    if filesystem.get_file_info(path).type == pafs.FileType.Directory:
        filesystem.delete_dir(path)


def land(
    lines: DataFrame,
    source: Source,
    step: Step,
    days: Collection[date],
    arrived: Column,
    landing: str,
) -> dict[str, int]:
    """Write the lines of some days into their folders.

    The names follow from the step, and what is in a file from the rows: who does it again puts the
    same files in the place of those that are there.

    Args:
        lines: as `lines.lines_of` gives them.
        source: whose lines they are.
        step: the step.
        days: the arrival days.
        arrived: the arrival day of a line.
        landing: the landing folder.

    Returns:
        Number of rows by file.

    Raises:
        ImportRefusedError: they are not as many rows as were counted; none of them landed.
    """
    at = f"{scratch_of(landing, source, step.name)}/chunk"
    parts = {day: -(-step.rows[day] // ROWS_PER_FILE) for day in days}
    many = ((day, n) for day, n in parts.items() if n > 1)
    bucket = reduce(
        lambda else_, of: F.when(F.col(_DAY) == F.lit(of[0]), F.lit(of[1])).otherwise(else_),
        many,
        F.lit(1),
    )
    placed = (
        lines.withColumn(_DAY, arrived)
        .where(Days.of(days).predicate(_DAY))
        .withColumn(_PART, F.pmod(F.xxhash64(*source.fields), bucket))
        .select(*source.fields, _DAY, _PART)
        .repartition(min(sum(parts.values()), _WRITERS), _DAY, _PART)
        .sortWithinPartitions(_DAY, _PART, *source.fields)
    )
    writer = placed.write.mode("overwrite").option("maxRecordsPerFile", 0)
    writer.partitionBy(_DAY, _PART).parquet(at)
    filesystem, root = open_store(at)
    found = {}
    for info in filesystem.get_file_info(pafs.FileSelector(root, recursive=True)):
        if info.is_file and info.base_name.startswith("part-"):
            day, part, _ = info.path.removeprefix(f"{root}/").split("/")
            name = f"{step.name}-{part.partition('=')[2]}.parquet"
            file = f"{folder_name(date.fromisoformat(day.partition('=')[2]))}/{name}"
            found[file] = info.path, _rows_of(filesystem, info.path)
    _refuse_others({file: rows for file, (_, rows) in found.items()}, step, days)
    base = f"{open_store(landing)[1]}/{source.name}"
    for file, (path, _) in sorted(found.items()):
        filesystem.create_dir(f"{base}/{file.partition('/')[0]}", recursive=True)
        filesystem.move(path, f"{base}/{file}")
    return {file: rows for file, (_, rows) in sorted(found.items())}


def _rows_of(filesystem: pafs.FileSystem, path: str) -> int:
    with filesystem.open_input_file(path) as file:
        return int(pq.read_metadata(file).num_rows)


def _refuse_others(found: Mapping[str, int], step: Step, days: Collection[date]) -> None:
    written: dict[str, int] = {}
    for file, rows in found.items():
        folder = file.partition("/")[0]
        written[folder] = written.get(folder, 0) + rows
    if other := [day for day in days if written.get(folder_name(day), 0) != step.rows[day]]:
        raise ImportRefusedError(
            f"the rows that arrived on {spelled(other)} are not as many as were counted. None of "
            "these days landed by this attempt. An expression may depend on the clock or on "
            "chance, or files of the table were changed: mend that, and import again."
        )
