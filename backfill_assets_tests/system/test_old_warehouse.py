"""A warehouse of the release before sources could be declared: read, undone, replayed.

The fixture holds six days of orders and of all their tables, with a window of two days, written in
two runs that belong to the backfills `old1` (days 1 to 4) and `old5` (days 5 and 6).
"""

from __future__ import annotations

import tarfile
from datetime import date

import pytest

from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.table_schema import schema_differences
from backfill_assets.monitoring.incidents import Monitor
from backfill_assets.monitoring.states import DayState, day_states
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.pipeline import EVERYTHING, START, Pipeline, day, run_undo

FIXTURE = PROJECT / "backfill_assets_tests" / "fixtures" / "warehouse-before-sources.tar.gz"
DAYS = {*Window(START, day(7))}


@pytest.fixture
def old(engine, tmp_path):
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    return Pipeline(engine, tmp_path, land=False, end=date(2024, 1, 7), window_days=2)


@pytest.mark.slow
def test_it_is_read_replayed_with_the_same_rows_and_undone(old):
    ledgers = read_ledgers(old.deployment)
    for ledger in ledgers.values():
        assert ledger.published_days == DAYS
        assert ledger.metadata
        assert schema_differences(ledger.table, ledger.metadata) == []
    snapshot = Monitor(old.deployment, lambda: old.now).read_snapshot(old.instance)
    states = {name: {*day_states(name, snapshot).values()} for name in ledgers}
    # The second run took in lines of earlier days, whose current was not built again.
    behind = {name for name, table_states in states.items() if DayState.INPUT_NEWER in table_states}
    assert behind == {"fact_daily_orders_current"}
    assert all(
        state.is_good
        for table_states in states.values()
        for state in table_states - {DayState.INPUT_NEWER}
    )

    before = old.digests()
    run_undo(old, "old5")
    assert read_ledgers(old.deployment)["fact_daily_orders"].published_days == {
        *Window(START, day(5))
    }
    old.run(1, 6, EVERYTHING, tags={"backfill_assets/rewrite": "true"})
    after = old.digests()
    # What was behind, and what is made of it, is as it should have been on the days before.
    late = {str(d) for d in Window(START, day(4))}
    followed = {*behind, "fact_order_corrections"}
    for name, days in before.items():
        same = days.keys() - (late if name in followed else set())
        assert {d: after[name][d] for d in same} == {d: days[d] for d in same}, name
