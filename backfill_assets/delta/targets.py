"""Shadow targets: tables that are cloned and built beside production, and the state of each target.

A target has forks of some tables, see `forks`. All other tables are read from production, as of the
versions that they had when the target was made, or last caught up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from uuid import uuid4

import pyarrow.fs as pafs
from pydantic import BaseModel, Field, ValidationError

from backfill_assets.calendar.partitions import Window
from backfill_assets.delta import document
from backfill_assets.delta.commit_log import CommitLog, added_files, shallow_clone
from backfill_assets.delta.delta_rs import load_log
from backfill_assets.delta.ledger_reader import read_ledger
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.settings import Settings
from backfill_assets.spark.filesystems import open_store
from backfill_assets.tables.graph import tables_of

#: Under the warehouse, where no table has such a name.
TARGETS_FOLDER = "_targets"
_STATE = "_state"
#: So often a change is tried again that others came before.
_ATTEMPTS = 10
#: In days, less than the age of any target, see `targets_older_than`.
NO_AGE = -1
#: Of a name: it stands in paths, in tags of runs and in commits.
NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,30}")


class TargetError(ValueError):
    """What is asked of a target is not possible; the message says what state it is in."""


class ChangedError(TargetError):
    """Somebody else has changed the target meanwhile."""


class ComparisonLimits(BaseModel, frozen=True):
    """What a comparison of a target with production must keep to.

    Attributes:
        most_drift: the population stability index that no column may exceed; none for any.
        most_rows: the share by which the rows of no table may be more or fewer; none for any.
    """

    most_drift: float | None = None
    most_rows: float | None = None

    def __str__(self) -> str:
        """As a sentence has it, and as the command takes it."""
        options = {"--most-drift": self.most_drift, "--most-rows": self.most_rows}
        return " ".join(f"{name} {limit:g}" for name, limit in options.items() if limit is not None)


class TargetComparison(BaseModel, frozen=True):
    """What a comparison of a target with production found, and of what it was.

    Attributes:
        generation: of the forks.
        versions: by table, that of the fork.
        pins: by table, that of production.
        bounds: that it was held against.
        problems: what does not add up, and which bounds are not kept, a sentence each.
    """

    generation: str
    versions: Mapping[str, int]
    pins: Mapping[str, int | None]
    bounds: ComparisonLimits
    problems: tuple[str, ...] = ()


class ShadowTarget(BaseModel, frozen=True):
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
        versions: by table, the version of the fork that it takes them from.
        switch_reason: why it switches over, as whoever began it put it.
        undoing: what of it is being put back, as an undo takes it; empty if nothing is.
        dropping: whether it is being removed.
        required: the bounds that a comparison must have kept before a switch-over; none if none
            is required.
        compared: the last comparison; none if there was none.
        revision: of what is known of it; whoever changes that rests on the last one.
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
    versions: Mapping[str, int] = {}
    switch_reason: str = ""
    undoing: str = ""
    dropping: bool = False
    required: ComparisonLimits | None = None
    compared: TargetComparison | None = None
    revision: int = Field(default=document.NO_REVISION, exclude=True)

    @property
    def switch_id(self) -> str:
        """The id of the last switch-over, which its commits have as those of a backfill have."""
        return f"{self.name}-{self.switches}"

    @property
    def requested_windows(self) -> list[Window]:
        """The days that were asked for."""
        return [Window.parse(text) for text in self.asked]

    def table_url(self, settings: Settings, table: str) -> str:
        """Where a table is, as the target has it."""
        if table not in self.tables or not self.generation:
            return settings.table(table)
        return f"{target_folder(settings, self.name)}/{self.generation}/{table}"

    def fork_version(self, table: str) -> int:
        """The version of a table that its fork begins with; -1 if the fork began without one."""
        pin = self.pins.get(table)
        return -1 if pin is None else pin

    def table_ledger(self, settings: Settings, table: str) -> Ledger:
        """What the log of a table says, as the target sees it.

        Raises:
            TargetError: no table of this name is declared any more.
        """
        declared = tables_of(settings).get(table)
        if declared is None:
            raise TargetError(
                f"target {self.name} has days of {table}, and no such table is declared any more. "
                "Nothing was done, and production is as it was. Declare the table again, or drop "
                f"the target: `backfill-assets drop {self.name}`"
            )
        ledger = read_ledger(self.table_url(settings, table), declared, settings.warehouse)
        if table in self.tables:
            # Whoever builds on meanwhile adds nothing to a switch-over that has begun.
            version = self.versions.get(table) if self.switching else None
            return ledger if version in (None, ledger.version) else ledger.as_of(version)
        pin = self.pins.get(table)
        if pin is None:
            return Ledger(ledger.table, references=ledger.references)
        return ledger if ledger.version == pin else ledger.as_of(pin)

    def table_ledgers(self, settings: Settings, *, pinned: bool = True) -> Ledgers:
        """Those of all tables, inputs first.

        Args:
            settings: the deployment's settings.
            pinned: whether tables that the target has not are seen as it sees them, or as they are.
        """
        tables = tables_of(settings)
        return {
            name: self.table_ledger(settings, name)
            if pinned or name in self.tables
            else read_ledger(settings.table(name), table)
            for name, table in tables.items()
        }


def target_folder(settings: Settings, name: str) -> str:
    """Where a target lives."""
    return f"{settings.warehouse}/{TARGETS_FOLDER}/{name}"


def list_targets(settings: Settings) -> list[str]:
    """The targets that there are."""
    filesystem, path = open_store(f"{settings.warehouse}/{TARGETS_FOLDER}")
    infos = filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    folders = (info.base_name for info in infos if info.type == pafs.FileType.Directory)
    return sorted(name for name in folders if _read_state(settings, name) is not None)


def any_targets(settings: Settings) -> bool:
    """Whether there are any targets, by their folders alone."""
    filesystem, path = open_store(f"{settings.warehouse}/{TARGETS_FOLDER}")
    return bool(filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True)))


def load_target(settings: Settings, name: str) -> ShadowTarget:
    """A target by its name.

    Raises:
        TargetError: there is none, or it was made by another version of this package.
    """
    state_document = _read_state(settings, name) if NAME_PATTERN.fullmatch(name) else None
    if state_document is None:
        existing = ", ".join(list_targets(settings)) or "none"
        raise TargetError(f"there is no target {name}; there are: {existing}")
    try:
        target = ShadowTarget.model_validate_json(state_document.text)
    except ValidationError as error:
        raise TargetError(
            f"target {name} was made by another version of backfill_assets: use that one to "
            "switch it over or to drop it. Nothing was done."
        ) from error
    return target.model_copy(update={"revision": state_document.revision})


def _read_state(settings: Settings, name: str) -> document.Document | None:
    return document.read_document(f"{target_folder(settings, name)}/{_STATE}")


def save_target(settings: Settings, target: ShadowTarget) -> ShadowTarget:
    """Keep what is known of a target now, which rests on what was known at its revision.

    Raises:
        TargetError: another command has changed it since.
    """
    url = f"{target_folder(settings, target.name)}/{_STATE}"
    revision = document.write_document(url, target.model_dump_json(), target.revision)
    if revision is None:
        raise ChangedError(
            f"another command has changed target {target.name} meanwhile. Nothing was written "
            "to production. See what it is now (`backfill-assets targets`), and ask again."
        )
    return target.model_copy(update={"revision": revision})


def update_target(
    settings: Settings, name: str, update: Callable[[ShadowTarget], ShadowTarget]
) -> ShadowTarget:
    """Change what is known of a target, whatever others change meanwhile.

    Args:
        settings: the deployment's settings.
        name: of the target.
        update: what it is then, of what it is.

    Raises:
        TargetError: there is no such target, or others change it all the time.
    """
    for _ in range(_ATTEMPTS - 1):
        with suppress(ChangedError):
            return save_target(settings, update(load_target(settings, name)))
    return save_target(settings, update(load_target(settings, name)))


def refuse_busy(target: ShadowTarget) -> None:
    """See that nobody switches a target over, puts it back, or removes it.

    Raises:
        TargetError: somebody does.
    """
    name = target.name
    if target.dropping:
        raise TargetError(
            f"target {name} is being dropped: `backfill-assets drop {name}` ends that"
        )
    if target.undoing:
        raise TargetError(
            f"switch-over {target.undoing} is being undone: `backfill-assets undo "
            f"{target.undoing}` finishes that"
        )
    if target.switching:
        raise TargetError(
            f"target {name} is being switched over: `backfill-assets switch {name}` finishes that"
        )


def delete_target(settings: Settings, name: str) -> None:
    """Remove all that is kept of a target."""
    filesystem, path = open_store(target_folder(settings, name))
    filesystem.delete_dir(f"{path}/{_STATE}")  # it is no target any more, whatever is left of it
    filesystem.delete_dir(path)


def interrupted_switches(settings: Settings) -> list[ShadowTarget]:
    """The targets whose switch-over has begun and not ended, but for those that are undone."""
    return [t for t in readable_targets(settings) if t.switching and not t.undoing]


def readable_targets(settings: Settings) -> Iterator[ShadowTarget]:
    """The targets, but for those of another version, which looks after them."""
    for name in list_targets(settings):
        with suppress(TargetError):
            yield load_target(settings, name)


def targets_older_than(settings: Settings, table: str, days: int) -> list[str]:
    """The targets that have a table, and are older than so many days; all that cannot be read."""
    matches = []
    for name in list_targets(settings):
        try:
            target = load_target(settings, name)
        except TargetError:
            matches.append(name)
            continue
        if table in target.tables and target.made < time.time() - days * 86_400:
            matches.append(name)
    return matches


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
