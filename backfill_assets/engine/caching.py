"""Frames whose rows are kept for a while, and released also if their run was killed."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from uuid import uuid4

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.utils import is_remote

from backfill_assets.engine.process_groups import process_start

Cache = Callable[[DataFrame], DataFrame]

#: Where Spark keeps views that all sessions see.
_SHARED = "global_temp"
_NAME = re.compile(r"cached_(?P<host>[0-9a-f]{12})_(?P<pid>\d+)_(?P<began>\d+)_[0-9a-f]{32}")


@contextmanager
def caching() -> Iterator[Cache]:
    """Gives a function that caches a frame's rows once they are computed, until the end.

    A server keeps the rows for as long as it runs, whoever asked for them. There, they have a name
    that tells which process did, so that others can release what a killed one left.
    """
    kept: list[Callable[[], object]] = []

    def cache(frame: DataFrame) -> DataFrame:
        # Spark keeps rows by the plan, for all sessions of a server: without something of its own
        # in the plan, what a killed run had kept would be taken for a file that was mended since.
        own = uuid4().hex
        unlike = frame.where(f"'{own}' = '{own}'")
        if not is_remote():
            kept.append(unlike.unpersist)
            return unlike.persist()
        catalog, name = frame.sparkSession.catalog, f"cached_{_process()}_{own}"
        unlike.createGlobalTempView(name)
        kept.append(lambda: catalog.dropGlobalTempView(name))
        catalog.cacheTable(f"{_SHARED}.{name}")
        return frame.sparkSession.table(f"{_SHARED}.{name}")

    try:
        yield cache
    finally:
        for release in kept:
            # If the engine is gone, that is what is to be told, and not this.
            with suppress(PySparkException, Py4JError, OSError):
                release()


def release_left(session: SparkSession) -> list[str]:
    """Release the frames of processes of this machine that are gone.

    Args:
        session: any session of the server.

    Returns:
        The names of the frames.
    """
    views = session.sql(f"SHOW VIEWS IN {_SHARED} LIKE 'cached_*'").collect()
    left = [view["viewName"] for view in views if _is_left(view["viewName"])]
    for name in left:
        session.catalog.dropGlobalTempView(name)
    return left


def _is_left(name: str) -> bool:
    made = _NAME.fullmatch(name)
    return (
        made is not None
        and made["host"] == _host()
        and process_start(int(made["pid"])) != made["began"]
    )


def _process() -> str:
    return f"{_host()}_{os.getpid()}_{process_start(os.getpid())}"


def _host() -> str:
    return sha256(socket.gethostname().encode()).hexdigest()[:12]
