"""pytest plugin: what each test takes, in wall and in CPU seconds, and a limit for the latter.

CPU seconds are those of the test process and of all processes below it (a Spark driver, servers,
runs): on a loaded machine a test takes longer, but it does not take more CPU. The time of a
session's own fixtures counts for the test that asks for them first, as in pytest's durations.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Which tests a run's closing lines name.
_SLOWEST = 40
_TICKS = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--cpu-limit SECONDS`."""
    parser.addoption(
        "--cpu-limit",
        type=float,
        metavar="SECONDS",
        help="fail a test whose processes take more CPU than this",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note how much CPU had been used before a test."""
    item.stash[_CPU_BEFORE] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the CPU seconds to a test's last report, and fail the test if they exceed the limit."""
    report: pytest.TestReport = yield
    if report.when == "teardown":
        used = cpu_seconds() - item.stash[_CPU_BEFORE]
        report.user_properties.append(("cpu_seconds", round(used, 1)))
        limit = item.config.getoption("--cpu-limit")
        if limit and used > limit and report.passed:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} took {used:.0f} CPU seconds; the limit is {limit:.0f}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the slowest tests, and the total of each file."""
    wall: defaultdict[str, float] = defaultdict(float)
    cpu: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                wall[report.nodeid] += report.duration
                cpu[report.nodeid] += dict(report.user_properties).get("cpu_seconds", 0.0)
    files: defaultdict[str, list[str]] = defaultdict(list)
    for nodeid in wall:
        files[nodeid.partition("::")[0]].append(nodeid)
    terminalreporter.section(f"{_SLOWEST} slowest tests (seconds: wall, CPU)")
    for nodeid in sorted(wall, key=wall.__getitem__, reverse=True)[:_SLOWEST]:
        terminalreporter.write_line(f"{wall[nodeid]:8.1f} {cpu[nodeid]:8.1f}  {nodeid}")
    terminalreporter.section("Files (seconds: wall, CPU; tests)")
    totals = {f: (sum(map(wall.get, ids)), sum(map(cpu.get, ids))) for f, ids in files.items()}
    for file, (seconds, used) in sorted(totals.items(), key=lambda item: -item[1][0]):
        terminalreporter.write_line(f"{seconds:8.1f} {used:8.1f} {len(files[file]):5}  {file}")


_CPU_BEFORE = pytest.StashKey[float]()


def cpu_seconds() -> float:
    """The CPU seconds that this process and all below it have used, with those that ended."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            status = (folder / "stat").read_text()
        except OSError:  # it has ended
            continue
        # The name of the command, in parentheses, may hold anything.
        fields = status.rpartition(")")[2].split()
        pid = int(folder.name)
        children[int(fields[1])].append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    total, open_pids = 0, [os.getpid()]
    while open_pids:
        pid = open_pids.pop()
        total += ticks.get(pid, 0)
        open_pids += children[pid]
    return total / _TICKS
