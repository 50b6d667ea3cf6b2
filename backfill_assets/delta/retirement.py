"""A retired table gives up its rows: one commit that leaves none, then all of its data files go.

The log stays. So readers find an empty table instead of none, `history` tells what it was, and
nobody takes it for one that is still to be made.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import TYPE_CHECKING

import pyarrow.fs as pafs

from backfill_assets.calendar.partitions import DAY, format_ranges, to_ranges
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.logs import load_log
from backfill_assets.delta.records import RETIREMENT
from backfill_assets.engine.stores import open_store
from backfill_assets.tables.table import Table

if TYPE_CHECKING:
    from backfill_assets.delta.commits import Writer

#: Who makes the commit.
_LAUNCHED_BY = "maintenance"


def can_delete_rows(table: Table, undo_days: int, today: date) -> bool:
    """Whether a table has been retired for so long that nothing of it can be undone any more.

    Args:
        table: the table.
        undo_days: for how many days a backfill can be undone.
        today: the business day.
    """
    return table.is_retired(today - undo_days * DAY)


def retired_message(ledger: Ledger, url: str, days: Iterable[date]) -> str:
    """Why days cannot be published in a table that has given up its rows; empty if it has not."""
    if ledger.retirement_commit is None:
        return ""
    return (
        f"{ledger.table.name} [{format_ranges(days)}]: the table is retired, and maintenance has taken "
        f"its rows away (version {ledger.retirement_commit.version}). Nothing was written. To make it anew, "
        f"take `retired` out of its declaration, move its folder {url} away, and launch its days."
    )


def delete_all_rows(writer: Writer, ledger: Ledger) -> bool:
    """Commit that a table has no rows any more; whether no other commit came first.

    Args:
        writer: commits to it.
        ledger: what its log says.

    Raises:
        PublishError: the table is as it was.
    """
    days = sorted(ledger.published_days)
    record = {
        "run_id": "",
        "launched_by": _LAUNCHED_BY,
        "reason": f"retired since {ledger.table.retired}",
        "asset": ledger.table.name,
        "code_version": "",
        "config_digest": "",
        "since": ledger.version,
        "audit": {},
        "withdrawn": to_ranges(days),
        "said": {"kind": RETIREMENT},
    }
    return writer.commit({}, days, record, ledger) is not None


def delete_data_files(url: str, table: Table, *, dry_run: bool) -> int:
    """Remove the data files of a table that has given up its rows; how many these are.

    Nobody writes to it any more, so none of them is still to be named. (VACUUM, without a time to
    keep files, makes two commits each time, and delta-rs counts files that are gone.)

    Args:
        url: where it lives.
        table: the table.
        dry_run: whether to count them only, as if it had given up its rows.
    """
    log = load_log(url)
    assert log is not None
    named_paths = set() if dry_run else {*log.get_add_actions().column("path").to_pylist()}
    filesystem, path = open_store(url)
    folders = [
        info
        for info in filesystem.get_file_info(pafs.FileSelector(path))
        if info.base_name.startswith(f"{table.partition}=")
    ]
    removed = 0
    for folder in folders:
        infos = filesystem.get_file_info(pafs.FileSelector(folder.path, recursive=True))
        files = [info for info in infos if info.is_file]
        unnamed_files = [
            file for file in files if file.path.removeprefix(f"{path}/") not in named_paths
        ]
        removed += sum(file.extension == "parquet" for file in unnamed_files)
        if len(unnamed_files) == len(files) and not dry_run:
            filesystem.delete_dir(folder.path)
    return removed
