"""What is worth another attempt gets one, and what is not does not."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import grpc
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.storage.dagster_run import DagsterRunStatus
from dagster._core.storage.tags import (
    AUTO_RETRY_RUN_ID_TAG,
    BACKFILL_ID_TAG,
    PARENT_RUN_ID_TAG,
    PRIORITY_TAG,
    RETRY_NUMBER_TAG,
    ROOT_RUN_ID_TAG,
    TAGS_TO_MAYBE_OMIT_ON_RETRY,
    WILL_RETRY_TAG,
)
from dagster._core.test_utils import create_run_for_test
from dagster._core.utils import make_new_backfill_id
from dagster._daemon.auto_run_reexecution import auto_run_reexecution
from dagster._time import get_current_timestamp
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkRuntimeError, PySparkValueError
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import functions as F

from backfill_assets.assets.raw_load import RawLoader
from backfill_assets.dagster_ext.executor import one_process_executor
from backfill_assets.dagster_ext.failures import (
    DISK_FAILED_TAG,
    ENGINE_LOST_TAG,
    MAX_ATTEMPTS,
    RETRY_ON_FAILURE,
    RETRY_PATIENCE,
    is_disk_failure,
    is_engine_lost,
    launch_lost_retries,
    raise_if_engine_failed,
    retry_later,
)
from backfill_assets.dagster_ext.run_locks import PROCESS_TAG
from backfill_assets.delta.commits import PublishError
from backfill_assets.deployment import Deployment
from backfill_assets.monitoring.alerts import Incident
from backfill_assets.monitoring.incidents import disk_failures
from backfill_assets.settings import load_settings
from backfill_assets.spark import session as engines
from backfill_assets.spark.jars import EngineError
from backfill_assets_tests.helpers.dagster_homes import make_home
from backfill_assets_tests.helpers.paths import BIN, dagster_yaml
from backfill_assets_tests.helpers.pipeline import Pipeline
from backfill_assets_tests.helpers.process_kills import kill_kinds

HANDLE = "The handle ab67369f is invalid. "


def catch_error(act: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:
        act()
    return caught.value


def chain_errors(error: Exception, cause: Exception) -> Exception:
    def raise_error() -> None:
        raise error from cause

    return catch_error(raise_error)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def connection_refused_error() -> Exception:
    return catch_error(lambda: socket.create_connection(("127.0.0.1", closed_port())))


def unavailable_error() -> Exception:
    with closing(grpc.insecure_channel(f"127.0.0.1:{closed_port()}")) as channel:
        return catch_error(lambda: channel.unary_unary("/x/y")(b"", timeout=20))


class Java(Py4JJavaError):
    """An exception that the JVM told of, without a JVM."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)

    def __str__(self) -> str:
        return str(self.args[0])


# The texts are those of a JVM and of a Connect server that were killed in the middle of a query.
@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Error while sending or receiving"),
        chain_errors(
            PublishError("the commit failed"), Py4JNetworkError("Answer from Java side is empty")
        ),
        Py4JError("An error occurred while calling o51.save"),
        ConnectionResetError(104, "Connection reset by peer"),
        SparkConnectGrpcException(f"[INVALID_HANDLE.SESSION_NOT_FOUND] {HANDLE}Session not found."),
        SparkConnectGrpcException(f"[INVALID_HANDLE.SESSION_CHANGED] {HANDLE}Restarted."),
        SparkConnectGrpcException(f"[INVALID_HANDLE.OPERATION_NOT_FOUND] {HANDLE}"),
        PySparkRuntimeError(
            errorClass="RESPONSE_ALREADY_RECEIVED",
            messageParameters={"error_type": "INVALID_HANDLE.SESSION_NOT_FOUND"},
        ),
        PySparkRuntimeError(errorClass="NO_ACTIVE_SESSION", messageParameters={}),
        Java("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."),
        Java("org.apache.spark.SparkException: Job 3 cancelled because SparkContext was shut down"),
        Java("Lost task 0.3 in stage 1.0: ExecutorLostFailure (executor 1 exited)"),
    ],
    ids=str,
)
def test_a_lost_engine(error):
    assert is_engine_lost(error)


SCRATCH = "/home/x/scratch/engine-1/blockmgr-e7a6f115-459a-4815-94ea-329b171cb2c7/13"
LOST_TASK = (
    "Job aborted due to stage failure: Lost task 1.0 in stage 3.0 (localhost executor driver): "
)


# As engines said it whose disk was full, and whose scratch folder was cleared.
@pytest.mark.parametrize(
    "error",
    [
        Java(f"{LOST_TASK}java.io.IOException: No space left on device\n\tat java.base/x"),
        Java(f"{LOST_TASK}java.io.FileNotFoundException: /s/x (No space left on device)\n\tat x"),
        SparkConnectGrpcException(f"{LOST_TASK}java.io.IOException: Disk quota exceeded"),
        SparkConnectGrpcException(f"(java.nio.file.NoSuchFileException) {SCRATCH}"),
        Java(f"{LOST_TASK}java.nio.file.NoSuchFileException: {SCRATCH}\n\tat x"),
        Java("org.apache.spark.SparkException: Failed to get broadcast_3_piece0 of broadcast_3"),
        Java("org.apache.spark.SparkException: Block rdd_12_0 was not found even though"),
        Java("MetadataFetchFailedException: Missing an output location for shuffle 3 partition 0"),
        chain_errors(PublishError("failed"), Java("java.io.IOException: No space left on device")),
    ],
    ids=str,
)
def test_a_disk_of_the_engine_that_failed(error):
    assert is_disk_failure(error)
    assert not is_engine_lost(error)
    with pytest.raises(EngineError, match="no file is at fault") as caught:
        raise_if_engine_failed(error)
    assert is_disk_failure(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        # Names of files, in an error about the file.
        Java("[FAILED_READ_FILE] file:///l/arrival_date=2024-01-01/No space left on device.json"),
        Java("[FAILED_READ_FILE.FILE_NOT_EXIST] /l/arrival_date=2024-01-01/blockmgr-1.json"),
        Java("[FAILED_READ_FILE] /l/blockmgr-e7a6f115-459a-4815-94ea-329b171cb2c7.json.gz"),
        Java("java.io.EOFException: Unexpected end of input stream"),
        chain_errors(dg.Failure("bad"), Java("java.io.IOException: No space left on device")),
    ],
    ids=str,
)
def test_a_file_that_failed(error):
    assert not is_disk_failure(error)
    raise_if_engine_failed(error)


def test_a_lost_engine_as_the_network_tells():
    assert is_engine_lost(connection_refused_error())
    assert is_engine_lost(chain_errors(RuntimeError("it failed"), connection_refused_error()))
    assert is_engine_lost(unavailable_error())


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        PySparkValueError("bad"),
        AnalysisException("[DELTA_REPLACE_WHERE_MISMATCH] rows outside of the predicate"),
        PublishError("ConcurrentAppendException"),
        Py4JError("An error occurred while calling o5.x. Trace:\npy4j.Py4JException: no method x"),
        Java(
            "An error occurred while calling o51.save.\n: java.lang.ArithmeticException\n\tat x.y"
        ),
        EngineError("Spark needs Java 17 or 21 and there is none on the PATH"),
        chain_errors(
            dg.Failure("not published"), Py4JNetworkError("Answer from Java side is empty")
        ),
        None,
    ],
    ids=str,
)
def test_what_would_fail_again(error):
    assert not is_engine_lost(error)


def test_a_failing_task_of_a_real_engine(spark):
    rows = spark.range(1).select(F.raise_error(F.lit("bad")))
    assert not is_engine_lost(catch_error(rows.collect))
    assert not is_engine_lost(catch_error(rows.write.format("noop").mode("overwrite").save))


def test_a_server_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(engines, "_CONNECT_TIMEOUT", 0.2)
    engine = engines.Engine.from_settings(
        load_settings(spark_remote=f"sc://127.0.0.1:{closed_port()}")
    )
    error = catch_error(lambda: engine.spark_session)
    assert isinstance(error, EngineError)
    assert is_engine_lost(error)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    make_home(tmp_path, "telemetry: {enabled: false}\n")
    retries = {"enabled": True, "max_retries": 2, "retry_on_asset_or_op_failure": False}
    with dg.instance_for_test(
        temp_dir=str(tmp_path), overrides={"run_retries": retries}
    ) as test_instance:
        yield test_instance


def execute_failing_run(
    instance: dg.DagsterInstance, error: Exception | None, tags: dict | None = None
) -> dg.DagsterRun:
    """A run with one step that fails like this."""

    @dg.op
    def step() -> None:
        if error:
            raise error

    @dg.job(executor_def=one_process_executor)
    def work() -> None:
        step()

    created = instance.create_run_for_job(
        work,
        tags=tags or {},
        parent_run_id=(tags or {}).get(PARENT_RUN_ID_TAG),
        root_run_id=(tags or {}).get(ROOT_RUN_ID_TAG),
    )
    execute_run(InMemoryJob(work), created, instance)
    finished_run = instance.get_run_by_id(created.run_id)
    assert finished_run is not None
    return finished_run


def execute_retry(
    instance: dg.DagsterInstance, first: dg.DagsterRun, error: Exception
) -> dg.DagsterRun:
    """The retry of a run, with the tags that Dagster gives it."""
    ids = {PARENT_RUN_ID_TAG: first.run_id, ROOT_RUN_ID_TAG: first.run_id}
    inherited = {
        k: v for k, v in first.tags.items() if k not in ("dagster/will_retry", PROCESS_TAG)
    }
    return execute_failing_run(instance, error, {**inherited, **ids})


def test_only_a_run_that_lost_its_engine_is_retried(instance):
    assert execute_failing_run(instance, None).status is DagsterRunStatus.SUCCESS
    assert execute_failing_run(instance, ValueError("bad")).tags["dagster/will_retry"] == "false"
    assert (
        execute_failing_run(instance, dg.Failure("not published")).tags["dagster/will_retry"]
        == "false"
    )
    failed_run = execute_failing_run(instance, ConnectionRefusedError(111, "Connection refused"))
    assert failed_run.tags["dagster/will_retry"] == "true"
    assert failed_run.tags["dagster/retry_strategy"] == "ALL_STEPS"


def test_a_retry_is_judged_by_its_own_failure(instance):
    failed_run = execute_failing_run(instance, ConnectionRefusedError(111, "Connection refused"))
    assert (
        execute_retry(instance, failed_run, ValueError("bad")).tags["dagster/will_retry"] == "false"
    )
    failed_retry = execute_retry(instance, failed_run, BrokenPipeError(32, "Broken pipe"))
    assert failed_retry.tags[ENGINE_LOST_TAG] == failed_retry.run_id


def test_a_failed_disk_is_retried_and_told_once_for_all_runs(instance):
    def list_incidents(**since: float) -> list[Incident]:
        began = datetime.now(timezone.utc) - timedelta(**since)
        return disk_failures(Deployment(load_settings()), instance, began)

    execute_failing_run(instance, ValueError("bad"))
    execute_failing_run(instance, ConnectionRefusedError(111, "Connection refused"))
    assert list_incidents(hours=1) == []
    full = Java("java.io.IOException: No space left on device")
    failed = execute_failing_run(instance, full)
    assert failed.tags["dagster/will_retry"] == "true"
    (incident,) = list_incidents(hours=1)
    assert failed.run_id[:8] in incident.detail
    assert "No file is at fault" in incident.detail
    execute_failing_run(instance, full)
    (other,) = list_incidents(hours=1)
    assert other.key == incident.key
    # A retry that fails by its data is no such run, though it has the tags of the one before.
    for disk_run in instance.get_runs(dg.RunsFilter(tags={DISK_FAILED_TAG: "true"})):
        instance.add_run_tags(disk_run.run_id, {DISK_FAILED_TAG: "over"})
    retry = execute_retry(instance, failed, ValueError("bad"))
    assert retry.tags[DISK_FAILED_TAG] == "false"
    assert list_incidents(hours=1) == []
    assert list_incidents(hours=-1) == []


def test_a_retry_does_not_go_behind_the_whole_queue(instance):
    """It inherits the tags of the run before."""
    failed_run = execute_failing_run(instance, ConnectionRefusedError(111, "Connection refused"))
    assert failed_run.tags["dagster/priority"] == "1"
    assert PRIORITY_TAG not in TAGS_TO_MAYBE_OMIT_ON_RETRY
    nightly = execute_failing_run(
        instance, BrokenPipeError(32, "Broken pipe"), {"dagster/priority": "1"}
    )
    assert nightly.tags["dagster/priority"] == "2"
    odd = execute_failing_run(
        instance, BrokenPipeError(32, "Broken pipe"), {"dagster/priority": "high"}
    )
    assert odd.tags["dagster/priority"] == "1"


def create_lost_run(instance: dg.DagsterInstance, **tags: str) -> dg.DagsterRun:
    return execute_failing_run(instance, ConnectionRefusedError(111, "Connection refused"), tags)


def count_failures(instance: dg.DagsterInstance, dagster_run: dg.DagsterRun) -> int:
    return len(instance.all_logs(dagster_run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE))


def after_patience() -> datetime:
    """When a retry has been waited for long enough."""
    return datetime.now(timezone.utc) + RETRY_PATIENCE + timedelta(minutes=5)


@pytest.mark.parametrize("how", ["not looked at", "could not be launched"])
def test_a_lost_retry_is_asked_for_again(instance, how):
    failed_run = create_lost_run(instance)
    if how == "could not be launched":
        # What Dagster does where the code server is down at that moment.
        instance.add_run_tags(failed_run.run_id, {WILL_RETRY_TAG: "false"})
    assert launch_lost_retries(instance, {}, datetime.now(timezone.utc)) == {}, "it has time"
    attempts = launch_lost_retries(instance, {}, after_patience())
    assert attempts == {failed_run.run_id: 1}
    # The daemon follows these events, and the tag.
    assert count_failures(instance, failed_run) == 2
    current_run = instance.get_run_by_id(failed_run.run_id)
    assert current_run.tags[WILL_RETRY_TAG] == "true"
    assert current_run.is_complete_and_waiting_to_retry


def test_in_the_end_a_lost_retry_is_given_up(instance):
    """So that a backfill ends."""
    failed_run, attempts = create_lost_run(instance), {}
    for n in range(MAX_ATTEMPTS + 3):
        attempts = launch_lost_retries(instance, attempts, after_patience())
        assert attempts == {failed_run.run_id: n + 1}
    assert count_failures(instance, failed_run) == 1 + MAX_ATTEMPTS
    assert not instance.get_run_by_id(failed_run.run_id).is_complete_and_waiting_to_retry


def test_a_retry_that_was_created_and_never_queued_ends(instance):
    created_run = create_run_for_test(
        instance, status=DagsterRunStatus.NOT_STARTED, tags={RETRY_NUMBER_TAG: "1"}
    )
    waiting = create_run_for_test(instance, status=DagsterRunStatus.NOT_STARTED)
    assert launch_lost_retries(instance, {}, after_patience()).keys() == {created_run.run_id}
    assert instance.get_run_by_id(created_run.run_id).status is DagsterRunStatus.FAILURE
    assert instance.get_run_by_id(waiting.run_id).status is DagsterRunStatus.NOT_STARTED


def test_what_is_retried_or_is_not_to_be_is_left_alone(instance):
    execute_failing_run(instance, ValueError("bad"))
    retried_run = create_lost_run(instance)
    instance.add_run_tags(retried_run.run_id, {AUTO_RETRY_RUN_ID_TAG: "other"})
    by_hand = create_lost_run(instance)
    instance.add_run_tags(by_hand.run_id, {WILL_RETRY_TAG: "false"})
    execute_retry(instance, by_hand, ValueError("bad"))
    create_lost_run(instance, **{BACKFILL_ID_TAG: "gone"})
    assert launch_lost_retries(instance, {}, after_patience()) == {}


def test_the_daemon_takes_up_a_lost_retry(instance):
    """Its own look at runs, with a code server that is down the first time."""
    failed_run = create_lost_run(instance)
    tried = []

    def consume_failures(works: bool) -> None:
        cursor = consume_failures.cursor
        events = instance.event_log_storage.get_logs_for_all_runs_by_log_id(
            after_cursor=cursor, dagster_event_type={dg.DagsterEventType.RUN_FAILURE}
        )
        consume_failures.cursor = max(events, default=cursor)
        ids = [event.run_id for event in events.values()]
        records = instance.get_run_records(dg.RunsFilter(run_ids=ids)) if ids else []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(auto_run_reexecution, "retry_run", partial(note_retry, works))
            context = SimpleNamespace(instance=instance)
            consume = auto_run_reexecution.consume_new_runs_for_automatic_reexecution
            list(consume(context, records, logging.getLogger()))

    def note_retry(works: bool, run: dg.DagsterRun, _context: object) -> None:
        if not works:
            raise ConnectionRefusedError(111, "the code server is down")
        tried.append(run.run_id)

    consume_failures.cursor = 0
    consume_failures(works=False)
    consume_failures(works=True)
    assert tried == [], "Dagster itself looks once"
    launch_lost_retries(instance, {}, after_patience())
    consume_failures(works=True)
    assert tried == [failed_run.run_id]


def test_the_wish_of_a_person_stands(instance):
    wish = {RETRY_ON_FAILURE: "true", "dagster/retry_strategy": "FROM_FAILURE"}
    failed_run = execute_failing_run(instance, ValueError("bad"), wish)
    assert failed_run.tags["dagster/will_retry"] == "true"
    assert failed_run.tags["dagster/retry_strategy"] == "FROM_FAILURE"
    retry_later(instance, failed_run.run_id)
    assert ENGINE_LOST_TAG not in instance.get_run_by_id(failed_run.run_id).tags


@pytest.mark.parametrize(
    ("error", "is_retried"),
    [(ConnectionRefusedError(111, "Connection refused"), True), (ValueError("bad"), False)],
)
def test_a_step_that_loses_its_engine_marks_its_run_with_any_executor(
    engine, tmp_path, monkeypatch, error, is_retried
):
    """Here with Dagster's own, in one process."""

    def lose(*_: object) -> None:
        raise error

    monkeypatch.setattr(RawLoader, "compute", lambda *_: iter(lose, None))
    pipeline = Pipeline(engine, tmp_path)
    run = pipeline.run(1, 1, ["raw_orders"], fails=True)
    tags = pipeline.instance.get_run_by_id(run.run_id).tags
    assert (tags.get(RETRY_ON_FAILURE) == "true") is is_retried


ASSETS = '''
import os, time
from pathlib import Path
import dagster as dg
from backfill_assets.delta.commits import PublishError
from backfill_assets.dagster_ext.failures import (
    is_disk_failure,
    is_engine_lost,
    raise_if_engine_failed,
)
from backfill_assets.dagster_ext.executor import one_process_executor

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-07")
FAILED = Path(os.environ["DAGSTER_HOME"], "failed")

def first_time(context) -> bool:
    """Whether this was not tried before; leaves the process id where the test finds it."""
    mark = FAILED / f"{context.asset_key.to_user_string()}-{context.partition_key_range.start}"
    seen = mark.exists()
    mark.write_text(str(os.getpid()))
    return not seen

def days(runs):
    return dg.asset(partitions_def=DAYS, backfill_policy=runs)

@days(dg.BackfillPolicy.multi_run(2))
def killed(context) -> None:
    if first_time(context) and context.partition_key_range.start == "2024-01-03":
        time.sleep(600)

@days(dg.BackfillPolicy.single_run())
def transient(context) -> None:
    if first_time(context):
        raise ConnectionRefusedError(111, "Connection refused")

@days(dg.BackfillPolicy.single_run())
def permanent(context) -> None:
    raise ValueError("the data is bad")

defs = dg.Definitions([killed, transient, permanent], executor=one_process_executor)
'''


class Daemon:
    """A real daemon with a code server, on assets without Spark."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()
        (home / "failed").mkdir()
        text = dagster_yaml().read_text()
        (home / "dagster.yaml").write_text(
            text.replace("interval_seconds: 30", "interval_seconds: 2")
        )
        self.code = home / "trivial.py"
        self.code.write_text(ASSETS)
        # Two processes that create the database at the same time spoil it.
        self.instance = dg.DagsterInstance.from_config(str(home))

    @contextmanager
    def run_daemon(self) -> Iterator[None]:
        process = subprocess.Popen(
            [str(BIN / "dagster-daemon"), "run", "-f", str(self.code)],
            env={**os.environ, "DAGSTER_HOME": str(self.home)},
            cwd=self.home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:
            kill_kinds(self.home)
            process.wait()

    def launch_backfill(self, asset: str) -> str:
        """Ask for all days, as the UI does."""
        spec = importlib.util.spec_from_file_location("trivial", self.code)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        backfill = PartitionBackfill.from_asset_partitions(
            backfill_id=make_new_backfill_id(),
            asset_graph=module.defs.resolve_asset_graph(),
            partition_names=list(module.DAYS.get_partition_keys()),
            asset_selection=[dg.AssetKey(asset)],
            backfill_timestamp=get_current_timestamp(),
            tags={},
            dynamic_partitions_store=self.instance,
            all_partitions=False,
            title=None,
            description=None,
            run_config=None,
        )
        self.instance.add_backfill(backfill)
        return backfill.backfill_id

    def wait_for_end(self, backfill_id: str) -> BulkActionStatus:
        """How the backfill ended."""

        def end_status() -> BulkActionStatus | None:
            stored = self.instance.get_backfill(backfill_id)
            assert stored is not None
            return None if stored.status is BulkActionStatus.REQUESTED else stored.status

        return self.wait_until(end_status)

    def list_runs(self, backfill_id: str) -> list[tuple[str, str]]:
        """The backfill's runs as they were asked for: first day, status."""
        runs = self.instance.get_runs(
            dg.RunsFilter(tags={"dagster/backfill": backfill_id}), ascending=True
        )
        return [(r.tags["dagster/asset_partition_range_start"], r.status.value) for r in runs]

    def wait_until(self, look: Callable):
        """What it finds, as soon as it finds something."""
        deadline = time.monotonic() + 420
        while not (result := look()):
            assert time.monotonic() < deadline, "nothing came of it"
            time.sleep(0.5)
        return result


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")
def test_a_real_daemon_retries_what_is_worth_it(tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    daemon = Daemon(home)
    with daemon.instance, daemon.run_daemon():
        transient, permanent = (
            daemon.launch_backfill("transient"),
            daemon.launch_backfill("permanent"),
        )
        assert daemon.wait_for_end(transient) is BulkActionStatus.COMPLETED_SUCCESS
        assert daemon.list_runs(transient) == [("2024-01-01", "FAILURE"), ("2024-01-01", "SUCCESS")]
        assert daemon.wait_for_end(permanent) is BulkActionStatus.COMPLETED_FAILED
        assert daemon.list_runs(permanent) == [("2024-01-01", "FAILURE")]

        killed = daemon.launch_backfill("killed")
        pid = daemon.wait_until(lambda: read_mark(home, "killed-2024-01-03"))
        # The chunks were asked for in the order of the days.
        assert [day for day, _ in daemon.list_runs(killed)] == [
            "2024-01-01",
            "2024-01-03",
            "2024-01-05",
        ]
        os.kill(int(pid), signal.SIGKILL)
        kill_kinds(home, "api grpc")  # and who would have noticed
        assert daemon.wait_for_end(killed) is BulkActionStatus.COMPLETED_SUCCESS
        assert daemon.list_runs(killed) == [
            ("2024-01-01", "SUCCESS"),
            ("2024-01-03", "FAILURE"),
            ("2024-01-05", "SUCCESS"),
            ("2024-01-03", "SUCCESS"),
        ]


def read_mark(home: Path, name: str) -> str:
    path = home / "failed" / name
    return path.read_text() if path.exists() else ""
