"""The history of one backfill: plan, runs, commits and undos in order; post-mortem and runbook."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any

import dagster as dg

from backfill_assets.backfills import backfill_plan, state_store
from backfill_assets.backfills.changes import changed_days_by_table, own_commits, reverted_days
from backfill_assets.backfills.reconcile import code_provenance, compare_with_plan, find_runs
from backfill_assets.backfills.stages import RECONCILE_JOB, RECONCILES_TAG, describe_progress
from backfill_assets.calendar.partitions import days_of_run, format_ranges
from backfill_assets.dagster_ext.failures import run_failure_message
from backfill_assets.delta.ledgers import Ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.escaping import escape_line, escape_markdown, markdown_table

_PROGRAM = "backfill-assets"
#: How many runs of a job are read, newest first.
_MOST_RUNS = 1000


@dataclass(frozen=True)
class HistoryEvent:
    """One event of a backfill.

    Attributes:
        timestamp: seconds since 1970; 0 if not recorded.
        action: what was done, as text.
        command: the command as typed, or an equivalent one; empty if no person gave one.
        outcome: the result, as text.
        seconds: duration; None if not known.
        is_build: whether it built days; a runbook repeats only such commands.
    """

    timestamp: float
    action: str
    command: str = ""
    outcome: str = ""
    seconds: float | None = None
    is_build: bool = False


@dataclass(frozen=True)
class TableChanges:
    """What a backfill changed in one table.

    Attributes:
        table: the table.
        days: days that it wrote.
        version_before: the table's version before its first commit.
        version_after: the version of its last commit.
        reverted_days: those of the days that are reverted since.
        reasons: why days were computed, as recorded in its commits.
    """

    table: str
    days: Sequence[date]
    version_before: int
    version_after: int
    reverted_days: Sequence[date] = ()
    reasons: Sequence[str] = ()


@dataclass(frozen=True)
class BackfillHistory:
    """Everything recorded about a backfill.

    Attributes:
        name: a backfill or a run.
        reason: the reason given in the request.
        plan: None if it was not planned.
        outcome: how it ended, or where it is; empty without a plan.
        events: oldest first.
        table_changes: what it changed, by table.
        plan_results: rows of table, planned outcome, actual outcome.
        code_descriptions: code versions that computed its days, as text.
        plan_error: why its plan cannot be read; empty if it was read or there is none.
    """

    name: str
    reason: str
    plan: backfill_plan.BackfillPlan | None
    outcome: str
    events: Sequence[HistoryEvent]
    table_changes: Sequence[TableChanges]
    plan_results: Sequence[tuple[str, str, str]]
    code_descriptions: Sequence[str]
    plan_error: str = ""


def read_history(
    deployment: Deployment, instance: dg.DagsterInstance, ledgers: Ledgers, name: str
) -> BackfillHistory:
    """The history of a backfill, a stage or a run; `name` as in `changes.is_commit_of`."""
    backfill = state_store.find_backfill(instance, name)
    plan, outcome, results = None, "", list[tuple[str, str, str]]()
    if state := backfill.state:
        plan, outcome = state.plan, describe_progress(instance, state)
        events = [
            *_plan_events(state, state_store.read_status(instance, state.plan.id, state)),
            *_stage_events(instance, backfill, plan),
        ]
        results = [*compare_with_plan(plan, ledgers)]
        reason = plan.parameters.reason
    else:
        events = [*_run_events(deployment, instance, find_runs(instance, ledgers, backfill))]
        reason = "; ".join(sorted({r.reason for r in own_commits(ledgers, name) if r.reason}))
    events += _job_events(deployment, instance, name)
    return BackfillHistory(
        name,
        reason,
        plan,
        outcome,
        sorted(events, key=lambda event: event.timestamp),
        [*_table_changes(ledgers, name)],
        results,
        sorted(code_provenance(ledgers, name).code_descriptions),
        backfill.plan_error,
    )


def plan_options(request: backfill_plan.BackfillRequest) -> list[str]:
    """Options of `backfill-assets plan` that repeat a request, without its days and reason."""
    values = {
        "--select": ",".join(request.tables),
        "--pilot-days": request.pilot_days or "",
        "--chunk-days": "none" if request.chunk_days is None else request.chunk_days,
        "--max-parallel": request.max_parallel or "",
        "--max-retries": "" if request.max_retries is None else str(request.max_retries),
        "--write-mode": request.write_mode,
    }
    defaults = {"--chunk-days": "auto", "--write-mode": "overwrite"}
    arguments = [
        word
        for option, value in values.items()
        if value and value != defaults.get(option)
        for word in (option, str(value))
    ]
    arguments += ["--rewrite"] if request.rewrite else []
    return [*arguments, *(word for file in request.accept for word in ("--accept", file))]


def _plan_events(
    backfill_state: state_store.BackfillState, status: state_store.BackfillStatus
) -> Iterator[HistoryEvent]:
    """The events `plan` and, once launched, `launch`, with commands rebuilt from the request."""
    request = backfill_state.plan.parameters
    reason_option = ["--reason", request.reason] if request.reason else []
    command = shlex.join([_PROGRAM, "plan", request.days, *plan_options(request), *reason_option])
    yield HistoryEvent(backfill_state.made, "plan", command, f"kept as {backfill_state.plan.id}")
    if status is not state_store.BackfillStatus.NOT_LAUNCHED:
        yes_option = ["--yes"] if backfill_state.plan.rewritten_final_days else []
        command = shlex.join([_PROGRAM, "backfill", backfill_state.plan.id, *yes_option])
        yield HistoryEvent(
            backfill_state.began,
            "launch",
            command,
            backfill_state.ended or status.value,
            backfill_state.took or None,
        )


def _stage_events(
    instance: dg.DagsterInstance, backfill: state_store.Backfill, plan: backfill_plan.BackfillPlan
) -> Iterator[HistoryEvent]:
    """Each attempt of each stage, with its failed runs."""
    windows = dict(plan.stages)
    for launch in backfill.launches:
        id_, start = launch.backfill_id, launch.backfill_timestamp
        window = windows[id_.split("-")[1]]
        runs = instance.get_run_records(dg.RunsFilter(tags={"dagster/backfill": id_}))
        ends = [record.end_time for record in runs if record.end_time]
        end = launch.backfill_end_timestamp or max(ends, default=None)
        outcome = f"{launch.status.value.lower().replace('_', ' ')}; {_count_runs(runs)}"
        seconds = end - start if end else None
        yield HistoryEvent(start, f"stage {id_}: {window}", "", outcome, seconds)
        yield from (_failed_run_event(instance, record) for record in runs if _has_failed(record))


def _count_runs(records: Sequence[dg.RunRecord]) -> str:
    failed = sum(map(_has_failed, records))
    return f"{len(records)} run(s)" + (f", {failed} failed" if failed else "")


def _has_failed(record: dg.RunRecord) -> bool:
    return record.dagster_run.status is dg.DagsterRunStatus.FAILURE


def _failed_run_event(instance: dg.DagsterInstance, record: dg.RunRecord) -> HistoryEvent:
    run = record.dagster_run
    days = days_of_run(run.tags)
    message = run_failure_message(instance, run.run_id)
    return HistoryEvent(
        _start_time(record), f"run {run.run_id[:8]} failed: {days or 'no days'}", "", message
    )


def _run_events(
    deployment: Deployment, instance: dg.DagsterInstance, runs: Iterable[dg.RunRecord]
) -> Iterator[HistoryEvent]:
    """Runs of a backfill without a plan, or the one run."""
    for record in runs:
        run = record.dagster_run
        outcome = _run_outcome(instance, run, "success", "failure")
        days = days_of_run(run.tags)
        action = f"run {run.run_id[:8]}" + (f": {days}" if days else "")
        yield HistoryEvent(
            _start_time(record),
            action,
            _run_command(deployment, run),
            outcome,
            run_seconds(record),
            is_build=deployment.job_of_run(run) not in _JOBS,
        )


def _run_outcome(instance: dg.DagsterInstance, run: dg.DagsterRun, good: str, bad: str) -> str:
    """Result of a run as text; the status if it neither succeeded nor failed."""
    if run.status is dg.DagsterRunStatus.SUCCESS:
        return good
    if run.status is dg.DagsterRunStatus.FAILURE:
        return f"{bad}: {run_failure_message(instance, run.run_id)}"
    return run.status.value.lower()


def _run_command(deployment: Deployment, run: dg.DagsterRun) -> str:
    """The command that starts an equivalent run; empty if there is none."""
    if job := _JOBS.get(deployment.job_of_run(run)):
        return job.command(run)
    days, selected = days_of_run(run.tags), run.asset_selection
    if days is None or not selected:
        return ""
    keys = sorted(selected, key=dg.AssetKey.to_user_string)
    tables = [deployment.tables[name] for name in deployment.tables_of(keys)]
    if parts := [table.name for table in tables if table.part and table.is_in_run(run.tags)]:
        names = deployment.graph.join_parts(parts)
        return shlex.join(backfill_plan.select_command("materialize", days, names))
    return shlex.join(backfill_plan.materialize_command(keys, days))


@dataclass(frozen=True)
class _Job:
    """A job about a backfill that its config names.

    Attributes:
        name: of the job, without a prefix, and of the command that starts an equivalent run.
        action: of its runs, with the backfill and the run.
        good: the outcome of a run that succeeded.
        bad: the outcome of a run that failed, before its message.
        options: of the command, by field of the op's config.
    """

    name: str
    action: str
    good: str
    bad: str
    options: Mapping[str, str]

    def config(self, run: dg.DagsterRun) -> Mapping[str, Any]:
        """Return the config of the job's only op."""
        config: Any = run.run_config.get("ops")
        for key in (*(config or ()), "config"):
            config = config.get(key, {}) if isinstance(config, Mapping) else {}
        return config

    def command(self, run: dg.DagsterRun) -> str:
        """Return the command that starts an equivalent run; empty if a sensor started this one."""
        if RECONCILES_TAG in run.tags:
            return ""
        config = self.config(run)
        options = [
            word
            for name, option in self.options.items()
            if config.get(name)
            for word in (option, config[name])
        ]
        return shlex.join([_PROGRAM, self.name, str(config.get("backfill", "")), *options])


_JOBS = {
    job.name: job
    for job in (
        _Job(RECONCILE_JOB, "reconciliation of {}", "passed", "did not pass", {}),
        _Job(
            "undo",
            "undo by run {1}",
            "put back",
            "refused",
            {"days": "--partitions", "reason": "--reason"},
        ),
    )
}


def _job_events(
    deployment: Deployment, instance: dg.DagsterInstance, name: str
) -> Iterator[HistoryEvent]:
    """The reconciliations and undos of the backfill, of its stages, or of the run by short id."""
    for job in _JOBS.values():
        of_job = dg.RunsFilter(job_name=deployment.automation_name(job.name))
        for record in instance.get_run_records(of_job, limit=_MOST_RUNS):
            run = record.dagster_run
            backfill = str(job.config(run).get("backfill", ""))
            if (
                backfill == name
                or backfill.startswith(f"{name}-")
                or (len(backfill) >= 8 and name.startswith(backfill))
            ):
                outcome = _run_outcome(instance, run, job.good, job.bad)
                action = job.action.format(backfill, run.run_id[:8])
                command, seconds = job.command(run), run_seconds(record)
                yield HistoryEvent(_start_time(record), action, command, outcome, seconds)


def _start_time(record: dg.RunRecord) -> float:
    return record.start_time or record.create_timestamp.timestamp()


def run_seconds(record: dg.RunRecord) -> float | None:
    """Duration of a run; None if it has not ended."""
    if record.start_time is None or record.end_time is None:
        return None
    return record.end_time - record.start_time


def _table_changes(ledgers: Ledgers, name: str) -> Iterator[TableChanges]:
    """What the backfill changed, only for tables in which it wrote days."""
    for table, changes in changed_days_by_table(ledgers, name).items():
        records = own_commits({table: ledgers[table]}, name)
        versions = records[0].version - 1, records[-1].version
        reasons = [*dict.fromkeys(text for record in records for text in record.reasons)]
        reverted = sorted(reverted_days(ledgers[table], changes))
        yield TableChanges(table, sorted(changes), *versions, reverted, reasons)


def format_changed_days(history: BackfillHistory) -> str:
    """The days written in any table, as ranges."""
    return format_ranges(day for changes in history.table_changes for day in changes.days)


#: The sections that a person must fill in, with a hint for each.
SECTIONS: Mapping[str, str] = {
    "Impact": "Who saw which wrong days, from when to when, and what they did with them.",
    "Cause": "What happened, and why nothing prevented it.",
    "Follow-ups": "What will be done so that it does not happen again: by whom, until when.",
}
#: Prefix of text that a person must replace.
PLACEHOLDER_PREFIX = "TO BE FILLED IN: "


def render_postmortem(history: BackfillHistory) -> str:
    """The post-mortem in Markdown; placeholders mark the sections that a person must fill in."""
    rows = [
        (
            _format_time(event.timestamp),
            event.action,
            _format_duration(event.seconds),
            event.outcome,
        )
        for event in history.events
    ]
    return _join_blocks(
        f"# Post-mortem of {escape_markdown(history.name)}",
        f"Reason on record: {escape_markdown(history.reason) or 'none given'}",
        *_blank_section("Impact"),
        *_blank_section("Cause"),
        "## What was done",
        markdown_table(("at (UTC)", "what", "took", "outcome"), rows),
        "The commands, in their order:",
        _command_block(*(event.command for event in history.events if event.command)),
        "## Days touched",
        *_days_section(history),
        "## Plan",
        *_plan_section(history),
        "## Verdict",
        "\n".join(f"- {escape_markdown(text)}" for text in _verdict_lines(history)),
        *_blank_section("Follow-ups"),
    )


def _join_blocks(*blocks: str) -> str:
    """A Markdown text of blocks, such as headings and paragraphs."""
    return "\n\n".join(blocks) + "\n"


def _blank_section(name: str) -> tuple[str, str]:
    return f"## {name}", f"{PLACEHOLDER_PREFIX}{SECTIONS[name]}"


def _days_section(history: BackfillHistory) -> Iterator[str]:
    """A Markdown table of the written days, with the table versions before and after."""
    rows = [
        (
            changes.table,
            format_ranges(changes.days),
            f"{changes.version_before if changes.version_before >= 0 else 'no table'}",
            f"{changes.version_after}",
            format_ranges(changes.reverted_days) or "none",
            "; ".join(changes.reasons),
        )
        for changes in history.table_changes
    ]
    if not rows:
        yield "No day of any table was written."
        return
    headings = (
        "table", "days written", "version before", "version after", "put back since", "why",
    )  # fmt: skip
    yield markdown_table(headings, rows)
    yield "Every version can be read for as long as its files are kept."


def _plan_section(history: BackfillHistory) -> Iterator[str]:
    """Tables about the plan; one sentence if no plan is stored."""
    if history.plan_error:
        yield f"{escape_markdown(history.plan_error)}."
    elif history.plan is None:
        yield "There was no plan under this name, or it is not kept any more."
    else:
        headings = ("table", "what becomes of them", "why", "days")
        yield markdown_table(headings, backfill_plan.day_rows(history.plan))
        yield markdown_table(("", ""), backfill_plan.plan_facts(history.plan))


def _verdict_lines(history: BackfillHistory) -> Iterator[str]:
    """Sentences on how it ended, planned and actual outcomes, and the code that built the days."""
    if history.outcome:
        yield f"The backfill: {history.outcome}."
    yield from (
        f"{table}: {planned}: {outcome}." for table, planned, outcome in history.plan_results
    )
    yield from (f"Made by code {code}." for code in history.code_descriptions)
    if not (history.outcome or history.code_descriptions):
        yield "Nothing that it did is on record in any table."


def _command_block(*commands: str) -> str:
    """Commands as a Markdown code block."""
    return "\n".join(["```text", *map(escape_line, commands), "```"])


def _format_time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S}" if at else "unknown"


def _format_duration(seconds: float | None) -> str:
    return "" if seconds is None else f"{timedelta(seconds=round(seconds))}"


#: Placeholders in a runbook.
DAYS, ID, REASON = "FIRST...LAST", "ID", "WHY"
_RANGE = re.compile(r"\b\d{4}-\d{2}-\d{2}(\.\.\.\d{4}-\d{2}-\d{2})?\b")


def render_runbook(history: BackfillHistory) -> str:
    """The runbook in Markdown: steps with placeholders, then how long each took this time."""
    reason = escape_markdown(history.reason) or "no reason is on record; say here when this is done"
    id_ = (
        "the id that the plan prints" if history.plan else "the first 8 characters of the run's id"
    )
    steps = enumerate(_runbook_steps(history), 1)
    rows = [
        (event.action, _format_duration(event.seconds), event.outcome)
        for event in history.events
        if event.seconds is not None
    ]
    return _join_blocks(
        f"# Runbook, after {escape_markdown(history.name)}",
        f"When: {reason}",
        f"Put the days in place of `{DAYS}`, {id_} in place of `{ID}`, the reason for `{REASON}`.",
        *_key_sentence(history),
        *(f"## {number}. {what}\n\n{_command_block(command)}" for number, (what, command) in steps),
        "## What it took the last time",
        markdown_table(("what", "took", "outcome"), rows),
        f"Days written: {format_changed_days(history) or 'none'}",
    )


def _key_sentence(history: BackfillHistory) -> Iterator[str]:
    """What identifies a row within its day, of the tables that the plan computes."""
    if history.plan is not None and history.plan.keys:
        keys = (f"{table} by {', '.join(columns)}" for table, columns in history.plan.keys.items())
        yield f"Keys within a day: {escape_markdown('; '.join(keys))}."


def _runbook_steps(history: BackfillHistory) -> Iterator[tuple[str, str]]:
    """The steps, each with its command."""
    tables = [changes.table for changes in history.table_changes]
    if history.plan is not None:
        request = history.plan.parameters
        tables = list(request.tables)
        extra_options = plan_options(request.model_copy(update={"accept": ()}))
        plan = ["plan", DAYS, *extra_options, "--reason", REASON]
        yield "Plan: does it list the days that you expect, and no others?", _command_line(*plan)
        yield "Launch", _command_line("backfill", ID)
    else:
        # Reconciliation and undo of these days do not build other days.
        commands = (event.command for event in history.events if event.is_build and event.command)
        for command in dict.fromkeys(commands):
            yield "Run", _RANGE.sub(DAYS, command)
    selected = ["--select", ",".join(tables)] if tables else []
    yield "Reconcile: is all of it there, and does it add up?", _command_line("reconcile", ID)
    yield (
        "Verify: does a day that is computed again come out the same?",
        _command_line("verify", DAYS, *selected),
    )
    yield "If it was wrong: undo", _command_line("undo", ID, "--reason", REASON)


def _command_line(*words: str) -> str:
    return shlex.join(["backfill-assets", *words])
