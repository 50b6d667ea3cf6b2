"""How long the tasks took of what a thread asks an engine for."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest

from backfill_assets.publish.io_manager import task_metadata
from backfill_assets.settings import load_settings
from backfill_assets.spark import tasks as module
from backfill_assets.spark.configuration import spark_config
from backfill_assets.spark.tasks import (
    TASK_TIMES,
    TASK_TIMES_CLASS,
    TaskTimes,
    build_task_times,
    watch_tasks,
    with_task_times,
)


def run_tasks(engine, *milliseconds: int) -> TaskTimes | None:
    """A task for each of them, which takes as long; what comes after it is not looked at."""
    with watch_tasks() as tasks:
        session = engine.spark_session
        rows = session.range(len(milliseconds), numPartitions=len(milliseconds))
        durations = ", ".join(map(str, milliseconds))
        slept = f"reflect('java.lang.Thread', 'sleep', bigint(array({durations})[id])) AS done"
        rows.selectExpr(slept).collect()
    assert engine.spark_session is session
    session.range(1).selectExpr("reflect('java.lang.Thread', 'sleep', 300L)").collect()
    return tasks.read_times()


def test_task_times_of_threads_at_the_same_time(engine, spark):
    times_by_name: dict[str, TaskTimes | None] = {}
    durations_by_name = {"even": (80, 80, 80), "one is long": (5, 5, 200)}

    def measure_tasks(name: str) -> None:
        times_by_name[name] = run_tasks(engine, *durations_by_name[name])

    threads = [threading.Thread(target=measure_tasks, args=(name,)) for name in durations_by_name]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, milliseconds in durations_by_name.items():
        took = times_by_name[name]
        assert took is not None and took.tasks == len(took.seconds) == 3
        expected = sorted(milliseconds)
        assert all(s >= ms / 1000 for s, ms in zip(took.seconds, expected, strict=True))
    even, uneven = times_by_name["even"], times_by_name["one is long"]
    assert even and uneven
    assert (even.longest_seconds, uneven.median_seconds) == (even.seconds[2], uneven.seconds[1])
    assert uneven.median_seconds < 0.2 <= uneven.longest_seconds


def test_task_times_that_cannot_be_had(engine, spark, monkeypatch):
    with watch_tasks() as tasks:
        pass
    assert tasks.read_times() is None, "the engine was not asked for anything"
    with watch_tasks() as tasks:
        assert engine.spark_session.range(1).columns == ["id"]
    assert tasks.read_times() is None, "nor did it compute anything"
    # Of an engine whose settings speak of a class that it does not have.
    monkeypatch.setattr(module, "TASK_TIMES_CLASS", "not.There")
    spark.conf.set(TASK_TIMES, "not.There")
    try:
        assert run_tasks(engine, 1) is None
    finally:
        spark.conf.set(TASK_TIMES, TASK_TIMES_CLASS)


@pytest.mark.parametrize("known", [TASK_TIMES_CLASS, ""])
def test_task_times_fail_nothing_and_are_asked_for_once(known):
    # A server that knows the listener, or does not, and then nothing more.
    session = Mock(**{"conf.get.return_value": known})
    session.removeTag.side_effect = KeyError  # so does Connect's client, where tags were cleared
    session.sql.side_effect = ValueError("Cannot invoke RPC on closed channel!")
    with watch_tasks() as tasks:
        for _ in range(3):
            module.watch_session(session)
    assert tasks.read_times() is None
    assert session.conf.get.call_count == 1
    assert session.sql.called is session.removeTag.called is bool(known)


def test_the_listener_comes_with_its_jar(tmp_path):
    config = {"spark.jars": "/opt/a.jar", "spark.extraListeners": "org.x.Listener"}
    assert with_task_times(config, tmp_path) == config
    build_task_times(tmp_path)
    (jar,) = tmp_path.glob("task-times-*/task-times.jar")
    expected = {
        "spark.jars": f"/opt/a.jar,{jar}",
        "spark.extraListeners": f"org.x.Listener,{TASK_TIMES_CLASS}",
        TASK_TIMES: TASK_TIMES_CLASS,
    }
    result = with_task_times(config, tmp_path)
    assert result == expected
    assert with_task_times(result, tmp_path) == result
    assert TASK_TIMES not in spark_config(load_settings(jars=tmp_path)), "without Delta's jars"


def test_a_listener_that_is_compiled_otherwise_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("backfill_assets.spark.known_jars.compile_source", lambda *_: {"a.B": b"x"})
    build_task_times(tmp_path)
    assert [*tmp_path.glob("*/*")] == []
    (tmp_path / "file").touch()
    build_task_times(tmp_path / "file")


def test_a_few_tasks_have_a_line_each():
    assert task_metadata(None) == {}
    metadata = task_metadata(TaskTimes.from_text("4:225,311,379,6082"))
    assert metadata["longest_task_seconds"] == 6.082
    assert metadata["median_task_seconds"] == 0.345
    assert metadata["task_times"].value == (
        "The stage with the longest task had 4 tasks.\n\n```text\n"
        "1.      6.082 s  ██████████████████████████████\n"
        "2.      0.379 s  ██\n"
        "3.      0.311 s  ██\n"
        "4.      0.225 s  █\n```"
    )


def test_of_many_tasks_some_have_a_line():
    percentiles = ",".join(str(10 * n) for n in range(101))
    table = task_metadata(TaskTimes.from_text(f"5001:{percentiles}"))["task_times"].value
    lines = table.splitlines()[3:-1]
    assert [line.split(".")[0].strip() for line in lines][:3] == ["1", "451", "901"]
    assert lines[0].startswith("   1.      1.000 s  ███")
    assert lines[-1] == "5001.      0.000 s  █"
    assert len(lines) == 12


@pytest.mark.parametrize(("told", "tasks"), [("", None), ("1:0", 1)])
def test_what_the_listener_tells(told, tasks):
    result = TaskTimes.from_text(told)
    assert (result.tasks if result else None) == tasks
    assert bool(task_metadata(result)) is bool(tasks)
