"""What the commands say that are refused; plans, and days of facts, for the others to tell of."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.definitions.partitions.subset import DefaultPartitionsSubset
from dagster._core.execution.asset_backfill import AssetBackfillData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from deltalake import CommitProperties, write_deltalake

from backfill_assets.backfills import state_store
from backfill_assets.backfills.backfill_plan import BackfillPlan, BackfillRequest, TableForecast
from backfill_assets.backfills.reconcile import ReconcileResult, encode_result, reconcile_report
from backfill_assets.backfills.state_store import BackfillState
from backfill_assets.cli import main
from backfill_assets.orders.tables import FACT

DAYS = "2024-01-01...2024-01-03"
JAN = [date(2024, 1, 1) + timedelta(days=n) for n in range(31)]


def refusal_message(capsys, command: str) -> str:
    """What a command says that could not run: one line."""
    output = capsys.readouterr()
    assert output.err.startswith(f"backfill-assets {command}: ")
    assert output.err.count("\n") == 1
    assert "Traceback" not in output.err + output.out
    return output.err


def usage_error(capsys, *command: str) -> str:
    """What a command says that was used wrongly."""
    assert main(command) == 2
    output = capsys.readouterr()
    assert "Traceback" not in output.err + output.out
    return output.err.partition("Error: ")[2]


def publish_facts(tmp_path: Path, days: dict[date, str], rows: int = 2, **fields: object) -> None:
    """Commit days of facts as the IO manager would, with their verdicts."""
    table = pa.table(
        {
            "run_date": [day for day in days for _ in range(rows)],
            "customer_id": [f"c{n}" for _ in days for n in range(rows)],
            "orders": [1] * (rows * len(days)),
            "revenue": [Decimal("1.00")] * (rows * len(days)),
        }
    )
    audit = {
        str(day): {"rows": rows, "digest": "d", "verdict": verdict} for day, verdict in days.items()
    }
    record = {"run_id": "r", "code_version": "c", "config_digest": "d", "audit": audit, **fields}
    if "written" in fields:
        record["days"] = fields["written"]
    write_deltalake(
        tmp_path / "warehouse" / "fact_daily_orders",
        table,
        mode="append",
        partition_by=["run_date"],
        commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps(record)}),
    )


def save_plan(instance: dg.DagsterInstance, id_: str, **more: object) -> BackfillState:
    """A plan of three days of facts, kept as `plan` does."""
    outlook = TableForecast.model_validate({"computed": (DAYS,), **more})
    plan = BackfillPlan(
        id=id_,
        parameters=BackfillRequest(days=DAYS, tables=(FACT.name,), reason="why [red]"),
        code_version="c",
        code="c",
        config_digest="d",
        versions={},
        landing="",
        tables={FACT.name: outlook},
        files=1,
        size=1,
        commits=1,
        runs=1,
        seconds=None,
    )
    state = BackfillState(plan=plan, made=time.time())
    state_store.save(instance, state)
    return state


def save_launch(
    instance: dg.DagsterInstance,
    id_: str,
    days: Mapping[str, Iterable[object]],
    at: float = 0.0,
    status: BulkActionStatus = BulkActionStatus.COMPLETED_FAILED,
) -> None:
    """A backfill in Dagster with days of tables, at a time or now."""
    subsets = {
        dg.AssetKey(table): DefaultPartitionsSubset({*map(str, table_days)})
        for table, table_days in days.items()
    }
    at = at or time.time()
    data = AssetBackfillData.empty(AssetGraphSubset(subsets), at, instance)
    instance.add_backfill(PartitionBackfill(id_, status, False, {}, at, asset_backfill_data=data))


def reconcile_run(result: ReconcileResult) -> Callable[..., dict[str, Any]]:
    """In place of a run of `reconcile`: what it records of this result."""
    return lambda *_, details: encode_result(result, reconcile_report(result), details=details)
