"""What one backfill did to a table, worked out from ledgers alone."""

import pytest

from backfill_assets.backfills.changes import (
    DayChange,
    backfill_ids_of,
    changed_days,
    commits_of,
    is_commit_of,
    overwritten_since,
    reverted_by_table,
    reverted_days,
    unchanged_days,
)
from backfill_assets.backfills.reconcile import find_replaced_days
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitDetails, CommitRecord, ExternalCommit, PublishedDay
from backfill_assets.orders.tables import FACT
from backfill_assets_tests.helpers.pipeline import day


def make_record(version, days, *, written=None, withdrawn=(), **more):
    published = {day(n): PublishedDay(1, f"d{version}", "ok") for n in days}
    return CommitRecord(
        **{
            "version": version,
            "run_id": f"run-{version:08d}",
            "backfill_id": None,
            "launched_by": "person",
            "code_version": "c",
            "config_digest": "d",
            "inputs": {},
            "days": published,
            "final": frozenset(),
            "details": CommitDetails(),
            "since": version - 1,
            "written_days": frozenset(day(n) for n in (days if written is None else written)),
            "revoked_days": frozenset(day(n) for n in withdrawn),
            **more,
        }
    )


def make_ledger(*records, external=()):
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
    assert is_commit_of(make_record(3, [1], backfill_id="abcdefgh-pilot"), name) is is_part


def test_a_commit_without_a_backfill_belongs_to_its_run_alone():
    alone = make_record(3, [1])
    assert not is_commit_of(alone, "")
    assert not is_commit_of(alone, "-")
    assert is_commit_of(alone, "run-00000003")


def test_before_and_after():
    first, own_record, second_record = (
        make_record(1, [1, 2, 3]),
        make_record(2, [1, 2], written=[2], backfill_id="b"),
        make_record(3, [2, 4], backfill_id="b-rest"),
    )
    changes = changed_days(make_ledger(first, own_record, second_record), commits_of("b"))
    assert set(changes) == {day(2), day(4)}  # day 1 was found as it was to be
    assert (changes[day(2)].version_before, changes[day(2)].version_after) == (1, 3)
    assert changes[day(2)].previous_commit is first
    assert (changes[day(4)].version_before, changes[day(4)].previous_commit) == (2, None)
    assert changed_days(
        make_ledger(first, own_record, second_record), commits_of("b", [day(4)])
    ).keys() == {day(4)}
    assert overwritten_since(make_ledger(first, own_record, second_record), changes) == {}


def test_what_was_taken_back_was_not_there_before():
    records = (
        make_record(1, [1]),
        make_record(2, [], withdrawn=[1]),
        make_record(3, [1], backfill_id="b"),
    )
    assert changed_days(make_ledger(*records), commits_of("b"))[day(1)].previous_commit is None
    assert make_ledger(*records[:2]).revocations == {day(1): records[1]}
    assert make_ledger(*records).revocations == {}


@pytest.mark.parametrize("other", ["record", "external"])
def test_others_that_wrote_since_or_between(other):
    own_record, second_record = (
        make_record(2, [1], backfill_id="b"),
        make_record(4, [1], backfill_id="b"),
    )
    if other == "record":
        theirs, known = make_record(3, [1]), ()
        records = [make_record(1, [1]), own_record, theirs]
    else:
        theirs = ExternalCommit(3, "DELETE", frozenset([day(1)]))
        known, records = (theirs,), [make_record(1, [1]), own_record]
    since = make_ledger(*records, external=known)
    assert overwritten_since(since, changed_days(since, commits_of("b"))) == {day(1): theirs}
    between = make_ledger(*records, second_record, external=known)
    changes = changed_days(between, commits_of("b"))
    if other == "record":
        # What they wrote comes back: an undo leaves nothing of the earlier commit.
        assert changes == {day(1): DayChange(3, 4, theirs, second_record)}
        assert overwritten_since(between, changes) == {}
    else:
        assert changes[day(1)].version_before == 1
        assert overwritten_since(between, changes) == {day(1): theirs}


def undo_record(version, as_of):
    """An undo that puts day 1 back to what it held as of a version."""
    return make_record(version, [1], details=CommitDetails(as_of={str(as_of): ["2024-01-01"]}))


def test_days_that_others_replaced_since_are_named():
    own = make_record(2, [1, 2, 3], backfill_id="b-rest")
    deletes = ExternalCommit(4, "DELETE", frozenset([day(2)]))
    rebuilt = make_record(5, [3])  # that is no problem of the backfill
    before = make_record(1, [1, 2, 3])
    known = make_ledger(before, own, undo_record(3, 1), rebuilt, external=[deletes])
    changes = {FACT.name: changed_days(known, commits_of("b"))}
    assert [*find_replaced_days({FACT.name: known}, "b", changes)] == [
        "fact_daily_orders [2024-01-01] has been undone since",
        "fact_daily_orders [2024-01-02] has been changed by another writer since",
    ]
    # Not those that the backfill itself wrote last; but those that it covered without writing.
    unwritten = make_record(5, [2, 3], written=[2], backfill_id="b-rest-2")
    later = ExternalCommit(6, "DELETE", frozenset([day(3)]))
    known = make_ledger(before, own, unwritten, external=[deletes, later])
    changes = {FACT.name: changed_days(known, commits_of("b"))}
    assert [*find_replaced_days({FACT.name: known}, "b", changes)] == [
        "fact_daily_orders [2024-01-03] has been changed by another writer since"
    ]


def test_days_that_were_undone():
    """By an undo, by an undo that was undone, and by one of those that was undone itself."""
    first, own_record = make_record(1, [1]), make_record(2, [1, 2], backfill_id="abcdefgh-001")
    history = [first, own_record, undo_record(3, 1), undo_record(4, 2), undo_record(5, 3)]
    reverted = [
        reverted_by_table({"t": make_ledger(*history[: n + 2])}, "abcdefgh")["t"] for n in range(4)
    ]
    assert reverted == [{}, {day(1): own_record}, {}, {day(1): own_record}]


def test_what_was_undone_and_launched_again():
    """Only the second launch is there to undo, and the undo is nobody's work in between."""
    second_record = make_record(4, [1], backfill_id="b")
    history = make_ledger(
        make_record(1, [1]), make_record(2, [1], backfill_id="b"), undo_record(3, 1), second_record
    )
    changes = changed_days(history, commits_of("b"))
    assert (
        changes[day(1)].version_before,
        changes[day(1)].version_after,
        changes[day(1)].external_between,
    ) == (3, 4, None)
    assert (reverted_days(history, changes), overwritten_since(history, changes)) == (set(), {})
    twice = make_ledger(*history.records, undo_record(5, 3))
    assert reverted_days(twice, changed_days(twice, commits_of("b"))) == {day(1)}


def test_what_came_later_and_was_undone_is_in_nobodys_way():
    own_record, later = make_record(2, [1], backfill_id="b"), make_record(3, [1], backfill_id="c")
    history = make_ledger(make_record(1, [1]), own_record, later, undo_record(4, 2))
    changes = changed_days(history, commits_of("b"))
    assert overwritten_since(history, changes) == {}
    assert reverted_days(history, changes) == set()
    undone_too = make_ledger(*history.records, undo_record(5, 1))
    assert reverted_days(undone_too, changes) == {day(1)}
    assert reverted_days(undone_too, changed_days(undone_too, commits_of("c"))) == {day(1)}


def test_an_undo_has_a_footprint_as_well():
    history = [make_record(1, [1]), make_record(2, [1], backfill_id="b"), undo_record(3, 1)]
    its = commits_of("run-00000003")
    before_undo = make_ledger(*history)
    assert changed_days(before_undo, its)[day(1)].version_before == 2
    assert reverted_days(before_undo, changed_days(before_undo, its)) == set()
    after_undo = make_ledger(*history, undo_record(4, 2))
    assert reverted_days(after_undo, changed_days(after_undo, its)) == {day(1)}


def test_the_undo_of_an_undo_is_undone_by_an_undo():
    """Of a day that had rows before the backfill, and of one that had none."""
    own_record = make_record(2, [1, 2], backfill_id="b")
    both = ["2024-01-01...2024-01-02"]
    undo, again, undone = (
        make_record(n, numbers, withdrawn=withdrawn, details=CommitDetails(as_of={as_of: both}))
        for n, as_of, numbers, withdrawn in [
            (3, "1", [1], [2]),
            (4, "2", [1, 2], []),
            (5, "3", [1], [2]),
        ]
    )
    history = make_ledger(make_record(1, [1]), own_record, undo, again, undone)
    changes = changed_days(history, commits_of("run-00000004"))
    assert reverted_days(history, changes) == {day(1), day(2)}


def test_an_undo_is_not_undone_where_an_earlier_undo_is():
    """What the earlier backfill had written comes back, not what the undone one had."""
    history = make_ledger(
        make_record(1, [1]),
        make_record(2, [1], backfill_id="b"),
        undo_record(3, 1),
        make_record(4, [1], backfill_id="c"),
        undo_record(5, 3),
        undo_record(6, 2),
    )
    changes = changed_days(history, commits_of("run-00000005"))
    assert reverted_days(history, changes) == set()
    assert overwritten_since(history, changes) == {day(1): history.records[-1]}


def test_an_undo_is_not_undone_where_more_is_undone_after_it():
    history = make_ledger(
        make_record(1, [1]),
        make_record(2, [1], backfill_id="b"),
        make_record(3, [1], backfill_id="c"),
        undo_record(4, 2),
        undo_record(5, 1),
    )
    changes = changed_days(history, commits_of("run-00000004"))
    assert reverted_days(history, changes) == set()
    assert overwritten_since(history, changes) == {day(1): history.records[-1]}
    # What came later and was undone leaves the day as the second undo has put it back.
    later = make_ledger(*history.records, make_record(6, [1]), undo_record(7, 5))
    assert overwritten_since(later, changes) == {day(1): history.records[-1]}


def test_days_that_were_found_as_they_were_to_be():
    first, same = make_record(1, [1, 2, 3]), make_record(2, [1, 2, 3], written=[2], backfill_id="b")
    assert {
        d: c.previous_commit
        for d, c in unchanged_days(make_ledger(first, same), commits_of("b")).items()
    } == {
        day(1): first,
        day(3): first,
    }
    later = make_ledger(first, same, make_record(3, [3], written=[]), external=[])
    assert unchanged_days(later, commits_of("b")).keys() == {day(1)}
    others = make_ledger(first, same, external=[ExternalCommit(3, "DELETE", frozenset([day(1)]))])
    assert unchanged_days(others, commits_of("b")).keys() == {day(3)}


def test_the_backfill_that_a_run_is_of():
    ledgers = {
        "t": make_ledger(make_record(1, [1], backfill_id="abcdefgh-001"), make_record(2, [1]))
    }
    assert backfill_ids_of(ledgers, "run-00000001") == {"abcdefgh-001"}
    assert backfill_ids_of(ledgers, "run-00000002") == set()
