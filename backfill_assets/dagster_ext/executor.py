"""How a run runs: all its steps in one process, which is known by its lock and its retries.

Only what concerns every run, whoever launched it, belongs here.
"""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
from dagster._core.events import DagsterEvent
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.execution.step_dependency_config import StepDependencyConfig

from backfill_assets.dagster_ext.launcher import sign_on
from backfill_assets.dagster_ext.retries import engine_lost, fresh_tags, retry_later


class _OneProcess(dg.Executor):
    """Dagster's in-process executor, which signs on and marks what deserves another attempt."""

    def __init__(self, plain: dg.Executor) -> None:
        self.plain = plain

    @property
    def retries(self) -> RetryMode:
        return self.plain.retries

    @property
    def step_dependency_config(self) -> StepDependencyConfig:
        return self.plain.step_dependency_config

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[DagsterEvent]:
        instance, run = plan_context.instance, plan_context.dagster_run
        tags = {**sign_on(instance, run.run_id), **fresh_tags(instance, run)}
        instance.add_run_tags(run.run_id, tags)
        for event in self.plain.execute(plan_context, execution_plan):
            if event.is_step_failure and engine_lost(event.step_failure_data.error):
                retry_later(instance, run.run_id)
            yield event


def _one_process(context: dg.InitExecutorContext) -> dg.Executor:
    make = dg.in_process_executor.executor_creation_fn
    assert make is not None
    return _OneProcess(make(context))


#: Takes the configuration of Dagster's own.
one_process_executor = dg.ExecutorDefinition(
    "in_process",
    config_schema=dg.in_process_executor.config_schema.as_field(),
    executor_creation_fn=_one_process,
    description="All steps in one process, which holds the run's lock.",
)
