"""Undo of a switch-over: none goes on meanwhile, and the target knows what is left of it."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from datetime import date, datetime

import dagster as dg

from backfill_assets.backfills import undertakings
from backfill_assets.backfills.footprints import Origins, backfills_of, footprint, part_of
from backfill_assets.backfills.target_days import adoptable
from backfill_assets.backfills.undo import NothingToUndoError, UndoRefusedError, take_back
from backfill_assets.calendar.policy import Policy
from backfill_assets.dagster_ext.run_locks import is_alive
from backfill_assets.delta import targets
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.delta.targets import Target, TargetError
from backfill_assets.delta.versions import keep_versions
from backfill_assets.publish.candidates import Done
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.settings import Settings
from backfill_assets.staleness.backlog import backlog
from backfill_assets.tables.table import Table

#: The job that switches over.
SWITCH_JOB = "switch_over"
#: Of its latest runs, so many may still be at work.
_RUNS = 20


def at_work(instance: dg.DagsterInstance) -> list[str]:
    """The runs of switch-overs that are at work, or will be."""
    runs = instance.get_runs(dg.RunsFilter(job_name=SWITCH_JOB), limit=_RUNS)
    return [run.run_id for run in runs if _may_work(instance, run)]


def _may_work(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    if run.status is dg.DagsterRunStatus.STARTED:
        return is_alive(instance, run) is not False
    return not run.is_finished


def undo(
    io: DeltaIOManager,
    settings: Settings,
    instance: dg.DagsterInstance,
    asked: Collection[str],
    run_id: str,
    tags: Mapping[str, str],
    days: Container[date] | None = None,
) -> Iterator[tuple[Table, list[Done]]]:
    """As `undo.take_back`, also of switch-overs.

    Args:
        io: reads and publishes.
        settings: the deployment's settings.
        instance: knows the runs that switch over.
        asked: the name that was given, then the backfills and switch-overs that it is about.
        run_id: of the run that undoes.
        tags: of that run.
        days: only these; all if not given.

    Raises:
        UndoRefusedError: as `undo.take_back`.
        TargetError: some days alone cannot be undone, or a run switches over.
    """
    name, *_ = asked
    target = _target_of(settings, asked)
    if target is None:
        yield from take_back(io, settings, name, run_id, tags, days)
        return
    resumed = _begin(settings, instance, target, name, days)
    wrote = False
    try:
        for table, done in take_back(io, settings, name, run_id, tags, days):
            wrote = True
            yield table, done
    except NothingToUndoError:
        # Killed after the last table; or a switch-over that was killed before its first.
        _end(settings, target)
        if not (resumed or target.switching):
            raise
    except UndoRefusedError:
        # What was put back is finished by asking again; till then nobody builds upon a half.
        if not (wrote or resumed):
            _rest(settings, target)
        raise
    else:
        _end(settings, target)


def _ids(target: Target) -> list[str]:
    return [target.name, *(f"{target.name}-{n + 1}" for n in range(target.switches))]


def names_of(settings: Settings, name: str) -> list[str]:
    """The name that an undo was given, then the backfills that it is a run of."""
    owners = backfills_of(read_ledgers(settings), name)
    return [name, *sorted(owners - {name})]


def refuse(
    settings: Settings,
    instance: dg.DagsterInstance,
    asked: Collection[str],
    days: Container[date] | None,
) -> None:
    """Raise what `undo` would raise before it looks at any table.

    Args:
        settings: the deployment's settings.
        instance: knows the runs and backfills that are under way.
        asked: the name that was given, then the backfills and switch-overs that it is about.
        days: only these; all if not given.

    Raises:
        BackfillRefusedError: a backfill is under way.
        TargetError: some days alone cannot be undone, or a run switches over.
    """
    for name in asked:
        undertakings.refuse_under_way(instance, name)
    name, *_ = asked
    if target := _target_of(settings, asked):
        _refuse(target, name, days)
        if runs := at_work(instance):
            raise _at_work(name, runs)


def _target_of(settings: Settings, asked: Collection[str]) -> Target | None:
    known = {id_: target for target in targets.readable(settings) for id_ in _ids(target)}
    return next((known[id_] for id_ in asked if id_ in known), None)


def _refuse(target: Target, name: str, days: Container[date] | None) -> None:
    whole = days is None and name in (target.name, target.switch_id)
    if target.switching and not whole:
        raise TargetError(
            f"switch-over {target.switch_id} has not ended, and some days of it cannot be undone "
            f"alone: finish it (`backfill-assets switch {target.name}`), or undo all of it "
            f"(`backfill-assets undo {target.switch_id}`). Nothing was written."
        )
    if target.undoing not in ("", name) and name != target.name:
        targets.refuse_busy(target)


def _at_work(name: str, runs: Sequence[str]) -> TargetError:
    return TargetError(
        f"{name} was not undone, as run {runs[0][:8]} of the job {SWITCH_JOB} is at work. "
        "Nothing was written. Let it end, or terminate it, and ask again."
    )


def _begin(
    settings: Settings,
    instance: dg.DagsterInstance,
    target: Target,
    name: str,
    days: Container[date] | None,
) -> bool:
    """Take note that a switch-over is being undone; whether that was begun before.

    Raises:
        TargetError: it cannot be undone now; nothing was written.
    """
    _refuse(target, name, days)
    # Noted before the look: a run that begins after it sees the note.
    targets.keep(settings, target.model_copy(update={"undoing": name}))
    if runs := at_work(instance):
        if not target.undoing:
            _rest(settings, target)
        raise _at_work(name, runs)
    return bool(target.undoing)


def _rest(settings: Settings, target: Target) -> None:
    targets.change(settings, target.name, lambda of: of.model_copy(update={"undoing": ""}))


def _end(settings: Settings, target: Target) -> None:
    """Take note of what production still has of the target, and of versions that belong together.

    A switch-over that had not ended is undone as a whole, so it is over.
    """
    left = {"undoing": "", "switching": False, "canary": has_days_in_production(settings, target)}
    targets.change(settings, target.name, lambda of: of.model_copy(update=left))
    keep_settled_versions(settings, datetime.now(settings.zone).date())


def keep_settled_versions(settings: Settings, today: date) -> None:
    """Take note of the versions of the tables, if they have come to one state.

    That is if no open day is behind its inputs, and production has no part of a target. To be
    called when nothing else writes.

    Args:
        settings: say where the tables are.
        today: the business day.
    """
    ledgers = read_ledgers(settings)
    behind = backlog(ledgers, Policy.of(settings), today).open
    if not any(behind.values()) and not is_mixed(settings):
        keep_versions(settings.warehouse, ledgers)


def is_mixed(settings: Settings) -> bool:
    """Whether production has some days of a target, or some tables of it, and not the others.

    Where days of it have been switched over alone, or undone alone, runs of production may have
    made the rest as the target has it, or all of them anew: then it is not mixed any more.
    """
    return any(
        target.switching
        or target.undoing
        or (target.canary and has_days_in_production(settings, target) and _lacks(settings, target))
        for target in targets.readable(settings)
    )


def _lacks(settings: Settings, target: Target) -> bool:
    """Whether production has any day with other rows than the target has made."""
    ledgers = read_ledgers(settings)
    # A table that is declared no more is in no state with the others.
    names = [name for name in target.tables if name in ledgers]
    found = ((adoptable(settings, target, name), ledgers[name]) for name in names)
    return any(adopted.changed(adopted.days, now) for adopted, now in found)


def has_days_in_production(settings: Settings, target: Target) -> bool:
    """Whether production has any day as the target made it."""
    ledgers = read_ledgers(settings)
    for name in target.tables:
        if name not in ledgers:
            continue
        origins = Origins(ledgers[name])
        changes = footprint(ledgers[name], part_of(target.name), origins)
        if any(origins.holds(day, change) for day, change in changes.items()):
            return True
    return False
