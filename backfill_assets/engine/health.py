"""Whether an engine that takes connections still computes: a small query, asked now and then.

It is asked by a process of its own: gRPC's threads do not go together with the processes that the
one which looks after the engine starts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

#: Seconds between two queries, and those that one has.
_EVERY = 300.0
_DEADLINE = 300.0
#: So many in a row that failed are an engine that does not compute any more.
_MAX_FAILURES = 3
#: An engine that used so much of a processor meanwhile is busy: the query waits for its turn.
_BUSY_SHARE = 0.05
#: The module that asks; it is this one.
_QUERY = ("-m", "backfill_assets.engine.health")


class HealthProbe:
    """Asks an engine, and remembers what came of it."""

    def __init__(self, environment: Mapping[str, str], processor_seconds: Callable[[], float]):
        """Nothing is asked yet.

        Args:
            environment: how a client attaches to the engine.
            processor_seconds: what the engine has used so far; infinite if that is not known.
        """
        self._environment, self._processor_seconds = environment, processor_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._next_query_at = time.monotonic() + _EVERY

    def is_good(self) -> bool:
        """Ask, or see what has come of it; false once it failed too often. Never waits."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._next_query_at:
                self._start_query(now)
            return True
        status = self._process.poll()
        if status is None and now < self._deadline:
            return True
        self.stop_query()
        self._next_query_at = now + _EVERY
        # Also where it is not known: there is no number then.
        idle = self._processor_seconds() - self._seconds_before <= _BUSY_SHARE * _DEADLINE
        if status is not None or idle:
            self._failures = 0 if status == 0 else self._failures + 1
        return self._failures < _MAX_FAILURES

    def stop_query(self) -> None:
        """Stop asking."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _start_query(self, now: float) -> None:
        self._deadline = now + _DEADLINE
        self._seconds_before = self._processor_seconds()
        self._process = subprocess.Popen(
            [sys.executable, *_QUERY, str(int(_DEADLINE) + 1)],
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _run_query(seconds: int) -> None:
    """Have the engine run a job, which needs its threads and its disk; and clear its cache."""
    from pyspark.sql.connect.session import SparkSession

    from backfill_assets.engine.caching import release_orphaned_frames
    from backfill_assets.engine.listeners import channel_builder

    os.nice(10)
    signal.alarm(seconds)  # also if nobody is left to end this
    channel = channel_builder(os.environ["SPARK_REMOTE"])
    session: Any = SparkSession.builder.channelBuilder(channel).create()
    (row,) = session.range(10).groupBy().sum("id").collect()
    if row[0] != 45:
        raise SystemExit(2)
    release_orphaned_frames(session)


if __name__ == "__main__":
    _run_query(int(sys.argv[1]))
