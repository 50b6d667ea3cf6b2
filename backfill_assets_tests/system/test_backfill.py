"""A long backfill on the real deployment, whose processes are killed again and again.

As a user has it: `backfill-assets ui`, a launch in Dagster, and at most one more launch of what is
missing. The long form is `make torture`.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import dagster as dg
import pytest

from backfill_assets.orders.tables import TABLES
from backfill_assets_tests.helpers.deployment import ServedDeployment
from backfill_assets_tests.helpers.pipeline import LAYERS, Pipeline, day, order
from backfill_assets_tests.helpers.process_kills import KINDS, kill_random_process

DAYS = int(os.environ.get("BACKFILL_TEST_KILL_DAYS", "4"))
KILLS = int(os.environ.get("BACKFILL_TEST_KILLS", "2"))
CHUNK = max(2, DAYS // 12)


def list_missing_days(deployment: ServedDeployment, days: list[str]) -> list[str]:
    """The days that some table lacks, as Dagster knows them."""
    with deployment.instance() as instance:
        published = [instance.get_materialized_partitions(dg.AssetKey(name)) for name in LAYERS]
    return [d for d in days if any(d not in partitions for partitions in published)]


def count_commits(pipeline: Pipeline) -> int:
    """The commits of all tables."""
    return sum(len(pipeline.io_manager.ledger(TABLES[name]).records) for name in LAYERS)


def committed_twice(pipeline: Pipeline) -> list[tuple[str, str]]:
    """Days that were committed more than once from the same input."""
    repeated = []
    for name in LAYERS:
        records = pipeline.io_manager.ledger(TABLES[name]).records
        times = Counter((d, record.days[d].input_digest) for record in records for d in record.days)
        repeated += [(name, str(d)) for (d, _), count in times.items() if count > 1]
    return repeated


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.timeout(60 * max(20, DAYS))
@pytest.mark.skipif("SPARK_REMOTE" in os.environ, reason="kills engines of its own")
def test_killed_again_and_again(engine, spark, tmp_path):
    end = day(DAYS + 1)
    pipeline = Pipeline(engine, tmp_path, end=end)
    for n in range(1, DAYS + 1):
        pipeline.land(n, [order(f"o-{n}-{i}", n, customer=f"c{i % 3}") for i in range(20)])
    days = [str(day(n)) for n in range(1, DAYS + 1)]
    clean = Pipeline(engine, tmp_path / "clean", land=False, landing=str(pipeline.landing), end=end)
    clean.run(1, DAYS)
    chance, launches, killed = random.Random(11), 1, Counter[str]()
    deployment = ServedDeployment(pipeline.root, pipeline.settings, per_run=CHUNK)
    try:
        backfill = deployment.launch(days, LAYERS)
        order_of_kills = [list(KINDS)[n % len(KINDS)] for n in range(KILLS)]
        chance.shuffle(order_of_kills)
        while (status := deployment.status(backfill)) != "COMPLETED_SUCCESS":
            if status in ("COMPLETED_FAILED", "COMPLETED", "FAILED"):
                missing_days = list_missing_days(deployment, days)
                if not missing_days:
                    break
                assert launches < 2, f"more than one click: {missing_days}"
                launches += 1
                backfill = deployment.launch(missing_days, LAYERS)
            # Spread over the whole backfill, and at any moment of what it does.
            due_kills = KILLS * count_commits(pipeline) / (len(LAYERS) * -(-DAYS // CHUNK))
            time.sleep(chance.uniform(0.5, 3))
            kill_now = order_of_kills and sum(killed.values()) <= due_kills
            if kill_now and kill_random_process(deployment.home, order_of_kills[-1], chance):
                killed[order_of_kills.pop()] += 1
    finally:
        deployment.stop()
    assert sum(killed.values()) == KILLS, f"the backfill was over after {killed}"
    assert list_missing_days(deployment, days) == []
    assert committed_twice(pipeline) == []
    digests, expected = pipeline.digests(), clean.digests()
    assert {name: digests[name] for name in LAYERS} == expected
    print(f"{DAYS} days, chunks of {CHUNK}, killed {dict(killed)}, {launches} launch(es)")
    print(f"{count_commits(pipeline)} commits, none of them twice")
