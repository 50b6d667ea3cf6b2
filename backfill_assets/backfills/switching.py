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

from backfill_assets.backfills.plans import Expected
from backfill_assets.backfills.shadow import origin_in
from backfill_assets.backfills.target_bounds import refuse_uncompared
from backfill_assets.backfills.target_days import (
    adoptable,
    behind,
    days_of,
    refuse_foreign,
    refuse_migrated,
)
from backfill_assets.backfills.target_undo import keep_settled_versions
from backfill_assets.calendar.partitions import Window, packed, spelled, unpacked
from backfill_assets.dagster_ext.internals import BaseAssetGraph
from backfill_assets.delta import targets
from backfill_assets.delta.evolution import differences
from backfill_assets.delta.ledgers import Ledger
from backfill_assets.delta.reading import read_ledgers
from backfill_assets.delta.records import CANARY, PERSON, SWITCH_OVER
from backfill_assets.delta.targets import Target, TargetError
from backfill_assets.publish.adoption import Adopted, adopt, adopted_before
from backfill_assets.publish.candidates import Done
from backfill_assets.publish.io_manager import DeltaIOManager
from backfill_assets.publish.run_tags import REASON_TAG
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import tables_of
from backfill_assets.tables.code_version import Code
from backfill_assets.tables.table import Table


def switch_over(
    io: DeltaIOManager,
    settings: Settings,
    graph: BaseAssetGraph,
    code: Code,
    name: str,
    run_id: str,
    tags: Mapping[str, str],
    only: Window | None = None,
) -> Iterator[tuple[Table, list[Done]]]:
    """Publish in production what a target has made, table after table, inputs first.

    It has not ended before the caller has taken all that it yields, and may have told Dagster: who
    is killed meanwhile is finished, and tells it then.

    Args:
        io: reads and publishes in production.
        settings: the deployment's settings.
        graph: the assets.
        code: that of the tables, by which the target must have been made.
        name: of the target.
        run_id: of the run that switches over.
        tags: of that run.
        only: only these of the days that were asked for, and what follows from them.

    Yields:
        Each table, with what became of all of its days: also of those that a switch-over had
        published that was killed.

    Raises:
        TargetError: the target is behind production, or others have changed the days. Nothing was
            written; or a switch-over that was begun goes no further, and the message says so.
    """
    target = targets.find(settings, name)
    if not target.switching or target.undoing:
        targets.refuse_busy(target)
        target = _begin(settings, graph, code, target, tags.get(REASON_TAG, ""), only)
    tags = {**tags, REASON_TAG: tags.get(REASON_TAG) or target.switch_reason}
    _refuse_other_tables(settings, target)
    switched = []
    # All commits come first: of three years of days it takes longer to tell of them, and readers of
    # several tables would see a mix as long.
    for of, days in target.days.items():
        table, adopted = tables_of(settings)[of], adoptable(settings, target, of, unpacked(days))
        done = _adopt(io, settings, target, adopted, io.record(table, run_id, tags))
        switched.append((table, done))
    yield from switched
    _end(settings, target)


def _adopt(
    io: DeltaIOManager,
    settings: Settings,
    target: Target,
    adopted: Adopted,
    record: Mapping[str, Any],
) -> list[Done]:
    """Publish days of a table in production; what became of each, also of those that were."""
    table = adopted.ledger.table
    now = io.ledger(table)
    mine = {day for day, of in now.latest.items() if of.backfill_id == target.switch_id}
    # Who was killed may not have told Dagster of these.
    done = adopted_before(now, adopted.days & mine)
    if left := adopted.days - mine:

        def refuse(ledger: Ledger) -> None:
            refuse_foreign(settings, target, {ledger.table.name: ledger})

        done += adopt(
            replace(adopted, days=left),
            io.writer(table),
            partial(io.ledger, table),
            # A person has begun it, whoever finishes it.
            {**record, "backfill_id": target.switch_id, "launched_by": PERSON},
            partial(origin_in, settings, target, adopted.ledger, partial(read_ledgers, settings)),
            refuse,
            CANARY if target.canary else SWITCH_OVER,
        )
    return sorted(done, key=lambda one: one.day)


def _end(settings: Settings, target: Target) -> None:
    """Take note that a switch-over has ended, and of the versions that belong together since."""

    def ended(now: Target) -> Target:
        mine = now.switch_id == target.switch_id
        return now.model_copy(update={"switching": False}) if mine else now

    targets.change(settings, target.name, ended)
    keep_settled_versions(settings, datetime.now(settings.zone).date())


def _refuse_other_tables(settings: Settings, target: Target) -> None:
    """See that this code has the tables of a switch-over as the code has them that began it.

    Raises:
        TargetError: it has not.
    """
    problems = [f"there is no table {of}" for of in target.days if of not in tables_of(settings)]
    for of in target.days.keys() & tables_of(settings).keys():
        metadata = target.ledger(settings, of).metadata
        said = differences(tables_of(settings)[of], metadata) if metadata else []
        problems += [f"{of}: {text}" for text in said]
    if problems:
        raise TargetError(
            f"switch-over {target.switch_id} was begun by other code, and this code cannot finish "
            f"it ({'; '.join(problems)}). It stays where it is: `backfill-assets switch "
            f"{target.name}` with that code finishes it, `backfill-assets undo "
            f"{target.switch_id}` takes it back."
        )


def _begin(
    settings: Settings,
    graph: BaseAssetGraph,
    code: Code,
    target: Target,
    reason: str,
    only: Window | None,
) -> Target:
    """See that days can be switched over, and take note that they are being so.

    Raises:
        TargetError: why they cannot, or another command came first; nothing was written.
        PublishError: files that the target names are gone; nothing was written.
    """
    now = read_ledgers(settings)
    # All that follows is about the forks as they are here, and so is what is switched over.
    versions = {name: target.ledger(settings, name).version or 0 for name in target.tables}
    refuse_migrated(settings, target, now)
    refuse_foreign(settings, target, now)
    problems = []
    for name, of in behind(settings, graph, target, code, only).items():
        why = "; ".join(
            dict.fromkeys(
                fate.why or fate.expected.value
                for fate in of.values()
                if fate.expected is not Expected.IDENTICAL
            )
        )
        problems.append(f"{name} [{spelled(of)}] ({why})")
    if problems:
        commands = ", ".join(
            f"`backfill-assets backfill {window} --target {target.name}`"
            for window in target.windows
            if behind(settings, graph, target, code, window)
        )
        raise TargetError(
            f"target {target.name} is not switched over, as it is not as it would be made now: "
            f"{', '.join(problems)}. Nothing was written. Build these days first, with the code "
            f"that is to be deployed: {commands}."
        )
    refuse_uncompared(settings, target, versions, now)
    days = days_of(settings, graph, target, only)
    for name, wanted in days.items():
        adopted = adoptable(settings, target, name, wanted)
        adopted.refuse_gone(settings.table(name), adopted.changed(adopted.days, now[name]))
    begun = {
        "switching": True,
        "switches": target.switches + 1,
        "canary": only is not None,
        "days": {name: tuple(packed(of)) for name, of in days.items()},
        "versions": versions,
        "switch_reason": reason,
    }
    if versions != {name: target.ledger(settings, name).version or 0 for name in target.tables}:
        raise TargetError(
            f"target {target.name} is being built on. Nothing was written. Ask again when that "
            "has ended."
        )
    return targets.keep(settings, target.model_copy(update=begun))
