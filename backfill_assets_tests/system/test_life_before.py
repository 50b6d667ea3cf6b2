"""A life written by the code of before code versions: read, continued and undone.

`fixtures/write_life.py` wrote it, and says what is in it. Its records name digests of source text,
which promise nothing about rows. So a person accepts the present code for its days, with a sample
that is computed anew. Then nothing is due, and what was under way goes on.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest

from backfill_assets.backfills import state_store
from backfill_assets.backfills.accept_code import accept_code, repin_plans
from backfill_assets.backfills.backfill_plan import DayOutcome
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.table_schema import schema_differences
from backfill_assets.monitoring.incidents import Monitor
from backfill_assets.monitoring.states import day_states
from backfill_assets.spark.session import Engine
from backfill_assets_tests.fixtures.write_life import (
    DAYS,
    LATE,
    NAMES,
    PLANNED_TABLES,
    open_life,
    serve_stage,
    tick_until_launched,
)
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.pipeline import START, Pipeline, day, make_plan, run_undo

FIXTURE = PROJECT / "backfill_assets_tests" / "fixtures" / "life-before-code-versions.tar.gz"


@pytest.fixture
def life(engine: Engine, spark, tmp_path: Path) -> Iterator[Pipeline]:
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    with open_life(engine, tmp_path) as pipeline:
        yield pipeline


def test_nothing_is_due_and_the_plan_under_way_ends_and_the_backfill_is_undone(
    life: Pipeline,
) -> None:
    ledgers = read_ledgers(life.deployment)
    for ledger in ledgers.values():
        assert ledger.published_days == {*Window(START, day(DAYS + 1))}, ledger.table.name
        assert ledger.metadata
        assert schema_differences(ledger.table, ledger.metadata) == []
    snapshot = Monitor(life.deployment, lambda: life.now).read_snapshot(life.instance)
    states = {name: day_states(name, snapshot) for name in ledgers}
    assert [
        (name, run_day, state)
        for name, days in states.items()
        for run_day, state in days.items()
        if not state.is_good
    ] == []

    # No day is computed or accepted without a word.
    assert expected_outcomes(life) == {name: {DayOutcome.COMPUTED} for name in NAMES}
    accepted = [
        accept_code(life.deployment, life.defs, life.code, name, None, "upgrade", sample)
        for name, sample in {**dict.fromkeys(NAMES, 0), "two_day_spend": 1, "stg_orders": 1}.items()
    ]
    assert [len(result.days) for result in accepted] == [DAYS] * len(NAMES)
    assert sum(len(result.verified) for result in accepted) == 2
    plans = repin_plans(
        life.deployment, life.instance, read_ledgers(life.deployment), accepted, life.code
    )
    assert plans == state_store.active_ids(life.instance)
    assert expected_outcomes(life) == {name: {DayOutcome.IDENTICAL} for name in NAMES}

    # What was under way goes on with its second stage, and ends well.
    (plan_id,) = state_store.active_ids(life.instance)
    assert state_store.load(life.instance, plan_id).stage == 1
    before = life.digests()
    assert tick_until_launched(life).endswith("under way")
    assert serve_stage(life) == f"{plan_id}-002"
    tick_until_launched(life)
    state = state_store.load(life.instance, plan_id)
    assert (state.complete, state.ended) == (True, "complete and reconciled")
    ledgers = read_ledgers(life.deployment)
    assert {ledgers[name].latest[day(2)].backfill_id for name in PLANNED_TABLES} == {
        f"{plan_id}-002"
    }
    assert life.digests() == before

    # The late lines go as they came.
    assert orders_of_c1(life, day(4)) == 3
    run_undo(life, LATE)
    assert orders_of_c1(life, day(4)) == 2
    assert life.rows("late_orders") == []


def expected_outcomes(life: Pipeline) -> dict[str, set[DayOutcome]]:
    """What a plan of all days expects of them, by table."""
    plan = make_plan(life, f"{day(1)}...{day(DAYS)}", tables=NAMES)
    return {
        name: {expected for expected, _ in outlook.days_by_outcome()}
        for name, outlook in plan.tables.items()
    }


def orders_of_c1(life: Pipeline, run_date: date) -> int:
    rows = life.rows("two_day_spend")
    (row,) = (r for r in rows if (r["run_date"], r["customer_id"]) == (run_date, "c1"))
    return row["orders"]
