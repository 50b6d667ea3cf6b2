"""What a person is told, over ledgers made by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta, timezone

import msgspec
import pytest

from backfill_assets.audit.verdicts import Severity
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.monitoring.alerts import Incident
from backfill_assets.monitoring.incidents import find_incidents, table_incidents
from backfill_assets.monitoring.states import STATE_MEANINGS, DayState
from backfill_assets.orders.tables import (
    CORRECTIONS,
    CURRENT,
    FACT,
    LATE,
    RAW,
    REJECTED,
    STAGED,
    TABLES,
)
from backfill_assets.staleness.stale import StaleDays, StaleReason
from backfill_assets.tables.table import Table
from backfill_assets_tests.helpers.invented_logs import days, ledger, ledgers, record
from backfill_assets_tests.helpers.invented_states import (
    ALL,
    POLICY,
    append_externally,
    make_backlog,
    make_built_record,
    make_healthy_ledgers,
    make_snapshot,
)
from backfill_assets_tests.helpers.pipeline import day

HOLE = ALL - days(4)
STALE = days((1, 9))


def incident_keys(listed: list[Incident]) -> set[tuple[str, str, str]]:
    assert len({incident.key for incident in listed}) == len(listed), "told twice"
    return {incident.key for incident in listed}


def expected_keys(
    kind: str, table: Table, *numbers: int | tuple[int, int]
) -> set[tuple[str, str, str]]:
    return {(kind, table.name, str(d)) for d in days(*numbers)}


def cut_tables(published: frozenset[date], *tables: Table) -> dict[str, Ledger]:
    """Healthy tables, some of which have only these days."""
    short = make_healthy_ledgers(published)
    return make_healthy_ledgers() | {table.name: short[table.name] for table in tables}


FOLLOWERS = [table for table in TABLES.values() if table not in (RAW, REJECTED)]


def test_nothing_is_wrong():
    assert find_incidents(make_snapshot()) == []
    assert find_incidents(make_snapshot(ledgers(), today=day(1))) == []


def test_a_source_may_be_watched_without_its_late_lines():
    few = {table.name: make_healthy_ledgers()[table.name] for table in (RAW, REJECTED, STAGED)}
    assert find_incidents(make_snapshot(few)) == []


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
    result = find_incidents(make_snapshot(cut_tables(there, *tables), behind=StaleDays()))
    assert incident_keys(result) == expected_keys(kind, where, missing)
    assert result[0].detail == STATE_MEANINGS[DayState.MISSING]


@pytest.mark.parametrize(("there", "kind", "n"), [(HOLE, "hole", 4), (STALE, "stale", 10)])
def test_a_day_that_was_never_loaded_is_told_once(there, kind, n):
    result = find_incidents(make_snapshot(make_healthy_ledgers(there), behind=StaleDays()))
    assert incident_keys(result) == expected_keys(kind, RAW, n)


def test_a_table_that_lags_behind_another_hole():
    """Day 4 is missing from staging on, day 6 from the facts on."""
    short = make_healthy_ledgers(ALL - days(4, 6))
    by_table = cut_tables(HOLE, STAGED) | {
        table.name: short[table.name] for table in (FACT, CORRECTIONS)
    }
    assert incident_keys(find_incidents(make_snapshot(by_table, behind=StaleDays()))) == (
        expected_keys("hole", STAGED, 4) | expected_keys("hole", FACT, 6)
    )


def test_a_failed_check_says_it_for_all_that_follows():
    by_table = cut_tables(HOLE, *TABLES.values())
    now = make_snapshot(
        by_table, behind=StaleDays(), failed={RAW.name: days(4), REJECTED.name: days(4)}
    )
    assert incident_keys(find_incidents(now)) == expected_keys("check failed", RAW, 4)
    # What is made of a failed day fails in the same run.
    staged = make_snapshot(
        cut_tables(HOLE, STAGED, FACT, CORRECTIONS),
        behind=StaleDays(),
        failed={STAGED.name: days(4), FACT.name: days(4), CORRECTIONS.name: days(4)},
    )
    assert incident_keys(find_incidents(staged)) == expected_keys("check failed", STAGED, 4)


def test_a_failed_check_of_a_published_day():
    (incident,) = find_incidents(make_snapshot(failed={FACT.name: days(4)}))
    detail = f"unique_key: {STATE_MEANINGS[DayState.CHECK_FAILED]}"
    size = {"unique_key": 1}
    assert incident == Incident("check failed", FACT.name, "2024-01-04", detail, size)


def test_before_the_deadline_nothing_is_stale():
    now = make_snapshot(make_healthy_ledgers(STALE, final=days((1, 7))), in_time=True)
    assert find_incidents(now) == []
    assert find_incidents(replace(now, before_deadline=False))


def test_nothing_was_ever_loaded():
    result = incident_keys(find_incidents(make_snapshot(ledgers())))
    assert result - expected_keys("stale", REJECTED, (1, 10)) == expected_keys(
        "stale", RAW, (1, 10)
    )


# --- final days -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "reason", "text"),
    [
        (
            STAGED,
            StaleReason({RAW.name: record(9, [day(2)])}),
            "new lines have landed for days whose window has closed: fact_daily_orders_current "
            "and fact_order_corrections have them, the days stay as they are. To take the lines "
            "into them, materialize stg_orders and what follows",
        ),
        (
            FACT,
            StaleReason({STAGED.name: record(9, [day(2)])}),
            "stg_orders changed after these days, whose window has closed, were built: the days "
            "stay as they are. To build them from it, materialize fact_daily_orders and what",
        ),
        (FACT, StaleReason({}, {"stores": "9"}), "stores changed after these days"),
    ],
)
def test_new_input_for_a_final_day(table, reason, text):
    behind = StaleDays({}, {table.name: {day(2): reason}})
    (incident,) = find_incidents(make_snapshot(behind=behind))
    assert incident.key == ("new input for final days", table.name, "2024-01-02")
    assert incident.detail.startswith(text)


def test_new_input_for_an_open_day_is_no_incident():
    assert find_incidents(make_snapshot(behind=make_backlog(day(9), table=STAGED))) == []


def test_a_final_day_that_changed():
    changed = ledger(
        FACT,
        make_built_record(0, "a", day_numbers=range(1, 11)),
        make_built_record(1, "b", day_numbers=(3,)),
    )
    (incident,) = find_incidents(
        make_snapshot(make_healthy_ledgers() | {FACT.name: changed}, behind=StaleDays())
    )
    assert incident.key == ("final day changed", FACT.name, "2024-01-03")
    assert incident.detail.startswith("changed by schedule nightly in run run 1; ")


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_a_day_that_another_writer_changed_is_told_once(table):
    """A final day of the facts by the word for final days."""
    result = incident_keys(
        find_incidents(make_snapshot(append_externally(table, 2, 9), behind=StaleDays()))
    )
    of_old = "final day changed" if table is FACT else "changed by another writer"
    assert result == expected_keys(of_old, table, 2) | expected_keys(
        "changed by another writer", table, 9
    )


# --- other settings ---


def test_days_made_under_other_settings_are_one_incident_a_table():
    result = find_incidents(make_snapshot(settings="others"))
    assert incident_keys(result) == {("other settings", name, "") for name in TABLES}
    assert result[0].detail.startswith("2024-01-01...2024-01-10: published under other settings")
    assert "Materialize these days, inputs first" in result[0].detail


# --- the landing ----------------------------------------------------------------------------------


def test_a_replaced_file_that_waits_is_named():
    (incident,) = find_incidents(make_snapshot(on_hold=days(3)))
    assert incident.key == ("replaced file waits", RAW.name, "2024-01-03")
    assert incident.detail.startswith("arrival_date=2024-01-03/part-0.jsonl: a landing file was")


def ledgers_with_rejects(severity: Severity, number: int) -> dict[str, Ledger]:
    """Healthy tables; this many lines of a day of the raw log were rejected."""
    load_record = record(1, days(number), event_days=frozenset())
    findings = {"rejected_lines": [severity.value, "9 of 20 lines are rejected (45.0%)"]}
    counts = {"landed": 20, "rejected": 9}
    published = msgspec.structs.replace(
        load_record.days[day(number)], findings=findings, entries=counts
    )
    load_record = msgspec.structs.replace(load_record, days={day(number): published})
    raw = make_healthy_ledgers()[RAW.name]
    return make_healthy_ledgers() | {RAW.name: ledger(RAW, *raw.records, load_record)}


@pytest.mark.parametrize("severity", Severity)
def test_many_rejected_lines(severity):
    """Those that hold the day back are failed checks; a warning is on the day itself."""
    result = find_incidents(make_snapshot(ledgers_with_rejects(severity, 4), behind=StaleDays()))
    if severity is not Severity.ALERT:
        assert result == []
        return
    detail = "2024-01-04: 9 of 20 lines are rejected (45.0%)"
    assert result == [Incident("lines rejected", RAW.name, "2024-01-04", detail, {"lines": 9})]


@pytest.mark.parametrize(("ago", "news"), [(1, True), (29, True), (30, False)])
def test_many_rejected_lines_are_news_for_a_month(ago, news):
    now = make_snapshot(
        ledgers_with_rejects(Severity.ALERT, 4), behind=StaleDays(), today=day(4 + ago)
    )
    assert ("lines rejected" in {incident.kind for incident in find_incidents(now)}) is news


@pytest.mark.parametrize(("ago", "news"), [(1, True), (29, True), (30, False), (400, False)])
def test_a_folder_that_never_came_is_news_for_a_month(ago, news):
    today = day(500)
    absent = days(500 - ago)
    result = find_incidents(make_snapshot(ledgers(), absent=absent, today=today))
    told_of = {incident.item for incident in result if incident.kind == "input missing"}
    assert told_of == ({str(d) for d in absent} if news else set())


@pytest.mark.parametrize(
    ("lag", "last"),
    [
        (1, 10),
        (3, 8),
    ],
)
def test_before_the_deadline_no_folder_is_missed(lag, last):
    before = make_healthy_ledgers(days((1, last - 1)), final=days((1, last - 3)))
    policy = replace(POLICY, lag_days=lag)
    now = make_snapshot(before, policy=policy, absent=days(last), in_time=True)
    assert find_incidents(now) == []


def test_after_the_deadline_a_folder_is_missed():
    (incident,) = find_incidents(make_snapshot(absent=days(10)))
    assert incident.key == ("input missing", RAW.name, "2024-01-10")


# --- late money -----------------------------------------------------------------------------------


def late_ledger(*counts: tuple[int, int, str]) -> Ledger:
    late_amounts = {str(day(n)): [count, amount] for n, count, amount in counts}
    return ledger(LATE, record(0, ALL, inputs={RAW.name: 0}, late=late_amounts))


@pytest.mark.parametrize(
    ("corrects", "became"),
    [
        (True, "they are in late_orders and in fact_daily_orders_current"),
        (False, "they were DROPPED and are in no total"),
    ],
)
def test_late_money(corrects, became):
    policy = replace(POLICY, corrects=corrects)
    now = make_snapshot(
        make_healthy_ledgers() | {LATE.name: late_ledger((4, 3, "-12.50"))}, policy=policy
    )
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
    result = find_incidents(
        make_snapshot(
            make_healthy_ledgers()
            | {LATE.name: late_ledger((4, 1, "0.00"), (5, 0, "0.00"), (9, 2, "7.00"))}
        )
    )
    assert incident_keys(result) == expected_keys("late money", LATE, 4, 9)


def test_late_money_is_as_the_latest_load_says():
    first = record(0, ALL, inputs={RAW.name: 0}, late={"2024-01-04": [3, "9.00"]})
    second = record(1, days(4), inputs={RAW.name: 0}, late={})
    assert (
        find_incidents(
            make_snapshot(make_healthy_ledgers() | {LATE.name: ledger(LATE, first, second)})
        )
        == []
    )
    more = record(2, days(4), inputs={RAW.name: 0}, late={"2024-01-04": [5, "10.00"]})
    (incident,) = find_incidents(
        make_snapshot(make_healthy_ledgers() | {LATE.name: ledger(LATE, first, second, more)})
    )
    assert "5 line(s) worth 10.00" in incident.detail


@pytest.mark.parametrize(("ago", "news"), [(0, True), (29, True), (30, False), (300, False)])
def test_late_money_is_news_for_a_month(ago, news):
    late_amounts = {str(day(400 - ago)): [1, "1.00"]}
    result = find_incidents(
        make_snapshot(
            ledgers(ledger(LATE, record(0, days(400 - ago), late=late_amounts))), today=day(400)
        )
    )
    assert [x.kind for x in result].count("late money") == news


def test_all_that_is_wrong_is_told_at_once():
    now = make_snapshot(
        cut_tables(HOLE, STAGED), behind=StaleDays(), on_hold=days(2), absent=days(3)
    )
    waits, absent = (
        expected_keys("replaced file waits", RAW, 2),
        expected_keys("input missing", RAW, 3),
    )
    assert incident_keys(find_incidents(now)) == expected_keys("hole", STAGED, 4) | waits | absent


# --- the clock ------------------------------------------------------------------------------------


def test_days_that_nobody_asks_for_are_one_incident():
    """Not one for each day and table, which of a clock that is years ahead are thousands."""
    now = make_snapshot(today=day(4000), last=day(40))
    stale = [incident for incident in find_incidents(now) if incident.kind == "stale"]
    assert {incident.item for incident in stale} == {str(d) for d in days((11, 40))}
    (silent,) = [incident for incident in find_incidents(now) if incident.kind == "nothing lands"]
    assert (silent.subject, silent.item) == (RAW.name, "")
    assert f"nothing has landed since {day(10)}" in silent.detail
    assert f"days after {day(40)} are not asked for" in silent.detail


@pytest.mark.parametrize(("last", "told_of"), [(11, False), (10, False), (9, True)])
def test_a_source_is_silent_when_a_day_that_is_due_is_not_asked_for(last, told_of):
    result = find_incidents(make_snapshot(last=day(last)))
    assert [incident.kind for incident in result] == ["nothing lands"] * told_of


def test_a_source_that_never_delivered():
    now = make_snapshot(ledgers(), today=day(60), last=day(30))
    (silent,) = [incident for incident in find_incidents(now) if incident.kind == "nothing lands"]
    assert f"nothing has landed from {day(1)} on" in silent.detail


@pytest.mark.parametrize(("today", "ahead"), [(11, ""), (10, "2024-01-10"), (8, "2024-01-08...")])
def test_days_that_are_not_over_were_loaded_by_another_clock(today, ahead):
    result = [
        incident
        for incident in find_incidents(make_snapshot(today=day(today)))
        if "over" in incident.kind
    ]
    assert [(incident.kind, incident.subject) for incident in result] == (
        [("published before it was over", RAW.name)] if ahead else []
    )
    assert all(f"[{ahead}" in incident.detail for incident in result)


GOLD, SILVER = ("lake/gold", "sensor touched_days"), ("", "schedule nightly")
BY_PERSON = ("other", "person")


@pytest.mark.parametrize(
    ("commits", "told"),
    [
        ([(0, GOLD), (1, SILVER), (2, GOLD)], True),
        ([(0, SILVER), (1, GOLD), (2, SILVER), (3, SILVER)], True),
        ([(0, SILVER), (1, SILVER), (2, GOLD), (3, GOLD)], False),  # the prefix was changed
        ([(0, GOLD), (1, SILVER), (2, GOLD), (9, GOLD)], False),  # that was a week ago
        ([(0, GOLD), (1, BY_PERSON), (2, GOLD)], False),
        ([(0, GOLD), (1, GOLD)], False),
        ([], False),
    ],
)
def test_two_deployments_that_write_a_table_in_turns_are_told(commits, told):
    began = datetime(2024, 1, 9, tzinfo=timezone.utc)
    made = [
        msgspec.structs.replace(
            record(version, days(1), launched_by=launched_by),
            at=began + timedelta(days=n),
            key_prefix=prefix,
        )
        for version, (n, (prefix, launched_by)) in enumerate(commits)
    ]
    incidents = [*table_incidents(ledger(FACT, *made), [])]
    assert [incident.key for incident in incidents] == [
        ("two deployments write it", FACT.name, "")
    ] * told
    if told:
        assert "by key prefix: '', 'lake/gold'. " in incidents[0].detail


@pytest.mark.parametrize(
    ("codes", "told"),
    [
        ("abab", "by code version: a, b. "),
        ("aabbaab", "by code version: a, b. "),
        ("aba", ""),  # it was put back
        ("abca", ""),
        ("abcd", ""),  # one release after another
        ("ab", ""),
    ],
)
def test_two_deployments_of_one_prefix_are_told_apart_by_their_code(codes, told):
    began = datetime(2024, 1, 9, tzinfo=timezone.utc)
    made = [
        msgspec.structs.replace(
            record(version, days(1)), at=began + timedelta(hours=version), code_version=code
        )
        for version, code in enumerate(codes)
    ]
    details = [incident.detail for incident in table_incidents(ledger(FACT, *made), [])]
    assert len(details) == bool(told)
    assert all(told in detail for detail in details)
