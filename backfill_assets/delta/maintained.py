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
class Files:
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
    def of(cls, log: DeltaTable, table: Table) -> "Files":
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
    def scattered(self) -> list[date]:
        """The days whose rows would fit into fewer files."""
        return [
            day
            for day, count in sorted(self.by_day.items())
            if count > ceil(self.bytes_by_day[day] / _FILE_SIZE)
        ]


@dataclass(frozen=True)
class Maintained:
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
    before: Files
    after: Files
    compacted: Sequence[date] = ()
    removed: int | None = None
    notes: Sequence[str] = field(default_factory=list)
    problems: Sequence[str] = field(default_factory=list)


_HEADINGS = ("table", "versions", "files", "size", "days compacted", "removed")


def cells(one: Maintained) -> list[str]:
    """What was made of a table, for a reader, under the headings of the tables below."""

    def change(before: object, after: object) -> str:
        return f"{before}" if before == after else f"{before} → {after}"

    sizes = [in_bytes(files.bytes_by_day.total()) for files in (one.before, one.after)]
    return [
        one.table,
        change(one.before.version, one.after.version),
        change(one.before.by_day.total(), one.after.by_day.total()),
        change(*sizes),
        str(len(one.compacted)),
        "not looked at" if one.removed is None else str(one.removed),
    ]


def as_grid(found: Sequence[Maintained]) -> Grid:
    """What was done, as a console table."""
    grid = Grid(box=None, padding=(0, 2, 0, 0))
    for heading in _HEADINGS:
        grid.add_column(heading, no_wrap=True, justify="left" if heading == "table" else "right")
    for one in found:
        grid.add_row(*cells(one))
    return grid


def as_markdown(found: Sequence[Maintained]) -> str:
    """What was done, as a table for the UI."""
    rows = [_HEADINGS, ["---"] * len(_HEADINGS), *map(cells, found)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def sentences(found: Sequence[Maintained], *, dry_run: bool = False) -> list[str]:
    """What there is to say besides: problems come last."""
    days = sum(len(one.compacted) for one in found)
    wrong = [text for one in found for text in one.problems]
    said = [text for one in found for text in one.notes]
    if dry_run:
        said.append("a dry run: nothing was done")
    elif days and not wrong:
        said.append(f"{days} day(s) were compacted and hold what they held, by their digests")
    return said + wrong
