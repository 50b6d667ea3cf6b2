"""What lies in the folders of the landing: names, sizes, times, digests; nothing is parsed.

One listing decides what a run is made of and what it reads, and tells afterwards whether a file
changed meanwhile.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import pyarrow.fs as pafs

from backfill_assets.spark.filesystems import open_store
from backfill_assets.tables.sources import Source

#: Stands for a name that is not UTF-8: neither Python nor Spark could open it.
UNDECODABLE_NAME = "(a file whose name is not UTF-8)"


@dataclass(frozen=True)
class FolderItem:
    """One thing in a folder.

    Attributes:
        name: its own name, or `UNDECODABLE_NAME`.
        path: for Arrow's file system.
        is_file: whether it is a file that can be opened: no folder, pipe, socket or device.
        size: bytes.
        mtime: when it was last changed, in nanoseconds since 1970.
        refused: why it must not be opened; empty if it may be.
    """

    name: str
    path: str
    is_file: bool = True
    size: int = 0
    mtime: int = 0
    refused: str = ""


def local_items(folder: str, *roots: str) -> Iterator[FolderItem]:
    """What lies in a local folder.

    Arrow's own listing follows links to wherever they lead, folders included.

    Args:
        folder: the folder.
        roots: the folders that no link may lead out of, without links themselves.

    Raises:
        OSError: it cannot be listed.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _is_text(entry.name):
                yield FolderItem(UNDECODABLE_NAME, "", refused="rename it")
                continue
            refused = link_problem(entry.path, *roots) if entry.is_symlink() else ""
            try:
                status = entry.stat()
            except FileNotFoundError:
                if refused:
                    yield FolderItem(entry.name, entry.path, refused=refused)
                continue  # it has gone meanwhile
            except OSError as error:
                yield FolderItem(entry.name, entry.path, refused=refused or error_text(error))
                continue
            if refused:
                yield FolderItem(entry.name, entry.path, refused=refused)
            else:
                regular = stat.S_ISREG(status.st_mode)
                yield FolderItem(
                    entry.name, entry.path, regular, status.st_size, status.st_mtime_ns
                )


def link_problem(link: str, *roots: str) -> str:
    """Why a link must not be followed; empty if it leads to something below one of the roots."""
    try:
        target = Path(link).resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return "a link that leads nowhere: remove it, or land the file itself"
    except (RuntimeError, OSError) as error:
        # Links that lead to each other are a RuntimeError before Python 3.13.
        if isinstance(error, RuntimeError) or error.errno == errno.ELOOP:
            return "a link that leads to itself: remove it"
        return error_text(error)
    if not any(map(target.is_relative_to, roots)):
        return "a link that leads out of the landing: land the file itself"
    return ""


def error_text(error: OSError) -> str:
    """An error of the file system in words, without the path."""
    return f"{type(error).__name__}: {error.strerror or error}"


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


CONTROL_FILE = "_control.json"
_READABLE_NAME = re.compile(r".*\.((jsonl|json|csv)(\.gz)?|parquet)", re.DOTALL)
_DATE = re.compile(r"(?<!\d)(\d{4})\D?(\d{2})\D?(\d{2})(?!\d)")
#: Names that writers give to what they have not finished.
_UNFINISHED = (".tmp", ".part")
#: What some writers name an empty object by that stands for a folder of an object store.
FOLDER_MARK = "_$folder$"
#: The folders within an arrival day's of a source whose files land by the hour.
HOUR_FOLDERS = tuple(f"hour={n:02}" for n in range(24))


def folder_name(day: date) -> str:
    """The name of an arrival day's folder."""
    return f"arrival_date={day}"


def folder_of(source_file: str) -> str:
    """The name of the arrival day's folder that a file lies in, by its name in the tables."""
    return source_file.partition("/")[0]


class LandingError(RuntimeError):
    """The landing folder as a whole is not what the settings say."""


@dataclass(frozen=True)
class ListedFile:
    """One file of an arrival day, as it was listed.

    Attributes:
        source_file: its name in the tables: relative, so that moving the landing changes no row.
        path: for Arrow's file system.
        size: bytes.
        mtime: when it was last changed, in nanoseconds since 1970; 0 where the store does not say.
        refused: why it must not be opened; empty if it may be. So is a link that leads out of the
            landing, and a folder that cannot be listed, which stands here without a name, or by
            that of its hour.
    """

    source_file: str
    path: str
    size: int
    mtime: int
    refused: str = ""

    @property
    def name(self) -> str:
        """Its name within the day's folder, after that of its hour; empty for the whole folder."""
        return self.source_file.partition("/")[2]


@dataclass(frozen=True)
class DayFolder:
    """What an arrival day's folder holds, hidden and unfinished files left out.

    Attributes:
        files: those of a known format, the control file, and what is refused, by
            `Entry.source_file`.
        unknown_files: names of others; they are not read, which is worth a warning.
        hours: names of the folders of hours, where the source lands by the hour.
    """

    files: Mapping[str, ListedFile]
    unknown_files: tuple[str, ...] = ()
    hours: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Listing:
    """Folders of arrival days; an arrival day without a folder is not there.

    Attributes:
        landing: the landing folder.
        folders: by arrival day.
        requested_days: the arrival days that were looked for; empty if all.
        source_name: of the source, whose folder in the landing holds them.
        strays: names of what lies beside the folders of arrival days; it is not read.
    """

    landing: str
    folders: Mapping[date, DayFolder]
    requested_days: frozenset[date] = frozenset()
    source_name: str = ""
    strays: tuple[str, ...] = ()

    def strays_of(self, day: date) -> list[str]:
        """The strays that may be meant for an arrival day: those with its date in their name.

        Of a day that has no folder, those without any date as well.
        """
        dates = {None} if day not in self.folders else set()
        return [name for name in self.strays if _date_in(name) in {day, *dates}]

    def files_on(self, day: date) -> Mapping[str, ListedFile]:
        """The files of an arrival day; none if it has no folder."""
        folder = self.folders.get(day)
        return folder.files if folder else {}

    def content_digests(self, entries: Iterable[ListedFile]) -> dict[ListedFile, str]:
        """Content digests (half a SHA-256, as hex); each file is read whole, once a process.

        A file that cannot be read has an empty digest, which equals none on record.
        """
        unique = set(entries)
        known = dict.fromkeys((entry for entry in unique if entry.refused), "")
        known |= {
            entry: _digests[key] for entry in unique if (key := self._cache_key(entry)) in _digests
        }
        missing = unique - known.keys()
        if missing:
            filesystem, _ = open_store(self.landing)
            with ThreadPoolExecutor(4) as pool:
                computed = pool.map(lambda entry: (entry, _digest(filesystem, entry.path)), missing)
                for entry, digest in computed:
                    known[entry] = digest
                    if digest:
                        _digests[self._cache_key(entry)] = digest
        return known

    def _cache_key(self, entry: ListedFile) -> tuple[str, str, ListedFile]:
        return self.landing, self.source_name, entry


#: Digests of this process, by landing, source and listed file.
_digests: dict[tuple[str, str, ListedFile], str] = {}


def _digest(filesystem: pafs.FileSystem, path: str) -> str:
    digest = hashlib.sha256()
    try:
        with filesystem.open_input_stream(path, compression=None) as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()[:32]


def list_landing(landing: str, source: Source, days: Iterable[date] | None = None) -> Listing:
    """List the folders of arrival days of a source; no file is opened.

    What cannot be listed of one day, or must not be followed, is refused by name: it is that day's
    problem, and no other's.

    Args:
        landing: the landing folder.
        source: whose folders they are.
        days: the arrival days; all of them, in one listing, if not given.

    Raises:
        LandingError: the source has no folder at all, or one that cannot be listed: a wrong
            setting, not an empty day.
    """
    filesystem, root = open_store(landing)
    name, hourly = source.name, source.hourly
    base = f"{root}/{name}"
    try:
        if filesystem.get_file_info(base).type != pafs.FileType.Directory:
            raise LandingError(
                f"there is no folder {landing}/{name}: set BACKFILL_ASSETS_LANDING to the folder "
                f"that holds {name}/arrival_date=YYYY-MM-DD/. Nothing was written."
            )
        local = isinstance(filesystem, pafs.LocalFileSystem)
        requested_days = None if days is None else frozenset(days)
        if local:
            listed, strays = _list_local(root, base, requested_days, hourly)
        else:
            listed, strays = _list_store(filesystem, base, requested_days, hourly)
    except PermissionError as error:
        raise LandingError(
            f"the folder {landing}/{name} cannot be listed ({error_text(error)}): let the user "
            "that this runs as list it. Nothing was written."
        ) from error
    folders = {day: _day_folder(day, items, hourly) for day, items in sorted(listed.items())}
    return Listing(landing, folders, requested_days or frozenset(), name, tuple(sorted(strays)))


#: So many folders of a store are listed at a time.
_LIST_THREADS = 16
#: What lies in each folder of an arrival day, or why that cannot be told. The folder of an hour has
#: a name that ends in a slash; what lies in it has a name that begins with that.
_Listed = dict[date, Iterable[FolderItem] | str]


def _list_local(
    root: str, base: str, days: Iterable[date] | None, hourly: bool
) -> tuple[_Listed, set[str]]:
    """The folders of a local landing, those of some days or all; and the strays."""
    names = [path.name for path in Path(base).iterdir()]
    if days is None:
        days = filter(None, map(_arrival_day, names))
    # The folder of the source is the deployment's own; what lies in it comes from others.
    real = str(Path(base).resolve()), str(Path(root).resolve())
    listed: _Listed = {}
    for day in days:
        path = f"{base}/{folder_name(day)}"
        try:
            refused = link_problem(path, *real) if Path(path).is_symlink() else ""
            items = [] if refused else [*local_items(path, *real)]
        except FileNotFoundError:
            continue
        except OSError as error:
            refused = error_text(error)
        listed[day] = refused or [
            inner for item in items for inner in _with_hour(item, real, hourly)
        ]
    return listed, set(filter(_is_stray, names))


def _with_hour(item: FolderItem, roots: tuple[str, ...], hourly: bool) -> Iterator[FolderItem]:
    """What lies in an arrival day's folder; of an hour's folder, what lies in that as well."""
    if not hourly or item.name not in HOUR_FOLDERS:
        yield item
        return
    folder, inside = replace(item, name=f"{item.name}/"), list[FolderItem]()
    try:
        inside = [] if item.refused else [*local_items(item.path, *roots)]
    except FileNotFoundError:
        return  # it has gone meanwhile
    except OSError as error:
        folder = replace(folder, refused=error_text(error))
    yield folder
    yield from (replace(inner, name=folder.name + inner.name) for inner in inside)


def _list_store(
    filesystem: pafs.FileSystem, base: str, days: Collection[date] | None, hourly: bool
) -> tuple[_Listed, set[str]]:
    """The same of a store that has no links, and the strays; what it refuses, it refuses for all.

    A request lists a thousand names: strays are looked for where a day has no folder.
    """
    if days is not None:
        # Each day is a request, and most of its time is the way there and back.
        with ThreadPoolExecutor(_LIST_THREADS) as pool:
            futures = {
                day: pool.submit(_list_store_folder, filesystem, base, day, hourly) for day in days
            }
        results = {day: listed.result() for day, listed in futures.items()}
        existing: _Listed = {day: items for day, items in results.items() if items is not None}
        if existing.keys() == {*days}:
            return existing, set()
        beside = filesystem.get_file_info(pafs.FileSelector(base))
        return existing, {info.base_name for info in beside if _is_stray_object(info)}
    strays = set()
    inside: dict[date, list[pafs.FileInfo]] = {}
    for info in filesystem.get_file_info(pafs.FileSelector(base, recursive=True)):
        name, _, within = info.path.removeprefix(f"{base}/").partition("/")
        arrival = _arrival_day(name)
        if not within and _is_stray_object(info):
            strays.add(name)
        elif arrival is not None:
            inside.setdefault(arrival, []).extend([info] if within else [])
    listed: _Listed = {
        day: _folder_items(infos, f"{base}/{folder_name(day)}", hourly)
        for day, infos in inside.items()
    }
    return listed, strays


def _list_store_folder(
    filesystem: pafs.FileSystem, base: str, day: date, hourly: bool
) -> Iterable[FolderItem] | None:
    """What lies in an arrival day's folder; none if there is no folder."""
    folder = f"{base}/{folder_name(day)}"
    infos = filesystem.get_file_info(
        pafs.FileSelector(folder, allow_not_found=True, recursive=hourly)
    )
    if not infos and filesystem.get_file_info(folder).type != pafs.FileType.Directory:
        return None
    return _folder_items(infos, folder, hourly)


def _folder_items(
    infos: Iterable[pafs.FileInfo], folder: str, hourly: bool
) -> Iterable[FolderItem]:
    """What lies in an arrival day's folder, by a listing of all below it."""
    items: dict[str, FolderItem] = {}
    for info in infos:
        within = info.path.removeprefix(f"{folder}/").split("/")
        of_hour = hourly and within[0] in HOUR_FOLDERS
        name, file = "/".join(within[: 1 + of_hour]), info.type == pafs.FileType.File
        if of_hour:
            refused = "not a folder" if file and len(within) == 1 else ""
            items.setdefault(
                f"{within[0]}/", FolderItem(f"{within[0]}/", "", False, refused=refused)
            )
        if len(within) > 1 + of_hour:
            items.setdefault(name, FolderItem(name, "", False))
        elif len(within) == 1 + of_hour:
            items[name] = FolderItem(name, info.path, file, info.size or 0, info.mtime_ns or 0)
    return items.values()


def _arrival_day(folder: str) -> date | None:
    try:
        day = date.fromisoformat(folder.removeprefix("arrival_date="))
    except ValueError:
        return None
    # Python reads more as a day than a run would look for.
    return day if folder == folder_name(day) else None


def _is_stray(name: str) -> bool:
    return _arrival_day(name) is None and not _is_hidden(name)


def _is_stray_object(info: pafs.FileInfo) -> bool:
    """Whether what lies in the folder of a source is one; so is an object named like a folder."""
    file = info.type == pafs.FileType.File
    return _is_stray(info.base_name) or (file and not _is_hidden(info.base_name))


def _date_in(name: str) -> date | None:
    """The date that a name holds, however it is written; none if there is no such date."""
    if match := _DATE.search(name):
        with suppress(ValueError):
            return date(*map(int, match.groups()))
    return None


def _day_folder(day: date, items: Iterable[FolderItem] | str, hourly: bool) -> DayFolder:
    within = f"{folder_name(day)}/"
    if isinstance(items, str):
        return DayFolder({within: ListedFile(within, "", 0, 0, items)})
    files, unknown, hours = {}, [], set()
    for item in sorted(items, key=lambda item: item.name):
        hour, _, name = item.name.rpartition("/")
        source_file = within + item.name
        if hour and not name:
            hours.add(hour)
            read = bool(item.refused)
        else:
            read = _is_read(item, name, hourly, hour)
        if read:
            refused = item.refused or ("" if item.is_file else "not a file")
            files[source_file] = ListedFile(source_file, item.path, item.size, item.mtime, refused)
        elif name == CONTROL_FILE or (name and not _is_hidden(name)):
            unknown.append(source_file)
    return DayFolder(files, tuple(unknown), frozenset(hours))


def _is_read(item: FolderItem, name: str, hourly: bool, hour: str) -> bool:
    """Whether a file by its name is one to read, or one that must be refused by name."""
    if name == UNDECODABLE_NAME:
        return True
    if name == CONTROL_FILE:
        return not hour
    beside = hourly and not hour
    return (
        not beside
        and not _is_hidden(name)
        and item.is_file
        and bool(_READABLE_NAME.fullmatch(name))
    )


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) or name.endswith((*_UNFINISHED, FOLDER_MARK))
