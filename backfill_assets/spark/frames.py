"""DataFrames: created from rows of this process, observed, and cached until a block ends."""

import os
import re
import socket
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from decimal import Context, localcontext
from hashlib import sha256
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.utils import is_remote

from backfill_assets.spark.processes import process_start_time


def create_frame(
    spark: SparkSession, struct: T.StructType, rows: Iterable[Sequence[Any]] = ()
) -> DataFrame:
    """A frame of a few rows.

    From rows, even from none, Spark creates a frame with Python processes on its executors: a
    second on each of them, and a cluster may have no executors yet. From Arrow it does not.
    """
    dicts = [dict(zip(struct.names, map(_to_utc, row), strict=True)) for row in rows]
    table = pa.Table.from_pylist(dicts, schema=to_arrow_schema(struct, timezone="UTC"))
    return spark.createDataFrame(table, struct)


#: The column of a result with the part of a row, of tables with a second dimension.
PART = "_part"


def part_key(column: str) -> list[Column]:
    """What to group by besides, so that each part has rows of its own; nothing without a column."""
    return [F.col(column).alias(PART)] if column else []


def split_by_part(rows: Iterable[Row]) -> dict[str | None, list[Row]]:
    """Rows by the part that `part_key` has given them; without one, all are of the part ''."""
    by_part: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        by_part[row[PART] if PART in row.__fields__ else ""].append(row)
    return by_part


def exact_sums() -> AbstractContextManager[Context]:
    """A context for sums of Spark's decimals in Python, which rounds to 28 digits by default."""
    return localcontext(prec=76)


def _to_utc(value: Any) -> Any:
    """A time in UTC: pandera turns off Arrow's handling of offsets for the whole process."""
    is_aware = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone(timezone.utc) if is_aware else value


def quote_name(name: str) -> str:
    """The name of a column in SQL, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


#: At most so many rows are few: a step that reads them has the session for few rows.
SMALL_DATA_ROWS = 250_000
#: Spark's settings of a query's partitions.
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
ADAPTIVE_EXECUTION = "spark.sql.adaptive.enabled"
#: Few rows need one partition. Then adaptive execution, which plans each stage anew and runs it as
#: a job of its own, only costs time.
SMALL_DATA_CONF = {SHUFFLE_PARTITIONS: "1", ADAPTIVE_EXECUTION: "false"}


def gather_rows(rows: DataFrame, *columns: str) -> DataFrame:
    """The rows, with those of the same values of columns in few Spark partitions and files."""
    conf = rows.sparkSession.conf
    if all(conf.get(name) == value for name, value in SMALL_DATA_CONF.items()):
        return rows.coalesce(1)  # Spark ignores the hint without adaptive execution
    return rows.hint("rebalance", *columns)


def read_observation(observation: Observation, seconds: float = 60) -> dict[str, Any]:
    """The values that Spark observed of a frame whose action has ended, by name.

    They come by Spark's event bus, which may drop events, and `Observation.get` then waits for
    ever.

    Raises:
        TimeoutError: no values in `seconds`.
    """
    results: SimpleQueue[dict[str, Any]] = SimpleQueue()
    Thread(target=lambda: results.put(observation.get), daemon=True).start()
    try:
        return results.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"Spark did not report what was written in {seconds:.0f} s") from None


Cache = Callable[[DataFrame], DataFrame]

#: Spark's database of views that all sessions see.
_GLOBAL_VIEWS = "global_temp"
_VIEW_NAME = re.compile(r"cached_(?P<host>[0-9a-f]{12})_(?P<pid>\d+)_(?P<began>\d+)_[0-9a-f]{32}")


@contextmanager
def cache_frames() -> Iterator[Cache]:
    """Gives a function that caches the rows of computed frames until the block ends.

    A server keeps cached rows for as long as it runs. There, the frames get a name that contains
    the process, so that others can release the frames of a killed process.
    """
    releases: list[Callable[[], object]] = []

    def cache_frame(frame: DataFrame) -> DataFrame:
        """The frame to use instead: its rows are cached when Spark first computes them."""
        # Spark caches rows by plan, for all sessions of a server: without a unique part in the
        # plan, rows that a killed run had cached would be used for a file that was fixed since.
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
            # If the engine is gone, report that error, not this one.
            with suppress(PySparkException, Py4JError, OSError):
                release()


#: How long the end of a run waits until its frames are released.
_RELEASE_SECONDS = 10.0
#: Returns the cached frame of a key; the function computes it if no step of the run has done so.
Share = Callable[[Hashable, Callable[[], DataFrame]], DataFrame]


class SharedFrames:
    """Cached frames that several steps of a run read; they are released when the run ends."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks: dict[str, ExitStack] = defaultdict(ExitStack)
        self._frames: dict[tuple[str, Hashable], DataFrame] = {}

    def share(self, run_id: str, key: Hashable, compute: Callable[[], DataFrame]) -> DataFrame:
        """Return the frame of a key, which is computed for the first step of a run that needs it.

        Spark computes each partition of it once, also if several steps read it at the same time.
        """
        with self._lock:
            if (run_id, key) not in self._frames:
                cache = self._blocks[run_id].enter_context(cache_frames())
                self._frames[run_id, key] = cache(compute())
            return self._frames[run_id, key]

    def release(self, run_id: str) -> None:
        """Release the frames of a run, without waiting for an engine that does not answer."""
        with self._lock:
            block = self._blocks.pop(run_id, None)
            for run_key in [run_key for run_key in self._frames if run_key[0] == run_id]:
                del self._frames[run_key]
        if block is not None:
            # The engine may be gone, and Spark's client would retry for ten minutes.
            releasing = Thread(target=block.close, daemon=True)
            releasing.start()
            releasing.join(_RELEASE_SECONDS)


def release_orphaned_frames(session: SparkSession) -> list[str]:
    """Release the cached frames of dead processes of this machine, and return their names.

    Any session of the server can do that.
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
