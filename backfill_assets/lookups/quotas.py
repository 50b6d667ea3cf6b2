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
        self._pause_file = folder / f"{name}.until"
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
        if (wait := self.pause_seconds) > 0:
            return wait
        # The time is told under the lock: of two calls, the one that counts first is the earlier.
        with self._lock, self._bucket.lock:
            item = RateItem("call", time.time_ns() // 1_000_000)
            if self._bucket.put(item):
                self._clean_bucket(item.timestamp)
                return 0.0
            return max(int(self._bucket.waiting(item)), 1) / 1000  # type: ignore[arg-type]

    def pause_calls(self, seconds: float) -> None:
        """No process takes a call for some time, as the service has asked for."""
        until = time.time() + seconds
        # Under the lock of all processes: of two pauses, the longer one counts.
        with self._lock, self._bucket.lock:
            if until <= self._paused_until:
                return
            # Another name for each: a reader sees the old moment or the new one.
            new = self._pause_file.with_name(
                f"{self._pause_file.name}.{os.getpid()}.{time.monotonic_ns()}"
            )
            new.write_text(f"{until:.3f}")
            new.replace(self._pause_file)

    @property
    def pause_seconds(self) -> float:
        """For how many seconds nobody may call; 0 if anybody may."""
        return max(0.0, self._paused_until - time.time())

    @property
    def _paused_until(self) -> float:
        with suppress(OSError, ValueError):
            return float(self._pause_file.read_text())
        return 0.0

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            self._bucket.close()

    def _clean_bucket(self, now: int) -> None:
        if time.monotonic() - self._cleaned > _CLEAN_EVERY:
            self._cleaned = time.monotonic()
            self._bucket.leak(now)


def rates_of(quotas: Sequence[Quota], share: float) -> list[Rate]:
    """A share of quotas, as the library takes it: of a longer time more calls, and not more a time.

    A rate of a shorter time does not stand for one of a longer: other runs, with another share of
    the same quota, may have used up the longer one.
    """
    rates: list[Rate] = []
    for quota in quotas:
        calls, interval = max(1, int(quota.calls * share)), quota.seconds * 1000
        # Fewer calls in all of the longer time are fewer in any part of it.
        while rates and calls <= rates[-1].limit:
            rates.pop()
        if rates:
            calls = min(calls, rates[-1].limit * interval // rates[-1].interval)
        rates.append(Rate(calls, interval))
    return rates
