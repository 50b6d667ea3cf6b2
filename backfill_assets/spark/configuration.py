"""The settings of Spark: of an embedded session, of a Connect server, and of its sessions."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backfill_assets.runtime_versions import PINNED
from backfill_assets.settings import Settings
from backfill_assets.spark.frames import SHUFFLE_PARTITIONS, SMALL_DATA_CONF
from backfill_assets.spark.jars import raise_if_unknown_jars, with_jars
from backfill_assets.spark.jvm_launch import ScratchDir, submit_options, with_class_archive
from backfill_assets.spark.processes import is_local, spark_home
from backfill_assets.spark.stores import ObjectStore, store_of, store_types

#: Settings that a running session can change; a Connect session gets only these.
_RUNTIME_CONF = {
    # Days come from explicit zone conversion; the session itself must not shift a timestamp. And a
    # file that cannot be read is an error, never skipped.
    **PINNED,
    # Spark's own defaults, which a server may override.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    SHUFFLE_PARTITIONS: "8",
    # INT96, Spark's default, has no statistics, and other readers drop it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # pandas writes nanoseconds, which Spark refuses to read; as integers they can be converted.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    # A partition's value is the text in its folder's name: shop=007 is not shop 7.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    # Persisted rows are read twice and dropped: compression costs more than it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # Rows of a column that a reader holds at once; by default 4,096, however long they are. With
    # lines of a megabyte that exceeds an engine's memory. Short lines are read as fast.
    "spark.sql.parquet.columnarReaderBatchSize": "128",
    # With columnar input, a UDF that a function creates hangs for ever (SPARK-58241, Spark 4.2.0).
    "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false",
    # The JVM never compiles a longer method; Spark's own limit is eight times as much.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # A day that was and stays empty is published with a record, like any other.
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
    # The driver lists a day's folder already; a few hundred files need no job.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    # VACUUM lists a table's folders with 10,000 tasks by default: 93 seconds for 13 folders.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
    # Delta refuses a version older than the retention time, even if its files were replaced only
    # now and still exist. A deleted file is an error anyway.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}


#: The settings with which Spark knows Delta's tables.
DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
#: For a driver that is its own executor: not reachable from other machines.
_LOOPBACK_CONF = {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
#: A path without a scheme is a local one, whatever HADOOP_CONF_DIR says.
_LOCAL_PATHS_CONF = {"spark.hadoop.fs.defaultFS": "file:///"}
#: Spark's own catalog is a Hive metastore then; else it ends with the engine.
_METASTORE_CONF = {"spark.sql.catalogImplementation": "hive"}
#: Masters that pass files from driver to executors through the default file system.
_STAGING_MASTERS = ("yarn", "k8s:")
#: Options of a JVM, which are appended to ours.
_JAVA_OPTION_SETTINGS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
#: Old partition values depend on the JVM's time zone, not the session's.
_UTC_OPTION = "-Duser.timezone=UTC"
#: A JVM that is out of memory may go on without some of its threads.
_OUT_OF_MEMORY_OPTION = "-XX:+ExitOnOutOfMemoryError"
#: A driver listens at two ports that any user of the machine can reach: require a secret. Without
#: remote executors Spark generates one that nobody else has.
_AUTHENTICATION_CONF = {"spark.authenticate": "true"}


def spark_config(settings: Settings) -> dict[str, Any]:
    """The session's configuration: defaults for a small machine, then the deployment's own.

    By default `snapshotPartitions` and `shuffle.partitions` are 50 and 200; on two cores a small
    Delta commit then takes 11 to 19 s instead of 2 s.
    """
    if settings.spark_remote:
        return {"spark.remote": settings.spark_remote, **session_config(settings)}
    return _driver_config(settings, _RUNTIME_CONF)


def session_config(settings: Settings) -> dict[str, Any]:
    """The settings of a session whose driver somebody else has started.

    Without the master, which the driver has: Spark refuses it together with a server's URL.
    """
    deployment_conf = {
        name: value for name, value in settings.spark_conf.items() if name != "spark.master"
    }
    return {**_RUNTIME_CONF, **deployment_conf}


def small_data_config(settings: Settings) -> dict[str, str]:
    """The settings of the session for few rows that differ; none if a deployment has set one."""
    return {} if SMALL_DATA_CONF.keys() & settings.spark_conf.keys() else dict(SMALL_DATA_CONF)


def used_stores(settings: Settings) -> list[type[ObjectStore]]:
    """The kinds of object stores that landing and warehouse lie on."""
    return store_types((settings.landing, settings.warehouse))


def connect_server_command(
    settings: Settings, port: int, folder: Path, scratch: ScratchDir | None = None
) -> list[str]:
    """The command of a Spark Connect server with Delta, on loopback.

    The pip package has no start script for it; `spark-submit` runs the class. The folder takes the
    files of Spark's settings, which are read at each start; without `scratch`, Spark chooses its
    local folder.

    Raises:
        EngineError: a jar in the cache is not the published one.
    """
    server_conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        # The runs of a deployment share a session, which must outlast a weekend without runs.
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
    """The settings that must be set before the JVM starts, embedded or as a Connect server."""
    return {
        **DELTA_CONF,
        "spark.databricks.delta.snapshotPartitions": "2",
        # A run of all tables compiles some 300 classes, and Spark caches 100: none was used twice.
        "spark.sql.codegen.cache.maxEntries": "5000",
        # Each call of PySpark would look for IPython, and tell the JVM its line of source code:
        # half of what a step sends to the JVM. Our errors take the line from Python's traceback.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": (
            f"{_UTC_OPTION} {_OUT_OF_MEMORY_OPTION} {_collector_option(java_options)}"
        ).strip(),
        "spark.executor.extraJavaOptions": _UTC_OPTION,
        # For Python on executors, which converts times by it.
        "spark.executorEnv.TZ": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }


def _driver_config(settings: Settings, extra: Mapping[str, str]) -> dict[str, Any]:
    """The configuration of a driver on this machine: ours, then the deployment's; jars; stores."""
    deployment_conf = settings.spark_conf
    master = master_url(settings)
    config = {
        "spark.master": master,
        "spark.app.name": "backfill_assets",
        **static_config(deployment_conf.get("spark.driver.extraJavaOptions", "")),
        **(_LOOPBACK_CONF if is_local(master) else {}),
        **({} if master.startswith(_STAGING_MASTERS) else _LOCAL_PATHS_CONF),
        **(_METASTORE_CONF if (settings.catalog or "").startswith("spark_catalog.") else {}),
        **extra,
    }
    added = {
        name: f"{config[name]} {deployment_conf[name]}"
        for name in _JAVA_OPTION_SETTINGS
        if name in deployment_conf
    }
    config = {**config, **deployment_conf, **added}
    for store in filter(None, map(store_of, (settings.landing, settings.warehouse))):
        config = store.with_spark_conf(config)
    return with_jars(config, settings.jars)


def master_url(settings: Settings) -> str:
    """The master URL of a driver that this package starts."""
    return settings.spark_conf.get("spark.master", settings.spark_master)


def _collector_option(java_options: str) -> str:
    """Java's parallel collector, which on few cores costs a tenth less than the default; or none.

    A JVM with two collectors does not start.
    """
    environment_options = (
        os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
    )
    chosen = re.search(r"-XX:\+Use\w+GC", " ".join((java_options, *environment_options)))
    return "" if chosen else "-XX:+UseParallelGC"
