"""The late-data policy: as rules over dates, and as Dagster resolves it."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timezone

import dagster as dg
import pytest
from dagster._core.definitions.partitions.subset import TimeWindowPartitionsSubset
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.calendar.late_data import (
    ArrivalDays,
    Policy,
    combine_policies,
    lines_within,
    total_within,
)
from backfill_assets.calendar.partitions import DAY, Grain, Window
from backfill_assets.calendar.reach import next_days
from backfill_assets.settings import load_settings


def parse_day(text: str) -> date:
    return date.fromisoformat(text)


def parse_window(text: str) -> Window:
    """`2024-01-01...2024-01-03`, or an empty window at the start of the calendar for nothing."""
    return Window.parse(text) if text else Window(START, START)


START = parse_day("2024-01-01")
POLICY = Policy(START, None, window_days=7, lag_days=1, corrects=True, only_touched=True)


# --- the policy as a value ------------------------------------------------------------------------


def test_policy_of_the_defaults():
    assert Policy.from_settings(load_settings()) == POLICY


@pytest.mark.parametrize(
    ("setting", "value", "attribute", "expected"),
    [
        ("start", parse_day("2023-05-05"), "start", parse_day("2023-05-05")),
        ("end", parse_day("2024-02-01"), "end", parse_day("2024-02-01")),
        ("window_days", 0, "window_days", 0),
        ("lag_days", 3, "lag_days", 3),
        ("late_lines", "drop", "corrects", False),
        ("reprocess", "window", "only_touched", False),
        ("absent_days", 5, "absent_days", 5),
    ],
)
def test_each_setting_decides_one_attribute(setting, value, attribute, expected):
    assert Policy.from_settings(load_settings(**{setting: value})) == replace(
        POLICY, **{attribute: expected}
    )


# --- which days are due, which can be loaded ------------------------------------------------------


@pytest.mark.parametrize(
    ("lag", "end", "today", "logged", "due"),
    [
        # The start of the calendar.
        (1, None, "2023-06-01", "", ""),
        (1, None, "2024-01-01", "", ""),
        (1, None, "2024-01-02", "2024-01-01", "2024-01-01"),
        (1, None, "2024-01-03", "2024-01-01...2024-01-02", "2024-01-01...2024-01-02"),
        (3, None, "2024-01-01", "", ""),
        (3, None, "2024-01-03", "2024-01-01...2024-01-02", ""),
        (3, None, "2024-01-04", "2024-01-01...2024-01-03", "2024-01-01"),
        # Ends of months and years.
        (1, None, "2024-03-01", "2024-01-01...2024-02-29", "2024-01-01...2024-02-29"),
        (3, None, "2024-03-01", "2024-01-01...2024-02-29", "2024-01-01...2024-02-27"),
        (1, None, "2025-03-01", "2024-01-01...2025-02-28", "2024-01-01...2025-02-28"),
        (3, None, "2025-01-01", "2024-01-01...2024-12-31", "2024-01-01...2024-12-29"),
        # The end of the calendar, which is exclusive.
        (1, "2024-02-01", "2024-01-31", "2024-01-01...2024-01-30", "2024-01-01...2024-01-30"),
        (1, "2024-02-01", "2024-02-01", "2024-01-01...2024-01-31", "2024-01-01...2024-01-31"),
        (1, "2024-02-01", "2024-02-02", "2024-01-01...2024-01-31", "2024-01-01...2024-01-31"),
        (3, "2024-02-01", "2024-02-02", "2024-01-01...2024-01-31", "2024-01-01...2024-01-30"),
        (3, "2024-02-01", "2024-02-03", "2024-01-01...2024-01-31", "2024-01-01...2024-01-31"),
        (3, "2024-02-01", "2034-02-03", "2024-01-01...2024-01-31", "2024-01-01...2024-01-31"),
        (9, "2024-01-02", "2024-01-09", "2024-01-01", ""),
        (9, "2024-01-02", "2024-01-10", "2024-01-01", "2024-01-01"),
    ],
)
def test_logged_and_due(lag, end, today, logged, due):
    policy = replace(POLICY, lag_days=lag, end=end and parse_day(end))
    assert policy.loadable_days(parse_day(today)) == parse_window(logged)
    assert policy.expected_days(parse_day(today)) == parse_window(due)


@given(st.dates(parse_day("2023-12-01"), parse_day("2025-12-31")), st.integers(1, 40))
def test_a_day_is_due_from_the_day_that_the_lag_says(day, lag):
    policy = replace(POLICY, lag_days=lag)
    first = day + lag * DAY
    assert day not in policy.expected_days(first - DAY)
    assert (day in policy.expected_days(first)) is (day >= START)


@pytest.mark.parametrize(
    ("last", "due"),
    [
        ("2024-01-20", "2024-01-01...2024-01-09"),
        ("2024-01-09", "2024-01-01...2024-01-09"),
        ("2024-01-08", "2024-01-01...2024-01-08"),
        ("2024-01-01", "2024-01-01"),
        ("2023-12-31", ""),
    ],
)
def test_no_day_is_due_after_a_last_one(last, due):
    assert POLICY.expected_days(parse_day("2024-01-10"), parse_day(last)) == parse_window(due)


def test_a_week_is_due_when_its_last_day_is():
    weekly = replace(POLICY, grain=Grain.WEEKLY, lag_days=2)
    assert weekly.loadable_days(parse_day("2024-01-14")) == parse_window("2024-01-01")
    assert weekly.loadable_days(parse_day("2024-01-15")).end == parse_day("2024-01-09")
    assert [*weekly.expected_days(parse_day("2024-01-15"))] == [START]
    assert [*weekly.expected_days(parse_day("2024-01-16"))] == [START, START + 7 * DAY]


# --- several sources ------------------------------------------------------------------------------


def test_a_table_of_several_sources_waits_for_the_slowest_and_corrects_if_all_do():
    visits = Policy(
        parse_day("2024-03-01"),
        parse_day("2024-06-01"),
        window_days=3,
        lag_days=2,
        corrects=True,
        only_touched=False,
        absent_days=5,
        arrives_after=1,
        grain=Grain.WEEKLY,
    )
    orders = replace(
        POLICY, start=parse_day("2024-02-01"), window_days=30, arrives_after=4, absent_days=9
    )
    assert combine_policies([visits, orders]) == replace(
        visits, start=parse_day("2024-03-01"), window_days=30, arrives_after=4
    )
    assert combine_policies([orders, visits]) == replace(
        orders, start=parse_day("2024-03-01"), window_days=30, arrives_after=4
    )
    counted = replace(orders, corrects=False)
    assert not combine_policies([visits, counted]).corrects
    assert combine_policies([visits]) == visits


# --- what a window covers -------------------------------------------------------------------------


@given(st.dictionaries(st.integers(-3, 20), st.integers(0, 99)), st.integers(0, 14))
def test_a_window_covers_what_came_up_to_so_many_days_late(by_delay, window_days):
    row = {"delays": [*by_delay], "lines_by_delay": [*by_delay.values()], "lines": 999}
    covered = sum(by_delay.get(delay, 0) for delay in range(-3, window_days + 1))
    assert total_within(by_delay, window_days) == covered
    assert lines_within(row, window_days) == covered


def test_a_row_without_a_delay_for_each_number_is_refused():
    row = {"delays": [0, 1], "lines_by_delay": [5]}
    with pytest.raises(ValueError, match="is shorter than argument 1"):
        lines_within(row, 7)


# --- what touches what ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log_day", "window_days", "touched"),
    [
        ("2024-01-10", 0, "2024-01-10"),
        ("2024-01-10", 1, "2024-01-09...2024-01-10"),
        ("2024-01-10", 7, "2024-01-03...2024-01-10"),
        ("2024-03-03", 7, "2024-02-25...2024-03-03"),  # a leap year
        ("2023-03-04", 7, "2023-02-25...2023-03-04"),
        ("2024-12-31", 366, "2023-12-31...2024-12-31"),
        # Not cut at the start: what is in the calendar is asked elsewhere.
        ("2024-01-01", 2, "2023-12-30...2024-01-01"),
    ],
)
def test_may_touch(log_day, window_days, touched):
    assert replace(POLICY, window_days=window_days).affected_event_days(
        parse_day(log_day)
    ) == parse_window(touched)


@pytest.mark.parametrize(
    ("event_days", "window_days", "read"),
    [
        ("2024-01-10", 0, "2024-01-10"),
        ("2024-01-10", 1, "2024-01-10...2024-01-11"),
        ("2024-01-10", 7, "2024-01-10...2024-01-17"),
        ("2024-01-10...2024-01-19", 7, "2024-01-10...2024-01-26"),
        ("2024-01-10...2024-01-19", 0, "2024-01-10...2024-01-19"),
        ("2024-02-25", 7, "2024-02-25...2024-03-03"),  # a leap year
        ("2023-02-25", 7, "2023-02-25...2023-03-04"),
        ("2023-12-31", 366, "2023-12-31...2024-12-31"),
    ],
)
def test_log_days(event_days, window_days, read):
    assert next_days(window_days).input_days(parse_window(event_days)) == parse_window(read)


@given(
    st.dates(parse_day("2023-12-01"), parse_day("2024-03-31")),
    st.integers(-10, 20),
    st.integers(0, 9),
)
def test_a_day_reads_the_log_days_that_may_touch_it(event_day, delay, window_days):
    log_day = event_day + delay * DAY
    policy = replace(POLICY, window_days=window_days)
    reads = log_day in policy.log_days(event_day)
    assert reads is (event_day in policy.affected_event_days(log_day))
    assert reads is (0 <= delay <= window_days)


# --- as Dagster resolves it -----------------------------------------------------------------------

DAILY = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
#: In the middle of the last day but one: 2024-01-30 is not over yet.
NOW = datetime(2024, 1, 30, 12, tzinfo=timezone.utc)


def map_upstream(keys: list[str], window_days: int, partitions=DAILY):
    subset = partitions.subset_with_partition_keys(keys)
    with dg.partition_loading_context(effective_dt=NOW):
        return next_days(
            window_days
        ).partition_mapping.get_upstream_mapped_partitions_result_for_partitions(
            subset, partitions, partitions
        )


def list_keys(first: str, last: str) -> list[str]:
    return [str(day) for day in parse_window(f"{first}...{last}")]


@pytest.mark.parametrize(
    ("keys", "window_days", "log_days_read"),
    [
        (["2024-01-10"], 0, ["2024-01-10"]),
        (["2024-01-10"], 2, list_keys("2024-01-10", "2024-01-12")),
        (["2024-01-10"], 7, list_keys("2024-01-10", "2024-01-17")),
        # The first day of all reads nothing before it.
        (["2024-01-01"], 7, list_keys("2024-01-01", "2024-01-08")),
        (list_keys("2024-01-01", "2024-01-05"), 2, list_keys("2024-01-01", "2024-01-07")),
        # The last days have log days that do not exist yet: open, not broken.
        (["2024-01-29"], 7, ["2024-01-29"]),
        (list_keys("2024-01-26", "2024-01-29"), 7, list_keys("2024-01-26", "2024-01-29")),
        (["2024-01-25"], 7, list_keys("2024-01-25", "2024-01-29")),
        # Gaps stay gaps where the windows do not meet.
        (["2024-01-02", "2024-01-10"], 1, ["2024-01-02", "2024-01-03", "2024-01-10", "2024-01-11"]),
    ],
)
def test_mapping_as_dagster_resolves_it(keys, window_days, log_days_read):
    mapped = map_upstream(keys, window_days)
    assert isinstance(mapped.partitions_subset, TimeWindowPartitionsSubset)
    with dg.partition_loading_context(effective_dt=NOW):
        assert sorted(mapped.partitions_subset.get_partition_keys()) == log_days_read
    # With an invalid upstream partition Dagster would refuse the run.
    assert not mapped.required_but_nonexistent_subset.get_partition_keys()


@pytest.mark.parametrize("window_days", [0, 1, 7])
def test_mapping_is_the_rule_within_the_calendar(window_days):
    for event_day in Window(parse_day("2024-01-01"), parse_day("2024-01-30")):
        mapped = map_upstream([str(event_day)], window_days).partitions_subset
        ruled = next_days(window_days).input_days(Window(event_day, event_day + DAY))
        with dg.partition_loading_context(effective_dt=NOW):
            read = [parse_day(key) for key in sorted(mapped.get_partition_keys())]
        assert read == [day for day in ruled if day < parse_day("2024-01-30")]


def test_mapping_downstream_has_no_day_before():
    """A root backfilled in the UI drags in what reads it: that must not be days before START."""
    mapping = next_days(7).partition_mapping
    with dg.partition_loading_context(effective_dt=NOW):
        mapped = mapping.get_downstream_partitions_for_partitions(
            DAILY.subset_with_partition_keys(["2024-01-03"]), DAILY, DAILY
        )
        assert sorted(mapped.get_partition_keys()) == list_keys("2024-01-01", "2024-01-03")


def test_mapping_crosses_a_change_of_the_clock():
    berlin = dg.DailyPartitionsDefinition(
        "2024-01-01", end_date="2024-06-01", timezone="Europe/Berlin"
    )
    subset = berlin.subset_with_partition_keys(["2024-03-29"])
    mapped = next_days(7).partition_mapping.get_upstream_mapped_partitions_result_for_partitions(
        subset, berlin, berlin
    )
    keys = sorted(mapped.partitions_subset.get_partition_keys())
    assert keys == list_keys("2024-03-29", "2024-04-05")  # summer time begins on the 31st


# --- arrival days ---------------------------------------------------------------------------------

#: Monday to Sunday.
A_WEEK = Window(START, START + 7 * DAY)


@pytest.mark.parametrize(
    ("arrives_on", "expected"),
    [
        (None, "0123456"),
        ("mon-sat", "012345"),
        ("Mon - Fri", "01234"),
        ("sat-sun", "56"),
        ("sat-mon", "056"),
        ("mon, thu", "03"),
        ("wednesday", "2"),
        (["mon", "thu"], "03"),
        ({"sun"}, "6"),
        ({START, START + 2 * DAY}, "02"),
        ([START], "0"),
        (lambda day: day.day % 2 == 0, "135"),
    ],
)
def test_the_days_on_which_folders_are_expected(arrives_on, expected):
    days = ArrivalDays.parse(arrives_on)
    assert "".join(str(day.weekday()) for day in A_WEEK if day in days) == expected


@pytest.mark.parametrize(
    "arrives_on",
    [
        "",
        "mon-xyz",
        "mo-fr",
        [],
        ["mon", START],
        [1],
        5,
        lambda day: day.day,
        [datetime(2024, 1, 1, tzinfo=timezone.utc)],
    ],
)
def test_what_names_no_days(arrives_on):
    with pytest.raises((ValueError, TypeError)):
        ArrivalDays.parse(arrives_on)


@pytest.mark.parametrize(
    ("arrives_after", "arrives_on", "arrivals"),
    [
        (0, None, (0, 1, 2, 3, 4, 5, 6)),
        (2, None, (2, 3, 4, 5, 6, 7, 8)),
        # Nothing is expected on Sunday: there is nothing.
        (0, "mon-sat", (0, 1, 2, 3, 4, 5, 6)),
        # The lines of Friday to Sunday come on Monday.
        (1, "mon-fri", (1, 2, 3, 4, 7, 7, 7)),
        (3, "sun", (6, 6, 6, 6, 13, 13, 13)),
        # The days that a module gives may end: then lines are not waited for any longer.
        (1, {START}, (1, 2, 3, 4, 5, 6, 7)),
    ],
)
def test_lines_wait_for_the_next_arrival_day(arrives_after, arrives_on, arrivals):
    policy = replace(
        POLICY, arrives_after=arrives_after, arrival_days=ArrivalDays.parse(arrives_on)
    )
    assert tuple((policy.arrival_of(day) - START).days for day in A_WEEK) == arrivals


def test_of_several_sources_a_day_counts_on_which_all_deliver():
    policies = [replace(POLICY, arrival_days=ArrivalDays.parse(t)) for t in ("mon-fri", "fri-sun")]
    days = combine_policies(policies).arrival_days
    assert [day.weekday() for day in A_WEEK if day in days] == [4]
