"""Runs that commands start: the run of a job or of days, and a run's log in one line per step.

As a program, it is the process of `RunProcess`: `python -m backfill_assets.cli.runs MARK`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from backfill_assets.cli.output import Output, Status

if TYPE_CHECKING:
    import dagster as dg

    from backfill_assets.calendar.partitions import Window

_EVENT = re.compile(r" - dagster - \w+ - .* - (?P<step>\w+) - (?P<event>[A-Z_]+)(?: - |$)")
_ASSET = re.compile(r"Materialized value (?:\w+ )*(\w+)\.")
#: What the IO manager logs of a table at the end of its step, and the numbers in it.
_TABLE_COUNTS = re.compile(r" - (\w+) - (\w+) \[[-., \d]+\]: (\d+ days? \w+.*)")
_COUNT = re.compile(r"(\d+) (?:days? )?(\w+)")
_SKIPPED = re.compile(r"Dependencies for step (\w+) (?:failed|were not executed)")
#: An evaluation: the check, its asset, whether it failed, and the first line of its message.
_CHECK = re.compile(
    r"Asset check '(\w+)' on '(?:\w+/)*(\w+)' (?:passed|(did not pass))\.(?: Description: '(.*))?"
)
_FAILURE = "dagster._core.definitions.events.Failure: "
#: Errors whose message is enough; their stack trace would hide it.
_SELF_EXPLAINED = (_FAILURE, "backfill_assets.")
_STACK = "Stack Trace:"
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
            condenser.read_output(line.rstrip())
    return condenser.end_run()


@dataclass
class _StepLog:
    """The days and checks of a step so far, by asset."""

    days: Counter[str] = field(default_factory=Counter)
    identical: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
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
                f"{asset} {n} day{'s' * (n != 1)}"
                if not name.endswith(f"{_PAGE_PREFIX}{asset}")
                else asset
                for asset, n in counts.items()
            )
            # Identical days are materialized as well.
            for counts in (self.days - self.identical, +self.identical)
        )
        bad = f", {self.failed_checks} did not pass" if self.failed_checks else ""
        checks = self.checks.total()
        parts = [f"identical {identical}"] if identical else []
        if days or not (checks or identical):
            parts.append(f"published {days or 'nothing'}")
        if checks or not (days or identical):
            parts.append(f"{checks} checks evaluated{bad}")
        return "; ".join(parts)


class _LogCondenser:
    """A run's log so far: prints a line for each ended step, and holds the running steps."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.tail: deque[str] = deque(maxlen=_TAIL)
        # Of the first error that explains itself: its message may be followed by a long stack.
        self.message: list[str] = []
        self.in_message = False
        self.running: defaultdict[str, _StepLog] = defaultdict(_StepLog)
        self.step_failed = self.error_printed = self.succeeded = False

    def read_line(self, line: str) -> None:
        """Process a line of Dagster's log; the first one after a failed step prints its error."""
        if self.step_failed:
            self.print_error()
        self.forget_output()
        if event_match := _EVENT.search(line):
            self._handle_event(event_match["step"], event_match["event"], line)
        elif counts_match := _TABLE_COUNTS.search(line):
            self._set_counts(*counts_match.groups())
        elif skipped_match := _SKIPPED.search(line):
            self.print_line(f"  {skipped_match[1]} ... not run, because of what failed before it")

    def read_output(self, text: str) -> None:
        """Keep a line outside of Dagster's log: the last ones, and the message of an error."""
        if text.startswith(_SELF_EXPLAINED) and not self.message:
            self.in_message = True
        elif text.startswith(_STACK):
            self.in_message = False
        if self.in_message:
            self.message.append(text)
        self.tail.append(text)

    def forget_output(self) -> None:
        """Drop the lines outside of Dagster's log: what follows is another matter."""
        self.tail.clear()
        self.message.clear()
        self.in_message = False

    def _handle_event(self, name: str, kind: str, line: str) -> None:
        """Count an event for its step; at the end of a step, print its line."""
        if kind == "STEP_START":
            self.running[name] = _StepLog()
        elif kind == "ASSET_MATERIALIZATION":
            asset = _ASSET.search(line)
            self.running[name].days[asset[1] if asset else "?"] += 1
        elif kind == "ASSET_CHECK_EVALUATION":
            self._handle_check(self.running[name], line)
        elif kind in ("STEP_SUCCESS", "STEP_FAILURE"):
            self.step_failed = kind == "STEP_FAILURE"
            self.end_step(name, "FAILED; " if self.step_failed else "")
        elif kind == "RUN_SUCCESS":
            self.succeeded = True

    def _handle_check(self, step: _StepLog, line: str) -> None:
        """Count an evaluation, and keep what it says if it did not pass."""
        if check := _CHECK.search(line):
            name, asset, failed, text = check.groups()
            step.checks[asset] += 1
            if failed:
                # Backslashes escape Markdown for Dagster's pages.
                text = re.sub(r"\\(\W|_)", r"\1", (text or "").rstrip("\n").removesuffix("'"))
                step.findings[f"{asset} {name}"].append(text)

    def _set_counts(self, name: str, asset: str, text: str) -> None:
        """Take a table's counts: of its days, the log has no event but of checks that failed."""
        counts = Counter({what: int(number) for number, what in _COUNT.findall(text)})
        step = self.running[name]
        step.identical[asset] = counts["identical"]
        step.days[asset] = counts["identical"] + counts["written"] + counts["unchanged"]
        step.checks[asset] = counts["checks"]

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
        lines = "\n".join(self.message or self.tail).removeprefix(_FAILURE).strip()
        for text in (lines or "no run has succeeded, and nothing says why").splitlines():
            self.print_line(f"    {text}")
        self.forget_output()
        self.step_failed, self.error_printed = False, True

    def print_line(self, text: str) -> None:
        self.out.print_text(text)


@dataclass(frozen=True)
class JobRun:
    """A run of a job.

    Attributes:
        id: of the run.
        metadata: of the output of its op.
    """

    id: str
    metadata: Mapping[str, dg.MetadataValue]


class JobFailedError(ValueError):
    """A run of a job failed, or was refused; `metadata` is that of the failure."""

    def __init__(
        self, message: str, metadata: Mapping[str, dg.MetadataValue] | None = None
    ) -> None:
        super().__init__(message)
        self.metadata = metadata or {}


def run_job(
    out: Output, dagster: dg.DagsterInstance, job: str, op: str, config: Mapping[str, Any]
) -> JobRun:
    """Run a job of one op as a recorded run of Dagster, whose log a verbose command prints.

    Raises:
        JobFailedError: why it was refused, or failed.
    """
    import dagster as dg

    from backfill_assets.dagster_ext.internals import ReconstructableRepository
    from backfill_assets.deployment import Deployment
    from backfill_assets.settings import load_settings

    repository = ReconstructableRepository.for_module("backfill_assets.definitions", "defs")
    job, op = map(Deployment(load_settings()).automation_name, (job, op))
    result = dg.execute_job(
        repository.get_reconstructable_job(job),
        instance=dagster,
        run_config={
            "ops": {op: {"config": dict(config)}},
            "loggers": {
                "console": {"config": {"log_level": "DEBUG" if out.verbose else "CRITICAL"}}
            },
        },
    )
    # A step's failure has a message; any other failure is only in the run's log.
    metadata: Mapping[str, dg.MetadataValue] = {}
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            if failure := data.user_failure_data:
                raise JobFailedError(failure.description or "", failure.metadata)
            raise JobFailedError(str(data.error))
        if event.is_successful_output:
            metadata = event.step_output_data.metadata
    if not result.success:
        raise JobFailedError(f"run {result.run_id[:8]} failed; its log says why")
    return JobRun(result.run_id, metadata)


class RunProcess:
    """Runs of days, one after the other in a process of their own, with one Spark engine.

    The process starts at the first run, and ends with the block. After a run that failed, the next
    one has a new process: the engine may be lost, or out of memory.
    """

    def __init__(self, out: Output, home: str) -> None:
        """`home` is DAGSTER_HOME of the process."""
        self.out = out
        self.home = home
        self._process: subprocess.Popen[str] | None = None
        #: The line after the log of a run that succeeded. It is random: no log contains it.
        self._mark = uuid4().hex

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        # After Ctrl-C the process has the signal as well, and ends its run.
        interrupted = error_type is not None and issubclass(error_type, KeyboardInterrupt)
        if self._process is not None and not interrupted:
            self._process.communicate()  # without further requests it ends

    def run_days(self, assets: Sequence[str], days: Window, tags: Mapping[str, str]) -> bool:
        """Materialize days of assets of one grain; whether it succeeded."""
        if self._process is None or not self._is_ready(self._process):
            self._process = self._start_process()
        process = self._process
        self._send(process, json.dumps([str(days), dict(tags), [*assets]]))
        status = condense_log(self._read_log(process), self.out)
        return status is Status.FINE and process.returncode is None

    def _is_ready(self, process: subprocess.Popen[str]) -> bool:
        """Whether a process that has run something lives, and its engine answers."""
        if process.returncode is not None:
            return False
        self._send(process, _IS_READY)
        for _ in self._read_log(process):
            pass
        return process.returncode is None

    def _start_process(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, self._mark],
            env={**os.environ, "DAGSTER_HOME": self.home},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def _send(self, process: subprocess.Popen[str], request: str) -> None:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and its output says why
            process.stdin.write(f"{request}\n")
            process.stdin.flush()

    def _read_log(self, process: subprocess.Popen[str]) -> Iterator[str]:
        """Yield the lines of a run's log, which ends with the mark or with the process."""
        assert process.stdout is not None
        for line in process.stdout:
            if line.rstrip() == self._mark:
                return
            yield line
        process.communicate()


#: The request that asks whether the next one would find a Spark engine.
_IS_READY = ""


def _serve_runs(mark: str) -> None:
    """Do what each line of the input asks for until something fails, see `RunProcess`."""
    import dagster as dg

    from backfill_assets.spark.session import engines_answer

    requests = os.fdopen(os.dup(sys.stdin.fileno()))
    # What a run starts must not read the requests.
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    with dg.DagsterInstance.get() as instance:
        for line in requests:
            request = line.strip()
            if request == _IS_READY:
                succeeded = engines_answer()
            else:
                succeeded = _materialize(instance, *json.loads(request))
            if not succeeded:
                sys.exit(1)
            # The engine's output may have no line end.
            print(f"\n{mark}", flush=True)


def _materialize(
    instance: dg.DagsterInstance, text: str, tags: Mapping[str, str], assets: Sequence[str]
) -> bool:
    """Materialize days of assets in this process; whether it succeeded."""
    import dagster as dg

    from backfill_assets.calendar.partitions import Window
    from backfill_assets.dagster_ext.internals import ReconstructableRepository
    from backfill_assets.dagster_ext.run_locks import release_run_lock
    from backfill_assets.deployment import Deployment
    from backfill_assets.landing.listing import forget_digests
    from backfill_assets.settings import load_settings
    from backfill_assets.tables.table import run_tags

    forget_digests()
    repository = ReconstructableRepository.for_module("backfill_assets.definitions", "defs")
    definition = repository.get_definition()
    deployment = Deployment(load_settings())
    keys = [*dict.fromkeys(map(deployment.asset_key, assets))]
    tables = [deployment.tables[name] for name in assets if name in deployment.tables]
    job = definition.get_implicit_job_def_for_assets(keys)
    assert job is not None
    result = dg.execute_job(
        repository.get_reconstructable_job(job.name),
        instance=instance,
        asset_selection=keys,
        tags={**tags, **run_tags(tables, Window.parse(text))},
    )
    release_run_lock(result.run_id)
    return result.success


if __name__ == "__main__":
    _serve_runs(sys.argv[1])
