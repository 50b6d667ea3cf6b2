"""Why runs failed, in the words of their steps."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg


def failed_run_messages(instance: dg.DagsterInstance, backfill_id: str) -> Iterator[str]:
    """The runs of one of Dagster's backfills that failed for good, each in a sentence."""
    failed = dg.RunsFilter(
        tags={"dagster/backfill": backfill_id}, statuses=[dg.DagsterRunStatus.FAILURE]
    )
    for run in instance.get_runs(failed):
        if run.tags.get("dagster/will_retry") != "true":
            yield f"run {run.run_id[:8]} failed: {run_failure_message(instance, run.run_id)}"


def run_failure_message(instance: dg.DagsterInstance, run_id: str) -> str:
    """What the failed steps of a run say; what the run says if it came to no step."""
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
            # What the step raised is the cause of an error of Dagster that says only which step.
            message = (failure.error.cause or failure.error).message
        else:
            message = event.message or ""
        step_messages.append(f"{event.step_key}: {message.strip()}")
    return "\n".join(step_messages or run_messages).strip()
