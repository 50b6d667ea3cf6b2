"""Commit files are read once, and whatever becomes of the copy, the ledger is the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import msgspec
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill_assets.calendar.partitions import to_ranges
from backfill_assets.delta import commit_log, ledger_reader
from backfill_assets.delta.commit_log import CachedCommitLog
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import ExternalCommit
from backfill_assets.orders.tables import FACT
from backfill_assets.spark import filesystems
from backfill_assets_tests.helpers.invented_logs import commit_metadata, days
from backfill_assets_tests.helpers.pipeline import day
from backfill_assets_tests.helpers.written_logs import (
    add_action,
    append_commit,
    append_other_commit,
    append_our_commit,
    commit_info,
    create_table,
    latest_version,
    log_copy_file,
    log_file,
    read_by_another_process,
    read_facts,
)

ENOUGH = 4


@pytest.fixture(autouse=True)
def _enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "_MIN_READS_TO_CACHE", ENOUGH)


@pytest.fixture
def url(tmp_path: Path) -> Path:
    return create_table(tmp_path / FACT.name)


# --- as it would be without memory or copy --------------------------------------------------------


def read_plainly(url: Path) -> Ledger:
    with patch.object(CachedCommitLog, "_read_cache", lambda *_: commit_log._CacheContent()):  # noqa: SIM117
        with patch.object(CachedCommitLog, "_write_cache", lambda *_: None):
            return read_by_another_process(url)


def ledger_values(ledger: Ledger) -> dict[str, Any]:
    """All of a ledger, the times of the commits included, as plain values."""
    return {
        "version": ledger.version,
        "records": [msgspec.structs.asdict(r) for r in ledger.records],
        "external": [asdict(other) for other in ledger.external_commits],
        "measured": ledger.measured,
        "rows": ledger.rows,
        "transaction": ledger.transaction,
        "lost": ledger.missing_versions,
        "added": ledger.changed_columns,
        "latest": {d: record.version for d, record in ledger.latest.items()},
        "changed": ledger.changed_days,
    }


def same_by_all_ways(url: Path) -> dict[str, Any]:
    plain = ledger_values(read_plainly(url))
    assert ledger_values(read_by_another_process(url)) == plain
    assert ledger_values(read_facts(url)) == plain
    return plain


class ReadCounter:
    """Counts the commit files that are read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    @classmethod
    def count_reads(cls, action: Callable[[], Any]) -> list[int]:
        counter, text = cls(), CachedCommitLog.read_commit

        def count_text(files: CachedCommitLog, version: int) -> bytes | None:
            counter.read.append(version)
            return text(files, version)

        with patch.object(CachedCommitLog, "read_commit", count_text):
            action()
        return counter.read


# --- how much is read -----------------------------------------------------------------------------


def test_a_table_as_it_was_is_not_read_again(url, monkeypatch):
    append_our_commit(url, 1)
    ledger = read_facts(url)
    monkeypatch.delattr(ledger_reader, "load_log")
    assert read_facts(url) is ledger
    assert ReadCounter.count_reads(lambda: read_facts(url)) == [1, 2]


def test_only_new_commits_are_read_again(url):
    for n in range(1, 9):
        append_our_commit(url, n)
    before = read_facts(url)
    version = append_our_commit(url, 9)
    assert set(ReadCounter.count_reads(lambda: read_facts(url))) == {
        version - 1,
        version,
        version + 1,
    }
    assert read_facts(url).records[:-1] == before.records
    same_by_all_ways(url)


def test_another_process_reads_the_copy_and_what_came_since(url):
    for n in range(1, 20):
        append_our_commit(url, n)
    read_facts(url)
    assert log_copy_file(url).exists()
    append_our_commit(url, 20)
    version = append_other_commit(url, 1)
    read_versions = ReadCounter.count_reads(lambda: read_by_another_process(url))
    assert set(read_versions) == {version - 2, version - 1, version, version + 1}
    assert len(same_by_all_ways(url)["records"]) == 20


def test_few_commits_make_no_copy(url):
    for n in range(1, ENOUGH - 1):
        append_our_commit(url, n)
    read_facts(url)
    assert not log_copy_file(url).exists()
    for n in range(ENOUGH, 3 * ENOUGH):
        append_our_commit(url, n)
    # This process knows the first ones only as what became of them; another has read all.
    read_facts(url)
    assert not log_copy_file(url).exists()
    read_by_another_process(url)
    assert log_copy_file(url).exists()
    same_by_all_ways(url)


def test_a_copy_that_is_far_behind_is_written_again(url):
    for n in range(1, 7):
        append_our_commit(url, n)
    read_facts(url)
    old = log_copy_file(url).read_bytes()
    for n in range(7, 7 + ENOUGH):
        assert log_copy_file(url).read_bytes() == old
        append_our_commit(url, n)
        read_by_another_process(url)
    assert log_copy_file(url).read_bytes() != old
    assert [path.name for path in log_copy_file(url).parent.iterdir()] == [log_copy_file(url).name]
    same_by_all_ways(url)


# --- what the log may look like -------------------------------------------------------------------


def test_a_commit_that_says_nothing_shifts_no_version(url):
    first = append_our_commit(url, 1)
    silent = append_commit(url, add_action(2, "silent"))
    last = append_our_commit(url, 3)
    ledger = read_facts(url)
    assert [record.version for record in ledger.records] == [first, last]
    assert ledger.external_commits == [ExternalCommit(silent, "None", days(2))]


def test_what_a_commit_is_about_may_come_last_and_be_spoken_of_elsewhere(url):
    metadata = commit_metadata(days(1))
    version = append_commit(
        url, add_action(1, "ours", tags={"commitInfo": "1"}), commit_info(metadata=metadata)
    )
    assert [record.version for record in read_facts(url).records] == [version]


def test_a_log_whose_first_files_are_gone(url):
    for n in range(1, 9):
        append_our_commit(url, n)
    DeltaTable(url).create_checkpoint()
    for version in range(4):
        log_file(url, version).unlink()
    values = same_by_all_ways(url)
    assert [record["version"] for record in values["records"]] == [4, 5, 6, 7, 8]
    assert values["measured"].keys() == days((1, 8))


def test_a_table_without_any_statistics(url):
    append_commit(
        url, commit_info(metadata=commit_metadata(days(1))), add_action(1, "bare", stats=None)
    )
    measurements = read_facts(url).measured
    assert {d: (m.rows, set(m.nulls.values())) for d, m in measurements.items()} == {
        day(1): (0, {0})
    }


def test_files_of_a_day_are_added_up(url):
    append_our_commit(url, 1, 2)
    append_our_commit(url, 2)
    append_other_commit(url, 2, stats=None)
    measurements = read_facts(url).measured
    assert {
        d.day: (m.rows, m.nulls["orders"], m.nulls["revenue"]) for d, m in measurements.items()
    } == {
        1: (2, 1, 0),
        2: (4, 2, 0),
    }


def test_others_before_our_first_commit_made_the_table(url):
    append_other_commit(url, 1)
    append_our_commit(url, 2)
    version = append_other_commit(url, 3)
    assert [other.version for other in read_facts(url).external_commits] == [version]


def test_a_table_by_another_name_is_another(url):
    append_our_commit(url, 1)
    other = replace(FACT, name="other")
    assert read_facts(url).table is FACT
    assert read_ledger(str(url), other).table is other


# --- what may become of the copy, and of the table ------------------------------------------------


@pytest.fixture
def copied(url: Path) -> Path:
    for n in range(1, 9):
        append_our_commit(url, n)
    append_other_commit(url, 3)
    read_by_another_process(url)
    assert log_copy_file(url).exists()
    return url


def test_without_the_copy_all_is_the_same(copied):
    before = ledger_values(read_by_another_process(copied))
    log_copy_file(copied).unlink()
    assert same_by_all_ways(copied) == before


@pytest.mark.parametrize("size", [0, 1, 4, 20, 200, -1])
def test_a_torn_copy(copied, size):
    text = log_copy_file(copied).read_bytes()
    log_copy_file(copied).write_bytes(text[:size])
    same_by_all_ways(copied)
    assert log_copy_file(copied).read_bytes() == text


@pytest.mark.parametrize("text", ["", "\n", "{}", "[1]", "17", "null", "hello", '{"version": "x"}'])
def test_a_copy_that_is_something_else(copied, text):
    log_copy_file(copied).write_text(text)
    same_by_all_ways(copied)
    with commit_log.open_store(str(copied))[0].open_output_stream(
        str(log_copy_file(copied))
    ) as stream:
        stream.write(text.encode())
    same_by_all_ways(copied)


def test_a_copy_by_code_that_tells_something_else(copied, monkeypatch):
    before = log_copy_file(copied).read_bytes()
    with patch.object(ledger_reader, "encoding_id", lambda _: "another"):
        same_by_all_ways(copied)
    assert log_copy_file(copied).read_bytes() != before
    same_by_all_ways(copied)
    assert log_copy_file(copied).read_bytes() == before


def test_who_may_not_write_reads(copied):
    before = ledger_values(read_by_another_process(copied))
    shutil.rmtree(log_copy_file(copied).parent)
    log_copy_file(copied).parent.write_text("in the way")
    assert same_by_all_ways(copied) == before


class KilledWhileWriting:
    """A file system whose process dies when half is written."""

    def __init__(self, filesystem: Any) -> None:
        self.filesystem = filesystem

    def __getattr__(self, name: str) -> Any:
        return getattr(self.filesystem, name)

    def open_output_stream(self, path: str) -> Any:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt


def test_a_writer_that_was_killed(copied):
    for n in range(1, 2 + ENOUGH):
        append_our_commit(copied, n)
    before = log_copy_file(copied).read_bytes()
    killed = KilledWhileWriting(filesystems.open_store(str(copied))[0])
    with patch.object(filesystems, "open_store", lambda url: (killed, url)):  # noqa: SIM117
        with pytest.raises(KeyboardInterrupt):
            read_by_another_process(copied)
    assert log_copy_file(copied).read_bytes() == before
    same_by_all_ways(copied)
    assert log_copy_file(copied).read_bytes() != before


def numbered_files(url: Path) -> CachedCommitLog:
    """What is told of a commit is its version."""
    return CachedCommitLog(str(url), lambda version, _: b"%d" % version, int, "numbers")


def test_many_at_once(url):
    for n in range(1, 30):
        append_our_commit(url, n)
    files = numbered_files(url)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: files.read_lines(None, 29, "t"), range(40)))
    assert results == [([b"%d" % n for n in range(30)], [])] * 40
    assert files._read_cache(29, "t").version == 29


def test_a_table_that_was_made_again(copied):
    before = read_facts(copied)
    shutil.rmtree(copied / "_delta_log")
    create_table(copied)
    assert read_by_another_process(copied).records == read_facts(copied).records == []
    # As many commits as it had, and more.
    for n in range(10, 12 + len(before.all_commits)):
        append_our_commit(copied, n)
    assert not same_by_all_ways(copied)["latest"].keys() & before.latest.keys()


def test_a_log_of_which_only_the_checkpoint_is_left(copied):
    DeltaTable(copied).create_checkpoint()
    for path in (copied / "_delta_log").glob("*.json"):
        path.unlink()
    assert read_facts(copied).published_days == days((1, 8))
    assert len(read_facts(copied).records) == len(read_by_another_process(copied).records) == 8
    plain = ledger_values(read_plainly(copied))
    assert (plain["records"], plain["lost"]) == ([], list(range(10)))
    shutil.rmtree(copied / "_delta_log")
    create_table(copied)
    assert same_by_all_ways(copied)["version"] == 0


def test_a_copy_that_is_ahead_of_what_is_asked_for(copied):
    files = numbered_files(copied)
    assert len(files.read_lines(None, 8, "t").lines) == 9
    assert len(files.read_lines(None, 6, "t").lines) == 7


def test_a_table_that_was_put_back_from_a_backup(copied):
    read_facts(copied)
    for version in range(5, latest_version(copied) + 1):
        log_file(copied, version).unlink()
    assert same_by_all_ways(copied)["version"] == 4
    for n in range(20, 28):
        append_our_commit(copied, n)
    assert {d.day for d in same_by_all_ways(copied)["latest"]} == {1, 2, 3, 4, *range(20, 28)}


def test_a_table_that_is_no_more(copied):
    read_facts(copied)
    shutil.rmtree(copied)
    assert read_facts(copied) == read_by_another_process(copied) == Ledger(FACT)
    create_table(copied)
    assert read_facts(copied).version == 0


def test_vacuum_leaves_the_copy(copied):
    DeltaTable(copied).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    assert log_copy_file(copied).exists()


# --- any sequence of all that ---------------------------------------------------------------------

some_days = st.sets(st.integers(1, 12), max_size=4)


def draw_histories() -> st.SearchStrategy[list[tuple[str, Any]]]:
    plain = ("checkpoint", "optimize", "silent", "read", "another", "forget", "spoil", "anew")
    commits = st.tuples(st.just("ours"), st.tuples(some_days, some_days, st.booleans()))
    others = st.tuples(st.just("theirs"), some_days)
    back = st.tuples(st.just("back"), st.integers(1, 4))
    rest = st.tuples(st.sampled_from(plain), st.none())
    return st.lists(st.one_of(commits, commits, others, rest, back), max_size=40)


def apply_step(url: Path, what: str, argument: Any) -> None:
    version = latest_version(url)
    if what == "ours":
        covered, written, with_days = argument
        spans = {"days": to_ranges(days(*written)), "since": version} if with_days else {}
        append_our_commit(url, *covered, **spans, final=to_ranges(days(*covered & written)))
    elif what == "theirs":
        append_commit(
            url,
            commit_info("DELETE", txnId=uuid4().hex),
            *(add_action(n, "theirs") for n in argument),
        )
    elif what == "optimize":
        append_commit(url, commit_info("OPTIMIZE"), add_action(1, "optimized", dataChange=False))
    elif what == "silent":
        append_commit(url, add_action(2, "silent"))
    elif what == "checkpoint":
        DeltaTable(url).create_checkpoint()
    elif what == "read":
        assert ledger_values(read_facts(url)) == ledger_values(read_plainly(url))
    elif what == "another":
        assert ledger_values(read_by_another_process(url)) == ledger_values(read_plainly(url))
    elif what == "forget":
        log_copy_file(url).unlink(missing_ok=True)
    elif what == "spoil" and log_copy_file(url).exists():
        log_copy_file(url).write_bytes(log_copy_file(url).read_bytes()[:-9])
    elif what == "anew":
        shutil.rmtree(url / "_delta_log")
        create_table(url)
    elif what == "back":
        for path in (url / "_delta_log").iterdir():
            name = path.name.split(".")[0]
            if path.name == "_last_checkpoint" or int(name) > max(version - argument, 0):
                path.unlink()


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder)


@given(history=draw_histories())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_history_is_read_alike_in_every_way(scratch, history):
    url = scratch / FACT.name
    shutil.rmtree(url, ignore_errors=True)
    create_table(url)
    for what, argument in history:
        apply_step(url, what, argument)
    same_by_all_ways(url)
