"""How a run runs: which steps at the same time, and what becomes of it when one of them fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from threading import Barrier, Lock

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.execution.api import execute_run

from backfill_assets.dagster_ext.executor import one_process_executor
from backfill_assets.dagster_ext.failures import raise_if_interrupted

PATIENCE = 60
#: What a step does, by its name.
Work = Callable[[str], int]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as dagster_instance:
        yield dagster_instance


def run_job(instance: dg.DagsterInstance, job: dg.JobDefinition) -> dg.DagsterRun:
    created = instance.create_run_for_job(job)
    execute_run(InMemoryJob(job), created, instance)
    finished_run = instance.get_run_by_id(created.run_id)
    assert finished_run is not None
    return finished_run


def step_events(instance: dg.DagsterInstance, dagster_run: dg.DagsterRun, step: str) -> list[str]:
    """What a step told of, in order."""
    dagster_events = [
        log.dagster_event for log in instance.all_logs(dagster_run.run_id) if log.is_dagster_event
    ]
    return [
        e.event_type_value
        for e in dagster_events
        if e.step_key == step and "LOG" not in e.event_type_value
    ]


def two_and_their_sum(work: Work, at_once: int = 4) -> dg.JobDefinition:
    """Two steps that wait for nothing, and one that waits for both."""

    @dg.op
    def one() -> int:
        return work("one")

    @dg.op
    def two() -> int:
        return work("two")

    @dg.op
    def both(a: int, b: int) -> int:
        return work("both")

    config = {"execution": {"config": {"max_concurrent": at_once}}}

    @dg.job(executor_def=one_process_executor, config=config)
    def job() -> None:
        both(one(), two())

    return job


def test_steps_that_wait_for_nothing_run_at_the_same_time(instance):
    met, finished = Barrier(2), []

    def work(name: str) -> int:
        if name != "both":
            met.wait(PATIENCE)
        finished.append(name)
        return 1

    finished_run = run_job(instance, two_and_their_sum(work))
    assert finished_run.status is dg.DagsterRunStatus.SUCCESS
    assert finished[-1] == "both"
    assert sorted(finished) == ["both", "one", "two"]
    for step in ("one", "two"):
        assert step_events(instance, finished_run, step) == [
            "STEP_START",
            "STEP_OUTPUT",
            "HANDLED_OUTPUT",
            "STEP_SUCCESS",
        ]


def test_the_console_has_no_line_for_each_day(instance, capfd):
    def evaluation(partition: str | None, *, passed: bool) -> dg.AssetCheckEvaluation:
        return dg.AssetCheckEvaluation(dg.AssetKey("t"), "c", passed=passed, partition=partition)

    @dg.op(out=dg.Out(is_required=False))
    def publish():
        yield dg.AssetMaterialization("t", partition="2024-01-01")
        yield dg.AssetMaterialization("page")
        yield evaluation("2024-01-01", passed=True)
        yield evaluation("2024-01-02", passed=False)
        yield evaluation(None, passed=True)

    @dg.job(executor_def=one_process_executor)
    def job() -> None:
        publish()

    def printed_events(run_config: dict | None = None) -> list[str]:
        created = instance.create_run_for_job(job, run_config=run_config)
        execute_run(InMemoryJob(job), created, instance)
        assert len([e for e in step_events(instance, created, "publish") if "ASSET" in e]) == 5
        lines = capfd.readouterr().err.splitlines()
        return [line.partition(" - ASSET_")[2] for line in lines if " - ASSET_" in line]

    page = "MATERIALIZATION - Materialized value page."
    check = "CHECK_EVALUATION - Asset check 'c' on 't'"
    assert printed_events() == [page, f"{check} did not pass.", f"{check} passed."]
    assert len(printed_events({"loggers": {"console": {"config": {"log_level": "DEBUG"}}}})) == 5


def most_at_once(instance: dg.DagsterInstance, make_job: Callable[[Work], dg.JobDefinition]) -> int:
    """How many steps of a job ran at the same time."""
    lock, running, counts = Lock(), 0, []

    def work(_: str) -> int:
        nonlocal running
        with lock:
            running += 1
            counts.append(running)
        time.sleep(0.1)
        with lock:
            running -= 1
        return 1

    assert run_job(instance, make_job(work)).status is dg.DagsterRunStatus.SUCCESS
    return max(counts)


def test_no_more_steps_run_than_may(instance):
    assert most_at_once(instance, lambda work: two_and_their_sum(work, at_once=1)) == 1


def test_a_pool_holds_within_a_run(instance):
    instance.event_log_storage.set_concurrency_slots("engine", 1)

    def make_job(work: Work) -> dg.JobDefinition:
        @dg.op(pool="engine")
        def one() -> int:
            return work("one")

        @dg.op(pool="engine")
        def two() -> int:
            return work("two")

        @dg.job(executor_def=one_process_executor)
        def job() -> None:
            one()
            two()

        return job

    assert most_at_once(instance, make_job) == 1


def test_a_step_that_fails_ends_none_that_does_not_need_it(instance):
    def work(name: str) -> int:
        if name == "one":
            raise ValueError("bad")
        return 1

    finished_run = run_job(instance, two_and_their_sum(work))
    assert finished_run.status is dg.DagsterRunStatus.FAILURE
    assert step_events(instance, finished_run, "one")[-1] == "STEP_FAILURE"
    assert step_events(instance, finished_run, "two")[-1] == "STEP_SUCCESS"
    assert step_events(instance, finished_run, "both") == []


@pytest.mark.parametrize("wait", [None, 0.2])
def test_a_step_may_ask_for_another_attempt(instance, wait):
    attempts = []

    def work(name: str) -> int:
        attempts.append(name)
        if attempts.count("two") == 1 and name == "two":
            raise dg.RetryRequested(max_retries=1, seconds_to_wait=wait)
        return 1

    finished_run = run_job(instance, two_and_their_sum(work))
    assert finished_run.status is dg.DagsterRunStatus.SUCCESS
    assert sorted(attempts) == ["both", "one", "two", "two"]


def test_a_run_that_is_terminated_changes_nothing_any_more(instance):
    """As Dagster terminates it: a signal to its process, whose main thread waits for the steps."""
    met, went_on = Barrier(2), []

    def work(name: str) -> int:
        met.wait(PATIENCE)
        if name == "one":
            instance.report_run_canceling(created)
            os.kill(os.getpid(), signal.SIGINT)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            raise_if_interrupted()
            time.sleep(0.01)
        went_on.append(name)
        return 1

    job = two_and_their_sum(work)
    created = instance.create_run_for_job(job)
    execute_run(InMemoryJob(job), created, instance)
    finished_run = instance.get_run_by_id(created.run_id)
    assert finished_run.status is dg.DagsterRunStatus.CANCELED
    assert went_on == []
    for step in ("one", "two"):
        assert step_events(instance, finished_run, step) == ["STEP_START", "STEP_FAILURE"]
    assert step_events(instance, finished_run, "both") == []


def test_an_interrupted_step_ends_at_its_next_event(instance):
    """Also one that never asks."""
    began, go_on = Barrier(2), []

    @dg.op(out={"a": dg.Out(), "b": dg.Out()})
    def two_outputs():
        began.wait(PATIENCE)
        instance.report_run_canceling(created)
        os.kill(os.getpid(), signal.SIGINT)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and not is_interrupted():
            time.sleep(0.01)
        yield dg.Output(1, "a")
        go_on.append(1)
        yield dg.Output(1, "b")

    @dg.op
    def other() -> None:
        began.wait(PATIENCE)

    def is_interrupted() -> bool:
        try:
            raise_if_interrupted()
        except DagsterExecutionInterruptedError:
            return True
        return False

    @dg.job(executor_def=one_process_executor)
    def job() -> None:
        two_outputs()
        other()

    created = instance.create_run_for_job(job)
    execute_run(InMemoryJob(job), created, instance)
    assert instance.get_run_by_id(created.run_id).status is dg.DagsterRunStatus.CANCELED
    assert go_on == []
    assert step_events(instance, created, "two_outputs")[-1] == "STEP_FAILURE"


def test_how_many_steps_at_once_is_one_at_least(instance):
    job = two_and_their_sum(lambda _: 1, at_once=0)
    created = instance.create_run_for_job(job)
    execute_run(InMemoryJob(job), created, instance)
    assert instance.get_run_by_id(created.run_id).status is dg.DagsterRunStatus.FAILURE
    (failure,) = instance.all_logs(created.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    assert "max_concurrent is 0 and must be 1 or more" in str(failure.dagster_event)
