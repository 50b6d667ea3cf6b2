"""Targets: tables cloned and built beside production, and the saved state of each target.

A target has shallow clones of some tables. It reads all other tables from production, at the
versions they had when the target was created, or last caught up.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from uuid import uuid4

import pyarrow.fs as pafs
from pydantic import AliasChoices, BaseModel, Field, ValidationError

from backfill_assets.calendar.partitions import Window, to_ranges
from backfill_assets.delta import delta_rs
from backfill_assets.delta.commit_log import CommitLog, added_files, shallow_clone
from backfill_assets.delta.delta_rs import load_log
from backfill_assets.delta.ledger_reader import read_ledger, read_ledgers
from backfill_assets.delta.ledgers import Ledger, Ledgers
from backfill_assets.deployment import Deployment
from backfill_assets.spark.filesystems import delete_folder, open_store

#: In the warehouse; no table can have this name.
TARGETS_FOLDER = "_targets"
_STATE = "_state"
#: In days, below the age of any target; see `targets_older_than`.
ANY_AGE = -1
#: A target's name is used in paths, in tags of runs and in commits.
NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,30}")


class TargetError(ValueError):
    """A target does not allow the request; the message says what state it is in."""


class ChangedError(TargetError):
    """Another command has changed the target in the meantime."""


class ComparisonLimits(BaseModel, frozen=True):
    """The limits that a comparison of a target with production must keep; None for no limit.

    Attributes:
        most_drift: maximum population stability index of each column.
        most_rows: maximum share by which the rows of a table may differ.
    """

    most_drift: float | None = None
    most_rows: float | None = None

    def __str__(self) -> str:
        """The limits as options of the command line."""
        options = {"--most-drift": self.most_drift, "--most-rows": self.most_rows}
        return " ".join(f"{name} {limit:g}" for name, limit in options.items() if limit is not None)


class TargetComparison(BaseModel, frozen=True):
    """The result of a comparison of a target with production.

    Attributes:
        generation: generation of the target's clones.
        versions: by table, the compared version of the clone.
        pins: by table, the compared version of production.
        bounds: the limits used.
        problems: unexplained differences and exceeded limits, a sentence each.
    """

    generation: str
    versions: Mapping[str, int]
    pins: Mapping[str, int | None]
    bounds: ComparisonLimits
    problems: tuple[str, ...] = ()


class Target(BaseModel, frozen=True):
    """A target: tables that are built beside production.

    Attributes:
        tables: the tables with a clone, inputs first.
        requested_days: as ranges; `asked` in files of earlier releases.
        newest: whether the requested days end with the newest day of production.
        pins: by table, the version of production that the target reads, or, for a table of the
            target, the version that was cloned. None if the table did not exist.
        generation: folder name of the clones; new clones get a new one. Empty if there are none.
        made: creation time, in seconds since 1970.
        switches: the number of switch-overs, the unfinished one included.
        switching: whether the last switch-over is unfinished.
        canary: whether only some of the days are switched over.
        days: by table, the days that the current switch-over publishes, as ranges.
        versions: by table, the version of the clone that they are taken from.
        undoing: the switch-over, or the target, that an unfinished undo reverts; empty if none.
        required: the limits that a comparison must keep before a switch-over; None if not required.
        compared: the last comparison.
        revision: revision of the saved state, for compare-and-set.
    """

    name: str
    tables: tuple[str, ...]
    requested_days: tuple[str, ...] = Field(
        validation_alias=AliasChoices("requested_days", "asked")
    )
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
    revision: int = Field(default=delta_rs.NO_REVISION, exclude=True)

    @property
    def switch_id(self) -> str:
        """The id of the last switch-over; its commits have it as `backfill_id`."""
        return f"{self.name}-{self.switches}"

    @property
    def requested_windows(self) -> list[Window]:
        """The requested days, as windows."""
        return [Window.parse(text) for text in self.requested_days]

    def table_url(self, deployment: Deployment, table: str) -> str:
        """Where the target reads a table: its clone, or production."""
        if table not in self.tables or not self.generation:
            return deployment.table_url(table)
        return f"{target_folder(deployment, self.name)}/{self.generation}/{table}"

    def cloned_version(self, table: str) -> int:
        """The cloned version of a table; -1 if the table did not exist."""
        pin = self.pins.get(table)
        return -1 if pin is None else pin

    def table_ledger(self, deployment: Deployment, table: str) -> Ledger:
        """The ledger of a table as the target reads it.

        Raises:
            TargetError: the table is not declared any more.
        """
        declared = deployment.graph.all_tables.get(table)
        if declared is None:
            raise TargetError(
                f"target {self.name} has days of {table}, and no such table is declared any more. "
                "Nothing was done, and production is as it was. Declare the table again, or drop "
                f"the target: `backfill-assets drop {self.name}`"
            )
        ledger = read_ledger(
            self.table_url(deployment, table), declared, deployment.settings.warehouse
        )
        if table in self.tables:
            # Days built after the start of a switch-over are not part of it.
            version = self.versions.get(table) if self.switching else None
            return ledger if version in (None, ledger.version) else ledger.as_of(version)
        pin = self.pins.get(table)
        if pin is None:
            return Ledger(ledger.table, references=ledger.references)
        return ledger if ledger.version == pin else ledger.as_of(pin)

    def table_ledgers(self, deployment: Deployment, *, pinned: bool = True) -> Ledgers:
        """The ledgers of all tables, inputs first.

        `pinned`: whether tables without a clone are read at their pinned version, or the latest
        one.
        """
        tables = deployment.graph.all_tables
        return {
            name: self.table_ledger(deployment, name)
            if pinned or name in self.tables
            else read_ledger(deployment.table_url(name), table, deployment.settings.warehouse)
            for name, table in tables.items()
        }


def target_folder(deployment: Deployment, name: str) -> str:
    """The folder of a target, in the warehouse."""
    return f"{deployment.settings.warehouse}/{TARGETS_FOLDER}/{name}"


def list_targets(deployment: Deployment) -> list[str]:
    """The names of all targets."""
    filesystem, path = open_store(f"{deployment.settings.warehouse}/{TARGETS_FOLDER}")
    infos = filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    folders = (info.base_name for info in infos if info.type == pafs.FileType.Directory)
    return sorted(name for name in folders if _read_state(deployment, name) is not None)


def any_targets(deployment: Deployment) -> bool:
    """Whether there are any targets; checks only their folders."""
    filesystem, path = open_store(f"{deployment.settings.warehouse}/{TARGETS_FOLDER}")
    return bool(filesystem.get_file_info(pafs.FileSelector(path, allow_not_found=True)))


def load_target(deployment: Deployment, name: str) -> Target:
    """Load a target.

    Raises:
        TargetError: there is no such target, or another version of this package made it.
    """
    state_document = _read_state(deployment, name) if NAME_PATTERN.fullmatch(name) else None
    if state_document is None:
        existing = ", ".join(list_targets(deployment)) or "none"
        raise TargetError(f"there is no target {name}; there are: {existing}")
    try:
        target = Target.model_validate_json(state_document.text)
    except ValidationError as error:
        raise TargetError(
            f"target {name} was made by another version of backfill_assets: use that one to "
            "switch it over or to drop it. Nothing was done."
        ) from error
    return target.model_copy(update={"revision": state_document.revision})


def _read_state(deployment: Deployment, name: str) -> delta_rs.Document | None:
    return delta_rs.read_document(f"{target_folder(deployment, name)}/{_STATE}")


def save_target(deployment: Deployment, target: Target) -> Target:
    """Save a target's state if nobody changed it since its revision.

    Raises:
        TargetError: another command has changed it since.
    """
    url = f"{target_folder(deployment, target.name)}/{_STATE}"
    revision = delta_rs.write_document(url, target.model_dump_json(), target.revision)
    if revision is None:
        raise ChangedError(
            f"another command has changed target {target.name} meanwhile. Nothing was written "
            "to production. See what it is now (`backfill-assets targets`), and ask again."
        )
    return target.model_copy(update={"revision": revision})


def update_target(deployment: Deployment, name: str, update: Callable[[Target], Target]) -> Target:
    """Update a target's state; retries when other commands change it at the same time.

    Raises:
        TargetError: there is no such target, or others keep changing it.
    """
    for _ in delta_rs.race_attempts():
        with suppress(ChangedError):
            return save_target(deployment, update(load_target(deployment, name)))
    return save_target(deployment, update(load_target(deployment, name)))


def raise_if_busy(target: Target) -> None:
    """Raise if a target is being switched over, undone, or dropped.

    Raises:
        TargetError: names the unfinished command.
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


def delete_target(deployment: Deployment, name: str) -> None:
    """Delete the folder of a target."""
    filesystem, path = open_store(target_folder(deployment, name))
    # First: without its state it is no target any more.
    delete_folder(filesystem, f"{path}/{_STATE}")
    delete_folder(filesystem, path)


def interrupted_switches(deployment: Deployment) -> list[Target]:
    """The targets with an unfinished switch-over that is not being undone."""
    return [t for t in readable_targets(deployment) if t.switching and not t.undoing]


def readable_targets(deployment: Deployment) -> Iterator[Target]:
    """The targets, except those of other projects, and those by another version of this package."""
    for name in list_targets(deployment):
        with suppress(TargetError):
            target = load_target(deployment, name)
            if not deployment.tables.keys().isdisjoint(target.tables):
                yield target


def targets_older_than(deployment: Deployment, table: str, days: int) -> list[str]:
    """The targets with a clone of a table that are older than `days`, and all unreadable ones."""
    matches = []
    for name in list_targets(deployment):
        try:
            target = load_target(deployment, name)
        except TargetError:
            matches.append(name)
            continue
        if table in target.tables and target.made < time.time() - days * 86_400:
            matches.append(name)
    return matches


def new_target(
    deployment: Deployment,
    name: str,
    tables: Iterable[str],
    requested_days: Window,
    reason: str = "",
) -> Target:
    """The initial state of a target; nothing is written.

    Raises:
        TargetError: the name is invalid, or commits use it already.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise TargetError(
            f"{name!r} is no name for a target: it takes a to z, 0 to 9 and _, and begins with a "
            "letter; at most 31 characters"
        )
    tables = tuple(tables)
    ledgers = read_ledgers(deployment)
    commits = (record for ledger in ledgers.values() for record in ledger.records)
    if any((record.backfill_id or "").partition("-")[0] == name for record in commits):
        raise TargetError(
            f"{name} is the name of a backfill or of a target that is gone, which tables of "
            "production have in their commits: take another name, so that each can be undone alone"
        )
    newest = max(
        (day for table_name in tables for day in ledgers[table_name].published_days), default=None
    )
    return Target(
        name=name,
        tables=tables,
        requested_days=tuple(to_ranges(requested_days)),
        newest=newest is not None and newest < requested_days.end,
        pins={table_name: ledger.version for table_name, ledger in ledgers.items()},
        made=time.time(),
        reason=reason,
    )


def clone_tables(deployment: Deployment, target: Target) -> Target:
    """Clone the tables of a target at its pins; returns the target with the new generation.

    Raises:
        CloneError: a table cannot be cloned.
    """
    target = target.model_copy(update={"generation": uuid4().hex[:8]})
    for table in target.tables:
        version = target.pins[table]
        if version is not None:
            shallow_clone(deployment.table_url(table), target.table_url(deployment, table), version)
    return target


def drop_target(deployment: Deployment, name: str) -> int:
    """Remove a target and the data files that only it has; return the number of files.

    Production keeps what was switched over. If killed, run it again to finish.

    Raises:
        TargetError: there is no such target, or a switch-over or its undo is unfinished.
    """
    target = load_target(deployment, name)
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
    # From here on no other command changes the target.
    target = save_target(deployment, target.model_copy(update={"dropping": True}))
    removed = 0
    for table in target.tables:
        removed += _delete_own_files(deployment, target, table)
    delete_target(deployment, name)
    return removed


def _delete_own_files(deployment: Deployment, target: Target, table: str) -> int:
    """Remove the data files of a table that no commit of production names; return their number.

    If commits of production are missing, the files they named are unknown: VACUUM removes them.
    """
    production = deployment.table_url(table)
    log, versions = load_log(production), CommitLog(production).list_versions()
    last = log.version() if log else target.pins.get(table)
    if last is not None and not versions.issuperset(range(last + 1)):
        return 0
    filesystem, path = open_store(target_folder(deployment, target.name))
    generations = filesystem.get_file_info(pafs.FileSelector(path))
    own_files: set[str] = set()
    for info in generations:
        if info.type == pafs.FileType.Directory:
            url = f"{target_folder(deployment, target.name)}/{info.base_name}/{table}"
            own_files |= {*added_files(url, -1)}
    own_files -= {*added_files(production, -1)}
    # The clones in a copied warehouse name the files of the original warehouse.
    own_files = {location for location in own_files if location.startswith(f"{production}/")}
    for location in own_files:
        store, file = open_store(location)
        if store.get_file_info(file).is_file:
            store.delete_file(file)
    return len(own_files)
