"""From Dagster's storage in SQLite to an empty one in Postgres: the tables say what they hold."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import dagster as dg

from backfill_assets.dagster_ext.eventlog import LocalEventLog
from backfill_assets.postgres import PooledEventLog
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.pipeline import Pipeline, day, make_plan, order

DAYS = 3
RAW = ("raw_orders", "raw_orders_rejected")
TABLES = (*RAW, "stg_orders", "fact_daily_orders")


@contextmanager
def moved_to(pipeline: Pipeline, config: str) -> Iterator[dg.DagsterInstance]:
    """The pipeline on an instance of such a `dagster.yaml`."""
    home = pipeline.root / "home"
    home.mkdir(exist_ok=True)
    shutil.copy(PROJECT / config, home / "dagster.yaml")
    with patch.dict(os.environ, DAGSTER_HOME=str(home)), dg.DagsterInstance.get() as instance:
        pipeline.instance = instance
        yield instance


def table_versions(pipeline: Pipeline) -> dict[str, int]:
    return {name: pipeline.log(name).version() for name in TABLES}


def test_the_tables_need_no_history_and_a_replay_tells_dagster_of_them(pipeline, database):
    for n in range(1, DAYS + 1):
        pipeline.land(n, [order(f"o-{n}-{i}", n) for i in range(3)])
    with moved_to(pipeline, "dagster.yaml") as instance:
        assert isinstance(instance.event_log_storage, LocalEventLog)
        pipeline.run(1, DAYS, TABLES)
    before, digests = table_versions(pipeline), pipeline.digests()
    with moved_to(pipeline, "backfill_assets/deploy/dagster.postgres.yaml") as instance:
        assert isinstance(instance.event_log_storage, PooledEventLog)
        assert pipeline.materialized("fact_daily_orders") == set()
        # What is behind is asked of the tables' logs, not of Dagster.
        plan = make_plan(pipeline, f"{day(1)}...{day(DAYS)}", tables=TABLES)
        assert plan.tables.keys() == {*TABLES}
        assert not any(table.computed or table.lacking for table in plan.tables.values())
        # Every day is told of once more, and none is computed.
        pipeline.run(1, DAYS, TABLES)
        assert table_versions(pipeline) == before
        days = {str(day(n)) for n in range(1, DAYS + 1)}
        assert all(pipeline.materialized(name) == days for name in TABLES)
        checks = database.ask(
            "SELECT count(DISTINCT partition) FROM asset_check_executions "
            "WHERE execution_status = 'SUCCEEDED' AND asset_key = %s",
            '["fact_daily_orders"]',
        )
        assert checks == [(DAYS,)]
        pipeline.land(2, [order("one-more", 2)], "more.jsonl")
        pipeline.run(2, 2, RAW)
        assert pipeline.digests() != digests
