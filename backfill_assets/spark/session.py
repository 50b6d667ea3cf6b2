"""The Spark session: embedded, of a Spark Connect server, or shared there by many processes.

Spark compiles parts of queries to classes, and on a server no session can use those of another. A
run of all tables compiles some 300 of them.

Only this module knows how a session comes to be; everyone else is handed one. With what settings
is for `configuration`.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from threading import Event, Lock, RLock
from typing import Any
from uuid import UUID, uuid4

import grpc  # type: ignore[import-untyped]
from dagster_pyspark import LazyPySparkResource
from dagster_pyspark.resources import spark_session_from_config
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pydantic import Field
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.plan import LogicalPlan
from pyspark.sql.utils import is_remote

from backfill_assets.settings import PREFIX, Settings
from backfill_assets.spark.configuration import spark_config, uses_s3
from backfill_assets.spark.jars import (
    EngineError,
    check_java,
    fetch_delta_jars,
    fetch_s3_jars,
    raise_if_unknown_jars,
    with_jars,
)
from backfill_assets.spark.jvm_launch import ScratchDir, start_driver, with_class_archive
from backfill_assets.spark.processes import is_local, jvm_options, use_jvm_environment
from backfill_assets.spark.servers import (
    channel_builder,
    hide_token,
    raise_if_incompatible,
    raise_if_unsafe_commits,
)
from backfill_assets.spark.tasks import build_task_times, watch_session

_SESSION_NAME = re.compile(r"(?<=;session_id=)[^;]+")
#: Set when the process ends.
_process_ending = Event()
#: Held while Spark commits in a session that the steps of a run share.
_COMMIT_LOCK = RLock()


@cache
def _process_tag() -> str:
    """By which the operations of this process are told from those of others in its session.

    Not made when this module is imported: processes may be forked after that.
    """
    return f"process-{uuid4().hex}"


def is_shared(url: str) -> bool:
    """Whether a server's URL names a session."""
    return bool(_SESSION_NAME.search(url))


def session_url(config: Mapping[str, Any], closed: int) -> str:
    """The URL with the id of the session that all processes with the same settings share.

    Args:
        config: the settings; `spark.remote` is the URL, and its `session_id`, if it has one, a
            name for the session: its id depends on the other settings as well.
        closed: how many sessions of that name and these settings have been closed already. No
            session can be opened again.
    """
    url: str = config["spark.remote"]
    conf = sorted((name, str(value)) for name, value in config.items() if name != "spark.remote")

    def shared_id(match: re.Match[str]) -> str:
        digest = sha256(json.dumps([match[0], conf, closed]).encode()).digest()
        return str(UUID(bytes=digest[:16], version=4))

    return _SESSION_NAME.sub(shared_id, url)


@cache
def randomize_plan_ids() -> None:
    """Have the plans of this process numbered unlike those of any other.

    For a session, a server keeps plans by what was sent, numbers and all, with the files that it
    found then. A process whose numbers began at 0 would be handed those of the one before.

    Raises:
        EngineError: Spark's client numbers them in another way than it did.
    """
    # Spark has no other way to say so.
    with LogicalPlan._lock:  # noqa: SLF001
        LogicalPlan._nextPlanId = first = secrets.randbits(48) + 2**48  # noqa: SLF001
    if LogicalPlan._fresh_plan_id() < first:  # noqa: SLF001
        raise EngineError(
            "this version of pyspark cannot share a session of a Spark Connect server: leave "
            "session_id out of SPARK_REMOTE."
        )


def forget_closed_session(error: Exception) -> bool:
    """Whether an error says that a session was closed before; then this process forgets it."""
    if "SESSION_CLOSED" not in str(error):
        return False
    # That of this thread, or else that of all.
    with suppress(PySparkException):
        SparkSession.active().stop()
    return True


def interrupt_at_exit(session: SparkSession) -> None:
    """Have what this thread asks of a shared session interrupted when the process ends before."""
    if _process_tag() not in session.getTags():
        session.addTag(_process_tag())
    atexit.unregister(_interrupt_operations)
    atexit.register(_interrupt_operations, session)


def _interrupt_operations(session: SparkSession) -> None:
    _process_ending.set()
    # The engine may be gone, and Spark's client would try for ten minutes.
    with suppress(Exception):
        session.client.set_retry_policies([])
        session.interruptTag(_process_tag())


@contextmanager
def commit_session(session: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session for a commit of Spark's own: what the commit says of itself are settings.

    On a server it is a clone of the session, with its temporary views; embedded, it is the session
    itself, while no other commit has it. A commit without settings needs no clone.

    Args:
        session: which others use, too.
        settings: for the commit alone.

    Raises:
        EngineError: the process is about to end.
    """
    if settings and is_remote():
        clone = session.cloneSession()  # type: ignore[attr-defined]  # of Connect alone
        # A partial of its own, as `unregister` takes all that are equal.
        close = partial(_close_session, clone)
        atexit.register(close)
        try:
            if _process_ending.is_set():
                raise EngineError("the run was terminated, and nothing was committed.")
            for name, value in settings.items():
                clone.conf.set(name, value)
            for tag in session.getTags():  # which a clone does not have
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
    """End a session of a server, with what it does: `stop` does not work for a clone."""
    with suppress(Exception):
        session.client.set_retry_policies([])
        session.client.release_session()
        session.client.close()


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
                f"({message.replace(url, address)[:200]}): start it, or unset SPARK_REMOTE to use "
                "the embedded session."
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
