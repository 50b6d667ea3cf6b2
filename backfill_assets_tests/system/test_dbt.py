"""The page of a Dagster project by itself: what it says is typed, and its backfill is launched.

The environment is empty but for the wheel and what the registry gives for it, and so is HOME.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from backfill_assets_guide.examples.host_project.delta_tables import open_table
from backfill_assets_tests.conftest import SMALL
from backfill_assets_tests.helpers.docs_pages import code_blocks
from backfill_assets_tests.helpers.paths import free_port
from backfill_assets_tests.helpers.process_kills import kill_kinds
from backfill_assets_tests.helpers.wheel import build_wheel
from backfill_assets_tests.ui import drive
from backfill_assets_tests.ui.browser import CHROMIUM, DRIVER

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

(STEPS,) = code_blocks("docs/your-project.md", "bash")
DAYS = [date(2024, 1, n) for n in (1, 2, 3)]


def is_served(port: int) -> bool:
    """Whether somebody listens at a port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Host:
    """A folder in which the steps of the page are typed."""

    def __init__(self, folder: Path, wheels: Path):
        self.folder = folder
        (folder / "home").mkdir(parents=True)
        kept = {n: text for n, text in os.environ.items() if not n.startswith(("PYTHON", "VIRT"))}
        self._environment = {
            **kept,
            "HOME": str(folder / "home"),
            "PIP_FIND_LINKS": str(wheels),
            "BACKFILL_ASSETS_SPARK_CONF": json.dumps(SMALL),
        }
        venv = "python3 -m venv"
        assert STEPS.startswith(venv)
        text = f"{sys.executable} -m venv" + STEPS.removeprefix(venv)
        *steps, self._start = text.strip().splitlines()
        self.type_commands(*steps)
        exports = [line for line in steps if line.startswith("export ")]
        self._shell = [". .venv/bin/activate", *exports]

    def type_commands(self, *commands: str) -> None:
        """Have a shell run commands, one after the other."""
        process = subprocess.run(
            ["bash", "-eu", "-c", "\n".join(commands)],
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, (process.stdout + process.stderr)[-6000:]

    @contextmanager
    def served(self) -> Iterator[str]:
        """The address of the UI, as the last step of the page starts it."""
        port, home = free_port(), self.folder / "dagster"
        home.mkdir()
        start = f"exec {self._start} -h 127.0.0.1 -p {port}"
        with (self.folder / "dev.log").open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-eu", "-c", "\n".join([*self._shell, start])],
                # Without a configuration; its processes are found by its name.
                env={**self._environment, "DAGSTER_HOME": str(home)},
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            while process.poll() is None and not is_served(port):
                time.sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            process.wait(timeout=300)
            kill_kinds(home)  # what a sensor has launched meanwhile

    def materialize_model(self, day: date) -> None:
        """A day of the model alone, by the command."""
        command = f"python -m dagster asset materialize{self._start.removeprefix('dagster dev')}"
        options = f"--select clicks_per_user --partition-range {day}...{day}"
        self.type_commands(*self._shell, f"{command} {options}")

    def read_model(self) -> dict[date, list]:
        """The rows of the model, by day."""
        with duckdb.connect(self.folder / "data/reports.duckdb", read_only=True) as connection:
            rows = connection.sql(
                "select run_date, clicks, users, clicks_per_user from clicks_per_user"
            )
            return {day: figures for day, *figures in rows.fetchall()}


@pytest.mark.skipif(
    not (CHROMIUM.exists() and DRIVER.exists()), reason="there is no Chromium with its driver"
)
def test_the_page_from_nothing(tmp_path):
    """A backfill of tables, report and model, launched in the browser; then a day of the model.

    A day of the model is what the table has of it, and other days are left alone.
    """
    host = Host(tmp_path / "project", build_wheel(tmp_path / "wheel").parent)
    days = f"{DAYS[0]}...{DAYS[-1]}"
    with host.served() as url:
        assert drive.main(["--url", url, "--shots", str(tmp_path), "--host", days]) == 0
    table = str(host.folder / "data/warehouse/active_users_7d")
    published = {
        row["run_date"]: [row["clicks"], row["users"], row["clicks"] / row["users"]]
        for row in open_table(table).to_table().to_pylist()
    }
    assert sorted(published) == DAYS
    assert host.read_model() == published
    DeltaTable(table).delete("run_date < '2024-01-03'")
    host.materialize_model(DAYS[1])
    assert host.read_model() == {day: published[day] for day in (DAYS[0], DAYS[2])}
