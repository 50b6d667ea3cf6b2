"""What one backfill did to a table, worked out from ledgers alone."""

import pytest

from backfill_assets.backfills.footprints import (
    backfills_of,
    belongs,
    footprint,
    found_unchanged,
    part_of,
    put_back,
    written_since,
)
from backfill_assets.backfills.undo import undone
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import Details, ExternalCommit, Published, Record
from backfill_assets.orders.facts import FACT
from backfill_assets_tests.pipeline import day


def record(version, days, *, written=None, withdrawn=(), **more):
    said = {day(n): Published(1, f"d{version}", "ok") for n in days}
    return Record(
        **{
            "version": version,
            "run_id": f"run-{version:08d}",
            "backfill_id": None,
            "launched_by": "person",
            "code_version": "c",
            "config_digest": "d",
            "inputs": {},
            "days": said,
            "final": frozenset(),
            "details": Details(),
            "since": version - 1,
            "written": frozenset(day(n) for n in (days if written is None else written)),
            "withdrawn": frozenset(day(n) for n in withdrawn),
            **more,
        }
    )


def ledger(*records, external=()):
    return Ledger(FACT, records[-1].version, records, external)


@pytest.mark.parametrize(
    ("name", "is_part"),
    [
        ("abcdefgh", True),
        ("abcdefgh-pilot", True),
        ("abcdefgh-pil", False),
        ("abcdefg", False),
        ("run-00000003", True),
        ("run-0000", True),
        ("run-000", False),
        ("", False),
    ],
)
def test_belongs(name, is_part):
    assert belongs(record(3, [1], backfill_id="abcdefgh-pilot"), name) is is_part


def test_a_commit_without_a_backfill_belongs_to_its_run_alone():
    alone = record(3, [1])
    assert not belongs(alone, "")
    assert not belongs(alone, "-")
    assert belongs(alone, "run-00000003")


def test_before_and_after():
    first, mine, again = (
        record(1, [1, 2, 3]),
        record(2, [1, 2], written=[2], backfill_id="b"),
        record(3, [2, 4], backfill_id="b-rest"),
    )
    found = footprint(ledger(first, mine, again), part_of("b"))
    assert set(found) == {day(2), day(4)}  # day 1 was found as it was to be
    assert (found[day(2)].before, found[day(2)].after) == (1, 3)
    assert found[day(2)].previous is first
    assert (found[day(4)].before, found[day(4)].previous) == (2, None)
    assert footprint(ledger(first, mine, again), part_of("b", [day(4)])).keys() == {day(4)}
    assert written_since(ledger(first, mine, again), found) == {}


def test_what_was_taken_back_was_not_there_before():
    records = record(1, [1]), record(2, [], withdrawn=[1]), record(3, [1], backfill_id="b")
    assert footprint(ledger(*records), part_of("b"))[day(1)].previous is None
    assert ledger(*records[:2]).withdrawals == {day(1): records[1]}
    assert ledger(*records).withdrawals == {}


@pytest.mark.parametrize("other", ["record", "external"])
def test_others_that_wrote_since_or_between(other):
    mine, again = record(2, [1], backfill_id="b"), record(4, [1], backfill_id="b")
    if other == "record":
        theirs, known = record(3, [1]), ()
        records = [record(1, [1]), mine, theirs]
    else:
        theirs = ExternalCommit(3, "DELETE", frozenset([day(1)]))
        known, records = (theirs,), [record(1, [1]), mine]
    since = ledger(*records, external=known)
    assert written_since(since, footprint(since, part_of("b"))) == {day(1): theirs}
    between = ledger(*records, again, external=known)
    assert written_since(between, footprint(between, part_of("b"))) == {day(1): theirs}


def undo(version, as_of):
    """An undo that puts day 1 back to what it held as of a version."""
    return record(version, [1], details=Details(as_of={str(as_of): ["2024-01-01"]}))


def test_days_that_were_undone():
    """By an undo, by an undo that was undone, and by one of those that was undone itself."""
    first, mine = record(1, [1]), record(2, [1, 2], backfill_id="abcdefgh-001")
    history = [first, mine, undo(3, 1), undo(4, 2), undo(5, 3)]
    found = [undone({"t": ledger(*history[: n + 2])}, "abcdefgh")["t"] for n in range(4)]
    assert found == [{}, {day(1): mine}, {}, {day(1): mine}]


def test_what_was_undone_and_launched_again():
    """Only the second launch is there to undo, and the undo is nobody's work in between."""
    again = record(4, [1], backfill_id="b")
    history = ledger(record(1, [1]), record(2, [1], backfill_id="b"), undo(3, 1), again)
    found = footprint(history, part_of("b"))
    assert (found[day(1)].before, found[day(1)].after, found[day(1)].between) == (3, 4, None)
    assert (put_back(history, found), written_since(history, found)) == (set(), {})
    twice = ledger(*history.records, undo(5, 3))
    assert put_back(twice, footprint(twice, part_of("b"))) == {day(1)}


def test_what_came_later_and_was_undone_is_in_nobodys_way():
    mine, later = record(2, [1], backfill_id="b"), record(3, [1], backfill_id="c")
    history = ledger(record(1, [1]), mine, later, undo(4, 2))
    found = footprint(history, part_of("b"))
    assert written_since(history, found) == {}
    assert put_back(history, found) == set()
    undone_too = ledger(*history.records, undo(5, 1))
    assert put_back(undone_too, found) == {day(1)}
    assert put_back(undone_too, footprint(undone_too, part_of("c"))) == {day(1)}


def test_an_undo_has_a_footprint_as_well():
    history = [record(1, [1]), record(2, [1], backfill_id="b"), undo(3, 1)]
    its = part_of("run-00000003")
    there = ledger(*history)
    assert footprint(there, its)[day(1)].before == 2
    assert put_back(there, footprint(there, its)) == set()
    gone = ledger(*history, undo(4, 2))
    assert put_back(gone, footprint(gone, its)) == {day(1)}


def test_days_that_were_found_as_they_were_to_be():
    first, same = record(1, [1, 2, 3]), record(2, [1, 2, 3], written=[2], backfill_id="b")
    assert {
        d: c.previous for d, c in found_unchanged(ledger(first, same), part_of("b")).items()
    } == {
        day(1): first,
        day(3): first,
    }
    later = ledger(first, same, record(3, [3], written=[]), external=[])
    assert found_unchanged(later, part_of("b")).keys() == {day(1)}
    others = ledger(first, same, external=[ExternalCommit(3, "DELETE", frozenset([day(1)]))])
    assert found_unchanged(others, part_of("b")).keys() == {day(3)}


def test_the_backfill_that_a_run_is_of():
    ledgers = {"t": ledger(record(1, [1], backfill_id="abcdefgh-001"), record(2, [1]))}
    assert backfills_of(ledgers, "run-00000001") == {"abcdefgh-001"}
    assert backfills_of(ledgers, "run-00000002") == set()
