"""Which failures are the engine's own rather than the data's: it is gone, or its disk failed.

The one place that tells. Nothing is tried out on the engine: Connect's client would wait for a dead
server for minutes.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from traceback import TracebackException

import dagster as dg
from dagster._utils.error import SerializableErrorInfo

from backfill_assets.engine.jars import EngineError

ErrorLike = BaseException | SerializableErrorInfo | None

#: What a broken line to the JVM or to the Connect server raises, as Python, py4j and gRPC call it.
_LOST_CLASSES = {
    "BrokenPipeError",
    "ConnectionAbortedError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "Py4JNetworkError",
}
_LOST_MESSAGES = re.compile(
    "|".join(
        [
            r"Answer from Java side is empty",
            # A JVM that is still there says more than this.
            r"An error occurred while calling \S+\Z",
            # The Connect server was started anew, and does not know the session or the query.
            r"INVALID_HANDLE\.(SESSION|OPERATION)_(NOT_FOUND|CLOSED|CHANGED|ABANDONED)",
            r"\[NO_ACTIVE_SESSION\]",
            r"StatusCode\.UNAVAILABLE",
            # Spark goes on without its master or its executors no more than we do.
            r"stopped SparkContext",
            r"SparkContext (was|has been) shut ?down",
            r"ExecutorLostFailure",
            # Our own EngineError; one about Java or jars stays until a person has mended it.
            r"the Spark (Connect server|cluster) at .* does not answer",
        ]
    )
)
_DISK_FAILED = "the engine's own disk failed"
_DISK_MESSAGES = re.compile(
    "|".join(
        [
            _DISK_FAILED,
            # The system's words end a line: the name of a file that holds them goes on.
            r"(No space left on device|Disk quota exceeded|Too many open files)\)?\s*$",
            # Where Spark keeps blocks, spilled rows and its own copies of jars. No file of a
            # landing is in such a folder.
            r"/(blockmgr|spark)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/",
            # What it kept there is gone.
            r"\b(Metadata)?FetchFailed(Exception)?\b",
            r"Missing an output location for shuffle",
            r"\b(rdd|shuffle|broadcast)_\d+\w* (was )?not found",
            r"Failed to get broadcast_\d+",
        ]
    ),
    re.MULTILINE,
)


def is_engine_lost(error: ErrorLike) -> bool:
    """Whether the engine is gone: another process may well succeed.

    Args:
        error: an exception, or what Dagster has kept of one, with what it was raised from.
    """
    return _matches_error(error, _LOST_MESSAGES, _LOST_CLASSES)


def is_disk_failure(error: ErrorLike) -> bool:
    """Whether the disk of the engine is full, or somebody cleared it: no file is at fault.

    Args:
        error: as above.
    """
    return _matches_error(error, _DISK_MESSAGES)


def raise_if_engine_failed(error: Exception) -> None:
    """Raise what has nothing to do with the data that were read.

    Raises:
        EngineError: the engine's disk failed.
        Exception: the same error: the engine is gone.
    """
    if is_engine_lost(error):
        raise error
    if is_disk_failure(error):
        match = _DISK_MESSAGES.search(str(error))
        raise EngineError(
            f"{_DISK_FAILED} ({match[0].strip(' )') if match else 'see the cause'}): no file is at "
            "fault, and nothing was written. Make room where Spark keeps its scratch files "
            "(spark.local.dir; under DAGSTER_HOME unless you set it), and keep cleaners away from "
            "there. The run is retried."
        ) from error


def _matches_error(
    error: ErrorLike, messages: re.Pattern[str], classes: Collection[str] = ()
) -> bool:
    if isinstance(error, BaseException):
        error = SerializableErrorInfo.from_traceback(TracebackException.from_exception(error))
    while error is not None:
        if error.cls_name == dg.Failure.__name__:
            return False  # somebody judged the data
        if error.cls_name in classes or messages.search(error.message.strip()):
            return True
        error = error.cause or error.context
    return False
