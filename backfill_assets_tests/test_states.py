"""The state of every day, and final days that changed: over ledgers made by hand."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import date
from itertools import combinations
from typing import Any

import msgspec
import pytest

from backfill_assets.calendar.partitions import DAY
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitRecord, ExternalCommit
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.states import (
    STATE_MEANINGS,
    DayState,
    changed_final_days,
    count_states,
    day_states,
    describe_states,
    find_holes,
)
from backfill_assets.orders.tables import (
    CORRECTIONS,
    CURRENT,
    FACT,
    LATE,
    LATENESS,
    RAW,
    REJECTED,
    STAGED,
    TABLES,
)
from backfill_assets.settings import load_settings
from backfill_assets.staleness.stale import StaleDays
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.invented_logs import NIGHTLY, days, ledger, ledgers, record
from backfill_assets_tests.helpers.invented_states import (
    ALL,
    POLICY,
    W,
    append_externally,
    make_backlog,
    make_built_record,
    make_healthy_ledgers,
    make_snapshot,
    states_by_day,
)
from backfill_assets_tests.helpers.pipeline import START, day
from backfill_assets_tests.helpers.written_logs import commit_with_record, run_operation

#: Tables by event day; those of them whose days become final; those that go on changing.
BY_EVENT_DAY = (STAGED, FACT, CURRENT, CORRECTIONS)
FREEZE, FOLLOW = (STAGED, FACT), (CURRENT, CORRECTIONS)

each_table = pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)


def withdraw_days(table: Table, *numbers: int) -> dict[str, Ledger]:
    """Healthy tables; an undo has taken days of one back, and has not come to the others."""
    healthy_ledgers = make_healthy_ledgers()
    log = (
        dict.fromkeys(("event_days", "current_days", "log_days"), days(*numbers))
        if table is RAW
        else {}
    )
    undo = msgspec.structs.replace(record(1, (), **log), revoked_days=days(*numbers))
    return healthy_ledgers | {
        table.name: without_rows(ledger(table, *healthy_ledgers[table.name].records, undo))
    }


def without_rows(original: Ledger) -> Ledger:
    """The ledger, where days that were withdrawn have no files."""
    rows = {day: rows for day, rows in original.measured.items() if day in original.latest}
    return replace(original, measured=rows)


def unusual_states(actual: dict[int, DayState], usual: dict[int, DayState]) -> dict[int, DayState]:
    return {n: state for n, state in actual.items() if usual.get(n) is not state}


# --- each state -----------------------------------------------------------------------------------


def usual_states(table: Table) -> dict[int, DayState]:
    """What the states of ten healthy days are: the last two are open."""
    if table in FREEZE:
        return {n: DayState.FINAL if n <= 8 else DayState.OPEN for n in range(1, 11)}
    if table in FOLLOW:
        return {n: DayState.FRESH if n <= 8 else DayState.OPEN for n in range(1, 11)}
    return dict.fromkeys(range(1, 11), DayState.FRESH)


@each_table
def test_a_night_in_which_everything_went_well(table):
    result = states_by_day(table, make_snapshot())
    assert result == usual_states(table)
    assert list(result) == sorted(result)
    assert all(state.is_good for state in result.values())


@each_table
def test_no_tables_at_all(table):
    result = states_by_day(table, make_snapshot(ledgers()))
    assert result == dict.fromkeys(range(1, 11), DayState.MISSING)


@each_table
def test_before_the_calendar_begins_nothing_is_due(table):
    assert states_by_day(table, make_snapshot(ledgers(), today=START)) == {}
    assert states_by_day(table, make_snapshot(ledgers(), today=START + DAY)) == {
        1: DayState.MISSING
    }


@each_table
def test_failed(table):
    result = states_by_day(table, make_snapshot(failed={table.name: days(3)}))
    assert unusual_states(result, usual_states(table)) == {3: DayState.CHECK_FAILED}
    other = next(name for name in TABLES if name != table.name)
    assert states_by_day(table, make_snapshot(failed={other: days(3)})) == usual_states(table)


@each_table
def test_missing(table):
    without = make_healthy_ledgers() | {table.name: make_healthy_ledgers(ALL - days(3))[table.name]}
    result = states_by_day(table, make_snapshot(without, behind=StaleDays()))
    assert unusual_states(result, usual_states(table))[3] is DayState.MISSING


@each_table
def test_a_day_published_as_empty_is_there(table):
    old = make_healthy_ledgers()[table.name]
    commit = old.records[0]
    days = {d: msgspec.structs.replace(p, rows=0) for d, p in commit.days.items()}
    empty = msgspec.structs.replace(commit, days=days)
    result = states_by_day(
        table, make_snapshot(make_healthy_ledgers() | {table.name: ledger(table, empty)})
    )
    assert result == usual_states(table)


@each_table
def test_input_newer(table):
    result = states_by_day(table, make_snapshot(behind=make_backlog(day(3), table=table)))
    assert unusual_states(result, usual_states(table)) == {3: DayState.INPUT_NEWER}


@pytest.mark.parametrize("table", FREEZE, ids=lambda table: table.name)
def test_a_final_day_is_not_behind(table):
    """What came since is in the tables that follow; the day itself is what it is to be."""
    result = states_by_day(
        table, make_snapshot(behind=make_backlog(day(3), table=table, final=True))
    )
    assert result == usual_states(table)
    assert result[3].is_good


@each_table
def test_files_added_to_a_loaded_day(table):
    """Day 3 as well as what takes its lines in, final or not, is not what it could be."""
    result = unusual_states(states_by_day(table, make_snapshot(load=days(3))), usual_states(table))
    if table in (RAW, REJECTED):
        assert result == {3: DayState.INPUT_NEWER}
    elif table in BY_EVENT_DAY:
        assert result == dict.fromkeys((1, 2, 3), DayState.INPUT_MISSING)
    else:
        assert result == {}


@pytest.mark.parametrize("table", [RAW, REJECTED], ids=lambda table: table.name)
def test_a_missing_folder_that_is_no_longer_expected_is_no_newer_input(table):
    """The next load records that nothing more is expected; no line has come."""
    now = make_snapshot(load=days(3, 4), without_news=days(3))
    assert unusual_states(states_by_day(table, now), usual_states(table)) == {
        3: DayState.INPUT_MISSING,
        4: DayState.INPUT_NEWER,
    }


@each_table
@pytest.mark.parametrize(("absent", "open_days"), [(10, (9, 10)), (9, (9,)), (8, ())])
def test_a_log_day_without_a_folder(table, absent, open_days):
    """What is open still waits for it; what is final waits for nobody."""
    result = unusual_states(
        states_by_day(table, make_snapshot(absent=days(absent))), usual_states(table)
    )
    expected = open_days if table in BY_EVENT_DAY else {absent}.intersection(open_days)
    assert result == dict.fromkeys(expected, DayState.INPUT_MISSING)


@each_table
def test_a_replaced_file_that_waits(table):
    """What was made of the loaded rows is as good as before."""
    result = unusual_states(
        states_by_day(table, make_snapshot(on_hold=days(4))), usual_states(table)
    )
    assert result == ({4: DayState.HELD} if table in (RAW, REJECTED) else {})
    assert not DayState.HELD.is_good


@pytest.mark.parametrize("table", [RAW, REJECTED], ids=lambda table: table.name)
def test_a_replaced_file_that_waits_says_more_than_a_missing_folder_and_less_than_new_files(table):
    changes = {"on_hold": days(10), "absent": days(10)}
    assert states_by_day(table, make_snapshot(**changes))[10] is DayState.HELD
    assert states_by_day(table, make_snapshot(**changes, load=days(10)))[10] is DayState.INPUT_NEWER


@pytest.mark.parametrize(
    ("window_days", "waiting"), [(0, ()), (1, (10,)), (2, (9, 10)), (7, range(4, 11))]
)
def test_the_window_decides_who_waits(window_days, waiting):
    """Day 10 came without a folder and was loaded as empty: with it some days are final."""
    policy = replace(POLICY, window_days=window_days)
    now = make_snapshot(
        make_healthy_ledgers(final=days((1, 10 - window_days))), absent=days(10), policy=policy
    )
    for table in BY_EVENT_DAY:
        result = states_by_day(table, now)
        assert {n for n, state in result.items() if state is DayState.INPUT_MISSING} == set(waiting)


def test_days_beyond_what_is_due_are_shown_if_they_are_there():
    result = states_by_day(RAW, make_snapshot(make_healthy_ledgers(days((1, 12))), today=day(11)))
    assert list(result) == list(range(1, 13))


def test_a_folder_that_never_came_keeps_the_window_open():
    """Day 9 was loaded without its folder: of the windows that it belongs to, none is closed."""
    raw = record(0, ALL, event_days=ALL, current_days=ALL, settled=ALL - days(9, 10))
    built = {RAW.name: 0, STAGED.name: 0}
    stg, facts = (record(0, ALL, inputs=built) for _ in range(2))
    now = make_snapshot(
        ledgers(ledger(RAW, raw), ledger(STAGED, stg), ledger(FACT, facts)), absent=days(9)
    )
    for table in FREEZE:
        result = states_by_day(table, now)
        assert {n for n, state in result.items() if state is DayState.FINAL} == set(range(1, 7))
        assert {n for n, state in result.items() if state is DayState.INPUT_MISSING} == {7, 8, 9}


def test_a_day_whose_window_closed_quietly_is_final():
    raw = [
        record(n, days(n), event_days=days(n), current_days=days(n), settled=days(n))
        for n in range(1, 11)
    ]
    stg = [record(n, days(n), inputs={RAW.name: n}) for n in range(1, 11)]
    facts = [record(n, days(n), inputs={STAGED.name: n}) for n in range(1, 11)]
    now = make_snapshot(ledgers(ledger(RAW, *raw), ledger(STAGED, *stg), ledger(FACT, *facts)))
    for table in (STAGED, FACT):
        assert states_by_day(table, now) == usual_states(table)


@each_table
def test_changed_by_another_writer(table):
    """A day that is still open too, which no check on final days looks at."""
    result = states_by_day(table, make_snapshot(append_externally(table, 9)))
    assert unusual_states(result, usual_states(table)) == {9: DayState.EXTERNAL}
    assert not DayState.EXTERNAL.is_good


@each_table
def test_made_under_other_settings(table):
    """Final days too; a day that was made again since is no longer among them."""
    now = make_snapshot(settings="others")
    assert set(states_by_day(table, now).values()) == {DayState.OTHER_SETTINGS}
    assert not DayState.OTHER_SETTINGS.is_good
    later_record = record(1, days((2, 3)), config_digest="others")
    mended = make_healthy_ledgers()[table.name]
    changed_ledgers = make_healthy_ledgers() | {
        table.name: ledger(table, *mended.records, later_record)
    }
    other_days = {
        n
        for n, s in states_by_day(
            table, make_snapshot(changed_ledgers, behind=StaleDays(), settings="others")
        ).items()
        if s is DayState.OTHER_SETTINGS
    }
    assert other_days == {1, *range(4, 11)}


def test_only_the_tables_that_a_setting_decides_are_made_under_others():
    before, after = (Deployment(load_settings(window_days=w)).config_digests for w in (7, 8))
    changed_ledgers = {
        name: ledger(
            TABLES[name],
            *(msgspec.structs.replace(r, config_digest=before[name]) for r in table_ledger.records),
        )
        for name, table_ledger in make_healthy_ledgers().items()
    }
    now = replace(make_snapshot(changed_ledgers), config_digests=after)
    other_tables = {
        name for name in TABLES if DayState.OTHER_SETTINGS in day_states(name, now).values()
    }
    assert other_tables == set(TABLES) - {RAW.name, REJECTED.name}


def test_an_undo_puts_days_back_as_the_settings_of_then_made_them():
    (original,) = make_healthy_ledgers()[FACT.name].records
    put_back = msgspec.structs.replace(original.days[day(4)], made_under="old")
    undo = msgspec.structs.replace(original, version=1, days={day(4): put_back})
    changed_ledgers = make_healthy_ledgers() | {FACT.name: ledger(FACT, original, undo)}
    now = states_by_day(FACT, make_snapshot(changed_ledgers, behind=StaleDays()))
    assert unusual_states(now, usual_states(FACT)) == {4: DayState.OTHER_SETTINGS}


def test_what_is_made_of_what_was_taken_back():
    """No table that was made of it is good, by way of others neither; and nothing else is bad."""
    now = make_snapshot(withdraw_days(RAW, 9))
    assert not DayState.INPUT_WITHDRAWN.is_good
    for table in (STAGED, FACT, CURRENT, LATE, LATENESS):
        assert unusual_states(states_by_day(table, now), usual_states(table)) == {
            9: DayState.INPUT_WITHDRAWN
        }, table.name
    assert states_by_day(RAW, now)[9] is DayState.MISSING
    assert unusual_states(states_by_day(CORRECTIONS, now), usual_states(CORRECTIONS)) == {
        9: DayState.INPUT_WITHDRAWN
    }
    # Until it has been taken back as well, or was made of what is there now.
    undone = now.ledgers[STAGED.name].records[-1]
    undone = msgspec.structs.replace(
        undone, version=1, days={}, inputs={RAW.name: 1}, revoked_days=days(9)
    )
    mended = without_rows(ledger(STAGED, *now.ledgers[STAGED.name].records, undone))
    later = make_snapshot(now.ledgers | {STAGED.name: mended})
    assert states_by_day(STAGED, later)[9] is DayState.MISSING
    assert states_by_day(FACT, later)[9] is DayState.INPUT_WITHDRAWN


def test_the_window_of_what_was_taken_back():
    """Also where all days of the window are rebuilt: the days before have newer input."""
    policy = replace(POLICY, only_touched=False)
    result = states_by_day(STAGED, make_snapshot(withdraw_days(RAW, 10), policy=policy))
    assert [n for n, state in result.items() if not state.is_good] == [8, 9, 10]


# --- which one applies ----------------------------------------------------------------------------

#: In the order of precedence, for day 9 of the facts: what brings it about.
CAUSES: dict[DayState, dict[str, Any]] = {
    DayState.CHECK_FAILED: {"failed": {FACT.name: days(9)}},
    # A day without rows may be on hold as well: then nobody misses it.
    DayState.MISSING: {
        "table_ledgers": make_healthy_ledgers()
        | {FACT.name: make_healthy_ledgers(ALL - days(9))[FACT.name]},
        "behind": StaleDays(),
    },
    DayState.UNRECORDED: {
        "table_ledgers": make_healthy_ledgers()
        | {FACT.name: replace(make_healthy_ledgers()[FACT.name], missing_versions=[99])}
    },
    DayState.EXTERNAL: {"table_ledgers": append_externally(FACT, 9)},
    DayState.OTHER_SETTINGS: {"settings": "others"},
    DayState.INPUT_WITHDRAWN: {"table_ledgers": withdraw_days(STAGED, 9)},
    DayState.ON_HOLD: {"behind": StaleDays(on_hold={FACT.name: {day(9)}})},
    DayState.INPUT_NEWER: {"behind": make_backlog(day(9), table=FACT)},
    DayState.INPUT_MISSING: {"absent": days(9)},
    DayState.OPEN: {},
}


@pytest.mark.parametrize(
    ("first", "second"), [*combinations(CAUSES, 2)], ids=lambda state: state.name.lower()
)
def test_the_first_that_applies(first, second):
    causes = {"behind": StaleDays(), **CAUSES[second], **CAUSES[first]}
    assert states_by_day(FACT, make_snapshot(**causes))[9] is first


def test_a_day_without_rows_may_be_on_hold():
    changed_ledgers = make_healthy_ledgers() | {
        FACT.name: make_healthy_ledgers(ALL - days(9))[FACT.name]
    }
    on_hold = StaleDays(on_hold={FACT.name: {day(9)}})
    assert (
        states_by_day(FACT, make_snapshot(changed_ledgers, behind=on_hold))[9] is DayState.ON_HOLD
    )
    assert not DayState.ON_HOLD.is_good


def test_the_order_is_that_of_the_declaration():
    # The state of a replaced file is one of the raw layer alone.
    assert [state for state in DayState if state in CAUSES] == list(CAUSES)
    assert [state for state in DayState if state.is_good] == [
        DayState.RETIRED,
        DayState.NOT_EXPECTED,
        DayState.OPEN,
        DayState.FINAL,
        DayState.FRESH,
    ]


# --- before the deadline --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lag", "in_time", "last"), [(1, False, 10), (1, True, 9), (3, False, 8), (3, True, 7)]
)
@each_table
def test_before_the_deadline_the_last_due_day_may_be_missing(table, lag, in_time, last):
    policy = replace(POLICY, lag_days=lag)
    result = states_by_day(table, make_snapshot(ledgers(), policy=policy, in_time=in_time))
    assert result == dict.fromkeys(range(1, last + 1), DayState.MISSING)


@pytest.mark.parametrize("today", [11, 12, 40])
def test_the_end_of_the_calendar(today):
    """On the first morning after it, its last day may still be missing; then no more."""
    policy = replace(POLICY, end=day(11))
    for in_time, last in ((False, 10), (True, 9 if today == 11 else 10)):
        now = make_snapshot(ledgers(), policy=policy, today=day(today), in_time=in_time)
        assert list(states_by_day(RAW, now)) == list(range(1, last + 1))


def test_nobody_misses_days_that_later_runs_of_a_command_build():
    """A day that is there has its state all the same."""
    now = make_snapshot(make_healthy_ledgers(days((1, 7)), final=()), later_days=days((7, 9)))
    result = states_by_day(RAW, now)
    assert {n for n, state in result.items() if state is DayState.MISSING} == {10}
    assert [*result] == [*range(1, 8), 10]


@each_table
def test_before_the_deadline_a_day_that_is_there_has_its_state(table):
    assert states_by_day(table, make_snapshot(in_time=True)) == usual_states(table)


@pytest.mark.parametrize(
    ("lag", "arrived", "n"),
    [
        (1, "load", 10),
        (1, "absent", 10),
        (3, "load", 10),
        # The last due day is loaded as an empty one by the nightly run, if nothing comes.
        (3, "load", 8),
        (3, "absent", 8),
    ],
)
@pytest.mark.parametrize("table", BY_EVENT_DAY, ids=lambda table: table.name)
def test_before_the_deadline_the_last_day_need_not_be_loaded(table, lag, arrived, n):
    """After midnight, a folder waits for the nightly run, or has not landed yet."""
    before = make_healthy_ledgers(days((1, n - 1)), final=days((1, n - 1 - W)))
    policy, coming = replace(POLICY, lag_days=lag), {arrived: days(n)}
    result = day_states(table.name, make_snapshot(before, policy=policy, in_time=True, **coming))
    assert all(state.is_good for state in result.values())


@pytest.mark.parametrize(("lag", "n"), [(1, 9), (3, 7)])
@pytest.mark.parametrize("arrived", ["load", "absent"])
def test_before_the_deadline_the_day_before_must_be_loaded(lag, n, arrived):
    policy, missed = replace(POLICY, lag_days=lag, window_days=7), {arrived: days(n)}
    now = make_snapshot(make_healthy_ledgers(final=()), policy=policy, in_time=True, **missed)
    assert states_by_day(STAGED, now)[n] is DayState.INPUT_MISSING


def test_before_the_deadline_a_failed_check_is_told():
    now = make_snapshot(
        make_healthy_ledgers(days((1, 9))), failed={RAW.name: days(10)}, in_time=True
    )
    assert states_by_day(RAW, now)[10] is DayState.CHECK_FAILED


# --- in words and numbers -------------------------------------------------------------------------


def expand_states(**numbers_by_state: Any) -> dict[date, DayState]:
    return {
        d: DayState[name.upper()]
        for name, numbers in numbers_by_state.items()
        for d in days(*numbers)
    }


@pytest.mark.parametrize(
    ("found", "missing_inside"),
    [
        ({}, ()),
        ({"fresh": [(1, 5)]}, ()),
        ({"missing": [(1, 5)]}, ()),
        ({"fresh": [1, 3], "missing": [2]}, (2,)),
        ({"missing": [1, 2], "fresh": [3]}, (1, 2)),
        ({"fresh": [1], "missing": [2, 3]}, ()),
        ({"fresh": [1, 4], "missing": [2, 3, 5]}, (2, 3)),
        ({"open": [1, 4], "missing": [2], "input_newer": [5], "input_missing": [3]}, (2,)),
    ],
)
def test_holes(found, missing_inside):
    assert find_holes(expand_states(**found)) == days(*missing_inside)


def test_in_words_names_what_somebody_should_see_to():
    result = expand_states(fresh=[1], open=[2], final=[3], missing=[(4, 6), 8], check_failed=[7])
    assert describe_states(result).splitlines() == [
        f"check failed: 2024-01-07 ({STATE_MEANINGS[DayState.CHECK_FAILED]})",
        f"missing: 2024-01-04...2024-01-06, 2024-01-08 ({STATE_MEANINGS[DayState.MISSING]})",
    ]


def test_in_words_says_nothing_if_all_is_well():
    assert describe_states(expand_states(fresh=[1], open=[2], final=[3])) == ""
    assert describe_states({}) == ""


def test_summary_counts_every_state():
    assert count_states(expand_states(fresh=[1, 2], missing=[3])) == {
        "check failed": 0,
        "missing": 1,
        "unrecorded": 0,
        "changed by another writer": 0,
        "made under other settings": 0,
        "input taken back": 0,
        "on hold": 0,
        "input newer than output": 0,
        "replaced file waits": 0,
        "input missing": 0,
        "retired": 0,
        "not expected": 0,
        "open": 0,
        "final": 0,
        "fresh": 2,
    }


def test_every_state_has_a_meaning():
    assert set(STATE_MEANINGS) == set(DayState)


# --- final days that changed ----------------------------------------------------------------------


def list_changed_days(
    *records: CommitRecord, external: Collection[ExternalCommit] = ()
) -> dict[date, str]:
    fact_ledgers = ledgers(ledger(FACT, *records, external=external))
    return changed_final_days(FACT.name, make_snapshot(fact_ledgers))


@pytest.mark.parametrize(
    ("history", "reported"),
    [
        ([], ()),
        ([make_built_record(1, "a")], ()),
        # An open day may change as often as it likes, and once more to become final.
        (
            [
                make_built_record(1, "a", final=False),
                make_built_record(2, "b", final=False),
                make_built_record(3, "c"),
            ],
            (),
        ),
        # From then on only a person may change it.
        ([make_built_record(1, "a"), make_built_record(2, "b")], (1, 2)),
        ([make_built_record(1, "a"), make_built_record(2, "b", final=False)], (1, 2)),
        # The same rows have another digest where it is computed in another way.
        ([make_built_record(1, "2-5-6"), make_built_record(2, "2-7-8-nested")], ()),
        (
            [
                make_built_record(1, "a"),
                make_built_record(2, "b", launched_by="sensor touched_days"),
            ],
            (1, 2),
        ),
        ([make_built_record(1, "a"), make_built_record(2, "b", day_numbers=(2,))], (2,)),
        ([make_built_record(1, "a"), make_built_record(2, "a")], ()),
        ([make_built_record(1, "a"), make_built_record(2, "b", launched_by="person")], ()),
        # What a person published is what counts from then on.
        (
            [
                make_built_record(1, "a"),
                make_built_record(2, "b", launched_by="person"),
                make_built_record(3, "b"),
            ],
            (),
        ),
        (
            [
                make_built_record(1, "a"),
                make_built_record(2, "b", launched_by="person"),
                make_built_record(3, "a"),
            ],
            (1, 2),
        ),
        (
            [
                make_built_record(1, "a"),
                make_built_record(2, "b"),
                make_built_record(3, "b", launched_by="person"),
            ],
            (),
        ),
        (
            [
                make_built_record(1, "a"),
                make_built_record(2, "b"),
                make_built_record(3, "a", launched_by="person", day_numbers=(1,)),
            ],
            (2,),
        ),
        # It stays on record until a person has seen to it.
        ([make_built_record(1, "a"), make_built_record(2, "b"), make_built_record(3, "b")], (1, 2)),
        (
            [
                make_built_record(1, "a"),
                make_built_record(2, "b"),
                make_built_record(3, "c"),
                make_built_record(4, "c"),
            ],
            (1, 2),
        ),
        # A run by schedule may be the first to publish it, or a person.
        ([make_built_record(1, "a", launched_by="person"), make_built_record(2, "b")], (1, 2)),
        (
            [
                make_built_record(1, "a", launched_by="person", final=False),
                make_built_record(2, "b"),
            ],
            (),
        ),
        (
            [make_built_record(1, "a"), make_built_record(2, "b"), make_built_record(3, "a")],
            (),
        ),
        (
            [
                make_built_record(1, "a"),
                make_built_record(2, "b", launched_by="person", final=False),
                make_built_record(3, "c"),
            ],
            (),
        ),
    ],
)
def test_changed_final_days(history, reported):
    assert list_changed_days(*history).keys() == days(*reported)


def test_it_is_said_who_changed_it():
    (text,) = list_changed_days(
        make_built_record(1, "a", day_numbers=(1,)), make_built_record(2, "b", day_numbers=(1,))
    ).values()
    assert text == "changed by schedule nightly in run run 2"


def other_commit(version: int, *numbers: int, operation: str = "UPDATE") -> ExternalCommit:
    return ExternalCommit(version, operation, days(*numbers))


@pytest.mark.parametrize(
    ("records", "external", "reported"),
    [
        ([make_built_record(1, "a")], [other_commit(2, 1)], (1,)),
        ([make_built_record(1, "a")], [other_commit(2, 1), other_commit(3, 2)], (1, 2)),
        ([make_built_record(1, "a")], [other_commit(2, 3)], ()),
        ([make_built_record(1, "a")], [other_commit(2)], ()),
        ([make_built_record(1, "a", final=False)], [other_commit(2, 1)], ()),
        ([make_built_record(1, "a"), record(2, days(3))], [other_commit(3, 2, 3)], (2,)),
        # What was published since is ours again.
        (
            [make_built_record(1, "a", final=False), make_built_record(3, "b")],
            [other_commit(2, 1)],
            (),
        ),
        (
            [make_built_record(1, "a"), make_built_record(3, "b", launched_by="person")],
            [other_commit(2, 1)],
            (),
        ),
        ([make_built_record(1, "a"), make_built_record(3, "a")], [other_commit(2, 1)], ()),
        (
            [
                make_built_record(1, "a"),
                make_built_record(3, "b", launched_by="person", day_numbers=(1,)),
            ],
            [other_commit(2, 1, 2)],
            (2,),
        ),
    ],
)
def test_final_days_that_others_changed(records, external, reported):
    assert list_changed_days(*records, external=external).keys() == days(*reported)


def test_it_is_said_how_others_changed_it():
    (text,) = list_changed_days(
        make_built_record(1, "a"), external=[other_commit(7, 1, operation="MERGE")]
    ).values()
    assert text == "changed by another writer (MERGE, version 7)"


@pytest.mark.parametrize(
    ("operation", "reported"),
    [("update", 2), ("append", 2), ("restore", 2), ("delete", None), ("optimize", None)],
)
def test_other_writers_on_a_real_table(tmp_path, operation, reported):
    """Days 1 and 2 are final, day 3 is open."""
    url = tmp_path / FACT.name
    commit_with_record(url, 1, 2, 3, final=["2024-01-01...2024-01-02"])
    commit_with_record(url, 2, final=["2024-01-02"], launched_by=NIGHTLY)
    run_operation(url, operation)
    result = changed_final_days(FACT.name, make_snapshot(ledgers(read_ledger(str(url), FACT))))
    assert result.keys() == (days(reported) if reported else set())
