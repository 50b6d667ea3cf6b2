"""The steps of a run in threads of one process: those that wait for nothing, at the same time."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Event, Thread, local
from time import monotonic
from typing import cast

from dagster._core.errors import DagsterExecutionInterruptedError, raise_execution_interrupts
from dagster._core.events import DagsterEvent
from dagster._core.execution.compute_logs import create_compute_log_file_key
from dagster._core.execution.context.system import PlanExecutionContext, StepExecutionContext
from dagster._core.execution.plan.active import ActiveExecution
from dagster._core.execution.plan.execute_plan import (
    _handle_compute_log_setup_error,
    _handle_compute_log_teardown_error,
    _trigger_hook,
    dagster_event_sequence_for_step,
)
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.execution.plan.plan import ExecutionPlan

#: How long an interrupted step may take to say that it was.
_GRACE_SECONDS = 3.0
#: Steps that wait for another run's slot, or for another attempt, are looked at so often.
_POLL_SECONDS = 1.0

_thread_state = local()


def raise_if_interrupted() -> None:
    """To be called by a step before it makes a change: nothing is changed after a termination.

    A signal reaches the main thread alone, and a step that waits for the engine has no other.

    Raises:
        DagsterExecutionInterruptedError: the run of this thread's step was terminated.
    """
    interrupted: Event | None = getattr(_thread_state, "interrupted", None)
    if interrupted is not None and interrupted.is_set():
        raise DagsterExecutionInterruptedError


@dataclass(frozen=True)
class _StepThreads:
    """The steps that run, and what they have told of.

    Attributes:
        event_queue: a step's key with each of its events, and at its end with what it raised, or none.
        running: by step that runs, the event that says how it ended; none as yet.
        interrupted: whether the run was terminated.
    """

    event_queue: SimpleQueue[tuple[str, DagsterEvent | BaseException | None]] = field(
        default_factory=SimpleQueue
    )
    running: dict[str, DagsterEvent | None] = field(default_factory=dict)
    interrupted: Event = field(default_factory=Event)

    def start_step(self, context: StepExecutionContext) -> None:
        """Begin a step."""
        self.running[context.step.key] = None
        # Without `daemon`, Python would wait at its end for a step that was interrupted.
        Thread(target=self._run_step, args=[context], name=context.step.key, daemon=True).start()

    def _run_step(self, context: StepExecutionContext) -> None:
        _thread_state.interrupted = self.interrupted
        key, reported = context.step.key, []
        events = cast("Generator[DagsterEvent]", dagster_event_sequence_for_step(context))
        try:
            for event in events:
                reported.append(event)
                self.event_queue.put((key, event))
                if self.interrupted.is_set() and not _is_end(event):
                    self.event_queue.put((key, events.throw(DagsterExecutionInterruptedError())))
            for event in _trigger_hook(context, reported):
                self.event_queue.put((key, event))
        except BaseException as error:  # noqa: BLE001 - raised where the events are taken
            self.event_queue.put((key, error))
        else:
            self.event_queue.put((key, None))

    def next_events(self, active: ActiveExecution, timeout: float) -> Iterator[DagsterEvent]:
        """What a step tells of next, if it does so in time; its end counts when its thread is done.

        Otherwise another attempt, or the steps after it, could begin before its hooks are through.

        Raises:
            BaseException: what ended the step's thread.
        """
        try:
            with raise_execution_interrupts():
                key, event = self.event_queue.get(timeout=timeout)
        except Empty:
            return
        if isinstance(event, DagsterEvent):
            yield event
            if _is_end(event):
                self.running[key] = event
            else:
                active.handle_event(event)
            return
        if (end := self.running.pop(key)) is not None:
            active.handle_event(end)
        if event is not None:
            raise event

    def interrupt_steps(self, active: ActiveExecution) -> Iterator[DagsterEvent]:
        """Interrupt all steps; what they still tell of, if they do so soon."""
        self.interrupted.set()
        deadline = monotonic() + _GRACE_SECONDS
        while self.running and (remaining := deadline - monotonic()) > 0:
            with suppress(Exception, DagsterExecutionInterruptedError):
                yield from self.next_events(active, remaining)


def _is_end(event: DagsterEvent) -> bool:
    """Whether an event says how an attempt of a step ended."""
    return event.is_step_success or event.is_step_failure or event.is_step_up_for_retry


def run_steps_in_threads(
    job_context: PlanExecutionContext, execution_plan: ExecutionPlan, at_once: int
) -> Iterator[DagsterEvent]:
    """Run the steps of a plan, each as soon as what it needs is there.

    The events of a step come in their order, those of several steps between one another.

    Args:
        job_context: that of the run, whose resources all steps share.
        execution_plan: the steps.
        at_once: how many may run at the same time.

    Raises:
        DagsterExecutionInterruptedError: the run was terminated.
    """
    with ExitStack() as stack:
        concurrency = InstanceConcurrencyContext(job_context.instance, job_context.dagster_run)
        active = execution_plan.start(
            retry_mode=job_context.retry_mode,
            max_concurrent=at_once,
            instance_concurrency_context=stack.enter_context(concurrency),
            step_dependency_config=job_context.step_dependency_config,
        )
        stack.enter_context(active)
        logs = stack.enter_context(ExitStack())
        yield from _capture_logs(job_context, execution_plan, logs)
        threads = _StepThreads()
        try:
            yield from _run_steps(job_context, active, threads)
        except GeneratorExit:
            threads.interrupted.set()
            raise
        except BaseException:
            yield from threads.interrupt_steps(active)
            raise
        try:
            logs.close()
        except Exception:  # noqa: BLE001 - as Dagster's own executor has it
            yield from _handle_compute_log_teardown_error(job_context, sys.exc_info())


def _run_steps(
    context: PlanExecutionContext, active: ActiveExecution, threads: _StepThreads
) -> Iterator[DagsterEvent]:
    while not active.is_complete or threads.running:
        for step in active.get_steps_to_execute():
            threads.start_step(context.for_step(step, active.get_known_state()))
        yield from active.concurrency_event_iterator(context)
        running_before = {*threads.running}
        wait = active.sleep_interval()
        yield from threads.next_events(
            active, min(wait, _POLL_SECONDS) if wait > 0 else _POLL_SECONDS
        )
        for key in running_before - {*threads.running}:
            active.verify_complete(context, key)
        yield from active.plan_events_iterator(context)


def _capture_logs(
    context: PlanExecutionContext, plan: ExecutionPlan, logs: ExitStack
) -> Iterator[DagsterEvent]:
    """Have what the process prints shown for all steps: a process has one output."""
    manager = context.instance.compute_log_manager
    log_key = manager.build_log_key_for_run(context.run_id, create_compute_log_file_key())
    keys = [step.key for step in plan.get_steps_to_execute_in_topo_order()]
    try:
        captured = logs.enter_context(manager.capture_logs(log_key))
        yield DagsterEvent.capture_logs(context, keys, log_key, captured)
    except Exception:  # noqa: BLE001 - as Dagster's own executor has it
        yield from _handle_compute_log_setup_error(context, sys.exc_info())
