"""Tables by month, and by weeks that begin on other days than Monday."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame

from backfill_assets import MONTH, WEEK, Reads, last_days, previous_partitions, table, week_starting
from backfill_assets.assets.input_frames import for_days
from backfill_assets.backfills import stages
from backfill_assets.backfills.backfill_plan import BackfillRequest
from backfill_assets.backfills.planner import days_by_table
from backfill_assets.backfills.verify import VerifyOutcome
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, Grain, Window
from backfill_assets.calendar.reach import GrainReach
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.automation import freshness_policy
from backfill_assets.monitoring.incidents import read_snapshot
from backfill_assets.monitoring.states import DayState, day_states
from backfill_assets.orders.tables import FACT, ORDERS
from backfill_assets.settings import load_settings
from backfill_assets.staleness.assess import assess
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.tables.arguments import DeclarationError
from backfill_assets.tables.graph import Graph, tables_of
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.invented_logs import ledger, record
from backfill_assets_tests.helpers.pipeline import Pipeline, make_plan, order, run_undo, run_verify
from backfill_assets_tests.neighbours import Revenue, summed, weekly


@table(Revenue, partition="week", key=[], totals=["orders", "revenue"])
def monthly(orders: Annotated[DataFrame, Reads(FACT, MONTH)]) -> DataFrame:
    """Revenue of a month."""
    return summed(orders)


@table(Revenue, partition="week", key=[], totals=["orders", "revenue"])
def monthly_again(months: Annotated[DataFrame, Reads(monthly)]) -> DataFrame:
    """The same, made of months."""
    return summed(months)


@table(Revenue, partition="week", key=[], totals=["orders", "revenue"])
def from_sunday(
    orders: Annotated[DataFrame, Reads(FACT, week_starting("sunday"))],
) -> DataFrame:
    """Revenue of a week that begins on Sunday."""
    return summed(orders)


@table(Revenue, partition="week", key=[], totals=["orders", "revenue"])
def three_weeks(
    weeks: Annotated[
        DataFrame, Reads(from_sunday, previous_partitions(2, week_starting("sunday")))
    ],
) -> DataFrame:
    """Revenue of three weeks."""
    return summed(weeks)


MONTHS = [*ORDERS, monthly, monthly_again, from_sunday, three_weeks]
PLACE = "backfill_assets_tests.system.test_months:MONTHS"
#: What months and weeks are made from.
DAYS = ("raw_orders", "raw_orders_rejected", "stg_orders", FACT.name)
NAMES = (monthly.name, monthly_again.name)
WEEKS = (from_sunday.name, three_weeks.name)
ENDS = ("start", "end")
#: A leap year's February, and days on both sides of it.
FIRST, LAST = date(2024, 1, 30), date(2024, 3, 2)
FEBRUARY = date(2024, 2, 1)


def amount(day: date) -> Decimal:
    return Decimal(day.toordinal() % 97)


def expected_rows(grain: Grain, more: dict[date, str] | None = None) -> dict[date, tuple]:
    """By whole partition, orders and revenue: a plain loop over an order a day, and some more."""
    totals: dict[date, list] = defaultdict(lambda: [0, Decimal(0), 0])
    for day in Window(FIRST, LAST + DAY):
        first = day.replace(day=1) if grain is Grain.MONTHLY else day
        while grain is Grain.WEEKLY_SUNDAY and first.isoweekday() != 7:
            first -= DAY
        amounts = [amount(day), *(Decimal(text) for d, text in (more or {}).items() if d == day)]
        totals[first][0] += len(amounts)
        totals[first][1] += sum(amounts)
        totals[first][2] += 1
    lengths = {Grain.WEEKLY_SUNDAY: 7, Grain.MONTHLY: 29}
    return {
        first: (orders, revenue)
        for first, (orders, revenue, days) in totals.items()
        if days >= lengths[grain]
    }


def sum_weeks(by_week: dict[date, tuple]) -> dict[date, tuple]:
    """Of each week, the sums of it and the two before it."""
    sums = {}
    for first in by_week:
        rows = [row for week_, row in by_week.items() if first - 14 * DAY <= week_ <= first]
        sums[first] = (sum(orders for orders, _ in rows), sum(revenue for _, revenue in rows))
    return sums


def read_rows(pipeline: Pipeline, name: str) -> dict[date, tuple[int, Decimal]]:
    return {row["week"]: (row["orders"], row["revenue"]) for row in pipeline.rows(name)}


def land(pipeline: Pipeline, day: date, text: str, event_day: date, name: str = "a") -> None:
    """An order of an event day, in the folder of an arrival day."""
    folder = pipeline.landing / "orders" / f"arrival_date={day}"
    folder.mkdir(parents=True, exist_ok=True)
    n = (day - date(2024, 1, 1)).days + 1
    line = order(f"{name}{event_day}", n, text) | {"order_ts": f"{event_day}T09:00:00Z"}
    pipeline.land(n, [line], f"{name}.jsonl")


@pytest.fixture
def months(engine, spark, tmp_path: Path) -> Pipeline:
    """Five weeks have landed."""
    pipeline = Pipeline(
        engine,
        tmp_path,
        start=FIRST,
        end=LAST + DAY,
        today=LAST + DAY,
        window_days=3,
        tables=PLACE,
        check_independence=False,
    )
    for day in Window(FIRST, LAST + DAY):
        land(pipeline, day, str(amount(day)), day)
    return pipeline


def run_due_partitions(pipeline: Pipeline, names: Collection[str]) -> dict[str, date]:
    """What the sensor asks for of some tables is run until it rests; the one partition of each.

    No run has a table by day and one by week or by month.
    """
    built: dict[str, date] = {}
    for _ in range(4):
        for request in pipeline.tick("touched_days").run_requests or []:
            selected = [key.to_user_string() for key in request.asset_selection or ()]
            if not (due := [name for name in selected if name in names]):
                continue
            assert len({pipeline.deployment.tables[name].grain for name in selected}) == 1
            assert built.keys().isdisjoint(due), "nothing is built twice"
            first, last = (request.tags[f"dagster/asset_partition_range_{end}"] for end in ENDS)
            assert first == last
            built |= dict.fromkeys(due, date.fromisoformat(first))
            pipeline.run_days([date.fromisoformat(first)], due)
    return built


def test_months_and_weeks_from_sunday(months: Pipeline, engine) -> None:
    """Built, planned, verified, late, undone: February of a leap year is the only whole month."""
    months.run(FIRST, LAST, DAYS)
    assert make_plan(months, f"{FIRST}...{LAST}", tables=(FACT.name, *NAMES)).tables[
        monthly.name
    ].computed == (str(FEBRUARY),)
    months.run_days([FEBRUARY], NAMES)
    sundays = Grain.WEEKLY_SUNDAY.whole_partitions(Window(FIRST, LAST + DAY))
    months.run_days(sundays, WEEKS)
    by_week = expected_rows(Grain.WEEKLY_SUNDAY)
    assert read_rows(months, three_weeks.name) == sum_weeks(by_week)
    whole = expected_rows(Grain.MONTHLY)
    assert {*whole} == {FEBRUARY}
    assert read_rows(months, NAMES[0]) == whole == read_rows(months, NAMES[1])
    assert read_rows(months, from_sunday.name) == by_week
    assert len(by_week) == 4
    results = run_verify(months.settings, engine, Window(FEBRUARY, FEBRUARY + DAY), NAMES)
    assert {(r.table, r.day) for r in results} == {(n, FEBRUARY) for n in NAMES}
    assert {result.outcome for result in results} == {VerifyOutcome.MATCHES}

    # A late line in time: the sensor rebuilds its month and its week, and nothing else of them.
    late_day = date(2024, 2, 29)
    land(months, LAST, "100", late_day, "late")
    months.run(LAST, LAST, DAYS[:2])
    months.run(late_day, LAST, DAYS[2:])
    assert run_due_partitions(months, (*NAMES, *WEEKS)) == {
        **dict.fromkeys(NAMES, FEBRUARY),
        **dict.fromkeys(WEEKS, date(2024, 2, 25)),
    }
    more = {late_day: "100"}
    assert read_rows(months, NAMES[1]) == expected_rows(Grain.MONTHLY, more)
    by_week = expected_rows(Grain.WEEKLY_SUNDAY, more)
    assert read_rows(months, from_sunday.name) == by_week
    assert read_rows(months, three_weeks.name) == sum_weeks(by_week)
    snapshot = read_snapshot(months.deployment, months.instance, months.now)
    assert day_states(monthly.name, snapshot) == {FEBRUARY: DayState.OPEN}
    run_undo(months, months.io_manager.ledger(monthly).records[-1].run_id)
    assert read_rows(months, NAMES[0]) == whole == read_rows(months, NAMES[1])


@pytest.mark.parametrize(
    ("made", "lacking_day"), [(monthly, FEBRUARY), (from_sunday, date(2024, 2, 11))]
)
def test_a_month_or_a_week_that_lacks_a_day_cannot_be_made_and_says_which(
    made: Table, lacking_day: date
) -> None:
    lacking = date(2024, 2, 11)
    days = Window(FIRST, LAST + DAY)
    settings = load_settings(start=FIRST, end=LAST + DAY, tables=PLACE)
    graph = Graph.from_tables(tables_of(settings).values(), Policy.from_settings(settings))
    facts = ledger(FACT, record(0, {*days} - {lacking}))
    partitions = made.grain.whole_partitions(days)
    snapshot = Snapshot(graph, {FACT.name: facts, made.name: Ledger(made)})
    assessments = assess(snapshot, made.name, partitions)
    assert lacking_day in partitions
    assert {d: a.obstacle.text for d, a in assessments.items() if a.obstacle} == {
        lacking_day: f"{FACT.name}[{lacking}] has never been published"
    }


@given(
    numbers=st.sets(st.integers(0, 32), min_size=1),
    pilot_days=st.integers(0, 5),
    chunk_days=st.one_of(st.none(), st.integers(1, 20)),
)
def test_stages_have_each_partition_once(numbers, pilot_days, chunk_days) -> None:
    """Days, weeks and months of a plan, with gaps, are in one stage and in no second one."""
    days = ",".join(str(FIRST + n * DAY) for n in sorted(numbers))
    tables = (FACT.name, monthly.name, from_sunday.name)
    request = BackfillRequest(
        days=days, tables=tables, pilot_days=pilot_days, chunk_days=chunk_days
    )
    deployment = Deployment(load_settings(start=FIRST, end=LAST + DAY, tables=PLACE))
    whole = days_by_table(deployment, tables, request.window)
    parts = [
        stages._stage_days(deployment, request, window) for _, window in request.split_stages()
    ]
    for name in tables:
        stage_days = [day for part in parts for day in part.get(name, [])]
        assert sorted(stage_days) == whole.get(name, [])


@pytest.mark.parametrize("grain", [grain for grain in Grain if grain is not Grain.DAILY])
def test_rows_count_for_the_partition_of_their_day(spark, grain) -> None:
    days = Window(date(2023, 12, 20), date(2024, 3, 10))
    rows = spark.createDataFrame([(day,) for day in days], "d DATE")
    partitions = Window(date(2023, 1, 1), date(2025, 1, 1))
    counted = for_days(rows, "d", GrainReach(grain=grain), partitions).collect()
    assert {row["d"]: row["for_day"] for row in counted} == {d: grain.first_day(d) for d in days}


def test_what_no_month_can_be_made_of_is_refused() -> None:
    def of_weeks(weeks: Annotated[DataFrame, Reads(weekly, MONTH)]) -> DataFrame:
        return summed(weeks)

    def of_days(
        orders: Annotated[DataFrame, Reads(FACT, MONTH)],
        other: Annotated[DataFrame, Reads(FACT, last_days(30))],
    ) -> DataFrame:
        return summed(orders)

    def of_both(
        orders: Annotated[DataFrame, Reads(FACT, MONTH)],
        other: Annotated[DataFrame, Reads(FACT, WEEK)],
    ) -> DataFrame:
        return summed(orders)

    def of_days_before(orders: Annotated[DataFrame, Reads(FACT, previous_partitions(3, MONTH))]):
        return summed(orders)

    def of_months_before(weeks: Annotated[DataFrame, Reads(weekly, previous_partitions(3, MONTH))]):
        return summed(weeks)

    def of_other_weeks(weeks: Annotated[DataFrame, Reads(weekly, week_starting("sunday"))]):
        return summed(weeks)

    functions = (of_weeks, of_days, of_both, of_days_before, of_months_before, of_other_weeks)
    for function in functions:
        function.__qualname__ = function.__name__
        with pytest.raises(DeclarationError, match=function.__name__):
            table(Revenue, partition="week", key=[], totals=["orders", "revenue"])(function)


@pytest.mark.parametrize("unit", [MONTH, week_starting("sunday")])
def test_rows_count_for_the_partitions_after_theirs(spark, unit) -> None:
    partitions = unit.grain.partitions_of(Window(date(2023, 11, 1), date(2024, 4, 1)))
    rows = spark.createDataFrame([(first,) for first in partitions], "d DATE")
    days = Window(date(2023, 1, 1), date(2025, 1, 1))
    counted = for_days(rows, "d", previous_partitions(2, unit), days).collect()
    assert {(row["d"], row["for_day"]) for row in counted} == {
        (first, after)
        for first in partitions
        for after in (first, *unit.grain.partitions_after(first, 2))
    }


@pytest.mark.parametrize(
    ("grain", "lag_days", "cron"),
    [
        (Grain.WEEKLY, 1, "0 6 * * 1"),
        (Grain.WEEKLY_SUNDAY, 1, "0 6 * * 0"),
        (Grain.WEEKLY_SUNDAY, 3, "0 6 * * 2"),
        (Grain.MONTHLY, 1, "0 6 1 * *"),
        (Grain.MONTHLY, 4, "0 6 4 * *"),
        (Grain.DAILY, 4, "0 6 * * *"),
    ],
)
def test_freshness_is_expected_when_a_partition_is_over(grain, lag_days, cron) -> None:
    settings = load_settings(deadline="06:00")
    policy = Policy(
        **{**vars(Policy.from_settings(settings)), "grain": grain, "lag_days": lag_days}
    )
    freshness = freshness_policy(Deployment(settings), policy)
    assert isinstance(freshness, dg.FreshnessPolicy)
    assert freshness.deadline_cron == cron
