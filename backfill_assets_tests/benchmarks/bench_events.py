"""The part of `make bench` about Dagster's storages: events a second."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

import dagster as dg
import yaml

from backfill_assets_tests.benchmarks.results import print_result
from backfill_assets_tests.helpers import postgres
from backfill_assets_tests.helpers.dagster_events import make_run_events
from backfill_assets_tests.helpers.paths import PROJECT

#: Seconds for each figure.
_SECONDS = 3.0


def measure_events(root: Path) -> None:
    """A run's events of days and checks, one by one and as runs store them, in each storage."""
    ours = {path: yaml.safe_load((PROJECT / path).read_text())["storage"] for path in _CONFIGS}
    local, pooled = ours.values()
    where = pooled["custom"]["config"]["postgres_db"]
    storages: dict[str, Any] = {"SQLite, Dagster's": None, "SQLite, ours": local}
    if lacking := postgres.missing_server_reason():
        print(f"  Postgres: {lacking}")
        _measure_storages(root, storages)
        return
    driver = {"scheme": "postgresql+psycopg2"}
    storages["Postgres, Dagster's"] = {"postgres": {"postgres_db": {**where, **driver}}}
    storages["Postgres, ours"] = pooled
    with postgres.run_server(durable=True) as server:
        _measure_storages(root, storages, server)


_CONFIGS = ("dagster.yaml", "backfill_assets/deploy/dagster.postgres.yaml")


def _measure_storages(
    root: Path, storages: dict[str, Any], server: postgres.Server | None = None
) -> None:
    for name, storage in storages.items():
        home = root / name
        home.mkdir(parents=True)
        config = {"telemetry": {"enabled": False}, **({"storage": storage} if storage else {})}
        (home / "dagster.yaml").write_text(yaml.safe_dump(config))
        if server is not None:
            os.environ.update(server.database().environment)
        os.environ["DAGSTER_HOME"] = str(home)
        with dg.DagsterInstance.from_config(str(home)) as instance:
            log = instance.event_log_storage
            takes = getattr(log, "batches_take_checks", False)
            single = _events_per_second(log.store_event, one_by_one=True)
            batch = _events_per_second(log.store_event_batch) if takes else None
        text = f"{single:,.0f} one by one" + (f", {batch:,.0f} in batches" if batch else "")
        print_result(f"events a second, {name}", text)


def _events_per_second(store: Callable[[Any], None], *, one_by_one: bool = False) -> float:
    """Materializations and evaluations of checks a second."""
    stored, began = 0, perf_counter()
    while perf_counter() - began < _SECONDS:
        # A run of its own: of a check and a day, a run has one.
        _, asset_events, check_events = make_run_events()
        run_id = str(uuid4())
        events = [each._replace(run_id=run_id) for each in [*asset_events, *check_events] * 60]
        for each in events if one_by_one else [events]:
            store(each)
        stored += len(events)
    return stored / (perf_counter() - began)
