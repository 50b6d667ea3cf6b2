"""Switch-over: days of a target become production, one metadata commit a table, nothing copied.

A switch-over that was begun is known by the target. Asked for again, it goes on where it was; what
it made of production is undone as a backfill's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from backfill_assets.backfills.plans import DayOutcome
from backfill_assets.backfills.shadow import translate_origin
from backfill_assets.backfills.target_bounds import refuse_uncompared
from backfill_assets.backfills.target_days import (
    days_of_target,
    days_to_clone,
    refuse_external_changes,
    refuse_migrated,
    stale_days,
)
from backfill_assets.backfills.target_undo import save_consistent_versions
from backfill_assets.calendar.partitions import Window, format_ranges, from_ranges, to_ranges
from backfill_assets.dagster_ext.internals import BaseAssetGraph
from backfill_assets.delta import targets
from backfill_assets.delta.evolution import schema_differences
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.delta.records import CANARY, PERSON, SWITCH_OVER
from backfill_assets.delta.targets import ShadowTarget, TargetError
from backfill_assets.publish.adoption import ClonedDays, adopt_files, results_of_adopted
from backfill_assets.publish.candidates import DayResult
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.publish.run_tags import REASON_TAG
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import tables_of
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.table import Table


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
