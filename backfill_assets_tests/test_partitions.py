"""Windows of days, their predicates, the partitions and the backfill policy."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from itertools import pairwise

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import (
    DAY,
    DAYS_TAG,
    DaySet,
    Grain,
    Window,
    calendar_bounds,
    days_condition,
    days_of_run,
    format_ranges,
    from_ranges,
    parse_calendar_days,
    parse_days,
    parse_single_day,
    partitions_of_run,
    to_ranges,
    to_windows,
)
from backfill_assets.settings import load_settings
from backfill_assets_tests.helpers.pipeline import START, day


def parse_day(text: str) -> date:
    return date.fromisoformat(text)


def message_pattern(message: str) -> str:
    """What `pytest.raises` needs to compare a whole message."""
    return f"^{re.escape(message)}$"


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
    assert LEAP.sql_condition("d", relation="t") == (
        "t.`d` >= DATE'2024-02-28' AND t.`d` < DATE'2024-03-02'"
    )


def test_a_predicate_on_days_with_gaps_is_one_condition():
    gaps = DaySet.from_days([*LEAP, parse_day("2024-05-01")])
    assert gaps.sql_condition("d") == (
        "((`d` >= DATE'2024-02-28' AND `d` < DATE'2024-03-02') OR "
        "(`d` >= DATE'2024-05-01' AND `d` < DATE'2024-05-02'))"
    )
    assert gaps.sql_condition("d", relation="t") == gaps.sql_condition("d").replace("`d`", "t.`d`")


def test_any_of():
    other = Window(parse_day("2024-05-01"), parse_day("2024-05-02"))
    assert days_condition([*LEAP, *other], "x") == (
        "(`x` >= DATE'2024-02-28' AND `x` < DATE'2024-03-02') OR "
        "(`x` >= DATE'2024-05-01' AND `x` < DATE'2024-05-02')"
    )


def test_predicates_select_exactly_the_days(spark):
    days = [parse_day("2024-02-26") + n * DAY for n in range(8)]
    frame = spark.createDataFrame([(x,) for x in days], "`odd ``name` DATE")
    other = Window(parse_day("2024-02-26"), parse_day("2024-02-27"))
    selected = {
        row[0] for row in frame.where(days_condition([*other, *LEAP], "odd `name")).collect()
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


@pytest.mark.parametrize("text", ["2024-01-01, 2024-01-04", "2024-01-02, 2024-01-05"])
def test_a_tag_that_does_not_fit_to_the_range_is_refused(text):
    tags = {**Grain.DAILY.run_tags(Window.parse("2024-01-01...2024-01-05")), DAYS_TAG: text}
    message = (
        f"the run's tag backfill_assets/days is {text!r}, and its partitions are "
        "2024-01-01...2024-01-05: the first and the last day must be the same"
    )
    with pytest.raises(ValueError, match=message_pattern(message)):
        partitions_of_run(["2024-01-01"], tags)
    assert days_of_run(tags) == Window.parse("2024-01-01...2024-01-05")


def test_a_tag_without_days_is_refused():
    tags = {**Grain.DAILY.run_tags(Window.parse("2024-01-01...2024-01-05")), DAYS_TAG: "all"}
    message = "'all' is no range of days: give FIRST...LAST or one day"
    with pytest.raises(ValueError, match=message_pattern(message)):
        partitions_of_run(["2024-01-01"], tags)
    assert days_of_run(tags) == Window.parse("2024-01-01...2024-01-05")


START_TAG, END_TAG = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({}, None),
        ({"dagster/partition": "2024-01-02"}, "2024-01-02"),
        ({START_TAG: "2024-01-02", END_TAG: "2024-01-04"}, "2024-01-02...2024-01-04"),
        ({START_TAG: "2024-01-02"}, "2024-01-02"),
        # The range says it where both are there.
        (
            {"dagster/partition": "2023-01-01", START_TAG: "2024-01-02", END_TAG: "2024-01-04"},
            "2024-01-02...2024-01-04",
        ),
        ({END_TAG: "2024-01-04"}, None),
        ({"dagster/partition": "europe"}, None),
        ({"dagster/partition": "2024-01-02", DAYS_TAG: ""}, "2024-01-02"),
        ({DAYS_TAG: "2024-01-02"}, None),
        (
            {
                START_TAG: "2024-01-02",
                END_TAG: "2024-01-04",
                DAYS_TAG: "2024-01-02, 2024-01-04",
            },
            "2024-01-02, 2024-01-04",
        ),
    ],
)
def test_the_days_of_a_run_are_those_that_its_tags_name(tags, expected):
    assert days_of_run(tags) == (expected and Window.parse(expected))


def test_without_tags_the_partitions_of_a_run_are_its_keys():
    keys = ["2024-01-02", "2024-01-03", "2024-01-09"]
    assert partitions_of_run(keys, {}) == Window.parse("2024-01-02...03, 2024-01-09")


def test_tags_of_a_run_without_gaps_are_those_of_dagster_alone():
    assert Grain.DAILY.run_tags([day(3), day(2)]) == {START_TAG: str(day(2)), END_TAG: str(day(3))}
    assert Grain.DAILY.run_tags([day(5), day(2), day(3)]) == {
        START_TAG: str(day(2)),
        END_TAG: str(day(5)),
        DAYS_TAG: f"{day(2)}...{day(3)}, {day(5)}",
    }
    # Weeks one after another have no gap.
    assert Grain.WEEKLY.run_tags([day(8), day(1)]) == {START_TAG: str(day(1)), END_TAG: str(day(8))}


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


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "2024-01-03,", "2024-01-31...32", "2024-01-03 04", "2024-02-30"),
        *("[2024-01-02...2024-01-20", "2024-01-02...2024-01-20]", "2024-01-02....2024-01-20"),
        *("2024-01-02-2024-01-20", "2024-01-02...", "2024-01-02...x", "2024-1-2"),
        # Of several ranges, one has no days.
        "2024-01-09, 2024-01-05...2024-01-04",
    ],
)
def test_text_that_has_no_days(text):
    message = f"{text!r} is no range of days: give FIRST...LAST or one day"
    with pytest.raises(ValueError, match=message_pattern(message)):
        Window.parse(text)


def test_days_that_are_no_range_are_left_to_whoever_asked():
    assert parse_days(" [2024-01-09...11] ") == (parse_day("2024-01-09"), parse_day("2024-01-11"))
    assert parse_days("2024-01-11...2024-01-09") == (
        parse_day("2024-01-11"),
        parse_day("2024-01-09"),
    )
    assert parse_days("[2024-01-09]") == (parse_day("2024-01-09"), parse_day("2024-01-09"))
    for text in (
        "",
        "2024-02-30",
        "2024-01-30...32",
        "[2024-01-09",
        "2024-01-09]",
        "2024-01-09 10",
    ):
        assert parse_days(text) is None


def test_one_day_is_written_in_full_and_nothing_else():
    assert parse_single_day("2024-02-29") == parse_day("2024-02-29")
    for text in ("2024-02-30", "20240229", " 2024-02-29", "[2024-02-29]", "2024-02-28...29", ""):
        message = f"{text!r} is not one day, as YYYY-MM-DD"
        with pytest.raises(ValueError, match=message_pattern(message)):
            parse_single_day(text)


@pytest.mark.parametrize(
    "text",
    ["{0}...{1}", "[{0}...{1}]", "{0}..{1}", "{0}:{1}", " {0} ... {1} ", "[{0}..{1}]"],
)
def test_ranges_as_the_ui_and_others_write_them(text):
    first, last = date(2024, 1, 2), date(2024, 1, 20)
    range_text = text.format(first, last)
    assert parse_calendar_days(range_text, load_settings(end=date(2024, 2, 1))) == Window(
        first, last + timedelta(days=1)
    )
    assert Window.parse(range_text) == Window(first, last + timedelta(days=1))


# --- the calendar ---------------------------------------------------------------------------------


def test_the_calendar_is_that_of_the_partitions():
    now = datetime(2024, 1, 20, 23, 30, tzinfo=timezone.utc)
    for end in ("2024-01-10", "2024-01-20", "2024-01-21", "2024-02-01", None):
        for zone in ("UTC", "Asia/Tokyo", "America/Los_Angeles"):
            settings = load_settings(end=end and date.fromisoformat(end), timezone=zone)
            for by_hour in (False, True):
                days = Grain.DAILY.partitions_def(settings, by_hour=by_hour)
                keys = days.get_partition_keys(current_time=now)
                first, last = calendar_bounds(settings, now, by_hour=by_hour)
                assert [str(first), str(last)] == [keys[0], keys[-1]]


def test_before_its_second_day_a_calendar_is_empty():
    now = datetime(2024, 1, 20, 23, 30, tzinfo=timezone.utc)
    young = load_settings(start=date(2024, 1, 20))
    assert calendar_bounds(young, now) is None
    assert Grain.DAILY.partitions_def(young).get_partition_keys(current_time=now) == []
    assert calendar_bounds(young, now + DAY) == (date(2024, 1, 20), date(2024, 1, 20))
    message = (
        "'2024-01-20' is not in the calendar, which is empty: give FIRST...LAST or one day, as "
        "YYYY-MM-DD, the first not after the last"
    )
    with pytest.raises(ValueError, match=message_pattern(message)):
        parse_calendar_days("2024-01-20", young, now)


@pytest.mark.parametrize("zone", ["Etc/GMT+12", "Pacific/Kiritimati"])
def test_without_an_end_a_calendar_ends_yesterday_in_its_own_zone(zone):
    """In the first zone it is never the day that it is in the second."""
    settings = load_settings(timezone=zone)
    today = datetime.now(settings.zone).date()
    bounds = calendar_bounds(settings)
    assert bounds in [(START, last - DAY) for last in (today, datetime.now(settings.zone).date())]


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("2024-01-01...2024-01-28", "2024-01-01...2024-01-28"),
        ("2024-01-01", "2024-01-01"),
        ("2024-01-28", "2024-01-28"),
        ("2024-01-28,2024-01-01...02", "2024-01-01...2024-01-02, 2024-01-28"),
    ],
)
def test_a_person_may_ask_for_any_days_of_the_calendar(text, days):
    settings = load_settings(end=parse_day("2024-01-29"))
    assert parse_calendar_days(text, settings) == Window.parse(days)


@pytest.mark.parametrize(
    "text",
    [
        *("2023-12-31", "2024-01-29", "2023-12-31...2024-01-02", "2024-01-28...2024-01-29"),
        *("2024-01-05...2024-01-04", "2024-01-05...2024-01-03", "2024-1-1", "x"),
    ],
)
def test_days_that_are_not_all_on_the_calendar_are_refused(text):
    message = (
        f"{text!r} is not in the calendar, which is 2024-01-01...2024-01-28: give FIRST...LAST or "
        "one day, as YYYY-MM-DD, the first not after the last"
    )
    with pytest.raises(ValueError, match=message_pattern(message)):
        parse_calendar_days(text, load_settings(end=parse_day("2024-01-29")))


# --- days with gaps -------------------------------------------------------------------------------


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


def test_no_days_are_no_window():
    with pytest.raises(ValueError, match=message_pattern("there are no days")):
        DaySet.from_days([])


SPANS = st.builds(
    lambda first, length: Window(first, first + length * DAY),
    st.dates(parse_day("2024-01-01"), parse_day("2024-02-15")),
    st.integers(0, 20),
)


@given(SPANS, st.integers(1, 9))
def test_a_window_is_cut_into_windows_of_at_most_so_many_days(window, most):
    parts = window.split_by_length(most)
    assert [d for part in parts for d in part] == [*window]
    assert {len(part) for part in parts[:-1]} <= {most}
    assert len(parts) == max(1, math.ceil(len(window) / most))
    assert len(parts[-1]) <= most


@given(DAYS.map(set).filter(lambda days: len(days) > 1), st.data())
def test_days_are_cut_at_a_day(days, data):
    ordered = sorted(days)
    n = data.draw(st.integers(1, len(ordered) - 1))
    parts = DaySet.from_days(days).split_at(ordered[n])
    assert [[*part] for part in parts] == [ordered[:n], ordered[n:]]


@given(SPANS | DAYS.map(DaySet.from_days), st.sets(st.dates(START, day(60))))
def test_a_window_contains_some_of_the_days_or_none(window, days):
    assert window.contains_any(days) is bool({*window} & days)


@given(DAYS, st.integers(0, 3), st.integers(0, 3))
def test_days_are_widened_each_by_itself(days, before, after):
    wide = DaySet.from_days(days).widen_by(before=before, after=after)
    assert [*wide] == sorted({d + n * DAY for d in days for n in range(-before, after + 1)})
    assert DaySet.from_days(days).widen_by() == DaySet.from_days(days)


@given(st.lists(st.dates(parse_day("2024-01-01"), parse_day("2024-02-15"))))
def test_days_come_back_from_their_ranges(days):
    assert from_ranges(to_ranges(days)) == sorted(set(days))
    assert format_ranges(days) == ", ".join(to_ranges(days))


def test_ranges_are_written_as_dagster_writes_them():
    days = [day(5), day(2), day(1), day(1)]
    assert to_ranges(days) == ["2024-01-01...2024-01-02", "2024-01-05"]
    assert format_ranges(days) == "2024-01-01...2024-01-02, 2024-01-05"
    assert (to_ranges([]), format_ranges([]), from_ranges([])) == ([], "", [])


# --- weeks and months -----------------------------------------------------------------------------

GRAINS = st.sampled_from(list(Grain))
DATES = st.dates(date(2019, 1, 1), date(2026, 1, 1))
FIRST_WEEKDAYS = {
    Grain.DAILY: None,
    Grain.WEEKLY: 0,
    Grain.WEEKLY_TUESDAY: 1,
    Grain.WEEKLY_WEDNESDAY: 2,
    Grain.WEEKLY_THURSDAY: 3,
    Grain.WEEKLY_FRIDAY: 4,
    Grain.WEEKLY_SATURDAY: 5,
    Grain.WEEKLY_SUNDAY: 6,
    Grain.MONTHLY: None,
}


def begins_partition(grain: Grain, of: date) -> bool:
    """Whether a partition of a grain begins on a day."""
    if grain is Grain.MONTHLY:
        return of.day == 1
    return grain is Grain.DAILY or of.weekday() == FIRST_WEEKDAYS[grain]


def partitions_between(grain: Grain, first: date, last: date) -> list[date]:
    """The partitions that begin on days from a first to a last one."""
    return [d for d in Window(first, last + DAY) if begins_partition(grain, d)]


def test_each_weekday_begins_the_weeks_of_a_grain():
    assert {grain: grain.first_weekday for grain in Grain} == FIRST_WEEKDAYS


def test_a_grain_has_a_job_of_its_own():
    assert [grain.job_name for grain in Grain] == [
        *("daily", "weekly", "weekly_tuesday", "weekly_wednesday", "weekly_thursday"),
        *("weekly_friday", "weekly_saturday", "weekly_sunday", "monthly"),
    ]
    assert [Grain.of_job(grain.job_name) for grain in Grain] == [*Grain]
    assert Grain.of_job("optimize") is None


@given(GRAINS, DATES)
def test_a_day_lies_in_the_last_partition_that_begins_up_to_it(grain, of):
    first = partitions_between(grain, of - 31 * DAY, of)[-1]
    after = partitions_between(grain, of + DAY, of + 31 * DAY)[0]
    assert grain.first_day(of) == first
    assert grain.days_of(first) == Window(first, after)


@given(GRAINS, DATES, st.integers(0, 4))
def test_partitions_before_and_after_are_those_next_to_it(grain, of, count):
    partitions = partitions_between(grain, of - 200 * DAY, of + 200 * DAY)
    n = len(partitions) // 2
    before = partitions[n - count : n]
    assert grain.partitions_before(partitions[n], count) == before[::-1]
    assert grain.partitions_after(partitions[n], count) == partitions[n + 1 : n + 1 + count]


@given(GRAINS, DATES, st.integers(0, 90))
def test_a_partition_is_whole_in_a_window_that_has_all_of_its_days(grain, start, length):
    window = Window(start, start + length * DAY)
    begun = partitions_between(grain, start, window.end)
    whole = [first for first, after in pairwise(begun) if after <= window.end]
    assert [*grain.whole_partitions(window)] == whole
    if not whole:
        assert grain.whole_partitions(window) == Window(start, start)


@given(GRAINS, st.sets(DATES, min_size=1, max_size=9))
def test_partitions_of_days_are_in_ascending_order(grain, days):
    partitions = grain.partitions_of(days)
    assert partitions == sorted({grain.first_day(d) for d in days})


@given(grain=GRAINS, start=DATES, length=st.integers(0, 90), ahead=st.integers(-10, 90))
def test_the_policy_and_dagster_know_the_same_partitions(grain, start, length, ahead) -> None:
    settings = load_settings(start=start, end=start + (length + 1) * DAY)
    policy = replace(Policy.from_settings(settings), grain=grain)
    definition = grain.partitions_def(settings)
    keys = [*map(str, policy.partitions_until(settings.end))]
    # Of a calendar that ends before its first partition, Dagster names that one nevertheless.
    first_key = str(grain.days_of(grain.first_day(start - DAY)).end)
    assert definition.get_partition_keys() == (keys or [first_key])
    assert Grain.from_partitions_def(definition) is grain
    daily = Policy.from_settings(settings).loadable_days(start + ahead * DAY)
    for first in policy.loadable_days(start + ahead * DAY):
        assert {*grain.days_of(first)} <= {*daily}


@given(GRAINS, DATES, st.sets(st.integers(0, 15), min_size=1))
def test_partitions_without_one_between_are_one_range(grain, of, numbers):
    partitions = partitions_between(grain, of, of + 600 * DAY)[:16]
    chosen = [partitions[n] for n in sorted(numbers)]
    ranges = grain.gapless_ranges(reversed(chosen))
    assert [d for d in partitions if any(d in part for part in ranges)] == chosen
    assert len(ranges) == len(to_windows(START + n * DAY for n in numbers))
    assert {part.start for part in ranges} | {part.end - DAY for part in ranges} <= {*chosen}
    window = grain.run_window(chosen)
    assert (window.start, window.end) == (chosen[0], chosen[-1] + DAY)
    assert window == (
        ranges[0] if len(ranges) == 1 else DaySet(window.start, window.end, tuple(ranges))
    )


@pytest.mark.parametrize("grain", list(Grain))
def test_a_run_is_cut_at_the_most_partitions_or_at_the_most_ranges_of_a_tag(grain):
    partitions = partitions_between(grain, date(2000, 1, 1), date(2040, 1, 1))
    apart, together = partitions[0:200:2], partitions[199:259]
    runs = grain.split_into_runs([*together, *apart, *apart], 90)
    # The first ends with its 80th range; the second, of 20 ranges, with its 90th partition.
    assert runs == [
        grain.run_window(apart[:80]),
        grain.run_window([*apart[80:], *together[:70]]),
    ]
    one_range = grain.split_into_runs(partitions[:200], 90)
    assert [[*grain.gapless_ranges(run)] for run in one_range] == [[run] for run in one_range]
    assert [(run.start, run.end - DAY) for run in one_range] == [
        (partitions[0], partitions[89]),
        (partitions[90], partitions[179]),
        (partitions[180], partitions[199]),
    ]


@pytest.mark.parametrize("end", [None, parse_day("2024-06-01")])
def test_dagster_is_told_the_calendar_its_zone_and_the_weekday(end):
    settings = load_settings(start=parse_day("2024-02-28"), end=end, timezone="Europe/Berlin")
    calendar = {
        "start_date": "2024-02-28",
        "end_date": "2024-06-01" if end else None,
        "timezone": "Europe/Berlin",
    }
    assert {grain: grain.partitions_def(settings) for grain in Grain} == {
        Grain.DAILY: dg.DailyPartitionsDefinition(**calendar),
        Grain.MONTHLY: dg.MonthlyPartitionsDefinition(**calendar),
        # Dagster counts from Sunday.
        **{
            grain: dg.WeeklyPartitionsDefinition(**calendar, day_offset=offset)
            for offset, grain in enumerate(
                [
                    *(Grain.WEEKLY_SUNDAY, Grain.WEEKLY, Grain.WEEKLY_TUESDAY),
                    *(Grain.WEEKLY_WEDNESDAY, Grain.WEEKLY_THURSDAY, Grain.WEEKLY_FRIDAY),
                    Grain.WEEKLY_SATURDAY,
                ]
            )
        },
    }
