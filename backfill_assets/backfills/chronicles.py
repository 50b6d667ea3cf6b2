"""What was done in one backfill, in order: from plans, runs, commits, undos and noted commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import dagster as dg

from backfill_assets.backfills import command_log, undertakings
from backfill_assets.backfills.accounts import against_plan, certificate
from backfill_assets.backfills.footprints import belongs, footprint, part_of, put_back
from backfill_assets.backfills.plans import BackfillPlan, Parameters
from backfill_assets.backfills.stages import RECONCILES_TAG
from backfill_assets.backfills.undertakings import BackfillRefusedError, Undertaking
from backfill_assets.calendar.partitions import days_of_run, spelled
from backfill_assets.dagster_ext.run_failures import reason
from backfill_assets.delta.ledgers import Ledgers

_PROGRAM = "backfill-assets"
#: The job and the op of an undo, as `jobs` names them.
_UNDO, _PUT_BACK = "undo", "put_back"
#: So many runs of undos are looked through, the newest ones.
_RUNS = 1000


@dataclass(frozen=True)
class Step:
    """One thing that was done.

    Attributes:
        at: when, in seconds since 1970; 0 if nobody recorded it.
        what: what was done, in words.
        command: as it was typed, or as it would be; empty if no person gave one.
        outcome: what came of it.
        took: seconds; none if it is not known.
        made: whether it made the days, so that the same again makes others.
    """

    at: float
    what: str
    command: str = ""
    outcome: str = ""
    took: float | None = None
    made: bool = False


@dataclass(frozen=True)
class Touched:
    """What a backfill did to one table.

    Attributes:
        table: the table.
        days: those that it wrote.
        before: the table's version before its first commit.
        after: the version of its last commit.
        undone: those of the days that were put back since.
        because: why days of it were computed, as far as its commits say.
    """

    table: str
    days: Sequence[date]
    before: int
    after: int
    undone: Sequence[date] = ()
    because: Sequence[str] = ()


@dataclass(frozen=True)
class Chronicle:
    """All that is on record of a backfill.

    Attributes:
        name: of the backfill, or of a run.
        reason: why, as whoever asked for it put it.
        plan: its plan; none if it had none.
        ended: how it ended, or where it stands; empty without a plan.
        steps: what was done, the oldest first.
        touched: what it did to the tables.
        came: what came of the plan: table, expected, became.
        codes: by which code it was made.
    """

    name: str
    reason: str
    plan: BackfillPlan | None
    ended: str
    steps: Sequence[Step]
    touched: Sequence[Touched]
    came: Sequence[tuple[str, str, str]]
    codes: Sequence[str]


def chronicle(instance: dg.DagsterInstance, ledgers: Ledgers, name: str) -> Chronicle:
    """What is on record of a backfill, of a stage of one, or of a run.

    Args:
        instance: knows plans, backfills and runs.
        ledgers: those of all tables.
        name: as `footprints.belongs` takes it.
    """
    it = _planned(instance, name)
    steps = [
        *(_of_plan(it) if it else ()),
        *(_of_stages(instance, it) if it else _of_runs(instance, ledgers, name)),
        *(Step(c.at, "account", c.text, c.outcome) for c in command_log.noted(instance, name)),
        *_of_undos(instance, name),
    ]
    return Chronicle(
        name,
        it.plan.parameters.reason if it else _reason(ledgers, name),
        it.plan if it else None,
        (it.ended or f"not ended; stage {it.backfill_id}") if it and it.attempt else "",
        sorted(steps, key=lambda step: step.at),
        [*_touched(ledgers, name)],
        [*against_plan(it.plan, ledgers)] if it else [],
        sorted(certificate(ledgers, name).commits),
    )


def _planned(instance: dg.DagsterInstance, name: str) -> Undertaking | None:
    try:
        return undertakings.find(instance, name.partition("-")[0])
    except BackfillRefusedError:
        return None


def options(asked: Parameters) -> list[str]:
    """The options of `backfill-assets plan` that ask for the same, but for the days and why."""
    said = {
        "--select": ",".join(asked.tables),
        "--pilot-days": asked.pilot_days or "",
        "--chunk-days": "none" if asked.chunk_days is None else asked.chunk_days,
        "--max-parallel": asked.max_parallel or "",
        "--write-mode": asked.write_mode,
    }
    left_out = {"--chunk-days": "auto", "--write-mode": "overwrite"}
    found = [
        word
        for option, value in said.items()
        if value and value != left_out.get(option)
        for word in (option, str(value))
    ]
    found += ["--rewrite"] if asked.rewrite else []
    return [*found, *(word for file in asked.accept for word in ("--accept", file))]


def _of_plan(it: Undertaking) -> Iterator[Step]:
    asked = it.plan.parameters
    why = ["--reason", asked.reason] if asked.reason else []
    typed = shlex.join([_PROGRAM, "plan", asked.days, *options(asked), *why])
    yield Step(it.made, "plan", typed, f"kept as {it.plan.id}")
    if it.attempt:
        final = ["--yes"] if it.plan.rewrites_final else []
        typed = shlex.join([_PROGRAM, "backfill", it.plan.id, *final])
        yield Step(it.began, "launch", typed, it.ended or "under way", it.took or None)


def _of_stages(instance: dg.DagsterInstance, it: Undertaking) -> Iterator[Step]:
    for name, window in it.plan.stages:
        again, backfill = 1, instance.get_backfill(f"{it.plan.id}-{name}")
        while backfill is not None:
            id_ = backfill.backfill_id
            end = backfill.backfill_end_timestamp
            runs = instance.get_run_records(dg.RunsFilter(tags={"dagster/backfill": id_}))
            ends = [record.end_time for record in runs if record.end_time]
            end = end or max(ends, default=None)
            took = end - backfill.backfill_timestamp if end else None
            said = f"{backfill.status.value.lower().replace('_', ' ')}; {_runs(runs)}"
            yield Step(backfill.backfill_timestamp, f"stage {id_}: {window}", "", said, took)
            yield from (_failed(instance, record) for record in runs if _has_failed(record))
            yield from _reconciled(instance, id_)
            again += 1
            backfill = instance.get_backfill(f"{it.plan.id}-{name}-{again}")


def _runs(records: Sequence[dg.RunRecord]) -> str:
    failed = sum(map(_has_failed, records))
    return f"{len(records)} run(s)" + (f", {failed} failed" if failed else "")


def _has_failed(record: dg.RunRecord) -> bool:
    return record.dagster_run.status is dg.DagsterRunStatus.FAILURE


def _failed(instance: dg.DagsterInstance, record: dg.RunRecord) -> Step:
    run = record.dagster_run
    of = days_of_run(run.tags)
    said = reason(instance, run.run_id)
    return Step(_began(record), f"run {run.run_id[:8]} failed: {of or 'no days'}", "", said)


def _reconciled(instance: dg.DagsterInstance, stage: str) -> Iterator[Step]:
    for record in instance.get_run_records(dg.RunsFilter(tags={RECONCILES_TAG: stage})):
        run = record.dagster_run
        said = _outcome(instance, run, "passed", "did not pass")
        yield Step(_began(record), f"reconciliation of {stage}", "", said, _took(record))


def _of_runs(instance: dg.DagsterInstance, ledgers: Ledgers, name: str) -> Iterator[Step]:
    """The runs of a backfill without a plan, or the one run."""
    ids = {
        record.run_id
        for ledger in ledgers.values()
        for record in ledger.records
        if belongs(record, name)
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
        said = _outcome(instance, run, "success", "failure")
        of = days_of_run(run.tags)
        what = f"run {run.run_id[:8]}" + (f": {of}" if of else "")
        yield Step(_began(record), what, _typed(run), said, _took(record), made=True)


def _outcome(instance: dg.DagsterInstance, run: dg.DagsterRun, good: str, bad: str) -> str:
    """What came of a run; of one that has neither succeeded nor failed, its status."""
    if run.status is dg.DagsterRunStatus.SUCCESS:
        return good
    if run.status is dg.DagsterRunStatus.FAILURE:
        return f"{bad}: {reason(instance, run.run_id)}"
    return run.status.value.lower()


def _typed(run: dg.DagsterRun) -> str:
    """The command that makes such a run."""
    if run.job_name == _UNDO:
        return _typed_undo(run)
    of, selected = days_of_run(run.tags), run.asset_selection
    if of is None or not selected:
        return ""
    tables = ",".join(sorted(key.to_user_string() for key in selected))
    module = ["-m", "backfill_assets.definitions"]
    words = ["dagster", "asset", "materialize", *module, "--select", tables]
    return shlex.join([*words, "--partition-range", f"{of}"])


def _of_undos(instance: dg.DagsterInstance, name: str) -> Iterator[Step]:
    for record in instance.get_run_records(dg.RunsFilter(job_name=_UNDO), limit=_RUNS):
        run = record.dagster_run
        of = str(_undo_of(run).get("backfill", ""))
        if of == name or of.startswith(f"{name}-") or (len(of) >= 8 and name.startswith(of)):
            said = _outcome(instance, run, "put back", "refused")
            what = f"undo by run {run.run_id[:8]}"
            yield Step(_began(record), what, _typed_undo(run), said, _took(record))


def _typed_undo(run: dg.DagsterRun) -> str:
    said = _undo_of(run)
    days = ["--partitions", said["days"]] if said.get("days") else []
    why = ["--reason", said["reason"]] if said.get("reason") else []
    return shlex.join([_PROGRAM, "undo", str(said.get("backfill", "")), *days, *why])


def _undo_of(run: dg.DagsterRun) -> Mapping[str, Any]:
    """What an undo was asked for."""
    found: Any = run.run_config
    for key in ("ops", _PUT_BACK, "config"):
        found = found.get(key, {}) if isinstance(found, Mapping) else {}
    return found


def _began(record: dg.RunRecord) -> float:
    return record.start_time or record.create_timestamp.timestamp()


def _took(record: dg.RunRecord) -> float | None:
    if record.start_time is None or record.end_time is None:
        return None
    return record.end_time - record.start_time


def _touched(ledgers: Ledgers, name: str) -> Iterator[Touched]:
    for table, ledger in ledgers.items():
        changes = footprint(ledger, part_of(name))
        if changes:
            mine = [record for record in ledger.records if belongs(record, name)]
            versions = mine[0].version - 1, mine[-1].version
            because = [*dict.fromkeys(why for record in mine for why in record.because)]
            undone = sorted(put_back(ledger, changes))
            yield Touched(table, sorted(changes), *versions, undone, because)


def _reason(ledgers: Ledgers, name: str) -> str:
    said = {
        record.reason
        for ledger in ledgers.values()
        for record in ledger.records
        if belongs(record, name) and record.reason
    }
    return "; ".join(sorted(said))


def days_touched(found: Chronicle) -> str:
    """The days that were written in any table, for a reader."""
    return spelled(day for of in found.touched for day in of.days)
