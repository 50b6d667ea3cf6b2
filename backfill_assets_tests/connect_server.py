"""A Spark Connect server of one's own, on loopback, stopped by who started it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from backfill_assets.engine.configuration import connect_server_command
from backfill_assets.engine.servers import SparkServer
from backfill_assets.settings import load_settings


@contextmanager
def connect_server(folder: Path, conf: dict[str, str]) -> Iterator[str]:
    """The URL, with its token, of a server that runs in `folder` with these Spark settings."""
    settings = load_settings(spark_master="local[2]", spark_conf=conf)
    command = partial(connect_server_command, settings, folder=folder)
    server = SparkServer(command, folder / "connect-server.log", print)
    try:
        while not server.ready:
            server.tend()
        yield f"{server.url};token={server.token}"
    finally:
        server.end()
