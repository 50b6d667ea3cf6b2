"""Dagster's run launcher for one machine, which asks whether the processes of runs live."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus
from dagster._serdes import ConfigurableClassData

from backfill_assets.dagster_ext.run_locks import is_alive, process_label, run_pid


class WatchingRunLauncher(DefaultRunLauncher):
    """Dagster's launcher for one machine, which also tells the daemon that a process is gone.

    The code server that started a process reports its death at once, but only while it lives
    itself; after that Dagster's own launcher leaves the run "started" for ever.
    """

    def __init__(
        self, grace_seconds: int = 90, inst_data: ConfigurableClassData | None = None
    ) -> None:
        super().__init__(inst_data)
        self._grace = grace_seconds
        self._missing_since: dict[str, float] = {}

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """What dagster.yaml may say."""
        return {
            "grace_seconds": dg.Field(
                int,
                default_value=90,
                description="How long a process must be gone before its run is given up. Dagster "
                "retries a run at that moment or never, and needs a code server for it: where the "
                "run's own has died, there is another within a minute.",
            )
        }

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]
    ) -> WatchingRunLauncher:
        """As dagster.yaml asks."""
        return cls(config_value["grace_seconds"], inst_data)

    def terminate(self, run_id: str) -> bool:
        """Tell the run's process to end, also if another code server started it."""
        try:
            if super().terminate(run_id):
                return True
        except DagsterUserCodeUnreachableError:
            pass  # the code server that started it is gone; the process may have outlived it
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished or not is_alive(self._instance, run):
            return False
        if not _interrupt_process(self._instance, run):
            self._instance.report_engine_event(
                f"The run's process ({process_label(run)}) cannot be told to end from here: it is on "
                "another machine or in a container of its own. It goes on, whatever this run is "
                "said to be: end it there, or give it to a launcher of Dagster's for several hosts "
                "the next time.",
                run,
                cls=type(self),
            )
            return False
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Yes; Dagster's run monitoring then asks about every started run."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Whether the run's process is there; in doubt, it is.

        The daemon looks at the run's status once more before it believes that the process is gone:
        what ended properly has said so before it went.
        """
        if is_alive(self._instance, run) is not False:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        since = self._missing_since.setdefault(run.run_id, time.monotonic())
        if time.monotonic() - since < self._grace:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "its process is gone")
        return CheckRunHealthResult(
            WorkerStatus.NOT_FOUND, "the process of the run is gone: it was killed, or crashed"
        )


def _interrupt_process(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Interrupt the run's process, and no other; whether it could be."""
    pid = run_pid(instance, run)
    if pid is None:
        return False
    if not hasattr(os, "pidfd_open"):  # not on Linux
        os.kill(pid, signal.SIGINT)
        return True
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # While it holds the lock, the process of that id is no other.
        if run_pid(instance, run) != pid:
            return False
        signal.pidfd_send_signal(process, signal.SIGINT)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
