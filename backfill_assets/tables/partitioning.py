"""What a table may be partitioned by: whole days, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandera.pyspark as pa
import pyspark.sql.types as T

#: Why a table has one partition column, and that is a day; and what to do about others.
WHOLE_DAYS = (
    "A run publishes whole days: one commit replaces a day of a table, for all regions, shops and "
    "hours of it. Partition it by day alone, and put the others into the model's key"
)


def wrong_partition(model: type[pa.DataFrameModel], metadata: Mapping[str, Any]) -> list[str]:
    """What keeps a table from being partitioned as its model says, in a sentence; or nothing."""
    partition = metadata.get("partition")
    if not isinstance(partition, str):
        return [
            f'the model\'s metadata has "partition": {partition!r}, not one column. {WHOLE_DAYS}'
        ]
    column = model.to_schema().columns.get(partition)
    if column is None:
        return [f'the model has no column {partition}, which its metadata has as "partition"']
    if not isinstance(column.dtype.type, T.DateType):
        kind = column.dtype.type.simpleString()
        return [f"the partition column {partition} is a {kind}, not a date. {WHOLE_DAYS}"]
    return []
