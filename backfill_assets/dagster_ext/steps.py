"""The steps of a run in threads of one process: those that wait for nothing, at the same time."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

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
_GRACE = 5.0


@dataclass(frozen=True)
class _Threads:
    """The steps that run, and what they have told of.

    Attributes:
        told: a step's key with each of its events, and at its end with what it raised, or none.
        running: the threads by step.
    """

    told: SimpleQueue[tuple[str, DagsterEvent | BaseException | None]] = field(
        default_factory=SimpleQueue
    )
    running: dict[str, Thread] = field(default_factory=dict)

    def start(self, context: StepExecutionContext) -> None:
        """Begin a step."""
        # Without `daemon`, Python would wait at its end for a step that was interrupted.
        thread = Thread(target=self._run, args=[context], name=context.step.key, daemon=True)
        self.running[context.step.key] = thread
        thread.start()

    def _run(self, context: StepExecutionContext) -> None:
        key, events = context.step.key, []
        try:
            for event in dagster_event_sequence_for_step(context):
                events.append(event)
                self.told.put((key, event))
            for event in _trigger_hook(context, events):
                self.told.put((key, event))
        except BaseException as error:  # noqa: BLE001 - raised where the events are taken
            self.told.put((key, error))
        else:
            self.told.put((key, None))

    def interrupt(self) -> None:
        """Interrupt all steps, as a signal does to the main thread: before the next line of Python.

        So a step that waits for the engine commits nothing when it gets its answer.
        """
        interrupt = ctypes.py_object(DagsterExecutionInterruptedError)
        for thread in self.running.values():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), interrupt)

    def last_words(self) -> Iterator[DagsterEvent]:
        """What steps still tell of after they were interrupted, if they do so soon."""
        until = monotonic() + _GRACE
        while self.running and (left := until - monotonic()) > 0:
            try:
                key, told = self.told.get(timeout=left)
            except Empty:
                return
            if isinstance(told, DagsterEvent):
                yield told
            else:
                del self.running[key]


def in_threads(
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
        threads = _Threads()
        try:
            yield from _run_all(job_context, active, threads)
        except GeneratorExit:
            threads.interrupt()
            raise
        except BaseException:
            threads.interrupt()
            yield from threads.last_words()
            raise
        try:
            logs.close()
        except Exception:  # noqa: BLE001 - as Dagster's own executor has it
            yield from _handle_compute_log_teardown_error(job_context, sys.exc_info())


def _run_all(
    context: PlanExecutionContext, active: ActiveExecution, threads: _Threads
) -> Iterator[DagsterEvent]:
    while not active.is_complete or threads.running:
        for step in active.get_steps_to_execute():
            threads.start(context.for_step(step, active.get_known_state()))
        yield from active.concurrency_event_iterator(context)
        if not threads.running:
            active.sleep_til_ready()
        elif found := _next(threads, active):
            key, told = found
            if isinstance(told, DagsterEvent):
                yield told
                active.handle_event(told)
                continue
            del threads.running[key]
            if told is not None:
                raise told
            active.verify_complete(context, key)
        yield from active.plan_events_iterator(context)


def _next(threads: _Threads, active: ActiveExecution) -> Any:
    """What is told next; none if before that it is time to look for steps that may begin."""
    wait = active.sleep_interval()
    with raise_execution_interrupts():
        try:
            return threads.told.get(timeout=max(wait, 0.01) if wait else None)
        except Empty:
            return None


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
