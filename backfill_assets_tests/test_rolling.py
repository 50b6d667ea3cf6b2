"""Rolling aggregates of partials: the same rows as when each row counts for each day by itself."""

from __future__ import annotations

import inspect
from datetime import date
from decimal import Decimal
from random import Random
from typing import Annotated

import pandera.pyspark as pa
import pyspark.sql.types as T
import pytest
from pandera.pyspark import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window as SqlWindow

from backfill_assets import (
    PREVIOUS_DAY,
    SAME_DAY,
    SELF,
    WEEK,
    PartialAggregate,
    Reads,
    combine_days,
    conserves_total,
    following_days,
    last_days,
    table,
)
from backfill_assets.assets.input_frames import add_day_ranges, for_days
from backfill_assets.calendar.partitions import DaySet, Window
from backfill_assets.orders.tables import ORDERS, RAW, STAGED, DailyOrders
from backfill_assets.publish.types import REWRITE_TAG
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets_tests.helpers.pipeline import FACT_OPTIONS, Pipeline, day, order
from backfill_assets_tests.own_tables import my_partials

ROWS = "run_date DATE, k STRING, n LONG, amount DECIMAL(18,2), at TIMESTAMP, kept LONG"


def make_rows(spark, chance: Random, count: int) -> DataFrame:
    def value(of):
        return None if chance.random() < 0.2 else of

    rows = [
        (
            day(chance.randint(1, 12)),
            value(chance.choice("abc")),
            value(chance.randint(-3, 3)),
            value(Decimal(chance.randint(-(10**9), 10**9)) / 100),
            None,
            chance.randint(0, 3),
        )
        for _ in range(count)
    ]
    frame = spark.createDataFrame(rows, ROWS)
    return frame.withColumn("at", F.timestamp_seconds(F.col("n") * 3600))


@pytest.mark.parametrize("seed", [0, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
def test_partials_give_what_copies_give(spark, seed):
    chance = Random(seed)
    rows = make_rows(spark, chance, 120)
    reach = chance.choice((last_days(5), last_days(90), following_days(3)))
    numbers = sorted(chance.sample(range(1, 13), 6))
    days = DaySet.from_days(map(day, numbers))
    recent = F.col("run_date") > F.date_sub("for_day", 2)
    copies = for_days(rows, "run_date", reach, days).groupBy("for_day", "k")
    expected = copies.agg(
        F.count(F.lit(1)).alias("rows"),
        F.count("n").alias("values"),
        F.count_if(recent & F.col("n").isNotNull()).alias("recent"),
        F.sum("amount").alias("total"),
        F.sum(F.when(recent, F.col("amount"))).alias("recent_total"),
        F.min("at").alias("first"),
        F.max("amount").alias("most"),
        F.array_sort(F.collect_set("n")).alias("all_n"),
    )
    once = add_day_ranges(rows, "run_date", reach, days)
    combined = combine_days(
        once,
        "k",
        keep=["run_date"],
        rows=PartialAggregate.count(),
        values=PartialAggregate.count("n"),
        recent=PartialAggregate.count("n", where=recent),
        total=PartialAggregate.sum("amount"),
        recent_total=PartialAggregate.sum("amount", where=recent),
        first=PartialAggregate.min("at"),
        most=PartialAggregate.max("amount"),
        all_n=PartialAggregate.values("n"),
    ).where(days.sql_condition("for_day"))
    assert combined.schema.simpleString() == expected.schema.simpleString()
    assert sorted(map(str, combined.collect())) == sorted(map(str, expected.collect()))
    assert expected.count()


class Spend(pa.DataFrameModel):
    """What a customer spent in five days."""

    run_date: T.DateType = Field(description="The last of the days.")
    customer_id: T.StringType = Field(description="Customer.")
    orders: T.LongType = Field(ge=1, description="Orders.")
    spend: T.DecimalType(28, 2) = Field(description="Their amounts.")  # type: ignore[valid-type]


CHECKS = [conserves_total("orders", None, "orders"), conserves_total("orders", "amount", "spend")]


def name_customers(orders: DataFrame) -> DataFrame:
    """The column of the key has no null."""
    return orders.withColumn("customer_id", F.coalesce("customer_id", F.lit("unknown")))


def select_spend(rows: DataFrame) -> DataFrame:
    return rows.select(
        F.col("for_day").alias("run_date"),
        "customer_id",
        "orders",
        F.col("spend").cast("decimal(28,2)"),
    )


@table(Spend, partition="run_date", key=["customer_id"], totals=["orders", "spend"], checks=CHECKS)
def spend_by_copies(orders: Annotated[DataFrame, Reads(STAGED, last_days(5))]) -> DataFrame:
    return select_spend(
        name_customers(orders)
        .groupBy("for_day", "customer_id")
        .agg(F.count(F.lit(1)).alias("orders"), F.sum("amount").alias("spend"))
    )


@table(Spend, partition="run_date", key=["customer_id"], totals=["orders", "spend"], checks=CHECKS)
def spend_by_partials(
    orders: Annotated[DataFrame, Reads(STAGED, last_days(5), each_row_once=True)],
) -> DataFrame:
    named = orders.withColumn("customer_id", F.coalesce("customer_id", F.lit("unknown")))
    spend = combine_days(
        named, "customer_id", orders=PartialAggregate.count(), spend=PartialAggregate.sum("amount")
    )
    return spend.withColumnRenamed("for_day", "run_date")


@table(Spend, partition="run_date", key=["customer_id"], totals=["orders", "spend"], checks=CHECKS)
def spend_known_then(
    orders: Annotated[DataFrame, Reads(RAW, last_days(5), as_known=True, each_row_once=True)],
) -> DataFrame:
    totals = {"orders": PartialAggregate.count(), "spend": PartialAggregate.sum("amount")}
    return select_spend(combine_days(name_customers(orders), ["customer_id"], **totals))


@table(Spend, partition="run_date", key=["customer_id"], totals=["orders", "spend"], checks=CHECKS)
def spend_known_then_by_copies(
    orders: Annotated[DataFrame, Reads(RAW, last_days(5), as_known=True)],
) -> DataFrame:
    return select_spend(
        name_customers(orders)
        .groupBy("for_day", "customer_id")
        .agg(F.count(F.lit(1)).alias("orders"), F.sum("amount").alias("spend"))
    )


@table(DailyOrders, **FACT_OPTIONS)
def daily_with_window(
    orders: Annotated[DataFrame, Reads(STAGED, last_days(5), each_row_once=True)],
) -> DataFrame:
    """A window of the function's own, over days of the input: more days than are asked for."""
    by_day = orders.groupBy("event_date").agg(
        F.count(F.lit(1)).alias("n"), F.sum("amount").alias("amount")
    )
    dates = F.datediff("event_date", F.lit("2020-01-01").cast("date"))
    window = SqlWindow.orderBy(dates).rangeBetween(-4, 0)
    return by_day.select(
        F.col("event_date").alias("run_date"),
        F.lit("all").alias("customer_id"),
        F.sum("n").over(window).alias("orders"),
        F.sum("amount").over(window).cast("decimal(28,2)").alias("revenue"),
    )


@table(DailyOrders, **FACT_OPTIONS)
def without_day(
    orders: Annotated[DataFrame, Reads(STAGED, last_days(5), each_row_once=True)],
) -> DataFrame:
    """Loses the day of a customer."""
    day_of_others = F.when(F.col("customer_id") != "b", F.col("event_date"))
    return orders.groupBy(day_of_others.alias("run_date"), "customer_id").agg(
        F.count(F.lit(1)).alias("orders"), F.sum("amount").alias("revenue")
    )


TABLES = [
    *ORDERS,
    spend_by_copies,
    spend_by_partials,
    spend_known_then,
    spend_known_then_by_copies,
    daily_with_window,
    without_day,
]
SPENDS = [declared.name for declared in TABLES[len(ORDERS) : -1]]


def day_digests(pipeline: Pipeline, name: str) -> dict[date, str]:
    declared = next(declared for declared in TABLES if getattr(declared, "name", "") == name)
    ledger = pipeline.io_manager.ledger(declared)
    return {d: ledger.content_key(d) for d in sorted(ledger.published_days)}


def test_a_table_that_reads_each_row_once(engine, spark, tmp_path):
    pipeline = Pipeline(engine, tmp_path, tables="backfill_assets_tests.test_rolling:TABLES")
    chance = Random(1)
    for n in range(1, 9):
        lines = [
            order(
                f"{n}-{k}",
                max(1, n - chance.choice((0, 0, 0, 1, 3))),
                f"{k}.50",
                chance.choice(["a", "b", None]),
            )
            for k in range(6)
        ]
        if n == 8:
            lines.append(order("late", 3, "100.00", "a", ingested=f"{day(8)}T12:00:00Z"))
        pipeline.land(n, lines)
    pipeline.run(1, 8, [RAW.name, STAGED.name])
    pipeline.run(1, 8, SPENDS)
    pairs = ((SPENDS[0], SPENDS[1]), (SPENDS[3], SPENDS[2]))
    before = {name: day_digests(pipeline, name) for name in SPENDS}
    for copies, partials in pairs:
        assert before[copies] == before[partials]
        assert len(before[copies]) == 8
    # Rows without a day are not lost among those of other days.
    message = pipeline.failure(pipeline.run(2, 2, [without_day.name], fails=True))
    assert "have no run_date" in message
    # Days with a gap between them come out as the range did.
    pipeline.run_days(
        [day(2), day(4), day(5)], SPENDS[1:3] + SPENDS[4:], tags={REWRITE_TAG: "true"}
    )
    assert {name: day_digests(pipeline, name) for name in SPENDS} == before


def test_an_aggregate_has_a_name_of_its_own(spark):
    columns = "d DATE, k STRING, first_for_day DATE, last_for_day DATE"
    rows = spark.createDataFrame([(day(1), "k", day(1), day(1))], columns)
    for names in ((), ("k",), ("d",), ("for_day",)):
        partials = {name: PartialAggregate.count() for name in names}
        with pytest.raises(ValueError, match="give each aggregate a name of its own"):
            combine_days(rows, "k", keep=["d"], **partials)


def test_the_page_declares_a_long_window():
    """The same function, which the page has with ninety days; its sample has customers of null."""
    _, *function = inspect.getsource(spend_by_partials.transform).splitlines()
    *_, shown = inspect.getsource(my_partials.spend_by_partials.transform).partition("def ")
    assert f"def {shown}".replace("last_days(90)", "last_days(5)").splitlines() == function


def same_day(orders: Annotated[DataFrame, Reads(STAGED, SAME_DAY, each_row_once=True)]): ...


def day_before(orders: Annotated[DataFrame, Reads(STAGED, PREVIOUS_DAY, each_row_once=True)]): ...


def a_week(orders: Annotated[DataFrame, Reads(STAGED, WEEK, each_row_once=True)]): ...


def its_own(
    orders: Annotated[DataFrame, Reads(STAGED)],
    own: Annotated[DataFrame, Reads(SELF, last_days(2), each_row_once=True)],
): ...


@pytest.mark.parametrize("function", [same_day, day_before, a_week, its_own])
def test_each_row_once_is_for_several_days(function):
    with pytest.raises(
        DeclarationError, match=r"each row once in any case|days that are being made"
    ):
        table(DailyOrders, **FACT_OPTIONS)(function)


def test_a_range_counts_only_days_to_compute(spark):
    rows = spark.createDataFrame([(day(1),), (day(4),), (day(6),)], "run_date DATE")
    ranges = add_day_ranges(rows, "run_date", last_days(3), Window(day(3), day(6)))
    assert [tuple(row) for row in ranges.collect()] == [
        (day(1), day(3), day(3)),
        (day(4), day(4), day(5)),
    ]
