"""The history of a table, or of one day of it: every commit, from the table's log alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from rich.table import Table as Grid

from backfill_assets.partitions import Window, windows
from backfill_assets.records import Foreign, Record, read_ledger
from backfill_assets.schemas import TABLES
from backfill_assets.settings import Settings

_MOST_SPANS = 5


def history(settings: Settings, name: str, day: date | None = None) -> Grid:
    """The commits of a table, oldest first, as a console table.

    A day that a commit found with the rows that it was to write is *unchanged*: the commit speaks
    of the day, and the files are older. Maintenance that changes no row (`OPTIMIZE`) is left out.

    Args:
        settings: the deployment's settings.
        name: the table.
        day: only the commits that speak of this day, with its rows and digest.

    Raises:
        ValueError: there is no such commit.
    """
    ledger = read_ledger(settings.table(name), TABLES[name])
    commits = [commit for commit in ledger.commits if day is None or day in commit.days]
    if not commits:
        what = name if day is None else f"{name}[{day}]"
        raise ValueError(f"{what} has never been published at {settings.table(name)}")
    grid = Grid(box=None, padding=(0, 2, 0, 0))
    grid.add_column("version", justify="right", no_wrap=True)
    about_day = ("rows", "digest") if day else ()
    for heading in ("at (UTC)", "days", *about_day, "run", "backfill", "by"):
        grid.add_column(heading, no_wrap=True)
    for commit in commits:
        at = f"{commit.at:%Y-%m-%d %H:%M}" if commit.at else ""
        grid.add_row(str(commit.version), at, *_cells(commit, day))
    return grid


def _cells(commit: Record | Foreign, day: date | None) -> list[str]:
    if isinstance(commit, Foreign):
        unknown = ["", "", "", ""] if day else ["", ""]
        return [spans(windows(commit.days)), *unknown, f"another writer: {commit.operation}"]
    written = frozenset(commit.days) if commit.written is None else commit.written
    days = [spans(windows(written))] if written else []
    if unchanged := windows(commit.days.keys() - written):
        days.append("\n".join(f"{line} unchanged" for line in spans(unchanged).splitlines()))
    said = commit.days[day] if day else None
    return [
        "\n".join(days),
        # Its end: a digest begins with the number of rows.
        *([f"{said.rows:,}", said.digest[-12:]] if said else []),
        commit.run_id[:8],
        (commit.backfill_id or "none")[:8],
        commit.launched_by,
    ]


def spans(found: Sequence[Window]) -> str:
    """One line for each gapless range; of many, the last."""
    more = len(found) - _MOST_SPANS
    head = [f"{more} range(s) before"] if more > 0 else []
    return "\n".join([*head, *map(str, found[-_MOST_SPANS:])]) or "none"
