"""How many calls of services a plan expects, told from invented logs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from backfill_assets.backfills.calls import calls_of
from backfill_assets.backfills.fates import Fate
from backfill_assets.backfills.plans import BackfillPlan, Calls, Expected, Parameters, in_numbers
from backfill_assets.delta.records import Record
from backfill_assets.examples.customers.enrichment import RATES, fact_orders_eur
from backfill_assets.orders.tables import STAGED
from backfill_assets_tests.invented_logs import days, ledger, ledgers, record
from backfill_assets_tests.pipeline import day

EUR = fact_orders_eur.name
NEVER = Fate(Expected.COMPUTED, "never published")
ROWS = 500_000


def staged(*numbers: int | tuple[int, int]):
    """So many orders on each of some days."""
    return ledger(STAGED, record(3, days(*numbers), rows=ROWS))


def asking(made: Record, requests: int) -> Record:
    """A commit whose days have made so many requests each."""
    numbers = {"requests to exchange_rates": requests}
    told = {of: msgspec.structs.replace(one, numbers=numbers) for of, one in made.days.items()}
    return msgspec.structs.replace(made, days=told)


def calls(fates: dict[int, Fate], *given) -> Calls:
    return calls_of({EUR: {day(n): of for n, of in fates.items()}}, ledgers(*given))[
        "exchange_rates"
    ]


def test_ten_million_rows_and_how_long_the_quota_makes_them_take():
    found = calls(dict.fromkeys(range(1, 21), NEVER), staged((1, 20)), ledger(fact_orders_eur))
    assert (found.at_most, found.expected, found.unknown_days) == (10_000_000, None, 0)
    # 10,000 calls a day, of which a backfill leaves a fifth.
    assert found.seconds == timedelta(days=1250).total_seconds()
    plan = BackfillPlan(
        id="p",
        parameters=Parameters(days=f"{day(1)}...{day(20)}"),
        **dict.fromkeys(("code_version", "code", "config_digest", "landing"), ""),
        versions={},
        tables={},
        **dict.fromkeys(("files", "size", "commits", "runs", "seconds"), 0),
        calls={"exchange_rates": found},
    )
    assert dict(in_numbers(plan))["calls of exchange_rates"] == (
        "at most 10,000,000 (one for each row that is read): at most 1250 days, 0:00:00, at 10 a "
        "second and 10,000 a day less a reserve of 20%"
    )
    # A plan that was kept can be read again, and so can one of before there were calls.
    assert BackfillPlan.model_validate_json(plan.model_dump_json()) == plan
    assert BackfillPlan.model_validate(plan.model_dump(exclude={"calls"})).calls == {}


def test_days_before_say_what_to_expect():
    before = ledger(fact_orders_eur, asking(record(1, days((1, 4))), 1))
    found = calls(dict.fromkeys(range(5, 21), NEVER), staged((1, 20)), before)
    assert (found.at_most, found.expected) == (16 * ROWS, 16)
    assert found.expected_seconds == RATES.seconds_for(16) == 16 / 8000 * 86400
    assert str(found).startswith("about 16, as days before; at most 8,000,000 (one for each row")


@pytest.mark.parametrize(
    ("fate", "at_most", "expected"),
    [
        (Fate(Expected.COMPUTED, "asked for"), 0, 0),
        (Fate(Expected.IDENTICAL), 0, 0),
        (Fate(Expected.LACKING), 0, 0),
        # Other code may ask otherwise; if it does not, all is there.
        (Fate(Expected.COMPUTED, "other code"), ROWS, 0),
    ],
)
def test_what_is_kept_is_not_asked_again(fate, at_most, expected):
    before = ledger(fact_orders_eur, asking(record(1, days((1, 4))), 1))
    found = calls({2: fate}, staged((1, 20)), before)
    assert (found.at_most, found.expected) == (at_most, expected)


def test_what_was_forgotten_is_asked_again():
    made = asking(record(1, days((1, 4)), references={"exchange_rates": "then"}), 1)
    before = ledger(fact_orders_eur, made)
    now = replace(before, references={"exchange_rates": "now"})
    fate = Fate(Expected.COMPUTED, "new input: exchange_rates")
    assert calls({2: fate}, staged((1, 20)), now).expected == 1


def test_days_without_their_input_are_told_apart():
    fates = {1: NEVER, 2: Fate(Expected.DEPENDS, "new input: stg_orders")}
    found = calls(fates, staged(1), ledger(fact_orders_eur))
    assert (found.at_most, found.unknown_days) == (ROWS, 1)
    assert "; and those of 1 days whose input is not there yet" in str(found)


def test_of_days_that_all_lack_their_input_no_number_is_told():
    fates = dict.fromkeys((1, 2), Fate(Expected.DEPENDS, "new input: stg_orders"))
    found = calls(fates, staged(4), ledger(fact_orders_eur))
    assert str(found).startswith("not known, as the input of 2 days is not there yet; at 10 a sec")


def test_tables_that_ask_nothing_have_no_calls():
    assert calls_of({STAGED.name: {day(1): NEVER}}, ledgers(staged(1))) == {}
