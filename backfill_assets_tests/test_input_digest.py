"""What the days of each table are made of: over ledgers made by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import date

import msgspec
import pytest

from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import Window, to_ranges
from backfill_assets.calendar.reach import RecordedReach
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitRecord, ExternalCommit
from backfill_assets.orders.tables import (
    CORRECTIONS,
    CURRENT,
    FACT,
    LATE,
    LATENESS,
    RAW,
    REJECTED,
    STAGED,
)
from backfill_assets.staleness.snapshot import (
    HypotheticalLedger,
    SwitchedLedger,
    input_digests,
)
from backfill_assets.tables.table import Table
from backfill_assets_guide.examples.customers.lifetime_value import customer_lifetime_value
from backfill_assets_tests.helpers.invented_logs import (
    days,
    ledger,
    ledgers,
    record,
    snapshot_ledgers,
)
from backfill_assets_tests.helpers.pipeline import START, day

POLICY = Policy(START, None, window_days=2, lag_days=1, corrects=True, only_touched=True)
ALL = Window(day(1), day(10))


def log_record(
    version: int,
    loaded_days: frozenset[date],
    spans: Mapping[int, frozenset[date]] | None = None,
    **more,
) -> CommitRecord:
    """A commit of the raw log: by log day, the event days of the orders that have a line there."""
    if spans is not None:
        more["spans"] = {str(day(n)): to_ranges(event_days) for n, event_days in spans.items()}
    return record(version, loaded_days, **more)


def deciding_log_days(
    *records: CommitRecord, external: tuple[ExternalCommit, ...] = ()
) -> dict[int, set[int]]:
    """By event day, the log days that decide it; both by number."""
    deciding = RecordedReach().deciding_days(ledger(RAW, *records, external=external))
    return {n: {(d - START).days + 1 for d in deciding(day(n))} for n in range(1, 7)}


def decided_alone(**others: set[int]) -> dict[int, set[int]]:
    """Days that only their own log day decides, but for some."""
    return {n: {n} | others.get(f"d{n}", set()) for n in range(1, 7)}


# --- which log days decide what is known of a day -------------------------------------------------


def test_a_day_is_decided_by_its_own_log_day():
    assert deciding_log_days() == decided_alone()
    assert deciding_log_days(log_record(0, days((1, 6)), {})) == decided_alone()


def test_a_day_is_decided_by_all_log_days_with_lines_of_its_orders():
    first = log_record(0, days((1, 6)), {1: days(1), 5: days(1, 2)})
    assert deciding_log_days(first) == decided_alone(d1={5}, d2={5})


def test_what_once_decided_a_day_goes_on_to():
    """Each commit tells of the orders that changed; of the others, the commits before do."""
    first = log_record(0, days((1, 6)), {5: days(1)})
    second = log_record(1, days(5), {5: days(3)})
    assert deciding_log_days(first, second) == decided_alone(d1={5}, d3={5})


def test_no_line_is_logged_before_the_day_that_it_tells_of():
    """The spans tell of all versions of an order, which may have moved to a later day."""
    assert deciding_log_days(
        log_record(0, days((1, 6)), {2: days(1, 4), 4: days(1, 4)})
    ) == decided_alone(d1={2, 4})


def test_a_log_day_that_is_not_there_decides_nothing():
    first = log_record(0, days((1, 4)), {3: days(1), 5: days(1)})
    assert deciding_log_days(first)[1] == {1, 3}
    undo = msgspec.structs.replace(log_record(1, frozenset(), {}), revoked_days=days(3))
    raw = replace(ledger(RAW, first, undo), measured={})
    assert RecordedReach().deciding_days(raw)(day(1)) == sorted(days(1))


def test_log_days_of_before_there_were_spans_may_decide_all_days():
    old = log_record(0, days(2, 5))
    assert deciding_log_days(old) == decided_alone(d1={2, 5}, d2={5}, d3={5}, d4={5})
    # It is by all of its versions that a log day is judged, as it may have held lines of any order.
    assert deciding_log_days(old, log_record(1, days((1, 6)), {2: days(2)})) == decided_alone(
        d1={2, 5}, d2={5}, d3={5}, d4={5}
    )


def test_of_old_commits_only_the_days_that_they_wrote_count():
    """The others had these rows already, by commits that are on record as well."""
    old = msgspec.structs.replace(log_record(1, days((1, 6))), written_days=days(4))
    assert deciding_log_days(log_record(0, days((1, 6)), {}), old) == decided_alone(
        d1={4}, d2={4}, d3={4}
    )


def test_log_days_that_others_changed_may_decide_all_days():
    first = log_record(0, days((1, 6)), {})
    other = ExternalCommit(1, "WRITE", days(4))
    assert deciding_log_days(first, external=(other,)) == decided_alone(d1={4}, d2={4}, d3={4})


# --- the input digests ----------------------------------------------------------------------------


def changed_days(
    before: dict[str, Ledger], table: Table, name: str, *numbers: int, spans: bool = False
) -> set[date]:
    """The days of a table whose input digest is another one after some days of an input changed."""
    source = before[name]
    overrides = {"spans": {}} if spans else {}
    new_record = record(9, days(*numbers), digest="other", **overrides)
    after = {**before, name: ledger(source.table, *source.records, new_record)}
    return {
        day
        for day, input_digest in input_digests(table.inputs(POLICY), after, ALL).items()
        if input_digest != input_digests(table.inputs(POLICY), before, ALL)[day]
    }


def all_ledgers(spans: Mapping[int, frozenset[date]] | None = None) -> dict[str, Ledger]:
    others = (REJECTED, STAGED, FACT, CURRENT)
    return ledgers(
        ledger(RAW, log_record(0, frozenset(ALL), spans or {})),
        *(ledger(table, record(0, ALL)) for table in others),
    )


@pytest.mark.parametrize(
    ("table", "source", "expected"),
    [
        (STAGED, RAW, (3, 4, 5)),
        (LATE, RAW, (5,)),
        (FACT, STAGED, (5,)),
        (CORRECTIONS, FACT, (5,)),
        (CORRECTIONS, CURRENT, (5,)),
        (LATENESS, RAW, (5, 6, 7)),
        (LATENESS, REJECTED, (5,)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_a_day_is_made_of(table, source, expected):
    assert changed_days(all_ledgers(), table, source.name, 5, spans=True) == days(*expected)


def test_what_is_known_is_made_of_all_that_decides_it():
    """Whatever the window is: days 1 and 4 have orders with lines on day 5."""
    raw = all_ledgers({5: days(1, 4)})
    assert changed_days(raw, CURRENT, RAW.name, 5, spans=True) == days(1, 4, 5)
    assert changed_days(raw, CURRENT, RAW.name, 3, spans=True) == days(3)


def test_what_is_known_changes_with_a_log_day_that_tells_of_it_now():
    """Though the log day itself, and all that there was before, is as it was."""
    before = {RAW.name: ledger(RAW, log_record(0, frozenset(ALL), {}))}
    same = {
        d: published for d, published in before[RAW.name].records[0].days.items() if d == day(5)
    }
    reloaded = msgspec.structs.replace(log_record(1, days(5), {5: days(1)}), days=same)
    after = {RAW.name: ledger(RAW, *before[RAW.name].records, reloaded)}
    earlier, later = (input_digests(CURRENT.inputs(POLICY), raw, ALL) for raw in (before, after))
    assert {d for d in ALL if earlier[d] != later[d]} == days(1)


def test_what_is_known_changes_with_rows_of_others():
    """Lines that others wrote may tell of any day before."""
    before = all_ledgers()
    first = before[RAW.name].records[0]
    raw = ledger(RAW, first, external=[ExternalCommit(1, "WRITE", days(3))])
    digests = input_digests(CURRENT.inputs(POLICY), {RAW.name: raw}, ALL)
    then = input_digests(CURRENT.inputs(POLICY), before, ALL)
    assert {d for d in ALL if digests[d] != then[d]} == days((1, 3))


def test_an_input_digest_is_one_of_contents():
    """Loaded again with the same rows, by other commits."""
    raw = [log_record(n, frozenset(ALL), {5: days(1)}, digest="same") for n in (0, 1)]
    first, second = (
        input_digests(CURRENT.inputs(POLICY), {RAW.name: ledger(RAW, *raw[: n + 1])}, ALL)
        for n in (0, 1)
    )
    assert first == second
    assert len(set(first.values())) == len(ALL)


def test_input_digests_are_those_of_earlier_releases():
    """They are compared with those on record: other ones would have all days computed again."""
    staged = ledger(STAGED, record(0, days(1, 2), digest="2-a-b"))
    facts = FACT.inputs(POLICY)
    assert input_digests(facts, ledgers(staged), [day(1), day(3)]) == {
        # SHA-256 of "2-a-b", and of "nothing".
        day(1): "ad02e5731f85e08a",
        day(3): "1785cfc3bc6ac773",
    }
    references = {"countries": "version 3", "rates": None}
    assert input_digests(facts, ledgers(staged), [day(1)], references) == {
        # Of the content of the day, and of `name content` of each input without days.
        day(1): hash_lines("2-a-b", "countries version 3", "rates None"),
    }
    # Of a varying number of days, each has its date.
    raw = ledger(RAW, log_record(0, days(1, 2), {2: days(1)}, digest="5-c-d"))
    assert input_digests(CURRENT.inputs(POLICY), ledgers(raw), days(1, 2)) == {
        day(1): hash_lines("2024-01-01 5-c-d", "2024-01-02 5-c-d"),
        day(2): hash_lines("2024-01-02 5-c-d"),
    }
    # Days that are not there count as well, where the number is always the same.
    assert input_digests(STAGED.inputs(POLICY), ledgers(raw), [day(1)]) == {
        day(1): hash_lines("5-c-d", "5-c-d", "nothing"),
    }


def hash_lines(*lines: str) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def test_content_that_is_not_published_yet_is_taken_for_published():
    """By input and day: a day of the same date of another input stays as it is."""
    known = all_ledgers()
    overrides = {(FACT.name, day(2)): "other facts", (STAGED.name, day(3)): "no input of these"}
    inputs = CORRECTIONS.inputs(POLICY)
    digests = input_digests(inputs, known, days(1, 2, 3), content_overrides=overrides)
    assert digests == {
        day(1): hash_lines("digest 0", "digest 0"),
        day(2): hash_lines("other facts", "digest 0"),
        day(3): hash_lines("digest 0", "digest 0"),
    }


# --- what the day before comes out as -------------------------------------------------------------


def test_the_input_digest_of_a_stateful_day_is_known_before_the_day_before_is_published():
    """It is that which it has once the day before is published with these rows."""
    references = {"countries": "version 3"}
    current = ledger(CURRENT, record(0, days((1, 3)), digest="orders"))
    values = ledger(customer_lifetime_value, record(0, days((1, 3)), digest="as it was"))
    inputs, name = customer_lifetime_value.inputs(POLICY), customer_lifetime_value.name
    known = ledgers(current, replace(values, references=references))
    snapshot = snapshot_ledgers(known, POLICY)
    assert snapshot.digest_following(name, day(3), "as it was") == hash_lines(
        "orders", "as it was", "countries version 3"
    )
    rebuilt = ledger(
        customer_lifetime_value, *values.records, record(1, days(2), digest="as it is")
    )
    assert (
        snapshot.digest_following(name, day(3), "as it is")
        == (input_digests(inputs, ledgers(current, rebuilt), [day(3)], references)[day(3)])
    )


# --- what would be --------------------------------------------------------------------------------


def test_of_days_that_may_change_nothing_is_known():
    raw = ledger(RAW, log_record(0, days((1, 3)), {}, digest="as it was"))
    what_if = HypotheticalLedger.from_ledger(replace(raw, transaction=7), days(2, 5))
    assert {n: what_if.content_key(day(n)) for n in range(1, 6)} == {
        1: "as it was",
        2: "not known yet",
        3: "as it was",
        4: "nothing",
        5: "not known yet",
    }
    assert what_if.published_days == days(1, 2, 3, 5)
    assert what_if.hypothetical_days == days(2, 5)
    # Nothing else is another one.
    assert what_if.transaction == 7
    assert (what_if.table, what_if.version, what_if.records) == (RAW, 0, raw.records)


def test_a_clone_that_is_switched_to_has_its_own_days_and_those_of_production():
    clone = ledger(FACT, record(4, days((1, 3)), digest="of the clone"))
    production = ledger(FACT, record(9, days((2, 4)), digest="of production"))
    switched = SwitchedLedger.from_clone(replace(clone, transaction=7), days(1, 2), production)
    assert {n: switched.content_key(day(n)) for n in range(1, 6)} == {
        1: "of the clone",
        2: "of the clone",
        3: "of production",
        4: "of production",
        5: "nothing",
    }
    assert (switched.version, switched.transaction, switched.built_days) == (4, 7, days(1, 2))
    assert switched.published_days == days((1, 3))


@pytest.mark.parametrize(
    ("table", "source", "changing", "expected"),
    [
        (FACT, STAGED, (2, 9), (2,)),
        # Each log day decides the two event days before it as well.
        (STAGED, RAW, (5,), (3, 4, 5)),
        (STAGED, RAW, (9,), ()),
        # A log day may have lines of any day before it.
        (CURRENT, RAW, (3,), (1, 2, 3)),
        (CORRECTIONS, CURRENT, (4,), (4,)),
        # What it does not read does not matter.
        (CORRECTIONS, STAGED, (4,), ()),
        (FACT, STAGED, (), ()),
    ],
    ids=lambda value: getattr(value, "name", None),
)
@pytest.mark.parametrize("references", [{}, {"countries": "version 3"}])
def test_what_depends_on_days_that_may_change(table, source, changing, expected, references):
    known = all_ledgers()
    known[table.name] = replace(known[table.name], references=references)
    of_days = days((1, 6))
    dependent = snapshot_ledgers(known, POLICY).days_depending_on(
        table.name, of_days, source.name, days(*changing)
    )
    assert dependent == days(*expected)
    assert (
        snapshot_ledgers(known, POLICY).days_depending_on(
            table.name, (), source.name, days(*changing)
        )
        == set()
    )
