"""Failed and terminated runs: messages, whether the engine failed, which runs are retried.

All of it is read from errors and records. Nothing is tried on the engine: Connect's client would
wait for a dead server for minutes. Dagster retries a run whose process dies (`run_retries` in
dagster.yaml). A failed step is not retried, as its input is the same next time, unless Spark itself
failed: see `is_engine_lost` and `is_disk_failure`. Dagster looks at a failed run once; if it cannot
launch the retry at that moment, it is lost and a backfill waits for it for ever:
`launch_lost_retries` finds such runs.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from threading import Event, local
from traceback import TracebackException

import dagster as dg
from dagster._core.events import RunFailureReason
from dagster._core.execution.backfill import BULK_ACTION_TERMINAL_STATUSES, BulkActionStatus
from dagster._core.execution.retries import auto_reexecution_should_retry_run
from dagster._core.storage.tags import (
    AUTO_RETRY_RUN_ID_TAG,
    BACKFILL_ID_TAG,
    PRIORITY_TAG,
    RETRY_NUMBER_TAG,
    RETRY_STRATEGY_TAG,
    RUN_FAILURE_REASON_TAG,
    WILL_RETRY_TAG,
)
from dagster._core.storage.tags import RETRY_ON_ASSET_OR_OP_FAILURE_TAG as RETRY_ON_FAILURE
from dagster._utils.error import SerializableErrorInfo
from dagster._utils.tags import get_boolean_tag_value

from backfill_assets.spark.jars import EngineError

ErrorLike = BaseException | SerializableErrorInfo | None

#: Errors of a broken connection to the JVM or the Connect server, by their Python, py4j and gRPC
#: names.
_LOST_ERROR_NAMES = {
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
            # A JVM that still runs gives a longer message.
            r"An error occurred while calling \S+\Z",
            # The Connect server was restarted, and does not know the session or the query.
            r"INVALID_HANDLE\.(SESSION|OPERATION)_(NOT_FOUND|CLOSED|CHANGED|ABANDONED)",
            r"\[NO_ACTIVE_SESSION\]",
            r"StatusCode\.UNAVAILABLE",
            # Spark stops without its master or its executors.
            r"stopped SparkContext",
            r"SparkContext (was|has been) shut ?down",
            r"ExecutorLostFailure",
            # Our own EngineError; one about Java or jars needs a person to fix it.
            r"the Spark (Connect server|cluster) at .* does not answer",
        ]
    )
)
_DISK_FAILED = "the engine's own disk failed"
_DISK_MESSAGES = re.compile(
    "|".join(
        [
            _DISK_FAILED,
            # The system's message ends the line; a file name that contains it does not.
            r"(No space left on device|Disk quota exceeded|Too many open files)\)?\s*$",
            # Spark's folders of blocks, spilled rows and copied jars. No landing file is in such a
            # folder.
            r"/(blockmgr|spark)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/",
            # Files in those folders are missing.
            r"\b(Metadata)?FetchFailed(Exception)?\b",
            r"Missing an output location for shuffle",
            r"\b(rdd|shuffle|broadcast)_\d+\w* (was )?not found",
            r"Failed to get broadcast_\d+",
        ]
    ),
    re.MULTILINE,
)


#: What the executor tells the step of a thread, if it runs steps in threads.
thread_state = local()


def raise_if_interrupted() -> None:
    """Raise if the run was terminated; a step calls it before each change.

    A signal reaches only the main thread, never a step that waits for the engine.

    Raises:
        DagsterExecutionInterruptedError: the run of this thread's step was terminated.
    """
    interrupted: Event | None = getattr(thread_state, "interrupted", None)
    if interrupted is not None and interrupted.is_set():
        raise dg.DagsterExecutionInterruptedError


def is_engine_lost(error: ErrorLike) -> bool:
    """Whether an error or one of its causes says that the engine is gone: a retry may succeed."""
    return _matches_error(error, _LOST_MESSAGES, _LOST_ERROR_NAMES)


def is_disk_failure(error: ErrorLike) -> bool:
    """Whether the engine's disk is full or was cleared: no input file is at fault."""
    return _matches_error(error, _DISK_MESSAGES)


def raise_if_engine_failed(error: Exception) -> None:
    """Raise if the error comes from the engine, not from the data that were read.

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
    """Whether an error or a cause of it has the class name or message; a `dg.Failure` has not."""
    if isinstance(error, BaseException):
        error = SerializableErrorInfo.from_traceback(TracebackException.from_exception(error))
    while error is not None:
        if error.cls_name == dg.Failure.__name__:
            return False  # a dg.Failure is about the data
        if error.cls_name in classes or messages.search(error.message.strip()):
            return True
        error = error.cause or error.context
    return False


def failed_run_messages(instance: dg.DagsterInstance, backfill_id: str) -> Iterator[str]:
    """A sentence for each finally failed run of a Dagster backfill."""
    failed = dg.RunsFilter(
        tags={"dagster/backfill": backfill_id}, statuses=[dg.DagsterRunStatus.FAILURE]
    )
    for run in instance.get_runs(failed):
        if run.tags.get("dagster/will_retry") != "true":
            yield f"run {run.run_id[:8]} failed: {run_failure_message(instance, run.run_id)}"


def run_failure_message(instance: dg.DagsterInstance, run_id: str) -> str:
    """The messages of a run's failed steps; the run's own message if no step failed."""
    step_messages, run_messages = [], []
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
    for entry in instance.all_logs(run_id, of_type=kinds):
        event = entry.get_dagster_event()
        if not event.is_step_failure:
            error = event.job_failure_data.error if event.event_specific_data else None
            run_messages.append(f"{event.message or ''}\n{error.message if error else ''}")
            continue
        failure = event.step_failure_data
        if failure.user_failure_data and failure.user_failure_data.description:
            message = failure.user_failure_data.description
        elif failure.error:
            # The step's exception is the cause of a Dagster error that names only the step.
            message = (failure.error.cause or failure.error).message
        else:
            message = event.message or ""
        step_messages.append(f"{event.step_key}: {message.strip()}")
    return "\n".join(step_messages or run_messages).strip()


#: The tag of a run that lost its engine; its value is the run's id.
ENGINE_LOST_TAG = "backfill_assets/engine_lost"
#: The tag of a run whose engine's disk failed; a retry starts with "false".
DISK_FAILED_TAG = "backfill_assets/engine_disk_failed"


def mark_for_retry(instance: dg.DagsterInstance, run_id: str, error: ErrorLike) -> None:
    """Mark a run for a retry if a step failed because of the engine, not because of the data."""
    disk = is_disk_failure(error)
    if disk:
        instance.add_run_tags(run_id, {DISK_FAILED_TAG: "true"})
    if disk or is_engine_lost(error):
        retry_later(instance, run_id)


@contextmanager
def retry_if_engine_fails(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Mark a run for a retry if what is done fails because of the engine, whatever executes it."""
    try:
        yield
    except Exception as error:
        mark_for_retry(instance, run_id, error)
        raise


def retry_later(instance: dg.DagsterInstance, run_id: str) -> None:
    """Let Dagster retry this run if it fails, although a step's failure is not retried by default.

    Call it before the run ends: Dagster decides at its end.
    """
    run = instance.get_run_by_id(run_id)
    if run and not get_boolean_tag_value(run.tags.get(RETRY_ON_FAILURE)):
        instance.add_run_tags(run_id, {RETRY_ON_FAILURE: "true", ENGINE_LOST_TAG: run_id})


def initial_run_tags(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dict[str, str]:
    """The tags that a run starts with: how it is retried, without the state of the failed run."""
    # Dagster's default retries the steps that the log of a dead process does not show as done; it
    # gives up if there are none. Publishing a day again costs little and is always right.
    tags = {} if RETRY_STRATEGY_TAG in run.tags else {RETRY_STRATEGY_TAG: "ALL_STEPS"}
    # For the retry, which inherits it: other work waits for it, and it has been in the queue once.
    tags[PRIORITY_TAG] = str(_queue_priority(run) + 1)
    if DISK_FAILED_TAG in run.tags:
        tags[DISK_FAILED_TAG] = "false"
    if run.tags.get(ENGINE_LOST_TAG, run.run_id) != run.run_id:
        # A retry inherits the tags of the failed run; but its own failure may come from the data.
        default = instance.run_retries_retry_on_asset_or_op_failure
        tags[RETRY_ON_FAILURE] = str(default).lower()
    return tags


def _queue_priority(run: dg.DagsterRun) -> int:
    """The priority as the queue reads it."""
    text = run.tags.get(PRIORITY_TAG, "0")
    return int(text) if re.fullmatch(r"-?\d+", text) else 0


#: The time that Dagster has to launch a retry; and the age after which a retry is not expected any
#: more.
RETRY_PATIENCE = timedelta(minutes=2)
_STALE = timedelta(days=1)
#: The maximum number of requests for a retry.
MAX_ATTEMPTS = 5


def launch_lost_retries(
    instance: dg.DagsterInstance,
    attempts: Mapping[str, int],
    now: datetime,
    owns_run: Callable[[dg.DagsterRun], bool] = lambda _: True,
) -> dict[str, int]:
    """Have Dagster look again at failed runs whose retry it did not launch.

    Its daemon retries at a failure event, so that event is sent again. After `MAX_ATTEMPTS` the run
    is marked as not retried: a backfill then ends as failed instead of never. `attempts` is the
    result of the last call: the number of sent events by run. Runs that are not owned are left to
    others.
    """
    updated = {run_id: n for run_id, n in attempts.items() if _is_waiting(instance, run_id, now)}
    for run in filter(owns_run, _lost_runs(instance, now - RETRY_PATIENCE)):
        count = updated[run.run_id] = updated.get(run.run_id, 0) + 1
        if run.status is dg.DagsterRunStatus.NOT_STARTED:
            instance.report_run_failed(run, "It was created as a retry and never queued.")
        elif count <= MAX_ATTEMPTS:
            instance.report_run_failed(run, "It was not retried as it should be: once more.")
        elif count == MAX_ATTEMPTS + 1:
            instance.add_run_tags(run.run_id, {WILL_RETRY_TAG: "false"})
            instance.report_engine_event("No retry could be launched in time; given up.", run)
    return updated


def _is_waiting(instance: dg.DagsterInstance, run_id: str, now: datetime) -> bool:
    recent = dg.RunsFilter(
        run_ids=[run_id], statuses=[dg.DagsterRunStatus.FAILURE], updated_after=now - _STALE
    )
    return any(AUTO_RETRY_RUN_ID_TAG not in run.tags for run in instance.get_runs(recent))


def _lost_runs(instance: dg.DagsterInstance, before: datetime) -> list[dg.DagsterRun]:
    """The failed or unqueued runs whose expected retry nobody will launch."""
    runs: dict[str, dg.DagsterRun] = {}
    for status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.NOT_STARTED):
        recent = dg.RunsFilter(
            statuses=[status], updated_after=before - _STALE, updated_before=before
        )
        runs |= {run.run_id: run for run in instance.get_runs(recent)}
        for backfill in instance.get_backfills(status=BulkActionStatus.REQUESTED):
            # However old: the backfill waits for ever.
            backfill_runs = dg.RunsFilter(
                statuses=[status],
                tags={BACKFILL_ID_TAG: backfill.backfill_id},
                updated_before=before,
            )
            runs |= {run.run_id: run for run in instance.get_runs(backfill_runs)}
    return [run for run in runs.values() if _is_lost(instance, run)]


def _is_lost(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether Dagster owes the run a retry, or the run is itself a retry that was never queued."""
    if BACKFILL_ID_TAG in run.tags:
        backfill = instance.get_backfill(run.tags[BACKFILL_ID_TAG])
        if backfill is None or backfill.status in BULK_ACTION_TERMINAL_STATUSES:
            return False  # Dagster retries no run of an ended backfill
    if run.status is dg.DagsterRunStatus.NOT_STARTED:
        return RETRY_NUMBER_TAG in run.tags
    return run.is_complete_and_waiting_to_retry or _failed_to_retry(instance, run)


def _failed_to_retry(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether Dagster should have retried the run but could not: the tag is "false" then."""
    if run.tags.get(WILL_RETRY_TAG) != "false":
        return False
    reason_tag = run.tags.get(RUN_FAILURE_REASON_TAG)
    failure_reason = RunFailureReason(reason_tag) if reason_tag else None
    if not auto_reexecution_should_retry_run(instance, run, failure_reason):
        return False
    group = instance.get_run_group(run.run_id)
    return group is not None and all(other.parent_run_id != run.run_id for other in group[1])


def awaits_retry(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether Dagster is to launch a retry of a failed run, and the failure is not too old."""
    now = datetime.now(timezone.utc)
    return run.is_complete_and_waiting_to_retry and _is_waiting(instance, run.run_id, now)


def is_retry(run: dg.DagsterRun) -> bool:
    """Whether the run is a retry by Dagster."""
    return "dagster/retry_number" in run.tags


def first_attempt(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRun:
    """The original run of a retry by Dagster; else the run itself."""
    while is_retry(run):
        parent = instance.get_run_by_id(run.tags.get("dagster/parent_run_id", ""))
        if parent is None:
            break
        run = parent
    return run
