"""Tables that carry state in a deployment: Dagster's daemon builds their days in order."""

from __future__ import annotations

import time
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from backfill_assets.calendar.partitions import Window, days_of_run
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets_tests.helpers.deployment import ServedDeployment
from backfill_assets_tests.helpers.memory_model import lifetime_values
from backfill_assets_tests.helpers.pipeline import Pipeline, day, order

TABLES = "backfill_assets_tests.system.test_state:TABLES"
DAYS, PER_RUN = 12, 4
LOG = ("raw_orders", "raw_orders_rejected")
CURRENT, LTV = "fact_daily_orders_current", "customer_lifetime_value"
FACTS, FROZEN = ("stg_orders", "fact_daily_orders"), "frozen_value"


def land_orders(pipeline: Pipeline) -> set[tuple[Any, ...]]:
    """Orders of three customers a day land; what each is worth, by a plain loop."""
    orders = {}
    for n in range(1, DAYS + 1):
        lines = [order(f"{n}-{k}", n, f"{n + k}.00", f"c{k * n % 7}") for k in (1, 2, 3)]
        pipeline.land(n, lines)
        for line in lines:
            count, sum_ = orders.get((day(n), line["customer_id"]), (0, Decimal(0)))
            orders[day(n), line["customer_id"]] = count + 1, sum_ + Decimal(line["amount"])
    return lifetime_values(orders, [day(n) for n in range(1, DAYS + 1)])


def day_range(first: int, last: int) -> str:
    return f"{day(first)}...{day(last)}"


def runs_in_order(deployment: ServedDeployment, table: str) -> list[Window]:
    """The days of the runs that built a table, none of which began before the last had ended."""
    key = dg.AssetKey(table)
    with deployment.instance() as instance:
        records = instance.get_run_records(ascending=True)
        while any(not record.dagster_run.is_finished for record in records):
            time.sleep(0.5)
            records = instance.get_run_records(ascending=True)
    runs = [
        run_record
        for run_record in records
        if key in (run_record.dagster_run.asset_selection or ())
    ]
    assert all(run_record.end_time <= other.start_time for run_record, other in pairwise(runs))
    return [window for run_record in runs if (window := days_of_run(run_record.dagster_run.tags))]


@pytest.mark.slow
def test_its_days_are_built_in_order_by_a_launch_in_the_ui_and_by_stages(
    engine, spark, tmp_path: Path
) -> None:
    pipeline = Pipeline(engine, tmp_path, tables=TABLES)
    expected = land_orders(pipeline)
    clean = Pipeline(
        engine, tmp_path / "clean", land=False, landing=str(pipeline.landing), tables=TABLES
    )
    deployment = ServedDeployment(tmp_path, pipeline.settings, per_run=PER_RUN)
    try:
        deployment.wait_for_daemons()
        deployment.stop_rebuilding()
        # From nothing, with all that it is made of, as the UI launches it.
        days = [str(day(n)) for n in range(1, DAYS + 1)]
        backfill = deployment.launch(days, [*LOG, CURRENT, LTV])
        # Meanwhile the same lines are loaded at once.
        clean.run(1, DAYS, [*LOG, CURRENT, *FACTS, LTV, FROZEN])
        while not (status := deployment.status(backfill)).startswith(("COMPLETED", "FAILED")):
            time.sleep(0.5)
        assert status == "COMPLETED_SUCCESS"
        # How many days a run takes goes by how far its input is.
        windows = runs_in_order(deployment, LTV)
        assert [str(d) for window in windows for d in window] == days
        assert len(windows) >= 3
        assert all(len(window) <= PER_RUN for window in windows)
        # From nothing, in stages that take two runs each.
        pipeline.run(1, DAYS, FACTS)
        chosen = ["--table", FROZEN, "--chunk-days", "6"]
        result = deployment.run("backfill", day_range(1, DAYS), *chosen)
        assert result.returncode == 0, result.stdout + result.stderr
        windows = [str(window) for window in runs_in_order(deployment, FROZEN)]
        assert windows == [day_range(1, 4), day_range(5, 6), day_range(7, 10), day_range(11, 12)]
    finally:
        deployment.stop()
    ledgers, others = read_ledgers(pipeline.deployment), read_ledgers(clean.deployment)
    for name in (LTV, FROZEN):
        assert {tuple(row.values()) for row in pipeline.rows(name)} == expected
        assert {d: ledgers[name].content_key(d) for d in ledgers[name].published_days} == {
            d: others[name].content_key(d) for d in others[name].published_days
        }
