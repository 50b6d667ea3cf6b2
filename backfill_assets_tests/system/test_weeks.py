"""Tables by week, made of tables by day."""

from __future__ import annotations

import shutil
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
from backfill_assets.spark.session import Engine
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets_tests.helpers.pipeline import (
    LAYERS,
    START,
    Pipeline,
    copy_loaded,
    day,
    make_plan,
    order,
    run_verify,
)
from backfill_assets_tests.neighbours import Revenue, summed, weekly, weekly_again

WEEKS = (weekly.name, weekly_again.name)


#: What the weeks are made from.
DAYS = ("raw_orders", "stg_orders", FACT.name)


def make_pipeline(engine: Engine, root: Path, **more: Any) -> Pipeline:
    """That a range has what its weeks have alone is compared by a test, not by each run."""
    options = {"tables": "backfill_assets_tests.neighbours:WEEKS", "check_independence": False}
    return Pipeline(engine, root, **options, **more)


@pytest.fixture
def weeks(engine, spark, tmp_path: Path) -> Pipeline:
    return make_pipeline(engine, tmp_path)


@pytest.fixture(scope="module")
def loaded_root(engine, spark, tmp_path_factory) -> Path:
    """The days of three weeks, to be copied."""
    pipeline = make_pipeline(engine, tmp_path_factory.mktemp("loaded"))
    land_days(pipeline, 1, 21)
    pipeline.run(1, 21, DAYS)
    return pipeline.root


@pytest.fixture
def loaded(engine, loaded_root: Path, tmp_path: Path) -> Pipeline:
    copy_loaded(loaded_root, tmp_path / "loaded")
    return make_pipeline(engine, tmp_path / "loaded")


@pytest.fixture(scope="module")
def built(engine, loaded_root: Path, tmp_path_factory) -> Pipeline:
    """Three weeks that were built at once, to be looked at only."""
    root = tmp_path_factory.mktemp("built")
    copy_loaded(loaded_root, root)
    pipeline = make_pipeline(engine, root)
    pipeline.run(1, 15, WEEKS)
    return pipeline


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
    built: Pipeline, loaded: Pipeline
) -> None:
    assert read_rows(built) == expected_weeks(range(1, 22)) == read_rows(built, weekly_again.name)
    assert built.materialized(weekly.name) == {str(day(n)) for n in (1, 8, 15)}
    versions = [built.log(name).version() for name in WEEKS]
    built.run(1, 15, WEEKS)
    assert [built.log(name).version() for name in WEEKS] == versions
    loaded.run(8, 8, WEEKS)
    for made in (weekly, weekly_again):
        at_once, alone = (pipeline.io_manager.ledger(made) for pipeline in (built, loaded))
        assert alone.published_days == {day(8)}
        assert at_once.published_days == {day(1), day(8), day(15)}
        assert alone.content_key(day(8)) == at_once.content_key(day(8))


@pytest.mark.slow
def test_a_week_that_lacks_a_day_is_not_published_and_says_which(loaded: Pipeline) -> None:
    shutil.rmtree(loaded.warehouse / FACT.name)
    loaded.run_days([day(n) for n in range(1, 15) if n != 4], [FACT.name])
    result = loaded.run(1, 8, [weekly.name], fails=True)
    message = " ".join(str(e.message) for e in result.all_events if e.is_failure)
    assert f"{FACT.name}[{day(4)}] has never been published" in message or any(
        f"{FACT.name}[{day(4)}] has never been published" in (e.description or "")
        for e in result.get_asset_check_evaluations()
    )
    assert read_rows(loaded) == expected_weeks(range(8, 15))
    loaded.run(4, 4, [FACT.name])
    loaded.run(1, 8, [weekly.name])
    assert read_rows(loaded) == expected_weeks(range(1, 15))


@pytest.mark.slow
def test_nights_publish_a_week_when_it_is_over_and_again_when_a_late_line_comes(
    engine, spark, tmp_path: Path
) -> None:
    weeks = make_pipeline(engine, tmp_path, window_days=8)
    # The nights before and after the end of the second week.
    land_days(weeks, 1, 13)
    weeks.night(day(14))
    assert read_rows(weeks) == expected_weeks(range(1, 8)) == read_rows(weeks, WEEKS[1])
    land_days(weeks, 14, 14)
    late = order("late", 7, "100.00", ingested=f"{day(14)}T12:00:00Z")
    weeks.land(14, [late], "late.jsonl")
    requests = weeks.night(day(15))
    with_late = expected_weeks(range(1, 15), {7: "100.00"})
    assert read_rows(weeks) == with_late == read_rows(weeks, WEEKS[1])
    for name in WEEKS:
        states = day_states(name, read_snapshot(weeks.deployment, weeks.instance, weeks.now))
        assert {*states} == {day(1), day(8)}
        assert {*states.values()} <= {DayState.OPEN, DayState.FINAL}
    # No run has a table by day and one by week.
    for request in requests:
        names = {key.path[-1] for key in request.asset_selection or ()}
        assert names <= {*WEEKS} or names.isdisjoint(WEEKS)


def test_weeks_are_planned_and_verified(weeks: Pipeline, built: Pipeline, engine) -> None:
    land_days(weeks, 1, 21)
    plan = make_plan(weeks, f"{day(3)}...{day(17)}", tables=(*LAYERS, *WEEKS))
    assert plan.tables[FACT.name].depends or plan.tables[FACT.name].computed
    # Of the last week, days lie outside: what is asked for does not make them.
    assert {*plan.tables} >= {*WEEKS}
    plan = make_plan(built, f"{day(3)}...{day(10)}", tables=(*LAYERS, *WEEKS))
    assert plan.tables[weekly.name].identical == (str(day(1)), str(day(8)))
    window = Window(day(9), day(17))
    results = run_verify(built.settings, engine, window, (FACT.name, *WEEKS))
    assert {result.outcome for result in results} == {VerifyOutcome.MATCHES}
    assert {(result.table, result.day) for result in results} == {
        *((FACT.name, d) for d in window),
        *((name, day(n)) for name in WEEKS for n in (8, 15)),
    }


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
            table(Revenue, partition="week", key=[], totals=["orders", "revenue"])(function)


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
