"""What one backfill did to a table, worked out from ledgers alone."""

import msgspec
import pytest

from backfill_assets.footprints import backfills_of, belongs, footprint, written_since
from backfill_assets.records import Foreign, Ledger, Published, Record
from backfill_assets.schemas import FACT
from backfill_assets.undo import undone
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
            "said": {},
            "since": version - 1,
            "written": frozenset(day(n) for n in (days if written is None else written)),
            "withdrawn": frozenset(day(n) for n in withdrawn),
            **more,
        }
    )


def ledger(*records, foreign=()):
    return Ledger(FACT, records[-1].version, records, foreign)


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
    found = footprint(ledger(first, mine, again), "b")
    assert set(found) == {day(2), day(4)}  # day 1 was found as it was to be
    assert (found[day(2)].before, found[day(2)].after) == (1, 3)
    assert found[day(2)].previous is first
    assert (found[day(4)].before, found[day(4)].previous) == (2, None)
    assert footprint(ledger(first, mine, again), "b", [day(4)]).keys() == {day(4)}
    assert written_since(ledger(first, mine, again), found) == {}


def test_what_was_taken_back_was_not_there_before():
    records = record(1, [1]), record(2, [], withdrawn=[1]), record(3, [1], backfill_id="b")
    assert footprint(ledger(*records), "b")[day(1)].previous is None
    assert ledger(*records[:2]).withdrawals == {day(1): records[1]}
    assert ledger(*records).withdrawals == {}


@pytest.mark.parametrize("other", ["record", "foreign"])
def test_others_that_wrote_since_or_between(other):
    mine, again = record(2, [1], backfill_id="b"), record(4, [1], backfill_id="b")
    if other == "record":
        theirs, known = record(3, [1]), ()
        records = [record(1, [1]), mine, theirs]
    else:
        theirs = Foreign(3, "DELETE", frozenset([day(1)]))
        known, records = (theirs,), [record(1, [1]), mine]
    since = ledger(*records, foreign=known)
    assert written_since(since, footprint(since, "b")) == {day(1): theirs}
    between = ledger(*records, again, foreign=known)
    assert written_since(between, footprint(between, "b")) == {day(1): theirs}


def put_back(version, of, held):
    """An undo of a version's day 1, which holds then what another version had written."""
    days = {day(1): Published(1, f"d{held}", "ok")}
    undo = record(version, [1], said={"undid": {str(of): ["2024-01-01"]}})
    return msgspec.structs.replace(undo, days=days)


def test_days_that_were_undone():
    """By an undo, by an undo that was undone, and by one of those that was undone itself."""
    first, mine = record(1, [1]), record(2, [1, 2], backfill_id="abcdefgh-001")
    history = [first, mine, put_back(3, 2, 1), put_back(4, 3, 2), put_back(5, 4, 1)]
    found = [undone({"t": ledger(*history[: n + 2])}, "abcdefgh")["t"] for n in range(4)]
    assert found == [{}, {day(1): mine}, {}, {day(1): mine}]


def test_the_backfill_that_a_run_is_of():
    ledgers = {"t": ledger(record(1, [1], backfill_id="abcdefgh-001"), record(2, [1]))}
    assert backfills_of(ledgers, "run-00000001") == {"abcdefgh-001"}
    assert backfills_of(ledgers, "run-00000002") == set()
