"""The example of months, weeks and the days around a day, beside a calculation in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from random import Random

from backfill_assets.calendar.partitions import DAY, Grain, Window
from backfill_assets.orders.tables import FACT, UNKNOWN_CUSTOMER
from backfill_assets_guide.examples.growth import (
    active_customers_weekly,
    returning_customers,
    revenue_growth,
    revenue_monthly,
)
from backfill_assets_tests.helpers.pipeline import START, Pipeline
from backfill_assets_tests.helpers.publish_rows import publish_frame

PLACE = "backfill_assets_guide.examples.growth:TABLES"
MONTHS = [date(2024, month, 1) for month in (1, 2, 3)]
END = date(2024, 4, 1)
CENT, GROWTH = Decimal("0.01"), Decimal("0.0001")
#: Days without an order.
QUIET = Window(date(2024, 2, 1), date(2024, 2, 12))
#: Day, amount, and customer; None if it is unknown.
Order = tuple[date, Decimal, str | None]


def invent_orders(chance: Random) -> list[Order]:
    """A few orders on most days, more from month to month."""
    orders = []
    for order_day in Window(START, END):
        if order_day in QUIET:
            continue
        for _ in range(chance.randrange(1 + order_day.month)):
            customer = chance.choice([None, *(f"c{n}" for n in range(9))])
            orders.append((order_day, Decimal(chance.randrange(100, 9999)) / 100, customer))
    return orders


def publish_facts(pipeline: Pipeline, orders: Sequence[Order]) -> None:
    """The facts of all days, in one commit."""
    groups: dict[tuple[date, str], list[Decimal]] = defaultdict(list)
    for order_day, amount, customer in orders:
        groups[order_day, customer or UNKNOWN_CUSTOMER].append(amount)
    rows = [(*key, len(amounts), sum(amounts)) for key, amounts in groups.items()]
    frame = pipeline.io_manager.engine.spark_session.createDataFrame(rows, FACT.struct_type)
    digest = pipeline.deployment.config_digests[FACT.name]
    publish_frame(pipeline, frame, Window(START, END), config_digest=digest)


def expected_months(orders: Sequence[Order]) -> Iterator[tuple]:
    """Month, revenue, growth, mean of three months."""
    sums: list[Decimal] = []
    for month in MONTHS:
        sums.append(sum(a for d, a, _ in orders if d.replace(day=1) == month) or Decimal(0))
        growth = (sums[-1] / sums[-2] - 1).quantize(GROWTH, ROUND_HALF_UP) if sums[1:] else None
        mean = sum(sums[-3:]) / len(sums[-3:])
        yield month, sums[-1], growth, Decimal(mean).quantize(CENT, ROUND_HALF_UP)


def customers_in(orders: Sequence[Order], first: date, last: date) -> set[str]:
    return {customer for d, _, customer in orders if first <= d <= last and customer}


def test_months_weeks_and_days_around(engine, spark, tmp_path: Path) -> None:
    pipeline = Pipeline(engine, tmp_path, end=END, today=END, tables=PLACE)
    orders = invent_orders(Random(4))
    publish_facts(pipeline, orders)
    pipeline.run(START, END - DAY, [returning_customers.name])
    pipeline.run_days(MONTHS, [revenue_monthly.name, revenue_growth.name])
    sundays = Grain.WEEKLY_SUNDAY.whole_partitions(Window(START, END))
    pipeline.run_days(sundays, [active_customers_weekly.name])

    months = [*expected_months(orders)]
    assert [
        (row["month"], row["revenue"], row["growth"], row["mean_3m"])
        for row in sorted(pipeline.rows(revenue_growth.name), key=lambda row: row["month"])
    ] == months
    assert {(row["month"], row["revenue"]) for row in pipeline.rows(revenue_monthly.name)} == {
        (month, revenue) for month, revenue, *_ in months
    }
    assert {
        row["week"]: (row["customers"], row["orders"])
        for row in pipeline.rows(active_customers_weekly.name)
    } == {
        sunday: (len(customers_in(orders, sunday, sunday + 6 * DAY)), count)
        for sunday in sundays
        if (count := sum(sunday <= d < sunday + 7 * DAY for d, *_ in orders))
    }
    around = {
        d: (
            today := customers_in(orders, d, d),
            today & customers_in(orders, d - 7 * DAY, d - DAY),
            today & customers_in(orders, d + DAY, d + 30 * DAY),
        )
        for d in Window(START, END)
    }
    assert {
        row["run_date"]: (row["customers"], row["known"], row["came_back"])
        for row in pipeline.rows(returning_customers.name)
    } == {d: tuple(map(len, groups)) for d, groups in around.items() if groups[0]}
