"""The same code on Spark Connect: a server of the test's own, on loopback, stopped at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.connect_server import connect_server

#: The suite's core, run once more in a process that has a Connect session.
CORE = ["test_audit.py", "test_io_manager.py", "system/test_pipeline.py"]
CHOICE = (
    "digest or refusals or constraints or create or same_day_end or empty_day or pinned or "
    "thirty or moved or model"
)


@pytest.fixture
def server(tmp_path):
    with connect_server(tmp_path, SMALL) as url:
        yield url


@pytest.mark.skipif("SPARK_REMOTE" in os.environ, reason="this is the run on Connect")
def test_the_core_of_the_suite_passes_on_connect(server, tmp_path):
    here = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-k", CHOICE]
    done = subprocess.run(
        [*command, f"--basetemp={tmp_path / 'inner'}", *(str(here / name) for name in CORE)],
        env={**os.environ, "SPARK_REMOTE": server},
        capture_output=True,
        text=True,
        cwd=here.parent,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
