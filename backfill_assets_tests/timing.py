"""pytest plugin: what each test and the whole suite take, and limits for it.

CPU seconds are those of the test process and of all processes below it (a Spark driver, servers,
runs): on a loaded machine a test takes longer, but it does not take more CPU. The time of a
session's own fixtures counts for the test that asks for them first, as in pytest's durations.

The cost of the suite is its CPU seconds divided by those of a fixed job on the same machine, see
`reference_job`: CPU seconds measure the machine, too.

Files run longest first, by the seconds of an earlier run, so that no worker is busy with a long
file when the others have ended.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

#: Which tests and files a run's closing lines name.
_SLOWEST = 40
_DEAREST = 20
#: CPU seconds by file, of the tests that CI runs.
SECONDS_BY_FILE = Path(__file__).with_name("seconds_by_file.json")
_TICKS = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Limits, and what they are told in."""
    parser.addoption(
        "--cpu-limit",
        type=float,
        metavar="SECONDS",
        help="fail a test outside system/ whose processes take more CPU than this",
    )
    parser.addoption(
        "--reference-seconds",
        type=float,
        metavar="SECONDS",
        help="CPU seconds of the reference job on this machine, the unit of the suite's cost",
    )
    parser.addoption(
        "--cost-limit",
        type=float,
        metavar="UNITS",
        help="fail the run if the CPU seconds of all tests are more than so many reference jobs",
    )
    parser.addoption(
        "--skip-limit",
        type=int,
        metavar="TESTS",
        help="fail the run if more tests than these are skipped",
    )
    parser.addoption(
        "--record-seconds",
        action="store_true",
        help=f"keep the seconds of the files of this run in {SECONDS_BY_FILE.name}",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files: those that nobody has timed first, then the longest first."""
    seconds = json.loads(SECONDS_BY_FILE.read_text())
    items.sort(key=lambda item: -seconds.get(_file_of(item.nodeid), float("inf")))


def _file_of(nodeid: str) -> str:
    """The file of a test, from the folder of the tests."""
    return nodeid.partition("::")[0].removeprefix(f"{SECONDS_BY_FILE.parent.name}/")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note how much CPU had been used before a test."""
    stash = item.config.stash
    # Reading all of /proc takes milliseconds: once for the end of a test and the start of the next.
    item.stash[_CPU_BEFORE] = stash[_CPU_NOW] if _CPU_NOW in stash else cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the CPU seconds to a test's last report, and fail the test if they exceed the limit."""
    report: pytest.TestReport = yield
    if report.when == "teardown":
        item.config.stash[_CPU_NOW] = cpu_seconds()
        # A process that outlives the one that started it takes its seconds along.
        used = max(0.0, item.config.stash[_CPU_NOW] - item.stash[_CPU_BEFORE])
        report.user_properties.append(("cpu_seconds", round(used, 1)))
        limit = item.config.getoption("--cpu-limit")
        in_system = item.get_closest_marker("system") is not None
        test_seconds = used - item.config.stash.get(SESSION_CPU, 0.0)
        item.config.stash[SESSION_CPU] = 0.0
        if limit and test_seconds > limit and report.passed and not in_system:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} took {used:.0f} CPU seconds; the limit is {limit:.0f}"
    return report


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note when the run began."""
    session.config.stash[_STARTED] = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that exceeds a limit."""
    if not hasattr(session.config, "workerinput") and exceeded_limits(session.config):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def exceeded_limits(config: pytest.Config) -> list[str]:
    """A sentence for each limit of the whole run that it has exceeded."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    messages = []
    reference, limit = config.getoption("--reference-seconds"), config.getoption("--cost-limit")
    used = sum(seconds_by_test(reporter.stats)[1].values())
    if reference and limit and used / reference > limit:
        messages.append(
            f"The tests cost {used / reference:.1f} reference jobs; the limit is {limit:g}. Look "
            "at the dearest files above: decide without Spark, share what is loaded, land less."
        )
    skipped, skip_limit = reporter.stats.get("skipped", []), config.getoption("--skip-limit")
    if skip_limit is not None and len(skipped) > skip_limit:
        reasons = "".join(f"\n  {r.nodeid}: {r.longrepr[-1]}" for r in skipped)
        messages.append(
            f"{len(skipped)} tests were skipped; {skip_limit} may be. Install what they need:"
            f"{reasons}"
        )
    return messages


def seconds_by_test(
    reports_by_outcome: Mapping[str, Sequence[Any]],
) -> tuple[dict[str, float], dict[str, float]]:
    """The wall seconds and the CPU seconds of each test."""
    wall: defaultdict[str, float] = defaultdict(float)
    cpu: defaultdict[str, float] = defaultdict(float)
    for reports in reports_by_outcome.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                wall[report.nodeid] += report.duration
                cpu[report.nodeid] += dict(report.user_properties).get("cpu_seconds", 0.0)
    return wall, cpu


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the slowest tests, the dearest files, the cost of the run and exceeded limits."""
    wall, cpu = seconds_by_test(terminalreporter.stats)
    files: defaultdict[str, list[str]] = defaultdict(list)
    for nodeid in wall:
        files[nodeid.partition("::")[0]].append(nodeid)
    terminalreporter.section(f"{_SLOWEST} slowest tests (seconds: wall, CPU)")
    for nodeid in sorted(wall, key=wall.__getitem__, reverse=True)[:_SLOWEST]:
        terminalreporter.write_line(f"{wall[nodeid]:8.1f} {cpu[nodeid]:8.1f}  {nodeid}")
    terminalreporter.section(f"{_DEAREST} dearest files (seconds: wall, CPU; tests)")
    totals = {f: (sum(map(wall.get, ids)), sum(map(cpu.get, ids))) for f, ids in files.items()}
    dearest = sorted(totals.items(), key=lambda item: -item[1][1])[:_DEAREST]
    for file, (seconds, used) in dearest:
        terminalreporter.write_line(f"{seconds:8.1f} {used:8.1f} {len(files[file]):5}  {file}")
    terminalreporter.section("Cost")
    used, elapsed = sum(cpu.values()), time.monotonic() - config.stash[_STARTED]
    line = f"{len(wall)} tests: {used:.0f} CPU seconds, {elapsed:.0f} s of wall time"
    if reference := config.getoption("--reference-seconds"):
        line += f", {used / reference:.1f} reference jobs of {reference:g} CPU seconds"
    terminalreporter.write_line(line)
    for message in exceeded_limits(config):
        terminalreporter.write_line(message, red=True)
    if config.getoption("--record-seconds"):
        _record_seconds({_file_of(file): used for file, (_, used) in totals.items()})


def _record_seconds(seconds: Mapping[str, float]) -> None:
    """Keep the seconds of some files beside those of the others that still exist."""
    tests = SECONDS_BY_FILE.parent
    known = {**json.loads(SECONDS_BY_FILE.read_text()), **seconds}
    existing = {file: round(known[file]) for file in sorted(known) if (tests / file).is_file()}
    SECONDS_BY_FILE.write_text(json.dumps(existing, indent=1) + "\n")


_STARTED = pytest.StashKey[float]()
#: Before a test, and after the last test of this process.
_CPU_BEFORE = pytest.StashKey[float]()
_CPU_NOW = pytest.StashKey[float]()
#: What the start of a session's engine took, which no test has to answer for.
SESSION_CPU = pytest.StashKey[float]()


def cpu_seconds() -> float:
    """The CPU seconds that this process and all below it have used, with those that ended."""
    if not _STAT.exists():  # not on Linux: without what still runs below this process
        return sum(os.times()[:4])
    ticks: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for process in _STAT.parents[1].glob("[0-9]*"):
        try:
            status = (process / "stat").read_text()
        except OSError:  # it has ended
            continue
        # The name of the command, in parentheses, may hold anything.
        fields = status.rpartition(")")[2].split()
        children[int(fields[1])].append(int(process.name))
        ticks[int(process.name)] = sum(map(int, fields[11:15]))
    total, open_pids = 0, [os.getpid()]
    while open_pids:
        pid = open_pids.pop()
        total += ticks.get(pid, 0)
        open_pids += children[pid]
    return total / _TICKS


#: The kernel's list of the children of a process may lack some while others are started.
_STAT = Path("/proc/self/stat")
