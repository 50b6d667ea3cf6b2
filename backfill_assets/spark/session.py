"""The Spark session: embedded, or of a Spark Connect server, where many processes may share it.

A shared session saves time: Spark compiles some 300 classes for a run of all tables, and on a
server a session cannot use the classes of another. Only this module creates sessions; their
settings come from `configuration`.
"""

import atexit
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from threading import Event, Lock, RLock
from typing import Any, Self
from uuid import UUID, uuid4

import grpc  # type: ignore[import-untyped]
from dagster_pyspark import LazyPySparkResource
from dagster_pyspark.resources import spark_session_from_config
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pydantic import Field, PrivateAttr
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.plan import LogicalPlan
from pyspark.sql.utils import is_remote

from backfill_assets.settings import PREFIX, Settings
from backfill_assets.spark import connect, jars
from backfill_assets.spark.configuration import (
    session_config,
    small_data_config,
    spark_config,
    used_stores,
)
from backfill_assets.spark.frames import SMALL_DATA_ROWS
from backfill_assets.spark.jvm_launch import ScratchDir, start_driver, with_class_archive
from backfill_assets.spark.processes import is_local, jvm_options, use_jvm_environment
from backfill_assets.spark.stores import configured_store_types
from backfill_assets.spark.tasks import build_task_times, watch_session

_SESSION_NAME = re.compile(r"(?<=;session_id=)[^;]+")
#: Set when the process exits.
_process_ending = Event()
#: The sessions whose operations are interrupted when the process exits.
_interrupted_sessions: list[SparkSession] = []
#: Spark's property of a thread: the stack that leads to a job, as Spark's UI shows it.
_STACK_PROPERTY = "callSite.long"
#: Held while Spark commits in a session that the steps of a run share.
_COMMIT_LOCK = RLock()


@cache
def _process_tag() -> str:
    """The tag of this process's operations in a shared session.

    Created at its first use: processes may be forked after this module is imported.
    """
    return f"process-{uuid4().hex}"


def is_shared(url: str) -> bool:
    """Whether a server's URL names a session."""
    return bool(_SESSION_NAME.search(url))


def session_url(config: Mapping[str, Any], closed: int) -> str:
    """The server's URL, with the id of the session that processes with the same settings share.

    Args:
        config: the settings. `spark.remote` is the URL; its `session_id`, if any, is only a name:
            the id is a digest of that name and the other settings.
        closed: the number of closed sessions of that name and these settings; a closed session
            cannot be opened again.
    """
    url: str = config["spark.remote"]
    conf = sorted((name, str(value)) for name, value in config.items() if name != "spark.remote")

    def shared_id(match: re.Match[str]) -> str:
        digest = sha256(json.dumps([match[0], conf, closed]).encode()).digest()
        return str(UUID(bytes=digest[:16], version=4))

    return _SESSION_NAME.sub(shared_id, url)


@cache
def randomize_plan_ids() -> None:
    """Number the plans of this process differently from those of every other process.

    A server caches the plans of a session by what was sent, ids included, with the files listed at
    that time. A process whose ids start at 0 would get the cached plans of an earlier process.

    Raises:
        EngineError: this version of Spark's client numbers plans in another way.
    """
    # Spark has no public way to set it.
    with LogicalPlan._lock:  # noqa: SLF001
        LogicalPlan._nextPlanId = first = secrets.randbits(48) + 2**48  # noqa: SLF001
    if LogicalPlan._fresh_plan_id() < first:  # noqa: SLF001
        raise jars.EngineError(
            "this version of pyspark cannot share a session of a Spark Connect server: leave "
            "session_id out of SPARK_REMOTE."
        )


def is_session_closed(error: Exception) -> bool:
    """Whether the error reports a closed session."""
    return "SESSION_CLOSED" in str(error)


def forget_closed_session(error: Exception) -> bool:
    """Whether the error reports a closed session; if so, this process forgets that session."""
    if not is_session_closed(error):
        return False
    # The session of this thread, else the default one.
    with suppress(PySparkException):
        SparkSession.active().stop()
    return True


def interrupt_at_exit(session: SparkSession) -> None:
    """Interrupt this thread's operations in a shared session when the process exits."""
    if _process_tag() not in session.getTags():
        session.addTag(_process_tag())
    if session not in _interrupted_sessions:
        _interrupted_sessions.append(session)
    atexit.unregister(_interrupt_operations)
    atexit.register(_interrupt_operations)


def _interrupt_operations() -> None:
    _process_ending.set()
    for session in _interrupted_sessions:
        # The engine may be gone, and Spark's client would retry for ten minutes.
        with suppress(Exception):
            session.client.set_retry_policies([])
            session.interruptTag(_process_tag())


@cache
def _scratch_dir(home: str) -> ScratchDir:
    """The folder of this process's JVM, for all its runs."""
    return ScratchDir(Path(home))


@contextmanager
def commit_session(session: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session for one commit, with the settings from which Delta takes the commit's metadata.

    On a server it is a clone of the session, with its temporary views; embedded, it is the session
    itself, under a lock. Without settings no clone is needed.

    Raises:
        EngineError: the process is about to exit.
    """
    if settings and is_remote():
        clone = session.cloneSession()  # type: ignore[attr-defined]  # of Connect alone
        # A new partial, as `unregister` removes all equal functions.
        close = partial(_close_session, clone)
        atexit.register(close)
        try:
            if _process_ending.is_set():
                raise jars.EngineError("the run was terminated, and nothing was committed.")
            for name, value in settings.items():
                clone.conf.set(name, value)
            for tag in session.getTags():  # a clone has none of them
                clone.addTag(tag)
            yield clone
        finally:
            atexit.unregister(close)
            close()
        return
    with _COMMIT_LOCK:
        for name, value in settings.items():
            session.conf.set(name, value)
        try:
            yield session
        finally:
            for name in settings:
                session.conf.unset(name)


def _close_session(session: SparkSession) -> None:
    """Close a server session and stop its operations; `stop` does not work for a clone."""
    with suppress(Exception):
        session.client.set_retry_policies([])
        session.client.release_session()
        session.client.close()


#: What a failing Spark call raises; embedded, a failing task raises a bare Java error.
SPARK_ERRORS = (PySparkException, Py4JError)

#: Seconds to wait for a server to accept a connection. (Spark's own client waits for more than ten
#: minutes.)
_CONNECT_TIMEOUT = 15.0

#: PySpark's name for a JVM that did not start.
_NO_JVM = "JAVA_GATEWAY_EXITED"

#: The number of closed sessions that a Spark server remembers.
_MAX_CLOSED_SESSIONS = 1000


def first_error_line(error: Exception) -> str:
    """The first line of a Spark error, without the plan that Spark prints below it."""
    return next(filter(None, map(str.strip, str(error).splitlines())), "no expression")


class Engine(LazyPySparkResource):
    """dagster-pyspark's lazy session, which first checks what usually prevents a start.

    Attributes:
        spark_config: Spark's settings, which may hold secrets.
        jars: the cache folder of the Delta jars, which are downloaded if missing.
        stores: the names of the object stores that landing and warehouse lie on.
        small_data_config: settings of the session for few rows that differ.
    """

    spark_config: dict[str, Any] = Field(repr=False)
    jars: str
    stores: list[str] = Field(default_factory=list)
    small_data_config: dict[str, str] = Field(default_factory=dict)
    _small_data_session: SparkSession | None = PrivateAttr(default=None)
    _find_session: Callable[[], SparkSession] | None = PrivateAttr(default=None)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The engine of these settings; nothing is started yet."""
        return cls(
            spark_config=spark_config(settings),
            jars=str(settings.jars),
            stores=[store.name for store in used_stores(settings)],
            small_data_config=small_data_config(settings),
        )

    @classmethod
    def from_session(cls, settings: Settings, given: Any) -> Self:
        """The engine on a Spark session of a project's own, or on a resource that provides one.

        It works in clones of that session, with settings of their own: the session keeps its
        settings, temporary views and functions.
        """
        engine = cls(
            spark_config=session_config(settings),
            jars=str(settings.jars),
            stores=[store.name for store in used_stores(settings)],
            small_data_config=small_data_config(settings),
        )
        engine._find_session = lambda: getattr(given, "spark_session", given)
        return engine

    @property
    def spark_session(self) -> SparkSession:
        """The default session of this process, started at its first use.

        Raises:
            EngineError: no Java, no jars and no way to download them, or no answer from the server.
        """
        # Steps in parallel threads may call this at the same time.
        with _session_lock:
            session = self._start_session()
        self._watch(session)
        return session

    def session_for_rows(self, rows: int) -> SparkSession:
        """The session that suits the number of rows that a step reads.

        Raises:
            EngineError: as `spark_session`.
        """
        if rows > SMALL_DATA_ROWS or not self.small_data_config:
            return self.spark_session
        with _session_lock:
            session = self._small_data_session or self._create_small_data_session()
            self._small_data_session = session
        self._watch(session)
        return session

    def _start_session(self) -> SparkSession:
        if self._spark_session is None:
            self._prepare_session()
        session: SparkSession = super().spark_session
        return session

    def _create_small_data_session(self) -> SparkSession:
        default_session = self._start_session()
        if self._find_session:
            return _clone_session(default_session, self.small_data_config)
        if "spark.remote" in self.spark_config:
            config = {**self.spark_config, **self.small_data_config}
            with self._explain_server_errors():
                return _server_session(config, is_default=False)
        session = default_session.newSession()
        for name, value in self.small_data_config.items():
            session.conf.set(name, value)
        return session

    def _watch(self, session: SparkSession) -> None:
        if is_shared(self.spark_config.get("spark.remote", "")):
            interrupt_at_exit(session)
        if not is_remote():
            # Else Spark describes the JVM's stack for each RDD that this thread plans: 4 % of what
            # a small run takes. Where a job comes from, PySpark tells.
            with suppress(Exception):  # the next query fails as well
                session.sparkContext.setLocalProperty(_STACK_PROPERTY, "")
        watch_session(session)

    @property
    def started_sessions(self) -> list[SparkSession]:
        """The sessions of this process that were started."""
        return [x for x in (self._spark_session, self._small_data_session) if x is not None]

    def _prepare_session(self) -> None:
        """Called with the session lock: connect, or complete the configuration to start a JVM."""
        if self._find_session:
            return
        if "spark.remote" in self.spark_config:
            self._connect_server()
            return
        jars.check_java()
        jar_cache = Path(self.jars)
        jars.fetch_delta_jars(jar_cache)
        for store in configured_store_types(self.spark_config):
            jars.fetch_store_jars(jar_cache, store)
        build_task_times(jar_cache)
        self.spark_config.update(jars.with_jars(self.spark_config, jar_cache))
        jars.raise_if_unknown_jars(self.spark_config, jar_cache)
        if home := os.environ.get("DAGSTER_HOME"):
            self.spark_config.update(_scratch_dir(home).with_local_dir(self.spark_config))
        self.spark_config.update(with_class_archive(self.spark_config, jar_cache))
        if not os.environ.get("SPARK_REMOTE"):
            # Spark takes an empty variable for a server without a name; here it means no server.
            os.environ.pop("SPARK_REMOTE", None)

    def _init_session(self) -> None:
        """Called by dagster-pyspark's `spark_session`: start the session or connect to a server."""
        if self._spark_session is None:
            config = self.spark_config
            if self._find_session:
                session = _clone_session(self._find_session(), config)
                description = "the Spark session that build_defs was given as its engine"
                connect.raise_if_incompatible(session, config, description)
                connect.raise_if_unsafe_commits(session, description, self.stores)
            elif "spark.remote" in config:
                session = _server_session(config)
                description = connect.describe_server(config)
                connect.raise_if_incompatible(session, config, description)
                connect.raise_if_unsafe_commits(session, description, self.stores)
            else:
                session = _embedded_session(config)
            self._spark_session = session
            _started_engines.append(self)

    def _connect_server(self) -> None:
        """Wait for the server and open the session; the token is in no message.

        Raises:
            EngineError: it does not answer.
        """
        with self._explain_server_errors():
            _await_server(self.spark_config["spark.remote"])
            self._init_session()

    @contextmanager
    def _explain_server_errors(self) -> Iterator[None]:
        url = self.spark_config["spark.remote"]
        address = connect.hide_token(url)
        try:
            yield
        except (PySparkException, grpc.RpcError, grpc.FutureTimeoutError) as error:
            text = str(error) or f"no connection within {_CONNECT_TIMEOUT:g} s"
            details = re.search(r'details = "(.*)"', text)  # gRPC's own message, further down
            message = details[1] if details else text.splitlines()[0]
            raise jars.EngineError(
                f"the Spark Connect server at SPARK_REMOTE={address} does not answer "
                f"({message.replace(url, address)[:200]}): start it, or unset SPARK_REMOTE to use "
                "the embedded session."
            ) from None


#: Those of this process that have a session.
_started_engines: list[Engine] = []


def engines_answer() -> bool:
    """Whether all sessions of this process answer: none does whose server was restarted."""
    try:
        for engine in _started_engines:
            if url := engine.spark_config.get("spark.remote"):
                # Spark's own client would try for minutes.
                _await_server(url)
            for session in engine.started_sessions:
                session.range(1).count()
    except Exception:  # noqa: BLE001 - whatever it is, a run would meet it
        return False
    return True


def _clone_session(session: SparkSession, config: Mapping[str, Any]) -> SparkSession:
    """A session on the same driver, with the settings that a session may change."""
    clone: SparkSession = (
        session.cloneSession() if hasattr(session, "cloneSession") else session.newSession()
    )
    for name, value in config.items():
        if clone.conf.isModifiable(name):
            clone.conf.set(name, value)
    return clone


def _embedded_session(config: Mapping[str, Any]) -> SparkSession:
    """A session whose driver is in this process.

    Raises:
        EngineError: the JVM does not start, or the cluster does not accept the driver.
    """
    master = config["spark.master"]
    try:
        with use_jvm_environment(master):
            start_driver(config)
            session: SparkSession = spark_session_from_config(config)
    except SPARK_ERRORS as error:
        if isinstance(error, PySparkException) and error.getCondition() == _NO_JVM:
            raise jars.EngineError(
                "Java ended before Spark had started; what it said is above. Look for its memory "
                f"and options in {PREFIX}SPARK_CONF (spark.driver.memory, "
                "spark.driver.extraJavaOptions)"
                + "".join(f" and in {name}" for name in jvm_options())
                + "."
            ) from error
        if is_local(master):
            raise
        # Spark's own error only reports a stopped context; the reason is in a log.
        raise jars.EngineError(
            f"the Spark cluster at {master} does not answer, or does not take the driver: see that "
            "its master runs, with the Spark version of pyspark here, and that its machines reach "
            "the driver (spark.driver.host)."
        ) from error
    return session


def _server_session(config: Mapping[str, Any], *, is_default: bool = True) -> SparkSession:
    """The session that the URL names, or the first one after it that is not closed.

    PySpark takes it for this process's default session unless `is_default` is false.
    """
    shared = is_shared(config["spark.remote"])
    if shared:
        randomize_plan_ids()
    for closed in count():
        url = session_url(config, closed)
        try:
            if not is_default:
                return _open_server_session(url, config)
            session = _create_server_session(url, config)
        except PySparkException as error:
            is_closed = forget_closed_session(error) if is_default else is_session_closed(error)
            if not (shared and closed < _MAX_CLOSED_SESSIONS and is_closed):
                raise
        else:
            break
    return session


def _create_server_session(url: str, config: Mapping[str, Any]) -> SparkSession:
    """Like `spark_session_from_config`, with the channel of `channel_builder`."""
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # as Spark's own builder does
    session: Any = _session_builder(url, config).getOrCreate()
    return session


def _open_server_session(url: str, config: Mapping[str, Any]) -> SparkSession:
    """Open one more session, which does not become the default or active one."""
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    session: Any = RemoteSession(connection=connect.channel_builder(url))
    _session_builder(url, config)._apply_options(session)  # noqa: SLF001 - as `getOrCreate` does
    return session


def _session_builder(url: str, config: Mapping[str, Any]) -> Any:
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    session_conf = {name: value for name, value in config.items() if name != "spark.remote"}
    return RemoteSession.builder.channelBuilder(connect.channel_builder(url)).config(
        map=session_conf
    )


def _await_server(url: str) -> None:
    """Wait until the server accepts a connection, for less time than Spark's client would.

    Raises:
        grpc.FutureTimeoutError: no connection in time.
    """
    channel = connect.channel_builder(url).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=_CONNECT_TIMEOUT)
    finally:
        channel.close()


#: Held while a session is started.
_session_lock = Lock()
