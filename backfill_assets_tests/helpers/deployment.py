"""A deployment as a user has it, `backfill-assets ui`, on an instance and folders of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg

from backfill_assets.backfills.stages import missing_daemons
from backfill_assets.deployment import Deployment
from backfill_assets.settings import Settings
from backfill_assets_tests import conftest, impatient
from backfill_assets_tests.helpers.graphql import ask
from backfill_assets_tests.helpers.paths import BIN, PROJECT, dagster_yaml, free_port
from backfill_assets_tests.helpers.process_kills import find_processes, kill_kinds, wait_for

COMMAND = str(BIN / "backfill-assets")
_LAUNCH = """mutation ($params: LaunchBackfillParams!) { launchPartitionBackfill(
  backfillParams: $params) { __typename ... on LaunchBackfillSuccess { backfillId }
  ... on PythonError { message } } }"""
_SENSOR = """query ($sensor: SensorSelector!) { sensorOrError(sensorSelector: $sensor) {
  ... on Sensor { id sensorState { ticks(limit: 1) { status } } } } }"""
_STOP = "mutation ($id: String!) { stopSensor(id: $id) { __typename } }"
_STATUS = """query ($id: String!) { partitionBackfillOrError(backfillId: $id) {
  ... on PartitionBackfill { status error { message } } } }"""


class ServedDeployment:
    """Started when it is asked for something, and again when it has ended.

    Attributes:
        location: the name of the code location.
        last_seconds: what its processes may take to end after the first of them.
    """

    location = "backfill_assets.definitions"
    last_seconds = 0.0

    def __init__(
        self, root: Path, settings: Settings, *, per_run: int = 31, clock: Path | None = None
    ) -> None:
        """On the landing, warehouse and calendar of settings.

        Args:
            root: a folder for DAGSTER_HOME.
            settings: the tables.
            per_run: days in a run.
            clock: a file with the time that the sensors go by; they then look every 2 seconds.
        """
        self._deployment = Deployment(settings)
        self.home = root / "home"
        self.home.mkdir(parents=True)
        self.configure_instance()
        self.port = free_port()
        self.command: tuple[str, ...] = (COMMAND, "ui", "--port", str(self.port))
        self.environment = {
            **os.environ,
            "DAGSTER_HOME": str(self.home),
            "BACKFILL_ASSETS_LANDING": settings.landing,
            "BACKFILL_ASSETS_WAREHOUSE": settings.warehouse,
            "BACKFILL_ASSETS_START": str(settings.start),
            "BACKFILL_ASSETS_END": str(settings.end),
            "BACKFILL_ASSETS_TABLES": settings.tables,
            "BACKFILL_ASSETS_KEY_PREFIX": settings.key_prefix or "",
            "BACKFILL_ASSETS_WINDOW_DAYS": str(settings.window_days),
            "BACKFILL_ASSETS_PARTITIONS_PER_RUN": str(per_run),
            "BACKFILL_ASSETS_SPARK_MASTER": "local[2]",
            "BACKFILL_ASSETS_SPARK_CONF": json.dumps(conftest.SMALL),
        }
        # The tables may be declared in a module of the tests.
        path = [str(PROJECT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        if clock:
            path = [impatient.__path__[0], *path]
            self.environment["BACKFILL_TEST_CLOCK"] = str(clock)
        self.environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        self.process: subprocess.Popen | None = None
        with self.instance():  # several processes that open a new one first disagree
            pass

    def configure_instance(self) -> None:
        """Write the instance's configuration into its folder."""
        shutil.copy(dagster_yaml(), self.home / "dagster.yaml")

    def tend(self) -> None:
        """Start it, if it does not run."""
        if self.process is not None and self.process.poll() is None:
            return
        with (self.home / "deployment.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                cwd=PROJECT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ask(self, query: str, **variables: Any) -> Any:
        """What GraphQL answers, once there is somebody to answer."""
        while True:
            self.tend()
            try:
                return ask(f"http://127.0.0.1:{self.port}", query, **variables)
            except (OSError, HTTPException, json.JSONDecodeError):  # or cut off in the middle
                time.sleep(1)

    def stop_rebuilding(self) -> None:
        """Turn off the sensor that brings the tables up to date which a test does not ask for."""
        sensor = {
            "sensorName": self._deployment.automation_name("touched_days"),
            "repositoryName": "__repository__",
            "repositoryLocationName": self.location,
        }
        sensor_state = self.ask(_SENSOR, sensor=sensor)
        stopped = self.ask(_STOP, id=sensor_state["id"])
        assert stopped["__typename"] == "StopSensorMutationResult", stopped

        def is_idle() -> bool:
            """Whether no look that had begun may ask for a run any more."""
            ticks = self.ask(_SENSOR, sensor=sensor)["sensorState"]["ticks"]
            return all(tick["status"] != "STARTED" for tick in ticks)

        wait_for(is_idle)

    def launch(self, days: Sequence[str], tables: Sequence[str]) -> str:
        """Launch a backfill of days of tables as the UI does; its id."""
        params = {
            "partitionNames": days,
            "assetSelection": [{"path": self._deployment.asset_key(name).path} for name in tables],
        }
        while True:
            answer = self.ask(_LAUNCH, params=params)
            if answer["__typename"] == "LaunchBackfillSuccess":
                return answer["backfillId"]
            time.sleep(1)  # the code server is on its way

    def status(self, backfill: str) -> str:
        """The status of a backfill, as Dagster names it."""
        answer = self.ask(_STATUS, id=backfill)
        if answer["error"]:
            print(backfill, answer["status"], answer["error"]["message"])
        return answer["status"]

    def instance(self) -> dg.DagsterInstance:
        """Its Dagster instance, to be closed."""
        with patch.dict(os.environ, DAGSTER_HOME=str(self.home)):
            return dg.DagsterInstance.get()

    def wait_for_daemons(self) -> None:
        """Until those that lead backfills are at work."""
        self.ask("{ version }")
        while True:
            with self.instance() as instance:
                if not missing_daemons(instance):
                    return
            self.tend()
            time.sleep(1)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """One of the project's commands, as somebody beside it would run it."""
        return subprocess.run(
            [COMMAND, *command],
            env=self.environment,
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )

    def interrupt(self, process: subprocess.Popen) -> None:
        """Tell its process to end."""
        process.terminate()

    def stop(self) -> None:
        """Stop it as a user does.

        Raises:
            AssertionError: it left processes behind, which are killed.
        """
        if self.process is not None and self.process.poll() is None:
            self.interrupt(self.process)
            self.process.wait(timeout=180)
        deadline = time.monotonic() + self.last_seconds
        while (left_over := find_processes(self.home)) and time.monotonic() < deadline:
            time.sleep(0.5)
        kill_kinds(self.home)
        assert not left_over, f"the deployment left processes behind: {left_over}"
