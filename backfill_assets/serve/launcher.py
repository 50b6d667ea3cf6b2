"""The launcher and queue of runs of one machine, which know whether a run's process lives."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, Self

import dagster as dg

from backfill_assets.dagster_ext import internals
from backfill_assets.dagster_ext.run_locks import is_run_alive, process_label, run_pid


class WatchingRunLauncher(dg.DefaultRunLauncher):
    """Dagster's launcher for one machine, which also tells the daemon of dead run processes.

    The code server that started a process reports its death, but only while the server itself
    lives; after that, Dagster's own launcher leaves the run "started" for ever.
    """

    def __init__(
        self, grace_seconds: int = 90, inst_data: internals.ConfigurableClassData | None = None
    ) -> None:
        super().__init__(inst_data)
        self._grace = grace_seconds
        self._missing_since: dict[str, float] = {}

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """The launcher's configuration in dagster.yaml."""
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
        cls, inst_data: internals.ConfigurableClassData, config_value: Mapping[str, Any]
    ) -> Self:
        """The launcher of the configuration."""
        return cls(config_value["grace_seconds"], inst_data)

    def terminate(self, run_id: str) -> bool:
        """Terminate the run's process, even if another code server started it."""
        try:
            if super().terminate(run_id):
                return True
        except internals.DagsterUserCodeUnreachableError:
            pass  # its code server is gone; the process may live on
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished or not is_run_alive(self._instance, run):
            return False
        if not _interrupt_process(self._instance, run):
            self._instance.report_engine_event(
                f"The run's process ({process_label(run)}) cannot be told to end from here: it is "
                "on another machine or in a container of its own. It goes on, whatever this run is "
                "said to be: end it there, or give it to a launcher of Dagster's for several hosts "
                "the next time.",
                run,
                cls=type(self),
            )
            return False
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        """True: Dagster's run monitoring then checks every started run."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> internals.CheckRunHealthResult:
        """Whether the run's process lives; if unknown, it counts as alive.

        The daemon reads the run's status again before it acts on a missing process: a run that
        ended properly recorded that before its process ended.
        """
        if is_run_alive(self._instance, run) is not False:
            return internals.CheckRunHealthResult(internals.WorkerStatus.RUNNING)
        since = self._missing_since.setdefault(run.run_id, time.monotonic())
        if time.monotonic() - since < self._grace:
            return internals.CheckRunHealthResult(
                internals.WorkerStatus.RUNNING, "its process is gone"
            )
        return internals.CheckRunHealthResult(
            internals.WorkerStatus.NOT_FOUND,
            "the process of the run is gone: it was killed, or crashed",
        )


def _interrupt_process(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Send an interrupt to the run's process, and to no other; whether it was sent."""
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
        # While it holds the lock, its process id is not reused.
        if run_pid(instance, run) != pid:
            return False
        signal.pidfd_send_signal(process, signal.SIGINT)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(process)


#: Libraries whose launchers start runs without access to this machine's files.
_REMOTE_LAUNCHERS = ("dagster_aws", "dagster_celery", "dagster_docker", "dagster_k8s")
#: Dagster's own seconds between two evaluations of backfills.
_DAGSTER_INTERVAL = 30


class DaemonInterval(int):
    """Seconds between two evaluations of the backfills.

    Dagster's loop subtracts the duration of an evaluation and waits for the rest. If an evaluation
    of a large backfill takes longer than the interval, the daemon waits as long as it took, so that
    it is busy half of the time at most.
    """

    def __sub__(self, took: float) -> float:  # type: ignore[override]
        """The seconds to wait."""
        return max(float(self) - took, min(took, _DAGSTER_INTERVAL))


class PromptRunCoordinator(dg.QueuedRunCoordinator):
    """Dagster's queue; `dequeue_interval_seconds` is also the interval of backfill evaluation.

    Dagster evaluates backfills every 30 seconds, a constant without a setting (its issue 11649):
    the next runs of a backfill wait that long although the runs before them have ended.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        # The daemon creates its queue before its loops start and read the constant. Other processes
        # have nothing to set.
        if controller := sys.modules.get("dagster._daemon.controller"):
            interval = DaemonInterval(self.dequeue_interval_seconds)
            vars(controller)["DEFAULT_DAEMON_INTERVAL_SECONDS"] = interval

    def register_instance(self, instance: dg.DagsterInstance) -> None:
        """Attach the coordinator to an instance.

        Raises:
            DagsterInvariantViolationError: runs start on other machines, and the storage is on this
                one.
        """
        _raise_if_sqlite_for_remote_runs(instance)
        super().register_instance(instance)


def _raise_if_sqlite_for_remote_runs(instance: dg.DagsterInstance) -> None:
    """Called when Dagster opens the instance; its default launcher (None) starts runs locally."""
    launcher = instance.get_ref().run_launcher_data
    if (
        not isinstance(instance.event_log_storage, internals.SqliteEventLogStorage)
        or launcher is None
    ):
        return
    if launcher.module_name.startswith(_REMOTE_LAUNCHERS):
        raise dg.DagsterInvariantViolationError(
            f"{launcher.class_name} starts runs in other containers or on other machines, and the "
            "storage in dagster.yaml is SQLite: files of this machine. A run would find an empty "
            "storage and not itself in it. Use Postgres: set `storage` as in the package's "
            "deploy/dagster.postgres.yaml. No run was launched."
        )
