"""The tasks of Spark: their run times, and the query that a step waits for.

Times come from a Spark listener that is read by a query, so that it needs no port and no file, and
works the same embedded and with Spark Connect. Stalls are found by a thread: if no stage has
progressed for long, it reports the stages that run and the step's stack.
"""

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

#: The listener's class, and the setting that says that the engine has it: Spark's own setting of
#: listeners may differ in a session.
TASK_TIMES_CLASS = "backfill_assets.TaskTimes"
TASK_TIMES = "spark.backfill_assets.taskTimes"
_LISTENERS = "spark.extraListeners"
_SOURCE = JavaSource("TaskTimes.java", "task-times.jar")
#: Prefix of the tags whose tasks the listener records.
_TAG_PREFIX = "backfill-assets-tasks-"
#: Errors of a compiler that does not start, or of a folder that is read-only.
_COMPILE_ERRORS = (PySparkException, Py4JError, OSError)
#: By thread, its `TaskWatch`.
_thread_state = threading.local()


@dataclass(frozen=True)
class TaskTimes:
    """The run times of the tasks of a stage.

    Attributes:
        tasks: the number of tasks.
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
        """Seconds of the median task."""
        return median(self.seconds)

    @classmethod
    def from_text(cls, text: str) -> "TaskTimes | None":
        """The times in the listener's text; None if it saw no task."""
        tasks, _, times = text.partition(":")
        if not times:
            return None
        return cls(int(tasks), tuple(int(ms) / 1000 for ms in times.split(",")))


class TaskWatch:
    """Records the tasks of one thread's queries."""

    def __init__(self) -> None:
        self._tag = f"{_TAG_PREFIX}{uuid4().hex}"
        self._tagged_sessions: list[SparkSession] = []
        self._seen_sessions: list[SparkSession] = []

    def attach_session(self, session: SparkSession) -> None:
        """Tag this thread's queries in the session, if the engine has the listener."""
        if session not in self._seen_sessions:
            self._seen_sessions.append(session)  # look for the listener once only
            with suppress(Exception):  # the next query fails as well
                if session.conf.get(TASK_TIMES, "") == TASK_TIMES_CLASS:
                    session.addTag(self._tag)
                    self._tagged_sessions.append(session)

    def detach_sessions(self) -> None:
        """Remove the tag from the sessions."""
        for session in self._tagged_sessions:
            # The days are published already; and a transform may have cleared its thread's tags.
            with suppress(Exception):
                session.removeTag(self._tag)

    def read_times(self) -> TaskTimes | None:
        """The times of the stage with the longest task; each is returned once.

        None if the engine has computed nothing, or has no listener.
        """
        # Over VALUES, so that it needs no job. The listener is the same for all sessions.
        query = f"SELECT reflect('{TASK_TIMES_CLASS}', 'taken', '{self._tag}') FROM VALUES (1)"
        for session in self._tagged_sessions[:1]:
            with suppress(Exception):  # the days are published without these numbers as well
                (row,) = session.sql(query).collect()
                return TaskTimes.from_text(row[0] or "")
        return None


@contextmanager
def watch_tasks() -> Iterator[TaskWatch]:
    """Record the tasks of this thread's queries until the block ends."""
    previous, _thread_state.watch = getattr(_thread_state, "watch", None), TaskWatch()
    try:
        yield _thread_state.watch
    finally:
        _thread_state.watch.detach_sessions()
        _thread_state.watch = previous


def watch_session(session: SparkSession) -> None:
    """Attach a session to this thread's `TaskWatch`, if it has one."""
    if current_watch := getattr(_thread_state, "watch", None):
        current_watch.attach_session(session)


def build_task_times(cache: Path) -> None:
    """Compile the listener into the jar cache, once; an engine starts without it as well."""
    # The folder may be read-only.
    with suppress(*_COMPILE_ERRORS):
        jar = _SOURCE.build_jar(cache)
        if unknown_jars([jar]):  # built by an untested compiler
            jar.unlink()


def with_task_times(config: Mapping[str, Any], cache: Path) -> dict[str, Any]:
    """Spark's configuration, with the listener if the jar cache has it."""
    jar = _SOURCE.jar_in(cache)
    if not jar.exists():
        return dict(config)
    added = {"spark.jars": str(jar), _LISTENERS: TASK_TIMES_CLASS}
    extended = {name: _append_value(config.get(name, ""), value) for name, value in added.items()}
    return {**config, **extended, TASK_TIMES: TASK_TIMES_CLASS}


def _append_value(words: str, value: str) -> str:
    return ",".join(dict.fromkeys([*filter(None, words.split(",")), value]))


#: The progress of stages: id, name, ended tasks, all tasks.
Stages = Sequence[tuple[int, str, int, int]]
#: Looks at the stages within the time after which a step counts as stalled.
_CHECKS_PER_STALL = 10
#: This package may be installed among the libraries.
_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = tuple({str(Path(path)) for path in sysconfig.get_paths().values()})


@contextmanager
def report_stalls(
    sessions: Callable[[], Sequence[SparkSession]], seconds: float, say: Callable[[str], None]
) -> Iterator[None]:
    """Report once per stall that the calling thread waits for Spark without progress.

    `sessions` returns those that were started; `say` is called in another thread; 0 `seconds` turn
    reports off.
    """
    if not seconds:
        yield
        return
    ended, thread = threading.Event(), threading.get_ident()
    watcher = threading.Thread(
        target=_watch_thread, args=(sessions, seconds, say, thread, ended), daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        ended.set()


def _watch_thread(
    sessions: Callable[[], Sequence[SparkSession]],
    seconds: float,
    say: Callable[[str], None],
    thread: int,
    ended: threading.Event,
) -> None:
    """Run in a thread until `ended`: call `say` once for each stall, when nothing has changed.

    A change is another stage, another number of ended tasks, or another place in the code.
    """
    previous, since, reported = None, time.monotonic(), False
    with _track_stages(sessions) as current_stages:
        while not ended.wait(seconds / _CHECKS_PER_STALL):
            location = _thread_location(thread)
            current = (current_stages(), location)
            if current != previous:
                previous, since, reported = current, time.monotonic(), False
            elif not reported and time.monotonic() - since >= seconds:
                reported = True
                say(_stall_message(seconds, *current))


@contextmanager
def _track_stages(
    sessions: Callable[[], Sequence[SparkSession]],
) -> Iterator[Callable[[], Stages]]:
    """Gives a function that returns the running stages, embedded or of a Connect server."""
    running: dict[str, Stages] = {}
    handled_sessions: list[Any] = []

    def update_stages(stages: Any, inflight_tasks: int, operation_id: str, done: bool) -> None:
        """Called by PySpark with the progress of an operation on the Connect server."""
        running.pop(operation_id, None)
        if not done:
            running[operation_id] = tuple(
                (stage.stage_id, "", stage.num_completed_tasks, stage.num_tasks)
                for stage in stages or ()
                if not stage.done
            )

    def current_stages() -> Stages:
        """The running stages; of a Connect server, those that it reported last."""
        # An observer must not break the step.
        with suppress(Exception):
            for spark in sessions():
                if not type(spark).__module__.startswith("pyspark.sql.connect"):
                    return _embedded_stages(spark)  # of all sessions
                if spark not in handled_sessions:
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
    """The stack of a thread outside of libraries, the innermost call first."""
    frame, calls = sys._current_frames().get(thread), []
    while frame is not None:
        code = frame.f_code
        in_package = code.co_filename.startswith(_PACKAGE)
        if in_package or not code.co_filename.startswith((*_LIBRARIES, "<")):
            calls.append(f"{code.co_name} ({code.co_filename}, line {frame.f_lineno})")
        frame = frame.f_back
    return tuple(calls)


def _stall_message(seconds: float, stages: Stages, location: Sequence[str]) -> str:
    """The message of a stall; `location` is the waiting stack, the innermost call first."""
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
