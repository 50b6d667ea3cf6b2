"""Switch a shadow target over to production by metadata commits, and undo a switch-over.

A switch-over that was begun is known by the target. Asked for again, it goes on where it was; what
it made of production is undone as a backfill's.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from typing import Any

import dagster as dg

from backfill_assets.backfills import state_store
from backfill_assets.backfills.backfill_plan import DayOutcome
from backfill_assets.backfills.changes import RowOrigins, backfill_ids_of, changed_days, commits_of
from backfill_assets.backfills.undo import NothingToUndoError, UndoRefusedError, undo_backfill
from backfill_assets.calendar.late_data import Policy
from backfill_assets.calendar.partitions import Window, format_ranges, from_ranges, to_ranges
from backfill_assets.dagster_ext.internals import BaseAssetGraph
from backfill_assets.dagster_ext.launcher import is_alive
from backfill_assets.delta import targets
from backfill_assets.delta.ledger_reader import read_ledgers, save_versions
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.records import CANARY, PERSON, SWITCH_OVER
from backfill_assets.delta.table_schema import schema_differences
from backfill_assets.delta.targets import ShadowTarget, TargetError
from backfill_assets.publish.adopt import ClonedDays, adopt_files, results_of_adopted
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.publish.types import REASON_TAG, DayResult
from backfill_assets.settings import Settings
from backfill_assets.shadow.build import translate_origin
from backfill_assets.shadow.compare import refuse_uncompared
from backfill_assets.shadow.days import (
    days_of_target,
    days_to_clone,
    refuse_external_changes,
    refuse_migrated,
    stale_days,
)
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.graph import tables_of
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
        state_store.refuse_active(instance, name)
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


def switch_over(
    publisher: DeltaIOManager,
    settings: Settings,
    graph: BaseAssetGraph,
    code: Code,
    name: str,
    run_id: str,
    tags: Mapping[str, str],
    only_days: Window | None = None,
) -> Iterator[tuple[Table, list[DayResult]]]:
    """Publish in production what a target has made, table after table, inputs first.

    It has not ended before the caller has taken all that it yields, and may have told Dagster: who
    is killed meanwhile is finished, and tells it then.

    Args:
        publisher: reads and publishes in production.
        settings: the deployment's settings.
        graph: the assets.
        code: that of the tables, by which the target must have been made.
        name: of the target.
        run_id: of the run that switches over.
        tags: of that run.
        only_days: only these of the days that were asked for, and what follows from them.

    Yields:
        Each table, with what became of all of its days: also of those that a switch-over had
        published that was killed.

    Raises:
        TargetError: the target is behind production, or others have changed the days. Nothing was
            written; or a switch-over that was begun goes no further, and the message says so.
    """
    target = targets.load_target(settings, name)
    if not target.switching or target.undoing:
        targets.refuse_busy(target)
        target = _begin_switch(settings, graph, code, target, tags.get(REASON_TAG, ""), only_days)
    tags = {**tags, REASON_TAG: tags.get(REASON_TAG) or target.switch_reason}
    _refuse_other_columns(settings, target)
    switched = []
    # All commits come first: of three years of days it takes longer to tell of them, and readers of
    # several tables would see a mix as long.
    for table_name, days in target.days.items():
        table, cloned = (
            tables_of(settings)[table_name],
            days_to_clone(settings, target, table_name, from_ranges(days)),
        )
        results = _publish_days(
            publisher, settings, target, cloned, publisher.run_metadata(table, run_id, tags)
        )
        switched.append((table, results))
    yield from switched
    _end_switch(settings, target)


def _publish_days(
    publisher: DeltaIOManager,
    settings: Settings,
    target: ShadowTarget,
    cloned: ClonedDays,
    record: Mapping[str, Any],
) -> list[DayResult]:
    """Publish days of a table in production; what became of each, also of those that were."""
    table = cloned.ledger.table
    current = publisher.ledger(table)
    own_days = {
        day for day, commit in current.latest.items() if commit.backfill_id == target.switch_id
    }
    # Who was killed may not have told Dagster of these.
    results = results_of_adopted(current, cloned.days & own_days)
    if remaining := cloned.days - own_days:

        def refuse_other_writers(ledger: Ledger) -> None:
            refuse_external_changes(settings, target, {ledger.table.name: ledger})

        results += adopt_files(
            replace(cloned, days=remaining),
            publisher.writer(table),
            partial(publisher.ledger, table),
            # A person has begun it, whoever finishes it.
            {**record, "backfill_id": target.switch_id, "launched_by": PERSON},
            partial(
                translate_origin, settings, target, cloned.ledger, partial(read_ledgers, settings)
            ),
            refuse_other_writers,
            CANARY if target.canary else SWITCH_OVER,
        )
    return sorted(results, key=lambda result: result.day)


def _end_switch(settings: Settings, target: ShadowTarget) -> None:
    """Take note that a switch-over has ended, and of the versions that belong together since."""

    def mark_ended(current: ShadowTarget) -> ShadowTarget:
        is_same_switch = current.switch_id == target.switch_id
        return current.model_copy(update={"switching": False}) if is_same_switch else current

    targets.update_target(settings, target.name, mark_ended)
    save_consistent_versions(settings, datetime.now(settings.zone).date())


def _refuse_other_columns(settings: Settings, target: ShadowTarget) -> None:
    """See that this code has the tables of a switch-over as the code has them that began it.

    Raises:
        TargetError: it has not.
    """
    problems = [
        f"there is no table {name}" for name in target.days if name not in tables_of(settings)
    ]
    for name in target.days.keys() & tables_of(settings).keys():
        metadata = target.table_ledger(settings, name).metadata
        column_differences = (
            schema_differences(tables_of(settings)[name], metadata) if metadata else []
        )
        problems += [f"{name}: {text}" for text in column_differences]
    if problems:
        raise TargetError(
            f"switch-over {target.switch_id} was begun by other code, and this code cannot finish "
            f"it ({'; '.join(problems)}). It stays where it is: `backfill-assets switch "
            f"{target.name}` with that code finishes it, `backfill-assets undo "
            f"{target.switch_id}` takes it back."
        )


def _begin_switch(
    settings: Settings,
    graph: BaseAssetGraph,
    code: Code,
    target: ShadowTarget,
    reason: str,
    only_days: Window | None,
) -> ShadowTarget:
    """See that days can be switched over, and take note that they are being so.

    Raises:
        TargetError: why they cannot, or another command came first; nothing was written.
        PublishError: files that the target names are gone; nothing was written.
    """
    current = read_ledgers(settings)
    # All that follows is about the forks as they are here, and so is what is switched over.
    versions = {name: target.table_ledger(settings, name).version or 0 for name in target.tables}
    refuse_migrated(settings, target, current)
    refuse_external_changes(settings, target, current)
    problems = []
    for name, by_day in stale_days(settings, graph, target, code, only_days).items():
        reasons = "; ".join(
            dict.fromkeys(
                forecast.reason or forecast.outcome.value
                for forecast in by_day.values()
                if forecast.outcome is not DayOutcome.IDENTICAL
            )
        )
        problems.append(f"{name} [{format_ranges(by_day)}] ({reasons})")
    if problems:
        commands = ", ".join(
            f"`backfill-assets backfill {window} --target {target.name}`"
            for window in target.requested_windows
            if stale_days(settings, graph, target, code, window)
        )
        raise TargetError(
            f"target {target.name} is not switched over, as it is not as it would be made now: "
            f"{', '.join(problems)}. Nothing was written. Build these days first, with the code "
            f"that is to be deployed: {commands}."
        )
    refuse_uncompared(settings, target, versions, current)
    days = days_of_target(settings, graph, target, only_days)
    for name, table_days in days.items():
        cloned = days_to_clone(settings, target, name, table_days)
        cloned.raise_if_files_missing(
            settings.table(name), cloned.changed_days(cloned.days, current[name])
        )
    changes = {
        "switching": True,
        "switches": target.switches + 1,
        "canary": only_days is not None,
        "days": {name: tuple(to_ranges(switch_days)) for name, switch_days in days.items()},
        "versions": versions,
        "switch_reason": reason,
    }
    if versions != {
        name: target.table_ledger(settings, name).version or 0 for name in target.tables
    }:
        raise TargetError(
            f"target {target.name} is being built on. Nothing was written. Ask again when that "
            "has ended."
        )
    return targets.save_target(settings, target.model_copy(update=changes))
