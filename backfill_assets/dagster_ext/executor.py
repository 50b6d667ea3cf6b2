"""The executor of a run: its steps in threads of one process, which holds the run's lock.

It is used by every run, whoever launched it; it also marks failed runs for a retry.
"""

import os
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from logging import LogRecord
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import Any, cast

import dagster as dg
from dagster import (
    DagsterExecutionInterruptedError,
    StepExecutionContext,
    raise_execution_interrupts,
)
from dagster._core.events import EngineEventData
from dagster._core.execution.api import ExecuteRunWithPlanIterable
from dagster._core.execution.compute_logs import create_compute_log_file_key
from dagster._core.execution.context.system import (
    PlanExecutionContext,
    PlanOrchestrationContext,
)
from dagster._core.execution.context_creation_job import PlanExecutionContextManager
from dagster._core.execution.plan.active import ActiveExecution
from dagster._core.execution.plan.execute_plan import (
    _handle_compute_log_setup_error,
    _handle_compute_log_teardown_error,
    _trigger_hook,
    dagster_event_sequence_for_step,
)
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode, get_retries_config
from dagster._core.execution.step_dependency_config import (
    StepDependencyConfig,
    get_step_dependency_config_field,
)
from dagster._core.log_manager import get_log_record_event, has_log_record_event

from backfill_assets.dagster_ext import failures
from backfill_assets.dagster_ext.run_locks import hold_run_lock

#: Seconds for an interrupted step to report its end.
_GRACE_SECONDS = 3.0
#: Seconds between two looks at steps that wait for a concurrency slot or a retry.
_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class _StepThreads:
    """The threads of running steps, and their events.

    Attributes:
        event_queue: a step's key with each of its events, and at its end with its exception or
            None.
        running: by running step, the event that ended it; None until then.
        interrupted: set when the run is terminated.
    """

    event_queue: SimpleQueue[tuple[str, dg.DagsterEvent | BaseException | None]] = field(
        default_factory=SimpleQueue
    )
    running: dict[str, dg.DagsterEvent | None] = field(default_factory=dict)
    interrupted: Event = field(default_factory=Event)

    def start_step(self, context: StepExecutionContext) -> None:
        self.running[context.step.key] = None
        # Without `daemon`, Python would wait at exit for an interrupted step.
        Thread(target=self._run_step, args=[context], name=context.step.key, daemon=True).start()

    def _run_step(self, context: StepExecutionContext) -> None:
        """The target of a step's thread: queue its events, and at the end None or the exception."""
        failures.thread_state.interrupted = self.interrupted
        key, reported = context.step.key, []
        events = cast("Generator[dg.DagsterEvent]", dagster_event_sequence_for_step(context))
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

    def next_events(self, active: ActiveExecution, timeout: float) -> Iterator[dg.DagsterEvent]:
        """The next event of any step, if one comes in time; a step ends when its thread has ended.

        Otherwise a retry, or the steps after it, could start before its hooks have run.

        Raises:
            BaseException: what ended the step's thread.
        """
        try:
            with raise_execution_interrupts():
                key, event = self.event_queue.get(timeout=timeout)
        except Empty:
            return
        if isinstance(event, dg.DagsterEvent):
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

    def interrupt_steps(self, active: ActiveExecution) -> Iterator[dg.DagsterEvent]:
        """Interrupt all steps, and yield the events that they still report in time."""
        self.interrupted.set()
        deadline = monotonic() + _GRACE_SECONDS
        while self.running and (remaining := deadline - monotonic()) > 0:
            with suppress(Exception, DagsterExecutionInterruptedError):
                yield from self.next_events(active, remaining)


def _is_end(event: dg.DagsterEvent) -> bool:
    return event.is_step_success or event.is_step_failure or event.is_step_up_for_retry


def run_steps_in_threads(
    job_context: PlanExecutionContext, execution_plan: ExecutionPlan, at_once: int
) -> Iterator[dg.DagsterEvent]:
    """Run the steps of a plan, each as soon as its inputs exist; they share the run's resources.

    Each step's events stay in order; those of several steps are interleaved.

    Raises:
        DagsterExecutionInterruptedError: the run was terminated.
    """
    _hide_days_from_console(job_context)
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


def _hide_days_from_console(context: PlanExecutionContext) -> None:
    """Keep a line for each day and check off the console; the event log has them all.

    They were nine tenths of a run's lines. A run whose configuration names loggers prints them.
    """
    if not context.resolved_run_config.loggers:
        for console in context.log._dagster_handler._loggers:  # noqa: SLF001 - no public way
            console.addFilter(_is_for_console)


def _is_for_console(record: LogRecord) -> bool:
    """Whether a record is no event of one day, unless a check of it did not pass."""
    event = get_log_record_event(record) if has_log_record_event(record) else None
    if event is None:
        return True
    if event.event_type_value == dg.DagsterEventType.ASSET_CHECK_EVALUATION.value:
        evaluation = event.asset_check_evaluation_data
        return evaluation.partition is None or not evaluation.passed
    return not (event.is_step_materialization and event.partition)


def _run_steps(
    context: PlanExecutionContext, active: ActiveExecution, threads: _StepThreads
) -> Iterator[dg.DagsterEvent]:
    """Start each step when Dagster says that it is ready, and yield events until all have ended.

    At most `_POLL_SECONDS` pass between two checks for ready steps.
    """
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
) -> Iterator[dg.DagsterEvent]:
    """Show the process's output for all steps: a process has one output."""
    manager = context.instance.compute_log_manager
    log_key = manager.build_log_key_for_run(context.run_id, create_compute_log_file_key())
    keys = [step.key for step in plan.get_steps_to_execute_in_topo_order()]
    try:
        captured = logs.enter_context(manager.capture_logs(log_key))
        yield dg.DagsterEvent.capture_logs(context, keys, log_key, captured)
    except Exception:  # noqa: BLE001 - as Dagster's own executor has it
        yield from _handle_compute_log_setup_error(context, sys.exc_info())


class _OneProcessExecutor(dg.Executor):
    """Runs independent steps at the same time, on one engine.

    It holds the run's lock, and marks failed runs for a retry. Dagster's in-process executor runs
    one step at a time, and its multiprocess executor starts a process for each step.
    """

    def __init__(
        self, retries: RetryMode, step_dependencies: StepDependencyConfig, at_once: int
    ) -> None:
        self._retries = retries
        self._step_dependencies = step_dependencies
        self._at_once = at_once

    @property
    def retries(self) -> RetryMode:
        return self._retries

    @property
    def step_dependency_config(self) -> StepDependencyConfig:
        return self._step_dependencies

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        """Called by Dagster once, in the run's process: take the run's lock and run the steps."""
        instance, run = plan_context.instance, plan_context.dagster_run
        tags = {**hold_run_lock(instance, run.run_id), **failures.initial_run_tags(instance, run)}
        instance.add_run_tags(run.run_id, tags)
        keys, pid = execution_plan.step_keys_to_execute, os.getpid()
        yield dg.DagsterEvent.engine_event(
            plan_context,
            f"Executing steps in process (pid: {pid}), up to {self._at_once} at the same time",
            EngineEventData.in_process(pid, keys),
        )
        steps = ExecuteRunWithPlanIterable(
            execution_plan=execution_plan,
            iterator=partial(run_steps_in_threads, at_once=self._at_once),
            execution_context_manager=PlanExecutionContextManager(
                job=plan_context.job,
                retry_mode=plan_context.retry_mode,
                execution_plan=execution_plan,
                run_config=plan_context.run_config,
                dagster_run=run,
                instance=instance,
                raise_on_error=plan_context.raise_on_error,
                output_capture=plan_context.output_capture,
                step_dependency_config=self._step_dependencies,
            ),
        )
        for event in steps:
            if event.is_step_failure:
                failures.mark_for_retry(instance, run.run_id, event.step_failure_data.error)
            yield event
        yield dg.DagsterEvent.engine_event(
            plan_context,
            f"Finished steps in process (pid: {pid})",
            EngineEventData.in_process(pid, keys),
        )


def _create_executor(context: dg.InitExecutorContext) -> dg.Executor:
    """Called by Dagster for each run, with the run's `execution` configuration."""
    config: Mapping[str, Any] = context.executor_config
    if config["max_concurrent"] < 1:
        raise dg.DagsterInvariantViolationError(
            f"max_concurrent is {config['max_concurrent']} and must be 1 or more."
        )
    return _OneProcessExecutor(
        RetryMode.from_config(config["retries"]) or RetryMode.ENABLED,
        StepDependencyConfig.from_config(config.get("step_dependency_config")),
        config["max_concurrent"],
    )


one_process_executor = dg.ExecutorDefinition(
    "in_process",
    config_schema={
        "retries": get_retries_config(),
        "step_dependency_config": get_step_dependency_config_field(),
        "max_concurrent": dg.Field(
            dg.IntSource,
            default_value=4,
            description="How many steps of a run may run at the same time.",
        ),
    },
    executor_creation_fn=_create_executor,
    description="All steps in the threads of one process, which holds the run's lock.",
)
