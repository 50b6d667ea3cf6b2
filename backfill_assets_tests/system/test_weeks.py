"""Tables by week, made of tables by day."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

from backfill_assets import PREVIOUS_DAY, SELF, WEEK, Reads, last_days, table
from backfill_assets.backfills.verify import VerifyOutcome
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.monitoring.incidents import read_snapshot
from backfill_assets.monitoring.states import DayState, day_states
from backfill_assets.orders.tables import FACT, RAW
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets_tests.helpers.pipeline import (
    LAYERS,
    START,
    Pipeline,
    day,
    make_plan,
    order,
    run_undo,
    run_verify,
)
from backfill_assets_tests.neighbours import Revenue, summed, weekly, weekly_again

WEEKS = (weekly.name, weekly_again.name)


@pytest.fixture
def weeks(engine, spark, tmp_path: Path) -> Pipeline:
    return Pipeline(engine, tmp_path, tables="backfill_assets_tests.neighbours:WEEKS")


def land_days(pipeline: Pipeline, first: int, last: int) -> None:
    for n in range(first, last + 1):
        pipeline.land(n, [order(str(n), n, f"{n}.00")])


def read_rows(pipeline: Pipeline, name: str = weekly.name) -> dict[date, tuple[int, Decimal]]:
    return {row["week"]: (row["orders"], row["revenue"]) for row in pipeline.rows(name)}


def expected_weeks(days: Iterable[int], more: Mapping[int, str] | None = None) -> dict[date, Any]:
    """By Monday, orders and revenue: a plain loop over an order a day, and some more."""
    totals: dict[date, tuple[int, Decimal]] = defaultdict(lambda: (0, Decimal(0)))
    amounts = [(n, Decimal(n)) for n in days]
    for n, amount in [*amounts, *((n, Decimal(text)) for n, text in (more or {}).items())]:
        monday = day(n)
        while monday.weekday():
            monday -= timedelta(days=1)
        orders, revenue = totals[monday]
        totals[monday] = orders + 1, revenue + amount
    return dict(totals)


def test_a_range_of_weeks_has_what_weeks_have_and_a_repeat_writes_nothing(
    weeks: Pipeline, engine, tmp_path: Path
) -> None:
    land_days(weeks, 1, 21)
    weeks.run(1, 21)
    weeks.run(1, 15, WEEKS)
    assert read_rows(weeks) == expected_weeks(range(1, 22)) == read_rows(weeks, weekly_again.name)
    assert weeks.materialized(weekly.name) == {str(day(n)) for n in (1, 8, 15)}
    versions = [weeks.log(name).version() for name in WEEKS]
    weeks.run(1, 15, WEEKS)
    assert [weeks.log(name).version() for name in WEEKS] == versions
    other = Pipeline(engine, tmp_path / "one", tables=weeks.settings.tables)
    land_days(other, 1, 21)
    other.run(1, 21)
    for n in (15, 1, 8):
        other.run(n, n, WEEKS)
    ledgers = [pipeline.io_manager.ledger(weekly) for pipeline in (weeks, other)]
    assert ledgers[0].published_days == ledgers[1].published_days
    for monday in ledgers[0].published_days:
        assert ledgers[0].content_key(monday) == ledgers[1].content_key(monday)


def test_a_week_that_lacks_a_day_is_not_published_and_says_which(weeks: Pipeline) -> None:
    land_days(weeks, 1, 14)
    weeks.run(1, 3)
    weeks.run(5, 14)
    result = weeks.run(1, 8, [weekly.name], fails=True)
    message = " ".join(str(e.message) for e in result.all_events if e.is_failure)
    assert f"{FACT.name}[{day(4)}] has never been published" in message or any(
        f"{FACT.name}[{day(4)}] has never been published" in (e.description or "")
        for e in result.get_asset_check_evaluations()
    )
    assert read_rows(weeks) == expected_weeks(range(8, 15))
    weeks.run(4, 4)
    weeks.run(1, 8, [weekly.name])
    assert read_rows(weeks) == expected_weeks(range(1, 15))


def test_nights_publish_a_week_when_it_is_over_and_again_when_a_late_line_comes(
    weeks: Pipeline,
) -> None:
    # The nights before and after the end of each week.
    for first, n in ((1, 6), (7, 7), (8, 13), (14, 14)):
        land_days(weeks, first, n)
        weeks.night(day(n + 1))
        over = n // 7 * 7
        path = weeks.warehouse / weekly.name
        assert (read_rows(weeks) if path.exists() else {}) == expected_weeks(range(1, over + 1)), n
    for name in WEEKS:
        states = day_states(name, read_snapshot(weeks.deployment, weeks.instance, weeks.now))
        assert {*states} == {day(1), day(8)}
        assert {*states.values()} <= {DayState.OPEN, DayState.FINAL}
    weeks.land(15, [order("late", 13, "100.00", ingested=f"{day(15)}T12:00:00Z")])
    requests = weeks.night(day(16))
    starts = [
        request.tags["dagster/asset_partition_range_start"]
        for request in requests
        if dg.AssetKey(weekly.name) in (request.asset_selection or ())
    ]
    assert starts == [str(day(8))]
    assert (
        read_rows(weeks)
        == expected_weeks(range(1, 15), {13: "100.00"})
        == read_rows(weeks, WEEKS[1])
    )
    # No run has a table by day and one by week.
    for request in requests:
        names = {key.path[-1] for key in request.asset_selection or ()}
        assert names <= {*WEEKS} or names.isdisjoint(WEEKS)


def test_weeks_are_planned_verified_and_undone(weeks: Pipeline, engine) -> None:
    land_days(weeks, 1, 21)
    plan = make_plan(weeks, f"{day(3)}...{day(17)}", tables=(*LAYERS, *WEEKS))
    assert plan.tables[FACT.name].depends or plan.tables[FACT.name].computed
    # Of the last week, days lie outside: what is asked for does not make them.
    assert {*plan.tables} >= {*WEEKS}
    weeks.run(1, 21)
    weeks.run(1, 15, WEEKS)
    plan = make_plan(weeks, f"{day(3)}...{day(10)}", tables=(*LAYERS, *WEEKS))
    assert plan.tables[weekly.name].identical == (str(day(1)), str(day(8)))
    window = Window(day(9), day(17))
    everything = run_verify(weeks.settings, engine, window)
    assert {result.outcome for result in everything} == {VerifyOutcome.MATCHES}
    assert {result.day for result in everything if result.table == FACT.name} == {*window}
    week_results = [result for result in everything if result.table in WEEKS]
    assert {(result.table, result.day) for result in week_results} == {
        (n, day(d)) for n in WEEKS for d in (8, 15)
    }
    weeks.land(21, [order("more", 20, "5.00", ingested=f"{day(21)}T12:00:00Z")], "more.jsonl")
    weeks.run(21, 21, ["raw_orders", "raw_orders_rejected"])
    weeks.run(20, 20, ["stg_orders", "fact_daily_orders"])
    run = weeks.run(1, 15, [weekly.name])
    assert read_rows(weeks) == expected_weeks(range(1, 22), {20: "5.00"})
    run_undo(weeks, run.run_id)
    assert read_rows(weeks) == expected_weeks(range(1, 22))


def test_what_no_week_can_be_made_of_is_refused() -> None:
    def of_itself(
        orders: Annotated[DataFrame, Reads(FACT, WEEK)],
        before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
    ) -> DataFrame:
        return summed(orders)

    def of_days(
        orders: Annotated[DataFrame, Reads(FACT, WEEK)],
        raw: Annotated[DataFrame, Reads(RAW, last_days(7))],
    ) -> DataFrame:
        return summed(orders)

    def by_day(
        orders: Annotated[DataFrame, Reads(FACT)],
        weeks: Annotated[DataFrame, Reads(weekly)],
    ) -> DataFrame:
        return summed(orders)

    def as_known(
        raw: Annotated[DataFrame, Reads(RAW, WEEK, as_known=True)],
    ) -> DataFrame:
        return summed(raw)

    for function in (of_itself, of_days, by_day, as_known):
        function.__qualname__ = function.__name__
        with pytest.raises(DeclarationError, match=function.__name__):
            table(Revenue)(function)


def test_the_weeks_in_dagster(weeks: Pipeline) -> None:
    graph = weeks.repository.asset_graph
    partitions = graph.get(dg.AssetKey(weekly.name)).partitions_def
    assert partitions is not None
    keys = partitions.get_partition_keys()
    assert keys == [str(START + n * 7 * DAY) for n in range(4)]
    mapping = graph.get_partition_mapping(dg.AssetKey(weekly.name), dg.AssetKey(FACT.name))
    days = graph.get(dg.AssetKey(FACT.name)).partitions_def
    assert days is not None
    read = mapping.get_upstream_mapped_partitions_result_for_partitions(
        partitions.subset_with_partition_keys(["2024-01-08"]), partitions, days
    ).partitions_subset
    assert {*read.get_partition_keys()} == {str(day(n)) for n in range(8, 15)}
