"""One session of a Spark Connect server that many processes share, and its settings with it.

Spark compiles parts of queries to classes, and on a server no session can use those of another. A
run of all tables compiles some 300 of them.
"""

from __future__ import annotations

import atexit
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from hashlib import sha256
from threading import Event, RLock
from typing import Any
from uuid import UUID, uuid4

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.plan import LogicalPlan
from pyspark.sql.utils import is_remote

from backfill_assets.engine.jars import EngineError

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
