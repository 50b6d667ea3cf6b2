"""A Spark cluster of one's own, on loopback: a standalone master and workers, always stopped."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from backfill_assets.spark.processes import ProcessGroup, spark_home
from backfill_assets_tests.helpers.paths import PROJECT
from backfill_assets_tests.helpers.process_kills import is_alive, wait_for

#: Of Spark itself: all of it on loopback, no second door to the master, and little memory.
_DAEMONS = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
}
#: Names the master of the cluster that the suite is to run on.
MASTER = "BACKFILL_TEST_MASTER"
#: For the small data of tests; an executor is to fit into a worker, and to find the driver.
SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.executor.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    # Executors find the modules of UDFs, as where a project is installed on them.
    "spark.executorEnv.PYTHONPATH": str(PROJECT),
    "spark.databricks.delta.snapshotPartitions": "1",
}


@dataclass
class Cluster:
    """A standalone cluster of Spark's, on this machine.

    Attributes:
        folder: of its logs, and of a folder for each worker.
        environment: that of its processes, and of its executors.
        master: its URL.
        workers: the workers.
    """

    folder: Path
    environment: Mapping[str, str]
    master: str = ""
    workers: list[ProcessGroup] = field(default_factory=list)
    _groups: list[ProcessGroup] = field(default_factory=list)

    def start(self, workers: int) -> None:
        """Start the master and some workers, and wait until they know each other."""
        options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = self._start_process("master", "master.Master", options)
        self.master = self._wait_for_log(master, "master", r"Starting Spark master at (\S+)")
        self._wait_for_log(master, "master", r"(New state: ALIVE)")
        for n in range(workers):
            scratch = self.folder / f"worker-{n}"
            options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g"]
            options += ["--webui-port", "0", "--work-dir", str(scratch), self.master]
            worker_environment = {"SPARK_LOCAL_DIRS": str(scratch / "local")}
            self.workers.append(
                self._start_process(f"worker-{n}", "worker.Worker", options, worker_environment)
            )
        for n, worker in enumerate(self.workers):
            self._wait_for_log(worker, f"worker-{n}", r"(Successfully registered with master)")

    def executors(self) -> list[int]:
        """The processes of the executors: they run in the folders of their workers."""
        pids = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                within = (process / "cwd").readlink().is_relative_to(self.folder)
                command = (process / "cmdline").read_bytes()
            except OSError:  # it has ended
                continue
            if within and b"CoarseGrainedExecutorBackend" in command:
                pids.append(int(process.name))
        return [pid for pid in sorted(pids) if is_alive(pid)]

    def read_log(self, name: str) -> str:
        """What a process has said so far: `master`, `worker-0` and so on."""
        return (self.folder / f"{name}.log").read_text()

    def end(self) -> None:
        """Stop all that still runs, without asking: there is nothing to save."""
        for group in self._groups:
            group.kill_command()
        while self._groups:
            self._groups.pop().terminate()

    def _start_process(
        self,
        name: str,
        which: str,
        options: list[str],
        extra_environment: Mapping[str, str] | None = None,
    ) -> ProcessGroup:
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{which}"]
        environment = {**self.environment, **(extra_environment or {})}
        group = ProcessGroup([*command, *options], environment, self.folder / f"{name}.log")
        self._groups.append(group)
        return group

    def _wait_for_log(self, group: ProcessGroup, name: str, pattern: str) -> str:
        """Wait until a process says something; the group of the pattern."""

        def find_match() -> re.Match[str] | None:
            assert group.exit_status() is None, self.read_log(name)
            return re.search(pattern, self.read_log(name))

        wait_for(find_match)
        match = find_match()
        assert match
        return match[1]


@contextmanager
def run_cluster(folder: Path, workers: int = 2, **environment: str) -> Iterator[Cluster]:
    """A cluster that keeps its files in `folder`, each worker with one core.

    Args:
        folder: an empty folder.
        workers: how many.
        environment: what its processes find in their environment, and with them the executors.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    new_cluster = Cluster(folder, {**inherited, **_DAEMONS, **environment})
    try:
        new_cluster.start(workers)
        yield new_cluster
    finally:
        new_cluster.end()


def kill_process(pid: int) -> None:
    """Kill a process that may just have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
