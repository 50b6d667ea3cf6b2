"""Rows of facts that the IO manager publishes, without an asset that makes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pyspark.sql.types as T
from pandera.pyspark import Field
from pyspark.sql import SparkSession

from backfill_assets.audit.verdicts import Expectation
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DaySet, Window
from backfill_assets.delta.commits import Writer
from backfill_assets.delta.delta_rs import race_attempts
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.orders.tables import FACT, DailyOrders
from backfill_assets.publish.publication import publish_candidates
from backfill_assets.publish.publisher import Publisher
from backfill_assets.publish.types import (
    Candidate,
    CommitRaceError,
    ComputedDays,
    ComputePlan,
    DayResult,
    RunRequest,
)
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.pipeline import Pipeline, day

RECORD = {"run_id": "r1", "asset": FACT.name, "code_version": "c", "config_digest": "d"}


def fact_rows(spark, rows: Iterable[tuple]):
    """Rows of (day number, customer, orders)."""
    data = [(day(n), customer, orders, Decimal(orders)) for n, customer, orders in rows]
    return spark.createDataFrame(data, FACT.struct_type)


def window(first: int, last: int) -> Window:
    return Window(day(first), day(last + 1))


def _no_session() -> SparkSession:
    raise AssertionError("a plan that is only audited writes nothing")


def make_plan(ledger: Ledger, days: Iterable[date]) -> ComputePlan:
    """A plan that computes all of the days."""
    days = [*days]
    request = RunRequest(DaySet.from_days(days), RECORD)
    reasons = dict.fromkeys(days, "never published")
    writer = Writer(_no_session, "", ledger.table)
    return ComputePlan(request, writer, ledger, [], dict.fromkeys(days, ""), reasons, {})


def publish_days(
    publisher: Publisher,
    table: Table,
    days: Window,
    build: Callable[[Window], ComputedDays],
    input_digest: str | Callable[[], str],
    *,
    run: str = "r1",
    rewrite: Container[date] = (),
    merge: bool = False,
    **record: str,
) -> list[DayResult]:
    """Plan, build and publish days as a step does, and start again when a commit came first.

    `record` has other values of the run's metadata.
    """
    request = RunRequest(days, {**RECORD, "run_id": run, **record}, rewrite, merge)
    for _ in race_attempts():
        ledger = publisher.ledger(table)
        made_from = input_digest if isinstance(input_digest, str) else input_digest()
        snapshot = publisher.snapshot(
            request,
            Graph({}, Policy(day(1), None, 0, 0, corrects=False, only_touched=False)),
            {table.name: ledger},
            digests={table.name: dict.fromkeys(days, made_from)},
            asset_inputs={table.name: ()},
        )
        # By the code and settings that the record of the run has.
        snapshot = replace(
            snapshot,
            code_versions={table.name: request.record["code_version"]},
            config_digests={table.name: request.record["config_digest"]},
        )
        plan = publisher.plan_days(request, table, snapshot, [])
        computed = build(plan.days) if plan.reasons else None
        try:
            (((_, results),),) = publish_candidates([Candidate(plan, computed)])
            return results
        except CommitRaceError:
            continue
    raise AssertionError("overtaken each time")


def publish_frame(
    pipeline: Pipeline,
    frame,
    days: Window,
    *,
    table: Table = FACT,
    expected_rows: int | None = None,
    input_digest: str | None = None,
    **how: Any,
) -> list[DayResult]:
    """Publish rows, which are made of something new unless an input digest is given."""

    def build(days: Window) -> ComputedDays:
        expectations = (
            {d: Expectation(rows=expected_rows) for d in days} if expected_rows is not None else {}
        )
        return ComputedDays(frame, expectations)

    made_from = input_digest or uuid4().hex
    return publish_days(pipeline.io_manager, table, days, build, made_from, **how)


def read_content(pipeline: Pipeline) -> set[tuple]:
    rows = pipeline.rows(FACT.name)
    return {(r["run_date"].day, r["customer_id"], r["orders"]) for r in rows}


def run_together(*work) -> list[BaseException]:
    """Run all at once; what they raised."""
    gate, raised = threading.Barrier(len(work)), []

    def run_task(task) -> None:
        gate.wait()
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - handed to the asserting thread
            raised.append(error)

    threads = [threading.Thread(target=run_task, args=(task,)) for task in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def outcome_values(day_results: list[DayResult]) -> list[str]:
    return [d.outcome.value for d in day_results]


OPTIONAL = {"null_warn": 1.0, "null_error": 1.0}


class Wider(DailyOrders):
    """Two columns more, both of which may be null."""

    channel: T.StringType = Field(nullable=True, description="Where it's from.", metadata=OPTIONAL)
    items: T.LongType = Field(nullable=True, ge=1, description="Items.", metadata=OPTIONAL)


WIDER = replace(FACT, model=Wider)
#: A row for each customer and channel; the channel of some is not known.
PER_CHANNEL = replace(WIDER, key=["customer_id", "channel"])
