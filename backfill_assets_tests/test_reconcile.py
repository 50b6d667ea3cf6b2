"""By which code and configuration backfills were made, over ledgers made by hand."""

from __future__ import annotations

from datetime import date

from backfill_assets.backfills.backfill_plan import BackfillPlan, TableForecast
from backfill_assets.backfills.reconcile import (
    code_provenance,
    find_mixed_backfills,
    find_unfinished_days,
)
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import to_ranges
from backfill_assets.delta.records import CommitRecord
from backfill_assets.orders.tables import CORRECTIONS, CURRENT, FACT, RAW, STAGED
from backfill_assets_tests.helpers.invented_logs import days, ledger, ledgers, record
from backfill_assets_tests.helpers.pipeline import START

POLICY = Policy(START, None, window_days=2, lag_days=1, corrects=True, only_touched=True)


def config_record(digest: str, *numbers: int, version: int = 0) -> CommitRecord:
    return record(version, days(*numbers), backfill="abc-rest", config_digest=digest)


def test_tables_have_configurations_of_their_own():
    all_ledgers = ledgers(
        ledger(RAW, config_record("r", 1, 2)),
        ledger(STAGED, config_record("w", 1, 2)),
        ledger(FACT, config_record("w", 1, 2)),
    )
    assert find_mixed_backfills(all_ledgers) == []
    proof = code_provenance(all_ledgers, "abc")
    assert proof.problems == []
    assert proof.config_digests == {RAW.name: ["r"], STAGED.name: ["w"], FACT.name: ["w"]}


def test_two_configurations_in_one_table():
    all_ledgers = ledgers(
        ledger(RAW, config_record("r", 1, 2)),
        ledger(STAGED, config_record("w", 1), config_record("v", 2, version=1)),
    )
    (problem,) = find_mixed_backfills(all_ledgers)
    assert "configuration w made stg_orders [2024-01-01]; code code with configuration v" in problem
    assert code_provenance(all_ledgers, "abc").problems == [
        "its days of stg_orders carry 2 configurations: v, w"
    ]


def test_days_that_were_made_again_are_no_longer_mixed():
    rebuild = record(2, days(1, 2), backfill="def", config_digest="v")
    all_ledgers = ledgers(
        ledger(STAGED, config_record("w", 1), config_record("v", 2, version=1), rebuild)
    )
    assert find_mixed_backfills(all_ledgers) == []


def test_a_later_stage_that_tells_of_an_earlier_day_leaves_nothing_of_the_backfill_to_do():
    """The pilot made day 1 of `current`; then the rest loaded a line of it, beyond the window."""
    of_it = {RAW.name: 0}
    before = ledger(CORRECTIONS, record(0, days(1, 2), inputs={CURRENT.name: 0, FACT.name: 0}))
    pilot = record(1, days(1), backfill="abc-pilot", inputs=of_it)
    all_ledgers = ledgers(ledger(CURRENT, record(0, days(1, 2), inputs=of_it), pilot), before)
    assert [*find_unfinished_days(_plan_days(days(1)), all_ledgers, "abc", POLICY)] == []
    # Day 2 is of the backfill as well, and nobody made it; what is made of it depends on it.
    assert [*find_unfinished_days(_plan_days(days(1, 2)), all_ledgers, "abc", POLICY)] == [
        f"{table.name} [2024-01-02] is not published as it should be now"
        for table in (CURRENT, CORRECTIONS)
    ]


def _plan_days(computed_days: frozenset[date]) -> BackfillPlan:
    """A plan of now: these days of `current` are computed, those of its corrections depend."""
    ranges = tuple(to_ranges(computed_days))
    tables = {
        CURRENT.name: TableForecast(computed=ranges),
        CORRECTIONS.name: TableForecast(depends=ranges),
    }
    return BackfillPlan.model_construct(tables=tables)
