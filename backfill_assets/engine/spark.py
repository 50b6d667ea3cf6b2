"""The Spark session: embedded, or of a Spark Connect server.

Only this module knows how a session comes to be; everyone else is handed one. With what settings
is for `configuration`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import grpc  # type: ignore[import-untyped]
from dagster_pyspark import LazyPySparkResource
from dagster_pyspark.resources import spark_session_from_config
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pydantic import Field
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from backfill_assets.engine.class_archive import with_class_archive
from backfill_assets.engine.configuration import spark_config, uses_s3
from backfill_assets.engine.environment import is_local, jvm_options, use_jvm_environment
from backfill_assets.engine.jars import (
    EngineError,
    check_java,
    fetch_delta_jars,
    fetch_s3_jars,
    raise_if_unknown_jars,
    with_jars,
)
from backfill_assets.engine.listeners import channel_builder
from backfill_assets.engine.requirements import (
    hide_token,
    raise_if_incompatible,
    raise_if_unsafe_commits,
)
from backfill_assets.engine.scratch import ScratchDir
from backfill_assets.engine.sharing import (
    forget_closed_session,
    interrupt_at_exit,
    is_shared,
    randomize_plan_ids,
    session_url,
)
from backfill_assets.engine.submitting import start_driver
from backfill_assets.engine.task_times import build_task_times, watch_session
from backfill_assets.settings import PREFIX, Settings

#: What a failing Spark call raises: a failing task comes as a bare Java error when embedded.
SPARK_ERRORS = (PySparkException, Py4JError)

#: A server that has not taken the connection after so many seconds does not answer. (Spark's own
#: client goes on for more than ten minutes.)
_PATIENCE = 15.0

#: PySpark's name for a JVM that did not start.
_NO_JVM = "JAVA_GATEWAY_EXITED"

#: So many sessions that were closed does a server of Spark's remember.
_MAX_CLOSED_SESSIONS = 1000


def first_line(error: Exception) -> str:
    """Why Spark takes no expression, without the plan that it prints below."""
    return next(filter(None, map(str.strip, str(error).splitlines())), "no expression")


class Engine(LazyPySparkResource):
    """dagster-pyspark's lazy session, after a look at what usually prevents one.

    Attributes:
        spark_config: Spark's settings, some of which may be secrets.
        jars: where the Delta jars are kept, and fetched to when they are missing.
        uses_s3: whether landing or warehouse are there.
    """

    spark_config: dict[str, Any] = Field(repr=False)
    jars: str
    uses_s3: bool = False

    @classmethod
    def from_settings(cls, settings: Settings) -> Engine:
        """The engine that the settings ask for; nothing is started yet."""
        return cls(
            spark_config=spark_config(settings), jars=str(settings.jars), uses_s3=uses_s3(settings)
        )

    @property
    def spark_session(self) -> SparkSession:
        """The session of this process, started when it is first asked for.

        Raises:
            EngineError: no Java, no jars and no way to get them, or no answer from the server.
        """
        # Steps that run at the same time ask for it at the same time.
        with _session_lock:
            if self._spark_session is None:
                self._prepare_session()
            session: SparkSession = super().spark_session
        if is_shared(self.spark_config.get("spark.remote", "")):
            interrupt_at_exit(session)
        watch_session(session)
        return session

    @property
    def started_session(self) -> SparkSession | None:
        """The session of this process, if one was started."""
        return self._spark_session

    def _prepare_session(self) -> None:
        if "spark.remote" in self.spark_config:
            self._connect_server()
            return
        check_java()
        jar_cache = Path(self.jars)
        fetch_delta_jars(jar_cache)
        if self.uses_s3:
            fetch_s3_jars(jar_cache)
        build_task_times(jar_cache)
        self.spark_config.update(with_jars(self.spark_config, jar_cache))
        raise_if_unknown_jars(self.spark_config, jar_cache)
        if home := os.environ.get("DAGSTER_HOME"):
            self.spark_config.update(ScratchDir(Path(home)).with_local_dir(self.spark_config))
        self.spark_config.update(with_class_archive(self.spark_config, jar_cache))
        if not os.environ.get("SPARK_REMOTE"):
            # To Spark an empty variable is a server without a name; to us it is none.
            os.environ.pop("SPARK_REMOTE", None)

    def _init_session(self) -> None:
        if self._spark_session is None:
            config = self.spark_config
            if "spark.remote" in config:
                session = _server_session(config)
                raise_if_incompatible(session, config)
                if self.uses_s3:
                    raise_if_unsafe_commits(session, config)
            else:
                session = _embedded_session(config)
            self._spark_session = session

    def _connect_server(self) -> None:
        url = self.spark_config["spark.remote"]
        address = hide_token(url)
        try:
            _await_server(url)
            self._init_session()
        except (PySparkException, grpc.RpcError, grpc.FutureTimeoutError) as error:
            text = str(error) or f"no connection within {_PATIENCE:g} s"
            details = re.search(r'details = "(.*)"', text)  # what gRPC itself says, further down
            message = details[1] if details else text.splitlines()[0]
            raise EngineError(
                f"the Spark Connect server at SPARK_REMOTE={address} does not answer "
                f"({message.replace(url, address)[:200]}): start it, or unset SPARK_REMOTE to use the "
                "embedded session."
            ) from None


def _embedded_session(config: Mapping[str, Any]) -> SparkSession:
    """A session whose driver is in this process.

    Raises:
        EngineError: the JVM does not start, or the cluster does not take it.
    """
    master = config["spark.master"]
    try:
        with use_jvm_environment(master):
            start_driver(config)
            session: SparkSession = spark_session_from_config(config)
    except SPARK_ERRORS as error:
        if isinstance(error, PySparkException) and error.getCondition() == _NO_JVM:
            raise EngineError(
                "Java ended before Spark had started; what it said is above. Look for its memory "
                f"and options in {PREFIX}SPARK_CONF (spark.driver.memory, "
                "spark.driver.extraJavaOptions)"
                + "".join(f" and in {name}" for name in jvm_options())
                + "."
            ) from error
        if is_local(master):
            raise
        # Spark itself speaks of a context that was stopped, and why stands in a log.
        raise EngineError(
            f"the Spark cluster at {master} does not answer, or does not take the driver: see that "
            "its master runs, with the Spark version of pyspark here, and that its machines reach "
            "the driver (spark.driver.host)."
        ) from error
    return session


def _server_session(config: Mapping[str, Any]) -> SparkSession:
    """A session of the server: the one that the URL names, or the first after it that is open."""
    shared = is_shared(config["spark.remote"])
    if shared:
        randomize_plan_ids()
    for closed in count():
        url = session_url(config, closed)
        try:
            session = _session_of(url, config)
        except PySparkException as error:
            if not (shared and closed < _MAX_CLOSED_SESSIONS and forget_closed_session(error)):
                raise
        else:
            break
    return session


def _session_of(url: str, config: Mapping[str, Any]) -> SparkSession:
    """As `spark_session_from_config`, by a channel of ours."""
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    session_conf = {name: value for name, value in config.items() if name != "spark.remote"}
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # so does Spark's own builder
    builder = RemoteSession.builder.channelBuilder(channel_builder(url)).config(map=session_conf)
    session: Any = builder.getOrCreate()
    return session


def _await_server(url: str) -> None:
    """Wait for the server to take a connection, but not as long as Spark's client would.

    Raises:
        grpc.FutureTimeoutError: it did not.
    """
    channel = channel_builder(url).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=_PATIENCE)
    finally:
        channel.close()


#: Held while a session is started.
_session_lock = Lock()
