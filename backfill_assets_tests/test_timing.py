"""The order of the files of a run, and the seconds by which they are ordered."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from backfill_assets_tests import timing

TESTS = timing.SECONDS_BY_FILE.parent


@pytest.fixture
def seconds(tmp_path, monkeypatch):
    """A file of seconds of a test's own, beside two files of tests."""
    folder = tmp_path / TESTS.name
    folder.mkdir()
    for name in ("test_a.py", "test_b.py"):
        (folder / name).touch()
    path = folder / "seconds.json"
    path.write_text(json.dumps({"test_a.py": 3, "test_b.py": 9, "test_gone.py": 5}))
    monkeypatch.setattr(timing, "SECONDS_BY_FILE", path)
    return path


def test_new_files_run_first_and_then_the_longest(seconds):
    names = ["test_a.py::x", "test_b.py::x", "test_a.py::y", "test_new.py::x"]
    items = [SimpleNamespace(nodeid=f"{TESTS.name}/{name}") for name in names]
    timing.pytest_collection_modifyitems(items)
    ordered = [item.nodeid.partition("/")[2] for item in items]
    assert ordered == ["test_new.py::x", "test_b.py::x", "test_a.py::x", "test_a.py::y"]


def test_seconds_of_a_run_are_kept_beside_those_of_other_files(seconds):
    timing._record_seconds({"test_a.py": 4.6})
    assert json.loads(seconds.read_text()) == {"test_a.py": 5, "test_b.py": 9}


def test_all_files_with_seconds_exist():
    known = json.loads(timing.SECONDS_BY_FILE.read_text())
    assert [name for name in known if not (TESTS / name).is_file()] == []


def test_cpu_of_a_child_counts_while_it_runs_and_afterwards():
    busy = "import time\nwhile time.process_time() < 0.7: pass\nprint(flush=True)\ninput()"
    before = timing.cpu_seconds()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", busy], **pipes) as child:
        child.stdout.readline()
        running = timing.cpu_seconds() - before
        child.communicate(b"\n")
    assert running >= 0.5
    assert timing.cpu_seconds() - before >= 0.5
