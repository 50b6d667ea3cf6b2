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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from time import monotonic, sleep

import duckdb
from deltalake import DeltaTable

from backfill_assets.calendar.partitions import DAY
from backfill_assets.report import ReportTable
from backfill_assets_tests.benchmarks.peers import workspace as peers
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
TRUTH = "DuckDB, all anew, to Parquet"
#: How Dagster's log names the run that has succeeded.
RUN_ID = re.compile(r" - ([0-9a-f-]{36}) - \d+ - RUN_SUCCESS - ")
#: Of processes that outlive their command.
ORPHAN_SECONDS = 60


@dataclass(frozen=True)
class Step:
    """What happens to the landing, and what the user does then.

    Attributes:
        name: in the table.
        change: of the landing.
        changed: the first and the last arrival day with other lines, which a user by hand names.
        reach: days before the first of them that these lines may be about; named as well.
        last: the last arrival day that is loaded.
        known: the last arrival day whose lines are in the right tables.
        takes_back: whether the user takes the last day back.
    """

    name: str
    change: Callable[[Landing], None]
    changed: tuple[date, date]
    last: date
    known: date
    reach: int = LONGEST_WAY
    takes_back: bool = False

    @property
    def may_fail(self) -> bool:
        """Whether a tool may refuse what has landed."""
        return self.known < self.last and not self.takes_back


def make_steps(days: int) -> Sequence[Step]:
    """The steps for a stream of so many days."""
    last = FIRST + (days - 1) * DAY
    second, third = last - DAY, last - 2 * DAY
    open_day, closed_day, corrected = second - 5 * DAY, second - 40 * DAY, second - 4 * DAY
    first_load = ((FIRST, third), third, third)
    return (
        Step("first load", lambda landing: landing.land_days(FIRST, third), *first_load, 0),
        Step("again, nothing new", lambda _: None, *first_load, 0),
        Step(
            "one day more",
            lambda landing: landing.land_days(second, second),
            (second, second),
            second,
            second,
        ),
        Step(
            "a late file",
            lambda landing: landing.land_late_file(second, open_day, closed_day),
            (second, second),
            second,
            second,
            (second - closed_day).days,
        ),
        Step(
            "a file is corrected",
            lambda landing: landing.correct_file(corrected),
            (corrected, corrected),
            second,
            second,
        ),
        Step(
            "one day more, poisoned",
            lambda landing: landing.poison_day(last),
            (last, last),
            last,
            second,
        ),
        Step(
            "it is mended", lambda landing: landing.land_days(last, last), (last, last), last, last
        ),
        Step("undo", lambda _: None, (last, last), last, second, takes_back=True),
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

    def __init__(self, name: str, packages: Path, script: str) -> None:
        self.name = name
        self._packages, self._script = packages, script

    def install(self) -> Path:
        """The packages that Spark, or what is in its place, comes with."""
        return install_packages(self._packages.name, self._packages / "requirements.txt")

    def prepare(self, workspace: Workspace) -> None:
        """The script."""
        shutil.copytree(HERE / "by_hand", workspace.root / "project")

    def load(self, workspace: Workspace, step: Step) -> Call:
        """The script for the arrival days that have other lines."""
        days = [*map(str, step.changed), str(step.reach)]
        return workspace.run_command(["python", self._script, *days])

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

    A JVM may end after the Python that started it, and its CPU would be nobody's. Only Linux can.
    """
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def measure_cpu(action: Callable[[], Call]) -> tuple[Call, float]:
    """What an action returns, and the CPU seconds of its processes when they have ended."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    call = action()
    deadline = monotonic() + ORPHAN_SECONDS
    with suppress(ChildProcessError):
        while monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                sleep(0.1)
    return call, used() - before


def log_entries(warehouse: Path) -> set[Path]:
    """The commits of all tables."""
    return {*warehouse.glob("*/_delta_log/*.json")}


def count_rows(entry: Path) -> int:
    """The rows of the files that a commit adds; a RESTORE adds files that were there before."""
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    if any(action.get("commitInfo", {}).get("operation") == "RESTORE" for action in actions):
        return 0
    adds = (action["add"] for action in actions if "add" in action)
    return sum(json.loads(add["stats"])["numRecords"] for add in adds)


def wrong_tables(warehouse: Path, truth: Path) -> list[str]:
    """The tables whose rows differ from those of the truth, in its columns."""
    wrong = []
    for name in QUERIES:
        with duckdb.connect() as connection:
            expected = connection.read_parquet(str(truth / f"{name}.parquet"))
            dataset = DeltaTable(warehouse / name).to_pyarrow_dataset()
            connection.register("actual", dataset.scanner().to_table())
            names = ", ".join(expected.columns)
            connection.register("expected", expected.to_arrow_table())
            differences = connection.sql(
                f"""(SELECT {names} FROM expected EXCEPT ALL SELECT {names} FROM actual) UNION ALL
                    (SELECT {names} FROM actual EXCEPT ALL SELECT {names} FROM expected)"""
            )
            if len(differences):
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
        if call.status and not step.may_fail:
            output = workspace.read_output()[-3000:]
            raise PeerError(f"{tool.name}, {step.name}: ended with {call.status}:\n{output}")
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
        results.append(StepResult(step, TRUTH, call, cpu_seconds, rows, 0, 0.0, []))
    return results


#: The first is what the others are compared with.
TOOLS: Sequence[Tool] = (
    ByHand("PySpark by hand", peers.HERE / "hand_written", "job.py"),
    ThisProject(),
    ByHand("PySpark by hand, on Sail", HERE / "sail", "on_sail.py"),
)
HEADINGS = (
    *("step", "tool", "seconds", "of by hand", "CPU seconds", "rows written", "commits"),
    *("tables apart", "rows"),
)


def format_row(result: StepResult, base: StepResult | None) -> tuple[str, ...]:
    """The cells of a step with one tool."""
    verdict = f"wrong: {', '.join(result.wrong)}" if result.wrong else "right"
    if result.tool == TRUTH:
        verdict = "the truth"
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
    parser.add_argument("--scale", type=float, default=1, help="TPC-H's; 1 is 2,500 lines a day")
    parser.add_argument("--days", type=int, default=180)
    names = [tool.name for tool in TOOLS]
    parser.add_argument("--tool", action="append", choices=names, help="only these; repeat it")
    arguments = parser.parse_args()
    if not FEWEST_DAYS <= arguments.days <= MOST_DAYS:
        parser.error(f"--days must be from {FEWEST_DAYS} to {MOST_DAYS}")
    adopt_orphans()
    CACHE.mkdir(parents=True, exist_ok=True)
    generator = install_packages("tpchgen", HERE / "requirements.txt")
    tools = [tool for tool in TOOLS if tool.name in (arguments.tool or names)]
    programs = {tool: tool.install() for tool in tools}
    root = Path(tempfile.mkdtemp(prefix="bench-tpch-"))
    try:
        results = measure_tools(root, arguments.scale, arguments.days, generator, programs)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(
        f"\nlineitem at scale {arguments.scale:g}, {arguments.days} days, each command in a new "
        f"process, once; {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}\n"
    )
    print(format_table(results))


def measure_tools(
    root: Path, scale: float, days: int, generator: Path, programs: Mapping[Tool, Path]
) -> list[list[StepResult]]:
    """The results of each tool, by the folder of its programs; then those of DuckDB."""
    original, truths = root / "original", root / "truths"
    (root / "empty").mkdir()
    (root / "duckdb").mkdir()
    generate_days(generator, scale, days, original)
    floor = make_truths(days, original, root / "duckdb", truths)
    results = []
    for number, (tool, program) in enumerate(programs.items()):
        print(tool.name, flush=True)
        folder = root / str(number)
        folder.mkdir()
        workspace = Workspace(folder, program, FIRST, FIRST + (days - 1) * DAY)
        workspace.prepare(root / "empty")
        tool.prepare(workspace)
        results.append(run_steps(tool, workspace, original, truths))
    return [*results, floor]


if __name__ == "__main__":
    main()
