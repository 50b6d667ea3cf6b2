"""Whatever arrives, in whatever order it is loaded, and wherever runs are killed: held to a model.

After each night that ends without a kill the raw log has lost nothing, current is what an endless
window over all that has landed gives, and facts of a final day are as when it became final.
"""

from __future__ import annotations

import os
import random
from decimal import Decimal

import dagster as dg
import pytest

from backfill_assets.calendar.partitions import days_of_run
from backfill_assets.delta.commits import Writer
from backfill_assets.orders.tables import CORRECTIONS, CURRENT, FACT, LATE, RAW, REJECTED, STAGED
from backfill_assets_tests.helpers.landing_truth import list_differences
from backfill_assets_tests.helpers.pipeline import START, Pipeline, day, order
from backfill_assets_tests.helpers.random_arrivals import DAY, Source, Truth

pytestmark = pytest.mark.timeout(14400)
DAYS = int(os.environ.get("BACKFILL_TEST_ARRIVAL_DAYS", "6"))
SEEDS = int(os.environ.get("BACKFILL_TEST_ARRIVALS", "3"))
#: Those whose rows are compared, and staging.
TABLES = [RAW, REJECTED, STAGED, FACT, CURRENT, CORRECTIONS]
PLACE = f"{__name__}:TABLES"


class Killed(Exception):
    """Stands for the loss of a process between two commits."""


# In CI: files become more or less, have another name or another time, and are gone; a log day is
# loaded by hand; runs are killed before a commit and after one.
@pytest.mark.torture
@pytest.mark.parametrize(
    ("seed", "days"),
    [(245, 3), *(pytest.param(seed, DAYS, marks=pytest.mark.slow) for seed in range(SEEDS))],
)
def test_whatever_arrives(engine, spark, tmp_path, monkeypatch, seed, days):
    chance = random.Random(seed)
    window_days = chance.choice([0, 1, 2, 3, 5, 8]) if seed else 1
    drop = seed % 3 == 1
    p = Pipeline(
        engine,
        tmp_path,
        tables=PLACE,
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
    for n in range(days):
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


def test_a_start_that_moves_earlier(engine, spark, tmp_path):
    """Days before the first one were in no total; now they are, with all that had been logged."""
    late = Pipeline(engine, tmp_path, start=day(3), window_days=1)
    for n in (1, 2, 3):
        late.land(n, [order(f"o{n}", n)])
    late.land(4, [order("late", 1, "5.00", ingested=f"{day(4)}T09:00:00Z"), order("o4", 4)])
    result = late.run(3, 4, (RAW.name, LATE.name, CURRENT.name))
    assert {r["run_date"] for r in late.rows(CURRENT.name)} == {day(3), day(4)}
    check = next(
        e
        for e in result.get_asset_check_evaluations()
        if (e.asset_key.path, e.check_name, e.partition)
        == ([LATE.name], "conservation", str(day(4)))
    )
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "1 line(s) tell of days before 2024-01-03, the first of all" in check.description
    assert check.metadata["before_the_first_day"].value == 1
    moved = Pipeline(engine, tmp_path, start=day(1), window_days=1, end=day(5))
    moved.instance = late.instance
    assert {
        d
        for request in moved.tick_schedule()
        if RAW.name in request.run_key
        for d in days_of_run(request.tags) or ()
    } >= {day(1), day(2)}
    moved.run(1, 4, (RAW.name, CURRENT.name))
    current = {r["run_date"]: (r["orders"], r["revenue"]) for r in moved.rows(CURRENT.name)}
    assert current == {
        day(1): (2, Decimal("15.00")),
        **{day(n): (1, Decimal("10.00")) for n in (2, 3, 4)},
    }
