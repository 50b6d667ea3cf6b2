"""Ledgers: what is read back from the tables' logs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.audit.verdicts import DayMetrics, Expectation, Finding, Severity, Verdict
from backfill_assets.calendar.partitions import DAY, Window, from_ranges, to_ranges, to_windows
from backfill_assets.delta import ledger_reader
from backfill_assets.delta.commit_log import changed_files
from backfill_assets.delta.delta_rs import load_log
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import (
    CommitDetails,
    CommitNotes,
    CommitRecord,
    CommitSummary,
    ExternalCommit,
    Provenance,
    PublishedDay,
    commit_time,
    days_by_reason,
    decode_commit,
    decode_version,
    encode_commit,
    encode_published,
    encoding_id,
    to_published_days,
    to_record,
)
from backfill_assets.orders.tables import FACT, RAW
from backfill_assets.publish.types import NIGHT_TAG, launched_by, restore_verdict
from backfill_assets_tests.helpers.invented_logs import NIGHTLY, commit_metadata, days, record
from backfill_assets_tests.helpers.pipeline import START, day
from backfill_assets_tests.helpers.written_logs import (
    add_action,
    append_commit,
    commit_days,
    commit_info,
    commit_with_record,
    facts_table,
    first_added_file,
    read_facts,
    run_operation,
)


def remove_action(add: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True, **more}}


@pytest.fixture
def url(tmp_path: Path) -> Path:
    return tmp_path / FACT.name


# --- our own records ------------------------------------------------------------------------------


def test_no_table_is_an_empty_ledger(url):
    result = read_facts(url)
    assert result == Ledger(FACT, None, (), (), {})
    assert result.published_days == result.final_days == frozenset()
    assert result.latest == {}
    assert result.content_key(day(1)) == "nothing"


def test_an_empty_folder_is_no_table(url):
    url.mkdir()
    assert read_facts(url).version is None


def test_a_record_comes_back_whole(url):
    details = {
        "landing": {"2024-01-01": ["none", "1-abc"]},
        "event_days": ["2024-01-01...2024-01-03"],
    }
    audit = {"rows": 0, "digest": "0", "verdict": "warn", "totals": {"orders": "0"}}
    commit_days(
        url,
        days((1, 2)),
        {
            "run_id": "r1",
            "backfill_id": "b1",
            "launched_by": NIGHTLY,
            "asset": FACT.name,
            "code_version": "code",
            "config_digest": "config",
            "inputs": {"stg_orders": 4},
            "audit": {"2024-01-01": audit, "2024-01-03": {**audit, "rows": 2}},
            "not_published": {"2024-01-02": "unique_key: 2 rows"},
            "final": ["2024-01-01"],
            "details": details,
            "days": ["2024-01-01", "2024-01-03"],
        },
    )
    (stored,) = read_facts(url).records
    assert msgspec.structs.replace(stored, at=None) == CommitRecord(
        version=0,
        run_id="r1",
        backfill_id="b1",
        launched_by=NIGHTLY,
        code_version="code",
        config_digest="config",
        inputs={"stg_orders": 4},
        days={
            day(1): PublishedDay(0, "0", "warn", {"orders": "0"}),
            day(3): PublishedDay(2, "0", "warn", {"orders": "0"}),
        },
        final=days(1),
        details=msgspec.convert(details, CommitDetails),
        failed_days={day(2): "unique_key: 2 rows"},
    )
    assert frozenset(from_ranges(stored.details.event_days or ())) == days((1, 3))
    assert stored.details.log_days is None


@pytest.mark.parametrize("reason", ["Grüße \u2028", "caf\udce9"])
def test_what_json_of_python_can_hold_beyond_others(url, reason):
    audit = {"2024-01-01": {"rows": 1, "digest": "d", "verdict": "ok", "numbers": {"x": math.nan}}}
    commit_with_record(url, 1, audit=audit, reason=reason)
    (stored,) = read_facts(url).records
    assert stored.reason == reason
    assert math.isnan(stored.days[day(1)].numbers["x"])
    assert read_facts(url).external_commits == []


def test_what_a_later_version_adds_is_passed_over(url):
    audit = {"2024-01-01": {"rows": 1, "digest": "d", "verdict": "ok", "mood": "good"}}
    commit_with_record(
        url, 1, audit=audit, weather="rain", said={"wind": 3, "settled": ["2024-01-01"]}
    )
    (stored,) = read_facts(url).records
    assert stored.days == {day(1): PublishedDay(1, "d", "ok")}
    assert stored.details == CommitDetails(settled=["2024-01-01"])


def test_a_record_in_the_older_form(url):
    commit_with_record(url, 1, 2)
    (stored,) = read_facts(url).records
    assert stored.launched_by == "person"
    assert (stored.backfill_id, stored.final, stored.details) == (
        None,
        frozenset(),
        CommitDetails(),
    )
    assert stored.inputs == {"stg_orders": 4}
    assert stored.days[day(2)] == PublishedDay(1, "digest of 2024-01-02", "ok", {})


def test_the_latest_record_speaks_of_a_day(url):
    commit_with_record(url, 1, 2, 3, final=["2024-01-01...2024-01-02"])
    commit_with_record(url, 2, mode="overwrite", run_id="again")
    commit_with_record(url, 4)
    result = read_facts(url)
    assert [r.version for r in result.records] == [0, 1, 2]
    assert {d.day: r.version for d, r in result.latest.items()} == {1: 0, 2: 1, 3: 0, 4: 2}
    assert result.version == 2
    assert result.published_days == days((1, 4))
    assert result.rows == dict.fromkeys(days((1, 4)), 1)
    # Of day 2 the second record does not say that it is final.
    assert result.final_days == days(1)
    assert result.content_key(day(2)) == "digest of 2024-01-02"
    assert result.content_key(day(5)) == "nothing"


def test_a_day_without_rows_is_published(url):
    commit_days(url, days(1), commit_metadata(days(1, 2)))
    result = read_facts(url)
    assert result.rows == {day(1): 1}
    assert result.published_days == days(1, 2)


def test_rows_of_others_count_as_published(url):
    commit_with_record(url, 1)
    commit_days(url, days(7))
    result = read_facts(url)
    assert result.published_days == days(1, 7)
    assert day(7) not in result.latest


def test_a_log_with_a_checkpoint_tells_everything(url):
    for n in range(1, 5):
        commit_with_record(url, n)
    DeltaTable(url).create_checkpoint()
    commit_with_record(url, 5)
    assert {r.version: set(r.days) for r in read_facts(url).records} == {
        n - 1: days(n) for n in range(1, 6)
    }


def test_a_commit_between_the_loading_of_the_log_and_its_reading(url, monkeypatch):
    """deltalake numbers the newest entry with the version that it loaded, whatever came since."""
    commit_with_record(url, 1)
    commit_with_record(url, 2)

    def load_then_commit(place):
        log = load_log(place)
        if log.version() == 1:
            commit_with_record(url, 3)
        return log

    monkeypatch.setattr(ledger_reader, "load_log", load_then_commit)
    result = read_facts(url)
    assert result.version == 2
    assert {r.version: set(r.days) for r in result.records} == {n - 1: days(n) for n in (1, 2, 3)}
    assert result.published_days == days(1, 2, 3)


# --- commits of others ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        "nightly load",
        "",
        "null",
        "17",
        "[]",
        '["audit"]',
        '"audit"',
        '{"audited": {}}',
        '{"job": "x", "run_id": "r", "code_version": "1", "config_digest": "2"}',
        "{'audit': {}}",
        '{"audit": ',
        '{"audit": "passed"}',
        '{"audit": {}}',
        '{"audit": {"2024-01-01": {"passed": true}}, "run_id": "r"}',
        json.dumps({**commit_metadata(()), "audit": {"2024-01-01": {"passed": True}}}),
        json.dumps({**commit_metadata(()), "audit": {"2024-01-01": "passed"}}),
    ],
)
def test_metadata_of_others_is_no_record(url, metadata):
    commit_with_record(url, 1)
    commit_days(url, days(2), metadata)
    result = read_facts(url)
    assert [r.version for r in result.records] == [0]
    assert result.external_commits == [ExternalCommit(1, "WRITE", days(2))]


@pytest.mark.parametrize(
    ("operation", "name", "changed"),
    [
        ("append", "WRITE", days(2)),
        ("overwrite", "WRITE", days(2, 4)),
        ("update", "UPDATE", days(2)),
        ("delete", "DELETE", days(3)),
        ("restore", "RESTORE", days(2)),
        ("merge", "MERGE", days(3)),
        (
            "repair",
            "FSCK",
            days(2),
        ),
    ],
)
def test_others_that_change_rows(url, operation, name, changed):
    commit_with_record(url, 1, 2, 3)
    commit_with_record(
        url, 2
    )  # a second file, so that there is something to compact and to restore
    run_operation(url, operation)
    result = read_facts(url)
    assert result.external_commits == [ExternalCommit(2, name, changed)]
    assert [r.version for r in result.records] == [0, 1]


@pytest.mark.parametrize("operation", ["optimize", "constraint", "property"])
def test_others_that_change_no_row(url, operation):
    commit_with_record(url, 1, 2, 3)
    commit_with_record(url, 2)
    run_operation(url, operation)
    result = read_facts(url)
    assert DeltaTable(url).version() > 1
    assert result.external_commits == []
    assert result.rows == {day(1): 1, day(2): 2, day(3): 1}
    assert result.version == DeltaTable(url).version()


def test_commits_before_the_first_record_are_no_news(url):
    DeltaTable.create(url, facts_table(()).schema, partition_by=["run_date"])
    commit_days(url, ())  # how an interrupted creation is mended
    commit_with_record(url, 1)
    result = read_facts(url)
    assert result.external_commits == []
    assert [r.version for r in result.records] == [2]


@pytest.mark.parametrize(
    "operation",
    [
        "CREATE OR REPLACE TABLE AS SELECT",
        "STREAMING UPDATE",
        "CLONE",
        "REPLACE TABLE AS SELECT",
        "TRUNCATE",
    ],
)
def test_operations_of_other_engines(url, operation):
    commit_with_record(url, 1)
    add = first_added_file(url)
    removed_file = remove_action(
        add, partitionValues=add["partitionValues"], extendedFileMetadata=True
    )
    append_commit(url, {"commitInfo": {"operation": operation, "timestamp": 1}}, removed_file)
    assert read_facts(url).external_commits == [ExternalCommit(1, operation, days(1))]


def test_others_in_a_folder_with_a_space(tmp_path):
    url = tmp_path / "data lake" / FACT.name
    commit_with_record(url, 1, 2)
    run_operation(url, "update")
    assert read_facts(url).external_commits == [ExternalCommit(1, "UPDATE", days(2))]


def test_a_removal_that_does_not_tell_its_partition(url):
    commit_with_record(url, 1)
    info = {"commitInfo": {"operation": "DELETE", "timestamp": 1}}
    append_commit(url, info, remove_action(first_added_file(url)))
    assert read_facts(url).external_commits == [ExternalCommit(1, "DELETE", days(1))]


def test_a_file_without_statistics(url):
    commit_with_record(url, 1)
    add = {k: v for k, v in first_added_file(url).items() if k != "stats"}
    info = {"commitInfo": {"operation": "WRITE", "timestamp": 1}}
    append_commit(url, info, {"add": {**add, "path": f"copy-{add['path']}"}})
    assert read_facts(url).external_commits == [ExternalCommit(1, "WRITE", days(1))]


# --- one commit, made by hand ---------------------------------------------------------------------

#: Rows of day 2 that an undo has restored: by older code, from older inputs.
RESTORED = Provenance(
    "old code", "old release", "old package", "old commit", True, {"raw": 1}, {"customers": "a"}
)
UNDO = CommitRecord(
    version=7,
    run_id="undo",
    backfill_id=None,
    launched_by="person",
    code_version="code",
    config_digest="config",
    inputs={"raw": 6},
    days={
        day(1): PublishedDay(1, "d", "ok"),
        day(2): PublishedDay(1, "d", "ok", made_under="old config", provenance=RESTORED),
    },
    final=frozenset(),
    details=CommitDetails(references={"customers": "b"}, kind="", undoes="backfill"),
    git_commit="commit",
    git_dirty=False,
    release="release",
    package="package",
)


def test_a_day_has_the_reason_that_was_given_for_it():
    of_days = msgspec.structs.replace(
        UNDO, reasons={"new rows": ["2024-01-01"], "other code": ["2024-01-03...2024-01-04"]}
    )
    reasons = {n: of_days.reason_for_day(day(n)) for n in range(1, 6)}
    assert reasons == {1: "new rows", 2: "", 3: "other code", 4: "other code", 5: ""}


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        # An older commit does not say which days it wrote: it stands for all of them.
        ({"written_days": None, "since": 3}, 7),
        ({"written_days": None, "since": 3, "is_merge": True}, 7),
        ({"written_days": days(1), "since": 3}, 7),
        ({"written_days": days(1), "since": 3, "is_merge": True}, 3),
        ({"written_days": days(2), "since": 3}, 3),
        ({"written_days": days(2), "since": 0}, 0),
        # There was no table to compare with.
        ({"written_days": days(), "since": None}, -1),
    ],
)
def test_a_record_vouches_as_of_the_version_whose_rows_it_saw(changes, version):
    assert msgspec.structs.replace(UNDO, **changes).valid_as_of(day(1)) == version


def test_a_restored_day_has_the_code_and_inputs_of_its_rows():
    assert UNDO.for_day(day(2)) == msgspec.structs.replace(
        UNDO,
        code_version="old code",
        release="old release",
        package="old package",
        git_commit="old commit",
        git_dirty=True,
        inputs={"raw": 1},
        details=CommitDetails(references={"customers": "a"}, undoes="backfill"),
    )
    # The others have those of the commit.
    assert UNDO.for_day(day(1)) is UNDO
    assert UNDO.for_day(day(3)) is UNDO


def test_a_later_commit_carries_over_where_the_rows_of_a_day_came_from():
    assert UNDO.day_provenance(day(2)) is RESTORED
    of_commit = Provenance(
        "code", "release", "package", "commit", False, {"raw": 6}, {"customers": "b"}
    )
    assert UNDO.day_provenance(day(1)) == of_commit
    assert UNDO.day_provenance(day(3)) == of_commit


def test_the_settings_of_a_day_are_those_of_the_commit_unless_it_was_restored():
    assert (UNDO.made_under(day(1)), UNDO.made_under(day(2))) == ("config", "old config")


def make_verdict(**changes: Any) -> Verdict:
    """An audited day of the facts."""
    values = {
        "day": day(1),
        "metrics": DayMetrics(
            rows=3,
            nulls={"orders": 0, "revenue": 2},
            totals={"orders": 4, "revenue": Decimal("1.50")},
            digest="d",
        ),
        "expectation": Expectation(
            entries={"lines": 4, "amount": Decimal("1.50")}, rows=3, warnings=["odd"]
        ),
        "findings": [
            Finding("row_count", Severity.WARN, "3 rows, usually 30"),
            Finding("nulls", Severity.OK, "none"),
            Finding("conservation", Severity.ALERT, "look"),
        ],
    }
    return Verdict(**{**values, **changes})


PUBLISHED = PublishedDay(
    rows=3,
    digest="d",
    verdict="alert",
    totals={"orders": "4", "revenue": "1.50"},
    input_digest="inputs of 1",
    nulls={"revenue": 2},
    entries={"lines": 4, "amount": "1.50"},
    findings={"row_count": ["warn", "3 rows, usually 30"], "conservation": ["alert", "look"]},
    numbers={"requests": 5},
    made_under="old config",
    provenance=RESTORED,
)


def test_a_published_day_records_its_audit():
    """What is as it should be is left out; money is text, so that none is rounded."""
    fine = [Finding("nulls", Severity.OK, "none")]
    verdicts = [make_verdict(), make_verdict(day=day(2), findings=fine)]
    published = to_published_days(
        verdicts,
        {day(1): "inputs of 1", day(2): "inputs of 2"},
        {day(1): {"requests": 5}},
        {day(1): "old config"},
        {day(1): RESTORED},
    )
    assert published == {
        day(1): PUBLISHED,
        day(2): PublishedDay(
            rows=3,
            digest="d",
            verdict="ok",
            totals={"orders": "4", "revenue": "1.50"},
            input_digest="inputs of 2",
            nulls={"revenue": 2},
            entries={"lines": 4, "amount": "1.50"},
        ),
    }


def test_a_verdict_is_restored_from_its_record():
    fine = "in order when it was published"
    restored = restore_verdict(FACT, day(1), PUBLISHED)
    assert restored == Verdict(
        day(1),
        DayMetrics(
            rows=3,
            nulls={"run_date": 0, "customer_id": 0, "orders": 0, "revenue": 2},
            totals={"orders": 4, "revenue": Decimal("1.50")},
            digest="d",
            keys=3,
        ),
        Expectation(entries={"lines": 4, "amount": Decimal("1.50")}),
        [
            Finding("row_count", Severity.WARN, "3 rows, usually 30"),
            Finding("nulls", Severity.OK, fine),
            Finding("conservation", Severity.ALERT, "look"),
            Finding("unique_key", Severity.OK, fine),
        ],
    )
    # Counts are whole numbers again, and money is exact.
    entry_types = {name: type(count) for name, count in restored.expectation.entries.items()}
    assert entry_types == {"lines": int, "amount": Decimal}


def test_a_verdict_of_an_older_record_has_no_total_that_was_not_recorded():
    """Nor a finding: notices of the table count as in order."""
    restored = restore_verdict(RAW, day(1), PublishedDay(3, "d", "ok"))
    assert restored.metrics == DayMetrics(
        3, {"amount": Decimal(0)}, "d", nulls=dict.fromkeys(RAW.columns, 0)
    )
    assert restored.expectation == Expectation(notices={"rejected_lines": (Severity.OK, "")})
    assert {finding.severity for finding in restored.findings} == {Severity.OK}
    assert [finding.check for finding in restored.findings] == [*RAW.check_descriptions]


NOTES = CommitNotes(
    final_days=days(1, 2),
    revoked_days={day(4): "its file is gone"},
    details=CommitDetails(
        settled=["2024-01-01"], late={day(1): (2, "3.00"), day(3): (1, "1.00")}, kind="canary"
    ),
)


def test_the_notes_of_some_days_leave_out_what_concerns_others():
    assert NOTES.of_days(days(1, 4)) == CommitNotes(
        final_days=days(1),
        revoked_days={day(4): "its file is gone"},
        details=CommitDetails(settled=["2024-01-01"], late={day(1): (2, "3.00")}, kind="canary"),
    )


def test_days_are_grouped_by_reason():
    reasons = {day(1): "new", day(2): "changed", day(3): "new", day(4): "new"}
    assert days_by_reason(reasons) == {
        "new": ["2024-01-01", "2024-01-03...2024-01-04"],
        "changed": ["2024-01-02"],
    }


RUN = {"run_id": "r", "code_version": "code", "config_digest": "config"}


def encode_run() -> dict[str, Any]:
    """What a run records that published days 1 and 2, failed with 3 and revoked 4."""
    published = {day(1): PUBLISHED, day(2): PublishedDay(1, "d", "ok")}
    return encode_published(
        RUN,
        {"raw": 6},
        4,
        published | {day(4): PublishedDay(0, "0-0-0", "ok")},
        {day(3): "unique_key: 2 rows", day(4): "its file is gone"},
        dict.fromkeys(published, "new") | {day(4): "gone"},
        NOTES,
    )


def test_a_commit_records_what_became_of_each_day():
    """A revoked day has a reason, but neither rows nor an error."""
    defaults = {
        "totals": {},
        "input_digest": "",
        "nulls": {},
        "entries": {},
        "findings": {},
        "numbers": {},
        "made_under": "",
    }
    assert json.loads(json.dumps(encode_run())) == {
        **RUN,
        "inputs": {"raw": 6},
        "since": 4,
        "audit": {
            "2024-01-01": {
                "rows": 3,
                "digest": "d",
                "verdict": "alert",
                "totals": {"orders": "4", "revenue": "1.50"},
                "input_digest": "inputs of 1",
                "nulls": {"revenue": 2},
                "entries": {"lines": 4, "amount": "1.50"},
                "findings": {
                    "row_count": ["warn", "3 rows, usually 30"],
                    "conservation": ["alert", "look"],
                },
                "numbers": {"requests": 5},
                "made_under": "old config",
                "provenance": {
                    "code_version": "old code",
                    "release": "old release",
                    "package": "old package",
                    "git_commit": "old commit",
                    "git_dirty": True,
                    "inputs": {"raw": 1},
                    "references": {"customers": "a"},
                },
            },
            "2024-01-02": {"rows": 1, "digest": "d", "verdict": "ok", **defaults},
        },
        "not_published": {"2024-01-03": "unique_key: 2 rows"},
        "reasons": {"new": ["2024-01-01...2024-01-02"], "gone": ["2024-01-04"]},
        "final": ["2024-01-01...2024-01-02"],
        "withdrawn": ["2024-01-04"],
        "details": {
            "settled": ["2024-01-01"],
            "late": {"2024-01-01": [2, "3.00"], "2024-01-03": [1, "1.00"]},
            "kind": "canary",
        },
    }


def encode_actions(*actions: Any) -> CommitSummary | None:
    """The line of a commit file with these actions, decoded."""
    text = "\n".join(map(json.dumps, actions)).encode()
    line = encode_commit(FACT, 7, text)
    return None if line is None else decode_commit(line)


def test_a_commit_comes_back_from_the_cache_as_it_was_recorded():
    more = {
        "backfill_id": "b1",
        "launched_by": NIGHTLY,
        "days": ["2024-01-01"],
        "commit_id": "id",
        "reason": "a person asked",
        "git_commit": "commit",
        "git_dirty": True,
        "release": "release",
        "package": "package",
    }
    info = commit_info("MERGE", {**encode_run(), **more})
    summary = encode_actions({"protocol": {}}, info, add_action(9, "f"))
    assert summary is not None
    assert summary.record is not None
    assert msgspec.structs.replace(summary, record=None) == CommitSummary(
        7, "MERGE", 1_700_000_000_123
    )
    assert to_record(summary, summary.record) == CommitRecord(
        version=7,
        run_id="r",
        backfill_id="b1",
        launched_by=NIGHTLY,
        code_version="code",
        config_digest="config",
        inputs={"raw": 6},
        days={day(1): PUBLISHED, day(2): PublishedDay(1, "d", "ok")},
        final=days(1, 2),
        details=NOTES.details,
        commit_id="id",
        since=4,
        written_days=days(1),
        at=datetime(2023, 11, 14, 22, 13, 20, 123_000, timezone.utc),
        reason="a person asked",
        git_commit="commit",
        git_dirty=True,
        revoked_days=days(4),
        reasons={"new": ["2024-01-01...2024-01-02"], "gone": ["2024-01-04"]},
        is_merge=True,
        failed_days={day(3): "unique_key: 2 rows"},
        release="release",
        package="package",
    )


#: The record of an undo as a commit of before the first release has it.
OLD_RECORD = {
    **RUN,
    "inputs": {"raw": 6},
    "since": 4,
    "audit": {
        "2024-01-01": {
            "rows": 1,
            "digest": "d",
            "verdict": "ok",
            "totals": {"because": "4", "said": "1"},
            "made_of": "inputs of 1",
            "numbers": {"made_of": 2},
        }
    },
    "because": {"new": ["2024-01-01"]},
    "said": {"as of": {"3": ["2024-01-01"]}, "on hold": {"2024-01-01": "inputs of 2"}},
}


def test_a_commit_of_before_the_first_release_is_read_by_its_old_keys():
    summary = encode_actions(commit_info("WRITE", OLD_RECORD))
    assert summary is not None
    assert summary.record is not None
    old_line = {"version": 7, "operation": "WRITE", "timestamp": summary.timestamp}
    assert decode_commit(json.dumps({**old_line, "said": OLD_RECORD}).encode()) == summary
    record = to_record(summary, summary.record)
    assert record.days == {
        day(1): PublishedDay(
            1,
            "d",
            "ok",
            {"because": "4", "said": "1"},
            input_digest="inputs of 1",
            numbers={"made_of": 2},
        )
    }
    assert record.reason_for_day(day(1)) == "new"
    assert record.details == CommitDetails(
        as_of={"3": ["2024-01-01"]}, on_hold={day(1): "inputs of 2"}
    )


@pytest.mark.parametrize("audit", [None, [], {"2024-01-01": 1}])
def test_a_commit_with_old_keys_in_another_form_is_another_writers(audit):
    assert encode_actions(commit_info("WRITE", {**OLD_RECORD, "audit": audit})) is None


@pytest.mark.parametrize(
    ("since", "written_days"),
    [({}, None), ({"since": None}, days(1)), ({"since": 0}, days(1))],
)
def test_only_a_commit_that_says_what_it_was_compared_with_says_what_it_wrote(since, written_days):
    metadata = commit_metadata(days(1, 2), days=["2024-01-01"], **since)
    summary = encode_actions(commit_info("WRITE", metadata))
    assert summary is not None
    assert summary.record is not None
    record = to_record(summary, summary.record)
    assert (record.since, record.written_days) == (since.get("since"), written_days)
    assert (record.is_merge, record.reason) == (False, "")


def added(n: int | None, **more: Any) -> dict[str, Any]:
    """An added file of a day; None for rows without a day."""
    return {"add": {"path": "f", "partitionValues": {"run_date": n and str(day(n))}, **more}}


def removed(path: str, **more: Any) -> dict[str, Any]:
    return {"remove": {"path": path, "dataChange": True, **more}}


THEIRS = {"commitInfo": {"operation": "WRITE", "timestamp": 5}}


@pytest.mark.parametrize(
    ("actions", "days_of_files", "anywhere"),
    [
        ([added(2), added(1), added(2)], ["2024-01-01", "2024-01-02"], False),
        ([added(1), removed(f"run_date={day(2)}/f")], ["2024-01-01", "2024-01-02"], False),
        ([removed(f"deep/run_date={day(2)}/f")], ["2024-01-02"], False),
        # The values win over the path.
        (
            [removed(f"run_date={day(2)}/f", partitionValues={"run_date": str(day(3))})],
            ["2024-01-03"],
            False,
        ),
        ([removed(f"run_date={day(2)}/f", partitionValues={})], ["2024-01-02"], False),
        ([removed(f"run_date={day(2)}/f", partitionValues=None)], ["2024-01-02"], False),
        ([removed(f"run_date={day(2)}/f", partitionValues={"x": "y"})], ["2024-01-02"], False),
        # Rows without a day are of no day, and that is known.
        ([added(None)], [], False),
        ([added(None), added(1)], ["2024-01-01"], False),
        # The path does not say it.
        ([removed("f")], [], True),
        ([removed(f"old_run_date={day(2)}/f")], [], True),
        ([removed(f"run_date={day(2)}")], [], True),
        ([removed("run_date=yesterday/f")], [], True),
        ([removed("run_date=/f"), added(1)], ["2024-01-01"], True),
        # Compacted, but for one file.
        ([added(1, dataChange=False), added(2, dataChange=True)], ["2024-01-02"], False),
    ],
)
def test_the_days_of_another_writer_are_those_of_its_files(actions, days_of_files, anywhere):
    summary = encode_actions(THEIRS, *actions)
    assert summary == CommitSummary(7, "WRITE", 5, days=days_of_files, anywhere=anywhere)


@pytest.mark.parametrize(
    "actions",
    [
        [],
        [THEIRS],
        [{"commitInfo": {"operation": "OPTIMIZE"}}, added(1, dataChange=False)],
        [THEIRS, removed("f", dataChange=False)],
        [THEIRS, {"metaData": {}}],
    ],
)
def test_a_commit_that_changes_neither_rows_nor_columns_has_no_line(actions):
    assert encode_actions(*actions) is None
    assert not any(changed_files(json.dumps(action).encode() for action in actions))


@pytest.mark.parametrize("action", [added(1), removed("f"), {"remove": {"path": "f"}}])
def test_an_added_or_removed_file_changes_rows_unless_it_says_otherwise(action):
    lines = [json.dumps(line).encode() for line in (added(2, dataChange=False), action)]
    assert len([*changed_files(lines)]) == 1


def columns_action(*names: str) -> dict[str, Any]:
    schema = {"type": "struct", "fields": [{"name": name, "type": "long"} for name in names]}
    return {"metaData": {"id": "x", "schemaString": json.dumps(schema)}}


def test_a_commit_that_sets_columns_has_a_line_even_without_rows():
    expected = CommitSummary(7, "WRITE", 5, columns=["run_date", "orders"])
    columns = columns_action("run_date", "orders")
    assert encode_actions(THEIRS, columns) == expected
    # A file may be named as an action is.
    named = added(1, path="metaData", tags={"metaData": "x"})
    assert encode_actions(THEIRS, named, columns) == msgspec.structs.replace(
        expected, days=["2024-01-01"]
    )


def test_a_commit_of_ours_that_sets_columns_says_so():
    summary = encode_actions(columns_action("run_date"), commit_info("WRITE", commit_metadata(())))
    assert summary is not None
    assert summary.columns == ["run_date"]
    assert summary.record is not None


@pytest.mark.parametrize(
    ("info", "operation", "timestamp"),
    [
        ({"operation": "WRITE", "timestamp": 5}, "WRITE", 5),
        ({"operation": "WRITE"}, "WRITE", None),
        ({"operation": "WRITE", "timestamp": "2024-01-01T00:00:00Z"}, "WRITE", None),
        ({"timestamp": 5}, "None", 5),
    ],
)
def test_a_commit_may_say_little_of_itself(info, operation, timestamp):
    assert encode_actions({"commitInfo": info}, added(1)) == CommitSummary(
        7, operation, timestamp, days=["2024-01-01"]
    )


def test_a_commit_without_information_is_of_another_writer():
    """A file that is named as the action is none."""
    expected = CommitSummary(7, "None", days=["2024-01-01"])
    assert encode_actions(added(1)) == expected
    assert encode_actions(added(1, tags={"commitInfo": "x"})) == expected
    named_first = encode_actions(added(1, tags={"commitInfo": "x"}), THEIRS)
    assert named_first == CommitSummary(7, "WRITE", 5, days=["2024-01-01"])


def test_a_line_of_the_cache_is_compact_and_has_no_line_break_in_it():
    text = "\n".join(map(json.dumps, [THEIRS, added(1)])).encode()
    assert encode_commit(FACT, 7, text) == (
        b'{"version":7,"operation":"WRITE","timestamp":5,"days":["2024-01-01"]}'
    )


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (b'{"version":7,"operation":"WRITE"}', 7),
        (b'{"version":0,"operation":"WRITE","weather":"rain"}', 0),
        (b'{"version":7,"operation":"WRITE","timestamp":NaN}', None),
        (b'{"version":"7","operation":"WRITE"}', None),
        (b'{"version":7}', None),
        (b'{"version":7,"operation":"WR', None),
        (b"", None),
    ],
)
def test_a_line_of_unknown_form_has_no_version(line, version):
    assert decode_version(line) == version


def test_the_cache_is_read_anew_where_the_form_of_its_lines_changes():
    """A change of this text means that all logs are read again, once."""
    fields = (
        "run_id code_version config_digest audit backfill_id launched_by inputs since days final "
        "details commit_id reason git_commit git_dirty withdrawn reasons not_published release "
        "package code_parts key_prefix part other_parts"
    )
    of_day = "rows digest verdict totals input_digest nulls entries findings numbers made_under"
    details = (
        "landing event_days current_days log_days spans settled unsettled late kind undoes as_of "
        "references spreads accepts on_hold alone among"
    )
    assert encoding_id(FACT) == f"4 run_date {fields} {of_day} provenance {details}"
    assert encoding_id(RAW) == f"4 log_date {fields} {of_day} provenance {details}"


@pytest.mark.parametrize(
    ("timestamp", "at"),
    [
        (None, None),
        (0, datetime(1970, 1, 1, tzinfo=timezone.utc)),
        (1_700_000_000_123, datetime(2023, 11, 14, 22, 13, 20, 123_000, timezone.utc)),
    ],
)
def test_a_commit_has_its_time_in_utc(timestamp, at):
    assert commit_time(CommitSummary(7, "WRITE", timestamp)) == at


# --- who launched it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "by"),
    [
        ({}, "person"),
        ({"dagster/schedule_name": "nightly"}, "schedule nightly"),
        ({"dagster/sensor_name": "touched_days"}, "sensor touched_days"),
        ({"dagster/backfill": "b1", "user": "x"}, "person"),
        ({"dagster/backfill": "b1", "dagster/sensor_name": "touched_days"}, "sensor touched_days"),
        ({"dagster/schedule_name": ""}, "person"),
    ],
)
def test_launched_by(tags, by):
    assert launched_by(tags) == by
    assert record(1, days(1), launched_by=launched_by(tags)).by_person is (by == "person")


def test_launched_by_the_command_for_nights():
    tags = {NIGHT_TAG: "true"}
    assert launched_by(tags) == "command night"
    assert launched_by({**tags, "dagster/schedule_name": "nightly"}) == "schedule nightly"
    assert launched_by({**tags, "dagster/parent_run_id": "of a person who repeats it"}) == "person"
    assert not record(1, days(1), launched_by=launched_by(tags)).by_person


# --- days as ranges -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "ranges"),
    [
        ([], []),
        (["2024-01-01"], ["2024-01-01"]),
        (["2024-01-02", "2024-01-01", "2024-01-02"], ["2024-01-01...2024-01-02"]),
        (["2023-12-31", "2024-01-01", "2024-01-03"], ["2023-12-31...2024-01-01", "2024-01-03"]),
        (["2024-02-28", "2024-02-29", "2024-03-01"], ["2024-02-28...2024-03-01"]),
        (["2023-02-28", "2023-03-01"], ["2023-02-28...2023-03-01"]),
    ],
)
def test_packed(of, ranges):
    assert to_ranges(map(date.fromisoformat, of)) == ranges


some_days = st.sets(st.dates(START - 40 * DAY, START + 40 * DAY), max_size=30)


@given(some_days)
def test_packed_days_are_unpacked_as_they_were(dates):
    ranges = json.loads(json.dumps(to_ranges(dates)))
    assert from_ranges(ranges) == sorted(dates)
    # The fewest: between two ranges there is a gap.
    parsed = [Window.parse(text) for text in ranges]
    assert all(a.end < b.start for a, b in pairwise(parsed))


@pytest.mark.parametrize(
    ("text", "first", "end"),
    [
        ("2024-01-01", "2024-01-01", "2024-01-02"),
        ("2024-01-01...2024-01-01", "2024-01-01", "2024-01-02"),
        ("2024-02-28...2024-02-29", "2024-02-28", "2024-03-01"),
        ("2023-12-31", "2023-12-31", "2024-01-01"),
    ],
)
def test_parse(text, first, end):
    assert Window.parse(text) == Window(date.fromisoformat(first), date.fromisoformat(end))


@given(st.dates(START, START + 400 * DAY), st.integers(0, 400))
def test_parse_reads_what_str_spells(start, length):
    window = Window(start, start + length * DAY)
    assert Window.parse(str(window)) == window


@pytest.mark.parametrize("text", ["", "...", "2024-01-01....2024-01-02", "2024-02-30", "1...2"])
def test_parse_refuses_what_is_no_window(text):
    with pytest.raises(ValueError):
        Window.parse(text)


@pytest.mark.parametrize(
    ("length", "most", "lengths"),
    [
        (1, 1, [1]),
        (3, 1, [1, 1, 1]),
        (10, 3, [3, 3, 3, 1]),
        (9, 3, [3, 3, 3]),
        (9, 9, [9]),
        (9, 10, [9]),
        (10, 9, [9, 1]),
    ],
)
def test_split(length, most, lengths):
    window = Window(START, START + length * DAY)
    parts = window.split_by_length(most)
    assert [len(part) for part in parts] == lengths
    assert [d for part in parts for d in part] == list(window)
    assert to_windows(d for part in parts for d in part) == [window]
