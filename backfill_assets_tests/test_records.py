"""Ledgers: what is read back from the tables' logs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.calendar.partitions import DAY, Window, from_ranges, to_ranges, to_windows
from backfill_assets.delta import ledger_reader
from backfill_assets.delta.delta_rs import load_log
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CommitDetails, CommitRecord, ExternalCommit, PublishedDay
from backfill_assets.orders.tables import FACT
from backfill_assets.publish.types import NIGHT_TAG, launched_by
from backfill_assets_tests.helpers.invented_logs import NIGHTLY, commit_metadata, days, record
from backfill_assets_tests.helpers.pipeline import START, day
from backfill_assets_tests.helpers.written_logs import (
    append_commit,
    commit_days,
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
            "said": details,
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
