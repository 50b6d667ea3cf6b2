"""What a person is told, over ledgers made by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import msgspec
import pytest

from backfill_assets.delta.ledgers import Ledger
from backfill_assets.monitoring.incidents import find_incidents
from backfill_assets.monitoring.outbox import Incident
from backfill_assets.monitoring.states import STATE_MEANINGS, DayState
from backfill_assets.orders.facts import CORRECTIONS, CURRENT, FACT
from backfill_assets.orders.tables import LATE, RAW, REJECTED, STAGED, TABLES
from backfill_assets.quality.audit import Severity
from backfill_assets.staleness.backlog import StaleDays
from backfill_assets.tables.table import Table
from backfill_assets_tests.invented_logs import days, ledger, ledgers, record
from backfill_assets_tests.invented_states import (
    ALL,
    POLICY,
    appended,
    built,
    healthy,
    lacking,
    situation,
)
from backfill_assets_tests.pipeline import day

HOLE = ALL - days(4)
STALE = days((1, 9))


def keys(found: list[Incident]) -> set[tuple[str, str, str]]:
    assert len({incident.key for incident in found}) == len(found), "told twice"
    return {incident.key for incident in found}


def told(kind: str, table: Table, *of: int | tuple[int, int]) -> set[tuple[str, str, str]]:
    return {(kind, table.name, str(d)) for d in days(*of)}


def cut(published: frozenset[date], *tables: Table) -> dict[str, Ledger]:
    """Healthy tables, some of which have only these days."""
    short = healthy(published)
    return healthy() | {table.name: short[table.name] for table in tables}


FOLLOWERS = [table for table in TABLES.values() if table not in (RAW, REJECTED)]


def test_nothing_is_wrong():
    assert find_incidents(situation()) == []
    assert find_incidents(situation(ledgers(), today=day(1))) == []


# --- days that are missing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "kind", "missing"), [(HOLE, "hole", 4), (STALE, "stale", 10)], ids=["hole", "stale"]
)
@pytest.mark.parametrize(
    ("tables", "where"),
    [
        ([RAW, *FOLLOWERS], RAW),
        ([STAGED, FACT, CORRECTIONS], STAGED),
        ([FACT, CORRECTIONS], FACT),
        ([CURRENT, CORRECTIONS], CURRENT),
        ([CORRECTIONS], CORRECTIONS),
        ([LATE], LATE),
        ([REJECTED], REJECTED),
    ],
    ids=lambda x: x.name if isinstance(x, Table) else "-".join(t.name for t in x),
)
def test_a_missing_day_is_told_once_where_it_begins(there, kind, missing, tables, where):
    found = find_incidents(situation(cut(there, *tables), behind=StaleDays()))
    assert keys(found) == told(kind, where, missing)
    assert found[0].detail == STATE_MEANINGS[DayState.MISSING]


@pytest.mark.parametrize(("there", "kind", "n"), [(HOLE, "hole", 4), (STALE, "stale", 10)])
def test_a_day_that_was_never_loaded_is_told_once(there, kind, n):
    found = find_incidents(situation(healthy(there), behind=StaleDays()))
    assert keys(found) == told(kind, RAW, n)


def test_a_table_that_lags_behind_another_hole():
    """Day 4 is missing from staging on, day 6 from the facts on."""
    short = healthy(ALL - days(4, 6))
    found = cut(HOLE, STAGED) | {table.name: short[table.name] for table in (FACT, CORRECTIONS)}
    assert keys(find_incidents(situation(found, behind=StaleDays()))) == (
        told("hole", STAGED, 4) | told("hole", FACT, 6)
    )


def test_a_failed_check_says_it_for_all_that_follows():
    found = cut(HOLE, *TABLES.values())
    now = situation(found, behind=StaleDays(), failed={RAW.name: days(4), REJECTED.name: days(4)})
    assert keys(find_incidents(now)) == told("check failed", RAW, 4)
    # What is made of a failed day fails in the same run.
    staged = situation(
        cut(HOLE, STAGED, FACT, CORRECTIONS),
        behind=StaleDays(),
        failed={STAGED.name: days(4), FACT.name: days(4), CORRECTIONS.name: days(4)},
    )
    assert keys(find_incidents(staged)) == told("check failed", STAGED, 4)


def test_a_failed_check_of_a_published_day():
    (found,) = find_incidents(situation(failed={FACT.name: days(4)}))
    detail = f"unique_key: {STATE_MEANINGS[DayState.CHECK_FAILED]}"
    size = {"unique_key": 1}
    assert found == Incident("check failed", FACT.name, "2024-01-04", detail, size)


def test_before_the_deadline_nothing_is_stale():
    now = situation(healthy(STALE, final=days((1, 7))), in_time=True)
    assert find_incidents(now) == []
    assert find_incidents(replace(now, in_time=False))


def test_nothing_was_ever_loaded():
    found = keys(find_incidents(situation(ledgers())))
    assert found - told("stale", REJECTED, (1, 10)) == told("stale", RAW, (1, 10))


# --- final days -----------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [STAGED, FACT], ids=lambda table: table.name)
def test_new_input_for_a_final_day(table):
    (found,) = find_incidents(situation(behind=lacking(day(2), table=table, final=True)))
    assert found.key == ("new input for final days", table.name, "2024-01-02")
    assert "fact_daily_orders_current and fact_order_corrections have them" in found.detail


def test_new_input_for_an_open_day_is_no_incident():
    assert find_incidents(situation(behind=lacking(day(9), table=STAGED))) == []


def test_a_final_day_that_changed():
    changed = ledger(FACT, built(0, "a", of=range(1, 11)), built(1, "b", of=(3,)))
    (found,) = find_incidents(situation(healthy() | {FACT.name: changed}, behind=StaleDays()))
    assert found.key == ("final day changed", FACT.name, "2024-01-03")
    assert found.detail.startswith("changed by schedule nightly in run run 1; ")


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_a_day_that_another_writer_changed_is_told_once(table):
    """A final day of the facts by the word for final days."""
    found = keys(find_incidents(situation(appended(table, 2, 9), behind=StaleDays())))
    of_old = "final day changed" if table is FACT else "changed by another writer"
    assert found == told(of_old, table, 2) | told("changed by another writer", table, 9)


# --- other settings ---


def test_days_made_under_other_settings_are_one_incident_a_table():
    found = find_incidents(situation(settings="others"))
    assert keys(found) == {("other settings", name, "") for name in TABLES}
    assert found[0].detail.startswith("2024-01-01...2024-01-10: published under other settings")
    assert "Materialize these days, inputs first" in found[0].detail


# --- the landing ----------------------------------------------------------------------------------


def test_a_replaced_file_that_waits_is_named():
    (found,) = find_incidents(situation(held=days(3)))
    assert found.key == ("replaced file waits", RAW.name, "2024-01-03")
    assert found.detail.startswith("arrival_date=2024-01-03/part-0.jsonl: a landing file was")


def rejecting(severity: Severity, of: int) -> dict[str, Ledger]:
    """Healthy tables; this many lines of a day of the raw log were rejected."""
    told = record(1, days(of), event_days=frozenset())
    said = {"rejected_lines": [severity.value, "9 of 20 lines are rejected (45.0%)"]}
    counts = {"landed": 20, "rejected": 9}
    published = msgspec.structs.replace(told.days[day(of)], findings=said, entries=counts)
    told = msgspec.structs.replace(told, days={day(of): published})
    raw = healthy()[RAW.name]
    return healthy() | {RAW.name: ledger(RAW, *raw.records, told)}


@pytest.mark.parametrize("severity", Severity)
def test_many_rejected_lines(severity):
    """Those that hold the day back are failed checks; a warning is on the day itself."""
    found = find_incidents(situation(rejecting(severity, 4), behind=StaleDays()))
    if severity is not Severity.ALERT:
        assert found == []
        return
    detail = "2024-01-04: 9 of 20 lines are rejected (45.0%)"
    assert found == [Incident("lines rejected", RAW.name, "2024-01-04", detail, {"lines": 9})]


@pytest.mark.parametrize(("ago", "news"), [(1, True), (29, True), (30, False)])
def test_many_rejected_lines_are_news_for_a_month(ago, news):
    now = situation(rejecting(Severity.ALERT, 4), behind=StaleDays(), today=day(4 + ago))
    assert ("lines rejected" in {incident.kind for incident in find_incidents(now)}) is news


@pytest.mark.parametrize(("ago", "news"), [(1, True), (29, True), (30, False), (400, False)])
def test_a_folder_that_never_came_is_news_for_a_month(ago, news):
    today = day(500)
    absent = days(500 - ago)
    found = find_incidents(situation(ledgers(), absent=absent, today=today))
    told_of = {incident.item for incident in found if incident.kind == "input missing"}
    assert told_of == ({str(d) for d in absent} if news else set())


@pytest.mark.parametrize(
    ("lag", "last"),
    [
        (1, 10),
        (3, 8),
    ],
)
def test_before_the_deadline_no_folder_is_missed(lag, last):
    before = healthy(days((1, last - 1)), final=days((1, last - 3)))
    policy = replace(POLICY, lag_days=lag)
    now = situation(before, policy=policy, absent=days(last), in_time=True)
    assert find_incidents(now) == []


def test_after_the_deadline_a_folder_is_missed():
    (found,) = find_incidents(situation(absent=days(10)))
    assert found.key == ("input missing", RAW.name, "2024-01-10")


# --- late money -----------------------------------------------------------------------------------


def late(*counts: tuple[int, int, str]) -> Ledger:
    said = {str(day(n)): [count, amount] for n, count, amount in counts}
    return ledger(LATE, record(0, ALL, inputs={RAW.name: 0}, late=said))


@pytest.mark.parametrize(
    ("corrects", "became"),
    [
        (True, "they are in late_orders and in fact_daily_orders_current"),
        (False, "they were DROPPED and are in no total"),
    ],
)
def test_late_money(corrects, became):
    policy = replace(POLICY, corrects=corrects)
    now = situation(healthy() | {LATE.name: late((4, 3, "-12.50"))}, policy=policy)
    assert find_incidents(now) == [
        Incident(
            "late money",
            LATE.name,
            "2024-01-04",
            f"2024-01-04: 3 line(s) worth -12.50 came after their day had closed; {became}",
            {"lines": 3, "amount": -12.5},
        )
    ]


def test_late_money_of_several_days():
    found = find_incidents(
        situation(healthy() | {LATE.name: late((4, 1, "0.00"), (5, 0, "0.00"), (9, 2, "7.00"))})
    )
    assert keys(found) == told("late money", LATE, 4, 9)


def test_late_money_is_as_the_latest_load_says():
    first = record(0, ALL, inputs={RAW.name: 0}, late={"2024-01-04": [3, "9.00"]})
    again = record(1, days(4), inputs={RAW.name: 0}, late={})
    assert find_incidents(situation(healthy() | {LATE.name: ledger(LATE, first, again)})) == []
    more = record(2, days(4), inputs={RAW.name: 0}, late={"2024-01-04": [5, "10.00"]})
    (found,) = find_incidents(situation(healthy() | {LATE.name: ledger(LATE, first, again, more)}))
    assert "5 line(s) worth 10.00" in found.detail


@pytest.mark.parametrize(("ago", "news"), [(0, True), (29, True), (30, False), (300, False)])
def test_late_money_is_news_for_a_month(ago, news):
    said = {str(day(400 - ago)): [1, "1.00"]}
    found = find_incidents(
        situation(ledgers(ledger(LATE, record(0, days(400 - ago), late=said))), today=day(400))
    )
    assert [x.kind for x in found].count("late money") == news


def test_all_that_is_wrong_is_told_at_once():
    now = situation(cut(HOLE, STAGED), behind=StaleDays(), held=days(2), absent=days(3))
    waits, absent = told("replaced file waits", RAW, 2), told("input missing", RAW, 3)
    assert keys(find_incidents(now)) == told("hole", STAGED, 4) | waits | absent


# --- the clock ------------------------------------------------------------------------------------


def test_days_that_nobody_asks_for_are_one_incident():
    """Not one for each day and table, which of a clock that is years ahead are thousands."""
    now = situation(today=day(4000), last=day(40))
    stale = [found for found in find_incidents(now) if found.kind == "stale"]
    assert {found.item for found in stale} == {str(d) for d in days((11, 40))}
    (silent,) = [found for found in find_incidents(now) if found.kind == "nothing lands"]
    assert (silent.subject, silent.item) == (RAW.name, "")
    assert f"nothing has landed since {day(10)}" in silent.detail
    assert f"days after {day(40)} are not asked for" in silent.detail


@pytest.mark.parametrize(("last", "told_of"), [(11, False), (10, False), (9, True)])
def test_a_source_is_silent_when_a_day_that_is_due_is_not_asked_for(last, told_of):
    found = find_incidents(situation(last=day(last)))
    assert [incident.kind for incident in found] == ["nothing lands"] * told_of


def test_a_source_that_never_delivered():
    now = situation(ledgers(), today=day(60), last=day(30))
    (silent,) = [found for found in find_incidents(now) if found.kind == "nothing lands"]
    assert f"nothing has landed from {day(1)} on" in silent.detail


@pytest.mark.parametrize(("today", "ahead"), [(11, ""), (10, "2024-01-10"), (8, "2024-01-08...")])
def test_days_that_are_not_over_were_loaded_by_another_clock(today, ahead):
    found = [one for one in find_incidents(situation(today=day(today))) if "over" in one.kind]
    assert [(one.kind, one.subject) for one in found] == (
        [("published before it was over", RAW.name)] if ahead else []
    )
    assert all(f"[{ahead}" in one.detail for one in found)
