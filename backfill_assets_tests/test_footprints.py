"""What one backfill did to a table, worked out from ledgers alone."""

import pytest

from backfill_assets.backfills.footprints import (
    backfill_ids_of,
    changed_days,
    commits_of,
    is_commit_of,
    overwritten_since,
    reverted_days,
    unchanged_days,
)
from backfill_assets.backfills.undo import reverted_by_table
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitDetails, CommitRecord, ExternalCommit, PublishedDay
from backfill_assets.orders.facts import FACT
from backfill_assets_tests.pipeline import day


def record(version, days, *, written=None, withdrawn=(), **more):
    said = {day(n): PublishedDay(1, f"d{version}", "ok") for n in days}
    return CommitRecord(
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
            "details": CommitDetails(),
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
    assert is_commit_of(record(3, [1], backfill_id="abcdefgh-pilot"), name) is is_part


def test_a_commit_without_a_backfill_belongs_to_its_run_alone():
    alone = record(3, [1])
    assert not is_commit_of(alone, "")
    assert not is_commit_of(alone, "-")
    assert is_commit_of(alone, "run-00000003")


def test_before_and_after():
    first, mine, again = (
        record(1, [1, 2, 3]),
        record(2, [1, 2], written=[2], backfill_id="b"),
        record(3, [2, 4], backfill_id="b-rest"),
    )
    found = changed_days(ledger(first, mine, again), commits_of("b"))
    assert set(found) == {day(2), day(4)}  # day 1 was found as it was to be
    assert (found[day(2)].version_before, found[day(2)].version_after) == (1, 3)
    assert found[day(2)].previous_commit is first
    assert (found[day(4)].version_before, found[day(4)].previous_commit) == (2, None)
    assert changed_days(ledger(first, mine, again), commits_of("b", [day(4)])).keys() == {day(4)}
    assert overwritten_since(ledger(first, mine, again), found) == {}


def test_what_was_taken_back_was_not_there_before():
    records = record(1, [1]), record(2, [], withdrawn=[1]), record(3, [1], backfill_id="b")
    assert changed_days(ledger(*records), commits_of("b"))[day(1)].previous_commit is None
    assert ledger(*records[:2]).revocations == {day(1): records[1]}
    assert ledger(*records).revocations == {}


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
    assert overwritten_since(since, changed_days(since, commits_of("b"))) == {day(1): theirs}
    between = ledger(*records, again, external=known)
    assert overwritten_since(between, changed_days(between, commits_of("b"))) == {day(1): theirs}


def undo(version, as_of):
    """An undo that puts day 1 back to what it held as of a version."""
    return record(version, [1], details=CommitDetails(as_of={str(as_of): ["2024-01-01"]}))


def test_days_that_were_undone():
    """By an undo, by an undo that was undone, and by one of those that was undone itself."""
    first, mine = record(1, [1]), record(2, [1, 2], backfill_id="abcdefgh-001")
    history = [first, mine, undo(3, 1), undo(4, 2), undo(5, 3)]
    found = [reverted_by_table({"t": ledger(*history[: n + 2])}, "abcdefgh")["t"] for n in range(4)]
    assert found == [{}, {day(1): mine}, {}, {day(1): mine}]


def test_what_was_undone_and_launched_again():
    """Only the second launch is there to undo, and the undo is nobody's work in between."""
    again = record(4, [1], backfill_id="b")
    history = ledger(record(1, [1]), record(2, [1], backfill_id="b"), undo(3, 1), again)
    found = changed_days(history, commits_of("b"))
    assert (
        found[day(1)].version_before,
        found[day(1)].version_after,
        found[day(1)].commit_between,
    ) == (3, 4, None)
    assert (reverted_days(history, found), overwritten_since(history, found)) == (set(), {})
    twice = ledger(*history.records, undo(5, 3))
    assert reverted_days(twice, changed_days(twice, commits_of("b"))) == {day(1)}


def test_what_came_later_and_was_undone_is_in_nobodys_way():
    mine, later = record(2, [1], backfill_id="b"), record(3, [1], backfill_id="c")
    history = ledger(record(1, [1]), mine, later, undo(4, 2))
    found = changed_days(history, commits_of("b"))
    assert overwritten_since(history, found) == {}
    assert reverted_days(history, found) == set()
    undone_too = ledger(*history.records, undo(5, 1))
    assert reverted_days(undone_too, found) == {day(1)}
    assert reverted_days(undone_too, changed_days(undone_too, commits_of("c"))) == {day(1)}


def test_an_undo_has_a_footprint_as_well():
    history = [record(1, [1]), record(2, [1], backfill_id="b"), undo(3, 1)]
    its = commits_of("run-00000003")
    there = ledger(*history)
    assert changed_days(there, its)[day(1)].version_before == 2
    assert reverted_days(there, changed_days(there, its)) == set()
    gone = ledger(*history, undo(4, 2))
    assert reverted_days(gone, changed_days(gone, its)) == {day(1)}


def test_days_that_were_found_as_they_were_to_be():
    first, same = record(1, [1, 2, 3]), record(2, [1, 2, 3], written=[2], backfill_id="b")
    assert {
        d: c.previous_commit
        for d, c in unchanged_days(ledger(first, same), commits_of("b")).items()
    } == {
        day(1): first,
        day(3): first,
    }
    later = ledger(first, same, record(3, [3], written=[]), external=[])
    assert unchanged_days(later, commits_of("b")).keys() == {day(1)}
    others = ledger(first, same, external=[ExternalCommit(3, "DELETE", frozenset([day(1)]))])
    assert unchanged_days(others, commits_of("b")).keys() == {day(3)}


def test_the_backfill_that_a_run_is_of():
    ledgers = {"t": ledger(record(1, [1], backfill_id="abcdefgh-001"), record(2, [1]))}
    assert backfill_ids_of(ledgers, "run-00000001") == {"abcdefgh-001"}
    assert backfill_ids_of(ledgers, "run-00000002") == set()
