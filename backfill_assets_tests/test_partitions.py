"""Windows of days, their predicates, the partitions and the backfill policy."""

from __future__ import annotations

import math
from datetime import date, datetime, timezone
from itertools import pairwise

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.calendar.partitions import (
    DAY,
    DAYS_TAG,
    DaySet,
    Grain,
    Window,
    any_window_condition,
    days_of_run,
    partitions_of_run,
    to_windows,
)
from backfill_assets.settings import load_settings
from backfill_assets_tests.helpers.pipeline import START, day


def parse_day(text: str) -> date:
    return date.fromisoformat(text)


LEAP = Window(parse_day("2024-02-28"), parse_day("2024-03-02"))


def test_a_window_is_half_open():
    assert list(LEAP) == [parse_day("2024-02-28"), parse_day("2024-02-29"), parse_day("2024-03-01")]
    assert len(LEAP) == 3
    assert LEAP.start in LEAP
    assert parse_day("2024-03-01") in LEAP
    assert LEAP.end not in LEAP
    assert parse_day("2024-02-27") not in LEAP
    assert None not in LEAP
    assert "2024-02-29" not in LEAP


def test_a_window_reads_as_dagster_writes_ranges():
    assert str(LEAP) == "2024-02-28...2024-03-01"
    assert str(Window(parse_day("2024-02-29"), parse_day("2024-03-01"))) == "2024-02-29"


def test_widened():
    assert LEAP.widen_by(before=1, after=2) == Window(
        parse_day("2024-02-27"), parse_day("2024-03-04")
    )
    assert LEAP.widen_by() == LEAP


def test_predicate():
    assert LEAP.sql_condition("run_date") == (
        "`run_date` >= DATE'2024-02-28' AND `run_date` < DATE'2024-03-02'"
    )
    assert LEAP.sql_condition("a`b").startswith("`a``b` >= ")


def test_any_of():
    other = Window(parse_day("2024-05-01"), parse_day("2024-05-02"))
    assert any_window_condition([LEAP, other], "x") == (
        "(`x` >= DATE'2024-02-28' AND `x` < DATE'2024-03-02') OR "
        "(`x` >= DATE'2024-05-01' AND `x` < DATE'2024-05-02')"
    )


def test_predicates_select_exactly_the_days(spark):
    days = [parse_day("2024-02-26") + n * DAY for n in range(8)]
    frame = spark.createDataFrame([(x,) for x in days], "`odd ``name` DATE")
    other = Window(parse_day("2024-02-26"), parse_day("2024-02-27"))
    selected = {
        row[0] for row in frame.where(any_window_condition([other, LEAP], "odd `name")).collect()
    }
    assert selected == {*other, *LEAP}


@given(st.lists(st.dates(parse_day("2024-01-01"), parse_day("2024-02-15"))))
def test_windows_hold_exactly_the_days_and_are_the_fewest(days):
    result = to_windows(days)
    assert [day for window in result for day in window] == sorted(set(days))
    assert all(a.end < b.start for a, b in pairwise(result))


DAYS = st.lists(st.dates(parse_day("2024-01-01"), parse_day("2024-02-15")), min_size=1)


@given(DAYS)
def test_tags_of_a_run_name_exactly_its_days(days):
    tags = Grain.DAILY.run_tags(days)
    assert [*days_of_run(tags)] == sorted(set(days))
    assert (DAYS_TAG in tags) == (len(to_windows(days)) > 1)
    keys = map(str, Window(min(days), max(days) + DAY))
    assert [*partitions_of_run(keys, tags)] == sorted(set(days))


@given(DAYS)
def test_tags_of_weeks_name_exactly_those_weeks(days):
    weeks = Grain.WEEKLY.partitions_of(days)
    keys = Grain.WEEKLY.partitions_of(Window(weeks[0], weeks[-1] + DAY))
    assert [*partitions_of_run(map(str, keys), Grain.WEEKLY.run_tags(weeks))] == weeks


@given(DAYS, st.integers(1, 9))
def test_runs_have_all_days_once_and_few_days_each(days, most):
    runs = Grain.DAILY.split_into_runs(days, most)
    assert [day for run in runs for day in run] == sorted(set(days))
    assert len(runs) == math.ceil(len(set(days)) / most)


def test_a_run_has_no_more_ranges_than_a_tag_takes():
    days = [parse_day("2024-01-01") + 2 * n * DAY for n in range(500)]
    runs = Grain.DAILY.split_into_runs(days, 500)
    assert [day for run in runs for day in run] == days
    assert max(len(Grain.DAILY.run_tags(run)[DAYS_TAG]) for run in runs) < 2000


@pytest.mark.parametrize("text", ["2024-01-01, 2024-01-04", "2024-01-02, 2024-01-05", "all"])
def test_a_tag_that_does_not_fit_to_the_range_is_refused(text):
    tags = {**Grain.DAILY.run_tags(Window.parse("2024-01-01...2024-01-05")), DAYS_TAG: text}
    with pytest.raises(ValueError, match=text):
        partitions_of_run(["2024-01-01"], tags)
    assert days_of_run(tags) == Window.parse("2024-01-01...2024-01-05")


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2024-01-03,2024-01-09...11", "2024-01-03, 2024-01-09...2024-01-11"),
        ("2024-01-05, [2024-01-01...2024-01-02]", "2024-01-01...2024-01-02, 2024-01-05"),
        ("2024-01-01,2024-01-02", "2024-01-01...2024-01-02"),
    ],
)
def test_days_with_gaps_as_a_person_writes_them(text, same):
    assert str(Window.parse(text)) == same


@pytest.mark.parametrize("text", ["", ",", "2024-01-03,", "2024-01-31...32", "2024-01-03 04"])
def test_text_that_has_no_days(text):
    with pytest.raises(ValueError, match="is no range of days"):
        Window.parse(text)


@given(DAYS, st.integers(1, 9))
def test_days_with_gaps_are_cut_by_their_number(days, most):
    parts = DaySet.from_days(days).split_by_length(most)
    assert [day for part in parts for day in part] == sorted(set(days))
    assert {len(part) for part in parts[:-1]} <= {most}


def test_partitions_follow_the_settings():
    definition = Grain.DAILY.partitions_def(
        load_settings(start=parse_day("2024-02-28"), end=parse_day("2024-03-02"))
    )
    assert definition.get_partition_keys() == [str(day) for day in LEAP]
    assert definition.timezone == "UTC"


def test_without_an_end_there_are_partitions_up_to_yesterday():
    definition = Grain.DAILY.partitions_def(load_settings(start=parse_day("2024-01-01")))
    now = datetime(2024, 1, 4, 0, 0, 1, tzinfo=timezone.utc)
    with dg.partition_loading_context(effective_dt=now):
        assert definition.get_partition_keys() == ["2024-01-01", "2024-01-02", "2024-01-03"]


def test_days_are_days_of_the_business_zone():
    definition = Grain.DAILY.partitions_def(
        load_settings(start=parse_day("2024-03-09"), timezone="America/New_York")
    )
    window = definition.time_window_for_partition_key("2024-03-10")  # the clock goes forward
    assert window.start.timestamp() == datetime(2024, 3, 10, 5, tzinfo=timezone.utc).timestamp()
    assert window.end.timestamp() == datetime(2024, 3, 11, 4, tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize("of", [{3}, {3, 9, 10, 11, 12}, {6}, {4, 6}, set(), {5, 7, 8, 9, 10}])
def test_days_within_a_window(of):
    window = Window(date(2024, 1, 4), date(2024, 1, 6))
    assert window.contains_any({date(2024, 1, n) for n in of}) is bool(of & {4, 5})


def test_days_with_gaps_stand_for_a_window():
    days = [day(1), day(2), day(5), day(9)]
    selection = DaySet.from_days(days)
    assert list(selection) == days and len(selection) == 4
    assert day(5) in selection and day(3) not in selection
    assert (selection.start, selection.end) == (day(1), day(10))
    assert str(selection) == "2024-01-01...2024-01-02, 2024-01-05, 2024-01-09"
    wide = selection.widen_by(before=1, after=2)
    assert list(wide) == [START + n * DAY for n in range(-1, 11)]
    assert type(wide) is type(DaySet.from_days([day(3)])) is Window
    assert selection.sql_condition("d").count("DATE'") == 6
