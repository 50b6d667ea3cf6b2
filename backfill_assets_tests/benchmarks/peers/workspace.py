"""Where a peer runs: its virtual environment, its settings of Spark, its copy of the landing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from time import perf_counter

from backfill_assets.settings import load_settings
from backfill_assets.spark.configuration import spark_config
from backfill_assets_tests.helpers.paths import BIN, PROJECT

HERE = Path(__file__).parent
#: What stays between calls: the environments.
CACHE = PROJECT / "build" / "peers"
#: A command that takes longer has failed.
TIMEOUT = 1800
DAY = timedelta(days=1)


class PeerError(Exception):
    """A peer cannot be installed, or a command of it failed that should not."""


@dataclass(frozen=True)
class Call:
    """A command that ended: how long it took, and how it ended."""

    seconds: float
    status: int


def peer_config() -> dict[str, str]:
    """Our settings of Spark, for the peers: without our own jars and listeners."""
    config = {
        name: str(value)
        for name, value in spark_config(load_settings()).items()
        if not name.startswith(("spark.backfill_assets", "spark.extraListeners", "spark.app.name"))
    }
    jars = config["spark.jars"].split(",")
    config["spark.jars"] = ",".join(jar for jar in jars if Path(jar).name.startswith("io.delta"))
    return config


def install_packages(name: str, requirements: Path) -> Path:
    """The programs of an environment with the pinned packages, which is made unless it exists.

    Raises:
        PeerError: a package cannot be had.
    """
    folder = CACHE / name
    installed = folder / "installed.txt"
    if installed.exists() and installed.read_text() == requirements.read_text():
        return folder / "bin"
    shutil.rmtree(folder, ignore_errors=True)
    uv = str(BIN / "uv")
    for command in (
        [uv, "venv", "-q", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", "-q", "--python", str(folder), "-r", str(requirements)],
    ):
        process = subprocess.run(
            command,
            env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"},
            check=False,
            capture_output=True,
            text=True,
        )
        if process.returncode:
            reasons = [line for line in process.stderr.splitlines() if "rror" in line]
            raise PeerError((reasons or process.stderr.splitlines() or ["no reason given"])[-1])
    installed.write_text(requirements.read_text())
    return folder / "bin"


@dataclass
class Workspace:
    """A folder in which one peer loads the landing once, and is then put to the probes.

    Attributes:
        root: the folder.
        programs: the folder of the peer's `python` and other commands.
        first: the first day.
        last: the last day.
        environment: what commands get beside the caller's environment.
    """

    root: Path
    programs: Path
    first: date
    last: date
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def landing(self) -> Path:
        """The peer's own copy of the landing."""
        return self.root / "landing"

    @property
    def warehouse(self) -> Path:
        """Where tables lie."""
        return self.root / "warehouse"

    def prepare(self, landing: Path) -> None:
        """Copy the landing, and write the settings of Spark."""
        shutil.copytree(landing, self.landing, copy_function=os.link)
        self.warehouse.mkdir()
        conf = self.root / "conf"
        conf.mkdir()
        config = {
            **peer_config(),
            "spark.sql.warehouse.dir": str(self.warehouse),
            "spark.hadoop.javax.jdo.option.ConnectionURL": (
                f"jdbc:derby:;databaseName={self.root}/metastore;create=true"
            ),
        }
        lines = (f"{name} {value}\n" for name, value in config.items())
        (conf / "spark-defaults.conf").write_text("".join(lines))
        self.environment |= {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(HERE),
            "PYSPARK_PYTHON": str(self.programs / "python"),
            "SPARK_CONF_DIR": str(conf),
            "PEER_LANDING": str(self.landing),
            "PEER_WAREHOUSE": str(self.warehouse),
            "PEER_START": str(self.first),
            "PEER_END": str(self.last + DAY),
            "PEER_ROOT": str(self.root),
        }

    def copy_project(self, name: str) -> Path:
        """A copy of a peer's project in which it may write."""
        folder = self.root / "project"
        shutil.copytree(HERE / name, folder)
        return folder

    def run_command(self, command: Sequence[str], **environment: str) -> Call:
        """Run a command of the peer in a new process; its output is kept in `root/output.txt`."""
        project = self.root / "project"
        began = perf_counter()
        with (self.root / "output.txt").open("a") as output:
            output.write(f"\n$ {' '.join(command)}\n")
            output.flush()
            process = subprocess.run(
                [str(self.programs / command[0]), *command[1:]],
                cwd=project if project.exists() else self.root,
                env={**os.environ, **self.environment, **environment},
                check=False,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT,
            )
        return Call(perf_counter() - began, process.returncode)

    def count_commits(self) -> int:
        """Commits of all Delta tables."""
        return sum(1 for _ in self.warehouse.rglob("_delta_log/*.json"))

    def read_output(self) -> str:
        """What all commands printed."""
        return (self.root / "output.txt").read_text(errors="replace")


def arrival_folder(landing: Path, day: date) -> Path:
    """The folder of an arrival day."""
    return landing / "orders" / f"arrival_date={day}"


def write_lines(path: Path, lines: Sequence[Mapping[str, str | None]]) -> None:
    """Write a file of the landing, in place of one that may be shared with other copies."""
    path.unlink(missing_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def land_late_file(landing: Path, arrival: date, event_day: date, closed_day: date) -> None:
    """A file in the folder of a day that is loaded: 50 orders in the window, 10 beyond it."""
    days = [event_day] * 50 + [closed_day] * 10
    lines = [
        {
            "order_id": f"late-{number}",
            "customer_id": f"c-late-{number % 7}",
            "order_ts": f"{day}T10:00:00Z",
            "amount": "12.50",
            "ingestion_ts": f"{arrival}T23:00:00Z",
        }
        for number, day in enumerate(days)
    ]
    write_lines(arrival_folder(landing, arrival) / "late.jsonl", lines)


def poison_day(landing: Path, day: date) -> None:
    """Take the customer away from all lines of an arrival day."""
    for path in arrival_folder(landing, day).glob("*.jsonl"):
        lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
        write_lines(path, [{**json.loads(line), "customer_id": None} for line in lines])


def mend_day(landing: Path, original: Path, day: date) -> None:
    """Put the right files of an arrival day back."""
    folder = arrival_folder(landing, day)
    shutil.rmtree(folder)
    shutil.copytree(arrival_folder(original, day), folder, copy_function=shutil.copyfile)
