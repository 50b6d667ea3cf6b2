"""The same code on Spark Connect: a server of the test's own, on loopback, stopped at the end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backfill_assets.settings import load_settings
from backfill_assets.spark import connect_server_command
from backfill_assets_tests.conftest import SMALL

#: The suite's core, run once more in a process that has a Connect session.
CORE = ["test_audit.py", "test_io_manager.py", "test_pipeline.py"]
CHOICE = (
    "digest or refusals or constraints or create or same_day_end or empty_day or pinned or "
    "thirty or moved or model"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port: int, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-2000:]
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"no server after 120 s: {log.read_text()[-2000:]}")


@pytest.fixture
def server(tmp_path):
    port, log = free_port(), tmp_path / "server.log"
    settings = load_settings(spark_master="local[2]", spark_conf=SMALL)
    with log.open("w") as out:
        process = subprocess.Popen(
            connect_server_command(settings, port), stdout=out, stderr=out, cwd=tmp_path
        )
        try:
            wait_for(port, process, log)
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)


@pytest.mark.skipif("SPARK_REMOTE" in os.environ, reason="this is the run on Connect")
def test_the_core_of_the_suite_passes_on_connect(server, tmp_path):
    here = Path(__file__).parent
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
