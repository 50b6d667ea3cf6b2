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


def make_report(name: str, outcome: str, cpu: float, **more) -> pytest.TestReport:
    return pytest.TestReport(
        f"tests/{name}",
        ("tests", 1, name),
        {},
        outcome,
        more.get("longrepr"),
        "teardown",
        user_properties=[("cpu_seconds", cpu)],
        duration=1.0,
    )


def make_config(**options) -> SimpleNamespace:
    """The configuration of a run of two tests of 6 CPU seconds each, and a skipped one."""
    skipped = make_report("c", "skipped", 0.0, longrepr=("c.py", 1, "Skipped: no server"))
    passed = [make_report("a", "passed", 6.0), make_report("b", "passed", 6.0)]
    reporter = SimpleNamespace(stats={"passed": passed, "skipped": [skipped], "": ["a line"]})
    return SimpleNamespace(
        getoption=lambda name: options.get(name),
        pluginmanager=SimpleNamespace(get_plugin={"terminalreporter": reporter}.get),
    )


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({}, []),
        ({"--reference-seconds": 3.0, "--cost-limit": 4.0, "--skip-limit": 1}, []),
        ({"--cost-limit": 1.0}, []),  # of which unit?
        (
            {"--reference-seconds": 3.0, "--cost-limit": 3.9},
            ["The tests cost 4.0 reference jobs; the limit is 3.9. Look at the dearest files"],
        ),
        ({"--skip-limit": 0}, ["1 tests were skipped; 0 may be. Install what they need:\n"]),
    ],
)
def test_a_run_fails_over_its_limits(options, messages):
    exceeded = timing.exceeded_limits(make_config(**options))
    assert len(exceeded) == len(messages)
    assert all(text.startswith(message) for text, message in zip(exceeded, messages, strict=True))
    session = SimpleNamespace(config=make_config(**options), exitstatus=pytest.ExitCode.OK)
    timing.pytest_sessionfinish(session)
    assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if messages else pytest.ExitCode.OK)


def test_the_reason_of_each_skipped_test_is_told():
    (message,) = timing.exceeded_limits(make_config(**{"--skip-limit": 0}))
    assert message.endswith("\n  tests/c: Skipped: no server")


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
