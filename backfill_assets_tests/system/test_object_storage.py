"""Landing and warehouse on S3: a server of the test's own, and the suite's core on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill_assets_tests.s3_server import FOLDER, MISSING, PROGRAM, S3Server, s3_server

HERE = Path(__file__).parents[1]
#: Runs, what is refused, late data, undo, races and kills: once more, on S3.
CORE = [
    "test_io_manager.py",
    "system/test_pipeline.py",
    "system/test_races.py",
    "system/test_recovery.py",
    "system/test_undo.py",
]
CHOICE = "digest or nightly_against or killed_at_random"

pytestmark = [
    pytest.mark.skipif(FOLDER in os.environ, reason="this is the run on S3"),
    pytest.mark.skipif(not PROGRAM, reason=MISSING),
]


@pytest.fixture
def server(tmp_path) -> Iterator[S3Server]:
    with s3_server(tmp_path) as server:
        yield server


def run_on(server: S3Server, choice: str, *names: str, **more: str) -> str:
    """What pytest says of tests whose landing and warehouse lie on the server."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-k", choice]
    done = subprocess.run(
        [*command, f"--basetemp={server.bucket / 'inner'}", *(str(HERE / name) for name in names)],
        env={**os.environ, **server.environment, **more},
        capture_output=True,
        text=True,
        cwd=HERE.parent,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert server.requests("inner")["PutObject"]
    return done.stdout


def test_the_core_of_the_suite_passes_on_s3(server):
    assert " passed" in run_on(server, CHOICE, *CORE)
