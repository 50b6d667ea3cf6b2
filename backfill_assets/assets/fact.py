"""Fact layer: orders and revenue by day and customer."""

from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.publishing import delta_assets, plan_of, publish
from backfill_assets.audit import Book, Verdict
from backfill_assets.codes import Code
from backfill_assets.io_manager import Built, Candidate, Input, Plan, Remarks, Snapshot
from backfill_assets.lateness import Policy
from backfill_assets.partitions import Window
from backfill_assets.schemas import FACT, STAGED
from backfill_assets.settings import Settings
from backfill_assets.spark import keeping

UNKNOWN_CUSTOMER = "unknown"


def daily_orders(staged: DataFrame) -> DataFrame:
    """Orders and revenue by day and customer; without a customer they count under `unknown`."""
    return (
        staged.groupBy(
            F.col("event_date").alias("run_date"),
            F.coalesce("customer_id", F.lit(UNKNOWN_CUSTOMER)).alias("customer_id"),
        )
        .agg(F.count(F.lit(1)).alias("orders"), F.sum("amount").alias("revenue"))
        .select(*FACT.columns)
    )


def books(staged: DataFrame, window: Window) -> dict[date, Book]:
    """By day: every staged order and every cent of it is in the fact."""
    sums = staged.groupBy("event_date").agg(
        F.count(F.lit(1)).alias("orders"), F.sum("amount").alias("revenue")
    )
    seen = {row["event_date"]: (row["orders"], row["revenue"]) for row in sums.collect()}
    found = {}
    for day in window:
        orders, revenue = seen.get(day, (0, Decimal("0.00")))
        entries = {"staged orders": orders, "staged amount": revenue}
        totals = {"orders": orders, "revenue": revenue}
        found[day] = Book(entries=entries, totals=totals)
    return found


def build(settings: Settings, code: Code) -> dg.AssetsDefinition:
    """`fact_daily_orders`, from the same days of `stg_orders`."""
    policy = Policy.of(settings)

    @delta_assets(
        settings,
        name="sum_orders",
        tables=[FACT],
        group="fact",
        lineage={
            "run_date": [(STAGED.name, "event_date")],
            "customer_id": [(STAGED.name, "customer_id")],
            "orders": [(STAGED.name, "order_id")],
            "revenue": [(STAGED.name, "amount")],
        },
        code=code,
    )
    def sum_orders(context: dg.AssetExecutionContext, stg_orders: Input) -> Iterator:
        with keeping() as keep:

            def plan(window: Window) -> Plan:
                orders = stg_orders.now()

                def build(days: Window) -> Built:
                    staged = orders.days(days)
                    rows = keep(daily_orders(staged))

                    def remarks(_: Snapshot | None, verdicts: Sequence[Verdict]) -> Remarks:
                        return Remarks({v.day for v in verdicts if v.passed} & orders.ledger.final)

                    return Built(rows, books(staged, days), scattered=True, remarks=remarks)

                return plan_of(FACT, policy, window, [orders], build)

            yield from publish(context, [Candidate(FACT, plan)])

    return sum_orders
