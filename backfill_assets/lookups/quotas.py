"""The quota of a service, shared by all processes of a machine that have the same folder."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from pyrate_limiter import Rate, RateItem, SQLiteBucket

from backfill_assets.tables.lookups import Quota

_CLEAN_EVERY = 60.0  # seconds between two looks for calls that no longer count


class SharedQuota:
    """Who calls takes from it first; all calls of all runs count, also those of others."""

    def __init__(self, folder: Path, name: str, quotas: Sequence[Quota], share: float) -> None:
        """The quota of a service.

        Args:
            folder: the same for all processes that share it.
            name: of the service.
            quotas: what the service allows, the shortest time first.
            share: the share of it (0 to 1) that all calls together may have used for one more.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._pause = folder / f"{name}.until"
        self._lock = Lock()
        self._cleaned = 0.0
        self._bucket = SQLiteBucket.init_from_file(
            rates_of(quotas, share),
            table="calls",
            db_path=str(folder / f"{name}.sqlite"),
            use_file_lock=True,
        )

    def take(self) -> float:
        """Take a call: 0, or the seconds after which there may be one."""
        if (left := self.paused) > 0:
            return left
        # The time is told under the lock: of two calls, the one that counts first is the earlier.
        with self._lock, self._bucket.lock:
            item = RateItem("call", time.time_ns() // 1_000_000)
            if self._bucket.put(item):
                self._clean(item.timestamp)
                return 0.0
            return max(int(self._bucket.waiting(item)), 1) / 1000  # type: ignore[arg-type]

    def pause(self, seconds: float) -> None:
        """No process takes a call for some time, as the service has asked for."""
        until = time.time() + seconds
        if until <= self._until:
            return
        # Another name for each: a reader sees the old moment or the new one.
        new = self._pause.with_name(f"{self._pause.name}.{os.getpid()}.{time.monotonic_ns()}")
        new.write_text(f"{until:.3f}")
        new.replace(self._pause)

    @property
    def paused(self) -> float:
        """For how many seconds nobody may call; 0 if anybody may."""
        return max(0.0, self._until - time.time())

    @property
    def _until(self) -> float:
        with suppress(OSError, ValueError):
            return float(self._pause.read_text())
        return 0.0

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            self._bucket.close()

    def _clean(self, now: int) -> None:
        if time.monotonic() - self._cleaned > _CLEAN_EVERY:
            self._cleaned = time.monotonic()
            self._bucket.leak(now)


def rates_of(quotas: Sequence[Quota], share: float) -> list[Rate]:
    """A share of quotas, without those that one of a shorter time holds anyway."""
    found: list[Rate] = []
    for quota in quotas:
        calls, time_ = max(1, int(quota.calls * share)), quota.seconds * 1000
        if found:
            before = found[-1]
            if calls * before.interval >= before.limit * time_:
                continue
            if calls <= before.limit:
                found.pop()
        found.append(Rate(calls, time_))
    return found
