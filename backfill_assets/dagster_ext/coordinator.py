"""Dagster's run queue, whose daemon looks at backfills as often as at the queue."""

from __future__ import annotations

import sys
from typing import Any

import dagster as dg
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage

#: Libraries whose launchers start runs where the files of this machine are not.
_REMOTE_LAUNCHERS = ("dagster_aws", "dagster_celery", "dagster_docker", "dagster_k8s")
#: Dagster's own seconds between two looks at backfills.
_DAGSTER_INTERVAL = 30


class DaemonInterval(int):
    """Seconds from one look at the backfills to the next.

    Dagster's loop takes from it the seconds that a look took, and waits for what is left. A look at
    a large backfill may take longer than this: the daemon then waits as long as it took, so that
    it works half of the time at most.
    """

    def __sub__(self, took: float) -> float:  # type: ignore[override]
        """The seconds to wait."""
        return max(float(self) - took, min(took, _DAGSTER_INTERVAL))


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
            interval = DaemonInterval(self.dequeue_interval_seconds)
            vars(controller)["DEFAULT_DAEMON_INTERVAL_SECONDS"] = interval

    def register_instance(self, instance: dg.DagsterInstance) -> None:
        """Belong to an instance.

        Raises:
            DagsterInvariantViolationError: its runs are elsewhere, and its storage is here.
        """
        _raise_if_sqlite_for_remote_runs(instance)
        super().register_instance(instance)


def _raise_if_sqlite_for_remote_runs(instance: dg.DagsterInstance) -> None:
    launcher = instance.get_ref().run_launcher_data
    if not isinstance(instance.event_log_storage, SqliteEventLogStorage) or launcher is None:
        return
    if launcher.module_name.startswith(_REMOTE_LAUNCHERS):
        raise dg.DagsterInvariantViolationError(
            f"{launcher.class_name} starts runs in other containers or on other machines, and the "
            "storage in dagster.yaml is SQLite: files of this machine. A run would find an empty "
            "storage and not itself in it. Use Postgres: set `storage` as in the package's "
            "deploy/dagster.postgres.yaml. No run was launched."
        )
