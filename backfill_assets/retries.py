"""Which failures are worth another attempt: those of the engine, not those of the data.

A run that ends without a word is Dagster's to retry (`run_retries` in dagster.yaml). A step that
fails is not retried, as its input is the same next time, unless what failed is Spark itself.
"""

from __future__ import annotations

import re
from traceback import TracebackException

import dagster as dg
from dagster._core.storage.tags import RETRY_ON_ASSET_OR_OP_FAILURE_TAG as RETRY_ON_FAILURE
from dagster._core.storage.tags import RETRY_STRATEGY_TAG
from dagster._utils.error import SerializableErrorInfo
from dagster._utils.tags import get_boolean_tag_value

#: The tag of a run that lost its engine: the id of the run.
LOST_TAG = "backfill_assets/engine_lost"

#: What a broken line to the JVM or to the Connect server raises, as Python, py4j and gRPC call it.
_CLASSES = {
    "BrokenPipeError",
    "ConnectionAbortedError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "Py4JNetworkError",
}
_MESSAGES = re.compile(
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
            r"the Spark Connect server at .* does not answer",
        ]
    )
)


def engine_lost(error: BaseException | SerializableErrorInfo | None) -> bool:
    """Whether the engine failed rather than the data: another process may well succeed.

    Nothing is tried out on the engine: Connect's client would wait for a dead server for minutes.

    Args:
        error: an exception, or what Dagster has kept of one, with what it was raised from.
    """
    if isinstance(error, BaseException):
        error = SerializableErrorInfo.from_traceback(TracebackException.from_exception(error))
    while error is not None:
        if error.cls_name == dg.Failure.__name__:
            return False  # somebody judged the data
        if error.cls_name in _CLASSES or _MESSAGES.search(error.message.strip()):
            return True
        error = error.cause or error.context
    return False


def retry_later(instance: dg.DagsterInstance, run_id: str) -> None:
    """Have Dagster run this run again if it fails, although it is a step that fails.

    To be called before the run ends: Dagster decides at its end.
    """
    run = instance.get_run_by_id(run_id)
    if run and not get_boolean_tag_value(run.tags.get(RETRY_ON_FAILURE)):
        instance.add_run_tags(run_id, {RETRY_ON_FAILURE: "true", LOST_TAG: run_id})


def fresh_tags(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dict[str, str]:
    """The tags that a run begins with: how it is retried, and nothing of the run before it."""
    # Dagster's default takes up the steps that the log of a dead process does not show as done; it
    # gives up if there are none. To publish a day once more costs little and is always right.
    tags = {} if RETRY_STRATEGY_TAG in run.tags else {RETRY_STRATEGY_TAG: "ALL_STEPS"}
    if run.tags.get(LOST_TAG, run.run_id) != run.run_id:
        # A retry is given the tags of the run before it; but what fails now may be the data.
        default = instance.run_retries_retry_on_asset_or_op_failure
        tags[RETRY_ON_FAILURE] = str(default).lower()
    return tags
