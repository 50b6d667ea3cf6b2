"""Stages of about the same work: how days are cut, and how much work they are taken to be."""

from __future__ import annotations

from datetime import date
from statistics import mean
from unittest.mock import Mock

import dagster as dg
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backfill_assets.backfills.backfill_plan import BackfillRequest
from backfill_assets.backfills.forecast import (
    TOLERANCE,
    WorkEstimate,
    even_stages,
    median_stage_work,
    past_runs,
)
from backfill_assets.calendar.partitions import DAY, Grain, Window
from backfill_assets.deployment import Deployment
from backfill_assets.settings import load_settings
from backfill_assets_tests.helpers.pipeline import START


def make_window(count: int) -> Window:
    return Window(START, START + count * DAY)


def make_workload(rows, of_run=0, lead=0, before=()) -> WorkEstimate:
    """Of a log, and of what follows from it, which has days before it as well."""
    window = make_window(len(rows))
    by_day = dict(zip(window, rows, strict=True))
    earlier = {START - n * DAY: row_count for n, row_count in enumerate(before, 1)}
    return WorkEstimate(
        window, of_run, {0: by_day, lead: by_day | earlier} if lead else {0: by_day}
    )


def cut_stages(load: WorkEstimate, most: int) -> list[Window]:
    return even_stages(load.window, load, most)


ROWS = st.lists(st.integers(0, 50) | st.integers(0, 2_000), min_size=1, max_size=90)
LOADS = st.builds(make_workload, ROWS, st.integers(0, 300), st.integers(0, 8))
MOST = st.integers(1, 40)


@given(LOADS, MOST)
def test_every_day_is_in_one_stage_in_order(load, most):
    stages = cut_stages(load, most)
    assert [day for stage in stages for day in stage] == [*load.window]
    assert all(len(stage) for stage in stages)
    assert stages == cut_stages(load, most)
    if len(stages) > 1:
        assert max(map(len, stages)) <= most


@given(LOADS, MOST)
def test_no_stage_is_heavier_than_a_run_would_be_or_than_the_heaviest_day(load, most):
    stages = cut_stages(load, most)
    if len(stages) == 1:
        return
    runs = [load.run_work(run, with_lead=False) for run in load.window.split_by_length(most)]
    assert max(map(load.run_work, stages)) < max(runs)
    single = max(load.run_work(Window(day, day + DAY)) for day in load.window)
    longest = most - load.lead_days if 2 * load.lead_days <= most else most
    usual = median_stage_work(load.window, load, longest)
    assert max(map(load.run_work, stages)) <= max(single, TOLERANCE * usual)


@example([9] * 129, 14, 28, 0)
@example([9] * 199, 11, 29, 7)
@given(
    st.lists(st.integers(9, 11), min_size=120, max_size=200),
    st.integers(0, 119),
    st.integers(28, 40),
    st.sampled_from([0, 1, 7]),
)
def test_stages_are_even_where_no_day_is_as_large_as_one(rows, heavy, most, lead):
    """A day like Black Friday, anywhere.

    The bound is a multiple of a stage of median days, which may be a little more than the mean.
    """
    rows[heavy] = 180
    load = make_workload(rows, lead=lead, before=[10] * lead)
    stages = cut_stages(load, most)
    works = [*map(load.run_work, stages)]
    longest = most - lead if 2 * lead <= most else most
    usual = median_stage_work(load.window, load, longest)
    assert len(stages) == 1 or max(works) <= TOLERANCE * usual
    assert len(stages) == 1 or min(works) >= mean(works) / 2


def test_black_friday():
    """Of a year, one day has twenty times the rows of the others."""
    rows = [1_000] * 365
    rows[328] = 20_000
    load = make_workload(rows)
    runs = [load.run_work(run) for run in load.window.split_by_length(31)]
    assert max(runs) / mean(runs) > 1.5
    works = [load.run_work(stage) for stage in cut_stages(load, 31)]
    assert len(works) == 13
    assert max(works) <= 1.1 * mean(works)
    assert min(works) >= 0.8 * mean(works)


@pytest.mark.parametrize(
    ("load", "most"),
    [
        (make_workload([1] * 365), 31),  # Dagster's own runs are even
        (make_workload([1] * 4 + [20]), 31),  # there is but one run
        (make_workload([1] * 60 + [500]), 61),
        (make_workload([1] * 9 + [20]), 1),  # there are no smaller runs
        (
            make_workload([1] * 40 + [20], of_run=1_000),
            7,
        ),  # the rows are nothing beside what a run costs
        (make_workload([0] * 40), 7),  # nothing is to be done
    ],
)
def test_one_stage_where_a_cut_would_win_nothing(load, most):
    assert cut_stages(load, most) == [load.window]


def test_a_day_that_is_as_large_as_a_stage_is_alone():
    rows = [10] * 20
    rows[9] = 400
    heavy = START + 9 * DAY
    assert Window(heavy, heavy + DAY) in cut_stages(make_workload(rows), 7)


def test_what_follows_from_a_stage_is_part_of_its_work():
    """A day of the log makes the seven days before it anew, and a heavy one among them."""
    load = make_workload([1] * 10 + [20] + [1] * 20, of_run=5, lead=7, before=[2] * 7)
    first = Window(START, START + 3 * DAY)
    assert load.run_work(first) == 5 + 3 + 3 + 7 * 2
    after = Window(START + 11 * DAY, START + 14 * DAY)
    assert load.run_work(after) == 5 + 3 + 3 + 20 + 6
    assert load.run_work(after, with_lead=False) == 5 + 3 + 3
    # The seven days before its first fit in the run of a stage as well.
    heavy = make_workload([1] * 40 + [200] + [1] * 60, lead=7, before=[1] * 7)
    stages = cut_stages(heavy, 31)
    assert len(stages) > 1
    assert 20 <= max(map(len, stages)) <= 24


@given(LOADS, st.integers(1, 40), st.integers(0, 30))
def test_the_pilot_is_a_stage_of_its_own(load, most, pilot):
    parameters = BackfillRequest(days=str(load.window), pilot_days=pilot)
    stages = [*parameters.split_stages(lambda rest: even_stages(rest, load, most))]
    assert [day for _, stage in stages for day in stage] == [*load.window]
    if 0 < pilot < len(load.window):
        name, first = stages.pop(0)
        assert (name, len(first)) == ("pilot", pilot)
    names = [name for name, _ in stages]
    assert names == (["rest"] if len(names) == 1 else [f"{n + 1:03d}" for n in range(len(names))])


@pytest.mark.parametrize(
    ("grain", "first", "last", "expected"),
    [
        (Grain.DAILY, date(2024, 1, 1), date(2024, 3, 1), 61),
        (Grain.MONTHLY, date(2024, 1, 1), date(2024, 3, 1), 31 + 29 + 31),
        (Grain.WEEKLY, date(2024, 1, 1), date(2024, 1, 1), 7),
    ],
)
@pytest.mark.parametrize("selection", [{dg.AssetKey("totals")}, None], ids=["table", "job"])
def test_a_past_run_counts_all_days_of_its_partitions(grain, first, last, expected, selection):
    tags = grain.run_tags(grain.partitions_of(Window(first, last + DAY)))
    run = Mock(tags=tags, asset_selection=selection, job_name=grain.name.lower())
    records = [Mock(dagster_run=run, start_time=1.0, end_time=5.0)]
    instance = Mock(get_run_records=lambda *_, **__: records)
    deployment = Deployment(load_settings())
    table = Mock(grain=grain, job_name=grain.name.lower())
    table.name = "totals"
    deployment.__dict__["graph"] = Mock(tables={"totals": table}, assets={"totals": [table]})
    assert past_runs(instance, deployment) == [(expected, 4.0)]
