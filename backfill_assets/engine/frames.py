"""Rows of this process as frames of Spark's, without Python where Spark computes; and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema


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
