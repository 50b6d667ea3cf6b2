"""Asking a service many requests: within its quota, over a few connections, again where it fails.

Nothing is known here of tables and days. Answers are handed over while the rest is being asked, so
that a process that is killed loses the last few.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any

from backfill_assets.dagster_ext.steps import raise_if_interrupted
from backfill_assets.lookups.quotas import SharedQuota
from backfill_assets.lookups.service import Reply, Service
from backfill_assets.tables.lookups import ANSWERED_AT, Lookup

#: The values of the request columns.
Request = tuple[Any, ...]
#: After so many requests in a row without an answer, the rest is not asked.
IN_A_ROW = 20
#: Answers are handed over when there are so many, or when so many seconds have gone.
_BATCH, _BATCH_SECONDS = 1000, 5.0
#: Seconds before the second try; twice as long before each further one, and no longer than that.
_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_LOOK = 0.2  # seconds between two looks whether the run is to end


@dataclass
class Asked:
    """What came of asking.

    Attributes:
        calls: by request, the calls that it took.
        unanswered: by request, why it has no answer.
    """

    calls: Counter[Request] = field(default_factory=Counter)
    unanswered: dict[Request, str] = field(default_factory=dict)


def ask(
    lookup: Lookup,
    requests: Sequence[Request],
    service: Service,
    quota: SharedQuota,
    keep: Callable[[Sequence[Mapping[str, Any]]], None],
) -> Asked:
    """Ask requests, each until it is answered or its tries are used up.

    Args:
        lookup: the lookup.
        requests: different ones.
        service: answers them.
        quota: what the process may use of the quota.
        keep: is given the answers, some at a time, with the columns of the kept table.
    """
    return _Asking(lookup, requests, service, quota).run(keep)


class _Asking:
    """Threads that call, and the results that they put down for the one that began them."""

    def __init__(
        self, lookup: Lookup, requests: Sequence[Request], service: Service, quota: SharedQuota
    ) -> None:
        """As for `ask`."""
        self._lookup, self._service, self._quota = lookup, service, quota
        self._left: Iterator[Request] = iter(requests)
        self._count = len(requests)
        self._done: SimpleQueue[tuple[Request, Reply, int]] = SimpleQueue()
        self._lock = Lock()
        self._stop = Event()
        self._why = ""
        self._failed_in_a_row = 0
        self._broken: Exception | None = None

    def run(self, keep: Callable[[Sequence[Mapping[str, Any]]], None]) -> Asked:
        """Ask all."""
        found, batch, since = Asked(), [], time.monotonic()
        threads = [
            Thread(target=self._work, daemon=True)
            for _ in range(min(self._lookup.connections, self._count))
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in range(self._count):
                request, reply, calls = self._next_done()
                found.calls[request] += calls
                if reply.answer is None:
                    found.unanswered[request] = reply.problem
                else:
                    batch.append(self._row(request, reply.answer))
                if len(batch) >= _BATCH or time.monotonic() - since > _BATCH_SECONDS:
                    keep(batch)
                    batch, since = [], time.monotonic()
        finally:
            self._end("the run has ended")
            for thread in threads:
                thread.join()
            with suppress(Empty):  # after an interruption: what was paid for is kept
                while True:
                    request, reply, _ = self._done.get_nowait()
                    if reply.answer is not None:
                        batch.append(self._row(request, reply.answer))
            if batch:
                keep(batch)
        return found

    def _next_done(self) -> tuple[Request, Reply, int]:
        while True:
            raise_if_interrupted()
            if self._broken:
                raise self._broken
            with suppress(Empty):
                return self._done.get(timeout=_LOOK)

    def _row(self, request: Request, answer: Mapping[str, Any]) -> dict[str, Any]:
        asked = dict(zip(self._lookup.request, request, strict=True))
        return {**asked, **answer, ANSWERED_AT: datetime.now(timezone.utc)}

    def _work(self) -> None:
        """Ask one request after the other, until there is none."""
        while True:
            with self._lock:
                request = next(self._left, None)
            if request is None:
                return
            try:
                reply, calls = self._answer(request)
            except Exception as error:  # noqa: BLE001 - raised where the results are waited for
                self._broken = error
                return
            self._done.put((request, reply, calls))

    def _answer(self, request: Request) -> tuple[Reply, int]:
        """The answer to a request, and the calls that it took."""
        named = dict(zip(self._lookup.request, request, strict=True))
        calls = tries = busy = 0
        last = ""
        answered = time.monotonic()
        while self._turn():
            try:
                reply = self._service.get(named)
            except Exception as error:  # noqa: BLE001 - a thread that ends would be waited for
                reply = Reply(problem=f"the call failed ({type(error).__name__})", again=False)
            calls, last = calls + 1, reply.problem
            busy = busy + 1 if reply.busy else 0
            if reply.wait or reply.busy:
                pause = min(2.0 ** (busy - 1), _LONGEST_PAUSE) if reply.wait is None else reply.wait
                pause = max(pause, 1.0) if reply.busy else pause
                self._quota.pause(pause * random.uniform(1.0, 1.05))
            if not reply.busy:
                answered = time.monotonic()
            elif time.monotonic() - answered > self._lookup.patience:
                waited = f"{self._lookup.patience:g} s"
                self._end(f"the service has said for {waited} that its quota is used up")
            if reply.answer is not None:
                self._failed_in_a_row = 0
                return reply, calls
            # That the quota is used up says nothing against the request.
            tries += not reply.busy
            if reply.refused:
                self._end(f"it takes no request of ours ({reply.problem})")
            if not reply.again or tries >= self._lookup.tries:
                return self._given_up(reply, tries), calls
            if not reply.busy:
                pause = min(_PAUSE * 2 ** (tries - 1), _LONGEST_PAUSE)
                self._stop.wait(pause * random.uniform(0.8, 1.2))
        return Reply(problem=f"{last or 'not asked'}: {self._why}"), calls

    def _given_up(self, reply: Reply, tries: int) -> Reply:
        if reply.again:
            with self._lock:
                self._failed_in_a_row += 1
                if self._failed_in_a_row >= IN_A_ROW:
                    self._end(f"{IN_A_ROW} requests in a row had no answer")
        tried = f" (tried {tries} times)" if tries > 1 else ""
        return Reply(problem=f"{reply.problem}{tried}")

    def _turn(self) -> bool:
        """Wait for a call that the quota allows; whether there is one."""
        since = time.monotonic()
        while not self._stop.is_set():
            wait = self._quota.take()
            if not wait:
                return True
            waited = time.monotonic() - since
            if waited + wait > self._lookup.patience:
                until = datetime.now(timezone.utc).timestamp() + wait
                when = datetime.fromtimestamp(until, timezone.utc)
                self._end(f"the quota is used up until {when:%Y-%m-%d %H:%M:%S} UTC")
            # No longer than that: what another process uses does not change how long we wait, but
            # several that wait for one moment would come at the same time.
            self._stop.wait(min(wait, 1.0) + random.uniform(0, 0.02))
        return False

    def _end(self, why: str) -> None:
        if not self._stop.is_set():
            self._why = why
            self._stop.set()
