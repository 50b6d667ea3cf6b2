"""What one backfill did to a table, worked out from ledgers alone."""

import pytest

from backfill_assets.footprints import belongs, footprint, written_since
from backfill_assets.records import Foreign, Ledger, Published, Record
from backfill_assets.schemas import FACT
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
