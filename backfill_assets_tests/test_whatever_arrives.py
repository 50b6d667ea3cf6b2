"""Whatever arrives, in whatever order it is loaded, and wherever runs are killed: held to a model.

After each night that ends without a kill the raw log has lost nothing, current is what an endless
window over all that has landed gives, and facts of a final day are as when it became final.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from backfill_assets.commits import Writer
from backfill_assets.lateness import Policy
from backfill_assets.listing import list_landing
from backfill_assets.records import read_ledgers
from backfill_assets.reprocessing import arrivals, backlog, final_days
from backfill_assets.schemas import CORRECTIONS, CURRENT, FACT, RAW, REJECTED
from backfill_assets_tests.arriving import DAY, Source, Sums, Truth
from backfill_assets_tests.pipeline import START, Pipeline

pytestmark = [pytest.mark.torture, pytest.mark.timeout(14400)]
DAYS = int(os.environ.get("BACKFILL_TEST_ARRIVAL_DAYS", "6"))
SEEDS = int(os.environ.get("BACKFILL_TEST_ARRIVALS", "3"))


class Killed(Exception):
    """Stands for the loss of a process between two commits."""


def sums(pipeline: Pipeline, name: str) -> Sums:
    rows = pipeline.rows(name) if (pipeline.warehouse / name).exists() else []
    return {(r["run_date"], r["customer_id"]): (r["orders"], r["revenue"]) for r in rows}


def lines(rows: list[dict], *columns: str) -> Counter:
    return Counter(tuple(str(row[column]) for column in columns) for row in rows)


def compare(p: Pipeline, truth: Truth) -> None:
    """Hold the tables against the truth, as of a night after which nothing is left to do."""
    ledgers, policy = read_ledgers(p.settings), Policy.of(p.settings)
    found = arrivals(ledgers[RAW.name], list_landing(p.settings.landing), policy, truth.today)
    assert not found.load
    assert {name for files in found.held.values() for name in files} == truth.held
    assert not {t: set(days) for t, days in backlog(ledgers, policy, truth.today).open.items()}
    # Renamed files keep the name under which they were loaded.
    columns = ("log_date", "arrival_date", "order_id", "customer_id", "amount")
    assert lines(p.rows(RAW.name), *columns) == lines(truth.model.raw, *columns)
    rejected = ("arrival_date", "text")
    assert lines(p.rows(REJECTED.name), *rejected) == lines(truth.model.rejected, *rejected)
    facts, current, corrections = (sums(p, t.name) for t in (FACT, CURRENT, CORRECTIONS))
    assert current == truth.current()
    assert facts == truth.facts()
    assert final_days(ledgers, policy)[FACT.name] == truth.final.keys()
    for key in facts.keys() | current.keys():
        orders, revenue = (
            now - then
            for now, then in zip(current.get(key, (0, 0)), facts.get(key, (0, 0)), strict=True)
        )
        assert corrections.get(key, (0, 0)) == (orders, revenue)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_arrives(engine, spark, tmp_path, monkeypatch, seed):
    chance = random.Random(seed)
    window_days = chance.choice([0, 1, 2, 3, 5, 8]) if seed else 1
    drop = seed % 3 == 1
    p = Pipeline(
        engine,
        tmp_path,
        window_days=window_days,
        late_lines="drop" if drop else "correct",
        rejected_hold=1,
    )
    source = Source(p.landing, START, seed)
    truth = Truth(source, tmp_path / "truth", window_days=window_days, drop=drop)
    countdown = [0]
    commit = Writer.commit

    def killed(self, *given, **more):
        countdown[0] -= 1
        if countdown[0] == 0:
            raise Killed("before a commit")
        done = commit(self, *given, **more)
        if countdown[0] == 0.5:
            raise Killed("after a commit")
        return done

    monkeypatch.setattr(Writer, "commit", killed)
    for n in range(DAYS):
        source.day(START + n * DAY)
        today = START + (n + 1) * DAY
        if chance.random() < 0.4:  # some log day, loaded by hand before its turn
            day = START + chance.randint(0, n) * DAY
            p.run(day, day, (RAW.name, REJECTED.name))
        countdown[0] = chance.choice([0, 0, 1, 2, 3, 4, 6, 1.5, 2.5, 4.5])
        p.night(today)
        countdown[0] = 0
        # What a killed run left is asked for again, as by Dagster's retries.
        while p.run_keys.clear() or p.night(today):
            pass
        truth.load(today)
        compare(p, truth)
