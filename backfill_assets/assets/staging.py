"""Staging layer: each order once on its event day, and the lines that came after its window.

Which version counts is decided in `versions`.
"""

from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.assets.publishing import delta_assets, plan_of, publish
from backfill_assets.assets.versions import in_time, ranked, staged_orders, with_event_day
from backfill_assets.audit import Book, Severity, Verdict
from backfill_assets.codes import Code
from backfill_assets.io_manager import Built, Candidate, Input, Plan, Remarks, Snapshot
from backfill_assets.lateness import Policy
from backfill_assets.partitions import Window
from backfill_assets.reprocessing import closings
from backfill_assets.schemas import LATE, RAW, STAGED
from backfill_assets.settings import Settings
from backfill_assets.spark import keeping


def late_orders(raw: DataFrame, window_days: int, *, keep: bool = True) -> DataFrame:
    """The rows of the raw log that came after the window of their event day had closed.

    None of them where such lines are dropped: then `late_books` counts them, and nothing else does.
    """
    return raw.where(~in_time(window_days) & F.lit(keep)).select(*LATE.columns)


def staged_books(
    raw: DataFrame, rows: DataFrame, window: Window, window_days: int
) -> dict[date, Book]:
    """By event day: rows in time (counted from the raw log) = staged + superseded."""
    due = (
        raw.where(window.predicate("event_date")).where(in_time(window_days)).groupBy("event_date")
    ).count()
    lost = rows.where("superseded").groupBy("event_date").count()
    came = {row["event_date"]: row["count"] for row in due.collect()}
    gone = {row["event_date"]: row["count"] for row in lost.collect()}
    return {
        day: Book(
            entries={"in time": came.get(day, 0), "superseded": gone.get(day, 0)},
            rows=came.get(day, 0) - gone.get(day, 0),
        )
        for day in window
    }


def late_books(
    raw: DataFrame, window: Window, window_days: int, start: date, *, keep: bool = True
) -> dict[date, Book]:
    """By log day: rows of the raw log = in time + late, and what a person should know of the late.

    Where they are kept they reach readers by `fact_daily_orders_current`, and a warning is enough;
    dropped ones leave no other trace than this. Lines of days before the first one are in no other
    table than the raw log, in time or late.
    """
    late = ~in_time(window_days)
    counts = raw.groupBy("log_date").agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(late).alias("late"),
        F.coalesce(F.sum(F.when(late, F.col("amount"))), F.lit(Decimal("0.00"))).alias("amount"),
        F.count_if(F.col("event_date") < F.lit(start)).alias("before"),
    )
    seen = {row["log_date"]: row for row in counts.collect()}
    books = {}
    for day in window:
        rows, count, amount, before = (
            (seen[day]["rows"], seen[day]["late"], seen[day]["amount"], seen[day]["before"])
            if day in seen
            else (0, 0, Decimal("0.00"), 0)
        )
        kept = count if keep else 0
        became = "they are in late_orders and in" if keep else "THEY WERE DROPPED and miss in"
        said = (
            f"{count} line(s) worth {amount} came after the window of their day had closed; "
            f"{became} fact_daily_orders_current"
        )
        unseen = (
            f"{before} line(s) tell of days before {start}, the first of all; they are in "
            "raw_orders and in no total"
        )
        severity = Severity.WARN if keep else Severity.ALERT
        books[day] = Book(
            entries={
                "raw": rows,
                "in time": rows - count,
                "late": count,
                "late amount": amount,
                "before the first day": before,
            },
            rows=kept,
            warnings=[unseen] if before else [],
            notices={"late_lines": (severity, said)} if count else {},
        )
    return books


_SAME = ("order_id", "customer_id", "order_ts", "amount", "ingestion_ts", "log_date")


def build(settings: Settings, code: Code) -> list[dg.AssetsDefinition]:
    """`stg_orders`, whose late-data window is its partition mapping, and `late_orders`."""
    lineage = {name: [(RAW.name, name)] for name in _SAME}
    lineage["event_date"] = [(RAW.name, "order_ts")]
    window_days, policy = settings.window_days, Policy.of(settings)

    @delta_assets(
        settings,
        name="stage_orders",
        tables=[STAGED],
        group="staging",
        lineage=lineage,
        code=code,
    )
    def stage_orders(context: dg.AssetExecutionContext, raw_orders: Input) -> Iterator:
        with keeping() as keep:

            def plan(window: Window) -> Plan:
                log = raw_orders.now()

                def build(days: Window) -> Built:
                    logged = log.days(policy.reach.read(days))
                    raw = with_event_day(logged, settings.timezone)
                    rows = keep(ranked(raw, days, window_days))

                    def remarks(_: Snapshot | None, verdicts: Sequence[Verdict]) -> Remarks:
                        closed = closings(log.ledger, policy)
                        return Remarks({v.day for v in verdicts if v.passed and v.day in closed})

                    due = staged_books(raw, rows, days, window_days)
                    return Built(staged_orders(rows), due, scattered=True, remarks=remarks)

                return plan_of(STAGED, policy, window, [log], build)

            yield from publish(context, [Candidate(STAGED, plan)])

    @delta_assets(
        settings,
        name="keep_late_orders",
        tables=[LATE],
        group="staging",
        lineage={
            **lineage,
            "arrival_date": [(RAW.name, "arrival_date")],
            "source_file": [(RAW.name, "source_file")],
        },
        code=code,
    )
    def keep_late_orders(context: dg.AssetExecutionContext, raw_orders: Input) -> Iterator:
        with keeping() as keep:

            def plan(window: Window) -> Plan:
                log = raw_orders.now()

                def build(days: Window) -> Built:
                    raw = with_event_day(log.days(days), settings.timezone)
                    rows = keep(late_orders(raw, window_days, keep=policy.corrects))
                    due = late_books(raw, days, window_days, settings.start, keep=policy.corrects)
                    return Built(rows, due, remarks=_say_what_is_late)

                return plan_of(LATE, policy, window, [log], build)

            yield from publish(context, [Candidate(LATE, plan)])

    return [stage_orders, keep_late_orders]


def _say_what_is_late(_: Snapshot | None, verdicts: Sequence[Verdict]) -> Remarks:
    entries = {v.day: v.book.entries for v in verdicts if v.passed}
    late = {
        str(day): [entry["late"], str(entry["late amount"])]
        for day, entry in entries.items()
        if entry["late"]
    }
    return Remarks(said={"late": late})
