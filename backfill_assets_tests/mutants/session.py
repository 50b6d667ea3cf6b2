"""The session of pytest that tests mutants, on the copy of the project that has them.

    python -m backfill_assets_tests.mutants.session WANTED RESULTS ARGUMENT ...

All tests run once, which tells what functions each of them reaches, and in which time: in a fork,
since delta-rs works in no fork of a process that has used it. Then a process is forked for each
mutant. It runs the tests that reach its function to the first that fails: those that found other
mutants of the function, then the shortest. All is imported and collected by then: a mutant takes a
fraction of a second where mutmut, which has pytest begin anew, takes several. Its time is limited
in CPU seconds, of which a loaded machine does not take more.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from math import ceil
from pathlib import Path
from tempfile import TemporaryFile
from typing import TextIO

import pytest
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.utils.format_utils import mangled_name_from_mutant_name

#: Exit codes, as mutmut reads them.
_SURVIVED, _KILLED, _INTERNAL_ERROR, _NO_TESTS = 0, 1, 3, 33
#: CPU seconds of a mutant: so many, and so many times what its tests take without it.
_BASE_SECONDS, _SECONDS_FACTOR = 5, 5
#: Wall seconds of a test. Who waits for what does not come takes no CPU.
_WAITING_SECONDS = 300
_REPORTED_EVERY = 100


class MutantSession:
    """pytest plugin: runs all tests, then those that each mutant needs, in forks."""

    def __init__(self, mutants: Sequence[str], results: TextIO) -> None:
        self._mutants = mutants
        self._results = results
        self._processes = os.cpu_count() or 1
        #: By process, the mutant and where the process tells which test has failed.
        self._forks: dict[int, tuple[str, int]] = {}
        #: In a fork, where to tell that.
        self._failures: int | None = None
        self._found_by: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        self._seconds: dict[pytest.Item, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests in place of pytest's own loop."""
        if session.testsfailed:
            raise session.Interrupted("a file of tests cannot be collected")
        gc.freeze()
        self._trace_tests(session)
        for number, mutant in enumerate(self._mutants):
            self._test_mutant(mutant, session)
            if number % _REPORTED_EVERY == 0:
                print(f"{number} of {len(self._mutants)} mutants", file=sys.stderr)
        while self._forks:
            self._await_one()
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> None:
        """End a fork at the first failure: the mutant is killed.

        Before pytest makes a report, for which it would parse a file with all mutants of a module.
        """
        error = call.excinfo
        if self._failures is not None and error and not error.errisinstance(pytest.skip.Exception):
            os.write(self._failures, item.nodeid.encode())
            os._exit(_KILLED)

    def _trace_tests(self, session: pytest.Session) -> None:
        """Learn from a fork in which no code is changed what each test reaches, and in which time.

        Raises:
            pytest.Session.Interrupted: a test fails, or the fork did not come to its end.
        """
        with TemporaryFile("w+") as traces:
            pid = os.fork()
            if not pid:
                code = _INTERNAL_ERROR
                try:
                    _run_unchanged(session.items, traces)
                    session.config.pluginmanager.get_plugin("terminalreporter").summary_failures()
                    code = session.testsfailed and _KILLED
                finally:
                    os._exit(code)
            if os.waitpid(pid, 0)[1]:
                raise session.Interrupted("tests fail without a mutant")
            traces.seek(0)
            for item, (seconds, functions) in zip(
                session.items, map(json.loads, traces), strict=True
            ):
                self._seconds[item] = seconds
                for function in functions:
                    self._tests[function].append(item)

    def _run_silently(
        self, session: pytest.Session, items: Iterable[pytest.Item], found: Mapping[str, int]
    ) -> None:
        """Run tests in a fork: those that found most other mutants, then the shortest."""
        _be_silent()
        session.config.pluginmanager.unregister(name="terminalreporter")
        items = sorted(items, key=lambda item: (-found.get(item.nodeid, 0), self._seconds[item]))
        for item, next_item in zip_longest(items, items[1:]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)

    def _test_mutant(self, mutant: str, session: pytest.Session) -> None:
        function = mangled_name_from_mutant_name(mutant)
        items = self._tests[function]
        if not items:
            self._note(mutant, _NO_TESTS)
            return
        if len(self._forks) == self._processes:
            self._await_one()
        failures, failures_end = os.pipe()
        pid = os.fork()
        if pid:
            os.close(failures_end)
            self._forks[pid] = mutant, failures
            return
        code = _INTERNAL_ERROR
        try:
            self._failures = failures_end
            seconds = ceil(_BASE_SECONDS + _SECONDS_FACTOR * sum(self._seconds[i] for i in items))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            set_mutant_under_test(mutant)
            self._run_silently(session, items, self._found_by[function])
            code = _SURVIVED
        finally:
            os._exit(code)

    def _await_one(self) -> None:
        """Note what became of the next mutant that ends; a test may have left other processes."""
        fork = None
        while fork is None:
            pid, status = os.wait()
            fork = self._forks.pop(pid, None)
        mutant, failures = fork
        with os.fdopen(failures, "rb", buffering=0) as stream:
            # A test may have left a process that holds the other end: no reading to the end.
            os.set_blocking(failures, False)
            if failed := stream.read():
                self._found_by[mangled_name_from_mutant_name(mutant)][failed.decode()] += 1
        self._note(mutant, os.waitstatus_to_exitcode(status))

    def _note(self, mutant: str, exit_code: int) -> None:
        self._results.write(json.dumps([mutant, exit_code]) + "\n")
        self._results.flush()


def _run_unchanged(items: Sequence[pytest.Item], traces: TextIO) -> None:
    """Write a line for each test: its CPU seconds, and the functions that it reaches."""
    set_mutant_under_test("stats")
    reached = state()._stats
    for item, next_item in zip_longest(items, items[1:]):
        began = time.process_time()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        trace = time.process_time() - began, sorted(reached)
        print(json.dumps(trace), file=traces, flush=True)
        reached.clear()


def _be_silent() -> None:
    """Also what this process starts prints nothing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def main() -> None:
    """Run the session of the command line."""
    wanted, results, *arguments = sys.argv[1:]
    mutants = json.loads(Path(wanted).read_text())
    with Path(results).open("w") as stream:
        plugin = MutantSession(mutants, stream)
        # Output is captured in memory: forks would share a file.
        options = ["--rootdir=.", "--capture=sys", f"--timeout={_WAITING_SECONDS}"]
        sys.exit(pytest.main([*options, *arguments], plugins=[plugin]))


if __name__ == "__main__":
    main()
