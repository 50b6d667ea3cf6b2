"""What is known now of a table that a project declares, and how its facts differ from it."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from pandera.pyspark import Field
from pyspark.sql import DataFrame

from backfill_assets import Reads, corrections_table, current_table, last_days, table
from backfill_assets.assets import derived
from backfill_assets.assets.derived import correction_expectations, correction_rows
from backfill_assets.backfills.verify import VerifyOutcome
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import Window
from backfill_assets.calendar.reach import RecordedReach
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.orders.tables import (
    CORRECTIONS,
    CURRENT,
    FACT,
    RAW,
    REJECTED,
    STAGED,
    DailyOrders,
)
from backfill_assets.settings import load_settings
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.graph import Graph, tables_of
from backfill_assets.tables.table import ENTRY_PREFIX
from backfill_assets_tests.helpers.pipeline import FACT_OPTIONS, Pipeline, day, order, run_verify
from backfill_assets_tests.own_tables import my_known

PLACE = "my_known:TABLES"
SPEND, NOW, MORE = my_known.TABLES[-3:]
#: What the three are made of, and themselves.
MADE = (RAW.name, REJECTED.name, STAGED.name, SPEND.name, NOW.name, MORE.name)


def spend_by_customer(pipeline: Pipeline, spend_table) -> dict[tuple[int, str], tuple[int, str]]:
    return {
        (row["run_date"].day, row["customer_id"]): (row["orders"], str(row["spend"]))
        for row in pipeline.rows(spend_table.name)
    }


def record_days_read(monkeypatch) -> dict[str, set[date]]:
    """By table of corrections, the days of which rows are read; filled as runs compute it."""
    days_read: dict[str, set[date]] = {}

    def compare_rows(declared, facts, known):
        if days := {row[0] for row in facts.select(declared.partition).distinct().collect()}:
            days_read.setdefault(declared.name, set()).update(days)
        return correction_rows(declared, facts, known)

    monkeypatch.setattr(derived, "correction_rows", compare_rows)
    return days_read


@pytest.mark.parametrize("late_lines", ["correct", pytest.param("drop", marks=pytest.mark.slow)])
def test_late_lines_change_what_is_known_and_no_final_day(
    engine, tmp_path, late_lines, monkeypatch
):
    days_read = record_days_read(monkeypatch)
    pipeline = Pipeline(engine, tmp_path, tables=PLACE, window_days=1, late_lines=late_lines)
    for n in range(1, 5):
        pipeline.land(n, [order(f"o{n}", n, "10.00"), order(f"p{n}", n, "1.00", None)])
    pipeline.night(day(5), MADE)
    facts = spend_by_customer(pipeline, SPEND)
    expected = {(n, who): (1, much) for n in range(1, 5) for who, much in KNOWN_BY.items()}
    assert facts == spend_by_customer(pipeline, NOW) == expected
    assert pipeline.rows(MORE.name) == []
    assert days_read == {}, "facts and what is known now are the same"

    # One order of a final day costs less, one moves there from an open day, and one is new.
    at = f"{day(5)}T08:00:00Z"
    pipeline.land(
        5,
        [
            order("o1", 1, "7.50", ingested=at),
            order("o4", 1, "10.00", ingested=at),
            order("q1", 1, "5.00", "c2", ingested=at),
        ],
    )
    pipeline.night(day(6), MADE)
    del expected[4, "c1"]
    assert spend_by_customer(pipeline, SPEND) == expected
    corrected = late_lines == "correct"
    assert days_read == ({MORE.name: {day(1)}} if corrected else {})
    more = {(1, "c1"): (1, "7.50"), (1, "c2"): (1, "5.00")} if corrected else {}
    assert spend_by_customer(pipeline, MORE) == more
    if corrected:
        expected |= {(1, "c1"): (2, "17.50"), (1, "c2"): (1, "5.00")}
    assert spend_by_customer(pipeline, NOW) == expected

    ledgers = read_ledgers(pipeline.deployment)
    assert ledgers[SPEND.name].final_days == {day(n) for n in range(1, 5)}
    assert not ledgers[NOW.name].final_days | ledgers[MORE.name].final_days
    entries = ledgers[MORE.name].latest[day(1)].days[day(1)].entries
    assert entries["orders"] == 2
    assert entries["current orders"] == (4 if corrected else 2)
    names = [spend_table.name for spend_table in (SPEND, NOW, MORE)]
    results = run_verify(pipeline.settings, engine, Window(day(1), day(6)), names)
    assert {result.outcome for result in results} == {VerifyOutcome.MATCHES}


KNOWN_BY = {"c1": "10.00", "unknown": "1.00"}


def test_a_day_whose_sums_are_not_those_of_the_counted_lines_is_not_published(engine, tmp_path):
    pipeline = Pipeline(engine, tmp_path, tables="backfill_assets_tests.system.test_current:LOSING")
    pipeline.land(1, [order("a", 1), order("b", 1, customer=None)])
    names = (RAW.name, REJECTED.name, STAGED.name, losing.name, LOSING[-1].name)
    result = pipeline.run(1, 1, names, fails=True)
    message = pipeline.failure(result)
    assert f"{losing.name}[{day(1)}]" in message
    assert (
        f"{LOSING[-1].name}[{day(1)}]  conservation: orders adds up to 1 where 2 is due" in message
    )
    assert read_ledgers(pipeline.deployment)[LOSING[-1].name].version is None


@table(
    my_known.DailySpend,
    partition=SPEND.partition,
    key=SPEND.key,
    totals=SPEND.totals,
    checks=SPEND.conserved,
)
def losing(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame:
    return SPEND(orders.where("customer_id IS NOT NULL"))


LOSING = [*my_known.ORDERS, losing, current_table(losing)]


class Sums(pa.DataFrameModel):
    """Sums of a day, which has no other key."""

    at: T.DateType = Field(description="Day.")
    few: T.IntegerType = Field(ge=0, description="A number.")
    money: T.DecimalType(10, 2) = Field(description="A sum.")


def sums(orders: Annotated[DataFrame, Reads(STAGED)]) -> DataFrame: ...


def test_differences_have_the_types_of_the_facts_and_no_bounds(spark):
    facts_table = table(Sums, partition="at", key=[], totals=["few", "money"])(sums)
    more = corrections_table(facts_table, current_table(facts_table))
    shape = "at DATE, few INT, money DECIMAL(10,2)"

    def make_frame(*rows: tuple[int, int, str]) -> DataFrame:
        return spark.createDataFrame([(day(n), few, Decimal(sum_)) for n, few, sum_ in rows], shape)

    facts = make_frame((1, 3, "1.50"), (2, 1, "1.00"), (3, 1, "1.00"))
    now = make_frame((1, 2, "1.50"), (2, 1, "1.00"), (4, 1, "9.99"))
    rows = more.conform_frame(correction_rows(more, facts, now))
    assert sorted(map(tuple, rows.collect())) == [
        (day(1), -1, Decimal("0.00")),
        (day(3), -1, Decimal("-1.00")),
        (day(4), 1, Decimal("9.99")),
    ]
    assert not more.check_constraints
    of_facts = {day(3): {"few": 1, "money": Decimal("1.00")}}
    of_now = {day(4): {"few": 1, "money": Decimal("9.99")}}
    expectations = correction_expectations(more, of_facts, of_now, Window(day(3), day(6)))
    assert [expectations[day(n)].totals for n in (3, 4, 5)] == [
        {"few": -1, "money": Decimal("-1.00")},
        {"few": 1, "money": Decimal("9.99")},
        {"few": 0, "money": Decimal("0.00")},
    ]


# --- declarations ---------------------------------------------------------------------------------


def test_what_follows_from_the_declarations():
    settings = load_settings(tables=PLACE)
    policy = Policy.from_settings(settings)
    graph = Graph.from_tables(tables_of(settings).values(), policy)
    assert [spend_table.name for spend_table in (SPEND, NOW, MORE)] == [
        "daily_spend",
        "daily_spend_current",
        "daily_spend_corrections",
    ]
    (now_input,) = NOW.inputs(policy)
    assert (now_input.source, now_input.reach, now_input.launched) == (
        RAW,
        RecordedReach(),
        policy.reach,
    )
    assert [table_input.source for table_input in MORE.inputs(policy)] == [SPEND, NOW]
    assert SPEND.name in graph.closing_tables
    assert not {NOW.name, MORE.name} & {*graph.closing_tables}
    assert {NOW.name, MORE.name} <= {*graph.by_event_day}
    assert SPEND.decided_by == STAGED.decided_by == ("window_days",)
    assert NOW.decided_by == MORE.decided_by == ("window_days", "late_lines")
    assert (SPEND.frozen, NOW.frozen, MORE.frozen) == (True, False, False)
    assert NOW.struct_type == SPEND.struct_type == MORE.struct_type
    assert (NOW.check_constraints, MORE.check_constraints) == (SPEND.check_constraints, {})
    assert NOW.model.__doc__ == (
        "What each customer spent on a day, with everything that is known now."
    )
    code = Deployment(settings).code
    assert len({code.table_version(spend_table.name) for spend_table in (SPEND, NOW, FACT)}) == 3


def test_the_numbers_that_corrections_share_with_what_they_are_made_of():
    shared_numbers = [
        (earlier.table.name, earlier.name, earlier.text, later.name)
        for earlier, later in MORE.layer_equations
    ]
    assert shared_numbers == [
        (SPEND.name, "orders", "has {} orders", ENTRY_PREFIX + "orders"),
        (SPEND.name, "spend", "has spend {}", ENTRY_PREFIX + "spend"),
        (NOW.name, "orders", "has {} orders", ENTRY_PREFIX + "current orders"),
        (NOW.name, "spend", "has spend {}", ENTRY_PREFIX + "current spend"),
    ]
    assert {later.table.name for _, later in MORE.layer_equations} == {MORE.name}


def test_the_lineage_goes_by_way_of_the_raw_log():
    assert CURRENT.lineage == {
        "run_date": [(RAW.name, "order_ts")],
        "customer_id": [(RAW.name, "customer_id")],
        "orders": [(RAW.name, "order_id")],
        "revenue": [(RAW.name, "amount")],
    }
    assert CORRECTIONS.lineage["revenue"] == [(CURRENT.name, "revenue"), (FACT.name, "revenue")]


@pytest.mark.parametrize(
    ("lineage", "said"),
    [
        ({"amount": [(STAGED.name, "amount")]}, "lineage of amount, which is no column"),
        ({"orders": [(STAGED.name, "orders")]}, "orders cannot be made of stg_orders.orders"),
        ({"orders": [(RAW.name, "order_id")]}, "orders cannot be made of raw_orders.order_id"),
    ],
)
def test_a_lineage_of_what_is_not_there_is_refused(lineage, said):
    with pytest.raises(DeclarationError, match=said):
        table(
            DailyOrders,
            **FACT_OPTIONS,
            lineage=lineage,
        )(sums)


def of_days(orders: Annotated[DataFrame, Reads(STAGED, last_days(2))]) -> DataFrame: ...


def of_facts(orders: Annotated[DataFrame, Reads(FACT)]) -> DataFrame: ...


def of_the_log(lines: Annotated[DataFrame, Reads(RAW)]) -> DataFrame: ...


def of_two(
    orders: Annotated[DataFrame, Reads(STAGED)], facts: Annotated[DataFrame, Reads(FACT)]
) -> DataFrame: ...


@pytest.mark.parametrize("function", [of_days, of_facts, of_the_log, of_two])
def test_only_a_table_made_of_staging_of_the_same_day_has_a_current(function):
    with pytest.raises(DeclarationError, match=f"^{function.__name__}_current: only a table whose"):
        current_table(
            table(
                DailyOrders,
                **FACT_OPTIONS,
            )(function)
        )


class Totalless(pa.DataFrameModel):
    """A table without totals."""

    at: T.DateType = Field(description="Day.")


def test_corrections_need_totals_and_the_current_of_their_facts():
    with pytest.raises(DeclarationError, match=r"^x: daily_spend_current is not the current of"):
        corrections_table(FACT, NOW, name="x")
    bare = table(Totalless, partition="at", key=[])(sums)
    with pytest.raises(DeclarationError, match="sums_corrections: sums has no totals to correct"):
        corrections_table(bare, current_table(bare))
