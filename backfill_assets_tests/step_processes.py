"""The host project with an executor like that of Kubernetes: each step is a process by itself.

Dagster's `k8s_job_executor` starts `dagster api execute_step` in a container for each step; here it
is a process in another folder. What steps have in common is the instance, and the warehouse.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import dagster as dg
from dagster._core.definitions.executor_definition import multiple_process_executor_requirements
from dagster._core.events import DagsterEvent
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.step_delegating import (
    CheckStepHealthResult,
    StepDelegatingExecutor,
    StepHandler,
    StepHandlerContext,
)

from backfill_assets_guide.examples.host_project import definitions as host_project
from backfill_assets_tests.helpers.paths import PROJECT


class ProcessStepHandler(StepHandler):
    """Starts the processes of the steps, and knows which of them have failed."""

    name = "ProcessStepHandler"

    def __init__(self) -> None:
        self.processes: dict[str, subprocess.Popen] = {}

    def launch_step(self, step_handler_context: StepHandlerContext) -> Iterator[DagsterEvent]:
        arguments = step_handler_context.execute_step_args
        (step,) = arguments.step_keys_to_execute or ()
        command = [sys.executable, "-m", *arguments.get_command_args()]
        # An installation of the project does not have the tests.
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        self.processes[step] = subprocess.Popen(command, cwd=tempfile.gettempdir(), env=environment)
        yield from ()

    def check_step_health(self, step_handler_context: StepHandlerContext) -> CheckStepHealthResult:
        (step,) = step_handler_context.execute_step_args.step_keys_to_execute or ()
        if exit_code := self.processes[step].poll():
            return CheckStepHealthResult.unhealthy(f"the process ended with {exit_code}")
        return CheckStepHealthResult.healthy()

    def terminate_step(self, step_handler_context: StepHandlerContext) -> Iterator[DagsterEvent]:
        (step,) = step_handler_context.execute_step_args.step_keys_to_execute or ()
        self.processes[step].kill()
        yield from ()


@dg.executor(requirements=multiple_process_executor_requirements())
def step_processes(_: dg.InitExecutorContext) -> StepDelegatingExecutor:
    return StepDelegatingExecutor(
        ProcessStepHandler(),
        retries=RetryMode.DISABLED,
        sleep_seconds=0.2,
        check_step_health_interval_seconds=1,
        should_verify_step=True,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """The definitions of the host project; only the executor is another."""
    project = host_project.defs()
    return dg.Definitions(
        assets=project.assets,
        asset_checks=project.asset_checks,
        resources=project.resources,
        executor=step_processes,
    )
