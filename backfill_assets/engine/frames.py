"""Rows of this process as frames of Spark's, which need no Python where Spark computes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema


def frame_of(
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
    dicts = [dict(zip(struct.names, map(_in_utc, row), strict=True)) for row in rows]
    table = pa.Table.from_pylist(dicts, schema=to_arrow_schema(struct, timezone="UTC"))
    return spark.createDataFrame(table, struct)


def _in_utc(value: Any) -> Any:
    """A time as it is in UTC: pandera turns Arrow's sense for offsets off, for all of a process."""
    aware = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone(timezone.utc) if aware else value
