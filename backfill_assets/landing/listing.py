"""What lies in the landing's folders: names, sizes, times of change, content digests; no parsing.

One listing decides what a run is made of and what it reads, and tells afterwards whether a file
changed meanwhile.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date

import pyarrow.fs as pafs

from backfill_assets.engine.stores import open_store

CONTROL_FILE = "_control.json"
_KNOWN = re.compile(r".*\.((jsonl|json|csv)(\.gz)?|parquet)", re.DOTALL)
#: Names that writers give to what they have not finished.
_UNFINISHED = (".tmp", ".part")
#: Stands for a name that is not UTF-8: neither Python nor Spark could open it.
NAMELESS = "(a file whose name is not UTF-8)"


def folder_name(day: date) -> str:
    """The name of an arrival day's folder."""
    return f"arrival_date={day}"


def folder_of(source_file: str) -> str:
    """The name of the folder that a file lies in, by its name in the tables."""
    return source_file.partition("/")[0]


class LandingError(RuntimeError):
    """The landing folder as a whole is not what the settings say."""


@dataclass(frozen=True)
class Entry:
    """One file of an arrival day, as it was listed.

    Attributes:
        source_file: its name in the tables: relative, so that moving the landing changes no row.
        path: for Arrow's file system.
        size: bytes.
        mtime: when it was last changed, in nanoseconds since 1970; 0 where the store does not say.
    """

    source_file: str
    path: str
    size: int
    mtime: int

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.source_file.partition("/")[2]


@dataclass(frozen=True)
class Folder:
    """What an arrival day's folder holds, hidden and unfinished files left out.

    Attributes:
        files: those of a known format, and the control file, by `Entry.source_file`.
        unknown: names of others; they are not read, which is worth a warning.
        nameless: whether a file's name is not UTF-8.
    """

    files: Mapping[str, Entry]
    unknown: tuple[str, ...] = ()
    nameless: bool = False


@dataclass(frozen=True)
class Listing:
    """Folders of arrival days; an arrival day without a folder is not there.

    Attributes:
        landing: the landing folder.
        folders: by arrival day.
        asked: the arrival days that were looked for; empty if all.
        name: of the source, whose folder in the landing holds them.
    """

    landing: str
    folders: Mapping[date, Folder]
    asked: frozenset[date] = frozenset()
    name: str = ""

    def files(self, day: date) -> Mapping[str, Entry]:
        """The files of an arrival day; none if it has no folder."""
        folder = self.folders.get(day)
        return folder.files if folder else {}

    def digests(self, entries: Iterable[Entry]) -> dict[Entry, str]:
        """Content digests (half a SHA-256, as hex); each file is read whole, once a process.

        A file that cannot be read has an empty digest, which equals none on record.
        """
        wanted = set(entries)
        known = {entry: _digests[key] for entry in wanted if (key := self._key(entry)) in _digests}
        missing = wanted - known.keys()
        if missing:
            filesystem, _ = open_store(self.landing)
            with ThreadPoolExecutor(4) as pool:
                found = pool.map(lambda entry: (entry, _digest(filesystem, entry.path)), missing)
                for entry, digest in found:
                    known[entry] = digest
                    if digest:
                        _digests[self._key(entry)] = digest
        return known

    def _key(self, entry: Entry) -> tuple[str, str, Entry]:
        return self.landing, self.name, entry


#: Digests of this process, by landing, source and listed file.
_digests: dict[tuple[str, str, Entry], str] = {}


def _digest(filesystem: pafs.FileSystem, path: str) -> str:
    said = hashlib.sha256()
    try:
        with filesystem.open_input_stream(path, compression=None) as stream:
            while chunk := stream.read(1 << 20):
                said.update(chunk)
    except OSError:
        return ""
    return said.hexdigest()[:32]


def list_landing(landing: str, name: str, days: Iterable[date] | None = None) -> Listing:
    """List the folders of arrival days of a source; no file is opened.

    Args:
        landing: the landing folder.
        name: of the source.
        days: the arrival days; all of them, in one listing, if not given.

    Raises:
        LandingError: the source has no folder at all: a wrong setting, not an empty day.
    """
    filesystem, base = _folder_of_source(landing, name)
    if days is None:
        whole = filesystem.get_file_info(pafs.FileSelector(base, recursive=True))
        try:
            return Listing(landing, _by_day(base, whole), name=name)
        except UnicodeDecodeError:  # a name whose folder cannot be told: one listing for each
            top = filesystem.get_file_info(pafs.FileSelector(base))
            days = sorted(filter(None, map(_arrival_day, map(_name, top))))
    listed = {day: _listed(filesystem, base, day) for day in days}
    folders = {day: _folder(day, infos) for day, infos in listed.items() if infos is not None}
    return Listing(landing, folders, frozenset(listed), name)


def _folder_of_source(landing: str, name: str) -> tuple[pafs.FileSystem, str]:
    filesystem, root = open_store(landing)
    base = f"{root}/{name}"
    if filesystem.get_file_info(base).type != pafs.FileType.Directory:
        raise LandingError(
            f"there is no folder {landing}/{name}: set BACKFILL_ASSETS_LANDING to the folder that "
            f"holds {name}/arrival_date=YYYY-MM-DD/. Nothing was written."
        )
    return filesystem, base


def _by_day(base: str, whole: Iterable[pafs.FileInfo]) -> dict[date, Folder]:
    """A listing of all folders, by arrival day."""
    folders: dict[date, list[pafs.FileInfo]] = {}
    for info in whole:
        day, *within = info.path.removeprefix(f"{base}/").split("/")
        arrival = _arrival_day(day)
        if arrival is None or len(within) > 1:
            continue
        inside = folders.setdefault(arrival, [])
        if within:
            inside.append(info)
    return {day: _folder(day, infos) for day, infos in folders.items()}


def _listed(filesystem: pafs.FileSystem, base: str, day: date) -> list[pafs.FileInfo] | None:
    """What lies in an arrival day's folder; none if there is no folder."""
    folder = f"{base}/{folder_name(day)}"
    listed: list[pafs.FileInfo] = filesystem.get_file_info(
        pafs.FileSelector(folder, allow_not_found=True)
    )
    there = listed or filesystem.get_file_info(folder).type == pafs.FileType.Directory
    return listed if there else None


def _arrival_day(folder: str) -> date | None:
    try:
        day = date.fromisoformat(folder.removeprefix("arrival_date="))
    except ValueError:
        return None
    # Python reads more as a day than a run would look for.
    return day if folder == folder_name(day) else None


def _folder(day: date, infos: Iterable[pafs.FileInfo]) -> Folder:
    files, unknown, nameless = {}, [], False
    for name, info in sorted(((_name(info), info) for info in infos), key=lambda named: named[0]):
        source_file = f"{folder_name(day)}/{name}"
        hidden = name.startswith(("_", ".")) or name.endswith(_UNFINISHED)
        if name == NAMELESS:
            nameless = True
        elif name == CONTROL_FILE or (
            not hidden and info.type == pafs.FileType.File and _KNOWN.fullmatch(name)
        ):
            files[source_file] = Entry(source_file, info.path, info.size or 0, info.mtime_ns or 0)
        elif not hidden:
            unknown.append(source_file)
    return Folder(files, tuple(unknown), nameless)


def _name(info: pafs.FileInfo) -> str:
    try:
        return info.base_name
    except UnicodeDecodeError:
        return NAMELESS
