"""Whatever arrives, in whatever order it is loaded, and wherever runs are killed: held to a model.

After each night that ends without a kill the raw log has lost nothing, current is what an endless
window over all that has landed gives, and facts of a final day are as when it became final.
"""

from __future__ import annotations

import os
import random
from decimal import Decimal

import pytest

from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.commits import Writer
from backfill_assets.orders.tables import CURRENT, RAW, REJECTED, TABLES
from backfill_assets.publish import publication
from backfill_assets_tests.helpers.landing_truth import list_differences
from backfill_assets_tests.helpers.pipeline import EVERYTHING, START, Pipeline, day, order
from backfill_assets_tests.helpers.random_arrivals import DAY, Source, Truth

pytestmark = pytest.mark.timeout(14400)
DAYS = int(os.environ.get("BACKFILL_TEST_ARRIVAL_DAYS", "6"))
SEEDS = int(os.environ.get("BACKFILL_TEST_ARRIVALS", "3"))


class Killed(Exception):
    """Stands for the loss of a process between two commits."""


@pytest.mark.torture
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, SEEDS))]
)
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

    def commit_or_die(self, *arguments, **more):
        countdown[0] -= 1
        if countdown[0] == 0:
            raise Killed("before a commit")
        result = commit(self, *arguments, **more)
        if countdown[0] == 0.5:
            raise Killed("after a commit")
        return result

    monkeypatch.setattr(Writer, "commit", commit_or_die)
    for n in range(DAYS):
        source.simulate_day(START + n * DAY)
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
        truth.load_landing(today)
        assert not list_differences(p.settings, truth), today


def test_only_the_days_that_changed_are_computed(pipeline, monkeypatch):
    """Days 1 and 5 have new lines; what lies between them is neither read nor computed."""
    for n in range(1, 6):
        pipeline.land(n, [order(f"o{n}", n)])
    pipeline.run(1, 5, EVERYTHING)
    built: dict[str, list[Window]] = {}
    audit = publication.audit_days

    def audit_recorded(plan, computed):
        built.setdefault(plan.table.name, []).append(plan.days)
        return audit(plan, computed)

    monkeypatch.setattr(publication, "audit_days", audit_recorded)
    pipeline.land(1, [order("new", 1)], "more.jsonl")
    pipeline.land(5, [order("newest", 5)], "more.jsonl")
    pipeline.run(1, 6, EVERYTHING)
    # A log day has the early lines of the folder before it.
    assert [list(days) for days in built["raw_orders"]] == [[day(n) for n in (1, 2, 5, 6)]]
    assert [list(days) for days in built["fact_daily_orders"]] == [[day(n) for n in (1, 5, 6)]]
    assert {r["run_date"]: r["orders"] for r in pipeline.rows("fact_daily_orders")} == {
        day(n): 2 if n in (1, 5) else 1 for n in range(1, 6)
    }


def test_a_start_that_moves_earlier(engine, spark, tmp_path):
    """Days before the first one were in no total; now they are, with all that had been logged."""
    late = Pipeline(engine, tmp_path, start=day(3), window_days=1)
    for n in (1, 2, 3):
        late.land(n, [order(f"o{n}", n)])
    late.land(4, [order("late", 1, "5.00", ingested=f"{day(4)}T09:00:00Z"), order("o4", 4)])
    late.night(day(5))
    assert {r["run_date"] for r in late.rows("fact_daily_orders_current")} == {day(3), day(4)}
    details = late.io_manager.ledger(TABLES["late_orders"]).latest[day(4)].days[day(4)]
    assert "1 line(s) tell of days before 2024-01-03" in details.findings["conservation"][1]
    moved = Pipeline(engine, tmp_path, start=day(1), window_days=1)
    moved.instance = late.instance
    moved.night(day(5))
    current = {r["run_date"]: (r["orders"], r["revenue"]) for r in moved.rows(CURRENT.name)}
    assert current == {
        day(1): (2, Decimal("15.00")),
        **{day(n): (1, Decimal("10.00")) for n in (2, 3, 4)},
    }
    changed = {r["run_date"]: r["revenue"] for r in moved.rows("fact_order_corrections")}
    assert changed == {day(1): Decimal("5.00")}
