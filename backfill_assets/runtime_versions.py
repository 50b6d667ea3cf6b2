"""What decides rows besides code: versions of engine and time-zone data, and settings of Spark."""

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@cache
def package_version() -> str:
    """The release of this package; empty if it is not installed."""
    try:
        return version("backfill-assets")
    except PackageNotFoundError:
        return ""


@cache
def engine_versions() -> dict[str, str]:
    """The versions of Spark and Delta, by package."""
    return {name: version(name) for name in ("pyspark", "delta-spark")}


def time_zone_data() -> str:
    """The version of the time-zone data that business days depend on, such as `2025a`.

    From the Java that Spark runs on here; without Java, from the Python package.
    """
    java = shutil.which("java")
    java_home = os.environ.get("JAVA_HOME") or (java and str(Path(java).resolve().parent.parent))
    if java_home and (java_data := _java_time_zones(Path(java_home, "lib", "tzdb.dat"))):
        return java_data
    try:
        return version("tzdata")
    except PackageNotFoundError:
        return "unknown"


def _java_time_zones(path: Path) -> str:
    """The version in the header of Java's time-zone file; empty if it cannot be read.

    The header is a byte 1, the text `TZDB`, the number of versions, and the first version as text;
    each text follows its length in two bytes.
    """
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError:
        return ""
    if head[:7] != b"\x01\x00\x04TZDB":
        return ""
    return head[11 : 11 + int.from_bytes(head[9:11], "big")].decode("ascii", "replace")


#: Spark's setting of the zone of local times in a session.
SESSION_ZONE = "spark.sql.session.timeZone"
#: Settings that no session may change: otherwise files are skipped, or timestamps read differently,
#: without an error.
PINNED = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    SESSION_ZONE: "UTC",
}
#: Spark settings for the execution of queries and the layout of files, which change no row. A name
#: that ends in a dot stands for all names with this prefix.
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
    "spark.sql.catalog.",
    "spark.sql.catalogImplementation",
    "spark.sql.codegen.",
    "spark.sql.debug.maxToStringFields",
    "spark.sql.execution.arrow.maxRecordsPerBatch",
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.maxPartitionNum",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.openCostInBytes",
    "spark.sql.hive.metastore.",
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
    """Whether a Spark setting may change a query's result: all of SQL's except tuning."""
    if not name.startswith(("spark.sql.", "spark.databricks.")):
        return False
    return not any(
        name.startswith(known) if known.endswith(".") else name == known for known in _TUNING
    )


def check_spark_conf(conf: Mapping[str, str]) -> None:
    """Raise if Spark settings would lose rows, or prevent the start of a JVM.

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
    """Whether a text, such as the name of a Spark setting, suggests a secret."""
    words = r"secret|token|password|passwd|credential|key|webhook"
    return re.search(rf"{words}|://[^/\s]*:[^/\s]*@", text, re.I) is not None
