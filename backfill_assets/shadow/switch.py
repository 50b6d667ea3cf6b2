"""Switch a target over to production by metadata commits, and undo a switch-over.

The target's state records a running switch-over, so the same command resumes it. It is undone like
a backfill.
"""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import dagster as dg
import pyarrow.fs as pafs
from pydantic import BaseModel, ValidationError

from backfill_assets.backfills import state_store
from backfill_assets.backfills.backfill_plan import DayOutcome
from backfill_assets.backfills.changes import RowOrigins, backfill_ids_of, changed_days, commits_of
from backfill_assets.backfills.downstream import undo_scopes
from backfill_assets.backfills.undo import NothingToUndoError, UndoRefusedError, undo_backfill
from backfill_assets.calendar.partitions import Window, format_ranges, from_ranges, to_ranges
from backfill_assets.dagster_ext.run_locks import is_run_alive
from backfill_assets.delta import targets
from backfill_assets.delta.consistent_versions import save_versions
from backfill_assets.delta.ledger_reader import read_ledgers
from backfill_assets.delta.ledgers import Ledger, own_ledgers
from backfill_assets.delta.records import CANARY, PERSON, SWITCH_OVER
from backfill_assets.delta.table_schema import schema_differences
from backfill_assets.delta.targets import Target, TargetError
from backfill_assets.deployment import Deployment
from backfill_assets.publish.adopt import ClonedDays, adopt_files, results_of_adopted
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.publish.types import REASON_TAG, DayResult
from backfill_assets.shadow import build
from backfill_assets.shadow.compare import refuse_uncompared
from backfill_assets.spark.filesystems import open_store, replace_file
from backfill_assets.staleness.snapshot import Snapshot
from backfill_assets.staleness.stale import find_stale_days
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.table import Table

#: The job that switches over.
SWITCH_JOB = "switch_over"
#: Begins the names of the files that mark undos in the warehouse.
_UNDO_MARK = "_undo-"
#: How many of its latest runs are checked for being active.
_RECENT_RUNS = 20


def active_switch_runs(deployment: Deployment, instance: dg.DagsterInstance) -> list[str]:
    """The ids of switch-over runs that are active or queued."""
    of_job = dg.RunsFilter(job_name=deployment.automation_name(SWITCH_JOB))
    runs = instance.get_runs(of_job, limit=_RECENT_RUNS)
    return [run.run_id for run in runs if _may_be_active(instance, run)]


def _may_be_active(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    if run.status is dg.DagsterRunStatus.STARTED:
        return is_run_alive(instance, run) is not False
    return not run.is_finished


def undo_backfill_or_switch(
    publisher: DeltaIOManager,
    deployment: Deployment,
    instance: dg.DagsterInstance,
    names: Collection[str],
    run_id: str,
    tags: Mapping[str, str],
    days: Window | None = None,
    part: str = "",
) -> Iterator[tuple[Table, list[DayResult]]]:
    """Undo a backfill, as `undo.undo_backfill` does, or a switch-over.

    `names` are from `resolve_names`: the given name, then the ids of its backfills and
    switch-overs.

    Raises:
        UndoRefusedError: as in `undo.undo_backfill`.
        TargetError: single days cannot be undone, or a switch-over run is active.
    """
    name, *_ = names
    mark = _UndoMark(name=name, days=None if days is None else tuple(to_ranges(days)), part=part)
    undo_days = partial(_undo_marked, publisher, deployment, mark, run_id, tags, days)
    target = _find_target(deployment, names)
    if target is None:
        yield from undo_days()
        return
    resumed = _begin_undo(deployment, instance, target, name, days)
    has_written = False
    try:
        for table, results in undo_days():
            has_written = True
            yield table, results
    except NothingToUndoError:
        # An earlier undo was killed after its last table, or a switch-over before its first.
        _end_undo(deployment, target)
        if not (resumed or target.switching):
            raise
    except UndoRefusedError:
        # A partial undo stays marked until it is finished, so that nothing builds on half of it.
        if not (has_written or resumed):
            _cancel_undo(deployment, target)
        raise
    else:
        _end_undo(deployment, target)


class _UndoMark(BaseModel, frozen=True):
    """An undo that was begun, in a file of the warehouse until it has ended.

    Attributes:
        name: of what is undone.
        days: only these, as ranges; None for all.
        part: only those of this part; empty for all.
    """

    name: str
    days: tuple[str, ...] | None
    part: str = ""

    @property
    def text(self) -> str:
        """The content of the file, and what names it."""
        return self.model_dump_json(exclude=None if self.part else {"part"})

    @property
    def file(self) -> str:
        """The name of the file; the same undo that is asked for again has the same."""
        return f"{_UNDO_MARK}{uuid5(NAMESPACE_OID, self.text)}.json"

    def is_half_done(self, deployment: Deployment) -> bool:
        """Whether days are put back, and others still hold what is undone."""
        ledgers = read_ledgers(deployment)
        days = None if self.days is None else frozenset(from_ranges(self.days))
        snapshot = Snapshot.from_deployment(deployment, ledgers)
        scopes = undo_scopes(snapshot, self.name, days, self.part)
        return any(scope.already_reverted for scope in scopes.values()) and any(
            RowOrigins(ledgers[table]).holds_result(day, change)
            for table, scope in scopes.items()
            for day, change in scope.changes.items()
        )


def _undo_marked(
    publisher: DeltaIOManager,
    deployment: Deployment,
    mark: _UndoMark,
    run_id: str,
    tags: Mapping[str, str],
    days: Window | None,
) -> Iterator[tuple[Table, list[DayResult]]]:
    """Undo as `undo_backfill` does; if it is killed halfway, its mark tells."""
    replace_file(deployment.settings.warehouse, mark.file, mark.text.encode())
    try:
        yield from undo_backfill(publisher, deployment, mark.name, run_id, tags, days, mark.part)
    except UndoRefusedError:
        _remove_mark(deployment, mark)
        raise
    _remove_mark(deployment, mark)


def _remove_mark(deployment: Deployment, mark: _UndoMark) -> None:
    """Remove a mark, unless the undo is half done."""
    if not mark.is_half_done(deployment):
        filesystem, folder = open_store(deployment.settings.warehouse)
        with suppress(FileNotFoundError):  # the same undo has ended in another process
            filesystem.delete_file(f"{folder}/{mark.file}")


def _read_marks(deployment: Deployment) -> Iterator[_UndoMark]:
    """The undos that have not ended, without those of another version of this package."""
    filesystem, folder = open_store(deployment.settings.warehouse)
    for info in filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True)):
        if info.base_name.startswith(_UNDO_MARK):
            with suppress(FileNotFoundError, ValidationError):
                with filesystem.open_input_stream(info.path) as stream:
                    text = stream.read()
                yield _UndoMark.model_validate_json(text)


def _switch_ids(target: Target) -> list[str]:
    return [target.name, *(f"{target.name}-{n + 1}" for n in range(target.switches))]


def resolve_names(deployment: Deployment, name: str) -> list[str]:
    """The given name, then the ids of the backfills if it names a run."""
    owners = backfill_ids_of(read_ledgers(deployment), name)
    return [name, *sorted(owners - {name})]


def refuse_undo(
    deployment: Deployment,
    instance: dg.DagsterInstance,
    names: Collection[str],
    days: Container[date] | None,
) -> None:
    """Raise what `undo_backfill_or_switch` would raise before it reads any table.

    Raises:
        BackfillRefusedError: a backfill is active.
        TargetError: single days cannot be undone, or a switch-over run is active.
    """
    for name in names:
        state_store.find_ended_backfill(instance, name)
    name, *_ = names
    if target := _find_target(deployment, names):
        _refuse_partial_undo(target, name, days)
        if runs := active_switch_runs(deployment, instance):
            raise _active_switch_error(name, runs)


def _find_target(deployment: Deployment, names: Collection[str]) -> Target | None:
    targets_by_id = {
        id_: target
        for target in targets.readable_targets(deployment)
        for id_ in _switch_ids(target)
    }
    return next((targets_by_id[id_] for id_ in names if id_ in targets_by_id), None)


def _refuse_partial_undo(target: Target, name: str, days: Container[date] | None) -> None:
    """Raise `TargetError` for a part of a running switch-over, or if another undo has not ended."""
    is_whole = days is None and name in (target.name, target.switch_id)
    if target.switching and not is_whole:
        raise TargetError(
            f"switch-over {target.switch_id} has not ended, and some days of it cannot be undone "
            f"alone: finish it (`backfill-assets switch {target.name}`), or undo all of it "
            f"(`backfill-assets undo {target.switch_id}`). Nothing was written."
        )
    if target.undoing not in ("", name) and name != target.name:
        targets.raise_if_busy(target)


def _active_switch_error(name: str, runs: Sequence[str]) -> TargetError:
    return TargetError(
        f"{name} was not undone, as run {runs[0][:8]} of the job {SWITCH_JOB} is at work. "
        "Nothing was written. Let it end, or terminate it, and ask again."
    )


def _begin_undo(
    deployment: Deployment,
    instance: dg.DagsterInstance,
    target: Target,
    name: str,
    days: Container[date] | None,
) -> bool:
    """Mark the target as being undone; returns whether it was marked before.

    Raises:
        TargetError: it cannot be undone now; nothing was written.
    """
    _refuse_partial_undo(target, name, days)
    # Mark first, then check for runs: a run that starts after the check sees the mark.
    targets.save_target(deployment, target.model_copy(update={"undoing": name}))
    if runs := active_switch_runs(deployment, instance):
        if not target.undoing:
            _cancel_undo(deployment, target)
        raise _active_switch_error(name, runs)
    return bool(target.undoing)


def _cancel_undo(deployment: Deployment, target: Target) -> None:
    targets.update_target(
        deployment, target.name, lambda current: current.model_copy(update={"undoing": ""})
    )


def _end_undo(deployment: Deployment, target: Target) -> None:
    """Record the end of an undo, and save the consistent versions of the tables.

    An unfinished switch-over is undone as a whole, so it ends too.
    """
    update = {
        "undoing": "",
        "switching": False,
        "canary": has_days_in_production(deployment, target),
    }
    targets.update_target(
        deployment, target.name, lambda current: current.model_copy(update=update)
    )
    save_consistent_versions(deployment, deployment.today)


def save_consistent_versions(deployment: Deployment, today: date) -> None:
    """Save the tables' versions if no open day is stale and no undo or switch-over is half done.

    Call it only when nothing else writes.
    """
    ledgers = read_ledgers(deployment)
    stale = find_stale_days(Snapshot.from_deployment(deployment, ledgers, today))
    if not stale.any_open and not is_mixed(deployment):
        save_versions(deployment.settings.warehouse, own_ledgers(ledgers))


def is_mixed(deployment: Deployment) -> bool:
    """Whether production has a part of an undo, or of a target's days or tables, and not the rest.

    After single days were switched over or undone, later production runs may have rebuilt the rest
    with the same rows, or all of it: then it is no longer mixed.
    """
    return any(mark.is_half_done(deployment) for mark in _read_marks(deployment)) or any(
        target.switching
        or target.undoing
        or (
            target.canary
            and has_days_in_production(deployment, target)
            and _has_other_rows(deployment, target)
        )
        for target in targets.readable_targets(deployment)
    )


def _has_other_rows(deployment: Deployment, target: Target) -> bool:
    """Whether any day has other rows in production than in the target."""
    ledgers = read_ledgers(deployment)
    # Tables that are no longer declared do not count.
    names = [name for name in target.tables if name in ledgers]
    pairs = ((build.days_to_clone(deployment, target, name), ledgers[name]) for name in names)
    return any(cloned.changed_days(cloned.days, current) for cloned, current in pairs)


def has_days_in_production(deployment: Deployment, target: Target) -> bool:
    """Whether production has any day with the rows of the target."""
    ledgers = read_ledgers(deployment)
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
    deployment: Deployment,
    code: Code,
    name: str,
    run_id: str,
    tags: Mapping[str, str],
    only_days: Window | None = None,
) -> Iterator[tuple[Table, list[DayResult]]]:
    """Publish a target's days in production, table by table, inputs first.

    The switch-over ends only after the caller has consumed all results, and so has reported them to
    Dagster. If it is killed before, it can be resumed, and reports them again.

    Args:
        publisher: reads and publishes in production.
        deployment: whose tables they are.
        code: the present code, which must have built the target.
        name: the target's name.
        run_id: the run that switches over.
        tags: tags of that run.
        only_days: only these requested days and the days downstream of them; None for all.

    Yields:
        Each table with the results of all its days, including days published before a resume.

    Raises:
        TargetError: the target is stale, or others have changed its days. Nothing was written; a
            resumed switch-over stops, as the message says.
    """
    target = targets.load_target(deployment, name)
    if not target.switching or target.undoing:
        targets.raise_if_busy(target)
        target = _begin_switch(deployment, code, target, tags.get(REASON_TAG, ""), only_days)
    tags = {**tags, REASON_TAG: tags.get(REASON_TAG) or target.switch_reason}
    _refuse_other_columns(deployment, target)
    switched = []
    # Commit all tables before yielding: reporting three years of days to Dagster takes longer, and
    # until the last commit readers of several tables see a mix.
    for table_name, days in target.days.items():
        table = deployment.tables[table_name]
        cloned = build.days_to_clone(deployment, target, table_name, from_ranges(days))
        record = publisher.run_metadata(table, run_id, tags)
        results = _publish_days(publisher, deployment, target, cloned, record)
        switched.append((table, results))
    yield from switched
    _end_switch(deployment, target)


def _publish_days(
    publisher: DeltaIOManager,
    deployment: Deployment,
    target: Target,
    cloned: ClonedDays,
    record: Mapping[str, Any],
) -> list[DayResult]:
    """Publish days of a table; results of all days, including those already published."""
    table = cloned.ledger.table
    current = publisher.ledger(table)
    own_days = {
        day for day, commit in current.latest.items() if commit.backfill_id == target.switch_id
    }
    # A killed run may not have reported these to Dagster.
    results = results_of_adopted(current, cloned.days & own_days)
    if remaining := cloned.days - own_days:

        def refuse_other_writers(ledger: Ledger) -> None:
            build.refuse_external_changes(deployment, target, {ledger.table.name: ledger})

        results += adopt_files(
            replace(cloned, days=remaining),
            publisher.writer(table),
            partial(publisher.ledger, table),
            # Started by a person, even if a resumed run finishes it.
            {**record, "backfill_id": target.switch_id, "launched_by": PERSON},
            partial(
                build.translate_origin,
                deployment,
                target,
                cloned.ledger,
                partial(read_ledgers, deployment),
            ),
            refuse_other_writers,
            CANARY if target.canary else SWITCH_OVER,
        )
    return sorted(results, key=lambda result: result.day)


def _end_switch(deployment: Deployment, target: Target) -> None:
    """Record the end of a switch-over, and save the consistent versions of the tables."""

    def mark_ended(current: Target) -> Target:
        is_same_switch = current.switch_id == target.switch_id
        return current.model_copy(update={"switching": False}) if is_same_switch else current

    targets.update_target(deployment, target.name, mark_ended)
    save_consistent_versions(deployment, deployment.today)


def _refuse_other_columns(deployment: Deployment, target: Target) -> None:
    """Raise if this code declares other tables or columns than the code that began the switch-over.

    Raises:
        TargetError: it does.
    """
    problems = [
        f"there is no table {name}" for name in target.days if name not in deployment.tables
    ]
    for name in target.days.keys() & deployment.tables.keys():
        metadata = target.table_ledger(deployment, name).metadata
        column_differences = (
            schema_differences(deployment.tables[name], metadata) if metadata else []
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
    deployment: Deployment,
    code: Code,
    target: Target,
    reason: str,
    only_days: Window | None,
) -> Target:
    """Check that the days can be switched over, and mark the target as switching.

    Raises:
        TargetError: why they cannot, or another command came first; nothing was written.
        PublishError: files of the target are deleted; nothing was written.
    """
    current = read_ledgers(deployment)
    # All checks are about these versions of the clones, and these are switched over.
    versions = {name: target.table_ledger(deployment, name).version or 0 for name in target.tables}
    build.refuse_migrated(deployment, target, current)
    build.refuse_external_changes(deployment, target, current)
    problems = []
    for name, by_day in build.stale_days(deployment, target, code, only_days).items():
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
            if build.stale_days(deployment, target, code, window)
        )
        raise TargetError(
            f"target {target.name} is not switched over, as it is not as it would be made now: "
            f"{', '.join(problems)}. Nothing was written. Build these days first, with the code "
            f"that is to be deployed: {commands}."
        )
    refuse_uncompared(deployment, target, versions, current)
    days = build.days_of_target(deployment, target, only_days)
    for name, table_days in days.items():
        cloned = build.days_to_clone(deployment, target, name, table_days)
        cloned.raise_if_files_missing(
            deployment.table_url(name), cloned.changed_days(cloned.days, current[name])
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
        name: target.table_ledger(deployment, name).version or 0 for name in target.tables
    }:
        raise TargetError(
            f"target {target.name} is being built on. Nothing was written. Ask again when that "
            "has ended."
        )
    return targets.save_target(deployment, target.model_copy(update=changes))
