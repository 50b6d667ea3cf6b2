"""Runs whose process is gone are noticed, and no others."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import date, datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
import yaml
from dagster._core.instance.config import PoolGranularity
from dagster._core.launcher import WorkerStatus
from dagster._core.storage.dagster_run import DagsterRunStatus
from dagster._core.storage.tags import TagType, get_tag_type
from dagster._core.test_utils import create_run_for_test
from dagster._daemon import controller
from dagster._daemon.backfill import execute_backfill_iteration_loop
from dagster._daemon.monitoring.run_monitoring import (
    execute_run_monitoring_iteration,
    monitor_started_run,
)
from dagster._daemon.run_coordinator import QueuedRunCoordinatorDaemon
from dagster._utils.log import get_dagster_logger
from dagster._utils.tags import TagConcurrencyLimitsCounter

from backfill_assets.calendar.partitions import Window
from backfill_assets.dagster_ext.run_locks import (
    PROCESS_TAG,
    RUN_LOCK_FILE,
    hold_run_lock,
    is_run_alive,
)
from backfill_assets.definitions import build_defs
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.automation import _run_request
from backfill_assets.monitoring.incidents import Monitor
from backfill_assets.monitoring.next_runs import LOAD, REBUILD, Request
from backfill_assets.serve.launcher import DaemonInterval, WatchingRunLauncher
from backfill_assets.settings import load_settings
from backfill_assets_tests.helpers.paths import PROJECT, dagster_yaml

NIGHT = date(2024, 1, 3)
#: A run's process: it works until its standard input ends.
WORKER = """
import os, signal, subprocess, sys, time
import dagster as dg
from backfill_assets.dagster_ext.run_locks import hold_run_lock

# As Dagster does in a run's process, whatever started it: a shell's background ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
with dg.DagsterInstance.from_config(sys.argv[1]) as instance:
    instance.add_run_tags(sys.argv[2], hold_run_lock(instance, sys.argv[2]))
    {more}
    print("signed on", flush=True)
    sys.stdin.read()
"""
#: What outlives its parent: a JVM, a fork.
CHILDREN = """subprocess.Popen(["sleep", "600"])
    if os.fork() == 0:
        time.sleep(600)"""


@pytest.fixture
def instance(tmp_path, monkeypatch) -> Iterator[dg.DagsterInstance]:
    """The instance of dagster.yaml, without the patience."""
    home = tmp_path / "home"
    home.mkdir()
    text = dagster_yaml().read_text()
    launcher = "class: WatchingRunLauncher\n"
    assert launcher in text
    impatient = text.replace(launcher, f"{launcher}  config:\n    grace_seconds: 0\n")
    (home / "dagster.yaml").write_text(impatient)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as dagster_instance:
        yield dagster_instance


def start_run(instance: dg.DagsterInstance, **tags: str) -> str:
    return create_run_for_test(instance, status=DagsterRunStatus.STARTED, tags=tags).run_id


def read_run(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRun:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run


def worker_health(instance: dg.DagsterInstance, run_id: str) -> WorkerStatus:
    return instance.run_launcher.check_run_worker_health(read_run(instance, run_id)).status


def monitor_runs(instance: dg.DagsterInstance) -> None:
    """One look of the daemon's run monitoring."""
    context = SimpleNamespace(instance=instance, create_request_context=lambda: None)
    errors = execute_run_monitoring_iteration(context, get_dagster_logger())  # type: ignore
    assert not [error for error in errors if error]


@contextmanager
def start_worker(
    instance: dg.DagsterInstance, run_id: str, more: str = ""
) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER.format(more=more), instance.root_directory, run_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"signed on\n"
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its children as well
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.mark.parametrize("storage", ["files", "postgres"])
def test_a_killed_process_is_noticed_and_its_run_is_retried(request, tmp_path, storage):
    """And no other is: neither in doubt, nor at once, nor for a process that comes after it."""
    if storage == "postgres":
        request.getfixturevalue("database")
    instance = request.getfixturevalue("instance")
    run_id, other, later = (start_run(instance) for _ in range(3))
    with start_worker(instance, run_id, CHILDREN) as process:
        assert worker_health(instance, run_id) is WorkerStatus.RUNNING
        monitor_runs(instance)
        assert read_run(instance, run_id).status is DagsterRunStatus.STARTED
        process.kill()
        process.wait()
        # What it started lives on, and must not pass for it.
        assert worker_health(instance, run_id) is WorkerStatus.NOT_FOUND

    # It is given up only after a while.
    patient = WatchingRunLauncher()
    patient.register_instance(instance)
    looks = [patient.check_run_worker_health(read_run(instance, run_id)).status for _ in range(2)]
    assert looks == [WorkerStatus.RUNNING] * 2

    # In doubt a run is alive.
    tag = read_run(instance, run_id).tags[PROCESS_TAG]
    assert is_run_alive(instance, read_run(instance, run_id)) is False
    # A run of other code, and a retry that has the tags of the run before and not begun yet.
    for run in (start_run(instance), start_run(instance, **{PROCESS_TAG: tag})):
        assert is_run_alive(instance, read_run(instance, run)) is None
        assert worker_health(instance, run) is WorkerStatus.RUNNING
    # Another machine, whose runs are in the same database: it has a file of its own.
    elsewhere = SimpleNamespace(root_directory=str(tmp_path))
    assert is_run_alive(elsewhere, read_run(instance, run_id)) is None  # type: ignore

    # A process that signs on after it is not taken for it, whatever its process id.
    with start_worker(instance, later) as process:
        assert worker_health(instance, run_id) is WorkerStatus.NOT_FOUND
        assert worker_health(instance, later) is WorkerStatus.RUNNING
        monitor_runs(instance)
        # It can be ended, though what started it is gone, and nobody else knows the process.
        assert instance.run_launcher.terminate(later)
        assert process.wait() != 0  # KeyboardInterrupt
    assert read_run(instance, later).status is DagsterRunStatus.CANCELING
    assert not instance.run_launcher.terminate(later), "its process has ended"
    run = read_run(instance, run_id)
    assert run.status is DagsterRunStatus.FAILURE
    assert run.tags["dagster/will_retry"] == "true"
    assert read_run(instance, other).status is DagsterRunStatus.STARTED
    # With the storage in Postgres, the processes leave nothing in files.
    assert bool([*Path(instance.root_directory).rglob("*.db")]) is (storage == "files")


def test_a_run_that_ends_while_it_is_looked_at_stays_as_it_ended(instance):
    run_id = start_run(instance)
    with start_worker(instance, run_id) as process:
        (record,) = instance.get_run_records()
        instance.report_dagster_event(
            dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, record.dagster_run.job_name),
            run_id,
        )
        process.stdin.close()
        process.wait()
    assert worker_health(instance, run_id) is WorkerStatus.NOT_FOUND
    monitor_started_run(instance, None, record, get_dagster_logger())  # type: ignore
    assert read_run(instance, run_id).status is DagsterRunStatus.SUCCESS


def test_runs_of_this_process_are_alive(instance):
    run_id = start_run(instance)
    instance.add_run_tags(run_id, hold_run_lock(instance, run_id))
    assert worker_health(instance, run_id) is WorkerStatus.RUNNING


def test_a_run_goes_on_where_nothing_can_be_locked(instance, caplog):
    Path(instance.root_directory, RUN_LOCK_FILE).mkdir()
    run_id = start_run(instance)
    assert hold_run_lock(instance, run_id) == {}
    assert "nobody will notice" in caplog.text
    assert worker_health(instance, run_id) is WorkerStatus.RUNNING


def test_the_instance_of_the_project(instance):
    assert isinstance(instance.run_launcher, WatchingRunLauncher)
    assert instance.run_monitoring_enabled and instance.run_retries_enabled
    assert instance.run_retries_max_retries == 2
    assert not instance.run_retries_retry_on_asset_or_op_failure
    # What did not start may have lost its code server as well, which its retry needs.
    assert instance.run_monitoring_start_timeout_seconds > 90
    assert instance.run_monitoring_settings["free_slots_after_run_end_seconds"]
    concurrency = instance.get_concurrency_config()
    assert concurrency.run_queue_config.max_concurrent_runs == 4
    assert concurrency.run_queue_config.max_user_code_failure_retries
    assert concurrency.pool_config.pool_granularity is PoolGranularity.OP
    assert concurrency.pool_config.default_pool_limit == 1


def test_the_daemon_looks_at_backfills_as_often_as_at_the_queue(instance, monkeypatch):
    # As Dagster has it, and as any test before this one left it.
    monkeypatch.setattr(controller, "DEFAULT_DAEMON_INTERVAL_SECONDS", 30)
    controller.create_daemon_of_type(QueuedRunCoordinatorDaemon.daemon_type(), instance)
    waits: list[float] = []

    class Shutdown(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            return False

    daemon = SimpleNamespace(instance=instance)
    loop = execute_backfill_iteration_loop(daemon, logging.getLogger(), Shutdown())
    while not waits:
        next(loop)
    assert 0 < waits[0] <= 2


def test_the_daemon_does_not_look_at_large_backfills_all_the_time():
    assert DaemonInterval(2) - 0.5 == 1.5
    assert DaemonInterval(2) - 7.0 == 7.0
    assert DaemonInterval(2) - 100.0 == 30.0


def test_what_goes_first_and_what_goes_alone():
    request = Request(("fact_daily_orders",), Window(date(2024, 1, 1), date(2024, 1, 3)), "key")
    look = Monitor(Deployment(load_settings()), lambda: datetime(2024, 1, 3, tzinfo=timezone.utc))
    tags = {kind: _run_request(look, request, kind, NIGHT).tags for kind in (LOAD, REBUILD)}
    assert int(tags[LOAD]["dagster/priority"]) > 0
    repository = build_defs(load_settings()).get_repository_def()
    pools = {
        key.to_user_string(): assets.op.pool
        for key, assets in repository.assets_defs_by_key.items()
        if assets.is_executable and assets.op.pool
    }
    assert pools == {"lateness_dashboard": "lateness_dashboard"}
    text = yaml.safe_load(dagster_yaml().read_text())
    limits = TagConcurrencyLimitsCounter(text["concurrency"]["runs"]["tag_concurrency_limits"], [])
    loads, rebuilds = (
        [SimpleNamespace(tags=tags[kind]) for _ in range(2)] for kind in (LOAD, REBUILD)
    )
    for first, second, blocked in ((*loads, True), (*rebuilds, False)):
        assert not limits.is_blocked(first)  # type: ignore[arg-type]
        limits.update_counters_with_launched_item(first)  # type: ignore[arg-type]
        assert limits.is_blocked(second) is blocked  # type: ignore[arg-type]


def test_the_tag_of_the_process_is_not_shown(instance):
    assert get_tag_type(PROCESS_TAG) is TagType.HIDDEN


@pytest.mark.parametrize(("module", "name"), [("dagster_docker", "Docker"), ("dagster_k8s", "K8s")])
def test_runs_elsewhere_do_not_go_with_files_here(tmp_path, monkeypatch, module, name):
    config = yaml.safe_load((PROJECT / "dagster.yaml").read_text())
    config["run_launcher"] = {"module": module, "class": f"{name}RunLauncher"}
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    refused = pytest.raises(dg.DagsterInvariantViolationError, match=f"{name}RunLauncher starts")
    with dg.DagsterInstance.get() as instance, refused:
        _ = instance.run_coordinator
