"""A run's log, condensed into a line a step."""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from backfill_assets.cli.output import Output, Status

_EVENT = re.compile(r" - dagster - \w+ - .* - (?P<step>\w+) - (?P<event>[A-Z_]+)(?: - |$)")
_ASSET = re.compile(r"Materialized value (\w+)\.")
#: What the IO manager logs of a table, if there is something that it need not do.
_IDENTICAL = re.compile(r" - (\w+) - (\w+) \[[-.\d]+\]: (?:.*, )?(\d+) days? identical")
_SKIPPED = re.compile(r"Dependencies for step (\w+) (?:failed|were not executed)")
#: A check that did not pass, and the first line of what it says.
_FINDING = re.compile(r"Asset check '(\w+)' on '(\w+)' did not pass\.(?: Description: '(.*))?")
_FAILURE = "dagster._core.definitions.events.Failure: "
#: Errors that say themselves what is wrong and what to do; their stack trace would hide that.
_SELF_EXPLAINED = (_FAILURE, "backfill_assets.")
_TAIL = 40
#: Before the name of a page, which has no days: the name of the step that makes it.
_PAGE_PREFIX = "draw_"


def condense_log(lines: Iterable[str], out: Output) -> Status:
    """Condense a run's log into a line a step, and pass on what a failed step says.

    Args:
        lines: those of the log.
        out: where to print.

    Returns:
        `FINE` if the run succeeded, else `FINDING`. If it ended without a failed step (killed, or
        never started), what was last said outside of Dagster's log is passed on.
    """
    condenser = _LogCondenser(out)
    for line in lines:
        if " - dagster - " in line:
            condenser.read_line(line)
        else:
            condenser.tail.append(line.rstrip())
    return condenser.end_run()


@dataclass
class _Step:
    """What a step has published and evaluated so far."""

    days: Counter[str] = field(default_factory=Counter)
    identical: Counter[str] = field(default_factory=Counter)
    checks: int = 0
    findings: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def failed_checks(self) -> int:
        """How many checks did not pass."""
        return sum(map(len, self.findings.values()))

    @property
    def failure_reasons(self) -> Iterator[str]:
        """For each check that did not pass what it said first, and how often it did not."""
        for name, texts in self.findings.items():
            more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
            yield f"{name}: {texts[0]}{more}"

    def describe_counts(self, name: str) -> str:
        """The same in words, of the step of that name."""
        days, identical = (
            ", ".join(
                f"{asset} {n} day{'s' * (n != 1)}" if name != f"{_PAGE_PREFIX}{asset}" else asset
                for asset, n in counts.items()
            )
            # Days that stay as they are, are materialized as well.
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
    """A run's log so far: a line for each step that ended, and the steps that run."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self.running: defaultdict[str, _Step] = defaultdict(_Step)
        self.step_failed = self.error_printed = self.succeeded = False

    def read_line(self, line: str) -> None:
        """Take in one line of Dagster's own."""
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
        """Take in an event of a step, or of the run."""
        if kind == "STEP_START":
            self.running[name] = _Step()
        elif kind == "ASSET_MATERIALIZATION":
            asset = _ASSET.search(line)
            self.running[name].days[asset[1] if asset else "?"] += 1
        elif kind == "ASSET_CHECK_EVALUATION":
            step = self.running[name]
            step.checks += 1
            if finding := _FINDING.search(line):
                # Backslashes are for Dagster's pages.
                text = re.sub(r"\\(\W|_)", r"\1", (finding[3] or "").rstrip("\n").removesuffix("'"))
                step.findings[f"{finding[2]} {finding[1]}"].append(text)
        elif kind in ("STEP_SUCCESS", "STEP_FAILURE"):
            self.step_failed = kind == "STEP_FAILURE"
            self.end_step(name, "FAILED; " if self.step_failed else "")
        elif kind == "RUN_SUCCESS":
            self.succeeded = True

    def end_step(self, name: str, prefix: str) -> None:
        """Say what a step has done. Steps run at the same time: each has its line when it ends."""
        step = self.running.pop(name, _Step())
        self.print_line(f"  {name} ... {prefix}{step.describe_counts(name)}")
        # A step that failed says itself which days, and why.
        for reason in () if prefix else step.failure_reasons:
            self.print_line(f"    {reason}")

    def end_run(self) -> Status:
        """Say how the run ended."""
        if self.step_failed:
            self.print_error()
        # Seen once: the line that said a step's end was not among those of a run that succeeded.
        for name in [*self.running]:
            self.end_step(name, "" if self.succeeded else "BROKEN OFF; ")
        if self.succeeded:
            return Status.FINE
        if not self.error_printed:
            self.print_error()
        return Status.FINDING

    def print_error(self) -> None:
        """Pass on what was said; the stack trace only of an error that nobody foresaw."""
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
        """Print a line."""
        self.out.print_text(text)
