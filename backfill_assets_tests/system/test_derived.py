"""Tables that a project declares by functions, on the tables of the orders."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from decimal import Decimal
from typing import Annotated

import pytest
from pyspark.sql import DataFrame

from backfill_assets import Reads, Unpartitioned, conserves_total, last_days, table
from backfill_assets.backfills.verify import VerifyOutcome
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.records import CommitRecord
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.incidents import Monitor
from backfill_assets.monitoring.states import DayState, day_states
from backfill_assets.orders.tables import FACT, ORDERS, RAW, REJECTED, STAGED
from backfill_assets.settings import SettingsError, load_settings
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.graph import Graph, load_tables, tables_of
from backfill_assets_tests.helpers.invented_logs import (
    days,
    ledger,
    ledgers,
    record,
    snapshot_ledgers,
)
from backfill_assets_tests.helpers.pipeline import (
    EVERYTHING,
    START,
    Pipeline,
    day,
    order,
    run_undo,
    run_verify,
)
from backfill_assets_tests.own_tables import my_tables

PLACE = "my_tables:TABLES"
SPEND, CustomerSpend = my_tables.customer_spend_7d, my_tables.CustomerSpend
ALL = (*EVERYTHING, SPEND.name)
CHAIN = ("raw_orders", STAGED.name, SPEND.name)


@pytest.fixture
def pipeline(engine, tmp_path):
    return Pipeline(engine, tmp_path, tables=PLACE, window_days=2, check_independence=False)


def expected_spend(pipeline: Pipeline, last: int) -> dict[tuple[str, str], tuple[int, Decimal]]:
    """Of the staged orders as they are: what each customer spent on seven days, in plain Python."""
    totals: dict[tuple[str, str], tuple[int, Decimal]] = defaultdict(lambda: (0, Decimal("0.00")))
    for row in pipeline.rows(STAGED.name):
        for n in range(7):
            day_ = row["event_date"] + timedelta(days=n)
            if START <= day_ <= day(last):
                key = str(day_), row["customer_id"] or "unknown"
                orders, spend = totals[key]
                totals[key] = orders + 1, spend + row["amount"]
    return dict(totals)


def published_spend(pipeline: Pipeline) -> dict[tuple[str, str], tuple[int, Decimal]]:
    return {
        (str(row["run_date"]), row["customer_id"]): (row["orders"], row["spend"])
        for row in pipeline.rows(SPEND.name)
    }


def numbers_by_state(pipeline: Pipeline) -> dict[DayState, set[int]]:
    numbers: dict[DayState, set[int]] = defaultdict(set)
    look = Monitor(pipeline.deployment, lambda: pipeline.now)
    for day_, state in day_states(SPEND.name, look.read_snapshot(pipeline.instance)).items():
        numbers[state].add((day_ - START).days + 1)
    return numbers


def digests_by_number(pipeline: Pipeline) -> dict[int, str]:
    ledger = read_ledgers(pipeline.deployment)[SPEND.name]
    return {(d - START).days + 1: ledger.content_key(d) for d in ledger.published_days}


@pytest.mark.slow
def test_nights_late_lines_plan_verify_and_undo(pipeline, engine):
    for n in range(1, 12):
        customers = ("c1", "c2") if n % 3 else ("c1", None)
        pipeline.land(n, [order(f"o{n}-{c}", n, f"{n}.50", c) for c in customers])
    pipeline.night(day(12))
    assert published_spend(pipeline) == expected_spend(pipeline, 11) != {}
    assert numbers_by_state(pipeline) == {DayState.FINAL: {*range(1, 10)}, DayState.OPEN: {10, 11}}

    # A line of a day that is open: that day and those after it, no other, and none that is final.
    before = digests_by_number(pipeline)
    pipeline.land(12, [order("late", 10, "7.00", "c9", ingested=f"{day(12)}T08:00:00Z")])
    pipeline.night(day(13))
    assert published_spend(pipeline) == expected_spend(pipeline, 12)
    after = digests_by_number(pipeline)
    assert {n for n in before if before[n] != after[n]} == {10, 11}
    assert numbers_by_state(pipeline) == {DayState.FINAL: {*range(1, 11)}, DayState.OPEN: {11, 12}}

    # Asked for again, nothing changes; computed anew, it is the same.
    commits = pipeline.log(SPEND.name).version()
    pipeline.run(1, 12, ALL)
    assert pipeline.log(SPEND.name).version() == commits
    results = run_verify(
        pipeline.settings,
        engine,
        Window(day(1), day(13)),
        [SPEND.name],
    )
    assert {result.outcome for result in results} == {VerifyOutcome.MATCHES}

    # What was loaded wrongly is undone in this table as well.
    good = published_spend(pipeline)
    pipeline.land(12, [order("wrong", 12, "999.00", "c1")], "wrong.jsonl")
    loaded = pipeline.run(12, 12, ALL)
    assert published_spend(pipeline) == expected_spend(pipeline, 12) != good
    run_undo(pipeline, loaded.run_id[:8])
    assert published_spend(pipeline) == good


def test_an_input_day_that_fails_fails_its_own_day_and_not_those_after_it(pipeline):
    for n in range(1, 5):
        pipeline.land(n, [order(f"o{n}", n)])
    pipeline.run(1, 4, CHAIN)
    pipeline.land(3, ['{"rows": 5, "amount": "1.00"}'], "_control.json")
    pipeline.run(1, 4, CHAIN, fails=True)
    assert published_spend(pipeline) == expected_spend(pipeline, 4)
    ledger = read_ledgers(pipeline.deployment)[SPEND.name]
    assert ledger.published_days == {*Window(day(1), day(5))}


def test_a_day_whose_totals_are_not_those_of_its_inputs_is_not_published(engine, tmp_path):
    pipeline = Pipeline(engine, tmp_path, tables="backfill_assets_tests.system.test_derived:LOSING")
    pipeline.land(1, [order("a", 1), order("b", 1, customer=None)])
    pipeline.land(2, [order("c", 2)])
    result = pipeline.run(1, 2, (*CHAIN[:2], losing.name), fails=True)
    message = pipeline.failure(result)
    assert f"losing[{day(1)}]" in message
    assert "spend" in message
    assert read_ledgers(pipeline.deployment)["losing"].version is None


@table(
    CustomerSpend,
    partition="run_date",
    key=["customer_id"],
    totals=["orders", "spend"],
    checks=[conserves_total("orders", "amount", "spend")],
)
def losing(orders: Annotated[DataFrame, Reads(STAGED, last_days(2))]) -> DataFrame:
    return SPEND(orders.where("customer_id IS NOT NULL"))


LOSING = [*ORDERS, losing]


# --- declarations ---------------------------------------------------------------------------------


def test_what_follows_from_a_declaration():
    settings = load_settings(tables=PLACE)
    tables = tables_of(settings)
    graph = Graph.from_tables(tables.values(), Policy.from_settings(settings))
    assert list(tables) == [*(order_table.name for order_table in ORDERS), SPEND.name]
    assert graph.direct_inputs(SPEND.name) == [STAGED.name]
    assert SPEND.name in graph.closing_tables
    assert SPEND.name in graph.by_event_day
    (spend_input,) = SPEND.inputs(Policy.from_settings(settings))
    assert spend_input.reach == last_days(7)


def test_its_code_is_that_of_its_module():
    orders, more = (
        Deployment(load_settings(**options)).code for options in ({}, {"tables": PLACE})
    )
    assert orders.tables == {name: more.table_version(name) for name in orders.tables}
    assert more.table_version(SPEND.name) not in orders.tables.values()
    assert orders.version != more.version


def unannotated(orders): ...


def twice(
    orders: Annotated[DataFrame, Reads(STAGED)], other: Annotated[DataFrame, Reads(STAGED)]
): ...


def fine(orders: Annotated[DataFrame, Reads(FACT)]): ...


def without_days(customers: Annotated[DataFrame, Unpartitioned("customers")]): ...


def both(
    orders: Annotated[DataFrame, Reads(FACT)],
    all_orders: Annotated[DataFrame, Unpartitioned("fact_daily_orders")],
): ...


@pytest.mark.parametrize(
    ("function", "checks", "said"),
    [
        (unannotated, [], "annotate orders as"),
        (twice, [], "each table once"),
        (both, [], "each table once"),
        (without_days, [], "needs inputs with days"),
        (fine, [conserves_total("order", None, "orders")], "no parameter order"),
        (fine, [conserves_total("orders", None, "amount")], "none of the totals"),
        (fine, [conserves_total("orders", "amount", "spend")], "has no column amount"),
    ],
)
def test_a_declaration_that_is_not_possible_is_refused(function, checks, said):
    with pytest.raises(DeclarationError, match=said):
        table(
            CustomerSpend,
            partition="run_date",
            key=["customer_id"],
            totals=["orders", "spend"],
            checks=checks,
        )(function)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("TWICE", "two tables are named raw_orders"),
        ("ORDERLESS", "an input of customer_spend_7d, must come before it"),
        ("WHOLE", "orders_whole reads raw_orders whole, which has days: use Reads"),
        ("PLACE", "it is .*: give a list, as PLACE = "),
        ("NOWHERE", "has no attribute 'NOWHERE'"),
    ],
)
def test_a_place_without_tables_is_a_bad_setting(given, said):
    settings = load_settings(tables=f"backfill_assets_tests.system.test_derived:{given}")
    with pytest.raises(SettingsError, match=said):
        tables_of(settings)


TWICE = [RAW, RAW]


@table(CustomerSpend, partition="run_date", key=["customer_id"], totals=["orders", "spend"])
def orders_whole(
    orders: Annotated[DataFrame, Reads(STAGED)],
    log: Annotated[DataFrame, Unpartitioned("raw_orders")],
) -> DataFrame: ...


WHOLE = [*ORDERS, orders_whole]
ORDERLESS = [RAW, REJECTED, SPEND, STAGED]


def test_a_place_that_cannot_be_imported_is_a_bad_setting():
    with pytest.raises(SettingsError, match="No module named 'no_such_module'"):
        load_tables("no_such_module:TABLES")
    with pytest.raises(SettingsError, match="bad settings: tables='no place'"):
        load_settings(tables="no place")


def test_a_day_is_final_once_all_days_that_it_is_made_of_are():
    """Of a raw log that is settled to day 5, with a window of 2 days, the days to 3 are final."""
    policy = Policy.from_settings(load_settings(start=START, window_days=2))
    raw = ledger(RAW, record(0, days((1, 5)), settled=days((1, 5)), event_days=days((1, 5))))

    def final_numbers(*staged: CommitRecord, spend: CommitRecord) -> set[int]:
        current_ledgers = ledgers(raw, ledger(STAGED, *staged), ledger(SPEND, spend))
        return {
            (d - START).days + 1
            for d in snapshot_ledgers(current_ledgers, policy).final_by_table[SPEND.name]
        }

    staged_record = record(0, days((1, 5)), inputs={RAW.name: 0})
    spend_record = record(0, days((1, 5)), inputs={STAGED.name: 0})
    assert final_numbers(staged_record, spend=spend_record) == {1, 2, 3}
    # Day 2 is not there: no day of which it is one of the seven is final.
    assert final_numbers(record(0, days(1, (3, 5)), inputs={RAW.name: 0}), spend=spend_record) == {
        1
    }
    # Day 2 came later than the rows that were read; the same rows again would be no news.
    late = record(1, days(2), inputs={RAW.name: 0}, digest="other")
    early = record(0, days(1, (3, 5)), inputs={RAW.name: 0})
    assert final_numbers(early, late, spend=spend_record) == {1}
    assert final_numbers(early, late, spend=record(0, days((1, 5)), inputs={STAGED.name: 1})) == {
        1,
        2,
        3,
    }
