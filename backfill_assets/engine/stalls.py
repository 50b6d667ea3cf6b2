"""A step that stands still: which query it waits for, said while it waits.

A thread looks at a step from time to time. If no stage of Spark's has come further for long, it
says which stages run and where the step's own thread is.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

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
        f"{' < '.join(location[:4]) or 'no code of its own'}. If nothing comes of it, terminate the "
        "run: what is published stays, and the days can be launched again."
    )
