"""Targets: tables that are built beside production, and what is kept of each target.

A target has forks of some tables, see `forks`. All other tables are read from production, as of the
versions that they had when the target was made, or last caught up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import pyarrow.fs as pafs
from pydantic import BaseModel, Field, ValidationError

from backfill_assets.calendar.partitions import Window
from backfill_assets.delta import target_log
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.delta.reading import read_ledger
from backfill_assets.engine.stores import open_store
from backfill_assets.settings import Settings
from backfill_assets.tables.catalog import tables_of

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
    revision: int = Field(default=target_log.NO_REVISION, exclude=True)

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


def _read_state(settings: Settings, name: str) -> target_log.Document | None:
    return target_log.read_document(f"{target_folder(settings, name)}/{_STATE}")


def save_target(settings: Settings, target: ShadowTarget) -> ShadowTarget:
    """Keep what is known of a target now, which rests on what was known at its revision.

    Raises:
        TargetError: another command has changed it since.
    """
    url = f"{target_folder(settings, target.name)}/{_STATE}"
    revision = target_log.write_document(url, target.model_dump_json(), target.revision)
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
