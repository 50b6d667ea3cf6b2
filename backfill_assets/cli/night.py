"""The command `night`: the runs of schedule and sensors; and the condensed log of a run."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from backfill_assets.cli.output import Output, Status, command
from backfill_assets.cli.parameters import Day, dagster_home
from backfill_assets.deployment import Deployment
from backfill_assets.settings import load_settings

if TYPE_CHECKING:
    from backfill_assets.monitoring.next_runs import NightResult, Request, RunPlanner

_EVENT = re.compile(r" - dagster - \w+ - .* - (?P<step>\w+) - (?P<event>[A-Z_]+)(?: - |$)")
_ASSET = re.compile(r"Materialized value (\w+)\.")
#: What the IO manager logs of a table's days that need no change.
_IDENTICAL = re.compile(r" - (\w+) - (\w+) \[[-.\d]+\]: (?:.*, )?(\d+) days? identical")
_SKIPPED = re.compile(r"Dependencies for step (\w+) (?:failed|were not executed)")
#: A failed check, and the first line of its message.
_FINDING = re.compile(r"Asset check '(\w+)' on '(\w+)' did not pass\.(?: Description: '(.*))?")
_FAILURE = "dagster._core.definitions.events.Failure: "
#: Errors whose message is enough; their stack trace would hide it.
_SELF_EXPLAINED = (_FAILURE, "backfill_assets.")
_TAIL = 40
#: The prefix of a page's name in the name of its step; a page has no days.
_PAGE_PREFIX = "draw_"


def condense_log(lines: Iterable[str], out: Output) -> Status:
    """Condense a run's log into one line per step, and print a failed step's error.

    Returns:
        `FINE` if the run succeeded, else `FINDING`. If it ended without a failed step (killed, or
            never started), the last output outside of Dagster's log is printed.
    """
    condenser = _LogCondenser(out)
    for line in lines:
        if " - dagster - " in line:
            condenser.read_line(line)
        else:
            condenser.tail.append(line.rstrip())
    return condenser.end_run()


@dataclass
class _StepLog:
    """The days and checks of a step so far."""

    days: Counter[str] = field(default_factory=Counter)
    identical: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    findings: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def failed_checks(self) -> int:
        return sum(map(len, self.findings.values()))

    @property
    def failure_reasons(self) -> Iterator[str]:
        """For each failed check, its first message and the number of further failures."""
        for name, texts in self.findings.items():
            more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
            yield f"{name}: {texts[0]}{more}"

    def describe_counts(self, name: str) -> str:
        """The counts as text; `name` is the step's."""
        days, identical = (
            ", ".join(
                f"{asset} {n} day{'s' * (n != 1)}" if name != f"{_PAGE_PREFIX}{asset}" else asset
                for asset, n in counts.items()
            )
            # Identical days are materialized as well.
            for counts in (self.days - self.identical, self.identical)
        )
        bad = f", {self.failed_checks} did not pass" if self.failed_checks else ""
        parts = [f"identical {identical}"] if identical else []
        if days or not (self.checks or identical):
            parts.append(f"published {days or 'nothing'}")
        if self.checks or not (days or identical):
            parts.append(f"{self.checks} checks evaluated{bad}")
        return "; ".join(parts)


class _LogCondenser:
    """A run's log so far: prints a line for each ended step, and holds the running steps."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self.running: defaultdict[str, _StepLog] = defaultdict(_StepLog)
        self.step_failed = self.error_printed = self.succeeded = False

    def read_line(self, line: str) -> None:
        """Process a line of Dagster's log; the first one after a failed step prints its error."""
        if self.step_failed:
            self.print_error()
        self.tail.clear()
        if event_match := _EVENT.search(line):
            self._handle_event(event_match["step"], event_match["event"], line)
        elif identical_match := _IDENTICAL.search(line):
            self.running[identical_match[1]].identical[identical_match[2]] += int(
                identical_match[3]
            )
        elif skipped_match := _SKIPPED.search(line):
            self.print_line(f"  {skipped_match[1]} ... not run, because of what failed before it")

    def _handle_event(self, name: str, kind: str, line: str) -> None:
        """Count an event for its step; at the end of a step, print its line."""
        if kind == "STEP_START":
            self.running[name] = _StepLog()
        elif kind == "ASSET_MATERIALIZATION":
            asset = _ASSET.search(line)
            self.running[name].days[asset[1] if asset else "?"] += 1
        elif kind == "ASSET_CHECK_EVALUATION":
            step = self.running[name]
            step.checks += 1
            if finding := _FINDING.search(line):
                # Backslashes escape Markdown for Dagster's pages.
                text = re.sub(r"\\(\W|_)", r"\1", (finding[3] or "").rstrip("\n").removesuffix("'"))
                step.findings[f"{finding[2]} {finding[1]}"].append(text)
        elif kind in ("STEP_SUCCESS", "STEP_FAILURE"):
            self.step_failed = kind == "STEP_FAILURE"
            self.end_step(name, "FAILED; " if self.step_failed else "")
        elif kind == "RUN_SUCCESS":
            self.succeeded = True

    def end_step(self, name: str, prefix: str) -> None:
        """Print a step's outcome in one line; steps may run at the same time."""
        step = self.running.pop(name, _StepLog())
        self.print_line(f"  {name} ... {prefix}{step.describe_counts(name)}")
        # A failed step's error names the days and the reason.
        for reason in () if prefix else step.failure_reasons:
            self.print_line(f"    {reason}")

    def end_run(self) -> Status:
        """Print the outcome of the run's remaining steps."""
        if self.step_failed:
            self.print_error()
        # Seen once: a successful run's log without the line of a step's end.
        for name in [*self.running]:
            self.end_step(name, "" if self.succeeded else "BROKEN OFF; ")
        if self.succeeded:
            return Status.FINE
        if not self.error_printed:
            self.print_error()
        return Status.FINDING

    def print_error(self) -> None:
        """Print the error; with a stack trace only if it is unexpected."""
        lines = list(self.tail)
        own_errors = [n for n, text in enumerate(lines) if text.startswith(_SELF_EXPLAINED)]
        if own_errors:
            lines = lines[own_errors[0] :]
            trace_starts = (n for n, text in enumerate(lines) if text.startswith("Stack Trace:"))
            end = next(trace_starts, len(lines))
            lines = [lines[0].removeprefix(_FAILURE), *lines[1:end]]
        for text in "\n".join(lines).strip().splitlines():
            self.print_line(f"    {text}")
        self.tail.clear()
        self.step_failed, self.error_printed = False, True

    def print_line(self, text: str) -> None:
        self.out.print_text(text)


@command("night", "night --run --as-of 2024-01-22")
@click.option("--run", is_flag=True, help="Run them, until nothing is left to do.")
@click.option("--as-of", metavar="DAY", type=Day(), help="The business day; else today.")
def night(out: Output, run: bool, as_of: date | None) -> Status:
    """What tonight's runs would be, as commands; with --run, run them.

    In the order in which schedule and sensors would. It ends with 1 if a run failed.
    """
    deployment = Deployment(load_settings())
    import dagster as dg

    from backfill_assets.backfills import state_store
    from backfill_assets.backfills.stages import missing_daemons
    from backfill_assets.monitoring.next_runs import RunPlanner, run_night, tables_in_progress
    from backfill_assets.shadow.switch import save_consistent_versions

    now = datetime.now(deployment.settings.zone).date()
    planner, today = RunPlanner(deployment, now), as_of or now
    with _home_or_temporary() as folder, dg.DagsterInstance.from_config(folder) as instance:
        find_busy_tables = partial(
            tables_in_progress, instance, planner.tables, daemon=not missing_daemons(instance)
        )
        for log, message in () if out.quiet else planner.no_data_warnings(today).items():
            # As a shell comment: the commands below it may be piped into a shell.
            out.print_command(f"# {log}: {message}.")
        if not run:
            _print_commands(
                out, planner, today, *planner.next_batch(today, find_busy_tables(), list)
            )
            return Status.FINE
        result = run_night(
            planner, today, find_busy_tables, partial(_run_request, out, planner, folder)
        )
        if not find_busy_tables() and not state_store.active_ids(instance):
            save_consistent_versions(deployment, now)
        return _report_result(out, today, result)


def _print_commands(
    out: Output, planner: RunPlanner, today: date, kind: str, requests: Sequence[Request]
) -> None:
    out.print_command(_describe_commands(today, kind, requests))
    for request in requests:
        out.print_command(shlex.join(planner.materialize_command(request)))


def _describe_commands(today: date, kind: str, requests: Sequence[Request]) -> str:
    """A shell comment above the commands: it tells what they do and whether to ask again."""
    from backfill_assets.monitoring.next_runs import LOAD

    if not requests:
        return f"# As of {today} all that has landed is loaded, and every open day is built."
    if kind == LOAD:
        return f"# As of {today}: load, in this order. Then ask again: what it changed is rebuilt."
    return f"# As of {today}: rebuild. Then ask again, until nothing is left."


def _report_result(out: Output, today: date, result: NightResult) -> Status:
    """Print failed requests and those left to other runs; `FINDING` if any failed."""
    for request in result.waiting:
        out.print_text(f"Left     {request.tables[0]} [{request.window}] to a run under way")
    for request in result.failed:
        out.print_text(f"FAILED   {', '.join(request.tables)} [{request.window}]")
    if result.failed:
        out.print_text(
            "Next     mend what the runs above say and ask again: only what is not built"
        )
        out.print_text("         as it should be is run. The days that passed are published.")
        return Status.FINDING
    out.print_text(f"Night    {today}: {len(result.succeeded)} run(s), nothing is left to do")
    return Status.FINE


@contextlib.contextmanager
def _home_or_temporary() -> Iterator[str]:
    """Dagster's home; if not set, a temporary one until the command ends.

    Dagster would create one for each run, with any dagster.yaml of the current folder.
    """
    if folder := dagster_home():
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="backfill_assets-") as temporary:
        Path(temporary, "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        yield temporary


def _run_request(
    out: Output, planner: RunPlanner, folder: str, kind: str, request: Request
) -> bool:
    """Run a request in a process of its own; whether it succeeded."""
    from backfill_assets.monitoring.next_runs import LOAD
    from backfill_assets.publish.types import NIGHT_VARIABLE

    activity = "Loading" if kind == LOAD else "Building"
    out.print_note(f"{activity} {', '.join(request.tables)} for {request.window} ...")
    program, *arguments = planner.materialize_command(request)
    with subprocess.Popen(
        [str(Path(sys.executable).with_name(program)), *arguments],
        env={**os.environ, NIGHT_VARIABLE: "1", "DAGSTER_HOME": folder},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        status = condense_log(process.stdout, out)
    return status is Status.FINE and process.returncode == 0
