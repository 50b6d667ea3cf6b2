"""The settings of Spark: of an embedded session, of a Connect server, and of its sessions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backfill_assets.runtime_versions import PINNED
from backfill_assets.settings import Settings
from backfill_assets.spark.filesystems import S3, on_s3
from backfill_assets.spark.jars import raise_if_unknown_jars, with_jars
from backfill_assets.spark.jvm_launch import ScratchDir, submit_options, with_class_archive
from backfill_assets.spark.processes import is_local, spark_home

#: Settings of a session that can be changed while it runs; a Connect session gets these alone.
_RUNTIME_CONF = {
    # Days are cut by explicit zone conversion; the session itself must not move a timestamp. And
    # a file that cannot be read is an error, never left out.
    **PINNED,
    # Spark's own defaults, which a server may have been started without.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.shuffle.partitions": "8",
    # INT96, which Spark still writes by itself, has no statistics and other readers drop it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # pandas writes nanoseconds, which Spark refuses; as integers they can be converted.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    # The value of a partition is the text that its folder has: shop=007 is not shop 7.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # What is persisted is read twice and dropped: packing it costs more than it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # A reader holds so many rows of a column at once, 4,096 unless told, however long they are; of
    # lines of a megabyte that is more than an engine has. Short ones are read no slower.
    "spark.sql.parquet.columnarReaderBatchSize": "128",
    # With columns handed to a Python worker as they are, a UDF that a function makes hangs for ever
    # (SPARK-58241, Spark 4.2.0).
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
    # A longer method than this the JVM never compiles; Spark's own limit is eight times as much.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # A day that was empty and stays empty is a publication like any other, with its record.
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
    # A day's folder is listed by the driver already; no job to list a few hundred files.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    # VACUUM lists a table's folders with 10,000 tasks unless told: 93 seconds for 13 folders.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
    # Delta refuses any version but the latest that was written longer ago than files are kept, even
    # if its files were replaced only now and are all there. A file that is gone is an error anyway.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}


#: What Spark must be told to know Delta's tables.
DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
#: What holds where the driver is its own executor: nobody else is to find it.
_LOOPBACK_CONF = {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
#: A path without a scheme is one of the machines', whatever HADOOP_CONF_DIR says.
_LOCAL_PATHS_CONF = {"spark.hadoop.fs.defaultFS": "file:///"}
#: Masters that hand on what a driver gives its executors by the default file system.
_STAGING_MASTERS = ("yarn", "k8s:")
#: Options of a JVM, which are added to ours rather than replacing them.
_JAVA_OPTION_SETTINGS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
#: Partition values of the past followed the JVM's zone, not the session's.
_UTC_OPTION = "-Duser.timezone=UTC"
#: A JVM that has run out of memory may go on without some of its threads.
_OUT_OF_MEMORY_OPTION = "-XX:+ExitOnOutOfMemoryError"
#: A driver listens at two ports of Spark's own, for any user of the machine: with a secret. Without
#: executors elsewhere it makes one up, and nobody else has it.
_AUTHENTICATION_CONF = {"spark.authenticate": "true"}


def spark_config(settings: Settings) -> dict[str, Any]:
    """The session's configuration: defaults for a small machine, then the deployment's own.

    `snapshotPartitions` and `shuffle.partitions` are 50 and 200 out of the box; on two cores a
    small Delta commit then takes 11 to 19 s instead of 2 s.
    """
    if settings.spark_remote:
        # The master is the server's affair, and Spark refuses to be told both.
        deployment_conf = {
            name: value for name, value in settings.spark_conf.items() if name != "spark.master"
        }
        return {"spark.remote": settings.spark_remote, **_RUNTIME_CONF, **deployment_conf}
    return _driver_config(settings, _RUNTIME_CONF)


def uses_s3(settings: Settings) -> bool:
    """Whether landing or warehouse lie on S3."""
    return on_s3(settings.landing) or on_s3(settings.warehouse)


def connect_server_command(
    settings: Settings, port: int, folder: Path, scratch: ScratchDir | None = None
) -> list[str]:
    """The command of a Spark Connect server with Delta, on loopback.

    The pip package has no start script for it; `spark-submit` runs the class.

    Args:
        settings: the deployment's settings.
        port: where it serves.
        folder: takes the files of Spark's settings, which are read at each start.
        scratch: its folder for what does not fit into memory; Spark's own choice if not given.

    Raises:
        EngineError: a jar in the cache is not the published one.
    """
    server_conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        # The runs of a deployment share a session, which is to outlast a quiet weekend.
        "spark.connect.session.manager.defaultSessionTimeout": "7d",
    }
    if is_local(master_url(settings)):
        server_conf |= _AUTHENTICATION_CONF
    conf = _driver_config(settings, server_conf)
    raise_if_unknown_jars(conf, settings.jars)
    conf = scratch.with_local_dir(conf) if scratch else conf
    conf = with_class_archive(conf, settings.jars)
    return [
        str(spark_home() / "bin" / "spark-submit"),
        *submit_options(conf, folder),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
    ]


def static_config(java_options: str = "") -> dict[str, str]:
    """What must be set before the JVM starts, embedded or as a Connect server.

    Args:
        java_options: the options that the driver's JVM is given besides.
    """
    return {
        **DELTA_CONF,
        "spark.databricks.delta.snapshotPartitions": "2",
        # A run of all tables compiles some 300 classes, and Spark keeps 100: none was used twice.
        "spark.sql.codegen.cache.maxEntries": "5000",
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": (
            f"{_UTC_OPTION} {_OUT_OF_MEMORY_OPTION} {_collector_option(java_options)}"
        ).strip(),
        "spark.executor.extraJavaOptions": _UTC_OPTION,
        # Of Python on executors, which converts times by it.
        "spark.executorEnv.TZ": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }


def _driver_config(settings: Settings, extra: Mapping[str, str]) -> dict[str, Any]:
    """The configuration of a driver here: ours, then the deployment's; jars, and where S3 is.

    Args:
        settings: the deployment's settings.
        extra: what this driver has besides.
    """
    deployment_conf = settings.spark_conf
    master = master_url(settings)
    config = {
        "spark.master": master,
        "spark.app.name": "backfill_assets",
        **static_config(deployment_conf.get("spark.driver.extraJavaOptions", "")),
        **(_LOOPBACK_CONF if is_local(master) else {}),
        **({} if master.startswith(_STAGING_MASTERS) else _LOCAL_PATHS_CONF),
        **extra,
    }
    added = {
        name: f"{config[name]} {deployment_conf[name]}"
        for name in _JAVA_OPTION_SETTINGS
        if name in deployment_conf
    }
    config = {**config, **deployment_conf, **added}
    if uses_s3(settings):
        config = S3.from_environment().with_s3a_conf(config)
    return with_jars(config, settings.jars)


def master_url(settings: Settings) -> str:
    """The master URL of a driver that this package starts."""
    return settings.spark_conf.get("spark.master", settings.spark_master)


def _collector_option(java_options: str) -> str:
    """Java's parallel collector, which on few cores costs a tenth less than its usual one.

    A JVM that is given two does not start.
    """
    environment_options = (
        os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
    )
    chosen = re.search(r"-XX:\+Use\w+GC", " ".join((java_options, *environment_options)))
    return "" if chosen else "-XX:+UseParallelGC"
