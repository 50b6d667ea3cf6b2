"""What a ledger says of each day, over logs made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import msgspec
import pytest

from backfill_assets.calendar.reach import Reach
from backfill_assets.delta.ledgers import (
    Ledger,
    StoredFiles,
    TableMetadata,
    due_days,
)
from backfill_assets.delta.records import (
    ACCEPTED_CODE,
    CommitRecord,
    ExternalCommit,
    Provenance,
    PublishedDay,
)
from backfill_assets.orders.tables import FACT, RAW
from backfill_assets.tables.table import Dependency
from backfill_assets_tests.helpers.invented_logs import days, ledger, make_measured, record
from backfill_assets_tests.helpers.pipeline import day

#: Our commit of day 1 replaces its rows in version 3, or leaves those of version 1 as they are.
REPLACED = record(3, days(1), digest="ours", rows=5)
LEFT_ALONE = msgspec.structs.replace(REPLACED, since=1, written_days=frozenset())
MERGED = msgspec.structs.replace(REPLACED, since=1, written_days=days(1), is_merge=True)
EMPTY = record(3, days(1), digest="ours", rows=0)


def external(version: int, *numbers: int, unknown_days: bool = False) -> ExternalCommit:
    return ExternalCommit(version, "WRITE", days(*numbers), has_unknown_days=unknown_days)


def facts(
    *records: CommitRecord,
    others: Iterable[ExternalCommit] = (),
    measured: int | None = 5,
    **known: Any,
) -> Ledger:
    """The ledger of the facts; `measured` rows of day 1 are in its files, None if it has none."""
    rows = {} if measured is None else make_measured({day(1): measured})
    return replace(ledger(FACT, *records, external=others), measured=rows, **known)


COUNTED: dict[str, Any] = {"rows": {day(1): 5}}
NOT_COUNTED: dict[str, Any] = {"rows": {}}
UNKNOWN_REMOVAL_BEFORE = external(2, unknown_days=True)
UNKNOWN_REMOVAL_AFTER = external(4, unknown_days=True)
STANDS = {
    "nobody else wrote": facts(REPLACED),
    "another day was written": facts(REPLACED, others=[external(4, 2)]),
    "another writer came before": facts(REPLACED, others=[external(2, 1)]),
    "the commit saw what another wrote": facts(LEFT_ALONE, others=[external(1, 1)]),
    "the merge saw what another wrote": facts(MERGED, others=[external(1, 1)]),
    "an earlier commit is missing": facts(REPLACED, missing_versions=[1, 2]),
    "the commit saw what is missing": facts(LEFT_ALONE, missing_versions=[0, 1]),
    "as many rows as published": facts(REPLACED, **COUNTED),
    "without rows, as published": facts(EMPTY, measured=None, **NOT_COUNTED),
    "rows that nobody counted": facts(REPLACED, **NOT_COUNTED),
    "an unknown day lost rows before": facts(
        REPLACED, others=[UNKNOWN_REMOVAL_BEFORE], **NOT_COUNTED
    ),
    "an unknown day lost rows that the commit saw": facts(
        LEFT_ALONE, others=[external(1, unknown_days=True)], **NOT_COUNTED
    ),
    "an unknown day lost rows, and this one has all": facts(
        REPLACED, others=[UNKNOWN_REMOVAL_AFTER], **COUNTED
    ),
}
DOES_NOT_STAND = {
    "never published": facts(measured=None),
    "published by another writer only": facts(others=[external(0, 1)]),
    "another writer came after": facts(REPLACED, others=[external(4, 1)]),
    "the first of two others came before": facts(REPLACED, others=[external(2, 1), external(4, 1)]),
    "the commit left what another wrote": facts(LEFT_ALONE, others=[external(2, 1)]),
    "the merge left what another wrote": facts(MERGED, others=[external(2, 1)]),
    "a later commit is missing": facts(REPLACED, missing_versions=[2, 4]),
    "a commit that it did not see is missing": facts(LEFT_ALONE, missing_versions=[2]),
    "more rows than published": facts(REPLACED, rows={day(1): 6}),
    "fewer rows than published": facts(REPLACED, rows={day(1): 4}),
    "rows are gone": facts(REPLACED, measured=None, **NOT_COUNTED),
    "rows where none were published": facts(EMPTY, measured=1, rows={day(1): 1}),
    "an unknown day lost rows after": facts(
        REPLACED, others=[UNKNOWN_REMOVAL_AFTER], **NOT_COUNTED
    ),
    "the last of two removals came after": facts(
        REPLACED, others=[UNKNOWN_REMOVAL_BEFORE, UNKNOWN_REMOVAL_AFTER], **NOT_COUNTED
    ),
}


@pytest.mark.parametrize("name", STANDS)
def test_a_record_holds_while_nothing_shows_that_its_day_changed(name):
    known = STANDS[name]
    assert known.current_record(day(1)) == known.records[0].days[day(1)]
    assert known.content_key(day(1)) == "ours"


@pytest.mark.parametrize("name", DOES_NOT_STAND)
def test_a_record_no_longer_holds_once_its_day_may_have_changed(name):
    known = DOES_NOT_STAND[name]
    assert known.current_record(day(1)) is None
    assert known.content_key(day(1)) != "ours"


STORED = {day(1): StoredFiles(2, 100, 55)}
UNRECORDED = "in 2 file(s) of 100 bytes, the newest of 55"


@pytest.mark.parametrize(
    ("known", "key"),
    [
        # Nobody ever wrote it.
        (facts(measured=None), "nothing"),
        (facts(others=[external(4, 2)], measured=None), "nothing"),
        (facts(others=[UNKNOWN_REMOVAL_AFTER], measured=None), "nothing"),
        # Another writer's day that lost all its rows, as far as the files were counted.
        (facts(others=[external(4, 1)], measured=None, **NOT_COUNTED), "nothing"),
        (facts(others=[external(4, 1)], measured=None), "version 4"),
        # Rows of the last writer.
        (facts(others=[external(0, 1)]), "version 0"),
        (facts(others=[external(0, 1), external(1, 1), external(2, 2)]), "version 1"),
        (facts(REPLACED, others=[external(4, 1), external(5, 2)]), "version 4"),
        (facts(LEFT_ALONE, others=[external(2, 1)]), "version 2"),
        # A merge adds to what another writer wrote: from then on the rows are of its version.
        (facts(MERGED, others=[external(2, 1)]), "version 3"),
        (facts(MERGED, others=[external(2, 1), external(4, 1)]), "version 4"),
        # An unknown day lost rows, and that may be this one.
        (facts(others=[external(0, unknown_days=True)]), "version 0"),
        (facts(REPLACED, others=[UNKNOWN_REMOVAL_AFTER], **NOT_COUNTED), "version 4"),
        (facts(REPLACED, others=[external(4, 1), external(5, unknown_days=True)]), "version 5"),
        (facts(REPLACED, others=[UNKNOWN_REMOVAL_AFTER, external(5, 1)]), "version 5"),
        # No commit says who wrote the rows: only the files tell.
        (facts(stored=STORED), f"unrecorded unknown rows {UNRECORDED}"),
        (facts(stored=STORED, **COUNTED), f"unrecorded 5 rows {UNRECORDED}"),
        (facts(stored=STORED, missing_versions=[0]), f"unrecorded unknown rows {UNRECORDED}"),
        (
            facts(REPLACED, stored=STORED, rows={day(1): 6}),
            f"unrecorded 6 rows {UNRECORDED}",
        ),
        (
            facts(REPLACED, stored=STORED, missing_versions=[4]),
            f"unrecorded unknown rows {UNRECORDED}",
        ),
        (
            facts(REPLACED, others=[external(2, 1)], stored=STORED, rows={day(1): 6}),
            f"unrecorded 6 rows {UNRECORDED}",
        ),
        (
            facts(LEFT_ALONE, others=[external(1, 1)], stored=STORED, rows={day(1): 6}),
            f"unrecorded 6 rows {UNRECORDED}",
        ),
        # The last writer may be in a commit that is missing.
        (
            facts(others=[external(4, 1)], stored=STORED, missing_versions=[5]),
            f"unrecorded unknown rows {UNRECORDED}",
        ),
        (facts(others=[external(4, 1)], stored=STORED, missing_versions=[3]), "version 4"),
        (
            facts(REPLACED, measured=None, missing_versions=[4]),
            "unrecorded 0 rows in 0 file(s) of 0 bytes, the newest of 0",
        ),
        (
            facts(REPLACED, measured=None, **NOT_COUNTED),
            "unrecorded 0 rows in 0 file(s) of 0 bytes, the newest of 0",
        ),
    ],
)
def test_the_content_of_a_day_is_known_by_whoever_wrote_it_last(known, key):
    assert known.content_key(day(1)) == key


@pytest.mark.parametrize(
    ("known", "rows"),
    [
        (facts(measured=None), None),
        (facts(), 5),
        (facts(rows={day(1): 7}), 7),
        (facts(rows={day(2): 7}), 5),
        (facts(rows={day(1): 0}), 0),
        (facts(EMPTY, measured=None), 0),
        (facts(EMPTY, measured=None, rows={}), 0),
        (facts(measured=None, rows={day(1): 7}), None),
    ],
)
def test_the_rows_of_a_day_are_those_of_its_files(known, rows):
    assert known.rows_of(day(1)) == rows


@pytest.mark.parametrize(
    ("known", "rows"),
    [
        (facts(measured=None), 0),
        (facts(measured=3), 3),
        (facts(record(3, days(1), rows=7), measured=3), 7),
        (facts(record(3, days(1), rows=2), measured=3), 3),
        (facts(record(3, days(1), rows=7), measured=None), 7),
        # 50 bytes count as a row, fewer as none.
        (facts(measured=3, stored={day(1): StoredFiles(1, 499)}), 9),
        (facts(measured=3, stored={day(1): StoredFiles(1, 500)}), 10),
        (facts(measured=3, stored={day(2): StoredFiles(1, 500)}), 3),
        (facts(measured=3, stored={day(1): StoredFiles(1, 49)}), 3),
        (facts(measured=None, stored={day(2): StoredFiles(1, 500)}), 0),
    ],
)
def test_the_work_of_a_day_is_estimated_by_the_largest_of_its_figures(known, rows):
    assert known.estimate_rows(day(1)) == rows


def test_an_older_ledger_knows_the_commits_until_then_and_no_files():
    struct = FACT.struct_type
    shared: dict[str, Any] = {
        "transaction": 9,
        "metadata": TableMetadata(struct, ("run_date",)),
        "changed_columns": {"orders": 2},
        "references": {"customers": "a"},
    }
    records = [record(0, days(1)), record(3, days(2)), record(6, days(3))]
    others = [external(1, 1), external(4, 1), external(5, 2)]
    known = Ledger(
        FACT,
        version=6,
        records=records,
        external_commits=others,
        measured=make_measured({day(1): 5}),
        stored=STORED,
        rows={day(1): 5},
        missing_versions=[2, 3, 4, 5],
        **shared,
    )
    assert known.as_of(4) == Ledger(
        FACT,
        version=4,
        records=records[:2],
        external_commits=others[:2],
        missing_versions=[2, 3, 4],
        **shared,
    )
    assert known.as_of(3) == Ledger(
        FACT,
        version=3,
        records=records[:2],
        external_commits=others[:1],
        missing_versions=[2, 3],
        **shared,
    )


def test_columns_that_changed_with_a_commit_or_before_are_covered_by_it():
    known = facts(changed_columns={"orders": 2, "revenue": 3, "discount": 4})
    assert known.columns_changed_since(REPLACED) == {"discount"}


def test_references_have_changed_where_their_content_is_another_than_the_published():
    references = {"customers": "a", "shops": None, "rates": "r", "gone": "g"}
    known = facts(
        record(3, days(1), references=references),
        references={"customers": "b", "shops": None, "rates": "r", "gone": None, "new": "n"},
    )
    assert known.changed_references(day(1)) == {"customers": "b", "gone": None, "new": "n"}


def test_days_under_other_settings_are_those_whose_latest_record_says_so():
    """A day that an undo restored keeps the settings of its rows."""
    restored = PublishedDay(1, "d", "ok", made_under="v")
    records = [
        record(0, days((1, 3)), config_digest="v"),
        record(1, days(2), config_digest="w"),
        msgspec.structs.replace(
            record(2, days(), config_digest="w"), days={day(4): restored, day(5): restored}
        ),
    ]
    known = facts(*records)
    assert known.under_other_settings("w") == days(1, 3, 4, 5)
    assert known.under_other_settings("v") == days(2)


def make_code_record(
    version: int, code: str, *, of_rows: str | None = None, **details: Any
) -> CommitRecord:
    """A commit of day 1 by some code; its rows may be of other code."""
    provenance = None if of_rows is None else Provenance(of_rows)
    published = PublishedDay(1, "d", "ok", provenance=provenance)
    base = record(version, days(), **details)
    return msgspec.structs.replace(base, code_version=code, days={day(1): published})


@pytest.mark.parametrize(
    ("since", "code"),
    [
        ([], "old"),
        # Whoever published the day since says nothing of the older commit.
        ([make_code_record(4, "new")], "old"),
        ([make_code_record(4, "new", kind=ACCEPTED_CODE)], "new"),
        (
            [make_code_record(4, "newer", kind=ACCEPTED_CODE), make_code_record(5, "newest")],
            "old",
        ),
        (
            [make_code_record(n, f"code {n}", kind=ACCEPTED_CODE) for n in (4, 5)],
            "code 5",
        ),
    ],
)
def test_a_day_counts_as_computed_by_the_code_that_a_person_accepted_for_it(since, code):
    computed = make_code_record(3, "old")
    assert facts(computed, *since).code_of(computed, day(1)) == code


def test_the_code_of_a_restored_day_is_that_of_its_rows():
    restored = make_code_record(3, "undo", of_rows="old")
    assert facts(restored).code_of(restored, day(1)) == "old"
    assert facts().code_of(restored, day(1)) == "old"


@pytest.mark.parametrize(
    ("recorded", "details", "due"),
    [
        # Rows of day 2 changed; the reach is the day and the day before.
        ("", {}, days(2, 3)),
        ("", {"event_days": days(7)}, days(2, 3)),
        ("event_days", {}, days(2, 3)),
        ("event_days", {"event_days": days((7, 8))}, days(7, 8)),
        ("event_days", {"event_days": days()}, days()),
        ("log_days", {"event_days": days(7)}, days(2, 3)),
    ],
)
def test_a_commit_makes_due_what_it_records_or_else_what_its_days_reach(
    recorded: str, details: Mapping[str, frozenset[date]], due: frozenset[date]
):
    first = record(0, days((1, 2)))
    changing = msgspec.structs.replace(
        record(1, days((1, 2)), digest="digest 0", **details),
        days={**first.days, day(2): PublishedDay(1, "another", "ok")},
    )
    source = ledger(RAW, first, changing)
    dependency = Dependency(RAW, Reach(before=1), recorded)
    assert {*due_days(dependency, source)(changing)} == due
