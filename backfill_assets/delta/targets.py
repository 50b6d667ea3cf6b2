"""Targets: tables that are built beside production, and what is kept of each target.

A target has forks of some tables, see `forks`. All other tables are read from production, as of the
versions that they had when the target was made, or last caught up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from uuid import uuid4

import pyarrow.fs as pafs
from pydantic import BaseModel, ValidationError

from backfill_assets.calendar.partitions import Window
from backfill_assets.delta.commit_files import CommitLog
from backfill_assets.delta.forks import added_files, fork
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.logs import load_log
from backfill_assets.delta.reading import read_ledger
from backfill_assets.engine.stores import open_store, put_in_place
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import tables_of

#: Under the warehouse, where no table has such a name.
FOLDER = "_targets"
_STATE = "target.json"
#: In days, less than the age of any target, see `older_than`.
NO_AGE = -1
#: Of a name: it stands in paths, in tags of runs and in commits.
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


class TargetError(ValueError):
    """What is asked of a target is not possible; the message says what state it is in."""


class Target(BaseModel, frozen=True):
    """Tables that are built beside production.

    Attributes:
        name: of the target.
        tables: those that it has, inputs first.
        asked: the days that were asked for, as ranges.
        newest: whether these are to end with the newest day of production.
        pins: by table, the version that the target sees of production; of its own tables, the one
            that they were forked at. None of a table that was not there.
        generation: names the folder of the forks; it changes when they are made anew. Empty while
            there are none.
        made: when it was made, in seconds since 1970.
        reason: why, as whoever made it put it.
        switches: how often days of it have been switched over, or begun to be.
        switching: whether the last of these has not ended.
        canary: whether some of its days are switched over and the others not.
        days: by table, the days that it switches over, as ranges.
    """

    name: str
    tables: tuple[str, ...]
    asked: tuple[str, ...]
    newest: bool = False
    pins: Mapping[str, int | None]
    generation: str = ""
    made: float = 0
    reason: str = ""
    switches: int = 0
    switching: bool = False
    canary: bool = False
    days: Mapping[str, tuple[str, ...]] = {}

    @property
    def switch_id(self) -> str:
        """The id of the last switch-over, which its commits have as those of a backfill have."""
        return f"{self.name}-{self.switches}"

    @property
    def windows(self) -> list[Window]:
        """The days that were asked for."""
        return [Window.parse(text) for text in self.asked]

    def url(self, settings: Settings, table: str) -> str:
        """Where a table is, as the target has it."""
        if table not in self.tables or not self.generation:
            return settings.table(table)
        return f"{folder(settings, self.name)}/{self.generation}/{table}"

    def since(self, table: str) -> int:
        """The version of a table that its fork begins with; -1 if the fork began without one."""
        pin = self.pins.get(table)
        return -1 if pin is None else pin

    def ledger(self, settings: Settings, table: str) -> Ledger:
        """What the log of a table says, as the target sees it."""
        url, of = self.url(settings, table), tables_of(settings)[table]
        ledger = read_ledger(url, of, settings.warehouse)
        if table in self.tables:
            return ledger
        pin = self.pins.get(table)
        if pin is None:
            return Ledger(ledger.table, references=ledger.references)
        return ledger if ledger.version == pin else ledger.as_of(pin)

    def ledgers(self, settings: Settings, *, pinned: bool = True) -> Ledgers:
        """Those of all tables, inputs first.

        Args:
            settings: the deployment's settings.
            pinned: whether tables that the target has not are seen as it sees them, or as they are.
        """
        tables = tables_of(settings)
        return {
            name: self.ledger(settings, name)
            if pinned or name in self.tables
            else read_ledger(settings.table(name), table)
            for name, table in tables.items()
        }


def folder(settings: Settings, name: str) -> str:
    """Where a target lives."""
    return f"{settings.warehouse}/{FOLDER}/{name}"


def names(settings: Settings) -> list[str]:
    """The targets that there are."""
    filesystem, path = open_store(f"{settings.warehouse}/{FOLDER}")
    found = filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    there = (info.base_name for info in found if info.type == pafs.FileType.Directory)
    return sorted(name for name in there if _state(settings, name) is not None)


def find(settings: Settings, name: str) -> Target:
    """A target by its name.

    Raises:
        TargetError: there is none, or it was made by another version of this package.
    """
    text = _state(settings, name) if _NAME.fullmatch(name) else None
    if text is None:
        there = ", ".join(names(settings)) or "none"
        raise TargetError(f"there is no target {name}; there are: {there}")
    try:
        return Target.model_validate_json(text)
    except ValidationError as error:
        raise TargetError(
            f"target {name} was made by another version of backfill_assets: use that one to "
            "switch it over or to drop it. Nothing was done."
        ) from error


def _state(settings: Settings, name: str) -> bytes | None:
    filesystem, path = open_store(folder(settings, name))
    try:
        with filesystem.open_input_stream(f"{path}/{_STATE}") as stream:
            text: bytes = stream.read()
            return text
    except FileNotFoundError:
        return None


def keep(settings: Settings, target: Target) -> Target:
    """Keep what is known of a target, in place of what was."""
    text = target.model_dump_json(indent=2)
    put_in_place(folder(settings, target.name), _STATE, text.encode())
    return target


def described(
    settings: Settings, name: str, tables: Iterable[str], asked: Window, reason: str = ""
) -> Target:
    """A target as it would be made now.

    Args:
        settings: the deployment's settings.
        name: of the target.
        tables: those that it is to have, inputs first.
        asked: the days that are asked for.
        reason: why.

    Raises:
        TargetError: the name is not possible, or commits have it already.
    """
    if not _NAME.fullmatch(name):
        raise TargetError(
            f"{name!r} is no name for a target: it takes a to z, 0 to 9 and _, and begins with a "
            "letter; at most 31 characters"
        )
    tables = tuple(tables)
    known = tables_of(settings).items()
    ledgers = {of: read_ledger(settings.table(of), table) for of, table in known}
    commits = (record for ledger in ledgers.values() for record in ledger.records)
    if any((record.backfill_id or "").partition("-")[0] == name for record in commits):
        raise TargetError(
            f"{name} is the name of a backfill or of a target that is gone, which tables of "
            "production have in their commits: take another name, so that each can be undone alone"
        )
    newest = max((day for of in tables for day in ledgers[of].published), default=None)
    return Target(
        name=name,
        tables=tables,
        asked=(str(asked),),
        newest=newest is not None and newest < asked.end,
        pins={of: ledger.version for of, ledger in ledgers.items()},
        made=time.time(),
        reason=reason,
    )


def make(settings: Settings, target: Target) -> Target:
    """Make a target that there is none of: fork its tables.

    Raises:
        ForkError: a table cannot be forked.
    """
    return keep(settings, fork_tables(settings, target))


def fork_tables(settings: Settings, target: Target) -> Target:
    """Fork the tables of a target, as of its pins; the target with these forks.

    Raises:
        ForkError: a table cannot be forked.
    """
    target = target.model_copy(update={"generation": uuid4().hex[:8]})
    for table in target.tables:
        version = target.pins[table]
        if version is not None:
            fork(settings.table(table), target.url(settings, table), version)
    return target


def interrupted(settings: Settings) -> list[Target]:
    """The targets whose switch-over has begun and not ended."""
    return [target for target in _readable(settings) if target.switching]


def is_mixed(settings: Settings) -> bool:
    """Whether production has some days of a target, or some tables of it, and not the others."""
    return any(target.switching or target.canary for target in _readable(settings))


def _readable(settings: Settings) -> Iterator[Target]:
    """The targets, but for those of another version, which looks after them."""
    for name in names(settings):
        with suppress(TargetError):
            yield find(settings, name)


def refuse_half(settings: Settings, switch_id: str) -> None:
    """See that of a switch-over that has not ended, not some days alone are undone.

    Raises:
        TargetError: it has not ended.
    """
    for target in interrupted(settings):
        if switch_id in (target.name, target.switch_id):
            raise TargetError(
                f"switch-over {target.switch_id} has not ended, and some days of it cannot be "
                f"undone alone: finish it (`backfill-assets switch {target.name}`), or undo all "
                "of it. Nothing was written."
            )


def settle(settings: Settings, switch_id: str) -> None:
    """Take note that a switch-over has been undone: one that was interrupted rests.

    Args:
        settings: the deployment's settings.
        switch_id: its id, or the name of the target for all of them.
    """
    for target in _readable(settings):
        if switch_id in (target.name, target.switch_id):
            others = switch_id != target.name and target.switches > 1
            rests = {"switching": False, "canary": target.canary and others}
            keep(settings, target.model_copy(update=rests))


def older_than(settings: Settings, table: str, days: int) -> list[str]:
    """The targets that have a table, and are older than so many days; all that cannot be read."""
    found = []
    for name in names(settings):
        try:
            target = find(settings, name)
        except TargetError:
            found.append(name)
            continue
        if table in target.tables and target.made < time.time() - days * 86_400:
            found.append(name)
    return found


def drop(settings: Settings, name: str) -> int:
    """Remove a target, with the data files that it alone has; how many these were.

    Production has what was switched over; readers of the target find nothing any more.

    Raises:
        TargetError: there is no such target, or it is being switched over.
    """
    target = find(settings, name)
    if target.switching:
        raise TargetError(
            f"target {name} is being switched over: let that end (`backfill-assets switch {name}` "
            "finishes it) and drop it then"
        )
    removed = 0
    for table in target.tables:
        removed += _remove_own(settings, target, table)
    filesystem, path = open_store(folder(settings, name))
    filesystem.delete_file(f"{path}/{_STATE}")  # it is no target any more, whatever is left of it
    filesystem.delete_dir(path)
    return removed


def _remove_own(settings: Settings, target: Target, table: str) -> int:
    """Remove the data files of a table that no commit of production names; how many these were.

    Where commits of production are gone, nobody knows what they named: VACUUM removes the files.
    """
    production = settings.table(table)
    log, there = load_log(production), CommitLog(production).there()
    last = log.version() if log else target.pins.get(table)
    if last is not None and not there.issuperset(range(last + 1)):
        return 0
    filesystem, path = open_store(folder(settings, target.name))
    generations = filesystem.get_file_info(pafs.FileSelector(path))
    own: set[str] = set()
    for info in generations:
        if info.type == pafs.FileType.Directory:
            url = f"{folder(settings, target.name)}/{info.base_name}/{table}"
            own |= {*added_files(url, -1)}
    own -= {*added_files(production, -1)}
    # The forks of a warehouse that was copied name the files of the other one.
    own = {place for place in own if place.startswith(f"{production}/")}
    for place in own:
        store, file = open_store(place)
        if store.get_file_info(file).is_file:
            store.delete_file(file)
    return len(own)
