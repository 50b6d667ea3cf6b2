"""Further attempts of runs: which get one, and retries that got lost.

A run that ends without a word is Dagster's to retry (`run_retries` in dagster.yaml). A step that
fails is not retried, as its input is the same next time, unless what failed is Spark itself: see
`engine_failures`.

Dagster looks at a failed run once. A retry that it cannot launch at that moment is lost, and a
backfill waits for it for ever: `launch_lost_retries` finds such runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta

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
from dagster._utils.tags import get_boolean_tag_value

#: The tag of a run that lost its engine: the id of the run.
ENGINE_LOST_TAG = "backfill_assets/engine_lost"
#: The tag of a run that failed as the engine's disk did; to retries it is said anew.
DISK_FAILED_TAG = "backfill_assets/engine_disk_failed"


def retry_later(instance: dg.DagsterInstance, run_id: str) -> None:
    """Have Dagster run this run again if it fails, although it is a step that fails.

    To be called before the run ends: Dagster decides at its end.
    """
    run = instance.get_run_by_id(run_id)
    if run and not get_boolean_tag_value(run.tags.get(RETRY_ON_FAILURE)):
        instance.add_run_tags(run_id, {RETRY_ON_FAILURE: "true", ENGINE_LOST_TAG: run_id})


def initial_run_tags(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dict[str, str]:
    """The tags that a run begins with: how it is retried, and nothing of the run before it."""
    # Dagster's default takes up the steps that the log of a dead process does not show as done; it
    # gives up if there are none. To publish a day once more costs little and is always right.
    tags = {} if RETRY_STRATEGY_TAG in run.tags else {RETRY_STRATEGY_TAG: "ALL_STEPS"}
    # Of no use to a run that has begun, but its retry inherits it: what waits for the run, waits
    # for that, and has been in the queue once.
    tags[PRIORITY_TAG] = str(_queue_priority(run) + 1)
    if DISK_FAILED_TAG in run.tags:
        tags[DISK_FAILED_TAG] = "false"
    if run.tags.get(ENGINE_LOST_TAG, run.run_id) != run.run_id:
        # A retry is given the tags of the run before it; but what fails now may be the data.
        default = instance.run_retries_retry_on_asset_or_op_failure
        tags[RETRY_ON_FAILURE] = str(default).lower()
    return tags


def _queue_priority(run: dg.DagsterRun) -> int:
    """As the queue reads it."""
    text = run.tags.get(PRIORITY_TAG, "0")
    return int(text) if re.fullmatch(r"-?\d+", text) else 0


#: For so long Dagster has time to launch a retry, and after so long nobody waits for one any more.
RETRY_PATIENCE = timedelta(minutes=2)
_STALE = timedelta(days=1)
#: So often a retry is asked for.
MAX_ATTEMPTS = 5


def launch_lost_retries(
    instance: dg.DagsterInstance, attempts: Mapping[str, int], now: datetime
) -> dict[str, int]:
    """Have Dagster look once more at failed runs whose retry it did not launch.

    Its daemon retries at the event of a failure, so that is told again. After some attempts the run
    is marked as one that is not retried: a backfill then ends as failed rather than never.

    Args:
        instance: where the runs are.
        attempts: how often each was told of, as this function returned it the last time.
        now: the time.

    Returns:
        The same, as of now.
    """
    updated = {run_id: n for run_id, n in attempts.items() if _is_waiting(instance, run_id, now)}
    for run in _lost_runs(instance, now - RETRY_PATIENCE):
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
    """The runs that wait for a retry that nobody is about to launch."""
    runs: dict[str, dg.DagsterRun] = {}
    for status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.NOT_STARTED):
        recent = dg.RunsFilter(
            statuses=[status], updated_after=before - _STALE, updated_before=before
        )
        runs |= {run.run_id: run for run in instance.get_runs(recent)}
        for backfill in instance.get_backfills(status=BulkActionStatus.REQUESTED):
            # It waits for ever.
            backfill_runs = dg.RunsFilter(
                statuses=[status],
                tags={BACKFILL_ID_TAG: backfill.backfill_id},
                updated_before=before,
            )
            runs |= {run.run_id: run for run in instance.get_runs(backfill_runs)}
    return [run for run in runs.values() if _is_lost(instance, run)]


def _is_lost(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    if BACKFILL_ID_TAG in run.tags:
        backfill = instance.get_backfill(run.tags[BACKFILL_ID_TAG])
        if backfill is None or backfill.status in BULK_ACTION_TERMINAL_STATUSES:
            return False  # Dagster retries nothing of a backfill that has ended
    if run.status is dg.DagsterRunStatus.NOT_STARTED:
        return RETRY_NUMBER_TAG in run.tags
    return run.is_complete_and_waiting_to_retry or _failed_to_retry(instance, run)


def _failed_to_retry(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether the run should have been retried and Dagster could not: it says "false" then."""
    if run.tags.get(WILL_RETRY_TAG) != "false":
        return False
    reason_tag = run.tags.get(RUN_FAILURE_REASON_TAG)
    failure_reason = RunFailureReason(reason_tag) if reason_tag else None
    if not auto_reexecution_should_retry_run(instance, run, failure_reason):
        return False
    group = instance.get_run_group(run.run_id)
    return group is not None and all(other.parent_run_id != run.run_id for other in group[1])


def is_retry(run: dg.DagsterRun) -> bool:
    """Whether a run is one that Dagster repeats."""
    return "dagster/retry_number" in run.tags


def first_attempt(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRun:
    """The run that this one repeats, if it is a retry of Dagster's; else itself."""
    while is_retry(run):
        parent = instance.get_run_by_id(run.tags.get("dagster/parent_run_id", ""))
        if parent is None:
            break
        run = parent
    return run
