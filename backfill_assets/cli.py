"""The `backfill-assets` command: what Dagster's own commands do not cover.

Running assets is Dagster's part (`dagster asset materialize`, the UI); there is no load path here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path

import dagster as dg
from dagster._core.definitions.reconstruct import ReconstructableRepository
from dagster._core.errors import DagsterHomeNotSetError
from deltalake.exceptions import DeltaError
from rich.console import Console, RenderableType
from rich.table import Table as Grid

from backfill_assets import accounts, backfills, jobs, maintenance, planning, verification
from backfill_assets.audit import Severity
from backfill_assets.catalog import tables_of
from backfill_assets.codes import running_code
from backfill_assets.dashboard import DASHBOARD
from backfill_assets.definitions import build_defs
from backfill_assets.deployment import deploy
from backfill_assets.history import history, life, spans
from backfill_assets.landing import LandingError
from backfill_assets.night import LOAD, UNLIMITED, Night, busy, command, run_night
from backfill_assets.partitions import Window, windows
from backfill_assets.planning import BackfillPlan, Parameters
from backfill_assets.records import read_ledger
from backfill_assets.reports import as_grid, as_json
from backfill_assets.reprocessing import Request
from backfill_assets.sample.cdnow import write_landing
from backfill_assets.sample.generator import generate
from backfill_assets.settings import PREFIX, Settings, SettingsError, load_settings
from backfill_assets.spark import (
    Engine,
    EngineError,
    delta_coordinate,
    delta_jars,
    fetch_delta_jars,
)

_SAMPLE_DAYS = 28


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, or 1 after one sentence on what is wrong."""
    parser = argparse.ArgumentParser(prog="backfill-assets", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("jars", help="download the Delta jars into their cache, once")
    sample = commands.add_parser("sample", help="write sample landing data, unless there is some")
    sample.add_argument("--days", type=int, default=_SAMPLE_DAYS, help=f"({_SAMPLE_DAYS})")
    cdnow = commands.add_parser("cdnow", help="turn CDNOW_master.txt into landing data")
    cdnow.add_argument("master", type=Path, help="path of CDNOW_master.txt")
    commands.add_parser("show", help="what is published: days, rows, verdicts, places")
    commits = commands.add_parser("history", help="the commits of a table, or of a day of it")
    commits.add_argument("table")
    commits.add_argument("day", nargs="?", type=date.fromisoformat, help="YYYY-MM-DD")
    for name, text in (
        ("plan", "what a backfill of these days would do; kept under an id"),
        ("backfill", "launch a plan, or days, in stages, and watch it (needs the deployment)"),
    ):
        asked = commands.add_parser(name, help=text)
        asked.add_argument("days", help="FIRST...LAST" + (", or a plan's id" * (name != "plan")))
        _add_parameters(asked)
    account = commands.add_parser(
        "reconcile", help="what a backfill changed, and whether it is all"
    )
    account.add_argument("backfill", help="id of the backfill, or of a run")
    account.add_argument("--json", action="store_true", help="print JSON")
    back = commands.add_parser(
        "undo", help="put back what a backfill wrote, and what was made of it"
    )
    back.add_argument("backfill", help="id of the backfill, of a stage of it, or of a run")
    back.add_argument("--days", default="", help="only FIRST...LAST")
    back.add_argument("--reason", default="", help="why, for the record")
    upkeep = commands.add_parser(
        "maintain", help="compact small files, take away those past the time to undo"
    )
    upkeep.add_argument("tables", nargs="*", metavar="TABLE", help="only these tables")
    upkeep.add_argument("--dry-run", action="store_true", help="tell what would be done")
    proof = commands.add_parser("verify", help="compute days anew, compare them, write nothing")
    proof.add_argument("days", type=Window.parse, help="FIRST...LAST, or one day")
    proof.add_argument("--table", action="append", default=[], help="(all)")
    proof.add_argument("--json", action="store_true", help="print JSON")
    night = commands.add_parser(
        "night", help="what tonight's runs would be, as commands; with --run, run them"
    )
    night.add_argument("--run", action="store_true", help="run them, until nothing is left to do")
    night.add_argument("--as-of", type=date.fromisoformat, help="the business day, YYYY-MM-DD")
    ui = commands.add_parser("ui", help="the Dagster UI, daemon and runs on one warm Spark engine")
    ui.add_argument("--port", type=int, default=3000, help="port of the UI on 127.0.0.1 (3000)")
    commands.add_parser("progress", help="condense a run's log (standard input) into progress")
    given = parser.parse_args(arguments)
    # A pipe has no width of its own, and Rich would take it for 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 100)
    try:
        settings = load_settings()
        _refuse_unknown(settings, getattr(given, "table", ()))
        if given.command == "jars":
            _jars(settings, console)
        elif given.command == "sample":
            _sample(settings, given.days, console)
        elif given.command == "cdnow":
            if "://" in settings.landing:
                raise ValueError(f"{PREFIX}LANDING={settings.landing} is no local folder")
            rows = write_landing(given.master, Path(settings.landing))
            _say(console, f"{rows} purchases written to {settings.landing}")
        elif given.command == "show":
            show(settings, console)
        elif given.command == "history":
            day = given.day
            grid = life(settings, given.table, day) if day else history(settings, given.table)
            _show(grid)
        elif given.command in ("plan", "backfill"):
            return _backfill(settings, given, console)
        elif given.command == "reconcile":
            return _reconcile(settings, given.backfill, given.json, console)
        elif given.command == "undo":
            return _undo(given, console)
        elif given.command == "maintain":
            return _maintain(settings, given.tables, given.dry_run, console)
        elif given.command == "verify":
            return _verify(settings, given.days, given.table, given.json, console)
        elif given.command == "night":
            return _night(settings, given.as_of, given.run, console)
        elif given.command == "ui":
            _jars(settings, console)
            return deploy(settings, given.port, partial(_say, console))
        else:
            return progress(sys.stdin, console)
    except (SettingsError, EngineError, LandingError, OSError, ValueError, DeltaError) as error:
        print(f"backfill-assets {given.command}: {error}", file=sys.stderr)
        return 1
    return 0


def _refuse_unknown(settings: Settings, names: str | Sequence[str]) -> None:
    tables = tables_of(settings)
    if unknown := sorted({*([names] if isinstance(names, str) else names)} - tables.keys()):
        raise ValueError(f"no such table: {', '.join(unknown)}; there are {', '.join(tables)}")


def _say(console: Console, text: str, end: str = "\n") -> None:
    """Print text as it is: a path is no markup, and nobody wants it broken in the middle."""
    console.print(text, end=end, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _show(grid: RenderableType) -> None:
    """Print a table whole, however narrow the terminal: half of a run's id is of no use."""
    Console(width=_WIDE).print(grid)


_WIDE = 200


def _jars(settings: Settings, console: Console) -> None:
    if settings.spark_remote:
        _say(console, "SPARK_REMOTE is set: the server has the Delta jars, none are needed here.")
        return
    if not delta_jars(settings.jars):
        _say(console, f"Downloading the Delta jars ({delta_coordinate()}) ...")
    fetch_delta_jars(settings.jars)


def _sample(settings: Settings, days: int, console: Console) -> None:
    if "://" in settings.landing:
        _say(console, f"{settings.landing} is no local folder: no sample orders are written there.")
        return
    landing = Path(settings.landing)
    if (landing / "orders").exists():
        return
    _say(console, f"Writing {days} days of sample orders to {landing} ...")
    generate(landing, start=settings.start, days=days, window_days=settings.window_days)


def _add_parameters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", action="append", default=[], help="(all)")
    parser.add_argument("--pilot-days", type=int, default=0, help="so many first, then the rest")
    parser.add_argument("--chunk-days", type=int, help="stages of so many days, each reconciled")
    parser.add_argument("--max-parallel", type=int, help="runs at a time (the queue's limit)")
    parser.add_argument("--write-mode", choices=("overwrite", "merge"), default="overwrite")
    parser.add_argument("--rewrite", action="store_true", help="also what would be identical")
    parser.add_argument("--accept", action="append", default=[], help="a landing file by its name")
    parser.add_argument("--reason", default="", help="why, for the record")


def _instance() -> dg.DagsterInstance:
    """Dagster's instance, where plans are kept and backfills run."""
    try:
        return dg.DagsterInstance.get()
    except DagsterHomeNotSetError:
        raise ValueError(
            "set DAGSTER_HOME to that of the deployment: plans are kept there, and runs recorded"
        ) from None


def _backfill(settings: Settings, given: argparse.Namespace, console: Console) -> int:
    """Make a plan, show it, and launch it if that was asked for."""
    code = running_code(settings)
    graph = build_defs(settings).get_repository_def().asset_graph
    with _instance() as instance:
        if "-" not in given.days and given.command == "backfill":
            plan = backfills.find(instance, given.days).plan
        else:
            asked = Parameters(
                days=given.days,
                tables=tuple(given.table),
                **{name: getattr(given, name) for name in _PARAMETERS},
            )
            plan = jobs.plan_anew(settings, graph, instance, code, asked)
        _show_plan(plan, console)
        if given.command == "plan":
            _say(console, f"Launch   backfill-assets backfill {plan.id}")
            return 0
        it = jobs.launch(settings, graph, instance, code, plan.id)
        _say(console, f"Launched {settings.ui_url}/runs/b/{it.backfill_id}")
        said = ""
        while not it.ended:
            time.sleep(_LOOK_EVERY)
            it = backfills.find(instance, plan.id)
            if (now := backfills.progress(instance, it)) != said:
                said = now
                _say(console, f"{time.strftime('%X')}  {said}")
    _say(console, f"Took     {timedelta(seconds=round(it.took))}")
    _say(
        console, f"Next     backfill-assets reconcile {plan.id}, or backfill-assets undo {plan.id}"
    )
    return 0 if it.complete else 1


_PARAMETERS = (
    "pilot_days",
    "chunk_days",
    "max_parallel",
    "write_mode",
    "rewrite",
    "accept",
    "reason",
)
_LOOK_EVERY = 2  # seconds


def _show_plan(plan: BackfillPlan, console: Console) -> None:
    grid = Grid(title=f"Plan {plan.id}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("table", "what becomes of them", "why", "days"):
        grid.add_column(heading, no_wrap=True)
    for row in planning.in_lines(plan):
        grid.add_row(*row)
    _show(grid)
    for name, text in planning.in_numbers(plan):
        _say(console, f"{name:14} {text}")


def _night(settings: Settings, as_of: date | None, run: bool, console: Console) -> int:
    """Print or run what schedule and sensors would, in the order in which they would."""
    night = Night(settings)
    today = as_of or datetime.now(settings.zone).date()
    with _home_or_none() as home, dg.DagsterInstance.from_config(home) as instance:
        look = partial(busy, instance, night.tables, daemon=not backfills.lacking_daemons(instance))
        if not run:
            kind, requests = night.wave(today, look(), list)
            _say(console, _outlook(today, kind, requests))
            for request in requests:
                _say(console, shlex.join(_assignments(settings) + command(request)))
            return 0
        result = run_night(night, today, look, partial(_run_one, console, home))
    for request in result.waiting:
        _say(console, f"Left     {request.tables[0]} [{request.window}] to a run under way")
    for request in result.failed:
        _say(console, f"FAILED   {', '.join(request.tables)} [{request.window}]")
    if result.failed:
        _say(console, "Next     mend what the runs above say and ask again: only what is not built")
        _say(console, "         as it should be is run. The days that passed are published.")
        return 1
    _say(console, f"Night    {today}: {len(result.done)} run(s), nothing is left to do")
    return 0


def _outlook(today: date, kind: str, requests: Sequence[Request]) -> str:
    """What the commands are that follow, as a shell's comment."""
    if not requests:
        return f"# As of {today} all that has landed is loaded, and every open day is built."
    if kind == LOAD:
        return f"# As of {today}: load, in this order. Then ask again: what it changed is rebuilt."
    return f"# As of {today}: rebuild. Then ask again, until nothing is left."


def _assignments(settings: Settings) -> list[str]:
    return [f"{k}={v}" for k, v in UNLIMITED.items()] if settings.partitions_per_run else []


@contextlib.contextmanager
def _home_or_none() -> Iterator[str]:
    """Dagster's home; where there is none, one that lasts as long as the command.

    Dagster would make one for each run, and configure it by whatever dagster.yaml lies around.
    """
    if home := os.environ.get("DAGSTER_HOME"):
        yield home
        return
    with tempfile.TemporaryDirectory(prefix="backfill_assets-") as temporary:
        Path(temporary, "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        yield temporary


def _run_one(console: Console, home: str, kind: str, request: Request) -> bool:
    """Run a request as a process of its own; whether it succeeded."""
    doing = "Loading" if kind == LOAD else "Building"
    _say(console, f"{doing} {', '.join(request.tables)} for {request.window} ...")
    dagster, *arguments = command(request)
    with subprocess.Popen(
        [str(Path(sys.executable).with_name(dagster)), *arguments],
        env={**os.environ, **UNLIMITED, "DAGSTER_HOME": home},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        said = progress(process.stdout, console)
    return said == 0 and process.returncode == 0


def _reconcile(settings: Settings, name: str, json_: bool, console: Console) -> int:
    graph = build_defs(settings).get_repository_def().asset_graph
    with _instance() as instance:
        spark = Engine.of(settings).spark_session
        found = jobs.give_account(settings, graph, instance, spark, name)
    if json_:
        whole = {
            "backfill": name,
            "problems": list(found.problems),
            "code": sorted(found.certificate.commits),
            "configuration": found.certificate.configurations,
            **as_json(found.reports),
        }
        _say(console, json.dumps(whole, indent=2))
    else:
        for report in found.reports:
            _show(as_grid(report))
        for what, text in accounts.in_lines(found):
            _say(console, f"{what:14} {text}")
    return 1 if found.problems else 0


def _undo(given: argparse.Namespace, console: Console) -> int:
    """Run the job `undo` as a run of Dagster's own, so that it is in the trail like any other."""
    repository = ReconstructableRepository.for_module("backfill_assets.definitions", "defs")
    said = {"backfill": given.backfill, "days": given.days, "reason": given.reason}
    with _instance() as instance:
        result = dg.execute_job(
            repository.get_reconstructable_job("undo"),
            instance=instance,
            run_config={
                "ops": {"put_back": {"config": said}},
                "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
            },
        )
        # What failed in the step says why; what failed outside of it is in the run's log.
        for event in result.all_events:
            if event.is_step_failure:
                failure = event.step_failure_data.user_failure_data
                raise ValueError(failure.description if failure else event.step_failure_data.error)
        if not result.success:
            raise ValueError(f"run {result.run_id[:8]} failed; its log says why")
    _say(console, f"Undone   by run {result.run_id[:8]}, which can be undone as well")
    return 0


def _maintain(settings: Settings, tables: Sequence[str], dry_run: bool, console: Console) -> int:
    spark = Engine.of(settings).spark_session
    found = list(maintenance.maintain(spark, settings, tables, dry_run=dry_run))
    _show(maintenance.as_grid(found))
    for text in maintenance.sentences(found, dry_run=dry_run):
        _say(console, text)
    return int(any(one.problems for one in found))


def _verify(
    settings: Settings, days: Window, names: Sequence[str], json: bool, console: Console
) -> int:
    found = verification.verify(settings, days, names)
    looked_at, tables = dict.fromkeys(one.table for one in found), tables_of(settings)
    reads = [verification.read_test(settings, tables[name], days) for name in looked_at]
    if json:
        _say(console, verification.as_json(found, reads))
    else:
        console.print(verification.as_grid(found))
        for test in reads:
            _say(console, str(test))
    return 0 if verification.good(found, reads) else 1


def show(settings: Settings, console: Console) -> None:
    """Print what is published, from the tables' logs; no JVM is started."""
    grid = Grid(title="Published", title_justify="left", box=None, padding=(0, 2, 0, 0))
    grid.add_column("table", no_wrap=True)
    grid.add_column("days", justify="right", no_wrap=True)
    grid.add_column("from...to", no_wrap=True)
    for heading in ("rows", *(severity.value for severity in _PUBLISHED), "commits"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for name, table in tables_of(settings).items():
        ledger = read_ledger(settings.table(name), table)
        if ledger.version is None:
            grid.add_row(name, "0", "no table yet")
            continue
        verdicts = {day: record.days[day].verdict for day, record in ledger.latest.items()}
        counts = Counter(verdicts.values())
        grid.add_row(
            name,
            str(len(verdicts)),
            spans(windows(verdicts)),
            f"{sum((ledger.rows or {}).values()):,}",
            *(str(counts[severity.value]) for severity in _PUBLISHED),
            str(len(ledger.records)),
        )
    console.print(grid)
    _say(console, f"Tables   {settings.warehouse}/<table>")
    _say(console, f"Landing  {settings.landing}/orders/arrival_date=<day>/")
    _say(console, "Next     make ui, then launch a range of days; or run the same days again and")
    _say(console, "         see with `backfill-assets show` that not a row has changed")


_PUBLISHED = (Severity.OK, Severity.WARN, Severity.ALERT)

_EVENT = re.compile(r" - dagster - \w+ - .* - (?P<step>\w+) - (?P<event>[A-Z_]+)(?: - |$)")
_ASSET = re.compile(r"Materialized value (\w+)\.")
#: What the IO manager logs of a table, if there is something that it need not do.
_IDENTICAL = re.compile(r" - (\w+) \[[-.\d]+\]: (?:.*, )?(\d+) days? identical")
_SKIPPED = re.compile(r"Dependencies for step (\w+) (?:failed|were not executed)")
_FAILURE = "dagster._core.definitions.events.Failure: "
#: Errors that say themselves what is wrong and what to do; their stack trace would hide that.
_OURS = (_FAILURE, "backfill_assets.")
_TAIL = 40


def progress(lines: Iterable[str], console: Console) -> int:
    """Condense a run's log into a line a step, and pass on what a failed step says.

    Returns:
        0 if the run succeeded, else 1. If it ended without a failed step (killed, or never
        started), what was last said outside of Dagster's log is passed on.
    """
    condensed = _Condensed(console)
    for line in lines:
        if " - dagster - " in line:
            condensed.event(line)
        else:
            condensed.said.append(line.rstrip())
    return condensed.end()


class _Condensed:
    """A run's log so far, in a few numbers."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.said: deque[str] = deque(maxlen=_TAIL)
        self.days: Counter[str] = Counter()
        self.identical: Counter[str] = Counter()
        self.checks = self.failed = 0
        self.in_step = self.step_failed = self.explained = self.succeeded = False

    def event(self, line: str) -> None:
        """Take in one line of Dagster's own."""
        if self.step_failed:
            self.explain()
        self.said.clear()
        found = _EVENT.search(line)
        kind = found["event"] if found else ""
        if found and kind == "STEP_START":
            self.say(f"  {found['step']} ...", end=" ")
            self.days.clear()
            self.identical.clear()
            self.checks = self.failed = 0
            self.in_step = True
        elif kind == "ASSET_MATERIALIZATION":
            asset = _ASSET.search(line)
            self.days[asset[1] if asset else "?"] += 1
        elif kind == "ASSET_CHECK_EVALUATION":
            self.checks += 1
            self.failed += " did not pass" in line
        elif kind in ("STEP_SUCCESS", "STEP_FAILURE"):
            self.step_failed = kind == "STEP_FAILURE"
            self.in_step = False
            self.say(f"FAILED; {self.counts}" if self.step_failed else self.counts)
        elif kind == "RUN_SUCCESS":
            if self.in_step:  # the line that said its end was not among the lines, seen once
                self.say(self.counts)
            self.succeeded = True
        elif same := _IDENTICAL.search(line):
            self.identical[same[1]] += int(same[2])
        elif skipped := _SKIPPED.search(line):
            self.say(f"  {skipped[1]} ... not run, because of what failed before it")

    def end(self) -> int:
        """Say how the run ended."""
        if self.step_failed:
            self.explain()
        if self.succeeded:
            return 0
        if self.in_step:
            self.say(f"BROKEN OFF; {self.counts}")
        if not self.explained:
            self.explain()
        return 1

    def explain(self) -> None:
        """Pass on what was said; the stack trace only of an error that nobody foresaw."""
        said = list(self.said)
        ours = [n for n, text in enumerate(said) if text.startswith(_OURS)]
        if ours:
            said = said[ours[0] :]
            traces = (n for n, text in enumerate(said) if text.startswith("Stack Trace:"))
            end = next(traces, len(said))
            said = [said[0].removeprefix(_FAILURE), *said[1:end]]
        for text in "\n".join(said).strip().splitlines():
            self.say(f"    {text}")
        self.said.clear()
        self.step_failed, self.explained = False, True

    @property
    def counts(self) -> str:
        """What the step published and evaluated."""
        days, same = (
            ", ".join(
                f"{name} {n} day{'s' * (n != 1)}" if name != DASHBOARD else name
                for name, n in counts.items()
            )
            for counts in (self.days, self.identical)
        )
        bad = f", {self.failed} did not pass" if self.failed else ""
        said = [f"identical {same}"] if same else []
        if days or not (self.checks or same):
            said.append(f"published {days or 'nothing'}")
        if self.checks or not (days or same):
            said.append(f"{self.checks} checks evaluated{bad}")
        return "; ".join(said)

    def say(self, text: str, end: str = "\n") -> None:
        """Print a line, or the beginning of one."""
        _say(self.console, text, end)


if __name__ == "__main__":
    sys.exit(main())
