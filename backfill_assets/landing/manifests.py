"""Which files the log days were loaded from, and what a new listing changes of that: pure.

The raw log is the record of what arrived. What was loaded once is never loaded away because its
file is gone, smaller or other; what counts of a file is its content, told by a digest.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, NamedTuple

from backfill_assets.calendar.partitions import DAY
from backfill_assets.landing.listing import CONTROL_FILE, Entry, Listing, folder_of

Digests = Callable[[Iterable[Entry]], Mapping[Entry, str]]


class Loaded(NamedTuple):
    """A file as it was loaded: bytes, time of change (0 if not known), content digest."""

    size: int
    mtime: int
    digest: str


@dataclass(frozen=True)
class Manifest:
    """What a log day is made of: its own folder, and early lines of the folder before it.

    Attributes:
        files: the files whose rows the day holds, by their name in the tables, also those that are
            no longer in the landing.
        there: which of the two folders have been there.
        closed: whether somebody decided that nothing more comes although there is no folder.
        held: replaced files that wait for a person, by name: the digest of what lies there now.
        known: if an undo put the day back, what it was made of before that: it counts as known, so
            nothing is due until something else is there than then.
    """

    files: Mapping[str, Loaded] = field(default_factory=dict)
    there: frozenset[date] = frozenset()
    closed: bool = False
    held: Mapping[str, str] = field(default_factory=dict)
    known: Manifest | None = None

    @classmethod
    def of(cls, recorded: Any) -> Manifest | None:
        """The manifest in a record; none if the record is of a time before there were any."""
        if not isinstance(recorded, Mapping):
            return None
        return cls(
            {name: Loaded(*file) for name, file in recorded.get("files", {}).items()},
            frozenset(map(date.fromisoformat, recorded.get("there", ()))),
            recorded.get("closed", False),
            recorded.get("held", {}),
            cls.of(recorded.get("known")),
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """The manifest for a record; what is empty is left out."""
        found: dict[str, Any] = {
            "files": {name: list(file) for name, file in self.files.items()},
            "there": sorted(map(str, self.there)),
            "closed": self.closed,
            "held": dict(self.held),
            "known": self.known and self.known.as_json,
        }
        return {name: value for name, value in found.items() if value}

    def fingerprint(self) -> str:
        """A digest of what the day is made of: contents, not names, sizes or times.

        And what it waits for: when that changes, its windows may close.
        """
        parts = [
            *sorted(f"{folder_of(name)} {file.digest}" for name, file in self.files.items()),
            *sorted(map(str, self.there)),
            "closed" * self.closed,
            *sorted(f"held {name} {digest}" for name, digest in self.held.items()),
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def settled(self, day: date, start: date) -> bool:
        """Whether nothing more is due for a log day: its folders have come, and nothing waits.

        Args:
            day: the log day.
            start: the first day of all; nothing is due before it.
        """
        own = day in self.there or self.closed
        return own and (day == start or day - DAY in self.there) and not self.held


@dataclass(frozen=True)
class Target:
    """What a log day is to be made of now.

    Attributes:
        manifest: what the day will be made of, if no replaced file takes orders away.
        read: the files to read, by their name in the tables.
        replaced: those of them that had other content when they were loaded, or whose content then
            is not known; they may not take orders away unless a person accepts it.
        dropped: files that were loaded and whose rows go: their content lies under another name
            now, or they are gone and a person accepted it.
        kept: files that were loaded and are gone, or held back: their rows stay.
        known: the fingerprint of the day without the undo that put it back; empty if none did.
    """

    manifest: Manifest
    read: Mapping[str, Entry]
    replaced: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    known: str = ""

    def without(self, names: Collection[str], before: Manifest | None) -> Target:
        """The target without some of the files to read: those that were loaded stay as they were.

        Args:
            names: the files that cannot be read now, or are not at rest.
            before: what the day was made of.
        """
        if not self.read.keys() & set(names):
            return self
        loaded = before.files if before else {}
        away = {name: self.manifest.files[name] for name in names if name in self.read}
        back = _renamed(loaded, self.dropped, away)
        stays = {name: loaded[name] for name in {*names, *back} if name in loaded}
        files = {n: f for n, f in self.manifest.files.items() if n not in names} | stays
        return replace(
            self,
            manifest=replace(self.manifest, files=files),
            read={name: entry for name, entry in self.read.items() if name not in names},
            replaced=self.replaced - set(names),
            dropped=self.dropped - back,
            kept=self.kept | stays.keys(),
        )

    def holding(self, names: Collection[str], before: Manifest | None) -> Target:
        """The target with some replaced files held back until a person accepts them."""
        found = self.manifest.files
        held = {name: found[name].digest for name in names if name in found}
        kept = self.without(names, before)
        manifest = replace(kept.manifest, held={**kept.manifest.held, **held})
        return replace(kept, manifest=manifest)


def target(
    day: date,
    before: Manifest | None,
    listing: Listing,
    *,
    seen: Collection[date] = (),
    accepted: Collection[str] = (),
    close: bool = False,
) -> Target:
    """What a log day is to be made of, by what it was made of and what lies in its folders.

    Args:
        day: the log day.
        before: what it was made of; none if it never was, or nobody recorded it.
        listing: of the day's folder and the one before it.
        seen: arrival days whose folders have been there, by what other days were made of.
        accepted: files that may take away, by their disappearance too, orders that came from them.
        close: whether nothing more is expected of a day without a folder.
    """
    then = before or Manifest()
    wanted = _target(day, then, listing, seen, accepted, close)
    if then.known is None:
        return wanted
    known = _target(day, then.known, listing, seen, accepted, close)
    return replace(wanted, known=known.manifest.fingerprint())


def _target(
    day: date,
    then: Manifest,
    listing: Listing,
    seen: Collection[date],
    accepted: Collection[str],
    close: bool,
) -> Target:
    entries = {**listing.files(day - DAY), **listing.files(day)}
    now = _loaded(entries, then.files, listing.digests)
    held = {
        name: digest
        for name, digest in then.held.items()
        if name in now and now[name].digest == digest and name not in accepted
    }
    gone = then.files.keys() - now.keys()
    renamed = _renamed(then.files, gone, now)
    dropped = renamed | (gone & set(accepted))
    stays = {name: then.files[name] for name in gone - dropped | (held.keys() & then.files)}
    read = {name: entry for name, entry in entries.items() if name not in held}
    other = {
        name
        for name in read
        if name not in accepted and not _is_control(name)
        if name in then.files and then.files[name].digest != now[name].digest
    }
    there = then.there | {d for d in (day - DAY, day) if d in listing.folders or d in seen}
    manifest = Manifest(
        {**{name: now[name] for name in read}, **stays},
        there,
        day not in there and (then.closed or close),
        held,
    )
    kept = frozenset(name for name in stays if not _is_control(name))
    return Target(manifest, read, frozenset(other), frozenset(dropped), kept)


def after_undo(before: Manifest | None, undone: Manifest) -> Manifest:
    """What a log day is made of once an undo has put it back.

    Its rows are those of the files before. What it was loaded from since counts as known: it is not
    loaded again by itself, and a replaced file is asked about once more when somebody loads it.

    Args:
        before: what it was made of before what is undone; none if it was not there.
        undone: what it was made of until now.
    """
    then, known = before or Manifest(), undone.known or undone
    return replace(then, there=then.there | undone.there, closed=undone.closed, known=known)


def _is_control(source_file: str) -> bool:
    return source_file.endswith(f"/{CONTROL_FILE}")


def _loaded(
    entries: Mapping[str, Entry], then: Mapping[str, Loaded], digests: Digests
) -> dict[str, Loaded]:
    """The listed files with their digests; only those that look changed are read for it."""

    def same(name: str, entry: Entry) -> bool:
        known = then.get(name)
        return known is not None and entry.mtime != 0 and known[:2] == (entry.size, entry.mtime)

    found = digests(entry for name, entry in entries.items() if not same(name, entry))
    return {
        name: then[name] if same(name, entry) else Loaded(entry.size, entry.mtime, found[entry])
        for name, entry in entries.items()
    }


def _renamed(
    then: Mapping[str, Loaded], gone: Iterable[str], now: Mapping[str, Loaded]
) -> set[str]:
    """Those of the files that are gone whose content has come under another name.

    As many as there are new names with that content in the same folder.
    """
    new: dict[tuple[str, str], int] = defaultdict(int)
    for name, file in now.items():
        if name not in then:
            new[folder_of(name), file.digest] += 1
    found = set()
    for name in sorted(gone):
        key = folder_of(name), then[name].digest
        if new[key] > 0:
            new[key] -= 1
            found.add(name)
    return found


def news(before: Manifest | None, wanted: Target) -> str:
    """What has changed since a day was loaded, in words; empty if nothing, or if it never was."""
    if before is None or not due(before, wanted):
        return ""
    now = wanted.manifest
    accepted = {name for name, digest in before.held.items() if _holds(now, name, digest)}
    renamed = _renamed(before.files, wanted.dropped, now.files)
    changes = {
        "new files": now.files.keys() - before.files.keys(),
        "other content": {n for n in now.files.keys() & before.files if n in wanted.replaced},
        "accepted files": accepted | (wanted.dropped - renamed),
        "its folder has come": now.there - before.there,
        "nothing more is expected": now.closed and not before.closed,
    }
    return ", ".join(text for text, found in changes.items() if found)


def _holds(manifest: Manifest, name: str, digest: str) -> bool:
    return name in manifest.files and manifest.files[name].digest == digest


def due(before: Manifest | None, wanted: Target) -> bool:
    """Whether a day is made of something else than is to be loaded now."""
    if before is None:
        return True
    if before.known:
        return wanted.known != before.known.fingerprint()
    return wanted.manifest.fingerprint() != before.fingerprint()
