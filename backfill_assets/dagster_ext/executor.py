"""How a run runs: in one process, which is known by its lock and its retries; see `steps`.

Only what concerns every run, whoever launched it, belongs here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import dagster as dg
from dagster._core.events import DagsterEvent, EngineEventData
from dagster._core.execution.api import ExecuteRunWithPlanIterable
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.context_creation_job import PlanExecutionContextManager
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode, get_retries_config
from dagster._core.execution.step_dependency_config import (
    StepDependencyConfig,
    get_step_dependency_config_field,
)
from dagster._utils.error import SerializableErrorInfo

from backfill_assets.dagster_ext.engine_failures import is_disk_failure, is_engine_lost
from backfill_assets.dagster_ext.retries import DISK_FAILED_TAG, initial_run_tags, retry_later
from backfill_assets.dagster_ext.run_locks import hold_run_lock
from backfill_assets.dagster_ext.steps import run_steps_in_threads


class _OneProcessExecutor(dg.Executor):
    """Runs steps that do not depend on one another at the same time, on one engine.

    It signs the process on, and marks what deserves another attempt. Dagster's in-process executor
    runs one step at a time, and its multiprocess executor starts a process for each step.
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
    ) -> Iterator[DagsterEvent]:
        instance, run = plan_context.instance, plan_context.dagster_run
        tags = {**hold_run_lock(instance, run.run_id), **initial_run_tags(instance, run)}
        instance.add_run_tags(run.run_id, tags)
        keys, pid = execution_plan.step_keys_to_execute, os.getpid()
        yield DagsterEvent.engine_event(
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
                _mark_for_retry(instance, run.run_id, event.step_failure_data.error)
            yield event
        yield DagsterEvent.engine_event(
            plan_context,
            f"Finished steps in process (pid: {pid})",
            EngineEventData.in_process(pid, keys),
        )


def _mark_for_retry(
    instance: dg.DagsterInstance, run_id: str, error: SerializableErrorInfo | None
) -> None:
    """Mark a run whose step failed, if that was not the data's doing."""
    disk = is_disk_failure(error)
    if disk:
        instance.add_run_tags(run_id, {DISK_FAILED_TAG: "true"})
    if disk or is_engine_lost(error):
        retry_later(instance, run_id)


def _create_executor(context: dg.InitExecutorContext) -> dg.Executor:
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
