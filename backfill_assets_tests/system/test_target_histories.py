"""Random histories: a target that is switched over is the same backfill done in place.

And going back is what was there before; what others commit in between survives, or the switch-over
is refused.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from backfill_assets_tests.helpers.pipeline import Pipeline, day, order, run_undo
from backfill_assets_tests.helpers.shadow_targets import (
    AFTER,
    ALL,
    BEFORE,
    RANKS,
    SCORES,
    STATE,
    build_shadow,
    land_orders,
    run_switch_over,
)

CHANGED = (SCORES, RANKS, STATE)
#: In the first, a day comes between the build and the switch-over.
COUNT = int(os.environ.get("BACKFILL_TEST_SEEDS", "3"))
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, *range(2, COUNT)))]
pytestmark = pytest.mark.torture
New = Callable[[str, str], Pipeline]


@pytest.fixture(scope="module")
def loaded(engine, spark, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("loaded")
    land_orders(Pipeline(engine, root, tables=BEFORE, window_days=1))
    return root


@pytest.fixture
def new(engine, loaded, tmp_path: Path) -> New:
    """A deployment by the code of before or of after; all of a folder have the same tables."""

    def make_pipeline(folder: str, tables: str) -> Pipeline:
        for name in ("landing", "warehouse"):
            if not (tmp_path / folder / name).exists():
                shutil.copytree(loaded / name, tmp_path / folder / name)
        return Pipeline(engine, tmp_path / folder, tables=tables, window_days=1)

    return make_pipeline


def changed_digests(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    all_digests = pipeline.digests()
    return {name: all_digests[name] for name in CHANGED}


def draw_change(chance: random.Random) -> Callable[[Pipeline], None]:
    """What happens to production between the build and the switch-over."""
    n = chance.randint(1, 6)
    late = [order(f"late-{k}", n, "1.00", at="11:00") for k in range(chance.randint(1, 3))]

    def land_late(pipeline: Pipeline) -> None:
        # Production's own code makes the days that follow.
        pipeline.land(n, late, "late.jsonl")
        pipeline.run(n, n, ALL[:-2])
        pipeline.run(n, 6, CHANGED[1:])

    def land_next_day(pipeline: Pipeline) -> None:
        pipeline.land(7, [order("7-0", 7)])
        pipeline.run(7, 7, ALL)

    return chance.choice([land_late, land_next_day, lambda _: None])


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_as_in_place_and_back(new, seed):
    chance = random.Random(seed)
    first = chance.randint(1, 6)
    last = chance.randint(first, 6)
    days, chunk = f"{day(first)}...{day(last)}", chance.choice([None, 1, 2, 3])
    happens = draw_change(chance)
    before, after = new("here", BEFORE), new("here", AFTER)
    started = changed_digests(before)
    build_shadow(after, days, chunk_days=chunk)
    assert changed_digests(before) == started
    if chance.random() < 0.5:
        run_switch_over(after, days=str(day(chance.randint(first, last))))
        run_undo(after, "v2-1")
        assert changed_digests(before) == started
    happens(before)
    elsewhere = new("elsewhere", BEFORE)
    happens(elsewhere)
    production_digests = changed_digests(before)
    assert production_digests == changed_digests(elsewhere)
    # What has landed since is caught up; a target that ended with the newest day goes on to end so.
    newest = max(int(key[-2:]) for key in production_digests[SCORES])
    last = newest if last == 6 else last
    build_shadow(after, f"{day(first)}...{day(last)}", chunk_days=chunk)
    run_switch_over(after)
    in_place = new("elsewhere", AFTER)
    in_place.run(first, last, (SCORES,))
    in_place.run(first, min(last + 2, newest), (RANKS,))
    in_place.run(first, newest, (STATE,))
    assert changed_digests(after) == changed_digests(in_place) != production_digests
    run_undo(after, "v2")
    assert changed_digests(before) == production_digests


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_what_others_commit_survives_or_it_is_refused(new, seed):
    chance = random.Random(seed)
    first = chance.randint(1, 5)
    last = chance.randint(first, 6)
    before, after = new("here", BEFORE), new("here", AFTER)
    build_shadow(after, f"{day(first)}...{day(last)}")
    name, n = chance.choice(CHANGED), chance.randint(1, 6)
    row = {"run_date": [day(n)], "customer_id": ["theirs"], "score": [5]}
    write_deltalake(str(before.warehouse / name), pa.table(row), mode="append")
    production_digests = changed_digests(before)
    target_days = {
        SCORES: range(first, last + 1),
        RANKS: range(first, min(last + 2, 6) + 1),
        STATE: range(first, 7),
    }
    in_the_way = n in target_days[name]
    result = after.repository.get_job("switch_over").execute_in_process(
        instance=after.instance,
        run_config={"ops": {"adopt_days": {"config": {"target": "v2"}}}},
        raise_on_error=False,
    )
    now = changed_digests(before)
    if not result.success:
        assert "Nothing was written" in after.failure(result)
        assert now == production_digests
    else:
        assert not in_the_way
        assert now != production_digests
    assert result.success or in_the_way or "is not switched over" in after.failure(result)
    assert now[name][str(day(n))] == production_digests[name][str(day(n))]
    assert any(row["customer_id"] == "theirs" for row in before.rows(name))
