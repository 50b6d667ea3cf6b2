"""DataFrames: made from rows of this process, observed, and cached until a block ends."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from hashlib import sha256
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.utils import is_remote

from backfill_assets.spark.processes import process_start_time


def create_frame(
    spark: SparkSession, struct: T.StructType, rows: Iterable[Sequence[Any]] = ()
) -> DataFrame:
    """A frame of a few rows.

    From rows, even from none, Spark itself makes a frame by a process of Python's on its executors:
    a second on each of them, and there may be none on a cluster. From Arrow it does not.

    Args:
        spark: the session.
        struct: the columns.
        rows: their values, row by row.
    """
    dicts = [dict(zip(struct.names, map(_to_utc, row), strict=True)) for row in rows]
    table = pa.Table.from_pylist(dicts, schema=to_arrow_schema(struct, timezone="UTC"))
    return spark.createDataFrame(table, struct)


def _to_utc(value: Any) -> Any:
    """A time as it is in UTC: pandera turns Arrow's sense for offsets off, for all of a process."""
    is_aware = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone(timezone.utc) if is_aware else value


def read_observation(observation: Observation, seconds: float = 60) -> dict[str, Any]:
    """What Spark has observed of a frame whose action has ended, by name.

    Args:
        observation: as `DataFrame.observe` took it.
        seconds: how long to wait: Spark tells it by way of its event bus, which may drop events,
            and `Observation.get` waits for ever then.

    Raises:
        TimeoutError: Spark has not told it.
    """
    results: SimpleQueue[dict[str, Any]] = SimpleQueue()
    Thread(target=lambda: results.put(observation.get), daemon=True).start()
    try:
        return results.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"Spark did not report what was written in {seconds:.0f} s") from None


Cache = Callable[[DataFrame], DataFrame]

#: Where Spark keeps views that all sessions see.
_GLOBAL_VIEWS = "global_temp"
_VIEW_NAME = re.compile(r"cached_(?P<host>[0-9a-f]{12})_(?P<pid>\d+)_(?P<began>\d+)_[0-9a-f]{32}")


@contextmanager
def caching() -> Iterator[Cache]:
    """Gives a function that caches a frame's rows once they are computed, until the end.

    A server keeps the rows for as long as it runs, whoever asked for them. There, they have a name
    that tells which process did, so that others can release what a killed one left.
    """
    releases: list[Callable[[], object]] = []

    def cache_frame(frame: DataFrame) -> DataFrame:
        # Spark keeps rows by the plan, for all sessions of a server: without something of its own
        # in the plan, what a killed run had kept would be taken for a file that was mended since.
        token = uuid4().hex
        distinct = frame.where(f"'{token}' = '{token}'")
        if not is_remote():
            releases.append(distinct.unpersist)
            return distinct.persist()
        catalog, name = frame.sparkSession.catalog, f"cached_{_process_key()}_{token}"
        distinct.createGlobalTempView(name)
        releases.append(lambda: catalog.dropGlobalTempView(name))
        catalog.cacheTable(f"{_GLOBAL_VIEWS}.{name}")
        return frame.sparkSession.table(f"{_GLOBAL_VIEWS}.{name}")

    try:
        yield cache_frame
    finally:
        for release in releases:
            # If the engine is gone, that is what is to be told, and not this.
            with suppress(PySparkException, Py4JError, OSError):
                release()


def release_orphaned_frames(session: SparkSession) -> list[str]:
    """Release the frames of processes of this machine that are gone.

    Args:
        session: any session of the server.

    Returns:
        The names of the frames.
    """
    views = session.sql(f"SHOW VIEWS IN {_GLOBAL_VIEWS} LIKE 'cached_*'").collect()
    orphaned = [view["viewName"] for view in views if _is_orphaned(view["viewName"])]
    for name in orphaned:
        session.catalog.dropGlobalTempView(name)
    return orphaned


def _is_orphaned(name: str) -> bool:
    match = _VIEW_NAME.fullmatch(name)
    return (
        match is not None
        and match["host"] == _host_digest()
        and process_start_time(int(match["pid"])) != match["began"]
    )


def _process_key() -> str:
    return f"{_host_digest()}_{os.getpid()}_{process_start_time(os.getpid())}"


def _host_digest() -> str:
    return sha256(socket.gethostname().encode()).hexdigest()[:12]
