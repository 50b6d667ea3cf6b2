"""Undo of a switch-over: none goes on meanwhile, and the target knows what is left of it."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from datetime import date, datetime

import dagster as dg

from backfill_assets.backfills import undertakings
from backfill_assets.backfills.footprints import (
    RowOrigins,
    backfill_ids_of,
    changed_days,
    commits_of,
)
from backfill_assets.backfills.target_days import days_to_clone
from backfill_assets.backfills.undo import NothingToUndoError, UndoRefusedError, undo_backfill
from backfill_assets.calendar.policy import Policy
from backfill_assets.dagster_ext.run_locks import is_alive
from backfill_assets.delta import targets
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.delta.targets import ShadowTarget, TargetError
from backfill_assets.delta.versions import save_versions
from backfill_assets.publish.candidates import DayResult
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.settings import Settings
from backfill_assets.staleness.backlog import find_stale_days
from backfill_assets.tables.table import Table

#: The job that switches over.
SWITCH_JOB = "switch_over"
#: Of its latest runs, so many may still be at work.
_RECENT_RUNS = 20


def active_switch_runs(instance: dg.DagsterInstance) -> list[str]:
    """The runs of switch-overs that are at work, or will be."""
    runs = instance.get_runs(dg.RunsFilter(job_name=SWITCH_JOB), limit=_RECENT_RUNS)
    return [run.run_id for run in runs if _may_be_active(instance, run)]


def _may_be_active(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    if run.status is dg.DagsterRunStatus.STARTED:
        return is_alive(instance, run) is not False
    return not run.is_finished


def undo_backfill_or_switch(
    publisher: DeltaIOManager,
    settings: Settings,
    instance: dg.DagsterInstance,
    names: Collection[str],
    run_id: str,
    tags: Mapping[str, str],
    days: Container[date] | None = None,
) -> Iterator[tuple[Table, list[DayResult]]]:
    """As `undo.undo_backfill`, also of switch-overs.

    Args:
        publisher: reads and publishes.
        settings: the deployment's settings.
        instance: knows the runs that switch over.
        names: the name that was given, then the backfills and switch-overs that it is about.
        run_id: of the run that undoes.
        tags: of that run.
        days: only these; all if not given.

    Raises:
        UndoRefusedError: as `undo.undo_backfill`.
        TargetError: some days alone cannot be undone, or a run switches over.
    """
    name, *_ = names
    target = _find_target(settings, names)
    if target is None:
        yield from undo_backfill(publisher, settings, name, run_id, tags, days)
        return
    resumed = _begin_undo(settings, instance, target, name, days)
    has_written = False
    try:
        for table, results in undo_backfill(publisher, settings, name, run_id, tags, days):
            has_written = True
            yield table, results
    except NothingToUndoError:
        # Killed after the last table; or a switch-over that was killed before its first.
        _end_undo(settings, target)
        if not (resumed or target.switching):
            raise
    except UndoRefusedError:
        # What was put back is finished by asking again; till then nobody builds upon a half.
        if not (has_written or resumed):
            _cancel_undo(settings, target)
        raise
    else:
        _end_undo(settings, target)


def _switch_ids(target: ShadowTarget) -> list[str]:
    return [target.name, *(f"{target.name}-{n + 1}" for n in range(target.switches))]


def resolve_names(settings: Settings, name: str) -> list[str]:
    """The name that an undo was given, then the backfills that it is a run of."""
    owners = backfill_ids_of(read_ledgers(settings), name)
    return [name, *sorted(owners - {name})]


def refuse_undo(
    settings: Settings,
    instance: dg.DagsterInstance,
    names: Collection[str],
    days: Container[date] | None,
) -> None:
    """Raise what `undo_backfill_or_switch` would raise before it looks at any table.

    Args:
        settings: the deployment's settings.
        instance: knows the runs and backfills that are under way.
        names: the name that was given, then the backfills and switch-overs that it is about.
        days: only these; all if not given.

    Raises:
        BackfillRefusedError: a backfill is under way.
        TargetError: some days alone cannot be undone, or a run switches over.
    """
    for name in names:
        undertakings.refuse_active(instance, name)
    name, *_ = names
    if target := _find_target(settings, names):
        _refuse_partial_undo(target, name, days)
        if runs := active_switch_runs(instance):
            raise _active_switch_error(name, runs)


def _find_target(settings: Settings, names: Collection[str]) -> ShadowTarget | None:
    targets_by_id = {
        id_: target for target in targets.readable_targets(settings) for id_ in _switch_ids(target)
    }
    return next((targets_by_id[id_] for id_ in names if id_ in targets_by_id), None)


def _refuse_partial_undo(target: ShadowTarget, name: str, days: Container[date] | None) -> None:
    whole = days is None and name in (target.name, target.switch_id)
    if target.switching and not whole:
        raise TargetError(
            f"switch-over {target.switch_id} has not ended, and some days of it cannot be undone "
            f"alone: finish it (`backfill-assets switch {target.name}`), or undo all of it "
            f"(`backfill-assets undo {target.switch_id}`). Nothing was written."
        )
    if target.undoing not in ("", name) and name != target.name:
        targets.refuse_busy(target)


def _active_switch_error(name: str, runs: Sequence[str]) -> TargetError:
    return TargetError(
        f"{name} was not undone, as run {runs[0][:8]} of the job {SWITCH_JOB} is at work. "
        "Nothing was written. Let it end, or terminate it, and ask again."
    )


def _begin_undo(
    settings: Settings,
    instance: dg.DagsterInstance,
    target: ShadowTarget,
    name: str,
    days: Container[date] | None,
) -> bool:
    """Take note that a switch-over is being undone; whether that was begun before.

    Raises:
        TargetError: it cannot be undone now; nothing was written.
    """
    _refuse_partial_undo(target, name, days)
    # Noted before the look: a run that begins after it sees the note.
    targets.save_target(settings, target.model_copy(update={"undoing": name}))
    if runs := active_switch_runs(instance):
        if not target.undoing:
            _cancel_undo(settings, target)
        raise _active_switch_error(name, runs)
    return bool(target.undoing)


def _cancel_undo(settings: Settings, target: ShadowTarget) -> None:
    targets.update_target(
        settings, target.name, lambda current: current.model_copy(update={"undoing": ""})
    )


def _end_undo(settings: Settings, target: ShadowTarget) -> None:
    """Take note of what production still has of the target, and of versions that belong together.

    A switch-over that had not ended is undone as a whole, so it is over.
    """
    update = {"undoing": "", "switching": False, "canary": has_days_in_production(settings, target)}
    targets.update_target(settings, target.name, lambda current: current.model_copy(update=update))
    save_consistent_versions(settings, datetime.now(settings.zone).date())


def save_consistent_versions(settings: Settings, today: date) -> None:
    """Take note of the versions of the tables, if they have come to one state.

    That is if no open day is behind its inputs, and production has no part of a target. To be
    called when nothing else writes.

    Args:
        settings: say where the tables are.
        today: the business day.
    """
    ledgers = read_ledgers(settings)
    stale_by_table = find_stale_days(ledgers, Policy.from_settings(settings), today).open
    if not any(stale_by_table.values()) and not is_mixed(settings):
        save_versions(settings.warehouse, ledgers)


def is_mixed(settings: Settings) -> bool:
    """Whether production has some days of a target, or some tables of it, and not the others.

    Where days of it have been switched over alone, or undone alone, runs of production may have
    made the rest as the target has it, or all of them anew: then it is not mixed any more.
    """
    return any(
        target.switching
        or target.undoing
        or (
            target.canary
            and has_days_in_production(settings, target)
            and _has_other_rows(settings, target)
        )
        for target in targets.readable_targets(settings)
    )


def _has_other_rows(settings: Settings, target: ShadowTarget) -> bool:
    """Whether production has any day with other rows than the target has made."""
    ledgers = read_ledgers(settings)
    # A table that is declared no more is in no state with the others.
    names = [name for name in target.tables if name in ledgers]
    pairs = ((days_to_clone(settings, target, name), ledgers[name]) for name in names)
    return any(cloned.changed_days(cloned.days, current) for cloned, current in pairs)


def has_days_in_production(settings: Settings, target: ShadowTarget) -> bool:
    """Whether production has any day as the target made it."""
    ledgers = read_ledgers(settings)
    for name in target.tables:
        if name not in ledgers:
            continue
        origins = RowOrigins(ledgers[name])
        changes = changed_days(ledgers[name], commits_of(target.name), origins)
        if any(origins.holds_result(day, change) for day, change in changes.items()):
            return True
    return False
