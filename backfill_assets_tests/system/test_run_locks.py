"""The lock file of runs: threads, forks, files that are replaced, processes of other containers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.dagster_run import DagsterRunStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._core.test_utils import create_run_for_test

from backfill_assets.dagster_ext.run_locks import (
    PROCESS_TAG,
    RUN_LOCK_FILE,
    hold_run_lock,
    is_run_alive,
)
from backfill_assets_tests.helpers.paths import dagster_yaml

#: A process that does something with the project's instance, and then reads what it is told.
SCRIPT = """
import json, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import dagster as dg
from backfill_assets.dagster_ext.run_locks import hold_run_lock, is_run_alive
signal.signal(signal.SIGINT, signal.default_int_handler)
given = sys.argv[2:]
with dg.DagsterInstance.from_config(sys.argv[1]) as instance:
    def run(run_id):
        return instance.get_run_by_id(run_id)
    def sign(run_id):
        instance.add_run_tags(run_id, hold_run_lock(instance, run_id))
{body}
"""
SIGN_ON = """
    sign(given[0])
    print(os.getpid(), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def instance(tmp_path, monkeypatch) -> Iterator[dg.DagsterInstance]:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(dagster_yaml(), home / "dagster.yaml")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:
        yield instance


def start_run(instance: dg.DagsterInstance, **tags: str) -> str:
    return create_run_for_test(instance, status=DagsterRunStatus.STARTED, tags=tags).run_id


def check_alive(instance: dg.DagsterInstance, run_id: str) -> bool | None:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return is_run_alive(instance, run)


@contextmanager
def start_process(
    instance: dg.DagsterInstance, body: str, *arguments: str, under: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a script's body; what it says first has been said."""
    script = SCRIPT.replace("{body}", body)
    started = subprocess.Popen(
        [*under, sys.executable, "-c", script, instance.root_directory, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


def read_output(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


THREADS = """
    at_once = threading.Barrier(len(given))
    def work(run_id):
        at_once.wait()
        tags = hold_run_lock(instance, run_id)
        return run_id, tags
    with ThreadPoolExecutor(len(given)) as pool:
        for run_id, tags in pool.map(work, given):
            instance.add_run_tags(run_id, tags)
    import gc; gc.collect()
    print("signed on", flush=True)
    sys.stdin.readline()
"""


def test_threads_that_sign_on_at_once_all_hold_their_locks(instance):
    runs = [start_run(instance) for _ in range(12)]
    with start_process(instance, THREADS, *runs) as worker:
        assert read_output(worker) == "signed on"
        names = {instance.get_run_by_id(run).tags[PROCESS_TAG].split()[-1] for run in runs}
        assert len(names) == 1
        assert [check_alive(instance, run) for run in runs] == [True] * len(runs)
    assert [check_alive(instance, run) for run in runs] == [False] * len(runs)


LOOKING = """
    dead, living = run(given[0]), run(given[1])
    print("ready", flush=True)
    sys.stdin.readline()
    with ThreadPoolExecutor(4) as pool:
        look = lambda _: (is_run_alive(instance, dead), is_run_alive(instance, living))
        found = list(pool.map(look, range(500)))
    print(json.dumps(sorted(set(found))), flush=True)
"""


def test_those_that_look_at_the_same_time_do_not_see_one_another(instance):
    """A look that takes the lock passes for the run's process to another look."""
    dead, living = start_run(instance), start_run(instance)
    with start_process(instance, SIGN_ON, dead) as worker:
        read_output(worker)
    with start_process(instance, SIGN_ON, living) as worker:
        read_output(worker)
        with (
            start_process(instance, LOOKING, dead, living) as first,
            start_process(instance, LOOKING, dead, living) as second,
        ):
            for each in (first, second):
                assert read_output(each) == "ready"
            for each in (first, second):
                assert each.stdin is not None
                each.stdin.write("\n")
                each.stdin.flush()
            assert [json.loads(read_output(each)) for each in (first, second)] == [
                [[False, True]]
            ] * 2


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists them there")
def test_looks_leave_no_files_open(instance):
    run = start_run(instance)
    with start_process(instance, SIGN_ON, run) as worker:
        read_output(worker)
    check_alive(instance, run)
    before = open_files()
    lock = Path(instance.root_directory, RUN_LOCK_FILE)
    for _ in range(20):  # as if the home were restored again and again
        lock.unlink()
        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(lambda _: check_alive(instance, run), range(8))) == {None}
    assert open_files() == before


FORK = """
    sign(given[0])
    r, w = os.pipe()
    if os.fork() == 0:
        os.close(w)
        os.read(r, 1)  # until the parent is gone
        print(json.dumps(is_run_alive(instance, run(given[0]))), flush=True)
        os._exit(0)
    os._exit(0)
"""


def test_what_is_forked_from_a_run_is_not_the_run(instance):
    run = start_run(instance)
    with start_process(instance, FORK, run) as worker:
        assert read_output(worker) == "false"


def test_a_home_that_was_wiped_is_a_new_one(instance):
    """Its runs are noticed, and those of the old file are in doubt, not dead."""
    old, new = start_run(instance), start_run(instance)
    lock = Path(instance.root_directory, RUN_LOCK_FILE)
    with start_process(instance, SIGN_ON, old) as worker:
        read_output(worker)
        assert check_alive(instance, old) is True
        copy = lock.with_name("backup")
        shutil.copy(lock, copy)
        lock.unlink()
        assert check_alive(instance, old) is None
        with start_process(instance, SIGN_ON, new) as other:
            read_output(other)
            assert check_alive(instance, new) is True
        assert check_alive(instance, new) is False
        # A backup has the same content, and no locks.
        copy.replace(lock)
        assert check_alive(instance, old) is None


def test_this_process_keeps_its_lock_when_the_file_is_replaced(instance):
    run_id = start_run(instance)
    instance.add_run_tags(run_id, hold_run_lock(instance, run_id))
    first = Path(instance.root_directory, RUN_LOCK_FILE)
    lock_copy = first.with_name("kept")
    os.link(first, lock_copy)
    first.unlink()
    assert check_alive(instance, run_id) is True
    assert check_alive(instance, start_run(instance)) is None  # opens the new one
    lock_copy.replace(first)
    with start_process(
        instance, "    print(json.dumps(is_run_alive(instance, run(given[0]))))", run_id
    ) as look:
        assert read_output(look) == "true"


# --- ending runs ----------------------------------------------------------------------------------


def namespace_command() -> tuple[str, ...]:
    """A command that runs another with process ids of its own, as a container does."""
    command = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if shutil.which(command[0]) is None:
        pytest.skip("there is no unshare")
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a process may not have process ids of its own here")
    return command


def test_the_process_in_a_container_is_ended_and_not_the_one_with_its_number(instance, monkeypatch):
    run = start_run(instance)
    with start_process(instance, SIGN_ON, run, under=namespace_command()) as worker:
        inner = int(read_output(worker))
        assert inner < 10
        sent: list[int] = []
        monkeypatch.setattr(os, "kill", lambda pid, _: sent.append(pid))
        assert instance.run_launcher.terminate(run)
        assert worker.wait() != 0  # KeyboardInterrupt
        assert inner not in sent


def test_a_process_outside_the_container_is_left_alone_and_the_run_says_so(instance):
    end = """
    print(json.dumps(instance.run_launcher.terminate(given[0])), flush=True)
"""
    run = start_run(instance)
    with start_process(instance, SIGN_ON, run) as worker:
        read_output(worker)
        with start_process(instance, end, run, under=namespace_command()) as other:
            assert read_output(other) == "false"
        assert worker.poll() is None
        assert check_alive(instance, run) is True
    messages = [log.message for log in instance.all_logs(run)]
    assert any("cannot be told to end from here" in message for message in messages), messages


def test_a_process_of_another_machine_is_left_alone(instance, monkeypatch):
    """As a file system of a network tells its number."""
    run = start_run(instance)
    with start_process(instance, SIGN_ON, run) as worker:
        read_output(worker)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("backfill_assets.dagster_ext.run_locks._machine", lambda: "another")
            assert not instance.run_launcher.terminate(run)
        assert worker.poll() is None
        assert instance.run_launcher.terminate(run)
        assert worker.wait() != 0


def test_a_run_whose_code_server_is_gone_can_be_ended(instance, tmp_path):
    """Dagster's own launcher fails at the address of the code server that started the run."""
    address = {"host": "localhost", "socket": str(tmp_path / "gone.sock")}
    run = start_run(instance, **{GRPC_INFO_TAG: json.dumps(address)})
    with start_process(instance, SIGN_ON, run) as worker:
        read_output(worker)
        assert instance.run_launcher.terminate(run)
        assert worker.wait() != 0


def test_a_process_that_ended_meanwhile_is_no_error(instance):
    run = start_run(instance)
    with start_process(instance, SIGN_ON, run) as worker:
        read_output(worker)
    assert not instance.run_launcher.terminate(run)
