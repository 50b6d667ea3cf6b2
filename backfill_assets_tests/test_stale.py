"""Why a day is behind, what follows of it, and what was built from days that are taken back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date
from typing import Annotated

import msgspec
import pytest
from pyspark.sql import DataFrame

from backfill_assets import PREVIOUS_DAY, SELF, WEEK, Reads, Source, table
from backfill_assets.calendar.late_data import Policy
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitRecord
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
    DailyOrders,
)
from backfill_assets.staleness.snapshot import Snapshot, input_digests
from backfill_assets.staleness.stale import (
    StaleDays,
    StaleReason,
    built_from_revoked,
    dependent_days,
    downstream_tables,
    find_stale_days,
)
from backfill_assets.tables.graph import Graph
from backfill_assets.tables.table import Table
from backfill_assets_guide.examples.customers.labels import labels_daily
from backfill_assets_guide.examples.customers.lifetime_value import customer_lifetime_value
from backfill_assets_guide.examples.web_events import Visit
from backfill_assets_tests.helpers.invented_logs import (
    days,
    ledger,
    ledgers,
    make_raw_record,
    record,
    snapshot_ledgers,
)
from backfill_assets_tests.helpers.pipeline import FACT_OPTIONS, START, day

POLICY = Policy(START, None, window_days=2, lag_days=1, corrects=True, only_touched=True)
LATER = day(40)
VALUES = customer_lifetime_value


def with_input_digests(
    made: CommitRecord, known: Mapping[str, Ledger], table: Table
) -> CommitRecord:
    """A commit of days that were made of what the inputs have now."""
    digests = input_digests(table.inputs(POLICY), known, made.days, known[table.name].references)
    published = {
        d: msgspec.structs.replace(published, input_digest=digests[d])
        for d, published in made.days.items()
    }
    return msgspec.structs.replace(made, days=published)


def stale_days(*known: Ledger, today: date = LATER, policy: Policy = POLICY) -> StaleDays:
    return find_stale_days(snapshot_ledgers(ledgers(*known), policy, today))


def by_number(reasons: Mapping[date, object]) -> dict[int, object]:
    return {(d - START).days + 1: reason for d, reason in reasons.items()}


# --- why a day is behind --------------------------------------------------------------------------


def test_a_day_is_behind_for_the_last_commit_that_changed_its_input():
    first, second = record(1, days((1, 4))), record(3, days(2, 3))
    staged = ledger(STAGED, first, second)
    facts = ledger(FACT, record(0, days((1, 3)), inputs={STAGED.name: 1}))
    stale = stale_days(staged, facts)
    assert stale.open == {
        FACT.name: {
            day(2): StaleReason({STAGED.name: second}),
            day(3): StaleReason({STAGED.name: second}),
            day(4): StaleReason({STAGED.name: first}),
        }
    }
    assert (stale.final, stale.on_hold) == ({}, {})
    assert (stale.all_days(FACT.name), stale.all_days(STAGED.name)) == (days(2, 3, 4), set())


def test_a_day_is_behind_for_each_input_that_changed():
    facts, known = record(2, days(1, 2)), record(5, days(1, 2))
    corrections = ledger(CORRECTIONS, record(0, days(1), inputs={FACT.name: 2, CURRENT.name: 4}))
    stale = stale_days(ledger(FACT, facts), ledger(CURRENT, known), corrections)
    assert stale.open[CORRECTIONS.name] == {
        day(1): StaleReason({CURRENT.name: known}),
        day(2): StaleReason({FACT.name: facts, CURRENT.name: known}),
    }


def test_a_day_that_was_made_of_the_same_input_is_not_behind():
    """Its record names an older version: a run read the input before it was committed again."""
    staged = ledger(STAGED, record(3, days(1, 2)))
    made = record(0, days(1, 2), inputs={STAGED.name: 2})
    current = with_input_digests(made, ledgers(staged), FACT)
    assert stale_days(staged, ledger(FACT, made)).open[FACT.name].keys() == days(1, 2)
    assert FACT.name not in stale_days(staged, ledger(FACT, current)).open
    other = msgspec.structs.replace(current.days[day(2)], input_digest="of something else")
    half = msgspec.structs.replace(current, days={**current.days, day(2): other})
    assert stale_days(staged, ledger(FACT, half)).open[FACT.name].keys() == days(2)


def test_a_new_day_makes_exactly_the_days_due_that_it_may_change():
    """A label is made of the thirty days after its day."""
    facts = [record(0, days((1, 34))), record(1, days(35))]
    labels = ledger(labels_daily, record(0, days((1, 34)), inputs={FACT.name: 0}))
    stale = stale_days(ledger(FACT, *facts), labels)
    assert stale.open[labels_daily.name].keys() == days((5, 35))
    # So does a late line of a day, of the labels of days that it comes after.
    late = ledger(FACT, facts[0], record(1, days(33)))
    assert stale_days(late, labels).open[labels_daily.name].keys() == days((3, 33))


# --- inputs without days --------------------------------------------------------------------------


def facts_of_countries(content: str | None, *records: CommitRecord) -> Ledger:
    """Facts that read a table without days as well, of which the content is this now."""
    return replace(ledger(FACT, *records), references={"countries": content})


def test_all_days_are_behind_once_an_input_without_days_has_changed():
    staged_record = record(1, days((1, 3)))
    staged = ledger(STAGED, staged_record)
    built = record(0, days((1, 3)), inputs={STAGED.name: 1}, references={"countries": "1"})
    assert FACT.name not in stale_days(staged, facts_of_countries("1", built)).open
    changed = StaleReason({}, {"countries": "2"})
    assert stale_days(staged, facts_of_countries("2", built)).open[FACT.name] == dict.fromkeys(
        days((1, 3)), changed
    )
    assert changed.commit_key == "countries@2"
    # A day that is behind for both names both; one that was never built needs no such change.
    older = record(0, days(1, 2), inputs={STAGED.name: 0}, references={"countries": "1"})
    newer = record(1, days(2), inputs={STAGED.name: 1}, references={"countries": "1"})
    stale = stale_days(staged, facts_of_countries("2", older, newer)).open[FACT.name]
    assert stale == {
        day(1): StaleReason({STAGED.name: staged_record}, {"countries": "2"}),
        day(2): StaleReason({}, {"countries": "2"}),
        day(3): StaleReason({STAGED.name: staged_record}),
    }
    assert stale[day(1)].commit_key == "countries@2,stg_orders@1"


def test_nothing_is_built_while_an_input_without_days_is_not_there():
    staged = ledger(STAGED, record(1, days((1, 3))))
    built = record(0, days(1), inputs={STAGED.name: 0}, references={"countries": "1"})
    assert FACT.name not in stale_days(staged, facts_of_countries(None, built)).open


def test_a_change_of_an_input_without_days_waits_for_the_day_that_is_read_by_day():
    """A day whose staging was taken back cannot be built again."""
    undo = msgspec.structs.replace(record(2, ()), revoked_days=days(2))
    staged = replace(ledger(STAGED, record(1, days((1, 3))), undo), measured={})
    built = record(0, days((1, 3)), inputs={STAGED.name: 2}, references={"countries": "1"})
    stale = stale_days(staged, facts_of_countries("2", built), today=day(3))
    # And so does a day that is not due.
    assert stale.open[FACT.name].keys() == days(1)


# --- tables that are retired, and days that wait --------------------------------------------------


@pytest.mark.parametrize(("today", "is_behind"), [(9, True), (10, False), (11, False)])
def test_no_day_of_a_retired_table_is_behind(today, is_behind):
    retired = replace(FACT, retired=day(10))
    staged = ledger(STAGED, record(1, days(1)))
    built = record(0, days(2), references={"countries": "1"}, inputs={STAGED.name: 1})
    facts = replace(ledger(retired, built), references={"countries": "2"})
    assert (FACT.name in stale_days(staged, facts, today=day(today)).open) is is_behind


SLOW = Source(
    "slow_visits",
    Visit,
    key=["visit_id"],
    event_time="began_at",
    version_time="sent_at",
    arrives_after=2,
)


@table(DailyOrders, **FACT_OPTIONS)
def visits_by_week(visits: Annotated[DataFrame, Reads(SLOW.staged, WEEK)]) -> DataFrame: ...


@table(DailyOrders, **FACT_OPTIONS)
def orders_and_visits(
    visits: Annotated[DataFrame, Reads(SLOW.staged)], orders: Annotated[DataFrame, Reads(STAGED)]
) -> DataFrame: ...


def slow_ledgers(last_loaded: int, *numbers: int) -> list[Ledger]:
    """All days of two sources are loaded up to one, and those of a number are staged."""
    logged = days((1, last_loaded))
    staged = [
        ledger(source_table, record(0, days(*numbers), inputs={log.name: 0}))
        for source_table, log in ((SLOW.staged, SLOW.raw), (STAGED, RAW))
    ]
    raw = [ledger(log, make_raw_record(0, logged)) for log in (SLOW.raw, RAW)]
    others = [ledger(other) for other in (SLOW.rejected, SLOW.late, SLOW.lateness)]
    return [*raw, *others, *staged, ledger(visits_by_week), ledger(orders_and_visits)]


@pytest.mark.parametrize(
    ("last_loaded", "today", "staged"),
    [
        # Day 1 is staged once the folder of day 3 is loaded.
        (2, 40, []),
        (3, 40, [1]),
        (5, 40, [1, 2, 3]),
        # But not before the night in which it is due: two days later than without the delay.
        (9, 5, [1, 2]),
    ],
)
def test_a_day_waits_for_the_folder_in_which_its_lines_usually_arrive(last_loaded, today, staged):
    stale = stale_days(*slow_ledgers(last_loaded), today=day(today)).open
    assert [*by_number(stale.get(SLOW.staged.name, {}))] == staged
    # That of the other source is staged with its own folder.
    assert [*by_number(stale[STAGED.name])] == [*range(1, min(last_loaded, today - 1) + 1)]


@pytest.mark.parametrize(("last_loaded", "weeks", "both"), [(8, [], 6), (9, [1], 7), (15, [1], 7)])
def test_a_week_waits_for_the_folders_of_all_of_its_days(last_loaded, weeks, both):
    stale = stale_days(*slow_ledgers(last_loaded, *range(1, 8))).open
    assert [*by_number(stale.get(visits_by_week.name, {}))] == weeks
    # A table of two sources waits for the one that is late.
    assert [*by_number(stale[orders_and_visits.name])] == [*range(1, both + 1)]


# --- days that were taken back --------------------------------------------------------------------


def facts_undone(staged: Ledger, input_digest: str | None, **more) -> Ledger:
    """Facts of which day 2 was taken back by a person, or by an old release; there is no day 3."""
    held = {} if input_digest is None else {"on_hold": {str(day(2)): input_digest}}
    undo = msgspec.structs.replace(record(1, (), **held, **more), revoked_days=days(2))
    built = record(0, days(1, 2), inputs={STAGED.name: staged.version or 0})
    return replace(ledger(FACT, built, undo), measured={})


def test_a_day_on_hold_is_built_once_its_input_changes():
    staged = ledger(STAGED, record(3, days((1, 3))))
    never_built = {day(3): StaleReason({STAGED.name: staged.records[0]})}
    rejected = input_digests(FACT.inputs(POLICY), ledgers(staged), [day(2)])[day(2)]
    held = stale_days(staged, facts_undone(staged, rejected))
    assert held.on_hold == {FACT.name: days(2)}
    assert held.open[FACT.name] == never_built
    assert held.all_days(FACT.name) == days(3)
    changed = ledger(STAGED, *staged.records, record(4, days(2)))
    stale = stale_days(changed, facts_undone(staged, rejected))
    assert stale.open[FACT.name] == {
        day(2): StaleReason({STAGED.name: changed.records[-1]}),
        **never_built,
    }
    assert stale.on_hold == {}


def test_a_day_that_an_earlier_release_took_back_is_built_once_its_input_is_newer():
    """Its undo names the version of the input, and no input digest."""
    staged = ledger(STAGED, record(3, days(1, 2)))
    undone = facts_undone(staged, None, inputs={STAGED.name: 3})
    assert FACT.name not in stale_days(staged, undone).open
    changed = ledger(STAGED, *staged.records, record(4, days(2)))
    assert stale_days(changed, undone).open[FACT.name] == {
        day(2): StaleReason({STAGED.name: changed.records[-1]})
    }


# --- inputs that were made under other settings ---------------------------------------------------


def stale_under_settings(*known: Ledger, config_digest: str = "config") -> StaleDays:
    snapshot = snapshot_ledgers(ledgers(*known), POLICY, LATER)
    config_digests = dict.fromkeys(snapshot.graph.tables, config_digest)
    return find_stale_days(replace(snapshot, config_digests=config_digests))


def test_a_day_whose_input_was_made_under_other_settings_is_blocked():
    """No night asks for it, as its run would refuse; it is named with what is to be rebuilt."""
    staged = ledger(
        STAGED,
        record(0, days((1, 3))),
        record(1, days(2, 3)),
        record(2, days(2), config_digest="x"),
    )
    known = staged, ledger(FACT, record(0, days((1, 3)), inputs={STAGED.name: 0}))
    stale = stale_under_settings(*known)
    assert by_number(stale.open[FACT.name]).keys() == {3}
    assert {n: o.text for n, o in by_number(stale.blocked[FACT.name]).items()} == {
        2: f"stg_orders[{day(2)}] was made under other settings; rebuild these days first"
    }
    assert stale.all_days(FACT.name) == days(2, 3)
    assert by_number(stale_under_settings(*known, config_digest="x").blocked[FACT.name]) == {
        3: stale.blocked[FACT.name][day(2)]._replace(
            text=f"stg_orders[{day(3)}] was made under other settings; rebuild these days first"
        )
    }


def test_no_day_is_open_that_only_follows_a_blocked_one():
    """Day 3 is current, and changes only once day 2 can be built."""
    first, change = record(0, days((1, 3))), record(1, days(2), config_digest="of before")
    built = values_built(0, 1, 2, 3)
    known = {CURRENT.name: ledger(CURRENT, first), VALUES.name: ledger(VALUES, built)}
    values = ledger(VALUES, with_input_digests(built, known, VALUES))
    assert by_number(
        stale_days(ledger(CURRENT, first, change), values).open[VALUES.name]
    ).keys() == {
        2,
        3,
    }
    stale = stale_under_settings(ledger(CURRENT, first, change), values)
    assert by_number(stale.blocked[VALUES.name]).keys() == {2}
    assert VALUES.name not in stale.open


# --- a table that carries state -------------------------------------------------------------------


@table(DailyOrders, **FACT_OPTIONS)
def running_total(
    orders: Annotated[DataFrame, Reads(STAGED)],
    before: Annotated[DataFrame, Reads(SELF, PREVIOUS_DAY)],
) -> DataFrame: ...


def value_ledgers(
    known: Iterable[int], *records: CommitRecord, changed: Iterable[int] = ()
) -> list[Ledger]:
    """What is known of some days, some of them newer than the values that were built of it."""
    orders = ledger(CURRENT, record(0, days(*known)), record(1, days(*changed)))
    return [orders, ledger(VALUES, *records)]


def values_built(version: int, *numbers: int, orders: int = 0, **more) -> CommitRecord:
    inputs = {CURRENT.name: orders, VALUES.name: version - 1}
    return record(version, days(*numbers), inputs=inputs, **more)


def test_the_days_after_a_stale_day_are_stale_for_the_same_reason():
    """Up to a day that is not there; each was built upon the one before."""
    tables = value_ledgers(range(1, 9), values_built(0, 1, 2, 3, 4, 6, 7), changed=[2, 4])
    change = tables[0].records[-1]
    stale = stale_days(*tables).open[VALUES.name]
    assert by_number(stale) == {
        2: StaleReason({CURRENT.name: change}),
        3: StaleReason({CURRENT.name: change}),
        4: StaleReason({CURRENT.name: change}),
        # Never built, upon a day that is there.
        5: StaleReason({CURRENT.name: tables[0].records[0], VALUES.name: tables[1].records[0]}),
        6: StaleReason({CURRENT.name: tables[0].records[0], VALUES.name: tables[1].records[0]}),
        7: StaleReason({CURRENT.name: tables[0].records[0], VALUES.name: tables[1].records[0]}),
        8: StaleReason({CURRENT.name: tables[0].records[0], VALUES.name: tables[1].records[0]}),
    }


def test_no_day_is_stale_after_one_that_lacks_another_input():
    """Day 3 of what is known was taken back: nothing can be built upon day 3 of the values."""
    first, change = record(0, days((1, 5))), record(1, days(1))
    undo = msgspec.structs.replace(record(2, ()), revoked_days=days(3))
    orders = replace(ledger(CURRENT, first, change, undo), measured={})
    values = ledger(VALUES, values_built(0, 1, 2, 3, 4, 5))
    assert by_number(stale_days(orders, values).open[VALUES.name]) == {
        1: StaleReason({CURRENT.name: change}),
        2: StaleReason({CURRENT.name: change}),
    }


def test_no_day_is_stale_after_one_that_is_not_there():
    """Nothing is known of day 3, so that the days after it cannot be built upon day 2."""
    tables = value_ledgers((1, 2, 4, 5), values_built(0, 1, 2, 4, 5), changed=[1])
    assert by_number(stale_days(*tables).open[VALUES.name]).keys() == {1, 2}


def test_days_that_only_follow_a_final_day_wait_for_the_person_who_builds_it():
    """A schedule builds no final day, so a run of the open ones would find nothing to do."""
    staged = ledger(STAGED, record(0, days((1, 4))), record(1, days(1)))
    built = record(
        0, days((1, 4)), inputs={STAGED.name: 0, running_total.name: -1}, final=days(1, 2)
    )
    stale = stale_days(staged, ledger(running_total, built))
    reason = StaleReason({STAGED.name: staged.records[-1]})
    assert by_number(stale.final[running_total.name]) == {1: reason, 2: reason}
    assert running_total.name not in stale.open
    # A day with new input of its own is built upon the final days as they are, and what follows it.
    staged = ledger(STAGED, record(0, days((1, 4))), record(1, days(1, 3)))
    stale = stale_days(staged, ledger(running_total, built))
    reason = StaleReason({STAGED.name: staged.records[-1]})
    assert by_number(stale.open[running_total.name]) == {3: reason, 4: reason}
    assert stale.all_days(running_total.name) == days((1, 4))
    # Also where a day between them waits.
    staged = ledger(STAGED, record(0, days((1, 4))), record(1, days(1, 4)))
    stale = stale_days(staged, ledger(running_total, built))
    assert by_number(stale.open[running_total.name]).keys() == {4}


# --- what an input makes due ----------------------------------------------------------------------


def test_each_input_of_each_table_makes_days_due():
    raw = make_raw_record(2, days(5), days(3, 5), follow=days(6), current=days(1, 5))
    log = ledger(RAW, make_raw_record(1, days((1, 6))), raw)
    staged = ledger(STAGED, record(0, days(7)))
    known = ledgers(log, staged)
    due = {
        (source, made): {*days_of(raw)}
        for source, made, days_of in downstream_tables(snapshot_ledgers(known, POLICY))
        if source == RAW.name
    }
    assert due == {
        (RAW.name, STAGED.name): days(3, 5),
        (RAW.name, LATE.name): days(5),
        (RAW.name, CURRENT.name): days(1, 5),
        (RAW.name, LATENESS.name): days(5, 6),
    }
    others = {
        (source, made)
        for source, made, _ in downstream_tables(snapshot_ledgers(known, POLICY))
        if source != RAW.name
    }
    assert others == {
        (STAGED.name, FACT.name),
        (FACT.name, CORRECTIONS.name),
        (CURRENT.name, CORRECTIONS.name),
        (REJECTED.name, LATENESS.name),
    }


# --- days that change with others -----------------------------------------------------------------

GRAPH = Graph.from_tables([*TABLES.values(), VALUES], POLICY)


@pytest.mark.parametrize(
    ("changing", "expected"),
    [
        ({}, {}),
        # Days of a table that are not published change; those of what follows do not.
        ({STAGED.name: (2, 9)}, {STAGED.name: (2, 9), FACT.name: (2,), CORRECTIONS.name: (2,)}),
        (
            {FACT.name: (1,), CURRENT.name: (4,)},
            {
                FACT.name: (1,),
                CURRENT.name: (4,),
                CORRECTIONS.name: (1, 4),
                # All days after it, as each is built upon the one before.
                VALUES.name: (4, 5),
            },
        ),
        ({VALUES.name: (2,)}, {VALUES.name: (2, 3, 4, 5)}),
        # Which days of staging new lines change is known once they are loaded.
        ({RAW.name: (3,)}, {RAW.name: (3,), LATE.name: (3,)}),
        ({REJECTED.name: (3,)}, {REJECTED.name: (3,), LATENESS.name: (3,)}),
    ],
)
def test_days_that_change_change_those_that_read_them(changing, expected):
    published = [ledger(made, record(0, days((1, 5)))) for made in GRAPH.tables.values()]
    known = {x.table.name: x for x in published}
    changing_days = {name: days(*numbers) for name, numbers in changing.items()}
    dependent = dependent_days(Snapshot(GRAPH, known), changing_days)
    assert {name: found for name, found in dependent.items() if found} == {
        name: days(*numbers) for name, numbers in expected.items()
    }
    assert [*dependent] == [*GRAPH.tables]


def test_tables_without_a_ledger_do_not_change():
    """A target has some tables only: what reads another one is not followed beyond it."""
    known = {made.name: ledger(made, record(0, days((1, 5)))) for made in (STAGED, FACT, VALUES)}
    changing = {STAGED.name: days(2), CURRENT.name: days(1)}
    assert dependent_days(Snapshot(GRAPH, known), changing) == {
        STAGED.name: days(2),
        FACT.name: days(2),
        VALUES.name: set(),
    }


# --- what was built from days that are taken back -------------------------------------------------


def revoked_log(*numbers: int, version: int = 2, before: Iterable[CommitRecord] = ()) -> Ledger:
    """A log of five days, of which an undo has taken some back since."""
    first = [*before] or [make_raw_record(1, days((1, 5)))]
    undo = make_raw_record(version, (), days((1, 5)), settled=(), reverted=days(*numbers))
    return replace(ledger(RAW, *first, undo), measured={})


def affected(*known: Ledger) -> dict[str, set[int]]:
    """By table, the numbers of the days that were built from days that are taken back."""
    result = built_from_revoked(snapshot_ledgers(ledgers(*known), POLICY))
    assert result.keys() == ledgers(*known).keys()
    return {name: {*by_number(dict.fromkeys(found))} for name, found in result.items() if found}


def test_what_was_built_from_a_day_that_is_taken_back_is_affected_to_the_end():
    """A log day decides the two event days before it as well."""
    log = revoked_log(4)
    staged = ledger(STAGED, record(0, days((1, 5)), inputs={RAW.name: 1}))
    facts = ledger(FACT, record(0, days(1, 2, 4), inputs={STAGED.name: 0}))
    late = ledger(LATE, record(0, days((1, 5)), inputs={RAW.name: 1}))
    corrections = ledger(CORRECTIONS, record(0, days(2, 3), inputs={FACT.name: 0}))
    assert affected(log, staged, facts, late, corrections) == {
        STAGED.name: {2, 3, 4},
        FACT.name: {2, 4},
        LATE.name: {4},
        CORRECTIONS.name: {2},
    }
    assert affected(ledger(RAW, log.records[0]), staged, facts) == {}


def test_what_was_built_since_is_not_affected():
    log = revoked_log(4)
    staged = ledger(
        STAGED,
        record(0, days((1, 5)), inputs={RAW.name: 1}),
        record(1, days(2), inputs={RAW.name: 2}),
        # Of what it was built, its record does not say.
        record(2, days(3)),
    )
    assert affected(log, staged) == {STAGED.name: {4}}


def test_a_day_that_was_loaded_again_affects_nothing():
    log = revoked_log(4)
    staged = ledger(STAGED, record(0, days((1, 5)), inputs={RAW.name: 1}))
    loaded = ledger(RAW, *log.records, make_raw_record(3, days(4)))
    assert affected(loaded, staged) == {}


def test_each_undo_counts_for_what_was_built_before_it():
    first = revoked_log(5, version=2)
    log = revoked_log(2, version=4, before=first.records)
    staged = ledger(
        STAGED,
        record(0, days((1, 2)), inputs={RAW.name: 1}),
        record(1, days((3, 5)), inputs={RAW.name: 2}),
    )
    # Days 3 to 5 were built after day 5 was taken back.
    assert affected(log, staged) == {STAGED.name: {1, 2}}
    older = ledger(STAGED, record(0, days((1, 5)), inputs={RAW.name: 1}))
    assert affected(log, older) == {STAGED.name: {1, 2, 3, 4, 5}}
    between = ledger(STAGED, record(0, days((1, 5)), inputs={RAW.name: 3}))
    assert affected(log, between) == {STAGED.name: {1, 2}}
