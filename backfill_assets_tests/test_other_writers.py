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
from backfill_assets.delta import commit_files, reading
from backfill_assets.delta.commits import LOG_RETENTION, Writer
from backfill_assets.delta.logs import APPLICATION
from backfill_assets.delta.records import ExternalCommit
from backfill_assets.monitoring.incidents import find_incidents
from backfill_assets.monitoring.states import DayState
from backfill_assets.orders.facts import FACT
from backfill_assets.publish.candidates import Candidate, ComputedDays, ComputePlan, Outcome
from backfill_assets.staleness.backlog import StaleDays
from backfill_assets_tests.invented_logs import days, said_of
from backfill_assets_tests.invented_states import healthy, situation, states
from backfill_assets_tests.pipeline import day
from backfill_assets_tests.publishing import RECORD, content, fact_rows, outcomes, publish, window
from backfill_assets_tests.written_logs import (
    append,
    copy_of,
    info,
    latest,
    log_file,
    made,
    read,
    read_by_another_process,
)


@pytest.fixture
def url(tmp_path: Path) -> Path:
    return made(tmp_path / FACT.name)


def file(n: int, rows: int | None = 1, *, folder: bool = True) -> dict[str, Any]:
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


def gone(file: dict[str, Any]) -> dict[str, Any]:
    """The action that removes a file, with no more than Delta asks for."""
    return {"remove": {"path": file["path"], "deletionTimestamp": 1, "dataChange": True}}


def ours(
    url: Path,
    *files: dict[str, Any],
    of: tuple[int, ...],
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
        for n in of
    }
    said = said_of((), audit=audit, commit_id=uuid4().hex, **{"days": to_ranges(days(*of)), **more})
    numbered = [] if number is None else [{"txn": {"appId": APPLICATION, "version": number}}]
    actions = [*({"add": f} for f in files), *map(gone, removes)]
    return append(url, info(operation, said=said), *numbered, *actions)


def theirs(url: Path, *actions: dict[str, Any], operation: str = "WRITE") -> int:
    return append(url, info(operation, txnId=uuid4().hex), *actions)


# --- writers beside us ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "stands"), [("MERGE", False), ("WRITE", True)], ids=["merge", "overwrite"]
)
def test_a_commit_vouches_as_of_the_version_that_it_looked_at(url, operation, stands):
    """An overwrite replaces whatever came in between; a merge leaves it, and never saw it."""
    since = ours(url, file(1), of=(1,), since=None)
    external = theirs(url, {"add": file(1)})
    theirs_content = read(url).content_key(day(1))
    assert theirs_content == f"version {external}"
    # As many rows as the audit saw: only the order of the commits tells.
    files = DeltaTable(url).get_add_actions(flatten=True).column("path").to_pylist()
    removes = tuple({"path": path} for path in files)
    version = ours(url, file(1), of=(1,), removes=removes, operation=operation, since=since)
    found = read(url)
    assert found.rows == {day(1): 1}
    assert (found.current_record(day(1)) is not None) is stands
    assert (found.content_key(day(1)) == "digest 1") is stands
    assert found.content_key(day(1)) != theirs_content, "the merge changed what is there"
    assert found.changed_days[version] == days(1)
    # Published again as it was to be, the day has changed for whoever follows it.
    (left,) = DeltaTable(url).get_add_actions(flatten=True).column("path").to_pylist()
    last = ours(url, file(1), of=(1,), removes=({"path": left},), since=version)
    found = read(url)
    assert found.content_key(day(1)) == "digest 1"
    assert (day(1) in found.changed_days[last]) is not stands


def test_a_merge_beside_changes_of_other_days_stands(url):
    since = ours(url, file(1), of=(1,), since=None)
    theirs(url, {"add": file(2)})
    ours(url, file(3), of=(3,), operation="MERGE", since=since)
    found = read(url)
    assert [found.content_key(day(n)) for n in (1, 2, 3)] == ["digest 1", "version 2", "digest 3"]


def test_what_was_compared_only_has_changed_if_others_were_in_between(url):
    """The second commit wrote nothing: what it had looked at was as it should be."""
    since = ours(url, file(1), of=(1,), since=None)
    external = theirs(url, {"add": file(1)})
    told = {str(day(1)): {"rows": 1, "digest": "digest 1", "verdict": "ok"}}
    said = said_of((), days=[], since=since, commit_id="c")
    compared = append(url, info(said={**said, "audit": told}))
    found = read(url)
    assert found.content_key(day(1)) == f"version {external}"
    assert found.changed_days[compared] == frozenset()
    files = DeltaTable(url).get_add_actions(flatten=True).column("path").to_pylist()
    removes = tuple({"path": path} for path in files)
    last = ours(url, file(1), of=(1,), removes=removes, since=compared)
    assert read(url).content_key(day(1)) == "digest 1"
    assert read(url).changed_days[last] == days(1), "its followers had seen what others made of it"


@pytest.mark.parametrize("folder", [True, False], ids=["by folder", "anywhere"])
def test_a_removal_that_does_not_name_its_partition(url, folder):
    one, two = file(1, folder=folder), file(2, folder=folder)
    ours(url, one, two, of=(1, 2), since=None)
    version = theirs(url, gone(two), operation="DELETE")
    found = read(url)
    expected = days(2) if folder else frozenset()
    assert found.external_commits == [
        ExternalCommit(version, "DELETE", expected, has_unknown_days=not folder)
    ]
    assert found.current_record(day(1)) is not None
    assert found.current_record(day(2)) is None
    assert found.content_key(day(2)) == f"version {version}"
    # Put back as it was, it has changed for whoever built on what was left of it.
    last = ours(url, file(2), of=(2,), since=version)
    assert read(url).changed_days[last] == days(2)
    assert read(url).content_key(day(2)) == "digest 2"


def test_a_removal_from_under_another_partitioning(url):
    """As when somebody replaces the table by one that is partitioned otherwise, and back."""
    ours(url, file(1), of=(1,), since=None)
    removal = {"path": "log_date=2024-01-05/x.parquet", "dataChange": True}
    theirs(url, {"remove": {**removal, "partitionValues": {"log_date": "2024-01-05"}}})
    assert read(url).external_commits == [
        ExternalCommit(2, "WRITE", frozenset(), has_unknown_days=True)
    ]


def test_a_removal_from_anywhere_where_rows_are_not_counted(url):
    ours(url, file(1, rows=None, folder=False), file(2), of=(1, 2), since=None)
    assert read(url).current_record(day(1)) is not None
    theirs(url, gone({"path": "q7/other.parquet"}), operation="DELETE")
    assert read(url).current_record(day(1)) is None
    assert read(url).current_record(day(2)) is not None


def test_rows_in_the_log_are_held_against_the_record(url):
    """Whatever the reason: here a commit that says nothing of changing data takes a file away."""
    one, two = file(1), file(2)
    ours(url, one, two, file(2), of=(1, 2, 3), since=None)
    assert all(read(url).current_record(day(n)) for n in (1, 2, 3))
    quiet = gone(two)
    quiet["remove"]["dataChange"] = False
    theirs(url, quiet, operation="OPTIMIZE")
    found = read(url)
    assert found.external_commits == []
    assert [found.current_record(day(n)) is not None for n in (1, 2, 3)] == [True, False, True]
    assert found.content_key(day(2)) == (
        "unrecorded 1 rows in 1 file(s) of 10 bytes, the newest of 1"
    )
    assert found.as_of(1).current_record(day(2)) is not None, "what was there then is not known"


def test_rows_are_not_counted_where_deletion_vectors_may_be(url):
    ours(url, file(1), of=(1,), since=None)
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    append(url, info("SET TBLPROPERTIES"), {"protocol": protocol})
    assert read(url).rows is None
    assert read(url).current_record(day(1)) is not None


def test_ten_thousand_days_are_compared_at_once(url, monkeypatch):
    ours(url, *(file(n) for n in range(1, 31)), of=tuple(range(1, 31)), since=None)
    found = read(url)
    monkeypatch.delattr(type(found.measured), "__getitem__")
    assert all(found.current_record(day(n)) for n in range(1, 31))


# --- a log that was cut ---------------------------------------------------------------------------


def cut(url: Path, *versions: int) -> None:
    """As Delta's cleanup does: a checkpoint, and the commits are gone."""
    DeltaTable(url).create_checkpoint()
    for version in versions:
        log_file(url, version).unlink(missing_ok=True)


@pytest.fixture
def history(url: Path) -> Path:
    """Eight days, one a commit, numbered as Delta numbers them."""
    for n in range(1, 9):
        ours(url, file(n), of=(n,), since=n - 1, number=n)
    return url


def test_the_number_of_the_last_commit_is_that_of_the_snapshot(history):
    assert read(history).transaction == 8
    theirs(history, {"add": file(20)})
    assert read(history).transaction == 8
    cut(history, *range(10))
    found = read_by_another_process(history)
    assert (found.records, found.transaction) == ([], 8)


def test_a_table_that_nobody_of_us_wrote_has_no_number(url):
    theirs(url, {"add": file(1)})
    assert read(url).transaction is None


def test_days_of_lost_commits_are_not_days_that_were_never_published(history):
    before = read_by_another_process(history)
    assert (before.missing_versions, before.days_without_record) == ([], frozenset())
    cut(history, *range(6))
    found = read_by_another_process(history)
    assert found.missing_versions == list(range(6))
    assert found.days_without_record == days((1, 5))
    assert [found.current_record(day(n)) is not None for n in (5, 6)] == [False, True]
    assert (
        found.content_key(day(5)) == "unrecorded 1 rows in 1 file(s) of 10 bytes, the newest of 1"
    )
    assert found.content_key(day(9)) == "nothing"
    # Rebuilt, all is as before, though the commits are gone for good.
    for n in range(1, 6):
        ours(history, file(n), of=(n,), removes=(), since=latest(history))
    found = read_by_another_process(history)
    assert found.missing_versions == list(range(6))
    assert found.days_without_record == frozenset()


def test_others_are_others_from_the_first_commit_that_is_left(history):
    theirs(history, {"add": file(1)})
    ours(history, file(9), of=(9,), since=9)
    cut(history, *range(9))
    assert [other.version for other in read_by_another_process(history).external_commits] == [9]


def test_an_older_record_does_not_stand_for_what_came_in_lost_commits(history, monkeypatch):
    monkeypatch.setattr(commit_files, "_MIN_READS_TO_CACHE", 4)
    read_by_another_process(history)
    # Day 1 anew, with as many rows; nobody has copied this.
    (old,) = [
        path
        for path in DeltaTable(history).get_add_actions(flatten=True).column("path").to_pylist()
        if str(day(1)) in path
    ]
    lost = ours(history, file(1), of=(1,), removes=({"path": old},), digest="new", since=8)
    ours(history, file(9), of=(9,), since=9)
    cut(history, *range(lost + 1))
    found = read_by_another_process(history)
    assert found.missing_versions == [lost]
    assert found.current_record(day(1)) is None
    assert found.current_record(day(9)) is not None
    assert found.days_without_record == days((1, 8)), "any of them may have been written by it"


def test_a_cut_below_what_was_read_is_noticed(history):
    """The daemon reads a log for weeks."""
    assert read(history).missing_versions == []
    cut(history, *range(4))
    assert read(history).missing_versions == list(range(4))
    ours(history, file(9), of=(9,), since=8)
    assert read(history).missing_versions == list(range(4))
    assert read(history).days_without_record == days((1, 3))


def test_commits_that_were_put_back_are_read(history, tmp_path, monkeypatch):
    monkeypatch.setattr(commit_files, "_MIN_READS_TO_CACHE", 4)
    shutil.copytree(history / "_delta_log", tmp_path / "backup")
    cut(history, *range(4))
    assert (
        read(history).missing_versions
        == read_by_another_process(history).missing_versions
        == list(range(4))
    )
    assert copy_of(history).exists(), "what is lost is on record there"
    for version in range(4):
        shutil.copy(tmp_path / "backup" / f"{version:020d}.json", log_file(history, version))
    for found in (read(history), read_by_another_process(history)):
        assert found.missing_versions == []
        assert [record.version for record in found.records] == list(range(1, 9))


# --- the copy -------------------------------------------------------------------------------------


@pytest.fixture
def copied(history: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(commit_files, "_MIN_READS_TO_CACHE", 4)
    read_by_another_process(history)
    assert copy_of(history).exists()
    return history


@pytest.mark.parametrize("last", [3, 9], ids=["the first", "all"])
def test_the_copy_tells_of_commits_that_are_gone(copied, last):
    before = read_by_another_process(copied)
    cut(copied, *range(last))
    text = copy_of(copied).read_bytes()
    found = read_by_another_process(copied)
    assert found.records == before.records
    assert (found.missing_versions, found.days_without_record) == ([], frozenset())
    assert copy_of(copied).read_bytes() == text
    log_file(copied, 9).write_text(json.dumps(info("VACUUM END")))
    ours(copied, file(9), of=(9,), since=9)
    assert len(read_by_another_process(copied).records) == 9


def test_a_copy_in_an_older_form_tells_of_commits_that_are_gone(copied, monkeypatch):
    before = read_by_another_process(copied)
    cut(copied, *range(6))
    text = copy_of(copied).read_bytes()
    copy_of(copied).write_bytes(b"")
    with commit_files.open_store(str(copied))[0].open_output_stream(str(copy_of(copied))) as stream:
        *lines, about = plain(text).splitlines()
        about = json.dumps({**json.loads(about), "form": "older"}).encode()
        stream.write(b"\n".join([*lines, about]))
    found = read_by_another_process(copied)
    assert found.records == before.records
    assert found.missing_versions == []


def plain(text: bytes) -> bytes:
    import pyarrow as pa

    return pa.input_stream(pa.py_buffer(text), compression="zstd").read()


def test_the_copy_of_another_table_is_not_used(copied):
    shutil.rmtree(copied / "_delta_log")
    made(copied)
    for n in range(21, 30):
        ours(copied, file(n), of=(n,), since=None)
    cut(copied, *range(9))
    found = read_by_another_process(copied)
    assert found.latest.keys() == days(29)
    assert found.missing_versions == list(range(9))


# --- what a person is told ------------------------------------------------------------------------


def seen(url: Path):
    found = healthy() | {FACT.name: read_by_another_process(url)}
    return situation(found, behind=StaleDays())


def test_a_cut_log_is_an_incident_until_its_days_are_rebuilt(history):
    ours(history, file(9), file(10), of=(9, 10), since=8)
    DeltaTable(history).alter.set_table_properties(LOG_RETENTION)
    assert find_incidents(seen(history)) == []
    cut(history, *range(5))
    assert {
        n for n, state in states(FACT, seen(history)).items() if state is DayState.UNRECORDED
    } == {
        1,
        2,
        3,
        4,
    }
    (found,) = find_incidents(seen(history))
    assert found.key == ("log was cut", FACT.name, "")
    for part in (
        "version(s) 0-4 ",
        "4 day(s)",
        "2024-01-01...2024-01-04",
        "materialize these days",
    ):
        assert part in found.detail
    DeltaTable(history).alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 7 days"}
    )
    (found,) = find_incidents(seen(history))
    assert found.key == ("log was cut", FACT.name, "")
    assert "delta.logRetentionDuration is interval 7 days" in found.detail
    for n in range(1, 5):
        ours(history, file(n), of=(n,), since=latest(history))
    (found,) = [x for x in find_incidents(seen(history)) if x.kind.startswith("log")]
    assert found.key == ("log retention changed", FACT.name, "")
    assert "backfill-assets maintain" in found.detail


# --- with Spark -----------------------------------------------------------------------------------


def test_an_external_append_beside_a_run(pipeline, spark):
    """After the run has looked at the table, and before it commits."""
    publish(pipeline, fact_rows(spark, [(1, "a", 1), (2, "a", 2)]), window(1, 2))
    url = pipeline.io_manager.url(FACT)

    def beside(n: int, rows: Any, **how: bool) -> list:
        def build(_: Window) -> ComputedDays:
            row = fact_rows(spark, [(n, "stranger", 7)])
            row.write.format("delta").mode("append").save(url)
            return ComputedDays(rows, {})

        plan = ComputePlan({day(n): uuid4().hex}, build)
        return pipeline.io_manager.publish(
            Candidate(FACT, lambda _: plan), window(n, n), {**RECORD, "run_id": "beside"}, **how
        )

    # An overwrite replaces the row that it has not seen, and what it says of the day is so.
    assert outcomes(beside(1, fact_rows(spark, [(1, "a", 5)]))) == ["written"]
    assert content(pipeline) == {(1, "a", 5), (2, "a", 2)}
    assert pipeline.io_manager.ledger(FACT).current_record(day(1)) is not None
    # A merge leaves it: nobody may take the day for what the record says.
    assert outcomes(beside(2, fact_rows(spark, [(2, "a", 6)]), merge=True)) == ["written"]
    assert content(pipeline) == {(1, "a", 5), (2, "a", 6), (2, "stranger", 7)}
    ledger = pipeline.io_manager.ledger(FACT)
    assert ledger.current_record(day(2)) is None
    assert ledger.content(day(2)) == f"version {ledger.version}"
    # The next run of the day finds it so, and mends it.
    (done,) = publish(pipeline, fact_rows(spark, [(2, "a", 6)]), window(2, 2))
    assert done.outcome is Outcome.WRITTEN
    assert content(pipeline) == {(1, "a", 5), (2, "a", 6)}


def test_a_table_whose_log_was_cut_is_written_again(pipeline, spark):
    rows = fact_rows(spark, [(n, "a", n) for n in (1, 2, 3)])
    for n in (1, 2, 3):
        publish(pipeline, rows.where(f"run_date = DATE'{day(n)}'"), window(n, n), fingerprint="one")
    url = Path(pipeline.io_manager.url(FACT))
    cut(url, *range(latest(url)))
    reading._cached_ledgers.clear()
    before = pipeline.io_manager.ledger(FACT)
    assert before.unrecorded == days(1, 2)
    # What is on record is not computed again; what is not, is.
    lost = rows.where(f"run_date < DATE'{day(3)}'")
    done = publish(pipeline, lost, window(1, 3), fingerprint="one")
    assert outcomes(done) == ["written", "written", "identical"]
    found = pipeline.io_manager.ledger(FACT)
    assert found.unrecorded == frozenset()
    assert found.transaction == before.transaction + 1
    # And a commit still does not come about if another of ours came after the ledger was read.
    writer = Writer(lambda: spark, str(url), FACT)
    late_rows = fact_rows(spark, [(1, "late", 1)])
    files = writer.write_rows(late_rows, [day(1)], scattered=False).files
    assert writer.commit(files, [day(1)], {**RECORD, "audit": {}}, before) is None
    assert content(pipeline) == {(n, "a", n) for n in (1, 2, 3)}
