"""Runs are forked from a process that has loaded the definitions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from backfill_assets_tests.helpers import forked_process
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.process_kills import is_alive, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")
Reports = dict[str, dict[str, Any]]


@pytest.fixture
def server(tmp_path) -> Iterator[subprocess.Popen]:
    """A process that has forked two others."""
    process = subprocess.Popen(
        [sys.executable, "-m", forked_process.__name__, str(tmp_path)], cwd=PROJECT
    )
    try:
        yield process
    finally:
        (tmp_path / "end").touch()
        process.kill()
        process.wait()


@pytest.fixture
def told(server, tmp_path) -> Reports:
    """What the two say of themselves, by name."""
    wait_for(lambda: all((tmp_path / name).exists() for name in "ab"))
    return {name: json.loads((tmp_path / name).read_text()) for name in "ab"}


def test_what_is_loaded_once_what_each_has_of_its_own_and_that_they_end(told, tmp_path):
    a, b = told["a"], told["b"]
    assert a["definitions"] == b["definitions"] == 1
    assert a["parent"] == b["parent"]
    # A fork takes along the calling thread alone: whatever lock another one held stays locked. The
    # allocator's own threads know how to be forked.
    assert len([name for name in a["threads of the parent"] if name != "jemalloc_bg_thd"]) == 1
    assert a["pid"] != b["pid"]
    # By which one run would interrupt the other.
    assert a["tag"] != b["tag"]

    # They end as processes do.
    (tmp_path / "end").touch()
    wait_for((tmp_path / "all ended").exists)
    assert (tmp_path / "a.ended").exists()
    assert (tmp_path / "b.ended").exists()


def test_without_the_fork_server_they_are_given_up_and_end(told, tmp_path):
    os.kill(told["a"]["parent"], signal.SIGKILL)
    wait_for((tmp_path / "all ended").exists)  # as the code server has it
    wait_for(lambda: not is_alive(told["a"]["pid"]) and not is_alive(told["b"]["pid"]))


def test_without_the_code_server_they_go_on(server, told, tmp_path):
    server.kill()
    server.wait()
    assert is_alive(told["a"]["parent"])
    os.kill(told["a"]["parent"], signal.SIGKILL)
    time.sleep(2)  # in which they look at who is there
    assert is_alive(told["a"]["pid"])
    assert is_alive(told["b"]["pid"])
    (tmp_path / "end").touch()
    wait_for(lambda: (tmp_path / "a.ended").exists() and (tmp_path / "b.ended").exists())
