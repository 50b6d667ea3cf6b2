"""Dagster's run queue, whose daemon looks at backfills as often as at the queue."""

from __future__ import annotations

import sys
from typing import Any

from dagster._core.run_coordinator import QueuedRunCoordinator


class PromptRunCoordinator(QueuedRunCoordinator):
    """Dagster's queue; `dequeue_interval_seconds` is also how often backfills are looked at.

    Dagster looks at them every 30 seconds, a constant without a setting (its issue 11649): the next
    runs of a backfill wait that long although what they follow has ended.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        # The daemon asks for its queue before its loops begin, which then read the constant. In
        # other processes there is nothing to set.
        if controller := sys.modules.get("dagster._daemon.controller"):
            vars(controller)["DEFAULT_DAEMON_INTERVAL_SECONDS"] = self.dequeue_interval_seconds
