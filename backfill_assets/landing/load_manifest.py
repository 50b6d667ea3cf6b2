"""Load manifests: the files a log day was loaded from, and what a new listing changes.

The raw log is the record of what arrived: loaded rows are never removed because a file is gone,
smaller, or replaced. A file counts as changed by its content digest.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, NamedTuple, Self

from backfill_assets.calendar.partitions import DAY
from backfill_assets.landing.listing import CONTROL_FILE, ListedFile, Listing, folder_of

Digests = Callable[[Iterable[ListedFile]], Mapping[ListedFile, str]]


class LoadedFile(NamedTuple):
    """A file as loaded: bytes, time of change in ns since 1970 (0 if unknown), content digest."""

    size: int
    mtime: int
    digest: str


@dataclass(frozen=True)
class LoadManifest:
    """The files of a log day: those of its own folder, and of the folder before it for early lines.

    Attributes:
        files: the files whose rows the day has, by their name in the tables; files that are no
            longer in the landing are included.
        present_days: the arrival days of the two folders that have existed.
        closed: whether no folder is expected for the day, and there is none: the source delivers
            none on it, or later ones have come, or a person said so.
        day_before_closed: the same of the arrival day before.
        awaiting_approval: by name of a replaced file that a person must accept, its new digest.
        known_before_undo: after an undo of the day, its manifest before the undo. Its files count
            as known, so that the day is reloaded only when the listing changes again.
    """

    files: Mapping[str, LoadedFile] = field(default_factory=dict)
    present_days: frozenset[date] = frozenset()
    closed: bool = False
    day_before_closed: bool = False
    awaiting_approval: Mapping[str, str] = field(default_factory=dict)
    known_before_undo: "LoadManifest | None" = None

    @classmethod
    def from_record(cls, recorded: Any) -> "LoadManifest | None":
        """The manifest in a record; None if there is none."""
        if not isinstance(recorded, Mapping):
            return None
        return cls(
            {name: LoadedFile(*file) for name, file in recorded.get("files", {}).items()},
            frozenset(map(date.fromisoformat, recorded.get("there", ()))),
            recorded.get("closed", False),
            recorded.get("day_before_closed", False),
            recorded.get("held", {}),
            cls.from_record(recorded.get("known")),
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """The manifest for a record; empty fields are left out."""
        fields: dict[str, Any] = {
            "files": {name: list(file) for name, file in self.files.items()},
            "there": sorted(map(str, self.present_days)),
            "closed": self.closed,
            "day_before_closed": self.day_before_closed,
            "held": dict(self.awaiting_approval),
            "known": self.known_before_undo and self.known_before_undo.as_json,
        }
        return {name: value for name, value in fields.items() if value}

    @property
    def lacks_reverted_files(self) -> bool:
        """Whether the day lacks rows of files that a person reverted, and that still lie there."""
        before_undo = self.known_before_undo
        return before_undo is not None and before_undo.files != self.files

    def lacks_folder(self, day: date) -> bool:
        """Whether the folder of the log day is expected and has not landed."""
        return day not in self.present_days and not self.closed

    @property
    def closed_folders(self) -> int:
        """The number of folders that are missing and not expected, of the day's two."""
        return self.closed + self.day_before_closed

    def content_digest(self) -> str:
        """A digest of the contents of the day's files, without names, sizes or times.

        Files that await approval are included: the day's windows may close when they change.
        """
        parts = [
            *sorted(f"{folder_of(name)} {file.digest}" for name, file in self.files.items()),
            *sorted(map(str, self.present_days)),
            "closed" * self.closed,
            *["closed before"] * self.day_before_closed,
            *sorted(f"held {name} {digest}" for name, digest in self.awaiting_approval.items()),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def is_complete(self, day: date, start: date) -> bool:
        """Whether nothing more is due for a log day, nor for the day before: no file or folder.

        No folder is due before `start`, the first day of the calendar.
        """
        return (
            (day in self.present_days or self.closed)
            and (day == start or day - DAY in self.present_days or self.day_before_closed)
            and not self.awaiting_approval
        )


@dataclass(frozen=True)
class LoadTarget:
    """What a log day must be loaded from now.

    Attributes:
        manifest: the manifest after the load, if no replaced file would remove orders.
        files_to_read: the files to read, by their name in the tables.
        replaced: the files to read whose content has changed since they were loaded, or was not
            known then; they may remove orders only if a person accepts it.
        dropped: loaded files whose rows are removed: their content now has another name, or they
            are gone and a person accepted it.
        retained_files: loaded files that are gone or held back; their rows stay.
        digest_before_undo: the manifest digest of the day without its undo; empty if it was not
            undone.
    """

    manifest: LoadManifest
    files_to_read: Mapping[str, ListedFile]
    replaced: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    retained_files: frozenset[str] = frozenset()
    digest_before_undo: str = ""

    def without_files(self, names: Collection[str], previous: LoadManifest | None) -> Self:
        """The target without some of the files to read; their loaded rows stay unchanged.

        These files cannot be read now, or are still being written.
        """
        if not self.files_to_read.keys() & set(names):
            return self
        loaded = previous.files if previous else {}
        unread = {name: self.manifest.files[name] for name in names if name in self.files_to_read}
        restored = _renamed_files(loaded, self.dropped, unread)
        retained = {name: loaded[name] for name in {*names, *restored} if name in loaded}
        files = {n: f for n, f in self.manifest.files.items() if n not in names} | retained
        return replace(
            self,
            manifest=replace(self.manifest, files=files),
            files_to_read={
                name: entry for name, entry in self.files_to_read.items() if name not in names
            },
            replaced=self.replaced - set(names),
            dropped=self.dropped - restored,
            retained_files=self.retained_files | retained.keys(),
        )

    def hold_back_files(self, names: Collection[str], previous: LoadManifest | None) -> Self:
        """The target with some replaced files held back until a person accepts them."""
        files = self.manifest.files
        on_hold = {name: files[name].digest for name in names if name in files}
        remaining = self.without_files(names, previous)
        manifest = replace(
            remaining.manifest,
            awaiting_approval={**remaining.manifest.awaiting_approval, **on_hold},
        )
        return replace(remaining, manifest=manifest)


def load_target(
    day: date,
    recorded: LoadManifest | None,
    listing: Listing,
    *,
    arrived_days: Collection[date] = (),
    accepted: Collection[str] = (),
    closed_days: Container[date] = (),
) -> LoadTarget:
    """Decide what a log day must be loaded from, by its last manifest and a listing.

    Args:
        day: the log day.
        recorded: the manifest of the last load; None if there was none, or it was not recorded.
        listing: a listing of the day's folder and the one before it.
        arrived_days: arrival days whose folders have existed, by the manifests of other days.
        accepted: files that may remove the orders they brought, also by being gone.
        closed_days: arrival days for which no folder is expected.
    """
    previous = recorded or LoadManifest()
    result = _build_target(day, previous, listing, arrived_days, accepted, closed_days)
    if previous.known_before_undo is None:
        return result
    before_undo = _build_target(
        day, previous.known_before_undo, listing, arrived_days, accepted, closed_days
    )
    return replace(result, digest_before_undo=before_undo.manifest.content_digest())


def _build_target(
    day: date,
    previous: LoadManifest,
    listing: Listing,
    arrived_days: Collection[date],
    accepted: Collection[str],
    closed_days: Container[date],
) -> LoadTarget:
    """The target without `digest_before_undo`, by the files of the day and of the day before.

    After an undo, `load_target` calls it again with the manifest from before the undo.
    """
    entries = {**listing.files_on(day - DAY), **listing.files_on(day)}
    current = _with_digests(entries, previous.files, listing.content_digests)
    on_hold = {
        name: digest
        for name, digest in previous.awaiting_approval.items()
        if name in current and current[name].digest == digest and name not in accepted
    }
    deleted = previous.files.keys() - current.keys()
    renamed = _renamed_files(previous.files, deleted, current)
    dropped = renamed | (deleted & set(accepted))
    retained = {
        name: previous.files[name] for name in deleted - dropped | (on_hold.keys() & previous.files)
    }
    files_to_read = {name: entry for name, entry in entries.items() if name not in on_hold}
    replaced = {
        name
        for name in files_to_read
        if name not in accepted and not _is_control(name)
        if name in previous.files and previous.files[name].digest != current[name].digest
    }
    present_days = previous.present_days | {
        d for d in (day - DAY, day) if d in listing.folders or d in arrived_days
    }
    manifest = LoadManifest(
        {**{name: current[name] for name in files_to_read}, **retained},
        present_days,
        day not in present_days and day in closed_days,
        day - DAY not in present_days and day - DAY in closed_days,
        on_hold,
    )
    retained_files = frozenset(name for name in retained if not _is_control(name))
    return LoadTarget(
        manifest, files_to_read, frozenset(replaced), frozenset(dropped), retained_files
    )


def after_undo(recorded: LoadManifest | None, reverted: LoadManifest) -> LoadManifest:
    """The manifest of a log day after an undo of the load that wrote `reverted`.

    Its rows are those of the previous files, in `recorded`. The files loaded since count as known:
    they are not loaded again automatically, and a replaced file needs approval again when it is
    loaded.
    """
    previous, before_undo = recorded or LoadManifest(), reverted.known_before_undo or reverted
    return replace(
        previous,
        present_days=previous.present_days | reverted.present_days,
        closed=reverted.closed,
        day_before_closed=reverted.day_before_closed,
        known_before_undo=before_undo,
    )


def _is_control(source_file: str) -> bool:
    return source_file.endswith(f"/{CONTROL_FILE}")


def _with_digests(
    entries: Mapping[str, ListedFile], previous: Mapping[str, LoadedFile], digests: Digests
) -> dict[str, LoadedFile]:
    """The listed files with digests; only files with a changed size or time are read."""

    def is_unchanged(name: str, entry: ListedFile) -> bool:
        loaded = previous.get(name)
        return loaded is not None and entry.mtime != 0 and loaded[:2] == (entry.size, entry.mtime)

    new_digests = digests(entry for name, entry in entries.items() if not is_unchanged(name, entry))
    return {
        name: previous[name]
        if is_unchanged(name, entry)
        else LoadedFile(entry.size, entry.mtime, new_digests[entry])
        for name, entry in entries.items()
    }


def _renamed_files(
    previous: Mapping[str, LoadedFile], deleted: Iterable[str], current: Mapping[str, LoadedFile]
) -> set[str]:
    """The deleted files whose content has come under another name.

    At most as many as there are new names with that content in the same folder.
    """
    unmatched: dict[tuple[str, str], int] = defaultdict(int)
    for name, file in current.items():
        if name not in previous:
            unmatched[folder_of(name), file.digest] += 1
    renamed = set()
    for name in sorted(deleted):
        key = folder_of(name), previous[name].digest
        if unmatched[key] > 0:
            unmatched[key] -= 1
            renamed.add(name)
    return renamed


#: What is said of a day that was never loaded, and has nothing to be loaded from.
NO_FOLDER = "its folder has not landed"


def describe_change(day: date, previous: LoadManifest | None, target: LoadTarget) -> str:
    """What has changed since a day was loaded, as text; empty if nothing.

    Of a day that was never loaded, whether its folder is missing.
    """
    current = target.manifest
    if previous is None:
        return NO_FOLDER if current.lacks_folder(day) else ""
    if not needs_reload(previous, target):
        return ""
    accepted = {
        name
        for name, digest in previous.awaiting_approval.items()
        if name in current.files and current.files[name].digest == digest
    }
    renamed = _renamed_files(previous.files, target.dropped, current.files)
    changes = {
        "new files": current.files.keys() - previous.files.keys(),
        "other content": {n for n in current.files.keys() & previous.files if n in target.replaced},
        "accepted files": accepted | (target.dropped - renamed),
        "its folder has come": current.present_days - previous.present_days,
        "nothing more is expected": current.closed_folders > previous.closed_folders,
        "a folder is expected again": current.closed_folders < previous.closed_folders
        and current.present_days <= previous.present_days,
    }
    return ", ".join(text for text, change in changes.items() if change)


def has_news(previous: LoadManifest | None, target: LoadTarget) -> bool:
    """Whether a file or folder of a day has changed since it was loaded.

    Otherwise at most one thing differs: whether a missing folder is expected.
    """
    if previous is None:
        return True
    expected = replace(
        target.manifest, closed=previous.closed, day_before_closed=previous.day_before_closed
    )
    return needs_reload(previous, replace(target, manifest=expected))


def needs_reload(previous: LoadManifest | None, target: LoadTarget) -> bool:
    """Whether a day was loaded from other contents than those to load now."""
    if previous is None:
        return True
    if previous.known_before_undo:
        return target.digest_before_undo != previous.known_before_undo.content_digest()
    return target.manifest.content_digest() != previous.content_digest()
