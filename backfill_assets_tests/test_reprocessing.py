"""What is behind, what has landed, which runs are asked for: over ledgers made by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import permutations

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import DAY, Window, from_ranges, to_windows
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitRecord, ExternalCommit
from backfill_assets.landing.listing import Listing
from backfill_assets.landing.load_manifest import load_target
from backfill_assets.monitoring.next_runs import (
    BATCH_SIZE,
    Request,
    first_batch,
    load_requests,
    make_block_rule,
    make_inclusion_rule,
    rebuild_requests,
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
from backfill_assets.staleness.finality import settled_days, window_closed_at
from backfill_assets.staleness.stale import StaleDays, StaleReason, find_stale_days
from backfill_assets.staleness.unloaded import UnloadedDays, find_unloaded_days, loaded_manifests
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.invented_listings import file_path, make_landing
from backfill_assets_tests.helpers.invented_logs import (
    NIGHTLY,
    SOURCES,
    days,
    ledger,
    ledgers,
    make_measured,
    make_raw_record,
    record,
    snapshot_ledgers,
)
from backfill_assets_tests.helpers.pipeline import START, day

# A window so long that no day closes unless a test wants it to.
#: More days than any test has.
NO_LIMIT = 100_000
POLICY = Policy(START, None, window_days=7, lag_days=1, corrects=True, only_touched=True)
GRAPH = Graph.from_tables(TABLES.values(), POLICY)
BY_LOG_DAY, BY_EVENT_DAY = GRAPH.by_log_day, GRAPH.by_event_day


def request_loads(new_days, *more, **named):
    return load_requests({RAW.name: new_days}, GRAPH, *more, **named)


def request_rebuilds(behind, *more, **named):
    return rebuild_requests(behind, GRAPH, *more, **named)


LATER = day(20)  # by then every day of these tests is due


def staged_record(version: int, dates: Iterable[date], raw: int, **more) -> CommitRecord:
    return record(version, dates, inputs={RAW.name: raw}, **more)


def fact_record(version: int, dates: Iterable[date], stg: int, **more) -> CommitRecord:
    return record(version, dates, inputs={STAGED.name: stg}, **more)


def current_record(version: int, dates: Iterable[date], raw: int, **more) -> CommitRecord:
    return record(version, dates, inputs={RAW.name: raw}, **more)


def corrections_record(
    version: int, dates: Iterable[date], facts: int, known: int, **more
) -> CommitRecord:
    return record(version, dates, inputs={FACT.name: facts, CURRENT.name: known}, **more)


def open_days(result: StaleDays, table: Table) -> set[date]:
    return set(result.open.get(table.name, ()))


def final_days(result: StaleDays, table: Table) -> set[date]:
    return set(result.final.get(table.name, ()))


def with_rejected(raw: Ledger) -> tuple[Ledger, Ledger]:
    """The raw log, and the rejected lines of the same days."""
    return raw, ledger(REJECTED, record(0, raw.published_days))


def list_stale_days(
    *table_ledgers: Ledger, policy: Policy = POLICY, today: date = LATER, table: Table = STAGED
) -> set[date]:
    return open_days(
        find_stale_days(snapshot_ledgers(ledgers(*table_ledgers), policy, today)), table
    )


# --- backlog: the staged days behind the raw log --------------------------------------------------


def test_empty_ledgers_have_no_backlog():
    result = find_stale_days(snapshot_ledgers(ledgers(), POLICY, LATER))
    assert not result.open
    assert not result.final


def test_the_same_tables_are_looked_at_once():
    known = ledgers(*with_rejected(ledger(RAW, make_raw_record(0, days(1)))))
    first = find_stale_days(snapshot_ledgers(known, POLICY, LATER))
    assert first.open
    assert find_stale_days(snapshot_ledgers({**known}, POLICY, LATER)) is first
    for other in (
        ({**known, RAW.name: replace(known[RAW.name])}, POLICY, LATER),
        (known, replace(POLICY, window_days=1), LATER),
        (known, POLICY, day(400)),
    ):
        result = find_stale_days(snapshot_ledgers(*other))
        assert result is not first
        assert find_stale_days(snapshot_ledgers(*other)) is result


def test_what_was_never_published_is_behind():
    raw = ledger(RAW, make_raw_record(0, days((1, 3))))
    result = find_stale_days(snapshot_ledgers(ledgers(*with_rejected(raw)), POLICY, LATER))
    assert open_days(result, STAGED) == days((1, 3))
    for name in (CURRENT.name, *BY_LOG_DAY):
        assert set(result.open[name]) == days((1, 3))
    # Facts and corrections have nothing to be built from yet.
    assert set(result.open) == {STAGED.name, CURRENT.name, *BY_LOG_DAY}
    assert not result.final


@pytest.mark.parametrize(("built_from", "is_behind"), [(3, True), (4, False), (5, False)])
def test_behind_is_what_was_built_from_an_older_version(built_from, is_behind):
    raw = ledger(
        RAW,
        make_raw_record(3, days(1)),
        make_raw_record(4, days(2), days(1, 2)),
        make_raw_record(5, days(9)),
    )
    stg = ledger(STAGED, staged_record(0, days(1), raw=built_from))
    assert (day(1) in list_stale_days(raw, stg)) is is_behind


def test_version_0_is_a_version():
    raw = ledger(RAW, make_raw_record(0, days(1)))
    assert list_stale_days(raw, ledger(STAGED, staged_record(0, days(1), raw=0))) == set()
    assert list_stale_days(raw, ledger(STAGED, record(0, days(1)))) == days(1)


@pytest.mark.parametrize(
    ("late_for", "expected"),
    [
        # What the commit says is touched, no more and no less.
        ((), {5}),
        ((3,), {3, 5}),
        ((4,), {4, 5}),
        ((3, 4), {3, 4, 5}),
    ],
)
def test_touched_rebuilds_what_the_lines_change(late_for, expected):
    raw = ledger(
        RAW, make_raw_record(1, days((1, 4))), make_raw_record(2, days(5), days(5, *late_for))
    )
    stg = ledger(STAGED, staged_record(0, days((1, 4)), raw=1))
    assert list_stale_days(raw, stg) == days(*expected)


def test_a_reload_of_the_same_lines_touches_nothing():
    raw = ledger(RAW, make_raw_record(1, days((1, 4))), make_raw_record(2, days((1, 4)), ()))
    stg = ledger(STAGED, staged_record(0, days((1, 4)), raw=1))
    assert list_stale_days(raw, stg) == set()


@pytest.mark.parametrize(
    ("window_days", "log_day", "to_rebuild", "to_report"),
    [
        (0, 5, (), (5,)),
        (1, 5, (5,), (4,)),
        (2, 5, (4, 5), (3,)),
        (2, 4, (4,), (2, 3)),
        (2, 1, (), (1,)),
        (4, 5, (2, 3, 4, 5), (1,)),
        (7, 5, ((1, 5),), ()),
        (7, 2, (1, 2), ()),
    ],
)
def test_window_rebuilds_all_open_days(window_days, log_day, to_rebuild, to_report):
    policy = replace(POLICY, only_touched=False, window_days=window_days)
    raw = ledger(RAW, make_raw_record(1, days((1, 5))), make_raw_record(2, days(log_day), ()))
    final = days((1, 5 - window_days))
    stg = ledger(STAGED, staged_record(0, days((1, 5)), raw=1, final=final))
    result = find_stale_days(snapshot_ledgers(ledgers(raw, stg), policy, LATER))
    assert open_days(result, STAGED) == days(*to_rebuild)
    assert final_days(result, STAGED) == days(*to_report)


def test_window_needs_the_log_day_itself():
    """A hole in the raw log: a day without its own log day cannot be staged."""
    policy = replace(POLICY, only_touched=False)
    raw = ledger(RAW, make_raw_record(1, days(1, 2, 4)))
    assert list_stale_days(raw, policy=policy) == days(1, 2, 4)
    filled = ledger(RAW, *raw.records, make_raw_record(2, days(3)))
    stg = ledger(STAGED, staged_record(0, days(1, 2, 4), raw=1))
    assert list_stale_days(filled, stg, policy=policy) == days(1, 2, 3)


def test_a_hole_in_the_raw_log_is_filled():
    raw = ledger(RAW, make_raw_record(1, days(1, 2, 4)), make_raw_record(2, days(3), days(2, 3)))
    stg = ledger(STAGED, staged_record(0, days(1, 2, 4), raw=1))
    assert list_stale_days(raw, stg) == days(2, 3)


def test_after_a_downtime_everything_missed_is_found():
    nights = [make_raw_record(n, days(n), days(n, max(n - 1, 1))) for n in range(1, 11)]
    raw = ledger(RAW, *nights)
    stg = ledger(STAGED, staged_record(0, days((1, 3)), raw=3))
    assert list_stale_days(raw, stg) == days((3, 10))


def test_each_day_counts_from_its_own_latest_record():
    raw = ledger(RAW, make_raw_record(1, days((1, 3))), make_raw_record(2, days(4), days(2, 4)))
    both = ledger(
        STAGED, staged_record(0, days((1, 3)), raw=1), staged_record(1, days(2, 4), raw=2)
    )
    assert list_stale_days(raw, both) == set()
    # Published again, from what was there before: by a run that had begun earlier.
    overtaken = ledger(STAGED, *both.records, staged_record(2, days(2), raw=1))
    assert list_stale_days(raw, overtaken) == days(2)


def test_a_day_published_as_empty_is_published():
    raw = ledger(RAW, make_raw_record(1, days(1, 2)))
    assert (
        list_stale_days(raw, ledger(STAGED, staged_record(0, days(1, 2), raw=1, rows=0))) == set()
    )


def test_rows_of_others_do_not_make_a_day_built():
    raw = ledger(RAW, make_raw_record(1, days(1)))
    stg = replace(ledger(STAGED), version=0, measured=make_measured({day(1): 5}))
    assert list_stale_days(raw, stg) == days(1)


def test_commits_of_others_are_nobodys_input():
    raw = ledger(RAW, make_raw_record(1, days(1)), external=[ExternalCommit(2, "UPDATE", days(1))])
    assert list_stale_days(raw, ledger(STAGED, staged_record(0, days(1), raw=1))) == set()


@pytest.mark.parametrize(
    ("lag", "today", "expected"),
    [(1, 1, ()), (1, 2, (1,)), (1, 5, (1, 2, 3, 4)), (3, 3, ()), (3, 4, (1,)), (3, 6, (1, 2, 3))],
)
def test_nothing_is_published_before_it_is_due(lag, today, expected):
    raw = ledger(RAW, make_raw_record(1, days((1, 4))))
    policy = replace(POLICY, lag_days=lag)
    assert list_stale_days(raw, policy=policy, today=day(today)) == days(*expected)
    # What is kept by log day waits for nothing.
    for table in (LATE, LATENESS):
        assert list_stale_days(
            *with_rejected(raw), policy=policy, today=day(5), table=table
        ) == days((1, 4))


@pytest.mark.parametrize(
    ("lag", "window", "expected"),
    [(1, 2, (8, 9, 10)), (2, 3, (7, 8, 9))],
)
def test_settings_that_build_the_last_three_days_each_night(lag, window, expected):
    """Those of docs/late-data.md, in the night of day 11, which has loaded day 10."""
    raw = ledger(RAW, make_raw_record(0, days((1, 9))), make_raw_record(1, days(10)))
    staged = ledger(STAGED, staged_record(0, days((1, 10 - lag)), raw=0))
    policy = replace(POLICY, lag_days=lag, window_days=window, only_touched=False)
    assert list_stale_days(raw, staged, policy=policy, today=day(11)) == days(*expected)


def test_the_lag_holds_for_all_that_follows():
    policy = replace(POLICY, lag_days=3)
    table_ledgers = (
        ledger(RAW, make_raw_record(1, days((1, 4)))),
        ledger(STAGED, staged_record(0, days((1, 4)), raw=1)),
        ledger(FACT, fact_record(0, days((1, 4)), stg=0)),
        ledger(CURRENT, current_record(0, days((1, 4)), raw=1)),
    )
    for table, existing in (
        (FACT, table_ledgers[:2]),
        (CURRENT, table_ledgers[:3]),
        (CORRECTIONS, table_ledgers),
    ):
        assert list_stale_days(*existing, policy=policy, today=day(5), table=table) == days(1, 2)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [(1, None, {1, 2, 3, 4}), (2, None, {2, 3, 4}), (1, 4, {1, 2, 3}), (3, 4, {3}), (9, None, ())],
)
@pytest.mark.parametrize("only_touched", [True, False])
def test_staged_days_outside_the_calendar_are_nobodys_business(start, end, expected, only_touched):
    policy = replace(
        POLICY, start=day(start), end=end and day(end), only_touched=only_touched, window_days=1
    )
    raw = ledger(RAW, make_raw_record(1, days((1, 4))))
    assert list_stale_days(raw, policy=policy) == days(*expected)


@pytest.mark.parametrize("table", [LATE, LATENESS], ids=lambda table: table.name)
def test_log_days_outside_the_calendar_are_nobodys_business(table):
    policy = replace(POLICY, start=day(2), end=day(4))
    raw = ledger(RAW, make_raw_record(1, days((1, 4))))
    assert list_stale_days(*with_rejected(raw), policy=policy, table=table) == days(2, 3)


def test_a_commit_that_does_not_say_what_it_touches_may_touch_all():
    raw = ledger(RAW, record(1, days((1, 4))), record(2, days(5)))
    stg = ledger(STAGED, staged_record(0, days((1, 4)), raw=1))
    assert list_stale_days(raw, stg) == days((1, 5))


def test_a_commit_that_does_not_say_which_log_days_it_changes_changes_its_own():
    raw = ledger(RAW, record(1, days((1, 4))))
    assert list_stale_days(*with_rejected(raw), table=LATENESS) == days((1, 4))


def test_a_commit_that_does_not_say_what_is_known_since_may_change_all_until_then():
    raw = ledger(RAW, record(1, days((1, 6))), record(2, days(4)))
    known = ledger(CURRENT, current_record(0, days((1, 6)), raw=1))
    assert list_stale_days(raw, known, table=CURRENT) == days((1, 4))


@pytest.mark.parametrize("version", [0, 1, 38])
def test_a_table_made_anew_is_newer_than_anything_built_from_the_old_one(version):
    raw = ledger(RAW, make_raw_record(version, days((1, 3))))
    stg = ledger(STAGED, staged_record(7, days((1, 3)), raw=version + 1))
    assert list_stale_days(raw, stg) == days((1, 3))
    new_staging = ledger(STAGED, *stg.records, staged_record(8, days((1, 3)), raw=version))
    assert list_stale_days(raw, new_staging) == set()


# --- backlog: days that are final -----------------------------------------------------------------


def test_a_final_day_is_reported_and_never_rebuilt():
    raw = ledger(RAW, make_raw_record(1, days((1, 5))), make_raw_record(2, days(3), days((1, 3))))
    stg = ledger(STAGED, staged_record(0, days((1, 5)), raw=1, final=days(1, 2)))
    result = find_stale_days(snapshot_ledgers(ledgers(raw, stg), POLICY, LATER))
    assert open_days(result, STAGED) == days(3)
    assert final_days(result, STAGED) == days(1, 2)
    assert result.all_days(STAGED.name) == days(1, 2, 3)
    requests = [r for r in request_rebuilds(result, NO_LIMIT) if STAGED.name in r.tables]
    assert [request.window for request in requests] == [Window(day(3), day(4))]


def test_a_final_day_that_a_person_rebuilt_is_up_to_date():
    raw = ledger(RAW, make_raw_record(1, days((1, 5))), make_raw_record(2, days(3), days(1, 3)))
    stg = ledger(
        STAGED,
        staged_record(0, days((1, 5)), raw=1, final=days(1)),
        staged_record(1, days(1, 3), raw=2, final=days(1), launched_by="person"),
    )
    result = find_stale_days(snapshot_ledgers(ledgers(raw, stg), POLICY, LATER))
    assert final_days(result, STAGED) == open_days(result, STAGED) == set()


def test_the_latest_record_decides_whether_a_day_is_final():
    """The window was made longer, and a person rebuilt it: it is open again."""
    raw = ledger(RAW, make_raw_record(1, days((1, 5))), make_raw_record(2, days(3), days(1)))
    stg = ledger(
        STAGED,
        staged_record(0, days((1, 5)), raw=1, final=days(1)),
        staged_record(1, days(1), raw=1, launched_by="person"),
    )
    result = find_stale_days(snapshot_ledgers(ledgers(raw, stg), POLICY, LATER))
    assert open_days(result, STAGED) == days(1)
    assert final_days(result, STAGED) == set()


def test_a_day_whose_window_passed_in_a_downtime_is_not_final():
    """Its window is over, but it was last built before the lines of the week had been loaded."""
    raw = ledger(RAW, make_raw_record(1, days(1)), make_raw_record(2, days((2, 9)), days((1, 9))))
    stg = ledger(STAGED, staged_record(0, days(1), raw=1))
    result = find_stale_days(snapshot_ledgers(ledgers(raw, stg), SHORT, LATER))
    assert open_days(result, STAGED) == days((1, 9))
    assert not result.final


SHORT = replace(POLICY, window_days=2)
QUIET = [
    make_raw_record(n, days(n)) for n in (1, 2, 3)
]  # the last log day of day 1 brings nothing for it


def test_a_day_whose_window_closed_quietly_is_final_as_well():
    raw = ledger(RAW, *QUIET, make_raw_record(4, days(2), days(1, 2)))  # files added to day 2
    stg = ledger(STAGED, *(staged_record(n, days(n), raw=n) for n in (1, 2, 3)))
    result = find_stale_days(snapshot_ledgers(ledgers(raw, stg), SHORT, LATER))
    assert final_days(result, STAGED) == days(1)
    assert open_days(result, STAGED) == days(2)


LOUD = [*QUIET[:2], make_raw_record(3, days(3), days(1, 3))]  # here it does


@pytest.mark.parametrize(
    ("raw", "stg", "facts", "expected"),
    [
        (QUIET, [1], [0], (STAGED, FACT)),
        (QUIET[:2], [1], [0], ()),  # the last log day is not loaded
        ([QUIET[0], QUIET[2]], [3], [0], ()),  # nor is one in between
        (LOUD, [1], [0], ()),
        (LOUD, [3], [0], (STAGED, FACT)),
        # Days that were built once more, with facts of the one or the other.
        (LOUD, [1, 3], [0, 1], (STAGED, FACT)),
        (LOUD, [1, 3], [0], (STAGED,)),
        (LOUD, [1, 3], [], (STAGED,)),
        (QUIET, [1, 2], [0], (STAGED, FACT)),
        # A run that had begun earlier was the last to publish.
        (LOUD, [3, 1], [0], (FACT,)),
        (LOUD, [3, 1], [0, 1], ()),
        # What comes later opens nothing.
        ([*QUIET, make_raw_record(4, days(2), days(1, 2))], [1], [0], (STAGED, FACT)),
        ([*QUIET, make_raw_record(4, days(4), days(1, 4))], [1], [0], (STAGED, FACT)),
        ([*LOUD, make_raw_record(4, days(3), days(1, 3))], [1], [0], ()),
        # Loaded in another order: it is the last to come that closes.
        (
            [
                make_raw_record(1, days(1)),
                make_raw_record(2, days(3)),
                make_raw_record(3, days(2), ()),
            ],
            [1],
            [0],
            (STAGED, FACT),
        ),
        (
            [
                make_raw_record(1, days(1)),
                make_raw_record(2, days(3)),
                make_raw_record(3, days(2), days(1)),
            ],
            [2],
            [0],
            (),
        ),
        ([make_raw_record(1, days((1, 3)))], [1], [0], (STAGED, FACT)),
        ([make_raw_record(1, days((1, 3)))], [0], [0], ()),
    ],
)
def test_final_is_what_was_built_with_all_that_its_window_brought(raw, stg, facts, expected):
    """Day 1, staged from these versions of the raw log; facts from these versions of staging."""
    known = ledgers(
        ledger(RAW, *raw),
        ledger(STAGED, *(staged_record(n, days(1), raw=v) for n, v in enumerate(stg))),
        ledger(FACT, *(fact_record(n, days(1), stg=v) for n, v in enumerate(facts))),
    )
    final_tables = {
        name
        for name, dates in snapshot_ledgers(known, SHORT).final_by_table.items()
        if day(1) in dates
    }
    assert final_tables == {table.name for table in expected}


def test_a_day_that_missed_a_line_of_its_window_is_built_once_more():
    """As above, but what was added to day 2 came before the window of day 1 closed."""
    raw = ledger(
        RAW,
        make_raw_record(1, days(1)),
        make_raw_record(2, days(2)),
        make_raw_record(3, days(2), days(1)),
        make_raw_record(4, days(3)),
    )
    stg = ledger(
        STAGED,
        *(staged_record(n, days(n), raw=n) for n in (1, 2)),
        staged_record(3, days(3), raw=4),
    )
    result = find_stale_days(snapshot_ledgers(ledgers(raw, stg), SHORT, LATER))
    assert open_days(result, STAGED) == days(1)
    assert not result.final


def test_a_crash_between_the_final_staged_day_and_its_facts():
    stg = ledger(
        STAGED, staged_record(0, days(1), raw=1), staged_record(1, days(1), raw=3, final=days(1))
    )
    facts = ledger(FACT, fact_record(0, days(1), stg=0))
    result = find_stale_days(snapshot_ledgers(ledgers(stg, facts), POLICY, LATER))
    assert open_days(result, FACT) == days(1)
    assert not result.final
    (request,) = request_rebuilds(result, NO_LIMIT)
    assert request.tables == CHAIN[1:]


def test_final_facts_wait_for_a_person():
    """A person rebuilt the final day of staging, and not what follows."""
    stg = ledger(
        STAGED,
        staged_record(0, days(1, 2), raw=1, final=days(1, 2)),
        staged_record(1, days(1), raw=3, final=days(1), launched_by="person"),
    )
    facts = ledger(FACT, fact_record(0, days(1, 2), stg=0, final=days(1, 2)))
    result = find_stale_days(snapshot_ledgers(ledgers(stg, facts), POLICY, LATER))
    assert final_days(result, FACT) == days(1)
    assert not result.open
    assert request_rebuilds(result, NO_LIMIT) == []


def test_what_follows_final_facts():
    """What is known of a day, and how that differs from its facts, is never final."""
    raw = ledger(
        RAW, make_raw_record(1, days((1, 4))), make_raw_record(2, days(4), (), current=days(1))
    )
    stg = ledger(STAGED, staged_record(0, days((1, 4)), raw=1, final=days(1)))
    facts = ledger(FACT, fact_record(0, days((1, 4)), stg=0, final=days(1)))
    old = ledger(CURRENT, current_record(0, days((1, 4)), raw=1, final=days(1)))
    known = ledger(CURRENT, *old.records, current_record(1, days(1), raw=2, final=days(1)))
    differ = ledger(CORRECTIONS, corrections_record(0, days((1, 4)), 0, 0, final=days(1)))
    result = find_stale_days(snapshot_ledgers(ledgers(raw, stg, facts, old, differ), SHORT, LATER))
    assert {name: set(dates) for name, dates in result.open.items() if name in BY_EVENT_DAY} == {
        CURRENT.name: days(1)
    }
    assert not result.final
    assert list_stale_days(raw, stg, facts, known, differ, policy=SHORT, table=CORRECTIONS) == days(
        1
    )


# --- backlog: tables by log day, what is known, and how it differs from the facts -----------------


def test_lateness_follows_the_log_days_that_tell_of_the_same_orders():
    raw = ledger(
        RAW, make_raw_record(1, days((1, 6))), make_raw_record(2, days(2), (), follow=days(5))
    )
    built = {RAW.name: 1, REJECTED.name: 0}
    result = find_stale_days(
        snapshot_ledgers(
            ledgers(
                *with_rejected(raw),
                *(
                    ledger(TABLES[name], record(0, days((1, 6)), inputs=built))
                    for name in BY_LOG_DAY
                ),
            ),
            POLICY,
            LATER,
        )
    )
    assert open_days(result, LATENESS) == days(2, 5)
    assert open_days(result, LATE) == days(2)


def test_lateness_follows_rejected_lines():
    raw = ledger(RAW, make_raw_record(1, days(1, 2)))
    rejected = ledger(REJECTED, record(0, days(1, 2)), record(1, days(2)))
    built = record(0, days(1, 2), inputs={RAW.name: 1, REJECTED.name: 0})
    assert list_stale_days(raw, rejected, ledger(LATENESS, built), table=LATENESS) == days(2)


@pytest.mark.parametrize("missing", [RAW, REJECTED], ids=lambda table: table.name)
def test_lateness_waits_for_both_inputs(missing):
    """A log day that did not pass its check, or a crash between the two commits of a load."""
    existing = {
        RAW.name: ledger(RAW, make_raw_record(1, days(1))),
        REJECTED.name: ledger(REJECTED, record(1, days(1))),
    }
    del existing[missing.name]
    assert list_stale_days(*existing.values(), table=LATENESS) == set()


def test_what_is_known_follows_what_the_raw_log_says_of_it():
    """Of days whatever their age, unlike staging."""
    raw = ledger(
        RAW,
        make_raw_record(1, days((1, 9))),
        make_raw_record(2, days(9), days(8, 9), current=days(1, 8, 9)),
    )
    stg = ledger(STAGED, staged_record(0, days((1, 9)), raw=1))
    known = ledger(CURRENT, current_record(0, days((1, 9)), raw=1))
    result = find_stale_days(snapshot_ledgers(ledgers(raw, stg, known), SHORT, LATER))
    assert open_days(result, STAGED) == days(8, 9)
    assert open_days(result, CURRENT) == days(1, 8, 9)


def test_what_is_known_waits_for_no_facts():
    raw = ledger(RAW, make_raw_record(1, days(1)))
    assert list_stale_days(raw, table=CURRENT) == days(1)
    assert (
        list_stale_days(raw, ledger(CURRENT, current_record(0, days(1), raw=1)), table=CURRENT)
        == set()
    )


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        ({}, {3, 4}),
        ({FACT.name: 1, CURRENT.name: 5}, ()),
        ({FACT.name: 0, CURRENT.name: 5}, {3, 4}),
        ({FACT.name: 1, CURRENT.name: 4}, {3}),
        ({FACT.name: 1}, {3, 4}),
    ],
)
def test_corrections_are_behind_the_facts_or_what_is_known(built, expected):
    facts = ledger(FACT, fact_record(1, days(3, 4), stg=0))
    known = ledger(CURRENT, current_record(4, days(3, 4), raw=0), current_record(5, days(3), raw=0))
    differ = ledger(CORRECTIONS, record(0, days(3, 4), inputs=built))
    assert list_stale_days(facts, known, differ, table=CORRECTIONS) == days(*expected)


def test_corrections_follow_changes_only():
    """The facts were published again, with the same rows."""
    facts = ledger(
        FACT,
        fact_record(1, days(3, 4), stg=0, digest="a"),
        fact_record(2, days(3, 4), stg=1, digest="a"),
    )
    known = ledger(CURRENT, current_record(0, days(3, 4), raw=0))
    differ = ledger(CORRECTIONS, corrections_record(0, days(3, 4), 1, 0))
    assert list_stale_days(facts, known, differ, table=CORRECTIONS) == set()


@pytest.mark.parametrize("missing", [FACT, CURRENT], ids=lambda table: table.name)
def test_corrections_wait_for_both_inputs(missing):
    existing = {
        FACT.name: ledger(FACT, fact_record(1, days(1, 3), stg=0)),
        CURRENT.name: ledger(CURRENT, current_record(0, days(1, 3), raw=0)),
    }
    short = {
        FACT.name: fact_record(1, days(1), stg=0),
        CURRENT.name: current_record(0, days(1), raw=0),
    }
    existing[missing.name] = ledger(missing, short[missing.name])
    assert list_stale_days(*existing.values(), table=CORRECTIONS) == days(1)
    del existing[missing.name]
    assert list_stale_days(*existing.values(), table=CORRECTIONS) == set()


def test_a_run_that_builds_the_facts_builds_what_follows():
    stg = ledger(STAGED, staged_record(0, days(3), raw=0))
    facts = ledger(FACT, fact_record(0, days(1), stg=0))
    known = ledger(CURRENT, current_record(0, days(1), raw=0))
    result = find_stale_days(snapshot_ledgers(ledgers(facts, known, stg), POLICY, LATER))
    assert open_days(result, CORRECTIONS) == days(1)
    assert {r.tables for r in request_rebuilds(result, NO_LIMIT)} == {CHAIN[1:], CHAIN[3:]}


def test_a_reason_names_the_versions_that_are_needed():
    facts = ledger(FACT, fact_record(1, days(3, 4), stg=0))
    known = ledger(CURRENT, current_record(4, days(4), raw=0), current_record(5, days(3), raw=0))
    reasons = find_stale_days(snapshot_ledgers(ledgers(facts, known), POLICY, LATER)).open[
        CORRECTIONS.name
    ]
    assert reasons[day(3)].commit_key == "fact_daily_orders@1,fact_daily_orders_current@5"
    assert reasons[day(4)].commit_key == "fact_daily_orders@1,fact_daily_orders_current@4"


# --- closings: when a window is over --------------------------------------------------------------


@pytest.mark.parametrize(
    ("window_days", "logged", "closed"),
    [
        (0, (), ()),
        (0, (9, 11), (9, 11)),
        (1, (10, 11), (10,)),
        (2, (10, 11), ()),
        (2, ((10, 12),), (10,)),
        (2, ((10, 14),), (10, 11, 12)),
        (2, (10, 12, 13), ()),  # a hole
        (2, (11, 12, 13), (11,)),
        (2, ((58, 61),), (58, 59)),  # the end of a February
    ],
)
def test_a_window_closes_when_all_its_log_days_are_settled(window_days, logged, closed):
    policy = replace(POLICY, window_days=window_days)
    raw = ledger(RAW, make_raw_record(3, days(*logged)))
    assert window_closed_at(raw, policy) == dict.fromkeys(days(*closed), 3)
    assert settled_days(raw) == days(*logged)


@pytest.mark.parametrize("order", [*permutations((1, 2, 3, 4))], ids=str)
def test_the_order_of_loads_does_not_matter(order):
    """It is the last of a window's log days to come that closes it."""
    raw = ledger(RAW, *(make_raw_record(version, days(n)) for version, n in enumerate(order)))
    assert window_closed_at(raw, SHORT) == {
        day(n): max(order.index(logged) for logged in (n, n + 1, n + 2)) for n in (1, 2)
    }


def test_a_log_day_whose_folder_never_came_closes_nothing():
    """It was loaded as an empty one; the day after it may lack early lines."""
    raw = ledger(
        RAW, *(make_raw_record(n, days(n), settled=days(n) - days(4, 5)) for n in range(1, 9))
    )
    assert window_closed_at(raw, SHORT) == {day(1): 3, day(6): 8}


def test_the_folder_that_came_after_all_closes():
    nights = [make_raw_record(n, days(n), settled=days(n) - days(4, 5)) for n in range(1, 9)]
    raw = ledger(RAW, *nights, make_raw_record(9, days(4, 5)))
    assert window_closed_at(raw, SHORT) == {day(1): 3, **dict.fromkeys(days((2, 5)), 9), day(6): 8}


def test_what_comes_before_a_window_closes_keeps_it_open():
    before = [
        make_raw_record(1, days(1)),
        make_raw_record(2, days(2)),
        make_raw_record(3, days(3), unsettled=days(1)),
    ]
    assert window_closed_at(ledger(RAW, *before), SHORT) == {}
    assert settled_days(ledger(RAW, *before)) == days(2, 3)
    raw = ledger(RAW, *before, make_raw_record(4, days(4)), make_raw_record(5, days(1)))
    assert window_closed_at(raw, SHORT) == {day(2): 4, day(1): 5}


@pytest.mark.parametrize(
    "later",
    [
        make_raw_record(4, days(9), unsettled=days(2)),  # a file landed and was not loaded
        make_raw_record(4, days(2), days(1, 2)),  # and was loaded
        make_raw_record(4, days(2), settled=(), unsettled=days(2)),  # and waits for a person
    ],
)
def test_what_comes_after_a_window_has_closed_does_not_open_it(later):
    raw = ledger(RAW, make_raw_record(3, days((1, 3))), later)
    assert window_closed_at(raw, SHORT) == {day(1): 3}


def test_a_log_day_that_is_taken_back_opens_its_windows():
    first = [make_raw_record(n, days(n)) for n in range(1, 7)]
    undo = make_raw_record(7, (), settled=(), reverted=days(4))
    assert window_closed_at(ledger(RAW, *first), SHORT) == {day(n): n + 2 for n in range(1, 5)}
    assert window_closed_at(ledger(RAW, *first, undo), SHORT) == {day(1): 3}
    assert settled_days(ledger(RAW, *first, undo)) == days(1, 2, 3, 5, 6)
    # Nothing but the day itself closes them again.
    other = make_raw_record(8, days(5))
    assert window_closed_at(ledger(RAW, *first, undo, other), SHORT) == {day(1): 3}
    second_load = make_raw_record(8, days(4))
    assert window_closed_at(ledger(RAW, *first, undo, second_load), SHORT) == {
        day(1): 3,
        **dict.fromkeys(days((2, 4)), 8),
    }


def test_records_that_do_not_say_what_is_settled_close_nothing():
    assert window_closed_at(ledger(RAW, record(0, days((1, 9)))), SHORT) == {}


@given(
    st.lists(st.tuples(*(st.sets(st.integers(1, 6)) for _ in range(3))), min_size=1, max_size=8),
    st.integers(0, 3),
)
def test_closings_are_what_somebody_would_have_noted(history, window_days):
    """Against the plain rule, commit by commit."""
    policy = replace(POLICY, window_days=window_days)
    commits = [
        make_raw_record(n, (), settled=days(*new), unsettled=days(*old), reverted=days(*reverted))
        for n, (new, old, reverted) in enumerate(history)
    ]
    settled, closed = set(), {}
    for n, (new, old, reverted) in enumerate(history):
        closed = {
            d: at for d, at in closed.items() if not {*range(d, d + window_days + 1)} & reverted
        }
        settled = (settled - old - reverted) | new
        for d in range(1, 7):
            if {*range(d, d + window_days + 1)} <= settled:
                closed.setdefault(d, n)
    raw = ledger(RAW, *commits)
    assert settled_days(raw) == days(*settled)
    assert window_closed_at(raw, policy) == {day(d): at for d, at in closed.items()}


# --- arrivals -------------------------------------------------------------------------------------


def load_record(
    version: int, listing: Listing, *logged: int, before: Iterable[CommitRecord] = (), **how
) -> CommitRecord:
    """A load of some days, when the landing was as listed."""
    then = loaded_manifests(ledger(RAW, *before))
    targets = {day(n): load_target(day(n), then.get(day(n)), listing, **how) for n in logged}
    manifest_json = {str(d): day_target.manifest.as_json for d, day_target in targets.items()}
    return record(version, targets, landing=json.loads(json.dumps(manifest_json)))


def find_arrivals(
    raw: Iterable[CommitRecord], listing: Listing, today: int, **changes
) -> UnloadedDays:
    return find_unloaded_days(ledger(RAW, *raw), listing, replace(POLICY, **changes), day(today))


NOTHING = UnloadedDays()


def test_a_new_day():
    result = find_arrivals(
        [load_record(1, make_landing("f=a"), 1)], make_landing("f=a", "f=b"), today=3
    )
    assert result.days_to_load.keys() == days(2)
    assert result == UnloadedDays(days_to_load=result.days_to_load)


def test_nothing_landed_and_nothing_loaded():
    assert find_arrivals([], make_landing(), today=1) == NOTHING
    result = find_arrivals([], make_landing(), today=3)
    assert result.days_to_load.keys() == result.missing_days == days(1, 2)


@pytest.mark.parametrize(
    ("lag", "today", "load", "absent"),
    [
        (1, 2, (1,), ()),
        (1, 3, (1, 2), (2,)),
        (3, 4, (1, 3), ()),
        (3, 5, (1, 2, 3), (2,)),
        (3, 6, (1, 2, 3), (2,)),
        (3, 7, (1, 2, 3, 4), (2, 4)),
    ],
)
def test_a_day_without_a_folder_is_an_empty_day_when_it_is_due(lag, today, load, absent):
    result = find_arrivals([], make_landing("f=a", None, "f=c"), today, lag_days=lag)
    # With a lag of 1 every day that is over is due.
    assert result.days_to_load.keys() == days(*load)
    assert result.missing_days == days(*absent)


def test_a_folder_without_files_is_a_day_that_landed():
    result = find_arrivals([], make_landing(""), today=2)
    assert result.days_to_load.keys() == days(1)
    assert result.missing_days == frozenset()


@pytest.mark.parametrize("today", [1, 2, 3])
def test_a_day_is_loaded_when_it_is_over(today):
    result = find_arrivals([], make_landing("f=a", "f=b", "f=c"), today)
    assert result.days_to_load.keys() == days((1, today - 1))


@pytest.mark.parametrize(
    ("start", "end", "load"), [(2, None, (2, 3, 4)), (1, 3, (1, 2)), (2, 3, (2,)), (9, None, ())]
)
def test_folders_outside_the_calendar_are_not_loaded(start, end, load):
    whole = make_landing("f=a", "f=b", "f=c", "f=d")
    result = find_arrivals([], whole, 5, start=day(start), end=end and day(end))
    assert result.days_to_load.keys() == days(*load)


@pytest.mark.parametrize("absent_days", [1, 4])
def test_a_clock_that_jumps_ahead_asks_for_few_days(absent_days):
    """Years of empty days would be loaded, as each of them is due by such a clock."""
    result = find_arrivals([], make_landing("f=a", "f=b"), today=20_000, absent_days=absent_days)
    assert result.days_to_load.keys() == days((1, 2 + absent_days))
    assert result.last_day_requested == day(2 + absent_days)


def test_what_lands_moves_the_last_day_that_is_asked_for():
    empty = load_record(2, make_landing("f=a", None), 1, 2)
    result = find_arrivals(
        [empty], make_landing("f=a", None, None, "f=d"), today=100, absent_days=2
    )
    assert result.days_to_load.keys() == days((3, 6))


def test_a_landing_that_was_purged_does_not_move_it():
    before = load_record(3, make_landing("f=a", "f=b", "f=c"), 1, 2, 3)
    assert find_arrivals(
        [before], make_landing(), today=100, absent_days=2
    ).days_to_load.keys() == days(4, 5)


def test_a_folder_of_the_future_does_not_move_it():
    """Named by mistake: what is not over is not loaded, and says nothing of the days before."""
    listing = make_landing("f=a", *[None] * 40, "f=z")
    assert find_arrivals([], listing, today=30, absent_days=2).days_to_load.keys() == days((1, 3))


def test_a_calendar_that_begins_after_what_was_loaded():
    before = load_record(1, make_landing("f=a"), 1)
    result = find_arrivals([before], make_landing(), today=40, start=day(20), absent_days=2)
    assert result.days_to_load.keys() == days(20, 21)


def test_a_clock_at_the_end_of_all_days():
    result = find_arrivals(
        [], make_landing("f=a"), today=(date.max - day(1)).days + 1, absent_days=2
    )
    assert result.days_to_load.keys() == days((1, 3))


def test_early_lines_before_the_first_day_are_loaded_with_it():
    result, other = (
        find_arrivals([], make_landing(text, "f=b"), 3, start=day(2)) for text in ("f=a", "f=x")
    )
    assert result.days_to_load.keys() == other.days_to_load.keys() == days(2)
    assert result.days_to_load != other.days_to_load


THREE = make_landing("f=a", "f=b", "f=c")
LOADED = load_record(1, THREE, 1, 2, 3)


@pytest.mark.parametrize("at", [1, 2, 0])
def test_copied_files_are_not_loaded_again(at):
    """Whatever their times are, or if the store does not say any."""
    assert find_arrivals([LOADED], make_landing("f=a", "f=b", "f=c", at=at), 4) == NOTHING


def test_only_files_that_look_changed_are_opened():
    now = replace(make_landing("f=a", "f=b g=new", "f=c"), opened=set())
    find_arrivals([LOADED], now, 4)
    assert now.opened == {"g"}


@pytest.mark.parametrize(
    ("now", "load"),
    [
        # Files added to a folder concern its day and the next, whose early lines may lie there.
        (("f=a g=x", "f=b", "f=c"), (1, 2)),
        (("f=a", "f=b g=x", "f=c"), (2, 3)),
        (("f=a", "f=b", "f=c g=x"), (3,)),
        (("f=a", "f=other", "f=c"), (2, 3)),  # another file of the same name
        (("f=a", "g=b", "f=c"), ()),  # the same file under another name
        (("f=a", "g=b h=b", "f=c"), (2, 3)),  # and once more
        (("f=a", "g=x", "f=c"), (2, 3)),  # another file in its place
        # Files that are gone: their rows stay.
        (("", "f=b", "f=c"), ()),
        (("f=a", "", "f=c"), ()),
        (("f=a", "f=b", ""), ()),
        (("f=a", "f=b"), ()),
        ((), ()),
        (("f=a", "", "f=c g=x"), (3,)),
    ],
)
def test_changed_folders(now, load):
    result = find_arrivals([LOADED], make_landing(*now), 4)
    assert result.days_to_load.keys() == days(*load)
    # A folder that is gone has been there.
    assert result.missing_days == frozenset()


def test_files_that_changed_places():
    """They are as long as before, but not as old."""
    assert find_arrivals(
        [LOADED], make_landing("f=a", "f=c", "f=b", at=2), 4
    ).days_to_load.keys() == days(2, 3)


def test_the_latest_load_of_a_day_counts():
    now = make_landing("f=a", "f=b g=x", "f=c")
    second_load = load_record(2, now, 2, before=[LOADED])
    assert find_arrivals([LOADED, second_load], now, 4).days_to_load.keys() == days(3)
    other = load_record(3, now, 3, before=[LOADED, second_load])
    assert find_arrivals([LOADED, second_load, other], now, 4) == NOTHING


def test_what_is_loaded_is_gone_and_comes_back():
    """Nothing of it is news, whoever loads the day in between."""
    between = load_record(2, make_landing("f=a", "g=x", "f=c"), 2, 3, before=[LOADED])
    back = make_landing("f=a", "f=b g=x", "f=c")
    assert find_arrivals([LOADED, between], back, 4) == NOTHING


def test_files_for_a_day_that_was_loaded_as_empty():
    empty = load_record(1, make_landing(), 1, 2)
    assert find_arrivals([empty], make_landing(), 3) == UnloadedDays(missing_days=days(1, 2))
    result = find_arrivals([empty], make_landing("f=a"), 3)
    assert result.days_to_load.keys() == days(1, 2)
    assert result.missing_days == days(2)
    # An empty folder says that there is nothing to send: the days can be settled.
    assert find_arrivals([empty], make_landing("", ""), 3).days_to_load.keys() == days(1, 2)


def test_days_of_before_there_were_manifests_are_loaded_once():
    old = [record(1, days(1)), record(2, days(2, 3), landing={str(day(2)): ["none", "1-a"]})]
    assert find_arrivals(old, THREE, 4).days_to_load.keys() == days((1, 3))
    assert find_arrivals([*old, load_record(3, THREE, 1, 2, 3)], THREE, 4) == NOTHING


def test_days_of_before_there_were_manifests_are_loaded_without_their_folders_too():
    """So that their manifests say which files they were made of."""
    assert find_arrivals(
        [record(1, days(1))], make_landing(), 2, lag_days=3
    ).days_to_load.keys() == days(1)


def test_a_day_that_was_taken_back_comes_again_with_new_files_only():
    undo = msgspec.structs.replace(record(2, ()), revoked_days=days(2))
    assert find_arrivals([LOADED, undo], THREE, 4) == NOTHING
    assert find_arrivals(
        [LOADED, undo], make_landing("f=a", "f=b g=x", "f=c"), 4
    ).days_to_load.keys() == days(2, 3)


def records_with_held_file(*folders: str) -> list[CommitRecord]:
    """Day 2 was loaded, its file was replaced, and the next load held that one back."""
    listing, then = make_landing(*folders), loaded_manifests(ledger(RAW, LOADED))[day(2)]
    waits = load_target(day(2), then, listing).hold_back_files({file_path(2, "f")}, then)
    return [LOADED, record(2, days(2), landing={str(day(2)): waits.manifest.as_json})]


def test_a_file_that_is_held_back_waits():
    less = ("f=a", "f=less", "f=c")
    result = find_arrivals(records_with_held_file(*less), make_landing(*less), 4)
    assert result.days_to_load.keys() == days(3)  # it has not been asked what it says of the file
    assert result.files_on_hold == {day(2): [file_path(2, "f")]}
    third = load_record(3, make_landing(*less), 3, before=[LOADED])
    result = find_arrivals([*records_with_held_file(*less), third], make_landing(*less, at=9), 4)
    assert result == UnloadedDays(files_on_hold={day(2): [file_path(2, "f")]})


@pytest.mark.parametrize(
    ("now", "load"), [("f=other", (2,)), ("f=b", (2,)), ("f=less g=x", (2,)), ("g=less", (2,))]
)
def test_a_file_that_is_held_back_and_changes(now, load):
    result = find_arrivals(records_with_held_file("f=a", "f=less"), make_landing("f=a", now), 3)
    assert result.days_to_load.keys() == days(*load)
    assert result.files_on_hold == ({day(2): [file_path(2, "f")]} if "f=less" in now else {})


@pytest.mark.parametrize(("last", "close"), [(5, False), (6, True), (9, True)])
def test_a_folder_is_waited_for_until_one_of_long_after_has_been_loaded(last, close):
    """Day 2 has none. By what was loaded, not by the calendar: a source may be down for long."""
    folders = ["f=a", None, *(f"f={n}" for n in range(3, last + 1))]
    listing, whole = make_landing(*folders), range(1, last + 1)
    raw = [load_record(1, listing, *whole)]
    policy = {"absent_days": 4}
    first = find_arrivals(raw, listing, 100, **policy, end=day(last + 1))
    # The day after needs that folder no more, and is settled by a load of its own.
    assert first.days_to_load.keys() == (days(2, 3) if close else set())
    assert first.missing_days == (frozenset() if close else days(2))
    if close:
        raw.append(load_record(2, listing, 2, 3, before=raw, closed_days=days(2)))
        assert find_arrivals(raw, listing, 100, **policy, end=day(last + 1)) == UnloadedDays(
            closed_days=days(2)
        )
    # A folder that comes after all is loaded.
    folders[1] = "f=late"
    late = find_arrivals(raw, make_landing(*folders), 100, **policy, end=day(last + 1))
    assert late.days_to_load.keys() == days(2, 3)
    assert late.missing_days == frozenset()


def test_rejected_lines_that_were_not_published_with_their_day_are_loaded():
    """A crash between the two commits of a load."""
    raw, policy = ledger(RAW, LOADED), POLICY
    input_digests = {d: manifest.content_digest() for d, manifest in loaded_manifests(raw).items()}

    def rejected_ledger(made_of: Mapping[date, str]) -> Ledger:
        commit_record = record(1, made_of)
        published_days = {
            d: msgspec.structs.replace(commit_record.days[d], input_digest=r)
            for d, r in made_of.items()
        }
        return ledger(REJECTED, msgspec.structs.replace(commit_record, days=published_days))

    def days_to_load(rejected: Ledger) -> set[date]:
        return set(find_unloaded_days(raw, THREE, policy, day(4), rejected).days_to_load)

    assert days_to_load(rejected_ledger(input_digests)) == set()
    assert days_to_load(rejected_ledger({d: input_digests[d] for d in days(1, 3)})) == days(2)
    assert days_to_load(rejected_ledger({**input_digests, day(3): "an older one"})) == days(3)
    # Nobody recorded it: it is taken for what it should be.
    assert days_to_load(rejected_ledger({**input_digests, day(3): ""})) == set()
    assert days_to_load(rejected_ledger(input_digests | dict.fromkeys(days(2), "x"))) == days(2)
    undo = msgspec.structs.replace(record(2, ()), revoked_days=days(2))
    assert (
        days_to_load(
            replace(ledger(REJECTED, *rejected_ledger(input_digests).records, undo), measured={})
        )
        == set()
    )


# --- requests: loading ----------------------------------------------------------------------------

LOADS = (RAW.name, REJECTED.name, LATE.name, LATENESS.name)


@pytest.mark.parametrize(
    ("load", "per_run", "expected"),
    [
        ((), NO_LIMIT, []),
        ([(1, 5)], NO_LIMIT, [((1, 5),)]),
        ([(1, 3), 5, (7, 8)], NO_LIMIT, [((1, 3), 5, (7, 8))]),
        ([(1, 3), 5, (7, 8)], 4, [((1, 3), 5), ((7, 8),)]),
        ([(1, 5)], 2, [((1, 2),), ((3, 4),), (5,)]),
        ([(1, 2), (4, 5)], 2, [((1, 2),), ((4, 5),)]),
        ([1, 3], 1, [(1,), (3,)]),
        ([(1, 5)], 5, [((1, 5),)]),
        ([(1, 5)], 99, [((1, 5),)]),
    ],
)
def test_load_requests(load, per_run, expected):
    requests = request_loads(UnloadedDays(dict.fromkeys(days(*load), "x")), per_run)
    assert [{*request.window} for request in requests] == [days(*run) for run in expected]
    assert {request.tables for request in requests} <= {LOADS}
    assert len({request.key for request in requests}) == len(requests)


def test_a_load_leaves_out_what_would_be_refused():
    """The days before day 2 were made under other settings: the log is loaded, lateness waits."""
    asked_for = []

    def find_blocked(table, new, built):
        asked_for.append((table, {name: {*built_days} for name, built_days in built.items()}))
        return days(2).intersection(new) if table == LATENESS.name else ()

    new = UnloadedDays(dict.fromkeys(days((1, 3)), "x"))
    requests = request_loads(new, NO_LIMIT, find_blocked=find_blocked)
    without_lateness = tuple(name for name in LOADS if name != LATENESS.name)
    assert describe_requests(requests) == {
        (LOADS, "2024-01-01, 2024-01-03"),
        (without_lateness, "2024-01-02"),
    }
    built = dict.fromkeys((RAW.name, REJECTED.name, LATE.name), days((1, 3)))
    assert asked_for[0] == (LATE.name, built)


def load_request_key(*folders: str) -> str:
    (request,) = request_loads(
        find_arrivals([], make_landing(*folders), len(folders) + 1), NO_LIMIT
    )
    return request.key


def test_the_key_of_a_load_says_what_is_loaded():
    key = load_request_key("f=a", "f=b")
    assert key == load_request_key("f=a", "g=b")
    others = [("f=a", "f=x"), ("f=x", "f=b"), ("f=a", ""), ("f=a",), ("f=a", "f=b", "f=c")]
    assert len({key, *(load_request_key(*other) for other in others)}) == 6


# --- requests: rebuilding -------------------------------------------------------------------------


def make_backlog(**records_by_table: Mapping[date, CommitRecord]) -> StaleDays:
    """A backlog by short table name: for each day the record that it lacks."""
    tables = {"stg": STAGED, "fact": FACT, "current": CURRENT, "late": LATE, "lness": LATENESS}
    return StaleDays(
        {
            tables[short].name: {d: StaleReason({"in": needed}) for d, needed in by_day.items()}
            for short, by_day in records_by_table.items()
        }
    )


def needed_records(
    version: int, *numbers: int | tuple[int, int], **more
) -> dict[date, CommitRecord]:
    return dict.fromkeys(days(*numbers), record(version, (), **more))


def describe_requests(requests: Iterable[Request]) -> set[tuple[tuple[str, ...], str]]:
    return {(request.tables, str(request.window)) for request in requests}


CHAIN = (STAGED.name, FACT.name, CURRENT.name, CORRECTIONS.name)


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        (make_backlog(), set()),
        (make_backlog(stg=needed_records(1, 1)), {(CHAIN, "2024-01-01")}),
        (make_backlog(fact=needed_records(1, 1)), {(CHAIN[1:], "2024-01-01")}),
        (make_backlog(current=needed_records(1, 1)), {(CHAIN[2:], "2024-01-01")}),
        # What follows is built with the first that is behind, once.
        (
            make_backlog(
                stg=needed_records(1, 1), fact=needed_records(1, 1), current=needed_records(1, 1)
            ),
            {(CHAIN, "2024-01-01")},
        ),
        (
            make_backlog(stg=needed_records(1, 1), current=needed_records(1, 1)),
            {(CHAIN, "2024-01-01")},
        ),
        (
            make_backlog(stg=needed_records(1, (1, 3)), current=needed_records(1, 2, 4)),
            {(CHAIN, "2024-01-01...2024-01-03"), (CHAIN[2:], "2024-01-04")},
        ),
        # By log day, each is built for itself; those of one day together.
        (
            make_backlog(late=needed_records(1, 1), lness=needed_records(1, 1, 2)),
            {((LATE.name, LATENESS.name), "2024-01-01"), ((LATENESS.name,), "2024-01-02")},
        ),
        (
            make_backlog(late=needed_records(1, 1), stg=needed_records(1, 1)),
            {((LATE.name,), "2024-01-01"), (CHAIN, "2024-01-01")},
        ),
        # One run has days with gaps, and exactly these.
        (
            make_backlog(stg=needed_records(1, (1, 2), 4)),
            {(CHAIN, "2024-01-01...2024-01-02, 2024-01-04")},
        ),
    ],
)
def test_rebuild_requests(behind, expected):
    requests = request_rebuilds(behind, NO_LIMIT)
    assert describe_requests(requests) == expected
    assert len(requests) == len(expected)


@pytest.mark.parametrize(
    ("per_run", "lengths"), [(NO_LIMIT, [7]), (3, [3, 3, 1]), (7, [7]), (1, 7 * [1])]
)
def test_a_long_range_is_cut(per_run, lengths):
    requests = request_rebuilds(make_backlog(stg=needed_records(1, (1, 7))), per_run)
    assert [len(request.window) for request in requests] == lengths
    assert {d for request in requests for d in request.window} == days((1, 7))


def list_request_keys(behind: StaleDays, per_run: int = NO_LIMIT) -> set[str]:
    return {request.key for request in request_rebuilds(behind, per_run)}


def test_what_is_not_built_from_days_of_other_settings_does_not_follow_them():
    """Day 2 of staging is of other settings: facts follow it only if it is built as well."""
    staged = ledger(STAGED, record(0, days((1, 3))), record(1, days(2), config_digest="of before"))
    facts = ledger(FACT, record(0, days((1, 3)), inputs={STAGED.name: 0}))
    known = ledgers(ledger(RAW, make_raw_record(0, days((1, 3)))), staged, facts)
    config_digests = dict.fromkeys(TABLES, "config")
    snapshot = replace(snapshot_ledgers(known, POLICY, day(4)), config_digests=config_digests)
    find_blocked = make_block_rule(snapshot)
    assert find_blocked(FACT.name, days((1, 4)), {}) == days(2, 4)  # staging lacks day 4
    assert find_blocked(FACT.name, days((1, 4)), {STAGED.name: days(2)}) == days(4)
    assert find_blocked(FACT.name, days((1, 4)), {STAGED.name: days(2, 4)}) == set()
    # Nor is a day included that would be refused, although it is as it should be.
    may_include = make_inclusion_rule(snapshot, StaleDays())
    assert [may_include(FACT.name, day(n)) for n in (1, 2, 3)] == [True, False, True]
    behind = make_backlog(stg=needed_records(1, (1, 3)))
    requests = request_rebuilds(
        behind, NO_LIMIT, find_blocked=lambda _table, new, _built: days(2).intersection(new)
    )
    assert describe_requests(requests) == {
        ((STAGED.name,), "2024-01-02"),
        (CHAIN, "2024-01-01, 2024-01-03"),
    }


def test_the_key_stays_for_the_same_days_and_inputs():
    stale, other = (
        make_backlog(stg=needed_records(1, (1, 3))),
        make_backlog(stg={**needed_records(1, 3), **needed_records(1, 1, 2)}),
    )
    assert list_request_keys(stale) == list_request_keys(other)
    assert len(list_request_keys(stale)) == 1
    assert len(list_request_keys(stale, per_run=1)) == 3


@pytest.mark.parametrize(
    "other",
    [
        make_backlog(stg=needed_records(2, (1, 3))),
        make_backlog(stg={**needed_records(1, 1, 2), **needed_records(2, 3)}),
        make_backlog(stg={**needed_records(2, 1), **needed_records(1, 2, 3)}),
        make_backlog(stg=needed_records(1, (1, 4))),
        make_backlog(stg=needed_records(1, (1, 2))),
        make_backlog(stg=needed_records(1, (2, 4))),
        make_backlog(fact=needed_records(1, (1, 3))),
        make_backlog(current=needed_records(1, (1, 3))),
        make_backlog(stg=needed_records(1, (1, 3)), fact=needed_records(7, 2)),
        make_backlog(stg=needed_records(11, (1, 3))),
    ],
)
def test_the_key_moves_with_days_tables_and_versions(other):
    assert not list_request_keys(make_backlog(stg=needed_records(1, (1, 3)))) & list_request_keys(
        other
    )


def test_the_key_tells_inputs_apart():
    facts = StaleDays({CURRENT.name: {day(1): StaleReason({FACT.name: record(3, ())})}})
    both = StaleDays(
        {
            CURRENT.name: {
                day(1): StaleReason({n: record(3, ()) for n in (FACT.name, CORRECTIONS.name)})
            }
        }
    )
    corrections = StaleDays(
        {CURRENT.name: {day(1): StaleReason({CORRECTIONS.name: record(3, ())})}}
    )
    assert (
        len(list_request_keys(facts) | list_request_keys(both) | list_request_keys(corrections))
        == 3
    )


def test_the_key_moves_with_the_commit_though_the_version_is_the_same():
    """A table that was made anew begins with version 0 again."""
    anew = msgspec.structs.replace
    first, second = (
        make_backlog(stg={day(1): anew(record(0, ()), commit_id=commit)}) for commit in ("a", "b")
    )
    assert not list_request_keys(first) & list_request_keys(second)


def test_fourteen_landed_days_are_a_handful_of_requests():
    """Each of them has lines for days before, and one day of three is behind in every table."""
    names = (STAGED, FACT, CURRENT, LATE, CORRECTIONS, LATENESS)
    behind = StaleDays(
        {
            table.name: {
                d: StaleReason({"in": record(1, ())}) for d in list(days((1, 14)))[n % 3 :: 3]
            }
            for n, table in enumerate(names)
        }
    )
    assert len(request_rebuilds(behind, NO_LIMIT)) == BATCH_SIZE
    # Fewer, if a run may have tables that need not be built.
    requests = request_rebuilds(behind, NO_LIMIT, may_include=lambda _table, _day: True)
    assert len(requests) < BATCH_SIZE
    for table in names:
        built = {d for r in requests if table.name in r.tables for d in r.window}
        assert built >= behind.open[table.name].keys()


SCATTERED = [day(1) + 3 * n * DAY for n in range(500)]


def test_five_hundred_scattered_days_are_built_alone_by_few_runs():
    raw = UnloadedDays(dict.fromkeys(SCATTERED, "x"))
    behind = make_backlog(current=dict.fromkeys(SCATTERED, record(1, ())))
    for requests in (request_loads(raw, 31), request_rebuilds(behind, 31)):
        assert [d for request in requests for d in request.window] == SCATTERED
        assert len(requests) == math.ceil(len(SCATTERED) / 31)
        assert first_batch(requests) == requests, "runs of the same tables count as one"
        assert max(len(request.key) for request in requests) < 200


def test_a_day_that_failed_changes_the_run_of_no_other_day():
    """New days do not have it tried again, and its run has no other day."""
    keys = {}
    for numbers in ((3,), (3, 9), (3, 9, 12)):
        behind = make_backlog(stg=needed_records(1, *numbers))
        requests = request_rebuilds(behind, NO_LIMIT, failed_days={STAGED.name: days(3)})
        keys[numbers] = {str(request.window): request.key for request in requests}
    assert [*map(set, keys.values())] == [
        {"2024-01-03"},
        {"2024-01-03", "2024-01-09"},
        {"2024-01-03", "2024-01-09, 2024-01-12"},
    ]
    assert len({by_window["2024-01-03"] for by_window in keys.values()}) == 1


def test_a_day_that_failed_is_known_from_the_commits():
    failed = msgspec.structs.replace(record(1, days(1, 2)), failed_days={day(3): "too few"})
    assert ledger(STAGED, record(0, days(3)), failed).failed_days == days(3)
    assert ledger(STAGED, failed, record(2, days(3))).failed_days == set()


def test_a_batch_is_a_handful_of_tables_and_the_next_one_goes_on():
    requests = [
        Request((f"table_{n % 12}",), Window(day(n), day(n + 1)), str(n)) for n in range(1, 25)
    ]
    batch = first_batch(requests)
    assert {request.tables[0] for request in batch} == {f"table_{n}" for n in range(1, 6)}
    rest = [request for request in requests if request not in batch]
    assert {request.tables[0] for request in first_batch(rest)} == {
        f"table_{n}" for n in range(6, 11)
    }


CHAINED, OTHERS = frozenset(CHAIN), frozenset({RAW.name, *BY_LOG_DAY})


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        (None, {"2024-01-01...2024-01-03"}),
        ({}, {"2024-01-01...2024-01-03"}),
        ({"other": CHAINED}, {"2024-01-01...2024-01-03"}),
        ({"run 2": CHAINED}, {"2024-01-01, 2024-01-03"}),
        ({"b2": CHAINED}, {"2024-01-01, 2024-01-03"}),
        ({"run 1": CHAINED}, {"2024-01-02"}),
        ({"run 1": CHAINED, "b2": CHAINED}, set()),
        # One that does not build what is behind is not waited for.
        ({"run 2": OTHERS}, {"2024-01-01...2024-01-03"}),
        ({"run 2": OTHERS, "b2": CHAINED}, {"2024-01-01, 2024-01-03"}),
        ({"run 2": frozenset()}, {"2024-01-01...2024-01-03"}),
    ],
)
def test_what_a_run_or_backfill_is_about_to_build_is_left_alone(busy, expected):
    behind = make_backlog(stg={**needed_records(1, 1, 3), **needed_records(2, 2, backfill="b2")})
    requests = request_rebuilds(behind, NO_LIMIT, busy)
    assert {str(request.window) for request in requests} == expected


def test_what_a_busy_run_does_not_build_is_asked_for():
    """A load builds what follows by log day, and nothing else."""
    behind = make_backlog(stg=needed_records(1, 1), late=needed_records(1, 1))
    assert describe_requests(request_rebuilds(behind, NO_LIMIT, {"run 1": OTHERS})) == {
        (CHAIN, "2024-01-01")
    }


def test_a_day_waits_for_all_runs_that_it_is_behind():
    finished, going = record(1, (), run="done"), record(2, (), run="going")
    behind = StaleDays(
        {CURRENT.name: {day(1): StaleReason({FACT.name: finished, CORRECTIONS.name: going})}}
    )
    assert request_rebuilds(behind, NO_LIMIT, {"going": CHAINED}) == []
    assert len(request_rebuilds(behind, NO_LIMIT, {"something else": CHAINED})) == 1


def test_corrections_without_facts_are_not_asked_for():
    """What is known of a day that is staged for the first time, by a run that is still going."""
    raw = ledger(
        RAW,
        make_raw_record(1, days(1), run="going"),
        make_raw_record(2, days(9), (), current=days(1)),
    )
    result = find_stale_days(snapshot_ledgers(ledgers(raw), POLICY, LATER))
    busy = {"going": frozenset({RAW.name, STAGED.name})}
    asked_for = [r.tables for r in request_rebuilds(result, NO_LIMIT, busy) if day(1) in r.window]
    assert [tables for tables in asked_for if tables[0] in CHAIN] == [(CURRENT.name,)]
    # With the facts they are.
    stg = ledger(STAGED, staged_record(0, days(1), raw=1))
    result = find_stale_days(snapshot_ledgers(ledgers(raw, stg), POLICY, LATER))
    assert {r.tables for r in request_rebuilds(result, NO_LIMIT) if day(1) in r.window} >= {
        CHAIN[1:]
    }


# --- all of it together: a life of loads, crashes and rebuilds ------------------------------------


@dataclass
class World:
    """The tables as runs leave them, without rows: who published what from which version."""

    policy: Policy
    records: dict[str, list[CommitRecord]] = field(
        default_factory=lambda: {name: [] for name in TABLES}
    )
    settled: set[date] = field(default_factory=set)
    shut: set[date] = field(default_factory=set)
    closed: set[date] = field(default_factory=set)
    rebuilt: set[date] = field(default_factory=set)

    @property
    def ledgers(self) -> dict[str, Ledger]:
        return ledgers(
            *(ledger(TABLES[name], *table_records) for name, table_records in self.records.items())
        )

    def compute_backlog(self, today: date) -> StaleDays:
        return find_stale_days(snapshot_ledgers(self.ledgers, self.policy, today))

    def note_closed_days(self) -> None:
        """Note which days are closed: their window is shut, and they were up to date since."""
        raw, stg = self.ledgers[RAW.name], self.ledgers[STAGED.name]
        changed: dict[date, int] = {}
        for log in raw.records:
            open_days = {d for n in log.days for d in self.policy.affected_event_days(n)}
            touches = from_ranges(log.details.event_days) if self.policy.only_touched else open_days
            changed |= dict.fromkeys(touches, log.version)
        self.closed |= {
            d
            for d, built in stg.latest.items()
            if d in self.shut and built.inputs[RAW.name] >= changed[d]
        }
        assert set(window_closed_at(raw, self.policy)) == self.shut

    def load_window(
        self, window: Window, changes: set[date], follow: set[date], waits: set[date]
    ) -> None:
        """A night's load: raw and rejected, with what follows by log day.

        Args:
            window: the log days.
            changes: the event days for which there is something new among it, of all ages.
            follow: later log days of the same orders.
            waits: the log days for which more is due then, of those loaded or of others.
        """
        before = self.ledgers[RAW.name]
        new, known = set(window) - before.published_days, before.published_days | set(window)
        event_days = {d for log_day in window for d in self.policy.affected_event_days(log_day)}
        self.records[RAW.name].append(
            make_raw_record(
                len(before.records),
                window,
                new | (event_days & changes & known),
                current=new | {d for d in changes & known if d < window.end},
                follow={d for d in follow & before.published_days if d > window.start},
                settled=set(window) - waits,
                unsettled=waits,
            )
        )
        self.settled = (self.settled - waits) | (set(window) - waits)
        self.shut |= {
            d
            for d in Window(self.policy.start, window.end)
            if {*self.policy.log_days(d)} <= self.settled
        }
        for name in (REJECTED.name, *BY_LOG_DAY):
            self.publish_table(name, window, NIGHTLY)

    def publish_table(self, name: str, window: Window, launcher: str) -> None:
        now = self.ledgers
        final: set[date] = set()
        if name == STAGED.name:
            final = set(window) & self.shut
        elif name == FACT.name:
            final = set(window) & now[STAGED.name].final_days
        if launcher != "person" and name in (STAGED.name, FACT.name):
            assert not now[name].final_days & set(window), f"{name}: a final day is rebuilt"
        if launcher != "person" and name == STAGED.name:
            self.rebuilt |= self.closed & set(window)
        for source in SOURCES[name]:
            assert set(window) <= now[source].published_days, f"{name} lacks {source}"
        inputs = {source: now[source].version for source in SOURCES[name]}
        number = len(self.records[name])
        self.records[name].append(
            record(number, window, inputs=inputs, final=final, launched_by=launcher)  # type: ignore[arg-type]
        )
        self.note_closed_days()

    def execute_request(
        self, request: Request, steps: int | None = None, launcher: str = ""
    ) -> None:
        """A run that dies after so many steps, or succeeds."""
        for name in request.tables[:steps]:
            self.publish_table(name, request.window, launcher or NIGHTLY)


LAST = 5
some_days = st.sets(st.integers(1, LAST).map(day), max_size=3)
acts = st.one_of(
    st.tuples(
        st.just("load"), st.integers(1, LAST), st.integers(1, 4), some_days, some_days, some_days
    ),
    st.tuples(st.just("crash"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("person"), st.integers(1, LAST), st.integers(1, 3)),
    st.tuples(st.just("night"), st.integers(1, LAST + 5)),
)
lives = given(
    st.lists(acts, min_size=5, max_size=15),
    st.booleans(),
    st.integers(0, 2),
    st.integers(1, 3),
    st.sampled_from([NO_LIMIT, 1, 2]),
)


@settings(max_examples=150, deadline=None)
@lives
def test_whatever_happens_the_requests_end_with_every_open_day_up_to_date(
    history, only_touched, window_days, lag, per_run
):
    world = play_history(history, only_touched, window_days, lag, per_run)
    _nothing_is_missed(world, final_days(world.compute_backlog(day(LAST + 9)), STAGED))


@settings(max_examples=300, deadline=None, derandomize=True, phases=[Phase.generate])
@lives
def test_whatever_happens_no_closed_day_is_rebuilt(
    history, only_touched, window_days, lag, per_run
):
    assert not play_history(history, only_touched, window_days, lag, per_run).rebuilt


def play_history(history, only_touched, window_days, lag, per_run) -> World:
    policy = replace(
        POLICY,
        end=day(LAST + 1),
        only_touched=only_touched,
        window_days=window_days,
        lag_days=lag,
    )
    world, end = World(policy), day(LAST + 9)
    for act, *how in history:
        if act == "load":
            first, length, *day_sets = how
            last = min(first + length, LAST + 1)
            world.load_window(Window(day(first), day(last)), *day_sets)
        elif act == "crash" and (requests := request_rebuilds(world.compute_backlog(end), per_run)):
            which, steps = how
            world.execute_request(requests[which % len(requests)], steps)
        elif act == "person":
            # A person may rebuild any day that is there, final or not.
            first, length = how
            published = world.ledgers[RAW.name].published_days
            for window in to_windows(published & days((first, min(first + length, LAST)))):
                world.execute_request(Request(CHAIN, window, ""), launcher="person")
        elif act == "night":
            due_window = policy.expected_days(day(*how))
            for request in request_rebuilds(world.compute_backlog(day(*how)), per_run):
                assert request.tables[0] in BY_LOG_DAY or set(request.window) <= set(due_window)
                world.execute_request(request)
    used: set[str] = set()
    while requests := request_rebuilds(world.compute_backlog(end), per_run):
        for request in requests:
            # A sensor launches a key once: what is asked for twice would never be built.
            assert request.key not in used
            assert len(request.window) <= per_run
            used.add(request.key)
            world.execute_request(request)
    return world


def _nothing_is_missed(world: World, waiting: set[date]) -> None:
    now = world.ledgers
    assert waiting <= world.shut
    for log in now[RAW.name].records:
        for d in from_ranges(log.details.event_days):
            built = now[STAGED.name].latest[d]
            assert built.inputs[RAW.name] >= log.version or d in waiting
        # What is known now of a day is up to date, whether its window is shut or not.
        for d in from_ranges(log.details.current_days):
            assert now[CURRENT.name].latest[d].inputs[RAW.name] >= log.version
    for name in (FACT.name, CURRENT.name, CORRECTIONS.name, *BY_LOG_DAY):
        source = SOURCES[name][0]
        assert now[name].published_days == now[source].published_days, name
    for d, built in now[STAGED.name].latest.items():
        facts, differ = now[FACT.name].latest[d], now[CORRECTIONS.name].latest[d]
        assert facts.inputs[STAGED.name] >= built.version
        for source in SOURCES[CORRECTIONS.name]:
            assert differ.inputs[source] >= now[source].latest[d].version
