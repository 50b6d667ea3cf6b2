"""By which code and configuration backfills were made, over ledgers made by hand."""

from __future__ import annotations

from backfill_assets.backfills.reconcile import (
    code_provenance,
    find_mixed_backfills,
)
from backfill_assets.delta.records import CommitRecord
from backfill_assets.orders.tables import FACT, RAW, STAGED
from backfill_assets_tests.helpers.invented_logs import days, ledger, ledgers, record


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
