"""`make bench-tpch`: the same steps of a stream with each tool; rows are compared with DuckDB's.

Each command is a new process. Ratios are the result; seconds depend on the machine.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import duckdb
from deltalake import DeltaTable

from backfill_assets.report import ReportTable
from backfill_assets_tests.benchmarks.peers.known_peers import Ours
from backfill_assets_tests.benchmarks.peers.workspace import (
    CACHE,
    Call,
    PeerError,
    Workspace,
    install_packages,
)
from backfill_assets_tests.benchmarks.results import format_number
from backfill_assets_tests.benchmarks.tpch.duckdb_job import QUERIES
from backfill_assets_tests.benchmarks.tpch.landing import (
    DAY,
    FEWEST_DAYS,
    FIRST,
    MOST_DAYS,
    Landing,
    generate_days,
)
from backfill_assets_tests.helpers.paths import BIN, PROJECT

HERE = Path(__file__).parent
#: Days between a shipment and its receipt, at most.
LONGEST_WAY = 30
RUN_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


@dataclass(frozen=True)
class Step:
    """What happens to the landing, and what the user does then.

    Attributes:
        name: in the table.
        change: of the landing.
        first: the first day that may have other rows: what a user by hand has to know.
        last: the last arrival day that is loaded.
        known: the last arrival day whose lines are in the right tables.
        takes_back: whether the user takes the last day back.
    """

    name: str
    change: Callable[[Landing], None]
    first: date
    last: date
    known: date
    takes_back: bool = False


def make_steps(days: int) -> Sequence[Step]:
    """The steps for a stream of so many days."""
    last = FIRST + (days - 1) * DAY
    second, third = last - DAY, last - 2 * DAY
    open_day, closed_day, corrected = second - 5 * DAY, second - 40 * DAY, second - 4 * DAY
    reach = LONGEST_WAY * DAY
    return (
        Step("first load", lambda x: x.land_days(FIRST, third), FIRST, third, third),
        Step("again, nothing new", lambda _: None, FIRST, third, third),
        Step("one day more", lambda x: x.land_days(second, second), second - reach, second, second),
        Step(
            "a late file",
            lambda x: x.land_late_file(second, open_day, closed_day),
            closed_day,
            second,
            second,
        ),
        Step(
            "a file is corrected",
            lambda x: x.correct_file(corrected),
            corrected - reach,
            second,
            second,
        ),
        Step("one day more, poisoned", lambda x: x.poison_day(last), last - reach, last, second),
        Step("it is mended", lambda x: x.land_days(last, last), last - reach, last, last),
        Step("undo", lambda _: None, last - reach, last, second, takes_back=True),
    )


class Tool:
    """A way to make the five tables."""

    name: str

    def install(self) -> Path:
        """The folder of its programs.

        Raises:
            PeerError: a package cannot be had.
        """
        return BIN

    def prepare(self, workspace: Workspace) -> None:
        """Make what the first command needs."""

    def load(self, workspace: Workspace, step: Step) -> Call:
        """What the user does after the landing has changed."""
        raise NotImplementedError

    def take_back(self, workspace: Workspace) -> Call:
        """Take the last day back."""
        raise NotImplementedError


class ByHand(Tool):
    """A PySpark script."""

    def __init__(self, name: str, requirements: str, script: str) -> None:
        self.name = name
        self._requirements, self._script = requirements, script

    def install(self) -> Path:
        """The packages that Spark, or what is in its place, comes with."""
        return install_packages(f"tpch-{self._script}", HERE / "by_hand" / self._requirements)

    def prepare(self, workspace: Workspace) -> None:
        """The script."""
        shutil.copytree(HERE / "by_hand", workspace.root / "project")

    def load(self, workspace: Workspace, step: Step) -> Call:
        """The script for the days that may have other rows."""
        return workspace.run_command(["python", self._script, str(step.first), str(step.last)])

    def take_back(self, workspace: Workspace) -> Call:
        """Restore each table to the version before the poisoned day, which the user has to know."""
        return workspace.run_command(["python", self._script, "restore", "2"])


class ThisProject(Tool):
    """This project, by the command line of Dagster."""

    name = "this project"

    def prepare(self, workspace: Workspace) -> None:
        """A home of Dagster, and the declared tables."""
        Ours().prepare(workspace)
        workspace.environment |= {
            "PYTHONPATH": str(PROJECT),
            "BACKFILL_ASSETS_TABLES": f"{__package__}.items:TABLES",
        }

    def load(self, workspace: Workspace, step: Step) -> Call:
        """All days up to the last: it finds those that have changed."""
        select = " or ".join(f"key:{table}" for table in QUERIES)
        command = ["dagster", "asset", "materialize", "-m", "backfill_assets.definitions"]
        days = ["--partition-range", f"{FIRST}...{step.last}"]
        return workspace.run_command([*command, "--select", select, *days])

    def take_back(self, workspace: Workspace) -> Call:
        """The undo of the last run; the one before it published nothing."""
        run_id = RUN_ID.findall(workspace.read_output())[-1]
        return workspace.run_command(["backfill-assets", "undo", run_id])


@dataclass(frozen=True)
class StepResult:
    """What a step was, with one tool.

    Attributes:
        call: the command.
        cpu_seconds: of all of its processes.
        rows: written into tables.
        commits: of all tables.
        apart_seconds: between the first and the last commit: some tables are new, others old.
        wrong: the tables whose rows are not those of the truth.
    """

    step: Step
    tool: str
    call: Call
    cpu_seconds: float
    rows: int
    commits: int
    apart_seconds: float
    wrong: Sequence[str]


def adopt_orphans() -> None:
    """Have the kernel give this process the children of commands that end before them.

    A JVM may end after the Python that started it, and its CPU would be nobody's.
    """
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def measure_cpu(action: Callable[[], Call]) -> tuple[Call, float]:
    """What an action returns, and the CPU seconds of its processes, when all of them have ended."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    call = action()
    with suppress(ChildProcessError):
        while True:
            os.wait()
    return call, used() - before


def log_entries(warehouse: Path) -> set[Path]:
    """The commits of all tables."""
    return {*warehouse.glob("*/_delta_log/*.json")}


def count_rows(entry: Path) -> int:
    """The rows of the files that a commit adds."""
    actions = map(json.loads, entry.read_text().splitlines())
    stats = (action["add"].get("stats") for action in actions if "add" in action)
    return sum(json.loads(text)["numRecords"] for text in stats if text)


def wrong_tables(warehouse: Path, truth: Path) -> list[str]:
    """The tables whose rows differ from those of the truth, in its columns."""
    wrong = []
    for name in QUERIES:
        with duckdb.connect() as connection:
            expected = connection.read_parquet(str(truth / f"{name}.parquet"))
            table = DeltaTable(warehouse / name).to_pyarrow_dataset()
            names = ", ".join(expected.columns)
            actual = connection.from_arrow(table.scanner()).project(names)
            rows = expected.project(names)
            if len(rows.except_(actual)) or len(actual.except_(rows)) or len(rows) != len(actual):
                wrong.append(name)
    return wrong


def run_steps(tool: Tool, workspace: Workspace, original: Path, truths: Path) -> list[StepResult]:
    """All steps with one tool.

    Raises:
        PeerError: a command failed that should not.
    """
    landing = Landing(workspace.landing, original)
    results: list[StepResult] = []
    steps = make_steps((workspace.last - workspace.first).days + 1)
    for number, step in enumerate(steps):
        step.change(landing)
        commits = log_entries(workspace.warehouse)
        call, cpu_seconds = measure_cpu(
            lambda step=step: (
                tool.take_back(workspace) if step.takes_back else tool.load(workspace, step)
            )
        )
        if call.status and (step.known == step.last or step.takes_back):
            raise PeerError(f"{step.name}: ended with {call.status}, see {workspace.root}")
        new = log_entries(workspace.warehouse) - commits
        times = [entry.stat().st_mtime for entry in new] or [0.0]
        result = StepResult(
            step,
            tool.name,
            call,
            cpu_seconds,
            sum(map(count_rows, new)),
            len(new),
            max(times) - min(times),
            wrong_tables(workspace.warehouse, truths / str(number)),
        )
        results.append(result)
        print(f"  {' | '.join(format_row(result, None))}", flush=True)
    return results


def make_truths(days: int, original: Path, root: Path, truths: Path) -> list[StepResult]:
    """The right tables after each step, each made anew by DuckDB in a process of its own."""
    workspace = Workspace(root, BIN, FIRST, FIRST + (days - 1) * DAY)
    landing = Landing(workspace.landing, original)
    results = []
    for number, step in enumerate(make_steps(days)):
        step.change(landing)
        arguments = [workspace.landing, FIRST, step.known, truths / str(number)]
        module = f"{__package__}.duckdb_job"
        command = ["python", "-m", module, *map(str, arguments)]
        call, cpu_seconds = measure_cpu(
            lambda command=command: workspace.run_command(command, PYTHONPATH=":".join(sys.path))
        )
        if call.status:
            raise PeerError(f"DuckDB ended with {call.status}:\n{workspace.read_output()}")
        files = (truths / str(number)).glob("*.parquet")
        rows = sum(len(duckdb.read_parquet(str(path))) for path in files)
        results.append(StepResult(step, "DuckDB, all anew", call, cpu_seconds, rows, 0, 0.0, []))
    return results


#: The first is what the others are compared with.
TOOLS: Sequence[Tool] = (
    ByHand("PySpark by hand", "requirements.txt", "job.py"),
    ThisProject(),
    ByHand("PySpark by hand, on Sail", "requirements-sail.txt", "on_sail.py"),
)
HEADINGS = (
    *("step", "tool", "seconds", "of by hand", "CPU seconds", "rows written", "commits"),
    *("tables apart", "rows"),
)


def format_row(result: StepResult, base: StepResult | None) -> tuple[str, ...]:
    """The cells of a step with one tool."""
    verdict = f"wrong: {', '.join(result.wrong)}" if result.wrong else "right"
    return (
        result.step.name,
        result.tool,
        format_number(result.call.seconds),
        format_number(result.call.seconds / base.call.seconds) if base else "",
        format_number(result.cpu_seconds),
        f"{result.rows:,}",
        str(result.commits),
        f"{result.apart_seconds:.1f} s",
        f"{verdict}; status {result.call.status}" if result.call.status else verdict,
    )


def format_table(results: Sequence[Sequence[StepResult]]) -> str:
    """The Markdown table: a row for each step and tool; ratios are to the first tool."""
    rows = [
        format_row(result, base)
        for base, *others in zip(*results, strict=True)
        for result in (base, *others)
    ]
    return ReportTable.from_rows(HEADINGS, rows).to_markdown()


def main() -> None:
    """Make the stream, run all steps with each tool, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1, help="TPC-H's; 1 is 2,400 lines a day")
    parser.add_argument("--days", type=int, default=365)
    arguments = parser.parse_args()
    if not FEWEST_DAYS <= arguments.days <= MOST_DAYS:
        parser.error(f"--days must be from {FEWEST_DAYS} to {MOST_DAYS}")
    adopt_orphans()
    CACHE.mkdir(parents=True, exist_ok=True)
    generator = install_packages("tpchgen", HERE / "requirements.txt")
    programs = [tool.install() for tool in TOOLS]
    root = Path(tempfile.mkdtemp(prefix="bench-tpch-"))
    original, truths = root / "original", root / "truths"
    (root / "empty").mkdir()
    (root / "duckdb").mkdir()
    generate_days(generator, arguments.scale, arguments.days, original)
    floor = make_truths(arguments.days, original, root / "duckdb", truths)
    last = FIRST + (arguments.days - 1) * DAY
    results = []
    for number, tool in enumerate(TOOLS):
        print(tool.name, flush=True)
        folder = root / str(number)
        folder.mkdir()
        workspace = Workspace(folder, programs[number], FIRST, last)
        workspace.prepare(root / "empty")
        tool.prepare(workspace)
        results.append(run_steps(tool, workspace, original, truths))
    print(
        f"\nlineitem at scale {arguments.scale:g}, {arguments.days} days, each command in a new "
        f"process; {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}\n"
    )
    print(format_table([*results, floor]))
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
