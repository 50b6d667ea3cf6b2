"""The tables of a target: forked when it is made, removed when it is dropped."""

from __future__ import annotations

import time
from collections.abc import Iterable
from uuid import uuid4

import pyarrow.fs as pafs

from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.commit_files import CommitLog
from backfill_assets.delta.forks import added_files, shallow_clone
from backfill_assets.delta.logs import load_log
from backfill_assets.delta.reading import read_ledger
from backfill_assets.delta.targets import (
    NAME_PATTERN,
    ShadowTarget,
    TargetError,
    delete_target,
    load_target,
    save_target,
    target_folder,
)
from backfill_assets.engine.stores import open_store
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import tables_of


def describe_target(
    settings: Settings, name: str, tables: Iterable[str], requested_days: Window, reason: str = ""
) -> ShadowTarget:
    """A target as it would be made now.

    Args:
        settings: the deployment's settings.
        name: of the target.
        tables: those that it is to have, inputs first.
        requested_days: the days that are asked for.
        reason: why.

    Raises:
        TargetError: the name is not possible, or commits have it already.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise TargetError(
            f"{name!r} is no name for a target: it takes a to z, 0 to 9 and _, and begins with a "
            "letter; at most 31 characters"
        )
    tables = tuple(tables)
    declared = tables_of(settings).items()
    ledgers = {
        table_name: read_ledger(settings.table(table_name), table) for table_name, table in declared
    }
    commits = (record for ledger in ledgers.values() for record in ledger.records)
    if any((record.backfill_id or "").partition("-")[0] == name for record in commits):
        raise TargetError(
            f"{name} is the name of a backfill or of a target that is gone, which tables of "
            "production have in their commits: take another name, so that each can be undone alone"
        )
    newest = max(
        (day for table_name in tables for day in ledgers[table_name].published_days), default=None
    )
    return ShadowTarget(
        name=name,
        tables=tables,
        asked=(str(requested_days),),
        newest=newest is not None and newest < requested_days.end,
        pins={table_name: ledger.version for table_name, ledger in ledgers.items()},
        made=time.time(),
        reason=reason,
    )


def make_target(settings: Settings, target: ShadowTarget) -> ShadowTarget:
    """Make a target that there is none of: fork its tables.

    Raises:
        ForkError: a table cannot be forked.
    """
    return save_target(settings, clone_tables(settings, target))


def clone_tables(settings: Settings, target: ShadowTarget) -> ShadowTarget:
    """Fork the tables of a target, as of its pins; the target with these forks.

    Raises:
        ForkError: a table cannot be forked.
    """
    target = target.model_copy(update={"generation": uuid4().hex[:8]})
    for table in target.tables:
        version = target.pins[table]
        if version is not None:
            shallow_clone(settings.table(table), target.table_url(settings, table), version)
    return target


def drop_target(settings: Settings, name: str) -> int:
    """Remove a target, with the data files that it alone has; how many these were.

    Production has what was switched over; readers of the target find nothing any more. Killed, it
    is finished by asking again.

    Raises:
        TargetError: there is no such target, or it is being switched over, or that is half undone.
    """
    target = load_target(settings, name)
    if target.switching:
        raise TargetError(
            f"target {name} is being switched over: let that end (`backfill-assets switch {name}` "
            "finishes it) and drop it then"
        )
    if target.undoing:
        raise TargetError(
            f"switch-over {target.undoing} is half undone: `backfill-assets undo {target.undoing}` "
            f"finishes that; drop {name} then. Nothing was removed."
        )
    # From here on nobody else changes it.
    target = save_target(settings, target.model_copy(update={"dropping": True}))
    removed = 0
    for table in target.tables:
        removed += _delete_own_files(settings, target, table)
    delete_target(settings, name)
    return removed


def _delete_own_files(settings: Settings, target: ShadowTarget, table: str) -> int:
    """Remove the data files of a table that no commit of production names; how many these were.

    Where commits of production are gone, nobody knows what they named: VACUUM removes the files.
    """
    production = settings.table(table)
    log, versions = load_log(production), CommitLog(production).list_versions()
    last = log.version() if log else target.pins.get(table)
    if last is not None and not versions.issuperset(range(last + 1)):
        return 0
    filesystem, path = open_store(target_folder(settings, target.name))
    generations = filesystem.get_file_info(pafs.FileSelector(path))
    own_files: set[str] = set()
    for info in generations:
        if info.type == pafs.FileType.Directory:
            url = f"{target_folder(settings, target.name)}/{info.base_name}/{table}"
            own_files |= {*added_files(url, -1)}
    own_files -= {*added_files(production, -1)}
    # The forks of a warehouse that was copied name the files of the other one.
    own_files = {location for location in own_files if location.startswith(f"{production}/")}
    for location in own_files:
        store, file = open_store(location)
        if store.get_file_info(file).is_file:
            store.delete_file(file)
    return len(own_files)
