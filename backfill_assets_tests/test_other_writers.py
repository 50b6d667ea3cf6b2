"""What a ledger still holds true when others write the table too, and when its log was cut."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable

from backfill_assets.calendar.partitions import Window, to_ranges
from backfill_assets.delta import commit_log, ledger_reader
from backfill_assets.delta.commits import LOG_RETENTION, Writer
from backfill_assets.delta.delta_rs import APPLICATION
from backfill_assets.delta.records import ExternalCommit
from backfill_assets.monitoring.incidents import find_incidents
from backfill_assets.monitoring.states import DayState
from backfill_assets.orders.tables import FACT
from backfill_assets.publish.types import ComputedDays, Outcome
from backfill_assets.staleness.stale import StaleDays
from backfill_assets_tests.helpers.invented_logs import commit_metadata, days
from backfill_assets_tests.helpers.invented_states import (
    make_healthy_ledgers,
    make_snapshot,
    states_by_day,
)
from backfill_assets_tests.helpers.pipeline import day
from backfill_assets_tests.helpers.publish_rows import (
    RECORD,
    fact_rows,
    outcome_values,
    publish_days,
    publish_frame,
    read_content,
    window,
)
from backfill_assets_tests.helpers.written_logs import (
    append_commit,
    commit_info,
    create_table,
    latest_version,
    log_copy_file,
    log_file,
    read_by_another_process,
    read_facts,
)


@pytest.fixture
def url(tmp_path: Path) -> Path:
    return create_table(tmp_path / FACT.name)


def added_file(n: int, rows: int | None = 1, *, folder: bool = True) -> dict[str, Any]:
    """The action that adds a file of a day."""
    name = f"{uuid4().hex}.parquet"
    stats = {} if rows is None else {"stats": json.dumps({"numRecords": rows})}
    return {
        "path": f"run_date={day(n)}/{name}" if folder else f"q7/{name}",
        "partitionValues": {"run_date": str(day(n))},
        "size": 10,
        "modificationTime": 1,
        "dataChange": True,
        **stats,
    }


def remove_action(file: dict[str, Any]) -> dict[str, Any]:
    """The action that removes a file, with no more than Delta asks for."""
    return {"remove": {"path": file["path"], "deletionTimestamp": 1, "dataChange": True}}


def commit_ours(
    url: Path,
    *files: dict[str, Any],
    day_numbers: tuple[int, ...],
    removes: tuple[dict[str, Any], ...] = (),
    digest: str = "digest",
    operation: str = "WRITE",
    number: int | None = None,
    **more: Any,
) -> int:
    """A commit of ours that writes days; each has a row for each of its files."""
    audit = {
        str(day(n)): {
            "rows": sum(f["partitionValues"]["run_date"] == str(day(n)) for f in files),
            "digest": f"{digest} {n}",
            "verdict": "ok",
        }
        for n in day_numbers
    }
    metadata = commit_metadata(
        (), audit=audit, commit_id=uuid4().hex, **{"days": to_ranges(days(*day_numbers)), **more}
    )
    numbered = [] if number is None else [{"txn": {"appId": APPLICATION, "version": number}}]
    actions = [*({"add": f} for f in files), *map(remove_action, removes)]
    return append_commit(url, commit_info(operation, metadata=metadata), *numbered, *actions)


def commit_theirs(url: Path, *actions: dict[str, Any], operation: str = "WRITE") -> int:
    return append_commit(url, commit_info(operation, txnId=uuid4().hex), *actions)


# --- writers beside us ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "stands"), [("MERGE", False), ("WRITE", True)], ids=["merge", "overwrite"]
)
def test_a_commit_vouches_as_of_the_version_that_it_looked_at(url, operation, stands):
    """An overwrite replaces whatever came in between; a merge leaves it, and never saw it."""
    since = commit_ours(url, added_file(1), day_numbers=(1,), since=None)
    external = commit_theirs(url, {"add": added_file(1)})
    theirs_content = read_facts(url).content_key(day(1))
    assert theirs_content == f"version {external}"
    # As many rows as the audit saw: only the order of the commits tells.
    files = DeltaTable(url).get_add_actions(flatten=True).column("path").to_pylist()
    removes = tuple({"path": path} for path in files)
    version = commit_ours(
        url, added_file(1), day_numbers=(1,), removes=removes, operation=operation, since=since
    )
    ledger = read_facts(url)
    assert ledger.rows == {day(1): 1}
    assert (ledger.current_record(day(1)) is not None) is stands
    assert (ledger.content_key(day(1)) == "digest 1") is stands
    assert ledger.content_key(day(1)) != theirs_content, "the merge changed what is there"
    assert ledger.changed_days[version] == days(1)
    # Published again as it was to be, the day has changed for whoever follows it.
    (file_path,) = DeltaTable(url).get_add_actions(flatten=True).column("path").to_pylist()
    last = commit_ours(
        url, added_file(1), day_numbers=(1,), removes=({"path": file_path},), since=version
    )
    ledger = read_facts(url)
    assert ledger.content_key(day(1)) == "digest 1"
    assert (day(1) in ledger.changed_days[last]) is not stands


def test_a_merge_beside_changes_of_other_days_stands(url):
    since = commit_ours(url, added_file(1), day_numbers=(1,), since=None)
    commit_theirs(url, {"add": added_file(2)})
    commit_ours(url, added_file(3), day_numbers=(3,), operation="MERGE", since=since)
    ledger = read_facts(url)
    assert [ledger.content_key(day(n)) for n in (1, 2, 3)] == ["digest 1", "version 2", "digest 3"]


def test_what_was_compared_only_has_changed_if_others_were_in_between(url):
    """The second commit wrote nothing: what it had looked at was as it should be."""
    since = commit_ours(url, added_file(1), day_numbers=(1,), since=None)
    external = commit_theirs(url, {"add": added_file(1)})
    audit = {str(day(1)): {"rows": 1, "digest": "digest 1", "verdict": "ok"}}
    metadata = commit_metadata((), days=[], since=since, commit_id="c")
    compared = append_commit(url, commit_info(metadata={**metadata, "audit": audit}))
    ledger = read_facts(url)
    assert ledger.content_key(day(1)) == f"version {external}"
    assert ledger.changed_days[compared] == frozenset()
    files = DeltaTable(url).get_add_actions(flatten=True).column("path").to_pylist()
    removes = tuple({"path": path} for path in files)
    last = commit_ours(url, added_file(1), day_numbers=(1,), removes=removes, since=compared)
    assert read_facts(url).content_key(day(1)) == "digest 1"
    assert read_facts(url).changed_days[last] == days(1), (
        "its followers had seen what others made of it"
    )


@pytest.mark.parametrize("folder", [True, False], ids=["by folder", "anywhere"])
def test_a_removal_that_does_not_name_its_partition(url, folder):
    first, second = added_file(1, folder=folder), added_file(2, folder=folder)
    commit_ours(url, first, second, day_numbers=(1, 2), since=None)
    version = commit_theirs(url, remove_action(second), operation="DELETE")
    ledger = read_facts(url)
    expected = days(2) if folder else frozenset()
    assert ledger.external_commits == [
        ExternalCommit(version, "DELETE", expected, has_unknown_days=not folder)
    ]
    assert ledger.current_record(day(1)) is not None
    assert ledger.current_record(day(2)) is None
    assert ledger.content_key(day(2)) == f"version {version}"
    # Put back as it was, it has changed for whoever built on what was left of it.
    last = commit_ours(url, added_file(2), day_numbers=(2,), since=version)
    assert read_facts(url).changed_days[last] == days(2)
    assert read_facts(url).content_key(day(2)) == "digest 2"


def test_a_removal_from_under_another_partitioning(url):
    """As when somebody replaces the table by one that is partitioned otherwise, and back."""
    commit_ours(url, added_file(1), day_numbers=(1,), since=None)
    removal = {"path": "log_date=2024-01-05/x.parquet", "dataChange": True}
    commit_theirs(url, {"remove": {**removal, "partitionValues": {"log_date": "2024-01-05"}}})
    assert read_facts(url).external_commits == [
        ExternalCommit(2, "WRITE", frozenset(), has_unknown_days=True)
    ]


def test_a_removal_from_anywhere_where_rows_are_not_counted(url):
    commit_ours(
        url, added_file(1, rows=None, folder=False), added_file(2), day_numbers=(1, 2), since=None
    )
    assert read_facts(url).current_record(day(1)) is not None
    commit_theirs(url, remove_action({"path": "q7/other.parquet"}), operation="DELETE")
    assert read_facts(url).current_record(day(1)) is None
    assert read_facts(url).current_record(day(2)) is not None


def test_rows_in_the_log_are_held_against_the_record(url):
    """Whatever the reason: here a commit that says nothing of changing data takes a file away."""
    first, second = added_file(1), added_file(2)
    commit_ours(url, first, second, added_file(2), day_numbers=(1, 2, 3), since=None)
    assert all(read_facts(url).current_record(day(n)) for n in (1, 2, 3))
    quiet = remove_action(second)
    quiet["remove"]["dataChange"] = False
    commit_theirs(url, quiet, operation="OPTIMIZE")
    ledger = read_facts(url)
    assert ledger.external_commits == []
    assert [ledger.current_record(day(n)) is not None for n in (1, 2, 3)] == [True, False, True]
    assert ledger.content_key(day(2)) == (
        "unrecorded 1 rows in 1 file(s) of 10 bytes, the newest of 1"
    )
    assert ledger.as_of(1).current_record(day(2)) is not None, "what was there then is not known"


def test_rows_are_not_counted_where_deletion_vectors_may_be(url):
    commit_ours(url, added_file(1), day_numbers=(1,), since=None)
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    append_commit(url, commit_info("SET TBLPROPERTIES"), {"protocol": protocol})
    assert read_facts(url).rows is None
    assert read_facts(url).current_record(day(1)) is not None


def test_ten_thousand_days_are_compared_at_once(url, monkeypatch):
    commit_ours(
        url, *(added_file(n) for n in range(1, 31)), day_numbers=tuple(range(1, 31)), since=None
    )
    ledger = read_facts(url)
    monkeypatch.delattr(type(ledger.measured), "__getitem__")
    assert all(ledger.current_record(day(n)) for n in range(1, 31))


# --- a log that was cut ---------------------------------------------------------------------------


def cut_log(url: Path, *versions: int) -> None:
    """As Delta's cleanup does: a checkpoint, and the commits are gone."""
    DeltaTable(url).create_checkpoint()
    for version in versions:
        log_file(url, version).unlink(missing_ok=True)


@pytest.fixture
def history(url: Path) -> Path:
    """Eight days, one a commit, numbered as Delta numbers them."""
    for n in range(1, 9):
        commit_ours(url, added_file(n), day_numbers=(n,), since=n - 1, number=n)
    return url


def test_the_number_of_the_last_commit_is_that_of_the_snapshot(history):
    assert read_facts(history).transaction == 8
    commit_theirs(history, {"add": added_file(20)})
    assert read_facts(history).transaction == 8
    cut_log(history, *range(10))
    ledger = read_by_another_process(history)
    assert (ledger.records, ledger.transaction) == ([], 8)


def test_a_table_that_nobody_of_us_wrote_has_no_number(url):
    commit_theirs(url, {"add": added_file(1)})
    assert read_facts(url).transaction is None


def test_days_of_lost_commits_are_not_days_that_were_never_published(history):
    before = read_by_another_process(history)
    assert (before.missing_versions, before.days_without_record) == ([], frozenset())
    cut_log(history, *range(6))
    ledger = read_by_another_process(history)
    assert ledger.missing_versions == list(range(6))
    assert ledger.days_without_record == days((1, 5))
    assert [ledger.current_record(day(n)) is not None for n in (5, 6)] == [False, True]
    assert (
        ledger.content_key(day(5)) == "unrecorded 1 rows in 1 file(s) of 10 bytes, the newest of 1"
    )
    assert ledger.content_key(day(9)) == "nothing"
    # Rebuilt, all is as before, though the commits are gone for good.
    for n in range(1, 6):
        commit_ours(
            history, added_file(n), day_numbers=(n,), removes=(), since=latest_version(history)
        )
    ledger = read_by_another_process(history)
    assert ledger.missing_versions == list(range(6))
    assert ledger.days_without_record == frozenset()


def test_others_are_others_from_the_first_commit_that_is_left(history):
    commit_theirs(history, {"add": added_file(1)})
    commit_ours(history, added_file(9), day_numbers=(9,), since=9)
    cut_log(history, *range(9))
    assert [other.version for other in read_by_another_process(history).external_commits] == [9]


def test_an_older_record_does_not_stand_for_what_came_in_lost_commits(history, monkeypatch):
    monkeypatch.setattr(commit_log, "_MIN_READS_TO_CACHE", 4)
    read_by_another_process(history)
    # Day 1 anew, with as many rows; nobody has copied this.
    (old,) = [
        path
        for path in DeltaTable(history).get_add_actions(flatten=True).column("path").to_pylist()
        if str(day(1)) in path
    ]
    cut_version = commit_ours(
        history, added_file(1), day_numbers=(1,), removes=({"path": old},), digest="new", since=8
    )
    commit_ours(history, added_file(9), day_numbers=(9,), since=9)
    cut_log(history, *range(cut_version + 1))
    ledger = read_by_another_process(history)
    assert ledger.missing_versions == [cut_version]
    assert ledger.current_record(day(1)) is None
    assert ledger.current_record(day(9)) is not None
    assert ledger.days_without_record == days((1, 8)), "any of them may have been written by it"


def test_a_cut_below_what_was_read_is_noticed(history):
    """The daemon reads a log for weeks."""
    assert read_facts(history).missing_versions == []
    cut_log(history, *range(4))
    assert read_facts(history).missing_versions == list(range(4))
    commit_ours(history, added_file(9), day_numbers=(9,), since=8)
    assert read_facts(history).missing_versions == list(range(4))
    assert read_facts(history).days_without_record == days((1, 3))


def test_commits_that_were_put_back_are_read(history, tmp_path, monkeypatch):
    monkeypatch.setattr(commit_log, "_MIN_READS_TO_CACHE", 4)
    shutil.copytree(history / "_delta_log", tmp_path / "backup")
    cut_log(history, *range(4))
    assert (
        read_facts(history).missing_versions
        == read_by_another_process(history).missing_versions
        == list(range(4))
    )
    assert log_copy_file(history).exists(), "what is lost is on record there"
    for version in range(4):
        shutil.copy(tmp_path / "backup" / f"{version:020d}.json", log_file(history, version))
    for ledger in (read_facts(history), read_by_another_process(history)):
        assert ledger.missing_versions == []
        assert [record.version for record in ledger.records] == list(range(1, 9))


# --- the copy -------------------------------------------------------------------------------------


@pytest.fixture
def copied(history: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(commit_log, "_MIN_READS_TO_CACHE", 4)
    read_by_another_process(history)
    assert log_copy_file(history).exists()
    return history


@pytest.mark.parametrize("last", [3, 9], ids=["the first", "all"])
def test_the_copy_tells_of_commits_that_are_gone(copied, last):
    before = read_by_another_process(copied)
    cut_log(copied, *range(last))
    text = log_copy_file(copied).read_bytes()
    ledger = read_by_another_process(copied)
    assert ledger.records == before.records
    assert (ledger.missing_versions, ledger.days_without_record) == ([], frozenset())
    assert log_copy_file(copied).read_bytes() == text
    log_file(copied, 9).write_text(json.dumps(commit_info("VACUUM END")))
    commit_ours(copied, added_file(9), day_numbers=(9,), since=9)
    assert len(read_by_another_process(copied).records) == 9


def test_a_copy_in_an_older_form_tells_of_commits_that_are_gone(copied, monkeypatch):
    before = read_by_another_process(copied)
    cut_log(copied, *range(6))
    text = log_copy_file(copied).read_bytes()
    log_copy_file(copied).write_bytes(b"")
    with commit_log.open_store(str(copied))[0].open_output_stream(
        str(log_copy_file(copied))
    ) as stream:
        *lines, about = decompress_zstd(text).splitlines()
        about = json.dumps({**json.loads(about), "form": "older"}).encode()
        stream.write(b"\n".join([*lines, about]))
    ledger = read_by_another_process(copied)
    assert ledger.records == before.records
    assert ledger.missing_versions == []


def decompress_zstd(text: bytes) -> bytes:
    import pyarrow as pa

    return pa.input_stream(pa.py_buffer(text), compression="zstd").read()


def test_the_copy_of_another_table_is_not_used(copied):
    shutil.rmtree(copied / "_delta_log")
    create_table(copied)
    for n in range(21, 30):
        commit_ours(copied, added_file(n), day_numbers=(n,), since=None)
    cut_log(copied, *range(9))
    ledger = read_by_another_process(copied)
    assert ledger.latest.keys() == days(29)
    assert ledger.missing_versions == list(range(9))


# --- what a person is told ------------------------------------------------------------------------


def read_snapshot(url: Path):
    by_table = make_healthy_ledgers() | {FACT.name: read_by_another_process(url)}
    return make_snapshot(by_table, behind=StaleDays())


def test_a_cut_log_is_an_incident_until_its_days_are_rebuilt(history):
    commit_ours(history, added_file(9), added_file(10), day_numbers=(9, 10), since=8)
    DeltaTable(history).alter.set_table_properties(LOG_RETENTION)
    assert find_incidents(read_snapshot(history)) == []
    cut_log(history, *range(5))
    assert {
        n
        for n, state in states_by_day(FACT, read_snapshot(history)).items()
        if state is DayState.UNRECORDED
    } == {
        1,
        2,
        3,
        4,
    }
    (incident,) = find_incidents(read_snapshot(history))
    assert incident.key == ("log was cut", FACT.name, "")
    for part in (
        "version(s) 0-4 ",
        "4 day(s)",
        "2024-01-01...2024-01-04",
        "materialize these days",
    ):
        assert part in incident.detail
    DeltaTable(history).alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 7 days"}
    )
    (incident,) = find_incidents(read_snapshot(history))
    assert incident.key == ("log was cut", FACT.name, "")
    assert "delta.logRetentionDuration is interval 7 days" in incident.detail
    for n in range(1, 5):
        commit_ours(history, added_file(n), day_numbers=(n,), since=latest_version(history))
    (incident,) = [x for x in find_incidents(read_snapshot(history)) if x.kind.startswith("log")]
    assert incident.key == ("log retention changed", FACT.name, "")
    assert "backfill-assets maintain" in incident.detail


# --- with Spark -----------------------------------------------------------------------------------


def test_an_external_append_beside_a_run(pipeline, spark):
    """After the run has looked at the table, and before it commits."""
    publish_frame(pipeline, fact_rows(spark, [(1, "a", 1), (2, "a", 2)]), window(1, 2))
    url = pipeline.io_manager.url(FACT)

    def append_beside(n: int, rows: Any, **how: bool) -> list:
        def build(_: Window) -> ComputedDays:
            row = fact_rows(spark, [(n, "stranger", 7)])
            row.write.format("delta").mode("append").save(url)
            return ComputedDays(rows, {})

        return publish_days(
            pipeline.io_manager, FACT, window(n, n), build, uuid4().hex, run="beside", **how
        )

    # An overwrite replaces the row that it has not seen, and what it says of the day is so.
    assert outcome_values(append_beside(1, fact_rows(spark, [(1, "a", 5)]))) == ["written"]
    assert read_content(pipeline) == {(1, "a", 5), (2, "a", 2)}
    assert pipeline.io_manager.ledger(FACT).current_record(day(1)) is not None
    # A merge leaves it: nobody may take the day for what the record says.
    assert outcome_values(append_beside(2, fact_rows(spark, [(2, "a", 6)]), merge=True)) == [
        "written"
    ]
    assert read_content(pipeline) == {(1, "a", 5), (2, "a", 6), (2, "stranger", 7)}
    ledger = pipeline.io_manager.ledger(FACT)
    assert ledger.current_record(day(2)) is None
    assert ledger.content_key(day(2)) == f"version {ledger.version}"
    # The next run of the day finds it so, and mends it.
    (result,) = publish_frame(pipeline, fact_rows(spark, [(2, "a", 6)]), window(2, 2))
    assert result.outcome is Outcome.WRITTEN
    assert read_content(pipeline) == {(1, "a", 5), (2, "a", 6)}


def test_a_table_whose_log_was_cut_is_written_again(pipeline, spark):
    rows = fact_rows(spark, [(n, "a", n) for n in (1, 2, 3)])
    for n in (1, 2, 3):
        publish_frame(
            pipeline, rows.where(f"run_date = DATE'{day(n)}'"), window(n, n), input_digest="one"
        )
    url = Path(pipeline.io_manager.url(FACT))
    cut_log(url, *range(latest_version(url)))
    ledger_reader._cached_ledgers.clear()
    before = pipeline.io_manager.ledger(FACT)
    assert before.days_without_record == days(1, 2)
    # What is on record is not computed again; what is not, is.
    missing_rows = rows.where(f"run_date < DATE'{day(3)}'")
    results = publish_frame(pipeline, missing_rows, window(1, 3), input_digest="one")
    assert outcome_values(results) == ["written", "written", "identical"]
    ledger = pipeline.io_manager.ledger(FACT)
    assert ledger.days_without_record == frozenset()
    assert ledger.transaction == before.transaction + 1
    # And a commit still does not come about if another of ours came after the ledger was read.
    writer = Writer(lambda: spark, str(url), FACT)
    late_rows = fact_rows(spark, [(1, "late", 1)])
    files = writer.write_rows(late_rows, [day(1)], None, rebalance=False)
    assert writer.commit(files, [day(1)], {**RECORD, "audit": {}}, before) is None
    assert read_content(pipeline) == {(n, "a", n) for n in (1, 2, 3)}
