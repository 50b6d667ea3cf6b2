"""What was done in one backfill, in order: from plans, runs, commits, undos and noted commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import dagster as dg

from backfill_assets.backfills import command_log, undertakings
from backfill_assets.backfills.accounts import code_provenance, compare_with_plan
from backfill_assets.backfills.footprints import (
    changed_days,
    commits_of,
    is_commit_of,
    reverted_days,
)
from backfill_assets.backfills.plans import BackfillPlan, BackfillRequest
from backfill_assets.backfills.stages import RECONCILES_TAG
from backfill_assets.backfills.undertakings import BackfillRefusedError, BackfillState
from backfill_assets.calendar.partitions import days_of_run, format_ranges
from backfill_assets.dagster_ext.run_failures import run_failure_message
from backfill_assets.delta.ledgers import Ledgers

_PROGRAM = "backfill-assets"
#: The job and the op of an undo, as `jobs` names them.
_UNDO_JOB, _UNDO_OP = "undo", "put_back"
#: So many runs of undos are looked through, the newest ones.
_MOST_UNDO_RUNS = 1000


@dataclass(frozen=True)
class HistoryEvent:
    """One thing that was done.

    Attributes:
        timestamp: when, in seconds since 1970; 0 if nobody recorded it.
        action: what was done, in words.
        command: as it was typed, or as it would be; empty if no person gave one.
        outcome: what came of it.
        seconds: seconds; none if it is not known.
        is_build: whether it made the days, so that the same again makes others.
    """

    timestamp: float
    action: str
    command: str = ""
    outcome: str = ""
    seconds: float | None = None
    is_build: bool = False


@dataclass(frozen=True)
class TableChanges:
    """What a backfill did to one table.

    Attributes:
        table: the table.
        days: those that it wrote.
        version_before: the table's version before its first commit.
        version_after: the version of its last commit.
        reverted_days: those of the days that were put back since.
        reasons: why days of it were computed, as far as its commits say.
    """

    table: str
    days: Sequence[date]
    version_before: int
    version_after: int
    reverted_days: Sequence[date] = ()
    reasons: Sequence[str] = ()


@dataclass(frozen=True)
class BackfillHistory:
    """All that is on record of a backfill.

    Attributes:
        name: of the backfill, or of a run.
        reason: why, as whoever asked for it put it.
        plan: its plan; none if it had none.
        outcome: how it ended, or where it stands; empty without a plan.
        events: what was done, the oldest first.
        table_changes: what it did to the tables.
        plan_results: what came of the plan: table, expected, became.
        code_descriptions: by which code it was made.
    """

    name: str
    reason: str
    plan: BackfillPlan | None
    outcome: str
    events: Sequence[HistoryEvent]
    table_changes: Sequence[TableChanges]
    plan_results: Sequence[tuple[str, str, str]]
    code_descriptions: Sequence[str]


def read_history(instance: dg.DagsterInstance, ledgers: Ledgers, name: str) -> BackfillHistory:
    """What is on record of a backfill, of a stage of one, or of a run.

    Args:
        instance: knows plans, backfills and runs.
        ledgers: those of all tables.
        name: as `footprints.is_commit_of` takes it.
    """
    backfill_state = _find_state(instance, name)
    events = [
        *(_plan_events(backfill_state) if backfill_state else ()),
        *(
            _stage_events(instance, backfill_state)
            if backfill_state
            else _run_events(instance, ledgers, name)
        ),
        *(
            HistoryEvent(command.at, "account", command.text, command.outcome)
            for command in command_log.list_commands(instance, name)
        ),
        *_undo_events(instance, name),
    ]
    return BackfillHistory(
        name,
        backfill_state.plan.parameters.reason
        if backfill_state
        else _recorded_reasons(ledgers, name),
        backfill_state.plan if backfill_state else None,
        (backfill_state.ended or f"not ended; stage {backfill_state.backfill_id}")
        if backfill_state and backfill_state.attempt
        else "",
        sorted(events, key=lambda event: event.timestamp),
        [*_table_changes(ledgers, name)],
        [*compare_with_plan(backfill_state.plan, ledgers)] if backfill_state else [],
        sorted(code_provenance(ledgers, name).code_descriptions),
    )


def _find_state(instance: dg.DagsterInstance, name: str) -> BackfillState | None:
    try:
        return undertakings.load(instance, name.partition("-")[0])
    except BackfillRefusedError:
        return None


def plan_options(request: BackfillRequest) -> list[str]:
    """The options of `backfill-assets plan` that ask for the same, but for the days and why."""
    values = {
        "--select": ",".join(request.tables),
        "--pilot-days": request.pilot_days or "",
        "--chunk-days": "none" if request.chunk_days is None else request.chunk_days,
        "--max-parallel": request.max_parallel or "",
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


def _plan_events(backfill_state: BackfillState) -> Iterator[HistoryEvent]:
    request = backfill_state.plan.parameters
    reason_option = ["--reason", request.reason] if request.reason else []
    command = shlex.join([_PROGRAM, "plan", request.days, *plan_options(request), *reason_option])
    yield HistoryEvent(backfill_state.made, "plan", command, f"kept as {backfill_state.plan.id}")
    if backfill_state.attempt:
        yes_option = ["--yes"] if backfill_state.plan.rewritten_final_days else []
        command = shlex.join([_PROGRAM, "backfill", backfill_state.plan.id, *yes_option])
        yield HistoryEvent(
            backfill_state.began,
            "launch",
            command,
            backfill_state.ended or "under way",
            backfill_state.took or None,
        )


def _stage_events(
    instance: dg.DagsterInstance, backfill_state: BackfillState
) -> Iterator[HistoryEvent]:
    for name, window in backfill_state.plan.stages:
        attempt, backfill = 1, instance.get_backfill(f"{backfill_state.plan.id}-{name}")
        while backfill is not None:
            id_ = backfill.backfill_id
            end = backfill.backfill_end_timestamp
            runs = instance.get_run_records(dg.RunsFilter(tags={"dagster/backfill": id_}))
            ends = [record.end_time for record in runs if record.end_time]
            end = end or max(ends, default=None)
            seconds = end - backfill.backfill_timestamp if end else None
            outcome = f"{backfill.status.value.lower().replace('_', ' ')}; {_count_runs(runs)}"
            yield HistoryEvent(
                backfill.backfill_timestamp, f"stage {id_}: {window}", "", outcome, seconds
            )
            yield from (
                _failed_run_event(instance, record) for record in runs if _has_failed(record)
            )
            yield from _reconcile_events(instance, id_)
            attempt += 1
            backfill = instance.get_backfill(f"{backfill_state.plan.id}-{name}-{attempt}")


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


def _reconcile_events(instance: dg.DagsterInstance, stage: str) -> Iterator[HistoryEvent]:
    for record in instance.get_run_records(dg.RunsFilter(tags={RECONCILES_TAG: stage})):
        run = record.dagster_run
        outcome = _run_outcome(instance, run, "passed", "did not pass")
        yield HistoryEvent(
            _start_time(record), f"reconciliation of {stage}", "", outcome, _run_seconds(record)
        )


def _run_events(
    instance: dg.DagsterInstance, ledgers: Ledgers, name: str
) -> Iterator[HistoryEvent]:
    """The runs of a backfill without a plan, or the one run."""
    ids = {
        record.run_id
        for ledger in ledgers.values()
        for record in ledger.records
        if is_commit_of(record, name)
    }
    records = {
        record.dagster_run.run_id: record
        for filters in (
            dg.RunsFilter(tags={"dagster/backfill": name}),
            dg.RunsFilter(run_ids=sorted({*ids, name})),
        )
        for record in instance.get_run_records(filters)
    }
    for record in records.values():
        run = record.dagster_run
        outcome = _run_outcome(instance, run, "success", "failure")
        days = days_of_run(run.tags)
        action = f"run {run.run_id[:8]}" + (f": {days}" if days else "")
        yield HistoryEvent(
            _start_time(record),
            action,
            _run_command(run),
            outcome,
            _run_seconds(record),
            is_build=True,
        )


def _run_outcome(instance: dg.DagsterInstance, run: dg.DagsterRun, good: str, bad: str) -> str:
    """What came of a run; of one that has neither succeeded nor failed, its status."""
    if run.status is dg.DagsterRunStatus.SUCCESS:
        return good
    if run.status is dg.DagsterRunStatus.FAILURE:
        return f"{bad}: {run_failure_message(instance, run.run_id)}"
    return run.status.value.lower()


def _run_command(run: dg.DagsterRun) -> str:
    """The command that makes such a run."""
    if run.job_name == _UNDO_JOB:
        return _undo_command(run)
    days, selected = days_of_run(run.tags), run.asset_selection
    if days is None or not selected:
        return ""
    tables = ",".join(sorted(key.to_user_string() for key in selected))
    module = ["-m", "backfill_assets.definitions"]
    words = ["dagster", "asset", "materialize", *module, "--select", tables]
    return shlex.join([*words, "--partition-range", f"{days}"])


def _undo_events(instance: dg.DagsterInstance, name: str) -> Iterator[HistoryEvent]:
    for record in instance.get_run_records(
        dg.RunsFilter(job_name=_UNDO_JOB), limit=_MOST_UNDO_RUNS
    ):
        run = record.dagster_run
        backfill = str(_undo_config(run).get("backfill", ""))
        if (
            backfill == name
            or backfill.startswith(f"{name}-")
            or (len(backfill) >= 8 and name.startswith(backfill))
        ):
            outcome = _run_outcome(instance, run, "put back", "refused")
            action = f"undo by run {run.run_id[:8]}"
            yield HistoryEvent(
                _start_time(record), action, _undo_command(run), outcome, _run_seconds(record)
            )


def _undo_command(run: dg.DagsterRun) -> str:
    config = _undo_config(run)
    days = ["--partitions", config["days"]] if config.get("days") else []
    reason_option = ["--reason", config["reason"]] if config.get("reason") else []
    return shlex.join([_PROGRAM, "undo", str(config.get("backfill", "")), *days, *reason_option])


def _undo_config(run: dg.DagsterRun) -> Mapping[str, Any]:
    """What an undo was asked for."""
    config: Any = run.run_config
    for key in ("ops", _UNDO_OP, "config"):
        config = config.get(key, {}) if isinstance(config, Mapping) else {}
    return config


def _start_time(record: dg.RunRecord) -> float:
    return record.start_time or record.create_timestamp.timestamp()


def _run_seconds(record: dg.RunRecord) -> float | None:
    if record.start_time is None or record.end_time is None:
        return None
    return record.end_time - record.start_time


def _table_changes(ledgers: Ledgers, name: str) -> Iterator[TableChanges]:
    for table, ledger in ledgers.items():
        changes = changed_days(ledger, commits_of(name))
        if changes:
            records = [record for record in ledger.records if is_commit_of(record, name)]
            versions = records[0].version - 1, records[-1].version
            reasons = [*dict.fromkeys(text for record in records for text in record.reasons)]
            reverted = sorted(reverted_days(ledger, changes))
            yield TableChanges(table, sorted(changes), *versions, reverted, reasons)


def _recorded_reasons(ledgers: Ledgers, name: str) -> str:
    reasons = {
        record.reason
        for ledger in ledgers.values()
        for record in ledger.records
        if is_commit_of(record, name) and record.reason
    }
    return "; ".join(sorted(reasons))


def format_changed_days(history: BackfillHistory) -> str:
    """The days that were written in any table, for a reader."""
    return format_ranges(day for changes in history.table_changes for day in changes.days)
