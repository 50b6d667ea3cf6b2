"""The peers: how each is installed, and the commands that its user gives."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from backfill_assets_tests.benchmarks.peers.truth import (
    DAY_COLUMNS,
    Figures,
    figures_query,
    read_table,
)
from backfill_assets_tests.benchmarks.peers.workspace import (
    DAY,
    HERE,
    Call,
    PeerError,
    Workspace,
    install_packages,
)
from backfill_assets_tests.helpers.paths import BIN, PROJECT
from backfill_assets_tests.helpers.pipeline import START

#: The day whose file is poisoned, counted from 1.
POISONED_DAY = 11


def nth_day(number: int) -> date:
    """A day of the landing, counted from 1."""
    return START + (number - 1) * DAY


class Peer:
    """One way to load the landing.

    Attributes:
        name: as it is in the table.
        folder: of its project, with the pins in `requirements.txt`.
        late_command: what its user has to give after a late file.
    """

    name: str
    folder: str
    late_command: str
    #: What the seconds of a first load are about, if not all days in one command.
    remark = ""
    #: First loads by hand that one of it is to take at most.
    target: float | None = None

    def install(self) -> Path:
        """The folder of its programs.

        Raises:
            PeerError: a package cannot be had.
        """
        return install_packages(self.folder, HERE / self.folder / "requirements.txt")

    def versions(self) -> str:
        """The pinned packages."""
        pins = (HERE / self.folder / "requirements.txt").read_text().split()
        return ", ".join(pin.replace("==", " ") for pin in pins)

    def prepare(self, workspace: Workspace) -> None:
        """Make what the first command needs."""
        workspace.copy_project(self.folder)

    def load_days(self, workspace: Workspace, first: date, last: date) -> Call:
        """Load a range of days of all three tables."""
        raise NotImplementedError

    def load_all(self, workspace: Workspace) -> Call:
        """The first load, which is also the command that is given again."""
        return self.load_days(workspace, workspace.first, workspace.last)

    def load_late(self, workspace: Workspace, first: date, last: date) -> Call:
        """Load after a late file, which may have changed these days."""
        return self.load_days(workspace, first, last)

    def load_mended(self, workspace: Workspace, first: date, last: date) -> Call:
        """Load after a day of the landing was replaced, which may have changed these days."""
        return self.load_all(workspace)

    def read_tables(self, workspace: Workspace) -> Mapping[str, Mapping[date, Figures]]:
        """What a reader sees."""
        return {table: read_table(table, workspace.warehouse / table) for table in DAY_COLUMNS}


class HandWritten(Peer):
    """A PySpark script."""

    folder = "hand_written"
    late_command = "the script for the days of the window"

    def __init__(self, name: str, options: Sequence[str] = ()) -> None:
        self.name = name
        self._options = options

    def load_days(self, workspace: Workspace, first: date, last: date) -> Call:
        """Run the script for the days."""
        return workspace.run_command(["python", "job.py", str(first), str(last), *self._options])


class Ours(Peer):
    """This project, by the command line of Dagster."""

    name = "ours"
    folder = "this project"
    late_command = "the same command"
    target = 1.0

    def install(self) -> Path:
        """The project's own environment."""
        return BIN

    def versions(self) -> str:
        """Those of this project."""
        return "this commit, `requirements.lock`"

    def prepare(self, workspace: Workspace) -> None:
        """A home of Dagster, as `make ui` makes one."""
        home = workspace.root / "home"
        home.mkdir()
        shutil.copy(PROJECT / "dagster.yaml", home)
        for name in ("SPARK_CONF_DIR", "PYSPARK_PYTHON"):
            del workspace.environment[name]
        python_path = os.environ.get("PYTHONPATH", "")
        workspace.environment |= {
            "PYTHONPATH": python_path,
            "DAGSTER_HOME": str(home),
            "BACKFILL_ASSETS_LANDING": str(workspace.landing),
            "BACKFILL_ASSETS_WAREHOUSE": str(workspace.warehouse),
            "BACKFILL_ASSETS_START": workspace.environment["PEER_START"],
            "BACKFILL_ASSETS_END": workspace.environment["PEER_END"],
        }

    def load_days(self, workspace: Workspace, first: date, last: date) -> Call:
        """Materialize the three tables for the days, in one run."""
        tables = " or ".join(f"key:{table}" for table in DAY_COLUMNS)
        module = ["-m", "backfill_assets.definitions"]
        command = ["dagster", "asset", "materialize", *module, "--select", tables]
        return workspace.run_command([*command, "--partition-range", f"{first}...{last}"])

    def load_late(self, workspace: Workspace, first: date, last: date) -> Call:
        """The first command again: it finds the days that have changed."""
        return self.load_all(workspace)


class PlainDagster(Peer):
    """Assets of Dagster that write by hand, all days in one run."""

    name = "Dagster, one run"
    folder = "plain_dagster"
    late_command = "a run for the days of the window"

    def prepare(self, workspace: Workspace) -> None:
        """The project, and a home of Dagster with its defaults."""
        super().prepare(workspace)
        home = workspace.root / "home"
        home.mkdir()
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        workspace.environment["DAGSTER_HOME"] = str(home)

    def materialize(self, workspace: Workspace, select: str, *days: str) -> Call:
        """Materialize assets for days, in one run."""
        command = ["dagster", "asset", "materialize", "-f", "definitions.py", "--select", select]
        return workspace.run_command([*command, *days])

    def load_days(self, workspace: Workspace, first: date, last: date) -> Call:
        """All assets for the range."""
        return self.materialize(workspace, "*", "--partition-range", f"{first}...{last}")


class DailyDagster(PlainDagster):
    """The same assets, a run for each day: first of the raw log, then of what follows.

    Each run takes about as long as the next. So one day, `measured_day`, has runs of its own; the
    others are loaded in ranges, and count as much.
    """

    name = "Dagster, a run a day"
    late_command = "runs of the raw day and of the days of the window"
    remark = "two runs of one day, times the days"

    def __init__(self, measured_day: date) -> None:
        self._measured_day = measured_day

    def load_all(self, workspace: Workspace) -> Call:
        """The seconds of all days, by those of one."""
        day, days = self._measured_day, (workspace.last - workspace.first).days + 1
        ranges = [(workspace.first, day - DAY), (day, day), (day + DAY, workspace.last)]
        calls = [
            self.materialize(workspace, select, "--partition-range", f"{first}...{last}")
            for select in ("raw_orders", "stg_orders,fact_daily_orders")
            for first, last in ranges
        ]
        measured = calls[1].seconds + calls[4].seconds
        return Call(measured * days, max(call.status for call in calls))

    def load_late(self, workspace: Workspace, first: date, last: date) -> Call:
        """The day of the raw log, then the days that read it."""
        calls = [self.materialize(workspace, "raw_orders", "--partition", str(last))]
        for number in range((last - first).days + 1):
            day = str(first + number * DAY)
            select = "stg_orders,fact_daily_orders"
            calls.append(self.materialize(workspace, select, "--partition", day))
        return Call(sum(call.seconds for call in calls), max(call.status for call in calls))

    def load_mended(self, workspace: Workspace, first: date, last: date) -> Call:
        """As after a late file."""
        return self.load_late(workspace, first, last)


class DeclarativePipelines(Peer):
    """A pipeline of Spark itself."""

    name = "Spark Declarative Pipelines"
    folder = "declarative_pipelines"
    late_command = "the same command"

    def prepare(self, workspace: Workspace) -> None:
        """The project, with the folder of its checkpoints filled in."""
        super().prepare(workspace)
        spec = workspace.root / "project" / "spark-pipeline.yml"
        spec.write_text(spec.read_text().replace("PEER_ROOT", str(workspace.root)))
        # It starts a Spark Connect server of its own, which refuses a master; its tables must
        # outlast that server; and with Delta as `format` of a table a second run fails: it sets the
        # property `provider`, which Delta refuses (DELTA_CANNOT_CHANGE_PROVIDER).
        defaults = workspace.root / "conf" / "spark-defaults.conf"
        lines = defaults.read_text().splitlines(keepends=True)
        conf = [line for line in lines if not line.startswith("spark.master ")]
        conf += ["spark.sql.catalogImplementation hive\n", "spark.sql.sources.default delta\n"]
        defaults.write_text("".join(conf))

    def load_days(self, workspace: Workspace, first: date, last: date) -> Call:
        """Run the pipeline: new files, and the views in full. It knows no days."""
        return workspace.run_command(["spark-pipelines", "run"])

    def load_mended(self, workspace: Workspace, first: date, last: date) -> Call:
        """All anew: a streaming table does not read a file again that was replaced."""
        return workspace.run_command(["spark-pipelines", "run", "--full-refresh-all"])


class DbtSpark(Peer):
    """Microbatch models of dbt, on a session of Spark in its process."""

    name = "dbt-spark, microbatch"
    folder = "dbt_spark"
    late_command = "`dbt build` for the days of the window"

    def load_days(self, workspace: Workspace, first: date, last: date) -> Call:
        """Build the days, with tests after each model."""
        days = ["--event-time-start", str(first), "--event-time-end", str(last + DAY)]
        return workspace.run_command(["dbt", "build", *days])


class SqlMesh(Peer):
    """Models of SQLMesh by time range, with audits."""

    folder = "sqlmesh_spark"
    late_command = "a restatement of the days of the window"

    def __init__(self, batch_size: int) -> None:
        self.name = f"SQLMesh, batch_size {batch_size}"
        self._batch_size = batch_size

    def prepare(self, workspace: Workspace) -> None:
        """The project, with the batch size filled in."""
        super().prepare(workspace)
        for path in (workspace.root / "project" / "models").glob("*.sql"):
            path.write_text(path.read_text().replace("BATCH_SIZE", str(self._batch_size)))

    def plan(self, workspace: Workspace, *options: str) -> Call:
        """Apply a plan of production, as of the day after the last."""
        as_of = ["--execution-time", str(workspace.last + DAY)]
        command = ["sqlmesh", "plan", "--auto-apply", "--no-prompts", *as_of, *options]
        return workspace.run_command(command)

    def load_all(self, workspace: Workspace) -> Call:
        """What is missing."""
        return self.plan(workspace)

    def load_late(self, workspace: Workspace, first: date, last: date) -> Call:
        """Restate the raw log, and all that follows from it, for the days."""
        days = ["--start", str(first), "--end", str(last)]
        return self.plan(workspace, "--restate-model", "orders.raw_orders", *days)

    def read_tables(self, workspace: Workspace) -> Mapping[str, Mapping[date, Figures]]:
        """The views of production, which exist once a plan is through."""
        views = {f"orders.{table}": table for table in DAY_COLUMNS}
        queries = {view: figures_query(table, view) for view, table in views.items()}
        if workspace.run_command(["python", "read_views.py", json.dumps(queries)]).status:
            raise PeerError(f"its views cannot be read, see {workspace.root}/output.txt")
        answer = workspace.read_output().rpartition("\nROWS ")[2]
        return {
            views[view]: {
                date.fromisoformat(day): (entries, known, cents)
                for day, entries, known, cents in rows
            }
            for view, rows in json.loads(answer).items()
        }


#: In the order in which they run.
PEERS: Sequence[Peer] = (
    HandWritten("by hand"),
    HandWritten("by hand, tested after the write", ["--test"]),
    Ours(),
    PlainDagster(),
    DailyDagster(nth_day(POISONED_DAY)),
    DeclarativePipelines(),
    DbtSpark(),
    SqlMesh(1),
    SqlMesh(30),
)
