"""Reaches by name: which days decide a day, a week or a month, and what Dagster is told of them.

What holds of all reaches over days is in `test_graph.py`.
"""

from __future__ import annotations

import calendar
import re
import warnings
from dataclasses import replace
from datetime import date

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.calendar.partitions import DAY, DaySet, Grain, Window, to_ranges
from backfill_assets.calendar.reach import (
    MONTH,
    PREVIOUS_DAY,
    SAME_DAY,
    WEEK,
    GrainReach,
    PartitionsReach,
    Reach,
    RecordedReach,
    days_between,
    following_days,
    last_days,
    next_days,
    previous_partitions,
    week_starting,
)
from backfill_assets.delta.records import ExternalCommit
from backfill_assets.orders.tables import RAW
from backfill_assets.staleness.snapshot import HypotheticalLedger
from backfill_assets_tests.helpers.invented_logs import days, ledger, make_measured, record
from backfill_assets_tests.helpers.pipeline import day

LOG = ledger(RAW)
DATES = st.dates(date(2019, 1, 1), date(2026, 1, 1))
#: Of tables by week or month.
GRAINS = [grain for grain in Grain if grain is not Grain.DAILY]
FEBRUARY = date(2024, 2, 1)


def one_day(first: date) -> Window:
    return Window(first, first + DAY)


# --- days -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declare", "arguments", "before", "after", "stays_open"),
    [
        (last_days, (1,), 0, 0, False),
        (last_days, (7,), 6, 0, False),
        (following_days, (0,), 0, 0, False),
        (following_days, (30,), 0, 30, False),
        (next_days, (0,), 0, 0, True),
        (next_days, (7,), 0, 7, True),
        (days_between, (0, 0), 0, 0, False),
        (days_between, (-7, 30), 7, 30, False),
        (days_between, (-3, -2), 3, -2, False),
        (days_between, (-2, -2), 2, -2, False),
    ],
)
def test_a_name_says_how_many_days_before_and_after_and_whether_late_lines_change_them(
    declare, arguments, before, after, stays_open
):
    assert declare(*arguments) == Reach(before=before, after=after, stays_open=stays_open)


def test_the_same_day_and_the_day_before_are_closed_with_their_day():
    assert Reach(before=0, after=0, stays_open=False) == SAME_DAY
    assert Reach(before=1, after=-1, stays_open=False) == PREVIOUS_DAY


@pytest.mark.parametrize("reach", [SAME_DAY, last_days(3), days_between(-2, 1), PREVIOUS_DAY])
def test_a_day_is_decided_by_its_days_in_ascending_order(reach):
    read = [day(10) + n * DAY for n in range(-reach.before, reach.after + 1)]
    assert [*reach.deciding_days(LOG)(day(10))] == read == [*reach.input_days(one_day(day(10)))]


@pytest.mark.parametrize(
    ("declare", "arguments", "message"),
    [
        (
            Reach,
            (0, -1),
            "Reach(before=0, after=-1, stays_open=False) begins after the day, or ends before it "
            "begins",
        ),
        (last_days, (0,), "last_days(0): give a whole number of 1 or more"),
        (last_days, ("7",), "last_days('7'): give a whole number of 1 or more"),
        (last_days, (True,), "last_days(True): give a whole number of 1 or more"),
        (following_days, (-1,), "following_days(-1): give a whole number of 0 or more"),
        (following_days, (1.0,), "following_days(1.0): give a whole number of 0 or more"),
        (
            previous_partitions,
            (0, MONTH),
            "previous_partitions(0): give a whole number of 1 or more",
        ),
        (
            previous_partitions,
            ("2", WEEK),
            "previous_partitions('2'): give a whole number of 1 or more",
        ),
        (
            previous_partitions,
            (2, last_days(3)),
            "previous_partitions(2, Reach(before=2, after=0, stays_open=False)): give "
            "WEEK, week_starting(...) or MONTH",
        ),
        *(
            (
                days_between,
                (first, last),
                f"days_between({first!r}, {last!r}): give the first day, 0 or less, and the last, "
                "not less",
            )
            for first, last in [(1, 1), (1, 2), (-1, -2), (0, "2"), ("0", 2), (True, 1), (-1, None)]
        ),
    ],
)
def test_a_reach_that_cannot_be_is_refused_where_it_is_declared(declare, arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        declare(*arguments)


@pytest.mark.parametrize(
    "name", ["", "Sunday", "sun", 7, "daily", "weekly", "monthly", "weekly_sunday"]
)
def test_what_is_no_weekday_is_refused(name):
    message = f"week_starting({name!r}): give a weekday, such as 'sunday'"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        week_starting(name)


@pytest.mark.parametrize(
    ("reach", "offsets"),
    [(last_days(7), (-6, 0)), (next_days(7), (0, 7)), (days_between(-2, 5), (-2, 5))],
)
def test_dagster_is_told_the_days_without_a_warning_and_that_some_are_still_to_come(reach, offsets):
    start_offset, end_offset = offsets
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mapping = reach.partition_mapping
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        assert mapping == dg.TimeWindowPartitionMapping(
            start_offset=start_offset,
            end_offset=end_offset,
            allow_nonexistent_upstream_partitions=True,
        )


def test_dagster_maps_the_same_day_and_the_days_of_a_partition_by_itself():
    for reach in (SAME_DAY, WEEK, MONTH, week_starting("sunday")):
        assert reach.partition_mapping is None


def test_any_input_day_may_decide_what_is_known_of_a_day_and_late_lines_change_it():
    reach = RecordedReach()
    assert reach.partition_mapping == dg.AllPartitionMapping()
    assert (reach.stays_open, reach.varies_by_day) == (True, True)
    assert (SAME_DAY.varies_by_day, MONTH.varies_by_day) == (False, False)


def test_days_of_which_no_commit_tells_may_decide_all_days_before_them():
    told = ledger(
        RAW,
        *(record(n, days(n), spans={str(day(n)): []}) for n in (2, 4, 6)),
        record(7, days(8)),
        external=[ExternalCommit(8, "MERGE", days(4))],
    )
    deciding = RecordedReach().deciding_days(told)
    assert [deciding(day(n)) for n in (1, 4, 5, 9)] == [
        [day(1), day(4), day(8)],
        [day(4), day(8)],
        [day(5), day(8)],
        [day(9)],
    ]
    # Rows of a day that has no commit; and a log that was cut after the commits of two days.
    without_commit = replace(told, measured=make_measured({day(5): 1}), external_commits=())
    assert RecordedReach().deciding_days(without_commit)(day(3)) == [day(3), day(5), day(8)]
    cut = replace(told, missing_versions=(5,), external_commits=())
    assert RecordedReach().deciding_days(cut)(day(1)) == [day(1), day(2), day(4), day(8)]


def test_days_that_have_not_been_published_decide_nothing_but_themselves():
    told = ledger(RAW, record(0, days(3), spans={str(day(5)): to_ranges(days(3))}))
    assert RecordedReach().deciding_days(told)(day(3)) == [day(3)]
    may_change = HypotheticalLedger.from_ledger(told, days(6))
    assert RecordedReach().deciding_days(may_change)(day(3)) == [day(3), day(6)]


def test_a_change_of_no_day_changes_nothing_that_is_known():
    told = ledger(RAW, record(0, days((1, 9))))
    assert RecordedReach().changed_days((), told) == set()
    assert RecordedReach().changed_days(days(2, 4), told) == days((1, 4))


# --- weeks and months -----------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "name"), [*enumerate(calendar.day_name)])
def test_a_week_begins_on_the_weekday_that_is_named(number, name):
    reach = week_starting(name.lower())
    assert isinstance(reach, GrainReach)
    assert reach.grain.first_weekday == number
    first, *_ = week_days = reach.required_days(reach.grain.first_day(day(10)))
    assert (first.weekday(), len(week_days)) == (number, 7)


def test_the_week_begins_on_monday():
    assert week_starting("monday") == WEEK == GrainReach()


@given(grain=st.sampled_from(list(Grain)), some_days=st.sets(DATES, min_size=1, max_size=9))
def test_a_day_counts_for_one_partition_and_the_partition_needs_all_of_its_days(grain, some_days):
    reach = GrainReach(grain=grain)
    partitions = grain.partitions_of(some_days)
    assert [*reach.affected_days(DaySet.from_days(some_days))] == partitions
    assert reach.changed_days(some_days, LOG) == partitions
    read = [d for first in partitions for d in grain.days_of(first)]
    assert [*reach.input_days(DaySet.from_days(partitions))] == read
    assert [d for first in partitions for d in reach.required_days(first)] == read
    for first in partitions:
        assert [*reach.deciding_days(LOG)(first)] == [*grain.days_of(first)]


def test_no_week_needs_no_days():
    nothing = Window(day(1), day(1))
    assert WEEK.input_days(nothing) == nothing


@pytest.mark.parametrize("grain", GRAINS)
@pytest.mark.parametrize("count", [1, 3])
def test_partitions_before_decide_and_those_after_follow(grain, count):
    reach = previous_partitions(count, GrainReach(grain=grain))
    assert reach == PartitionsReach(before=count, grain=grain)
    partitions = grain.partitions_of(Window(date(2023, 6, 1), date(2024, 9, 1)))
    for n in (5, 8):
        first = partitions[n]
        assert [*reach.input_days(one_day(first))] == partitions[n - count : n + 1]
        assert [*reach.deciding_days(LOG)(first)] == partitions[n - count : n + 1]
        assert [*reach.affected_days(one_day(first))] == partitions[n : n + count + 1]
        assert reach.changed_days({first}, LOG) == partitions[n : n + count + 1]
        assert reach.required_days(first) == partitions[n - count : n + 1]
    apart = DaySet.from_days([partitions[4], partitions[9]])
    with_neighbours = {*partitions[4 - count : 5], *partitions[9 - count : 10]}
    assert {*reach.input_days(apart)} == with_neighbours


def test_a_table_by_month_is_decided_by_itself_and_the_months_before():
    three = [date(2023, 12, 1), date(2024, 1, 1), FEBRUARY]
    assert [*previous_partitions(2, MONTH).input_days(one_day(FEBRUARY))] == three
    assert [*previous_partitions(2, MONTH).affected_days(one_day(three[0]))] == three
    assert PartitionsReach(before=2) == previous_partitions(2, WEEK)


def test_nothing_follows_from_no_partition():
    assert previous_partitions(2, MONTH).changed_days(frozenset(), LOG) == []


def test_of_days_that_changed_those_around_them_may_change():
    changed = {*days_between(-1, 2).changed_days(days(10, 20), LOG)}
    assert changed == days((8, 11), (18, 21))
    assert SAME_DAY.changed_days(days(10, 20), LOG) == days(10, 20)
