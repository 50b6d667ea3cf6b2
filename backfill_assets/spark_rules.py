"""What holds for settings of Spark: which must be so, which decide rows, which are secret."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

#: What a session must run with, whoever asks for something else: otherwise files are left out, or
#: timestamps read otherwise, and nothing says so.
PINNED = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.session.timeZone": "UTC",
}
#: Spark's settings of how a query is run and how files are laid out, which change no row. What
#: ends in a dot stands for all that begins so.
_TUNING = (
    "spark.databricks.delta.autoCompact.",
    "spark.databricks.delta.checkpoint.partSize",
    "spark.databricks.delta.optimize.",
    "spark.databricks.delta.optimizeWrite.",
    "spark.databricks.delta.snapshotPartitions",
    "spark.databricks.delta.vacuum.parallelDelete.enabled",
    "spark.sql.adaptive.",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.broadcastTimeout",
    "spark.sql.codegen.",
    "spark.sql.debug.maxToStringFields",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.maxPartitionNum",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.openCostInBytes",
    "spark.sql.inMemoryColumnarStorage.",
    "spark.sql.join.preferSortMergeJoin",
    "spark.sql.maxPlanStringLength",
    "spark.sql.parquet.columnarReaderBatchSize",
    "spark.sql.parquet.compression.codec",
    "spark.sql.shuffle.partitions",
    "spark.sql.sources.parallelPartitionDiscovery.",
    "spark.sql.ui.",
    "spark.sql.warehouse.dir",
)


def may_decide_rows(name: str) -> bool:
    """Whether a setting of Spark may change what a query gives: all of SQL's that do not tune."""
    if not name.startswith(("spark.sql.", "spark.databricks.")):
        return False
    return not any(
        name.startswith(known) if known.endswith(".") else name == known for known in _TUNING
    )


def check_spark_conf(conf: Mapping[str, str]) -> None:
    """Refuse settings of Spark's under which rows would be lost, or a JVM would not start.

    Raises:
        ValueError: naming the setting and the rule.
    """
    for name, required in PINNED.items():
        if conf.get(name, required).lower() != required.lower():
            raise ValueError(
                f"{name} must be {required} or left out: with {conf[name]} rows would be lost "
                "or moved to other days in silence"
            )
    for name, options in conf.items():
        if name.endswith("JavaOptions"):
            try:
                words = shlex.split(options)
            except ValueError:
                raise ValueError(f"{name} has a quote that does not end") from None
            zones = {x.partition("=")[2] for x in words if x.startswith("-Duser.timezone=")}
            if zones - {"UTC"}:
                raise ValueError(f"{name} must leave -Duser.timezone out: it is UTC")


def is_secret(text: str) -> bool:
    """Whether a text, such as the name of a Spark setting, speaks of something to keep secret."""
    words = r"secret|token|password|passwd|credential|key|webhook"
    return re.search(rf"{words}|://[^/\s]*:[^/\s]*@", text, re.I) is not None
