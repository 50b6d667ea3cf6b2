"""`make bench-peers`: peers in turn over the same landing, then the three probes of each.

Ratios are the result; seconds depend on the machine. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

from backfill_assets_tests.benchmarks.bench_jobs import write_landing_apart
from backfill_assets_tests.benchmarks.peers.known_peers import (
    PEERS,
    POISONED_DAY,
    Peer,
    nth_day,
)
from backfill_assets_tests.benchmarks.peers.report import (
    LateResult,
    PeerResult,
    PoisonResult,
    format_table,
)
from backfill_assets_tests.benchmarks.peers.truth import (
    WINDOW_DAYS,
    Tables,
    compare_days,
    day_state,
    expected_tables,
)
from backfill_assets_tests.benchmarks.peers.workspace import (
    CACHE,
    PeerError,
    Workspace,
    land_late_file,
    mend_day,
    poison_day,
)
from backfill_assets_tests.helpers.pipeline import START

BASE = PEERS[0].name
#: The late file lies in the folder of this day, and is about one within its window and one beyond.
LATE_ARRIVAL, LATE_DAY, CLOSED_DAY = 10, 5, 2
#: Fewer days would not have the days of the probes.
FEWEST_DAYS = 12


@dataclass
class Bench:
    """What all peers share.

    Attributes:
        landing: the landing, which is copied for each.
        last: the last day.
        expected: the truth of the landing.
        left_out: a line for each peer that could not be measured.
    """

    landing: Path
    last: date
    expected: Tables
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, peer: Peer, error: Exception) -> None:
        """Note that a peer is left out, and why."""
        self.left_out.append(f"Left out: {peer.name}: {error}")
        print(self.left_out[-1], flush=True)

    def install_peers(self, names: Sequence[str]) -> Mapping[Peer, Path]:
        """The programs of each peer; one that does not install is left out by name."""
        programs = {}
        for peer in PEERS:
            if not names or any(peer.name.startswith(name) for name in names):
                try:
                    programs[peer] = peer.install()
                except PeerError as error:
                    self.leave_out(peer, error)
        return programs

    @contextmanager
    def open_workspace(self, peer: Peer, programs: Path) -> Iterator[Workspace]:
        """A new workspace of a peer; it is removed unless something fails in it."""
        root = Path(tempfile.mkdtemp(prefix=f"{peer.folder.replace(' ', '-')}-"))
        workspace = Workspace(root, programs, START, self.last)
        workspace.prepare(self.landing)
        peer.prepare(workspace)
        yield workspace
        shutil.rmtree(root, ignore_errors=True)

    def is_right(self, tables: Tables, expected: Tables | None = None) -> bool:
        """Whether all days of the three tables are those of the truth; else print which are not."""
        expected = expected or self.expected
        states = {name: compare_days(days, tables[name]) for name, days in expected.items()}
        if all(set(counts) <= {"right"} for counts in states.values()):
            return True
        for name, days in expected.items():
            for day in sorted(days.keys() | tables[name].keys()):
                if day_state(day, days, tables[name]) != "right":
                    print(f"    {name} {day}: {tables[name].get(day)}, not {days.get(day)}")
        return False


def load_first(bench: Bench, peer: Peer, workspace: Workspace, result: PeerResult) -> None:
    """A first load, held against the truth."""
    call = peer.load_all(workspace)
    if call.status:
        raise PeerError(f"ended with {call.status}, see {workspace.root}/output.txt")
    result.cold_seconds.append(call.seconds)
    right = bench.is_right(peer.read_tables(workspace))
    result.is_right = result.is_right and right
    print(f"  {call.seconds:6.1f} s: {peer.name}{'' if right else ', wrong'}", flush=True)


def probe_again(peer: Peer, workspace: Workspace, result: PeerResult) -> None:
    """The same command, with nothing changed."""
    commits = workspace.count_commits()
    call = peer.load_all(workspace)
    if call.status:
        raise PeerError(f"again ended with {call.status}, see {workspace.root}/output.txt")
    result.again_seconds = call.seconds
    result.again_commits = workspace.count_commits() - commits
    print(f"  {call.seconds:6.1f} s: again, {result.again_commits} commits", flush=True)


def probe_late_file(bench: Bench, peer: Peer, workspace: Workspace, result: PeerResult) -> None:
    """A file for day 5 in a folder that is loaded."""
    arrival = nth_day(LATE_ARRIVAL)
    land_late_file(workspace.landing, arrival, nth_day(LATE_DAY), nth_day(CLOSED_DAY))
    expected = expected_tables(workspace.landing, START, bench.last)
    call = peer.load_late(workspace, arrival - timedelta(days=WINDOW_DAYS), arrival)
    right = bench.is_right(peer.read_tables(workspace), expected)
    result.late = LateResult(peer.late_command, call.seconds, right)
    print(f"  {call.seconds:6.1f} s: late file, {'right' if right else 'wrong'}", flush=True)


def probe_poisoned_day(bench: Bench, peer: Peer, workspace: Workspace, result: PeerResult) -> None:
    """A first load of a landing with a poisoned day; then the day is replaced."""
    day = nth_day(POISONED_DAY)
    poison_day(workspace.landing, day)
    status = peer.load_all(workspace).status
    tables = peer.read_tables(workspace)
    states = {name: day_state(day, bench.expected[name], tables[name]) for name in bench.expected}
    facts = compare_days(bench.expected["fact_daily_orders"], tables["fact_daily_orders"])
    mend_day(workspace.landing, bench.landing, day)
    call = peer.load_mended(workspace, day - timedelta(days=WINDOW_DAYS), day)
    right = bench.is_right(peer.read_tables(workspace))
    result.poison = PoisonResult(status, states, facts, call.seconds, right)
    print(
        f"  poisoned day: status {status}, {states}, facts {dict(facts)}; mended in "
        f"{call.seconds:.1f} s, {'right' if right else 'wrong'}",
        flush=True,
    )


def measure_peers(bench: Bench, programs: Mapping[Peer, Path], rounds: int) -> list[PeerResult]:
    """First loads in turn, then the probes of each peer; one that fails is left out by name."""
    results = {
        peer: PeerResult(peer.name, peer.versions(), remark=peer.remark, target=peer.target)
        for peer in programs
    }
    for number in range(rounds):
        print(f"round {number + 1}", flush=True)
        for peer in list(results):
            try:
                with bench.open_workspace(peer, programs[peer]) as workspace:
                    load_first(bench, peer, workspace, results[peer])
                    if number == rounds - 1:
                        probe_again(peer, workspace, results[peer])
                        probe_late_file(bench, peer, workspace, results[peer])
                if number == rounds - 1:
                    with bench.open_workspace(peer, programs[peer]) as workspace:
                        probe_poisoned_day(bench, peer, workspace, results[peer])
            except (PeerError, subprocess.TimeoutExpired) as error:
                bench.leave_out(peer, error)
                del results[peer]
    return list(results.values())


def write_new_landing(landing: Path, days: int, lines: int) -> None:
    """Write the landing, without what Spark leaves beside its files."""
    write_landing_apart(landing, days, lines)
    for path in [*landing.rglob(".*.crc"), *landing.rglob("_SUCCESS")]:
        path.unlink()
    for path in landing.glob("orders/*/*.jsonl"):
        path.write_text("".join(order_versions(path.read_text().splitlines())))


def order_versions(lines: Sequence[str]) -> Iterator[str]:
    """Lines of a file, each taken by the source a microsecond after the one before.

    Otherwise an order could have two greatest versions, and each tool may choose.
    """
    for number, line in enumerate(lines):
        yield line.replace('23:59:59Z"}', f'23:59:59.{number:06d}Z"}}') + "\n"


def main() -> None:
    """Make the landing, measure the peers, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--lines", type=int, default=20_000, help="of each day")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="append", default=[], help="only those that begin so")
    arguments = parser.parse_args()
    if arguments.days < FEWEST_DAYS:
        parser.error(f"--days must be at least {FEWEST_DAYS}: the probes are about day 2 to 11")
    CACHE.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="bench-peers-"))
    try:
        write_new_landing(root / "landing", arguments.days, arguments.lines)
        last = nth_day(arguments.days)
        bench = Bench(root / "landing", last, expected_tables(root / "landing", START, last))
        programs = bench.install_peers(arguments.peer)
        results = measure_peers(bench, programs, arguments.rounds)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(
        f"\n{arguments.days} days x {arguments.lines:,} lines, each command in a new process, "
        f"medians of {arguments.rounds}; {os.cpu_count()} cores, {platform.machine()}, "
        f"Python {platform.python_version()}\n"
    )
    print("\n\n".join([format_table(results, BASE), *bench.left_out]))


if __name__ == "__main__":
    main()
