"""Which days of an input decide a day, which days a change of it touches, and what follows."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timezone

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, DaySet, Window, to_ranges
from backfill_assets.calendar.reach import (
    PREVIOUS_DAY,
    SAME_DAY,
    Reach,
    RecordedReach,
    following_days,
    last_days,
    next_days,
)
from backfill_assets.delta.ledgers import due_days
from backfill_assets.orders.tables import RAW, STAGED, TABLES
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Dependency
from backfill_assets_tests.helpers.invented_logs import days, ledger, record
from backfill_assets_tests.helpers.pipeline import START, day

POLICY = Policy(START, None, window_days=2, lag_days=1, corrects=True, only_touched=True)
GRAPH = Graph.from_tables(TABLES.values(), POLICY)
RAW_LEDGER = ledger(RAW)
#: Those that end before the day itself included.
reaches = st.integers(0, 9).flatmap(
    lambda before: st.builds(Reach, st.just(before), st.integers(-before, 9), st.booleans())
)
some_days = st.sets(st.integers(1, 12).map(day), min_size=1).map(frozenset)


def one_day(day_: date) -> Window:
    return Window(day_, day_ + DAY)


# --- reaches --------------------------------------------------------------------------------------


@given(reaches, some_days, some_days)
def test_what_is_touched_is_the_inverse_of_what_is_read(reach, of_table, of_input):
    pairs = {
        (d, input_day)
        for d in of_table
        for input_day in of_input
        if input_day in reach.input_days(one_day(d))
    }
    assert pairs == {
        (d, input_day)
        for d in of_table
        for input_day in of_input
        if d in reach.affected_days(one_day(input_day))
    }
    deciding = reach.deciding_days(RAW_LEDGER)
    assert pairs == {
        (d, input_day) for d in of_table for input_day in of_input if input_day in deciding(d)
    }
    changed = set(reach.changed_days(of_input, RAW_LEDGER))
    assert {d for d, _ in pairs} == of_table & changed
    # And of several days at once, gaps between them included.
    assert {*reach.input_days(DaySet.from_days(of_table))} == {
        input_day for d in of_table for input_day in deciding(d)
    }


def test_nothing_is_touched_by_nothing():
    assert not {*last_days(7).changed_days((), RAW_LEDGER)}
    assert not {*RecordedReach().changed_days((), RAW_LEDGER)}


@pytest.mark.parametrize(
    ("reach", "read"),
    [
        (SAME_DAY, (5, 5)),
        (next_days(0), (5, 5)),
        (next_days(2), (5, 7)),
        (following_days(2), (5, 7)),
        (last_days(3), (3, 5)),
        (PREVIOUS_DAY, (4, 4)),
    ],
)
def test_reaches_by_name(reach, read):
    first, last = read
    assert reach.input_days(one_day(day(5))) == Window(day(first), day(last) + DAY)


@given(reaches, st.integers(1, 12))
def test_a_day_needs_its_own_day_or_the_last_before_it(reach, n):
    read = {*reach.input_days(one_day(day(n)))}
    assert reach.required_days(day(n)) == [max(d for d in read if d <= day(n))]
    assert RecordedReach().required_days(day(n)) == [day(n)]


@pytest.mark.parametrize(("before", "after"), [(0, -1), (2, -3), (-1, 1)])
def test_a_reach_that_has_no_day_or_begins_after_the_day_is_none(before, after):
    with pytest.raises(ValueError, match="begins after the day, or ends before it begins"):
        Reach(before, after)


@given(reaches.filter(lambda reach: reach != SAME_DAY), st.integers(1, 12))
def test_the_mapping_is_the_reach_within_the_calendar(reach, n):
    daily = dg.DailyPartitionsDefinition(str(START), end_date=str(day(13)))
    subset = daily.subset_with_partition_keys([str(day(n))])
    with dg.partition_loading_context(effective_dt=datetime(2030, 1, 1, tzinfo=timezone.utc)):
        mapping = reach.partition_mapping
        up = mapping.get_upstream_mapped_partitions_result_for_partitions(subset, daily, daily)
        down = mapping.get_downstream_partitions_for_partitions(subset, daily, daily)
        read, touched = (
            {date.fromisoformat(key) for key in mapped.get_partition_keys()}
            for mapped in (up.partitions_subset, down)
        )
    calendar = {*Window(START, day(13))}
    assert read == calendar & {*reach.input_days(one_day(day(n)))}
    assert touched == calendar & {*reach.affected_days(one_day(day(n)))}


@given(
    st.dictionaries(
        st.integers(1, 8),
        st.none() | st.sets(st.integers(1, 8)),
        min_size=1,
    )
)
def test_what_is_known_is_touched_by_the_days_that_tell_of_it(spans):
    """Also by those of which nobody recorded what they tell of."""
    log = ledger(
        RAW,
        *(
            record(n, days(number))
            if event_numbers is None
            else record(n, days(number), spans={str(day(number)): to_ranges(days(*event_numbers))})
            for n, (number, event_numbers) in enumerate(sorted(spans.items()))
        ),
    )
    reach = RecordedReach()
    deciding = reach.deciding_days(log)
    for number, event_numbers in spans.items():
        tells = {d for d in log.published_days if day(number) in deciding(d)}
        assert tells <= {*reach.changed_days({day(number)}, log)}
        earlier = {d for d in log.published_days if d <= day(number)}
        assert tells == (
            earlier
            if event_numbers is None
            else earlier & ({*days(*event_numbers)} | {day(number)})
        )


# --- the graph ------------------------------------------------------------------------------------


def test_upstream_is_all_that_a_table_is_made_of():
    assert GRAPH.upstream_tables("raw_orders") == set()
    assert GRAPH.upstream_tables("late_orders") == {"raw_orders"}
    assert GRAPH.upstream_tables("fact_order_corrections") == {
        "raw_orders",
        "stg_orders",
        "fact_daily_orders",
        "fact_daily_orders_current",
    }


def test_what_is_made_with_the_load_and_what_stays_open():
    assert GRAPH.landed_tables == ("raw_orders", "raw_orders_rejected")
    assert GRAPH.by_log_day == ("late_orders", "arrival_lateness")
    assert GRAPH.closing_tables == ("stg_orders", "fact_daily_orders")
    assert GRAPH.by_event_day == (
        "stg_orders",
        "fact_daily_orders",
        "fact_daily_orders_current",
        "fact_order_corrections",
    )


def test_the_days_that_a_commit_records_come_before_all_that_it_may_change():
    dependency = Dependency(RAW, next_days(2), recorded="event_days")
    explicit = record(0, days(5), event_days=days(4))
    silent = record(1, days(6), digest="d")
    same = record(2, days(6), digest="d")
    log = ledger(RAW, explicit, silent, same)
    days_due = due_days(dependency, log)
    assert {*days_due(explicit)} == days(4)
    assert {*days_due(silent)} == days(4, 5, 6)
    assert not {*days_due(same)}, "it changed nothing"


def test_reprocess_window_asks_for_all_that_may_change():
    explicit = record(0, days(5), event_days=days(4))
    (dependency,) = STAGED.inputs(replace(POLICY, only_touched=False))
    assert {*due_days(dependency, ledger(RAW, explicit))(explicit)} == days(3, 4, 5)
