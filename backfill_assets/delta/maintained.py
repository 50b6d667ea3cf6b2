"""What maintenance made of a table: its files before and after, as values and for a reader."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from math import ceil

from deltalake import DeltaTable
from rich.filesize import decimal as in_bytes
from rich.table import Table as Grid

from backfill_assets.tables.table import Table

#: Delta fills a file up to so many bytes.
_FILE_SIZE = 1 << 30


@dataclass(frozen=True)
class TableFiles:
    """The data files of a table as a reader finds them.

    Attributes:
        version: of the table.
        by_day: how many a day has.
        bytes_by_day: how many bytes these have.
    """

    version: int
    by_day: Counter[date]
    bytes_by_day: Counter[date]

    @classmethod
    def from_log(cls, log: DeltaTable, table: Table) -> "TableFiles":
        """The files as a log has them."""
        actions = log.get_add_actions(flatten=True)
        files, sizes = Counter[date](), Counter[date]()
        if actions.num_rows:
            days = actions.column(f"partition.{table.partition}").to_pylist()
            for day, size in zip(days, actions.column("size_bytes").to_pylist(), strict=True):
                files[day] += 1
                sizes[day] += size
        return cls(log.version(), files, sizes)

    @property
    def fragmented_days(self) -> list[date]:
        """The days whose rows would fit into fewer files."""
        return [
            day
            for day, count in sorted(self.by_day.items())
            if count > ceil(self.bytes_by_day[day] / _FILE_SIZE)
        ]


@dataclass(frozen=True)
class MaintenanceResult:
    """What maintenance made of a table, or would make of it.

    Attributes:
        table: its name.
        before: its files before.
        after: its files after; the same where nothing was to be changed.
        compacted: days whose files were put together, or would be.
        removed: how many files past the time to undo, and empty folders, were taken away or would
            be; none if that was not looked at.
        notes: what a person should know, as sentences.
        problems: what a person must see to, as sentences; nothing was taken away then.
    """

    table: str
    before: TableFiles
    after: TableFiles
    compacted: Sequence[date] = ()
    removed: int | None = None
    notes: Sequence[str] = field(default_factory=list)
    problems: Sequence[str] = field(default_factory=list)


_HEADINGS = ("table", "versions", "files", "size", "days compacted", "removed")


def format_cells(result: MaintenanceResult) -> list[str]:
    """What was made of a table, for a reader, under the headings of the tables below."""

    def format_change(before: object, after: object) -> str:
        return f"{before}" if before == after else f"{before} → {after}"

    sizes = [in_bytes(files.bytes_by_day.total()) for files in (result.before, result.after)]
    return [
        result.table,
        format_change(result.before.version, result.after.version),
        format_change(result.before.by_day.total(), result.after.by_day.total()),
        format_change(*sizes),
        str(len(result.compacted)),
        "not looked at" if result.removed is None else str(result.removed),
    ]


def as_grid(results: Sequence[MaintenanceResult]) -> Grid:
    """What was done, as a console table."""
    grid = Grid(box=None, padding=(0, 2, 0, 0))
    for heading in _HEADINGS:
        grid.add_column(heading, no_wrap=True, justify="left" if heading == "table" else "right")
    for result in results:
        grid.add_row(*format_cells(result))
    return grid


def as_markdown(results: Sequence[MaintenanceResult]) -> str:
    """What was done, as a table for the UI."""
    rows = [_HEADINGS, ["---"] * len(_HEADINGS), *map(format_cells, results)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def format_notes(results: Sequence[MaintenanceResult], *, dry_run: bool = False) -> list[str]:
    """What there is to say besides: problems come last."""
    days = sum(len(result.compacted) for result in results)
    problems = [text for result in results for text in result.problems]
    notes = [text for result in results for text in result.notes]
    if dry_run:
        notes.append("a dry run: nothing was done")
    elif days and not problems:
        notes.append(f"{days} day(s) were compacted and hold what they held, by their digests")
    return notes + problems
