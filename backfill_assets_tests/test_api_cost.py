"""How many calls of services a plan expects, told from invented logs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from backfill_assets.backfills.backfill_plan import (
    ApiCallEstimate,
    BackfillPlan,
    BackfillRequest,
    DayOutcome,
    plan_facts,
)
from backfill_assets.backfills.forecast import DayForecast, estimate_api_calls
from backfill_assets.delta.records import CommitRecord
from backfill_assets.orders.tables import STAGED
from backfill_assets_guide.examples.customers.enrichment import RATES, fact_orders_eur
from backfill_assets_tests.helpers.invented_logs import days, ledger, ledgers, record
from backfill_assets_tests.helpers.pipeline import day

EUR = fact_orders_eur.name
NEVER = DayForecast(DayOutcome.COMPUTED, "never published")
ROWS = 500_000


def staged_ledger(*numbers: int | tuple[int, int]):
    """So many orders on each of some days."""
    return ledger(STAGED, record(3, days(*numbers), rows=ROWS))


def with_requests(commit: CommitRecord, requests: int) -> CommitRecord:
    """A commit whose days have made so many requests each."""
    numbers = {"requests to exchange_rates": requests}
    day_details = {
        d: msgspec.structs.replace(details, numbers=numbers) for d, details in commit.days.items()
    }
    return msgspec.structs.replace(commit, days=day_details)


def count_calls(fates: dict[int, DayForecast], *table_ledgers) -> ApiCallEstimate:
    return estimate_api_calls(
        {EUR: {day(n): fate for n, fate in fates.items()}}, ledgers(*table_ledgers)
    )["exchange_rates"]


def test_ten_million_rows_and_how_long_the_quota_makes_them_take():
    result = count_calls(
        dict.fromkeys(range(1, 21), NEVER), staged_ledger((1, 20)), ledger(fact_orders_eur)
    )
    assert (result.at_most, result.expected, result.unknown_days) == (10_000_000, None, 0)
    # 10,000 calls a day, of which a backfill leaves a fifth.
    assert result.seconds == timedelta(days=1250).total_seconds()
    plan = BackfillPlan(
        id="p",
        parameters=BackfillRequest(days=f"{day(1)}...{day(20)}"),
        **dict.fromkeys(("code_version", "code", "config_digest", "landing"), ""),
        versions={},
        tables={},
        **dict.fromkeys(("files", "size", "commits", "runs", "seconds"), 0),
        calls={"exchange_rates": result},
    )
    assert dict(plan_facts(plan))["calls of exchange_rates"] == (
        "at most 10,000,000 (one for each row that is read): at most 1250 days, 0:00:00, at 10 a "
        "second and 10,000 a day less a reserve of 20%"
    )
    # A plan that was kept can be read again, and so can one of before there were calls.
    assert BackfillPlan.model_validate_json(plan.model_dump_json()) == plan
    assert BackfillPlan.model_validate(plan.model_dump(exclude={"calls"})).calls == {}


def test_days_before_say_what_to_expect():
    before = ledger(fact_orders_eur, with_requests(record(1, days((1, 4))), 1))
    result = count_calls(dict.fromkeys(range(5, 21), NEVER), staged_ledger((1, 20)), before)
    assert (result.at_most, result.expected) == (16 * ROWS, 16)
    assert result.expected_seconds == RATES.seconds_for(16) == 16 / 8000 * 86400
    assert str(result).startswith("about 16, as days before; at most 8,000,000 (one for each row")


@pytest.mark.parametrize(
    ("fate", "at_most", "expected"),
    [
        (DayForecast(DayOutcome.COMPUTED, "asked for"), 0, 0),
        (DayForecast(DayOutcome.IDENTICAL), 0, 0),
        (DayForecast(DayOutcome.LACKING), 0, 0),
        # Other code may ask otherwise; if it does not, all is there.
        (DayForecast(DayOutcome.COMPUTED, "other code"), ROWS, 0),
    ],
)
def test_what_is_kept_is_not_asked_again(fate, at_most, expected):
    before = ledger(fact_orders_eur, with_requests(record(1, days((1, 4))), 1))
    result = count_calls({2: fate}, staged_ledger((1, 20)), before)
    assert (result.at_most, result.expected) == (at_most, expected)


def test_what_was_forgotten_is_asked_again():
    commit = with_requests(record(1, days((1, 4)), references={"exchange_rates": "then"}), 1)
    before = ledger(fact_orders_eur, commit)
    now = replace(before, references={"exchange_rates": "now"})
    fate = DayForecast(DayOutcome.COMPUTED, "new input: exchange_rates")
    assert count_calls({2: fate}, staged_ledger((1, 20)), now).expected == 1


def test_days_without_their_input_are_told_apart():
    fates = {1: NEVER, 2: DayForecast(DayOutcome.DEPENDS, "new input: stg_orders")}
    result = count_calls(fates, staged_ledger(1), ledger(fact_orders_eur))
    assert (result.at_most, result.unknown_days) == (ROWS, 1)
    assert "; and those of 1 days whose input is not there yet" in str(result)


def test_of_days_that_all_lack_their_input_no_number_is_told():
    fates = dict.fromkeys((1, 2), DayForecast(DayOutcome.DEPENDS, "new input: stg_orders"))
    result = count_calls(fates, staged_ledger(4), ledger(fact_orders_eur))
    assert str(result).startswith("not known, as the input of 2 days is not there yet; at 10 a sec")


def test_tables_that_ask_nothing_have_no_calls():
    assert estimate_api_calls({STAGED.name: {day(1): NEVER}}, ledgers(staged_ledger(1))) == {}
