"""A Spark Connect server of one's own, on loopback, stopped by who started it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backfill_assets.settings import load_settings
from backfill_assets.spark import connect_server_command


@contextmanager
def connect_server(folder: Path, conf: dict[str, str]) -> Iterator[str]:
    """The URL of a server that runs in `folder` with these Spark settings."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "connect-server.log"
    settings = load_settings(spark_master="local[2]", spark_conf=conf)
    with log.open("w") as out:
        process = subprocess.Popen(
            connect_server_command(settings, port), stdout=out, stderr=out, cwd=folder
        )
        try:
            _wait_for(port, process, log)
            yield f"sc://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=60)


def _wait_for(port: int, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-2000:]
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"no server after 120 s: {log.read_text()[-2000:]}")
