"""The Spark session: embedded or a Spark Connect server, and its configuration.

Only this module knows how a session comes to be; everyone else is handed one.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

import grpc  # type: ignore[import-untyped]
from dagster_pyspark import LazyPySparkResource
from dagster_pyspark.resources import spark_session_from_config
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.engine.class_archive import with_archive
from backfill_assets.engine.jars import (
    EngineError,
    check_java,
    fetch_delta_jars,
    jars_of_session,
    spark_home,
    with_local_files,
)
from backfill_assets.engine.sharing import (
    interrupt_at_exit,
    is_shared,
    leave_if_closed,
    number_plans_apart,
    session_url,
)
from backfill_assets.settings import PINNED, Settings, is_secret, may_decide_rows

#: What a failing Spark call raises: a failing task comes as a bare Java error when embedded.
SPARK_ERRORS = (PySparkException, Py4JError)

#: Settings of a session that can be changed while it runs; a Connect session gets these alone.
_RUNTIME = {
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
    # What is persisted is read twice and dropped: packing it costs more than it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
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


def spark_config(settings: Settings) -> dict[str, Any]:
    """The session's configuration: defaults for a small machine, then the deployment's own.

    `snapshotPartitions` and `shuffle.partitions` are 50 and 200 out of the box; on two cores a
    small Delta commit then takes 11 to 19 s instead of 2 s.
    """
    if settings.spark_remote:
        # The master is the server's affair, and Spark refuses to be told both.
        own = {name: x for name, x in settings.spark_conf.items() if name != "spark.master"}
        return {"spark.remote": settings.spark_remote, **_RUNTIME, **own}
    return with_local_files(
        {
            "spark.master": settings.spark_master,
            "spark.app.name": "backfill_assets",
            "spark.jars": jars_of_session(settings.jars),
            **static_config(),
            **_RUNTIME,
            **settings.spark_conf,
        }
    )


def static_config() -> dict[str, str]:
    """What must be set before the JVM starts, embedded or as a Connect server."""
    return {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        # A run of all tables compiles some 300 classes, and Spark keeps 100: none was used twice.
        "spark.sql.codegen.cache.maxEntries": "5000",
        "spark.driver.memory": "3g",
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "127.0.0.1",
        # Partition values of the past followed the JVM's zone, not the session's.
        "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC {_collector()}".strip(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }


def _collector() -> str:
    """Java's parallel collector, which on few cores costs a tenth less than its usual one.

    A JVM that is given two does not start.
    """
    given = " ".join(os.environ.get(name, "") for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"))
    return "" if re.search(r"-XX:\+Use\w+GC", given) else "-XX:+UseParallelGC"


def connect_server_command(settings: Settings, port: int) -> list[str]:
    """The command of a Spark Connect server with Delta, on loopback.

    The pip package has no start script for it; `spark-submit` runs the class.
    """
    conf = {
        **static_config(),
        "spark.master": settings.spark_master,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        # The runs of a deployment share a session, which is to outlast a quiet weekend.
        "spark.connect.session.manager.defaultSessionTimeout": "7d",
        "spark.jars": jars_of_session(settings.jars),
        **settings.spark_conf,
    }
    conf = with_archive(with_local_files(conf), settings.jars)
    return [
        str(spark_home() / "bin" / "spark-submit"),
        *(word for key, value in conf.items() for word in ("--conf", f"{key}={value}")),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
    ]


#: A server that has not taken the connection after so many seconds does not answer. (Spark's own
#: client goes on for more than ten minutes.)
_PATIENCE = 15.0

#: So many sessions that were closed does a server of Spark's remember.
_MOST_CLOSED = 1000

#: Values that Dagster must not see, by what stands for them: it shows a resource's configuration
#: in the UI and stores it with every run. Each process fills this from its own environment.
_hidden: dict[str, str] = {}


def _hide(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with a stand-in for each secret value."""
    shown = dict(config)
    for name, value in config.items():
        if is_secret(name) or (name == "spark.remote" and is_secret(value)):
            shown[name] = f"hidden-{hashlib.sha256(value.encode()).hexdigest()[:8]}"
            _hidden[shown[name]] = value
    return shown


def _reveal(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _hidden.get(str(value), value) for name, value in config.items()}


class Engine(LazyPySparkResource):
    """dagster-pyspark's lazy session, after a look at what usually prevents one.

    Attributes:
        jars: where the Delta jars are kept, and fetched to when they are missing.
    """

    jars: str

    @classmethod
    def of(cls, settings: Settings) -> Engine:
        """The engine that the settings ask for; nothing is started yet."""
        return cls(spark_config=_hide(spark_config(settings)), jars=str(settings.jars))

    @property
    def spark_session(self) -> SparkSession:
        """The session of this process, started when it is first asked for.

        Raises:
            EngineError: no Java, no jars and no way to get them, or no answer from the server.
        """
        # Steps that run at the same time ask for it at the same time.
        with _starting:
            if self._spark_session is None:
                self._start()
            session: SparkSession = super().spark_session
        if is_shared(_reveal(self.spark_config).get("spark.remote", "")):
            interrupt_at_exit(session)
        return session

    def _start(self) -> None:
        if "spark.remote" in self.spark_config:
            self._connect()
            return
        check_java()
        if not self.spark_config["spark.jars"]:
            fetch_delta_jars(Path(self.jars))
            self.spark_config["spark.jars"] = jars_of_session(Path(self.jars))
            self.spark_config.update(with_local_files(self.spark_config))
        self.spark_config.update(with_archive(self.spark_config, Path(self.jars)))
        if not os.environ.get("SPARK_REMOTE"):
            # To Spark an empty variable is a server without a name; to us it is none.
            os.environ.pop("SPARK_REMOTE", None)

    def _init_session(self) -> None:
        if self._spark_session is None:
            config = _reveal(self.spark_config)
            if "spark.remote" in config:
                session = _attached(config)
                _refuse_other_server(session, config)
            else:
                session = spark_session_from_config(config)
            self._spark_session = session

    def _connect(self) -> None:
        url = _reveal(self.spark_config)["spark.remote"]
        shown = _shown(url)
        try:
            _await_server(url)
            self._init_session()
        except (PySparkException, grpc.RpcError, grpc.FutureTimeoutError) as error:
            told = str(error) or f"no connection within {_PATIENCE:g} s"
            details = re.search(r'details = "(.*)"', told)  # what gRPC itself says, further down
            said = details[1] if details else told.splitlines()[0]
            raise EngineError(
                f"the Spark Connect server at SPARK_REMOTE={shown} does not answer "
                f"({said.replace(url, shown)[:200]}): start it, or unset SPARK_REMOTE to use the "
                "embedded session."
            ) from None


def _attached(config: Mapping[str, Any]) -> SparkSession:
    """A session of the server: the one that the URL names, or the first after it that is open."""
    shared = is_shared(config["spark.remote"])
    if shared:
        number_plans_apart()
    for closed in count():
        url = session_url(config, closed)
        try:
            session: SparkSession = spark_session_from_config({**config, "spark.remote": url})
        except PySparkException as error:
            if not (shared and closed < _MOST_CLOSED and leave_if_closed(error)):
                raise
        else:
            break
    return session


def _shown(url: str) -> str:
    return re.sub(r"token=[^;]+", "token=***", url)


def _refuse_other_server(session: SparkSession, config: Mapping[str, str]) -> None:
    """Refuse a server that would not compute what the configuration says.

    Raises:
        EngineError: another minor version of Spark, or a setting that decides rows and that the
            server does not let a session change.
    """
    where = f"the Spark Connect server at SPARK_REMOTE={_shown(config['spark.remote'])}"
    here, there = version("pyspark"), session.version
    if here.split(".")[:2] != there.split(".")[:2]:
        raise EngineError(
            f"{where} runs Spark {there}, and pyspark here is {here}: they may compute other rows. "
            "Give the two the same minor version; nothing was written."
        )
    unlike = []
    for name, wanted in config.items():
        if may_decide_rows(name):
            found = session.conf.get(name, None)
            if str(found).lower() != str(wanted).lower():
                values = "" if is_secret(name) else f" ({found} and not {wanted})"
                unlike.append(f"{name}{values}")
    if unlike:
        raise EngineError(
            f"{where} runs with other settings than it must, and a session cannot change them: "
            f"{'; '.join(unlike)}. Set them where the server is started; nothing was written."
        )


def _await_server(url: str) -> None:
    """Wait for the server to take a connection, but not as long as Spark's client would.

    Raises:
        grpc.FutureTimeoutError: it did not.
    """
    from pyspark.sql.connect.client import DefaultChannelBuilder

    channel = DefaultChannelBuilder(url).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=_PATIENCE)
    finally:
        channel.close()


#: Held while a session is started.
_starting = Lock()

Cache = Callable[[DataFrame], DataFrame]


@contextmanager
def caching() -> Iterator[Cache]:
    """Gives a function that caches a frame's rows once they are computed, until the end."""
    kept: list[DataFrame] = []

    def cache(frame: DataFrame) -> DataFrame:
        # Spark keeps rows by the plan, for all sessions of a server: without something of its own
        # in the plan, what a killed run had kept would be taken for a file that was mended since.
        own = uuid4().hex
        kept.append(frame.where(f"'{own}' = '{own}'").persist())
        return kept[-1]

    try:
        yield cache
    finally:
        for frame in kept:
            # If the engine is gone, that is what is to be told, and not this.
            with suppress(*SPARK_ERRORS, OSError):
                frame.unpersist()
