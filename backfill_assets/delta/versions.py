"""The versions of all tables that belong together, for readers who want one state of all of them.

Tables are committed one after another. While a run or a switch-over is under way, a reader of two
tables sees one before and one after. The file `_versions.json` in the warehouse names versions at
which every day was made of what its inputs held; it is written when all tables have come to that.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone

from backfill_assets.delta.ledgers import Ledgers
from backfill_assets.engine.stores import open_store, replace_file

#: In the warehouse.
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
    """Take note that the tables belong together as they are; whether that was news.

    Args:
        warehouse: the folder or URL of the tables.
        ledgers: those of all tables, none of which has an open day behind its inputs.
    """
    current = {
        name: ledger.version for name, ledger in ledgers.items() if ledger.version is not None
    }
    try:
        if versions_that_belong_together(warehouse) == current:
            return False
    except (FileNotFoundError, ValueError, KeyError):
        pass
    content = {"at": datetime.now(timezone.utc).isoformat(timespec="seconds"), "tables": current}
    replace_file(warehouse, VERSIONS_FILE, json.dumps(content, indent=2).encode())
    return True
