"""The tasks of Spark: how long they took, and which query a step waits for.

A listener needs no port and no file: whoever may send the engine a query may ask it. The way is the
same for an embedded session and for a Spark Connect server.

A thread looks at a step from time to time. If no stage of Spark's has come further for long, it
says which stages run and where the step's own thread is.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from backfill_assets.spark.known_jars import JavaSource, unknown_jars

#: The class of the listener, and the setting of an engine that has it: Spark's own setting of
#: listeners may be another one in a session.
TASK_TIMES_CLASS = "backfill_assets.TaskTimes"
TASK_TIMES = "spark.backfill_assets.taskTimes"
_LISTENERS = "spark.extraListeners"
_SOURCE = JavaSource("TaskTimes.java", "task-times.jar")
#: What a tag begins with whose tasks the listener looks at.
_TAG_PREFIX = "backfill-assets-tasks-"
#: What a compiler raises that cannot be started, and a folder that cannot be written to.
_COMPILE_ERRORS = (PySparkException, Py4JError, OSError)
#: Of each thread, what it watches.
_thread_state = threading.local()


@dataclass(frozen=True)
class TaskTimes:
    """The run times of the tasks of a stage.

    Attributes:
        tasks: how many there were.
        seconds: their times in ascending order; of more than 101 tasks, the percentiles.
    """

    tasks: int
    seconds: tuple[float, ...]

    @property
    def longest_seconds(self) -> float:
        """Seconds of the longest task."""
        return self.seconds[-1]

    @property
    def median_seconds(self) -> float:
        """Seconds of the task in the middle."""
        return median(self.seconds)

    @classmethod
    def from_text(cls, text: str) -> TaskTimes | None:
        """As the listener tells of them; none if it saw no task."""
        tasks, _, times = text.partition(":")
        if not times:
            return None
        return cls(int(tasks), tuple(int(ms) / 1000 for ms in times.split(",")))


class TaskWatch:
    """The tasks of what a thread asks an engine for."""

    def __init__(self) -> None:
        self._tag = f"{_TAG_PREFIX}{uuid4().hex}"
        self._session: SparkSession | None = None
        self._is_asked = False

    def attach_session(self, session: SparkSession) -> None:
        """Have the listener look at what the thread asks this session for, if there is one."""
        if not self._is_asked:
            self._is_asked = True  # a server without the listener is asked for it but once
            with suppress(Exception):  # which the next query says as well
                if session.conf.get(TASK_TIMES, "") == TASK_TIMES_CLASS:
                    session.addTag(self._tag)
                    self._session = session

    def detach_session(self) -> None:
        """Have the listener look no more."""
        if self._session is not None:
            # The days are published; and a transform may have cleared the tags of its thread.
            with suppress(Exception):
                self._session.removeTag(self._tag)

    def read_times(self) -> TaskTimes | None:
        """The tasks of the stage with the longest one; they are told once.

        None if the engine has computed nothing, or has no listener.
        """
        if self._session is None:
            return None
        # Of values, so that it needs no job.
        query = f"SELECT reflect('{TASK_TIMES_CLASS}', 'taken', '{self._tag}') FROM VALUES (1)"
        with suppress(Exception):  # the days are published, with these numbers or without
            (row,) = self._session.sql(query).collect()
            return TaskTimes.from_text(row[0] or "")
        return None


@contextmanager
def watch_tasks() -> Iterator[TaskWatch]:
    """Watch the tasks of all that this thread asks an engine for, until the end."""
    previous, _thread_state.watch = getattr(_thread_state, "watch", None), TaskWatch()
    try:
        yield _thread_state.watch
    finally:
        _thread_state.watch.detach_session()
        _thread_state.watch = previous


def watch_session(session: SparkSession) -> None:
    """Have the tasks of a session watched, if this thread watches any."""
    if current_watch := getattr(_thread_state, "watch", None):
        current_watch.attach_session(session)


def build_task_times(cache: Path) -> None:
    """Compile the listener, once; an engine starts without it as well.

    Args:
        cache: the folder of the jars.
    """
    # The folder may not be ours to write to.
    with suppress(*_COMPILE_ERRORS):
        jar = _SOURCE.build_jar(cache)
        if unknown_jars([jar]):  # a compiler that is none of those that this was tried with
            jar.unlink()


def with_task_times(config: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """Spark's configuration, with the listener if it is in the cache.

    Args:
        config: of a driver whose JVM is to start, with its jars.
        cache: the folder of the jars.
    """
    jar = _SOURCE.jar_in(cache)
    if not jar.exists():
        return dict(config)
    added = {"spark.jars": str(jar), _LISTENERS: TASK_TIMES_CLASS}
    extended = {name: _append_value(config.get(name, ""), value) for name, value in added.items()}
    return {**config, **extended, TASK_TIMES: TASK_TIMES_CLASS}


def _append_value(words: str, value: str) -> str:
    return ",".join(dict.fromkeys([*filter(None, words.split(",")), value]))


#: How far stages are: of each its id, its name, how many tasks have ended, how many there are.
Stages = Sequence[tuple[int, str, int, int]]
#: Looks within the time after which a step counts as standing still.
_CHECKS_PER_STALL = 10
#: This package may be installed among the libraries.
_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = tuple({str(Path(path)) for path in sysconfig.get_paths().values()})


@contextmanager
def report_stalls(
    session: Callable[[], SparkSession | None], seconds: float, say: Callable[[str], None]
) -> Iterator[None]:
    """Report the calling thread if it waits for Spark and nothing comes further for so long.

    Once for each time that it stands still.

    Args:
        session: the session that the thread uses; none if there is none yet.
        seconds: so long; never if 0.
        say: takes the sentence, from another thread.
    """
    if not seconds:
        yield
        return
    ended, thread = threading.Event(), threading.get_ident()
    watcher = threading.Thread(
        target=_watch_thread, args=(session, seconds, say, thread, ended), daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        ended.set()


def _watch_thread(
    session: Callable[[], SparkSession | None],
    seconds: float,
    say: Callable[[str], None],
    thread: int,
    ended: threading.Event,
) -> None:
    previous, since, reported = None, time.monotonic(), False
    with _track_stages(session) as progress:
        while not ended.wait(seconds / _CHECKS_PER_STALL):
            location = _thread_location(thread)
            current = (progress(), location)
            if current != previous:
                previous, since, reported = current, time.monotonic(), False
            elif not reported and time.monotonic() - since >= seconds:
                reported = True
                say(_stall_message(seconds, *current))


@contextmanager
def _track_stages(session: Callable[[], SparkSession | None]) -> Iterator[Callable[[], Stages]]:
    """Tells how far the stages are that run: of an embedded session, or by a Connect server."""
    running: dict[str, Stages] = {}
    handled_sessions: list[Any] = []

    def update_stages(stages: Any, inflight_tasks: int, operation_id: str, done: bool) -> None:
        running.pop(operation_id, None)
        if not done:
            running[operation_id] = tuple(
                (stage.stage_id, "", stage.num_completed_tasks, stage.num_tasks)
                for stage in stages or ()
                if not stage.done
            )

    def current_stages() -> Stages:
        # What looks on must not break what it looks at.
        with suppress(Exception):
            spark = session()
            if spark is None:
                return ()
            if not type(spark).__module__.startswith("pyspark.sql.connect"):
                return _embedded_stages(spark)
            if not handled_sessions:
                # Any function will do; PySpark's types name a class.
                spark.registerProgressHandler(update_stages)  # type: ignore[arg-type]
                handled_sessions.append(spark)
        return tuple(stage for stages in [*running.values()] for stage in stages)

    yield current_stages
    for spark in handled_sessions:
        with suppress(Exception):
            spark.removeProgressHandler(update_stages)


def _embedded_stages(spark: SparkSession) -> Stages:
    tracker = spark.sparkContext.statusTracker()
    infos = (tracker.getStageInfo(number) for number in tracker.getActiveStageIds())
    return tuple(
        (info.stageId, info.name, info.numCompletedTasks, info.numTasks) for info in infos if info
    )


def _thread_location(thread: int) -> tuple[str, ...]:
    """Where a thread is: its calls outside of libraries, the innermost first."""
    frame, calls = sys._current_frames().get(thread), []
    while frame is not None:
        code = frame.f_code
        in_package = code.co_filename.startswith(_PACKAGE)
        if in_package or not code.co_filename.startswith((*_LIBRARIES, "<")):
            calls.append(f"{code.co_name} ({code.co_filename}, line {frame.f_lineno})")
        frame = frame.f_back
    return tuple(calls)


def _stall_message(seconds: float, stages: Stages, location: Sequence[str]) -> str:
    running = "; ".join(
        f"stage {number}{f' ({name})' if name else ''}: {ended} of {tasks} tasks have ended"
        for number, name, ended, tasks in stages
    )
    return (
        f"No task of Spark has ended for {seconds:g} seconds. "
        f"{running or 'No stage is told to run'}. The step waits in "
        f"{' < '.join(location[:4]) or 'no code of its own'}. If nothing comes of it, terminate "
        "the run: what is published stays, and the days can be launched again."
    )
