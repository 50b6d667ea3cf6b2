"""Versions of all tables that belong together, which any reader of Delta can take.

Tables are committed one after another. While a run or a switch-over is active, a reader of two
tables may see one before and the other after it. The file `_versions.json` in the warehouse names
versions at which every day was built from the current rows of its inputs, but for final days and
days on hold, which no scheduled run builds again; it is written whenever all tables have reached
such a state. PySpark is not imported: a reader needs none.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pyarrow.fs as pafs

from backfill_assets.spark.filesystems import open_store, replace_file

if TYPE_CHECKING:
    from backfill_assets.delta.ledgers import Ledgers

#: Name of the file in the warehouse.
VERSIONS_FILE = "_versions.json"


def versions_that_belong_together(warehouse: str) -> dict[str, int]:
    """By table, the version to read, so that all tables show one state.

    Args:
        warehouse: the folder or URL of the tables.

    Raises:
        FileNotFoundError: no such versions are known yet.
    """
    filesystem, path = open_store(warehouse)
    with filesystem.open_input_stream(f"{path}/{VERSIONS_FILE}") as stream:
        versions: dict[str, int] = json.loads(stream.read())["tables"]
        return versions


def save_versions(warehouse: str, ledgers: Ledgers) -> bool:
    """Save the current versions as belonging together; return whether they changed.

    No table may have an open day that is behind its inputs. Tables of other projects in the same
    warehouse keep their versions, while they are there.
    """
    filesystem, path = open_store(warehouse)
    saved: dict[str, int] = {}
    with suppress(FileNotFoundError, ValueError, KeyError):
        saved = versions_that_belong_together(warehouse)
    own_names = {ledger.table.asset_name for ledger in ledgers.values()}
    logs = {name: f"{path}/{name}/_delta_log" for name in saved if name not in own_names}
    infos = filesystem.get_file_info([*logs.values()])
    others = [
        name for name, info in zip(logs, infos, strict=True) if info.type != pafs.FileType.NotFound
    ]
    current = {name: saved[name] for name in others} | {
        ledger.table.asset_name: ledger.version
        for ledger in ledgers.values()
        if ledger.version is not None
    }
    if saved == current:
        return False
    content = {"at": datetime.now(timezone.utc).isoformat(timespec="seconds"), "tables": current}
    replace_file(warehouse, VERSIONS_FILE, json.dumps(content, indent=2).encode())
    return True
