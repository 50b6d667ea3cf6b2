"""The facts on disk: commits with a row a day, and commit files written by hand without any."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from backfill_assets.delta import ledger_reader
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.orders.tables import FACT
from backfill_assets_tests.helpers.invented_logs import commit_metadata, days
from backfill_assets_tests.helpers.pipeline import day


def facts_table(dates: Iterable[date]) -> pa.Table:
    dates = sorted(dates)
    return pa.table(
        {
            "run_date": pa.array(dates, pa.date32()),
            "customer_id": pa.array(["c"] * len(dates), pa.string()),
            "orders": pa.array([1] * len(dates), pa.int64()),
            "revenue": pa.array([1] * len(dates), pa.decimal128(28, 2)),
        }
    )


def commit_days(
    url: Path, dates: Iterable[date], metadata: Any = None, mode: Any = "append"
) -> None:
    """Write a row a day; in place of all rows of these days, if the mode is to overwrite."""
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    date_list = ", ".join(f"'{d}'" for d in sorted(dates))
    write_deltalake(
        url,
        facts_table(dates),
        partition_by=["run_date"],
        mode=mode,
        predicate=f"run_date IN ({date_list})" if mode == "overwrite" else None,
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": text} if metadata is not None else None
        ),
    )


def commit_with_record(url: Path, *numbers: int, mode: Any = "append", **more: Any) -> None:
    commit_days(url, days(*numbers), commit_metadata(days(*numbers), **more), mode)


def first_added_file(url: Path, version: int = 0) -> dict[str, Any]:
    """The action by which a version added its first file."""
    lines = log_file(url, version).read_text().splitlines()
    return next(action["add"] for action in map(json.loads, lines) if "add" in action)


def run_operation(url: Path, operation: str) -> None:
    """What somebody else does to a table of days 1 to 3, of which day 2 was written again."""
    table = DeltaTable(url)
    {
        "append": lambda: commit_days(url, days(2)),
        "overwrite": lambda: commit_days(url, days(2, 4), mode="overwrite"),
        "update": lambda: table.update(updates={"orders": "2"}, predicate="run_date='2024-01-02'"),
        "delete": lambda: table.delete("run_date = '2024-01-03'"),
        "restore": lambda: table.restore(0),
        "merge": lambda: (
            table.merge(facts_table(days(3)), "t.run_date = s.run_date", "s", "t")
            .when_matched_update({"orders": "s.orders + 1"})
            .execute()
        ),
        "optimize": lambda: table.optimize.compact(),
        "constraint": lambda: table.alter.add_constraint({"some": "orders >= 0"}),
        "property": lambda: table.alter.set_table_properties({"delta.appendOnly": "false"}),
        "repair": lambda: (
            (url / first_added_file(url, 1)["path"]).unlink(),
            table.repair(dry_run=False),
        ),
    }[operation]()


def create_table(url: Path) -> Path:
    DeltaTable.create(url, facts_table(()).schema, partition_by=["run_date"])
    return url


def log_file(url: Path, version: int) -> Path:
    return url / "_delta_log" / f"{version:020d}.json"


def log_copy_file(url: Path, *name: str) -> Path:
    return url.joinpath("_backfill_assets", *name, "commits.jsonl.zst")


def latest_version(url: Path) -> int:
    return max(int(path.stem) for path in (url / "_delta_log").glob("0*.json"))


def append_commit(url: Path, *actions: Any) -> int:
    version = latest_version(url) + 1
    log_file(url, version).write_text("\n".join(map(json.dumps, actions)) + "\n")
    return version


def commit_info(operation: str = "WRITE", metadata: Any = None, **more: Any) -> dict[str, Any]:
    user_metadata = {} if metadata is None else {"userMetadata": json.dumps(metadata)}
    return {
        "commitInfo": {
            "operation": operation,
            "timestamp": 1_700_000_000_123,
            **user_metadata,
            **more,
        }
    }


def add_action(n: int, path: str, **more: Any) -> dict[str, Any]:
    path = f"{path}-{uuid4().hex}"  # as Delta does: no two files have one name
    values = {"run_date": str(day(n))}
    stats = '{"numRecords": 2, "nullCount": {"orders": 1}}'
    file = {"path": path, "partitionValues": values, "size": 1, "modificationTime": 1}
    return {"add": {**file, "dataChange": True, "stats": stats, **more}}


def append_our_commit(url: Path, *numbers: int, **more: Any) -> int:
    metadata = commit_metadata(days(*numbers), commit_id=uuid4().hex, **more)
    return append_commit(
        url, commit_info(metadata=metadata), *(add_action(n, "ours") for n in numbers)
    )


def append_other_commit(url: Path, n: int, **more: Any) -> int:
    return append_commit(
        url, commit_info("UPDATE", txnId=uuid4().hex), add_action(n, "theirs", **more)
    )


def read_facts(url: Path) -> Ledger:
    return read_ledger(str(url), FACT)


def read_by_another_process(url: Path) -> Ledger:
    with patch.object(ledger_reader, "_cached_ledgers", {}):
        return read_facts(url)
