"""What is known now of every day, and how it differs from the facts.

`fact_daily_orders` is frozen when the window of a day has closed. `fact_daily_orders_current` is
the same transform over the latest version of every order known now, as by an endless window. The
corrections are the difference between the two, whatever the reason: nothing of it depends on when
a line came, only on what there is.
"""

from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.fact import daily_orders
from backfill_assets.assets.publishing import delta_assets, plan_of, publish
from backfill_assets.assets.versions import SUPERSEDED, in_time, known, staged, with_event_day
from backfill_assets.audit import Book
from backfill_assets.codes import Code
from backfill_assets.io_manager import Built, Candidate, Input, Plan
from backfill_assets.lateness import Policy
from backfill_assets.partitions import Window, any_of, windows
from backfill_assets.reach import Known
from backfill_assets.schemas import CORRECTIONS, CURRENT, FACT, ORDER_LINES, RAW
from backfill_assets.settings import Settings
from backfill_assets.spark import keeping


def current_orders(rows: DataFrame) -> DataFrame:
    """Orders and revenue by day and customer, of the rows of `versions.known` that count."""
    return daily_orders(staged(rows, ORDER_LINES)).select(*CURRENT.columns)


def current_books(
    raw: DataFrame, rows: DataFrame, window: Window, policy: Policy
) -> dict[date, Book]:
    """By event day: lines that count (as counted from the raw log) = orders + superseded.

    Args:
        raw: as for `versions.known`.
        rows: what that gives.
        window: the event days.
        policy: the late-data policy.
    """
    lines = raw.where(window.predicate("event_date"))
    if not policy.corrects:
        lines = lines.where(in_time(policy.window_days))
    counts = lines.groupBy("event_date").count().collect()
    came = {row["event_date"]: row["count"] for row in counts}
    sums = rows.groupBy("event_date").agg(
        F.count_if(SUPERSEDED),
        F.coalesce(F.sum(F.when(~F.col(SUPERSEDED), F.col("amount"))), F.lit(Decimal("0.00"))),
    )
    seen = {day: (superseded, amount) for day, superseded, amount in sums.collect()}
    books = {}
    for day in window:
        lines_of_day = came.get(day, 0)
        superseded, amount = seen.get(day, (0, Decimal("0.00")))
        books[day] = Book(
            entries={"lines": lines_of_day, "superseded": superseded},
            totals={"orders": lines_of_day - superseded, "revenue": amount},
        )
    return books


def order_corrections(facts: DataFrame, current: DataFrame) -> DataFrame:
    """Current less facts, by day and customer; only where there is a difference."""
    columns = list(CORRECTIONS.columns)
    sums = ("orders", "revenue")
    less = facts.select("run_date", "customer_id", *[(-F.col(name)).alias(name) for name in sums])
    return (
        current.select(*columns)
        .unionByName(less)
        .groupBy("run_date", "customer_id")
        .agg(*[F.sum(name).alias(name) for name in sums])
        .where((F.col("orders") != 0) | (F.col("revenue") != 0))
        .withColumn("revenue", F.col("revenue").cast("decimal(28,2)"))
        .select(*columns)
    )


def correction_books(facts: DataFrame, current: DataFrame, window: Window) -> dict[date, Book]:
    """By event day: facts + corrections = current."""
    of_facts, of_current = _totals(facts), _totals(current)
    books = {}
    for day in window:
        orders, revenue = of_facts.get(day, (0, Decimal("0.00")))
        known_orders, known_revenue = of_current.get(day, (0, Decimal("0.00")))
        books[day] = Book(
            entries={
                "orders": orders,
                "revenue": revenue,
                "current orders": known_orders,
                "current revenue": known_revenue,
            },
            totals={"orders": known_orders - orders, "revenue": known_revenue - revenue},
        )
    return books


def _totals(frame: DataFrame) -> Mapping[date, tuple[int, Decimal]]:
    sums = frame.groupBy("run_date").agg(F.sum("orders"), F.sum("revenue"))
    return {day: (orders, revenue) for day, orders, revenue in sums.collect()}


def build(settings: Settings, code: Code) -> list[dg.AssetsDefinition]:
    """`fact_daily_orders_current` and `fact_order_corrections`."""
    policy = Policy.of(settings)

    @delta_assets(
        settings,
        name="sum_current_orders",
        tables=[CURRENT],
        group="fact",
        lineage={
            "run_date": [(RAW.name, "order_ts")],
            "customer_id": [(RAW.name, "customer_id")],
            "orders": [(RAW.name, "order_id")],
            "revenue": [(RAW.name, "amount")],
        },
        code=code,
    )
    def sum_current_orders(context: dg.AssetExecutionContext, raw_orders: Input) -> Iterator:
        with keeping() as keep:

            def plan(window: Window) -> Plan:
                log = raw_orders.now()
                logged = Known().deciding(log.ledger)

                def build(days: Window) -> Built:
                    wanted = windows({d for day in days for d in logged(day)})
                    lines = log.whole.where(any_of(wanted, RAW.partition))
                    raw = with_event_day(lines, ORDER_LINES, settings.timezone)
                    rows = keep(
                        known(raw, ORDER_LINES, days, policy.window_days, corrects=policy.corrects)
                    )
                    books = current_books(raw, rows, days, policy)
                    return Built(current_orders(rows), books, scattered=True)

                return plan_of(CURRENT, policy, window, [log], build)

            yield from publish(context, [Candidate(CURRENT, plan)])

    @delta_assets(
        settings,
        name="correct_orders",
        tables=[CORRECTIONS],
        group="fact",
        lineage={
            name: [(CURRENT.name, name), (FACT.name, name)]
            for name in ("run_date", "customer_id", "orders", "revenue")
        },
        code=code,
    )
    def correct_orders(
        context: dg.AssetExecutionContext,
        fact_daily_orders: Input,
        fact_daily_orders_current: Input,
    ) -> Iterator:
        with keeping() as keep:

            def plan(window: Window) -> Plan:
                sources = [fact_daily_orders.now(), fact_daily_orders_current.now()]

                def build(days: Window) -> Built:
                    facts, current = (source.days(days) for source in sources)
                    rows = keep(order_corrections(facts, current))
                    return Built(rows, correction_books(facts, current, days), scattered=True)

                return plan_of(CORRECTIONS, policy, window, sources, build)

            yield from publish(context, [Candidate(CORRECTIONS, plan)])

    return [sum_current_orders, correct_orders]
