"""Drive the assets in a test: land lines, run days, read tables without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
from deltalake import DeltaTable

from backfill_assets.audit import measure
from backfill_assets.definitions import build_defs
from backfill_assets.schemas import TABLES
from backfill_assets.settings import load_settings
from backfill_assets.spark import Engine

START, END = date(2024, 1, 1), date(2024, 2, 1)


def day(n: int) -> date:
    """The n-th day of the test calendar, from 1."""
    return START + timedelta(days=n - 1)


def order(
    order_id: str,
    day_n: int,
    amount: str = "10.00",
    customer: str | None = "c1",
    *,
    at: str = "10:00",
    ingested: str | None = None,
) -> dict:
    """An order line as it lands."""
    stamp = f"{day(day_n)}T{at}:00Z"
    return {
        "order_id": order_id,
        "customer_id": customer,
        "order_ts": stamp,
        "amount": amount,
        "ingestion_ts": ingested or stamp,
    }


class Pipeline:
    """The project's definitions on folders of their own."""

    def __init__(self, engine: Engine, root: Path, *, land: bool = True, **overrides: Any) -> None:
        self.root = root
        self.landing, self.warehouse = root / "landing", root / "warehouse"
        if land:
            (self.landing / "orders").mkdir(parents=True, exist_ok=True)
        values = {
            "landing": str(self.landing),
            "warehouse": str(self.warehouse),
            "start": START,
            "end": END,
        }
        self.settings = load_settings(**{**values, **overrides})
        self.defs = build_defs(self.settings, resources={"engine": engine})
        self.repository = self.defs.get_repository_def()
        self.instance = dg.DagsterInstance.ephemeral()
        self.io_manager = self.defs.resources["io_manager"]

    def land(self, day_n: int, lines: Iterable[Mapping | str], name: str = "part-0.jsonl") -> Path:
        """Put a JSON Lines file into an arrival day's folder."""
        folder = self.folder(day_n)
        path = folder / name
        path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
        return path

    def folder(self, day_n: int) -> Path:
        folder = self.landing / "orders" / f"arrival_date={day(day_n)}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def run(
        self,
        first: int | date,
        last: int | date | None = None,
        assets: Sequence[str] | None = None,
        *,
        fails: bool = False,
    ) -> dg.ExecuteInProcessResult:
        """Materialize a range of days (inclusive) in one run."""
        first = first if isinstance(first, date) else day(first)
        last = first if last is None else last if isinstance(last, date) else day(last)
        job = self.repository.get_implicit_global_asset_job_def()
        result = job.execute_in_process(
            instance=self.instance,
            asset_selection=[dg.AssetKey(name) for name in assets] if assets else None,
            tags={
                "dagster/asset_partition_range_start": str(first),
                "dagster/asset_partition_range_end": str(last),
            },
            raise_on_error=False,
        )
        assert result.success is not fails, [e.message for e in result.all_events if e.is_failure]
        return result

    def log(self, name: str) -> DeltaTable:
        return DeltaTable(str(self.warehouse / name))

    def rows(self, name: str) -> list[dict]:
        """A table's rows, read by an engine that is not Spark."""
        return self.log(name).to_pyarrow_table().to_pylist()

    def digests(self) -> dict[str, dict[str, str]]:
        """The digest of every day of every table, computed anew from the tables."""
        found = {}
        for name, table in TABLES.items():
            if not (self.warehouse / name).exists():
                continue
            frame = self.io_manager.engine.spark_session.read.format("delta").load(
                str(self.warehouse / name)
            )
            found[name] = {str(d): m.digest for d, m in measure(frame, table).items()}
        return found

    def materialized(self, name: str) -> set[str]:
        return self.instance.get_materialized_partitions(dg.AssetKey(name))

    def failure(self, result: dg.ExecuteInProcessResult) -> str:
        """What the failed steps of a run say, as a user reads it."""
        return "\n".join(
            e.step_failure_data.error.to_string()
            if not e.step_failure_data.user_failure_data
            else str(e.step_failure_data.user_failure_data.description)
            for e in result.all_events
            if e.is_step_failure
        )
