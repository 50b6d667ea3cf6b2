"""pytest plugin: what each test takes, in wall and in CPU seconds, and a limit for the latter.

CPU seconds are those of the test process and of all processes below it (a Spark driver, servers,
runs): on a loaded machine a test takes longer, but it does not take more CPU. The time of a
session's own fixtures counts for the test that asks for them first, as in pytest's durations.

Files run longest first, by the seconds of an earlier run, so that no worker is busy with a long
file when the others have ended.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

#: Which tests a run's closing lines name.
_SLOWEST = 40
#: CPU seconds by file, of the tests that CI runs.
SECONDS_BY_FILE = Path(__file__).with_name("seconds_by_file.json")
_TICKS = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--cpu-limit SECONDS` and `--record-seconds`."""
    parser.addoption(
        "--cpu-limit",
        type=float,
        metavar="SECONDS",
        help="fail a test outside system/ whose processes take more CPU than this",
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


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
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
    if config.getoption("--record-seconds"):
        _record_seconds({_file_of(file): used for file, (_, used) in totals.items()})


def _record_seconds(seconds: Mapping[str, float]) -> None:
    """Keep the seconds of some files beside those of the others that still exist."""
    tests = SECONDS_BY_FILE.parent
    known = {**json.loads(SECONDS_BY_FILE.read_text()), **seconds}
    existing = {file: round(known[file]) for file in sorted(known) if (tests / file).is_file()}
    SECONDS_BY_FILE.write_text(json.dumps(existing, indent=1) + "\n")


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
