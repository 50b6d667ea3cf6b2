"""What a plan expects of each day, of the work, of the time it takes, and of calls of services."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent, DagsterEventType
from dagster._core.events.log import EventLogEntry
from dagster._core.test_utils import create_run_for_test
from hypothesis import example, given
from hypothesis import strategies as st

from backfill_assets.backfills.backfill_plan import ApiCallEstimate, DayOutcome
from backfill_assets.backfills.forecast import (
    ROWS_OF_DAY,
    ROWS_OF_RUN,
    TOLERANCE,
    DayForecast,
    WorkEstimate,
    estimate_api_calls,
    estimate_work,
    even_stages,
    expected_seconds,
    forecast_days,
    median_stage_work,
    past_runs,
)
from backfill_assets.calendar.partitions import DAY, Window
from backfill_assets.delta.records import ExternalCommit
from backfill_assets.deployment import Deployment
from backfill_assets.landing.load_manifest import LoadedFile, LoadManifest, LoadTarget
from backfill_assets.orders.tables import (
    CORRECTIONS,
    CURRENT,
    FACT,
    LATE,
    RAW,
    REJECTED,
    STAGED,
)
from backfill_assets.settings import load_settings
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.unloaded import LoadPlan
from backfill_assets.tables.code_version import Code
from backfill_assets_guide.examples.customers.enrichment import RATES
from backfill_assets_guide.examples.growth import revenue_growth, revenue_monthly
from backfill_assets_tests.helpers.invented_logs import days
from backfill_assets_tests.helpers.invented_runs import CODE, InventedRuns, numbered
from backfill_assets_tests.helpers.memory_instance import memory_instance
from backfill_assets_tests.helpers.pipeline import START, day
from backfill_assets_tests.planned_tables import (
    after_balance,
    balance,
    compared,
    in_euros,
    two_days_in_euros,
    weekly,
)

DEPLOYMENT = Deployment(
    load_settings(tables="backfill_assets_tests.planned_tables:TABLES", start=START, window_days=2)
)
IDENTICAL, LACKING, OTHER_SETTINGS = (
    DayForecast(outcome)
    for outcome in (DayOutcome.IDENTICAL, DayOutcome.LACKING, DayOutcome.OTHER_SETTINGS)
)


def computed(reason: str) -> DayForecast:
    return DayForecast(DayOutcome.COMPUTED, reason)


def depends(reason: str) -> DayForecast:
    return DayForecast(DayOutcome.DEPENDS, reason)


NEVER = computed("never published")


@pytest.fixture
def runs() -> InventedRuns:
    return InventedRuns(DEPLOYMENT)


def plan_same_days(tables, numbers):
    return {table.name: numbers for table in tables}


def forecast(runs, planned, *, rewrite=False, code=CODE, load_plans=None):
    """What is expected of the planned days of tables, by the number of the day."""
    loads = {
        name: load_plans[log]
        for log, source in runs.deployment.graph.sources.items()
        for name in (log, source.rejected.name)
        if log in (load_plans or {})
    }
    snapshot = replace(
        Snapshot.from_deployment(runs.deployment, runs.ledgers, code=code),
        digests={name: load.load_digests for name, load in loads.items()},
        changes={name: load.changes for name, load in loads.items()},
    )
    planned_days = {name: [day(n) for n in numbers] for name, numbers in planned.items()}
    forecasts = forecast_days(snapshot, planned_days, rewrite=rewrite)
    return {name: numbered(by_day, START) for name, by_day in forecasts.items()}


# --- the outcome of a day, and why ----------------------------------------------------------------


def test_a_day_is_computed_unless_it_is_as_it_would_be_computed(runs):
    runs.build(STAGED, (1, 8))
    runs.build(FACT, (1, 2))
    runs.build(FACT, 3, code="older")
    runs.build(FACT, 4, config_digest="older")
    runs.build(FACT, 5, code="older", config_digest="older")
    runs.build(FACT, 6, input_digest="")
    runs.build(FACT, 8)
    runs.build(STAGED, 2)
    runs.ledgers[FACT.name] = replace(
        runs.ledgers[FACT.name],
        version=6,
        external_commits=[ExternalCommit(6, "DELETE", days(8))],
    )
    assert forecast(runs, {FACT.name: range(1, 9)}) == {
        FACT.name: {
            1: IDENTICAL,
            2: computed("new input: stg_orders"),
            3: computed("other code"),
            4: computed("other settings"),
            5: computed("other code; other settings"),
            6: computed("input not on record"),
            7: NEVER,
            8: computed("external commit"),
        }
    }


def test_a_rewrite_computes_identical_days_as_well(runs):
    runs.build(STAGED, (1, 3))
    runs.build(FACT, 1)
    runs.build(FACT, 2, code="older")
    assert forecast(runs, {FACT.name: [1, 2, 3]}, rewrite=True) == {
        FACT.name: {1: computed("asked for"), 2: computed("other code"), 3: NEVER}
    }


def test_the_code_of_each_table_decides(runs):
    runs.build(STAGED, 1)
    runs.build(FACT, 1)
    runs.build(balance, 1)
    code = Code("release", tables={FACT.name: "code", balance.name: "newer"})
    assert forecast(runs, {FACT.name: [1], balance.name: [1]}, code=code) == {
        FACT.name: {1: IDENTICAL},
        balance.name: {1: computed("other code")},
    }


def test_a_day_depends_on_the_planned_changes_of_its_inputs(runs):
    runs.build_all([RAW, STAGED, FACT, CURRENT], (1, 4))
    runs.build(CORRECTIONS, (1, 3))
    runs.build(STAGED, 2, code="older")
    runs.build(FACT, 2)
    runs.build(CURRENT, (2, 3), code="older")
    runs.build(CORRECTIONS, 2)
    planned = plan_same_days([STAGED, FACT, CURRENT, CORRECTIONS], [1, 2, 3])
    assert forecast(runs, planned) == {
        STAGED.name: {1: IDENTICAL, 2: computed("other code"), 3: IDENTICAL},
        FACT.name: {1: IDENTICAL, 2: depends("new input: stg_orders"), 3: IDENTICAL},
        CURRENT.name: {1: IDENTICAL, 2: computed("other code"), 3: computed("other code")},
        CORRECTIONS.name: {
            1: IDENTICAL,
            2: depends("new input: fact_daily_orders, fact_daily_orders_current"),
            3: depends("new input: fact_daily_orders_current"),
        },
    }


def test_a_day_without_its_input_can_be_built_only_if_the_plan_builds_that(runs):
    runs.build(STAGED, 1)
    assert forecast(runs, {FACT.name: [1, 2]}) == {FACT.name: {1: NEVER, 2: LACKING}}
    runs.build(RAW, (1, 4))
    assert forecast(runs, {STAGED.name: [2, 5], FACT.name: [1, 2, 3, 5]}) == {
        STAGED.name: {2: NEVER, 5: LACKING},
        FACT.name: {1: NEVER, 2: NEVER, 3: LACKING, 5: LACKING},
    }


@pytest.mark.parametrize("start", [START, day(15)], ids=["a whole month", "half a month before"])
def test_a_month_waits_for_those_on_the_calendar_that_it_reads_before_it(start):
    tables = "backfill_assets_guide.examples.growth:TABLES"
    runs = InventedRuns(Deployment(load_settings(tables=tables, start=start)))
    months, growth = revenue_monthly, revenue_growth.name
    runs.build(months, 32)  # February
    february = LACKING if start == START else NEVER
    assert forecast(runs, {growth: [32]}) == {growth: {32: february}}
    runs.build(months, 92)  # April, without March
    assert forecast(runs, {growth: [92, 122]}) == {growth: {92: LACKING, 122: LACKING}}
    runs.build(FACT, (61, 91))
    both = forecast(runs, {months.name: [61], growth: [92]})
    assert both == {months.name: {61: NEVER}, growth: {92: NEVER}}


def test_a_day_whose_input_is_of_other_settings_waits_for_that_to_be_built_again(runs):
    runs.build(RAW, (1, 3))
    runs.build(STAGED, (1, 2), config_digest="older")
    runs.build(STAGED, 3)
    runs.build(FACT, (1, 3))
    assert forecast(runs, {FACT.name: [1, 2, 3]}) == {
        FACT.name: {1: OTHER_SETTINGS, 2: OTHER_SETTINGS, 3: IDENTICAL}
    }
    assert forecast(runs, {STAGED.name: [2], FACT.name: [1, 2, 3]}) == {
        STAGED.name: {2: computed("other settings")},
        FACT.name: {1: OTHER_SETTINGS, 2: depends("new input: stg_orders"), 3: IDENTICAL},
    }


def test_other_settings_count_on_each_day_that_decides(runs):
    runs.build(STAGED, (1, 4))
    runs.build(FACT, (1, 4))
    runs.build(STAGED, 2, config_digest="older")
    runs.build(two_days_in_euros, (1, 4))
    assert forecast(runs, {two_days_in_euros.name: [1, 2, 3, 4]}) == {
        two_days_in_euros.name: {1: IDENTICAL, 2: OTHER_SETTINGS, 3: OTHER_SETTINGS, 4: IDENTICAL}
    }


def test_an_unpartitioned_input_is_an_input_of_every_day(runs):
    def read_version(content: str | None) -> None:
        runs.ledgers[FACT.name] = replace(
            runs.ledgers[FACT.name], references={"countries": content}
        )

    runs.build(STAGED, (1, 2))
    read_version("first")
    runs.build(FACT, (1, 2))
    assert forecast(runs, {FACT.name: [1, 2]}) == {FACT.name: {1: IDENTICAL, 2: IDENTICAL}}
    read_version("second")
    runs.build(FACT, 2)
    assert forecast(runs, {FACT.name: [1, 2]}) == {
        FACT.name: {1: computed("new input: countries"), 2: IDENTICAL}
    }
    read_version(None)
    assert forecast(runs, {FACT.name: [1, 2]}) == {FACT.name: {1: LACKING, 2: LACKING}}


def make_target(*sizes: int) -> LoadTarget:
    """What a log day is to be loaded from: files of some sizes."""
    files = {f"part-{n}.jsonl": LoadedFile(size, 1, f"digest {n}") for n, size in enumerate(sizes)}
    return LoadTarget(LoadManifest(files), {})


def make_load_plan(sizes_by_day: dict[int, list[int]], changes: dict[int, str]) -> LoadPlan:
    return LoadPlan(
        {day(n): make_target(*sizes) for n, sizes in sizes_by_day.items()},
        {day(n): text for n, text in changes.items()},
        [],
    )


def test_a_log_day_is_loaded_if_its_files_are_others(runs):
    load_plan = make_load_plan({1: [10], 2: [10, 20], 3: [10]}, {1: "", 2: "new files", 3: ""})
    for table in (RAW, REJECTED):
        runs.build(table, 1, input_digest=load_plan.load_digests[day(1)])
        runs.build(table, 2, input_digest="of one file")
    runs.build(LATE, (1, 2))
    planned = plan_same_days([RAW, REJECTED, LATE], [1, 2, 3])
    loaded = {1: IDENTICAL, 2: computed("new files"), 3: NEVER}
    assert forecast(runs, planned, load_plans={RAW.name: load_plan}) == {
        RAW.name: loaded,
        REJECTED.name: loaded,
        LATE.name: {1: IDENTICAL, 2: depends("new input: raw_orders"), 3: NEVER},
    }


# --- a table of its own past ----------------------------------------------------------------------

WAITS = "waits for the day before of balance"


def test_each_day_after_one_that_changes_is_built_anew(runs):
    runs.build(STAGED, (1, 5))
    runs.build(balance, (1, 5))
    runs.build(STAGED, 3)
    runs.build(balance, 4, code="older")
    # Day 4 is of the new day 3 already, but of other code.
    assert forecast(runs, {balance.name: [2, 3, 4, 5]}) == {
        balance.name: {
            2: IDENTICAL,
            3: computed("new input: stg_orders"),
            4: computed(f"other code; {WAITS}"),
            5: computed(f"new input: stg_orders; {WAITS}"),
        }
    }


def test_a_day_that_is_as_it_would_be_depends_on_a_planned_day_before(runs):
    runs.build(RAW, (1, 3))
    runs.build(STAGED, (1, 3))
    runs.build(balance, (1, 3))
    runs.build(STAGED, 1, code="older")
    runs.build(balance, 1)
    runs.build(after_balance, (1, 3))
    assert forecast(runs, plan_same_days([STAGED, balance, after_balance], [1, 2, 3])) == {
        STAGED.name: {1: computed("other code"), 2: IDENTICAL, 3: IDENTICAL},
        balance.name: {
            1: depends("new input: stg_orders"),
            2: computed(f"new input: stg_orders; {WAITS}"),
            3: depends(WAITS),
        },
        after_balance.name: dict.fromkeys([1, 2, 3], depends("new input: balance")),
    }


def test_the_first_day_of_the_calendar_needs_none_before_it(runs):
    runs.build(STAGED, (1, 3))
    assert forecast(runs, {balance.name: [1, 2, 3]}) == {
        balance.name: {
            1: NEVER,
            2: computed(f"never published; {WAITS}"),
            3: computed(f"never published; {WAITS}"),
        }
    }


def test_no_day_is_built_upon_one_that_is_not_there(runs):
    runs.build(STAGED, (1, 6))
    runs.build(balance, 1)
    # Day 3 is published as it would be computed, although day 2 is not there.
    runs.build(balance, 3)
    assert forecast(runs, {balance.name: [3, 4, 6]}) == {
        balance.name: {
            3: IDENTICAL,
            4: computed("never published"),
            6: LACKING,
        }
    }
    assert forecast(runs, {balance.name: [5, 6]}) == {balance.name: {5: LACKING, 6: LACKING}}


def test_days_after_one_that_cannot_be_built_cannot_be_built_either(runs):
    runs.build(STAGED, 1, 2, 4, 5)
    runs.build(balance, 1)
    assert forecast(runs, {balance.name: [2, 3, 4, 5]}) == {
        balance.name: {2: NEVER, 3: LACKING, 4: LACKING, 5: LACKING}
    }
    runs.build(STAGED, 3, config_digest="older")
    assert forecast(runs, {balance.name: [2, 3, 4, 5]}) == {
        balance.name: {2: NEVER, 3: OTHER_SETTINGS, 4: OTHER_SETTINGS, 5: OTHER_SETTINGS}
    }


def test_no_day_is_built_upon_one_of_other_settings(runs):
    runs.build(STAGED, (1, 4))
    runs.build(balance, (1, 2), config_digest="older")
    runs.build(balance, 3)
    assert forecast(runs, {balance.name: [3, 4]}) == {balance.name: {3: IDENTICAL, 4: NEVER}}
    assert forecast(runs, {balance.name: [3, 4]}, rewrite=True) == {
        balance.name: {3: OTHER_SETTINGS, 4: OTHER_SETTINGS}
    }
    # The first day of the calendar is built anew, and so are those upon it.
    assert forecast(runs, {balance.name: [1, 2, 3]}) == {
        balance.name: {
            1: computed("other settings"),
            2: computed(f"other settings; {WAITS}"),
            3: depends(WAITS),
        }
    }


def test_other_tables_wait_for_a_stateful_one_of_other_settings(runs):
    runs.build_all([STAGED, FACT], (1, 4))
    runs.build(balance, 1, config_digest="older")
    runs.build(balance, (2, 4))
    runs.build(compared, (2, 3))
    assert forecast(runs, {compared.name: [2, 3, 4]}) == {
        compared.name: {2: OTHER_SETTINGS, 3: IDENTICAL, 4: NEVER}
    }


# --- past runs, and how long it takes -------------------------------------------------------------


@pytest.fixture
def instance():
    with memory_instance() as instance:
        yield instance


def store_run(
    instance, first, last, *tables, seconds=60.0, status=DagsterEventType.RUN_SUCCESS, job="daily"
):
    """A run over days that has begun, and ended if it took some seconds."""
    run = create_run_for_test(
        instance,
        job_name=job,
        asset_selection=frozenset(DEPLOYMENT.asset_key(name) for name in tables) or None,
        tags={
            "dagster/asset_partition_range_start": str(first),
            "dagster/asset_partition_range_end": str(last),
        },
    )
    ends = (DagsterEventType.RUN_START, 1000.0), (status, 1000.0 + seconds)
    for event_type, at in ends:
        event = DagsterEvent(event_type.value, job)
        entry = EventLogEntry(None, "INFO", "", run.run_id, at, job_name=job, dagster_event=event)
        instance.handle_new_event(entry)


def test_runs_that_succeeded_tell_how_long_their_days_took(instance):
    store_run(instance, day(1), day(3), FACT.name, STAGED.name, seconds=60.0)
    store_run(instance, day(4), day(4), "of_the_project", seconds=30.0)
    store_run(instance, day(5), day(5), FACT.name, status=DagsterEventType.RUN_FAILURE)
    store_run(instance, day(1), day(8), weekly.name, "of_the_project", seconds=90.0)
    store_run(instance, day(1), day(31), job="monthly", seconds=120.0)
    store_run(instance, day(6), day(6), job="of_the_project", seconds=10.0)
    # This one had partitions that are no days.
    store_run(instance, "europe", "europe", FACT.name)
    assert past_runs(instance, DEPLOYMENT) == [
        (1, 10.0),
        (31, 120.0),
        (14, 90.0),
        (1, 30.0),
        (3, 60.0),
    ]


def test_the_last_hundred_runs_tell_how_long_days_take():
    asked = {}

    def get_run_records(filters, limit):
        asked.update(statuses=filters.statuses, limit=limit)
        return [
            SimpleNamespace(
                dagster_run=SimpleNamespace(
                    tags={"dagster/partition": str(day(1))}, asset_selection=None, job_name="daily"
                ),
                start_time=start,
                end_time=end,
            )
            for start, end in ((1.0, 3.0), (None, 3.0), (1.0, None))
        ]

    instance = SimpleNamespace(get_run_records=get_run_records)
    assert past_runs(instance, DEPLOYMENT) == [(1, 2.0)]
    assert asked == {"statuses": [dg.DagsterRunStatus.SUCCESS], "limit": 100}


@pytest.mark.parametrize(
    ("past", "runs", "days", "expected"),
    [
        ([], 2, 8, None),
        # A run takes 10 s and each day of it 2 s.
        ([(1, 12.0), (5, 20.0)], 2, 8, 2 * 10 + 8 * 2),
        ([(5, 20.0), (1, 12.0), (3, 16.0)], 1, 30, 10 + 30 * 2),
        # Runs of one size: those with more days take longer, those with fewer as long.
        ([(4, 20.0)], 1, 8, 40),
        ([(4, 20.0), (4, 30.0)], 3, 24, 3 * 25 * 2),
        ([(4, 20.0)], 2, 2, 2 * 20),
        # The more days, the shorter: no trend.
        ([(1, 30.0), (3, 10.0)], 2, 4, 2 * 20),
        ([(1, 30.0), (3, 10.0)], 2, 16, 2 * 20 * 4),
        # A run without days would take less than no time: no trend either.
        ([(1, 10.0), (3, 50.0)], 1, 4, 30 * 2),
        ([(1, 10.0), (2, 20.0)], 1, 3, 15 * 2),
        ([(1, 10.0), (2, 10.0)], 1, 3, 10 * 2),
    ],
)
def test_past_runs_tell_how_long_runs_to_come_take(past, runs, days, expected):
    assert expected_seconds(past, runs, days) == (expected and pytest.approx(expected))


# --- how days are cut into stages -----------------------------------------------------------------


def make_work(rows, of_run=0, lead=0, before=()) -> WorkEstimate:
    """The work of consecutive days; with a lead, also of a table that they follow."""
    window = Window(START, START + len(rows) * DAY)
    by_day = dict(zip(window, rows, strict=True))
    earlier = {START - n * DAY: of_day for n, of_day in enumerate(before, 1)}
    return WorkEstimate(
        window, of_run, {0: by_day, lead: by_day | earlier} if lead else {0: by_day}
    )


def all_cuts(count: int):
    """All ways to cut so many days into stages, each by the lengths of its stages."""
    if count == 0:
        yield ()
    for first in range(1, count + 1):
        yield from ((first, *others) for others in all_cuts(count - first))


def work_of_stages(lengths, rows, of_run=0, lead=0, before=()) -> list[int]:
    """What the run of each stage does; the days before its first are built anew with it."""
    works, start = [], 0
    for length in lengths:
        end = start + length
        led = [*rows[max(0, start - lead) : end], *before[: max(0, lead - start)]] if lead else []
        works.append(of_run + sum(rows[start:end]) + sum(led))
        start = end
    return works


def find_best_cuts(rows, per_run, of_run, lead, before) -> list[list[int]]:
    """The work of the stages of each of the best cuts, of all there are; none if runs are even."""
    rows_of_all = [n * (2 if lead else 1) for n in rows]
    runs = [sum(rows_of_all[start : start + per_run]) for start in range(0, len(rows), per_run)]
    average = of_run + per_run * sum(rows_of_all) / len(rows)
    if len(runs) == 1 or of_run + max(runs) <= TOLERANCE * average:
        return []
    longest = per_run - lead if 2 * lead <= per_run else per_run
    alike = [of_run + n * longest + (n * (longest + lead) if lead else 0) for n in rows]
    target = median([work for work in alike if work > of_run] or alike)
    heaviest_day = max(work_of_stages([1] * len(rows), rows, of_run, lead, before))
    costs = [
        (sum((work - target) ** 2 for work in works), works)
        for cut in all_cuts(len(rows))
        for works in [work_of_stages(cut, rows, of_run, lead, before)]
        if max(cut) <= longest
        if all(
            length == 1 or work <= max(TOLERANCE * target, heaviest_day)
            for length, work in zip(cut, works, strict=True)
        )
    ]
    least, _ = min(costs)
    most_of_run = of_run + max(runs)
    return [works for cost, works in costs if cost == least and max(works) < most_of_run]


# A run of 13 has 1.3 times the work of a run of average days, and no more.
@example([6, 7, 3, 4], 2, (0, 0, (0, 0)))
@example([6, 8, 3, 4], 2, (0, 0, (0, 0)))
@example([0, 9, 9, 0, 9, 0, 0, 0], 2, (1, 0, (0, 0)))
@example([3, 9, 1, 1, 1, 1], 4, (1, 2, (5, 6)))
@example([3, 9, 1, 1, 1, 1], 3, (1, 2, (5, 6)))
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8),
    st.integers(1, 5),
    st.tuples(
        st.integers(0, 5), st.integers(0, 2), st.tuples(st.integers(0, 9), st.integers(0, 9))
    ),
)
def test_where_runs_would_differ_much_no_other_stages_are_more_even(rows, per_run, more):
    work = make_work(rows, *more)
    stages = even_stages(work.window, work, per_run)
    best = find_best_cuts(rows, per_run, *more)
    if best:
        assert work_of_stages([len(stage) for stage in stages], rows, *more) in best
    else:
        assert stages == [work.window]


def test_the_median_stage_is_of_a_day_that_has_work():
    work = make_work([0, 0, 0, 4, 6, 8], of_run=10)
    assert median_stage_work(work.window, work, 5) == 10 + 6 * 5
    assert median_stage_work(work.window, make_work([0] * 6, of_run=10), 5) == 10
    led = make_work([0, 1, 3], 10, lead=2, before=(7, 7))
    assert median_stage_work(led.window, led, 5) == 10 + 2 * (5 + 7)


# --- the work of a plan ---------------------------------------------------------------------------


def test_the_work_of_a_run_counts_the_days_before_it_that_follow():
    work = make_work([1, 2, 4, 8], of_run=100, lead=2, before=(16, 32))
    assert work.lead_days == 2
    assert work.run_work(Window(day(1), day(2))) == 100 + 1 + (32 + 16 + 1)
    assert work.run_work(Window(day(3), day(5))) == 100 + (4 + 8) + (1 + 2 + 4 + 8)
    assert work.run_work(Window(day(3), day(5)), with_lead=False) == 100 + 2 * (4 + 8)
    assert work.run_work(work.window) == 100 + 15 + 15 + 48
    assert work.work_if_alike(day(2), 3) == 100 + 2 * 3 + 2 * (3 + 2)
    # What is outside of the requested days is no work of the plan.
    assert work.run_work(Window(day(-9), day(20))) == work.run_work(work.window)
    assert make_work([1, 2], of_run=5).lead_days == 0
    assert WorkEstimate(work.window, 5, {}).lead_days == 0
    assert WorkEstimate(work.window, 5, {}).run_work(work.window) == 5


def estimate(runs, planned, window, *, load_plans=None, downstream=None) -> WorkEstimate:
    forecasts = {
        name: {day(n): forecast for n, forecast in by_day.items()}
        for name, by_day in planned.items()
    }
    following = {name: [day(n) for n in numbers] for name, numbers in (downstream or {}).items()}
    return estimate_work(
        window, forecasts, load_plans or {}, runs.ledgers, DEPLOYMENT.graph, following
    )


def test_the_work_of_a_day_is_what_it_reads(runs):
    runs.build(STAGED, 1, rows=1000)
    runs.build(STAGED, 2, rows=2000)
    runs.build(FACT, 1, rows=10)
    runs.build(FACT, 2, rows=20)
    runs.build(balance, (1, 3), rows=5)
    window = Window(day(1), day(4))
    planned = {
        FACT.name: {1: NEVER, 2: depends("new input"), 3: IDENTICAL},
        balance.name: {1: IDENTICAL, 2: IDENTICAL, 3: LACKING},
        compared.name: {1: NEVER, 2: OTHER_SETTINGS, 3: NEVER},
    }
    # Of the facts so many rows are expected as are read for them; of balances as many as there are.
    assert estimate(runs, planned, window) == WorkEstimate(
        window,
        2 * ROWS_OF_RUN,
        {
            0: {
                day(1): ROWS_OF_DAY + 1000 + ROWS_OF_DAY + (1000 + 5),
                day(2): ROWS_OF_DAY + 2000,
                day(3): ROWS_OF_DAY + (0 + 5),
            }
        },
    )


def test_the_work_of_tables_that_start_earlier_stands_apart(runs):
    runs.build(STAGED, (1, 10), rows=7)
    runs.build(FACT, (1, 10), rows=7)
    window = Window(day(9), day(11))
    planned = {
        RAW.name: {},
        STAGED.name: dict.fromkeys(range(7, 11), LACKING),
        FACT.name: dict.fromkeys(range(7, 11), NEVER),
        weekly.name: {8: NEVER},
    }
    downstream = {FACT.name: [8, 9, 10], weekly.name: [8]}
    assert estimate(runs, planned, window, downstream=downstream) == WorkEstimate(
        window,
        2 * ROWS_OF_RUN,
        {
            # The week of days 8 to 14 counts on the last requested one.
            0: {day(10): ROWS_OF_DAY + 3 * 7},
            2: {day(n): ROWS_OF_DAY + 7 for n in (7, 8, 9, 10)},
        },
    )


@pytest.mark.parametrize(
    ("loaded", "row_size"),
    [
        # 300 bytes for 6 rows; what is gone, or has no row, says nothing of a row's size.
        ([(1, [100, 50], 3), (2, [150], 3), (3, [999], 0)], 50),
        # Without a file there is no size of a row, nor without a row.
        ([(1, [], 3)], 100),
        ([(1, [150], 0)], 100),
        ([], 100),
    ],
)
def test_rows_to_load_are_told_by_their_bytes(runs, loaded, row_size):
    for n, sizes, rows in loaded:
        manifest = make_target(*sizes).manifest.as_json
        runs.build(RAW, n, rows=rows, landing={day(n): manifest})
    load_plan = make_load_plan({4: [1000, 500], 5: [20], 6: [5000]}, {})
    window = Window(day(4), day(7))
    planned = {
        RAW.name: {4: NEVER, 5: NEVER, 6: IDENTICAL},
        LATE.name: {4: NEVER, 5: IDENTICAL, 6: IDENTICAL},
    }
    assert estimate(runs, planned, window, load_plans={RAW.name: load_plan}) == WorkEstimate(
        window,
        2 * ROWS_OF_RUN,
        {
            0: {
                day(4): 2 * (ROWS_OF_DAY + 1500 // row_size),
                day(5): ROWS_OF_DAY + round(20 / row_size),
            }
        },
    )


# --- calls of services ----------------------------------------------------------------------------

RATE_CALLS = "requests to exchange_rates"
QUOTA = {"quota": "10 a second and 10,000 a day", "reserve": 0.2}


def expect_calls(runs, planned) -> ApiCallEstimate:
    by_table = {
        name: {day(n): forecast for n, forecast in by_day.items()}
        for name, by_day in planned.items()
    }
    (estimate,) = estimate_api_calls(by_table, runs.ledgers).items()
    assert estimate[0] == RATES.name
    return estimate[1]


def make_calls(at_most, expected, unknown_days=0) -> ApiCallEstimate:
    """The estimate of so many calls, of which a day takes 8,000 that are not reserved."""
    seconds, expected_seconds = (
        max(calls / 8, calls * 86400 / 8000) for calls in (at_most, expected or 0)
    )
    return ApiCallEstimate(
        at_most=at_most,
        expected=expected,
        unknown_days=unknown_days,
        seconds=seconds,
        expected_seconds=expected_seconds,
        **QUOTA,
    )


def test_calls_are_at_most_one_for_each_row_that_is_read(runs):
    runs.build(STAGED, 1, rows=100)
    runs.build(STAGED, 2, rows=10)
    assert expect_calls(runs, {in_euros.name: {1: NEVER, 2: NEVER}}) == make_calls(110, None)
    # One of these is read, but not what the requests are made of.
    runs.build(FACT, 2, rows=1000)
    planned = {two_days_in_euros.name: {1: NEVER, 2: NEVER, 3: NEVER}}
    assert expect_calls(runs, planned) == make_calls(100 + 110 + 10, None, unknown_days=1)


def test_days_that_were_built_tell_how_many_calls_a_row_causes(runs):
    runs.build(STAGED, (1, 2), rows=100)
    runs.build(STAGED, 3, rows=50)
    runs.build(STAGED, 4, rows=2)
    runs.build(in_euros, 1, numbers={RATE_CALLS: 30})
    runs.build(in_euros, 2, numbers={RATE_CALLS: 10})
    runs.build(in_euros, 4, numbers={RATE_CALLS: 0})
    # 40 for 200 rows: 10 for 50 rows, and less than one for two.
    assert expect_calls(runs, {in_euros.name: {3: NEVER}}) == make_calls(50, 10)
    assert expect_calls(runs, {in_euros.name: {4: computed("other code")}}) == make_calls(2, 1)
    # Day 1 has more answers than a day of its size needs, and day 2 lacks some.
    assert expect_calls(runs, {in_euros.name: {1: computed("other code")}}) == make_calls(100, 0)
    planned = {1: computed("other code"), 2: depends("new input: stg_orders"), 3: NEVER}
    assert expect_calls(runs, {in_euros.name: planned}) == make_calls(250, 10 + 10)


def test_no_more_calls_are_expected_than_there_can_be(runs):
    runs.build(STAGED, (1, 2), rows=1)
    runs.build(in_euros, 1, numbers={RATE_CALLS: 3})
    assert expect_calls(runs, {in_euros.name: {2: NEVER}}) == make_calls(1, 1)


def test_calls_of_several_tables_add_up(runs):
    runs.build(STAGED, (1, 3), rows=100)
    runs.build(in_euros, 1, numbers={RATE_CALLS: 10})
    planned = {in_euros.name: {2: NEVER, 4: NEVER}, two_days_in_euros.name: {3: NEVER, 4: NEVER}}
    # Of one of them nothing is known yet.
    assert expect_calls(runs, planned) == make_calls(100 + 300, None, 2).model_copy(
        update={"expected_seconds": RATES.seconds_for(10)}
    )
    runs.build(two_days_in_euros, 2, numbers={RATE_CALLS: 40})
    assert expect_calls(runs, planned) == make_calls(100 + 300, 10 + 60, 2)


def test_only_tables_that_ask_a_service_have_calls(runs):
    runs.build_all([RAW, STAGED, FACT], (1, 2))
    by_table = {table.name: {day(1): NEVER} for table in (RAW, FACT, in_euros)}
    assert estimate_api_calls(by_table, runs.ledgers).keys() == {RATES.name}
    assert estimate_api_calls({FACT.name: {day(1): NEVER}}, runs.ledgers) == {}
