"""Ledgers: what is read back from the tables' logs. And how other tests make one by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from backfill_assets.calendar.partitions import DAY, Window, packed, unpacked, windows
from backfill_assets.delta import reading
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.logs import load_log
from backfill_assets.delta.reading import read_ledger
from backfill_assets.delta.records import Foreign, Published, Record
from backfill_assets.orders.facts import CORRECTIONS, CURRENT, FACT
from backfill_assets.orders.tables import LATE, LATENESS, RAW, REJECTED, STAGED, TABLES
from backfill_assets.publish.run_tags import launched_by
from backfill_assets.quality.audit import Measured
from backfill_assets.tables.table import Table
from backfill_assets_tests.pipeline import START, day

# --- ledgers made by hand; days are numbers from 1 ------------------------------------------------

NIGHTLY = "schedule nightly"
#: What each table is built from.
SOURCES: dict[str, tuple[str, ...]] = {
    RAW.name: (),
    REJECTED.name: (),
    STAGED.name: (RAW.name,),
    FACT.name: (STAGED.name,),
    CURRENT.name: (RAW.name,),
    CORRECTIONS.name: (FACT.name, CURRENT.name),
    LATE.name: (RAW.name,),
    LATENESS.name: (RAW.name, REJECTED.name),
}


def days(*spans: int | tuple[int, int]) -> frozenset[date]:
    """Days by number: single ones, and (first, last)."""
    pairs = [span if isinstance(span, tuple) else (span, span) for span in spans]
    return frozenset(day(n) for first, last in pairs for n in range(first, last + 1))


def record(
    version: int,
    published: Iterable[date],
    *,
    inputs: Mapping[str, int] | None = None,
    final: Iterable[date] = (),
    by: str = NIGHTLY,
    run: str = "",
    backfill: str | None = None,
    rows: int = 1,
    digest: str = "",
    config_digest: str = "config",
    **said: Any,
) -> Record:
    """What a commit says of itself; sets of days in `said` are packed as the assets do it."""
    told = Published(rows, digest or f"digest {version}", "ok")
    return Record(
        version=version,
        run_id=run or f"run {version}",
        backfill_id=backfill,
        launched_by=by,
        code_version="code",
        config_digest=config_digest,
        inputs=inputs or {},
        days=dict.fromkeys(sorted(published), told),
        final=frozenset(final),
        said={k: packed(v) if isinstance(v, frozenset) else v for k, v in said.items()},
    )


def ledger(table: Table, *records: Record, foreign: Iterable[Foreign] = ()) -> Ledger:
    others = sorted(foreign, key=lambda other: other.version)
    version = max((commit.version for commit in (*records, *others)), default=None)
    rows = {d: told.rows for r in records for d, told in r.days.items() if told.rows}
    return Ledger(table, version, records, others, counted(rows))


def counted(rows: Mapping[date, int]) -> dict[date, Measured]:
    """Rows by day as a table's log counts them."""
    return {d: Measured(count, {}, 0, {}, "") for d, count in rows.items()}


def ledgers(*given: Ledger) -> dict[str, Ledger]:
    """The ledgers of all tables; those that are not given are empty."""
    return {name: Ledger(t) for name, t in TABLES.items()} | {x.table.name: x for x in given}


# --- tables on disk -------------------------------------------------------------------------------


def facts(of: Iterable[date]) -> pa.Table:
    of = sorted(of)
    return pa.table(
        {
            "run_date": pa.array(of, pa.date32()),
            "customer_id": pa.array(["c"] * len(of), pa.string()),
            "orders": pa.array([1] * len(of), pa.int64()),
            "revenue": pa.array([1] * len(of), pa.decimal128(28, 2)),
        }
    )


def said_of(of: Iterable[date], **more: Any) -> dict[str, Any]:
    """The record of a commit, in the form that it had from the beginning."""
    audit = {str(d): {"rows": 1, "digest": f"digest of {d}", "verdict": "ok"} for d in of}
    told = {"run_id": "r", "code_version": "code", "config_digest": "config", "audit": audit}
    return {**told, "inputs": {"stg_orders": 4}, "asset": FACT.name, **more}


def commit(url: Path, of: Iterable[date], said: Any = None, mode: Any = "append") -> None:
    """Write a row a day; in place of all rows of these days, if the mode is to overwrite."""
    text = said if isinstance(said, str) else json.dumps(said)
    spelled = ", ".join(f"'{d}'" for d in sorted(of))
    write_deltalake(
        url,
        facts(of),
        partition_by=["run_date"],
        mode=mode,
        predicate=f"run_date IN ({spelled})" if mode == "overwrite" else None,
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": text} if said is not None else None
        ),
    )


def ours(url: Path, *of: int, mode: Any = "append", **more: Any) -> None:
    commit(url, days(*of), said_of(days(*of), **more), mode)


def commit_by_hand(url: Path, *actions: Mapping[str, Any]) -> None:
    """A commit as some other engine may write it."""
    version = DeltaTable(url).version() + 1
    log = url / "_delta_log" / f"{version:020d}.json"
    log.write_text("\n".join(map(json.dumps, actions)))


def added(url: Path, version: int = 0) -> dict[str, Any]:
    """The action by which a version added its first file."""
    lines = (url / "_delta_log" / f"{version:020d}.json").read_text().splitlines()
    return next(action["add"] for action in map(json.loads, lines) if "add" in action)


def removal(add: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True, **more}}


@pytest.fixture
def url(tmp_path: Path) -> Path:
    return tmp_path / FACT.name


def read(url: Path) -> Ledger:
    return read_ledger(str(url), FACT)


# --- our own records ------------------------------------------------------------------------------


def test_no_table_is_an_empty_ledger(url):
    found = read(url)
    assert found == Ledger(FACT, None, (), (), {})
    assert found.published == found.final == frozenset()
    assert found.latest == {}
    assert found.content(day(1)) == "nothing"


def test_an_empty_folder_is_no_table(url):
    url.mkdir()
    assert read(url).version is None


def test_a_record_comes_back_whole(url):
    said = {"landing": {"2024-01-01": ["none", "1-abc"]}, "event_days": ["2024-01-01...2024-01-03"]}
    told = {"rows": 0, "digest": "0", "verdict": "warn", "totals": {"orders": "0"}}
    commit(
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
            "audit": {"2024-01-01": told, "2024-01-03": {**told, "rows": 2}},
            "not_published": {"2024-01-02": "unique_key: 2 rows"},
            "final": ["2024-01-01"],
            "said": said,
            "days": ["2024-01-01", "2024-01-03"],
        },
    )
    (found,) = read(url).records
    assert msgspec.structs.replace(found, at=None) == Record(
        version=0,
        run_id="r1",
        backfill_id="b1",
        launched_by=NIGHTLY,
        code_version="code",
        config_digest="config",
        inputs={"stg_orders": 4},
        days={
            day(1): Published(0, "0", "warn", {"orders": "0"}),
            day(3): Published(2, "0", "warn", {"orders": "0"}),
        },
        final=days(1),
        said=said,
        failed={day(2): "unique_key: 2 rows"},
    )
    assert found.days_said("event_days") == days((1, 3))
    assert found.days_said("log_days") == frozenset()


@pytest.mark.parametrize("reason", ["Grüße \u2028", "caf\udce9"])
def test_what_json_of_python_can_hold_beyond_others(url, reason):
    audit = {"2024-01-01": {"rows": 1, "digest": "d", "verdict": "ok", "numbers": {"x": math.nan}}}
    ours(url, 1, audit=audit, reason=reason)
    (found,) = read(url).records
    assert found.reason == reason
    assert math.isnan(found.days[day(1)].numbers["x"])
    assert read(url).foreign == []


def test_what_a_later_version_adds_is_passed_over(url):
    audit = {"2024-01-01": {"rows": 1, "digest": "d", "verdict": "ok", "mood": "good"}}
    ours(url, 1, audit=audit, weather="rain")
    assert [record.days for record in read(url).records] == [{day(1): Published(1, "d", "ok")}]


def test_a_record_in_the_older_form(url):
    ours(url, 1, 2)
    (found,) = read(url).records
    assert found.launched_by == "person"
    assert (found.backfill_id, found.final, found.said) == (None, frozenset(), {})
    assert found.inputs == {"stg_orders": 4}
    assert found.days[day(2)] == Published(1, "digest of 2024-01-02", "ok", {})


def test_the_latest_record_speaks_of_a_day(url):
    ours(url, 1, 2, 3, final=["2024-01-01...2024-01-02"])
    ours(url, 2, mode="overwrite", run_id="again")
    ours(url, 4)
    found = read(url)
    assert [r.version for r in found.records] == [0, 1, 2]
    assert {d.day: r.version for d, r in found.latest.items()} == {1: 0, 2: 1, 3: 0, 4: 2}
    assert found.version == 2
    assert found.published == days((1, 4))
    assert found.rows == dict.fromkeys(days((1, 4)), 1)
    # Of day 2 the second record does not say that it is final.
    assert found.final == days(1)
    assert found.content(day(2)) == "digest of 2024-01-02"
    assert found.content(day(5)) == "nothing"


def test_a_day_without_rows_is_published(url):
    commit(url, days(1), said_of(days(1, 2)))
    found = read(url)
    assert found.rows == {day(1): 1}
    assert found.published == days(1, 2)


def test_rows_of_others_count_as_published(url):
    ours(url, 1)
    commit(url, days(7))
    found = read(url)
    assert found.published == days(1, 7)
    assert day(7) not in found.latest


def test_a_log_with_a_checkpoint_tells_everything(url):
    for n in range(1, 5):
        ours(url, n)
    DeltaTable(url).create_checkpoint()
    ours(url, 5)
    assert {r.version: set(r.days) for r in read(url).records} == {
        n - 1: days(n) for n in range(1, 6)
    }


def test_a_commit_between_the_loading_of_the_log_and_its_reading(url, monkeypatch):
    """deltalake numbers the newest entry with the version that it loaded, whatever came since."""
    ours(url, 1)
    ours(url, 2)

    def interrupted(place):
        log = load_log(place)
        if log.version() == 1:
            ours(url, 3)
        return log

    monkeypatch.setattr(reading, "load_log", interrupted)
    found = read(url)
    assert found.version == 2
    assert {r.version: set(r.days) for r in found.records} == {n - 1: days(n) for n in (1, 2, 3)}
    assert found.published == days(1, 2, 3)


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
        json.dumps({**said_of(()), "audit": {"2024-01-01": {"passed": True}}}),
        json.dumps({**said_of(()), "audit": {"2024-01-01": "passed"}}),
    ],
)
def test_metadata_of_others_is_no_record(url, metadata):
    ours(url, 1)
    commit(url, days(2), metadata)
    found = read(url)
    assert [r.version for r in found.records] == [0]
    assert found.foreign == [Foreign(1, "WRITE", days(2))]


def change(url: Path, operation: str) -> None:
    table = DeltaTable(url)
    {
        "append": lambda: commit(url, days(2)),
        "overwrite": lambda: commit(url, days(2, 4), mode="overwrite"),
        "update": lambda: table.update(updates={"orders": "2"}, predicate="run_date='2024-01-02'"),
        "delete": lambda: table.delete("run_date = '2024-01-03'"),
        "restore": lambda: table.restore(0),
        "merge": lambda: (
            table.merge(facts(days(3)), "t.run_date = s.run_date", "s", "t")
            .when_matched_update({"orders": "s.orders + 1"})
            .execute()
        ),
        "optimize": lambda: table.optimize.compact(),
        "constraint": lambda: table.alter.add_constraint({"some": "orders >= 0"}),
        "property": lambda: table.alter.set_table_properties({"delta.appendOnly": "false"}),
        "repair": lambda: (
            (url / added(url, 1)["path"]).unlink(),
            table.repair(dry_run=False),
        ),
    }[operation]()


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
    ours(url, 1, 2, 3)
    ours(url, 2)  # a second file, so that there is something to compact and to restore
    change(url, operation)
    found = read(url)
    assert found.foreign == [Foreign(2, name, changed)]
    assert [r.version for r in found.records] == [0, 1]


@pytest.mark.parametrize("operation", ["optimize", "constraint", "property"])
def test_others_that_change_no_row(url, operation):
    ours(url, 1, 2, 3)
    ours(url, 2)
    change(url, operation)
    found = read(url)
    assert DeltaTable(url).version() > 1
    assert found.foreign == []
    assert found.rows == {day(1): 1, day(2): 2, day(3): 1}
    assert found.version == DeltaTable(url).version()


def test_commits_before_the_first_record_are_no_news(url):
    DeltaTable.create(url, facts(()).schema, partition_by=["run_date"])
    commit(url, ())  # how an interrupted creation is mended
    ours(url, 1)
    found = read(url)
    assert found.foreign == []
    assert [r.version for r in found.records] == [2]


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
    ours(url, 1)
    add = added(url)
    gone = removal(add, partitionValues=add["partitionValues"], extendedFileMetadata=True)
    commit_by_hand(url, {"commitInfo": {"operation": operation, "timestamp": 1}}, gone)
    assert read(url).foreign == [Foreign(1, operation, days(1))]


def test_others_in_a_folder_with_a_space(tmp_path):
    url = tmp_path / "data lake" / FACT.name
    ours(url, 1, 2)
    change(url, "update")
    assert read(url).foreign == [Foreign(1, "UPDATE", days(2))]


def test_a_removal_that_does_not_tell_its_partition(url):
    ours(url, 1)
    info = {"commitInfo": {"operation": "DELETE", "timestamp": 1}}
    commit_by_hand(url, info, removal(added(url)))
    assert read(url).foreign == [Foreign(1, "DELETE", days(1))]


def test_a_file_without_statistics(url):
    ours(url, 1)
    add = {k: v for k, v in added(url).items() if k != "stats"}
    info = {"commitInfo": {"operation": "WRITE", "timestamp": 1}}
    commit_by_hand(url, info, {"add": {**add, "path": f"copy-{add['path']}"}})
    assert read(url).foreign == [Foreign(1, "WRITE", days(1))]


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
    assert record(1, days(1), by=launched_by(tags)).by_person is (by == "person")


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
    assert packed(map(date.fromisoformat, of)) == ranges


some_days = st.sets(st.dates(START - 40 * DAY, START + 40 * DAY), max_size=30)


@given(some_days)
def test_packed_days_are_unpacked_as_they_were(of):
    ranges = json.loads(json.dumps(packed(of)))
    assert unpacked(ranges) == sorted(of)
    # The fewest: between two ranges there is a gap.
    found = [Window.parse(text) for text in ranges]
    assert all(a.end < b.start for a, b in pairwise(found))


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


@pytest.mark.parametrize("text", ["", "...", "2024-01-01..2024-01-02", "2024-02-30", "1...2"])
def test_parse_refuses_what_is_no_window(text):
    with pytest.raises(ValueError):
        Window.parse(text)


@pytest.mark.parametrize(
    ("length", "most", "lengths"),
    [
        (1, None, [1]),
        (10, None, [10]),
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
    parts = window.split(most)
    assert [len(part) for part in parts] == lengths
    assert [d for part in parts for d in part] == list(window)
    assert windows(d for part in parts for d in part) == [window]
