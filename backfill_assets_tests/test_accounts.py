"""By which code and configuration backfills were made, over ledgers made by hand."""

from __future__ import annotations

from backfill_assets.backfills.accounts import certificate, mixed_backfills
from backfill_assets.delta.records import Record
from backfill_assets.orders.facts import FACT
from backfill_assets.orders.tables import RAW, STAGED
from backfill_assets_tests.invented_logs import days, ledger, ledgers, record


def made(digest: str, *of: int, version: int = 0) -> Record:
    return record(version, days(*of), backfill="abc-rest", config_digest=digest)


def test_tables_have_configurations_of_their_own():
    found = ledgers(
        ledger(RAW, made("r", 1, 2)), ledger(STAGED, made("w", 1, 2)), ledger(FACT, made("w", 1, 2))
    )
    assert mixed_backfills(found) == []
    proof = certificate(found, "abc")
    assert proof.problems == []
    assert proof.configurations == {RAW.name: ["r"], STAGED.name: ["w"], FACT.name: ["w"]}


def test_two_configurations_in_one_table():
    found = ledgers(
        ledger(RAW, made("r", 1, 2)), ledger(STAGED, made("w", 1), made("v", 2, version=1))
    )
    (said,) = mixed_backfills(found)
    assert "configuration w made stg_orders [2024-01-01]; code code with configuration v" in said
    assert certificate(found, "abc").problems == [
        "its days of stg_orders carry 2 configurations: v, w"
    ]


def test_days_that_were_made_again_are_no_longer_mixed():
    again = record(2, days(1, 2), backfill="def", config_digest="v")
    found = ledgers(ledger(STAGED, made("w", 1), made("v", 2, version=1), again))
    assert mixed_backfills(found) == []
