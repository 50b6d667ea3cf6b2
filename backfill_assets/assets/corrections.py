"""Corrections: what lines change on days that no longer take them in, and the facts with them.

`fact_daily_orders` is frozen when the window of a day has closed. What is learnt later is added
up in `fact_order_corrections`, and `fact_daily_orders_current` is the sum of the two: what a
rebuild with an endless window would give.
"""

from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal

import dagster as dg
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.fact import UNKNOWN_CUSTOMER
from backfill_assets.assets.publishing import delta_assets, publish
from backfill_assets.assets.versions import greatest_first, in_time, superseded, with_event_day
from backfill_assets.audit import Book, Verdict
from backfill_assets.io_manager import Built, Candidate, Input, Plan, Remarks, Source
from backfill_assets.lateness import Policy
from backfill_assets.partitions import Window
from backfill_assets.recipes import made_of
from backfill_assets.records import packed
from backfill_assets.schemas import CORRECTIONS, CURRENT, FACT, RAW
from backfill_assets.settings import Settings
from backfill_assets.spark import keeping

_ORDER = ("order_id", "log_date", "order_ts", "ingestion_ts", "amount", "customer_id", "event_date")


def order_corrections(log: DataFrame, window: Window, window_days: int, start: date) -> DataFrame:
    """What each log day of the window changes in the facts beyond what staging takes in.

    For each order that a log day L has a line of: the version that counts with everything logged
    up to L, less what staging makes of the same lines, less the same difference as of the day
    before L. So the corrections up to any log day add up to the difference between the facts and
    a rebuild with an endless window, however an order moves between closed and open days.

    Args:
        log: `with_event_day` of the whole raw log up to the end of the window.
        window: the log days.
        window_days: the reprocessing window W.
        start: the first day that facts are kept for.
    """
    logged_here = log.where(window.predicate("log_date"))
    changes = logged_here.select("order_id", F.col("log_date").alias("_as_of")).distinct()
    # The state as of the day itself, and of the day before with the opposite sign.
    states = changes.select(
        "order_id",
        "_as_of",
        F.explode(F.array(F.lit(1), F.lit(-1))).alias("_sign"),
    ).withColumn("_until", F.date_add("_as_of", F.when(F.col("_sign") < 0, -1).otherwise(0)))
    known = log.select(*_ORDER).join(states, "order_id").where("log_date <= _until")
    versions = greatest_first("order_id", "_as_of", "_sign")
    stands = F.row_number().over(versions) == 1
    staged = in_time(window_days) & ~superseded(versions, window_days)
    counted = known.select(
        "*", (F.col("_sign") * (_one(stands) - _one(staged))).cast("long").alias("_orders")
    )
    return (
        counted.where((F.col("_orders") != 0) & (F.col("event_date") >= F.lit(start)))
        .groupBy(
            F.col("_as_of").alias("log_date"),
            F.col("event_date").alias("run_date"),
            F.coalesce("customer_id", F.lit(UNKNOWN_CUSTOMER)).alias("customer_id"),
        )
        .agg(
            F.sum("_orders").alias("orders"),
            F.sum(F.col("_orders") * F.col("amount")).cast("decimal(28,2)").alias("revenue"),
        )
        .where((F.col("orders") != 0) | (F.col("revenue") != 0))
        .select(*CORRECTIONS.columns)
    )


def _one(condition: Column) -> Column:
    return F.when(condition, 1).otherwise(0)


def current_orders(facts: DataFrame, corrections: DataFrame) -> DataFrame:
    """The facts and the corrections of the same days added up, by day and customer."""
    columns = list(CURRENT.columns)
    return (
        facts.select(*columns)
        .unionByName(corrections.select(*columns))
        .groupBy("run_date", "customer_id")
        .agg(F.sum("orders").alias("orders"), F.sum("revenue").alias("revenue"))
        .where((F.col("orders") != 0) | (F.col("revenue") != 0))
        .withColumn("revenue", F.col("revenue").cast("decimal(28,2)"))
        .select(*columns)
    )


def current_books(
    facts: DataFrame, corrections: DataFrame, rows: DataFrame, window: Window
) -> dict[date, Book]:
    """By day: facts + corrections; and no customer can be left with fewer than no orders."""
    of_facts, of_corrections = _totals(facts), _totals(corrections)
    negative = rows.where("orders < 1").groupBy("run_date").count().collect()
    short = {row["run_date"]: row["count"] for row in negative}
    books = {}
    for day in window:
        orders, revenue = of_facts.get(day, (0, Decimal("0.00")))
        more, money = of_corrections.get(day, (0, Decimal("0.00")))
        said = (
            f"{short.get(day)} customer(s) have revenue but no orders left: "
            f"{FACT.name}[{day}] lacks orders that were corrected since; rebuild that day of "
            "stg_orders and of all that follows"
        )
        books[day] = Book(
            entries={
                "orders": orders,
                "revenue": revenue,
                "corrected orders": more,
                "corrected revenue": money,
            },
            totals={"orders": orders + more, "revenue": revenue + money},
            problems=[said] if day in short else [],
        )
    return books


def _totals(frame: DataFrame) -> dict[date, tuple[int, Decimal]]:
    sums = frame.groupBy("run_date").agg(F.sum("orders"), F.sum("revenue"))
    return {day: (orders, revenue) for day, orders, revenue in sums.collect()}


def corrected_days(rows: DataFrame, days: Sequence[date]) -> set[date]:
    """The days that the corrections of some log days speak of."""
    found = rows.where(F.col("log_date").isin(list(days))).select("run_date").distinct()
    return {row["run_date"] for row in found.collect()}


def build(settings: Settings, code_version: str) -> list[dg.AssetsDefinition]:
    """`fact_order_corrections` and `fact_daily_orders_current`."""
    policy = Policy.of(settings)

    @delta_assets(
        settings,
        name="correct_orders",
        tables=[CORRECTIONS],
        group="fact",
        # It reads all log days up to its own; but as a mapping, that would make a launch of one
        # raw day in the UI build every later day. `touched` finds those that need it.
        ins={RAW.name: dg.AssetIn()},
        lineage={
            "log_date": [(RAW.name, "log_date")],
            "run_date": [(RAW.name, "order_ts")],
            "customer_id": [(RAW.name, "customer_id")],
            "orders": [(RAW.name, "order_id")],
            "revenue": [(RAW.name, "amount")],
        },
        code_version=code_version,
    )
    def correct_orders(context: dg.AssetExecutionContext, raw_orders: Input) -> Iterator:
        with keeping() as keep:

            def plan(window: Window) -> Plan:
                log = raw_orders.now()

                def build(days: Window) -> Built:
                    known = log.days(Window(date.min, days.end))
                    lines = with_event_day(known, settings.timezone)
                    found = order_corrections(lines, days, settings.window_days, settings.start)
                    rows = keep(found.where(F.lit(policy.corrects)))

                    def remarks(before: Source | None, verdicts: Sequence[Verdict]) -> Remarks:
                        passed = [v.day for v in verdicts if v.passed]
                        corrected = corrected_days(rows, passed)
                        if before is not None:  # those no longer corrected change as well
                            corrected |= corrected_days(before.whole, passed)
                        return Remarks(said={"run_dates": packed(corrected)})

                    return Built(rows, {}, scattered=True, remarks=remarks)

                recipes = made_of(CORRECTIONS.name, {RAW.name: log.ledger}, window, policy)
                return Plan(recipes, build, [log])

            yield from publish(context, [Candidate(CORRECTIONS, plan)])

    @delta_assets(
        settings,
        name="sum_current_orders",
        tables=[CURRENT],
        group="fact",
        ins={
            FACT.name: dg.AssetIn(),
            # A day has corrections on log days without end, and a launch of those must not rebuild
            # all days; which ones it changes, the corrections' commit says.
            CORRECTIONS.name: dg.AssetIn(
                partition_mapping=dg.SpecificPartitionsPartitionMapping([])
            ),
        },
        lineage={
            name: [(FACT.name, name), (CORRECTIONS.name, name)]
            for name in ("run_date", "customer_id", "orders", "revenue")
        },
        code_version=code_version,
    )
    def sum_current_orders(
        context: dg.AssetExecutionContext,
        fact_daily_orders: Input,
        fact_order_corrections: Input,
    ) -> Iterator:
        with keeping() as keep:

            def plan(window: Window) -> Plan:
                sources = [fact_daily_orders.now(), fact_order_corrections.now()]

                def build(days: Window) -> Built:
                    facts = sources[0].days(days)
                    corrections = sources[1].whole.where(days.predicate("run_date"))
                    rows = keep(current_orders(facts, corrections))
                    return Built(
                        rows, current_books(facts, corrections, rows, days), scattered=True
                    )

                ledgers = {source.table.name: source.ledger for source in sources}
                return Plan(made_of(CURRENT.name, ledgers, window, policy), build, sources)

            yield from publish(context, [Candidate(CURRENT, plan)])

    return [correct_orders, sum_current_orders]
