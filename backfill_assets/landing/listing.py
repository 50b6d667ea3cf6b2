"""Listing of the landing folders: names, sizes, times and digests of files; nothing is parsed.

A run decides and reads by one listing, and later compares with it whether a file has changed.
"""

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

#: Shown for a name that is not UTF-8; neither Python nor Spark can open such a file.
UNDECODABLE_NAME = "(a file whose name is not UTF-8)"


@dataclass(frozen=True)
class FolderItem:
    """One item of a folder.

    Attributes:
        name: its own name, or `UNDECODABLE_NAME`.
        path: path for Arrow's file system.
        is_file: whether it is a regular file: no folder, pipe, socket or device.
        mtime: time of the last change, in nanoseconds since 1970.
        refused: why it must not be opened; empty if it may be.
    """

    name: str
    path: str
    is_file: bool = True
    size: int = 0
    mtime: int = 0
    refused: str = ""


def local_items(folder: str, *roots: str) -> Iterator[FolderItem]:
    """The items of a local folder; links to outside of the resolved roots are refused.

    Arrow's own listing would follow all links.

    Raises:
        OSError: the folder cannot be listed.
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
                continue  # deleted since it was listed
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
    """Why a link must not be followed; empty if its target is below one of the roots."""
    try:
        target = Path(link).resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError):
        return "a link that leads nowhere: remove it, or land the file itself"
    except (RuntimeError, OSError) as error:
        # Before Python 3.13, a loop of links is a RuntimeError.
        if isinstance(error, RuntimeError) or error.errno == errno.ELOOP:
            return "a link that leads to itself: remove it"
        return error_text(error)
    if not any(map(target.is_relative_to, roots)):
        return "a link that leads out of the landing: land the file itself"
    return ""


def error_text(error: OSError) -> str:
    """A file system error as text, without the path."""
    return f"{type(error).__name__}: {error.strerror or error}"


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


CONTROL_FILE = "_control.json"
#: Characters of a glob, which must be escaped for Spark.
GLOB = re.compile(r"[\\{}\[\]*?]")
_READABLE_NAME = re.compile(r".*\.((jsonl|json|csv|tbl)(\.gz)?|parquet)", re.DOTALL)
_DATE = re.compile(r"(?<!\d)(\d{4})\D?(\d{2})\D?(\d{2})(?!\d)")
#: Suffixes of unfinished files.
_UNFINISHED = (".tmp", ".part")
#: Suffixes of uncompressed files, and how many bytes a short line has in them and in other files.
_TEXT = (".jsonl", ".json", ".csv", ".tbl")
_LINE_BYTES, _COMPRESSED_LINE_BYTES = 50, 10
#: Suffix of the empty objects by which some writers mark a folder of an object store.
FOLDER_MARK = "_$folder$"
#: The folders of hours in an arrival day's folder, for a source that lands hourly.
HOUR_FOLDERS = tuple(f"hour={n:02}" for n in range(24))


def folder_name(day: date) -> str:
    """The name of an arrival day's folder."""
    return f"arrival_date={day}"


def folder_of(source_file: str) -> str:
    """The arrival day's folder of a file, by the file's name in the tables."""
    return source_file.partition("/")[0]


class LandingError(RuntimeError):
    """The landing folder does not match the settings, or a landing file cannot be read."""


@dataclass(frozen=True)
class ListedFile:
    """One file of an arrival day, as listed.

    Attributes:
        source_file: its name in the tables; relative, so that moving the landing changes no row.
        path: path for Arrow's file system.
        mtime: time of the last change, in nanoseconds since 1970; 0 if unknown.
        refused: why it must not be opened; empty if it may be. A link to outside of the landing is
            refused, and so is a folder that cannot be listed: it has no name, or that of its hour.
    """

    source_file: str
    path: str
    size: int
    mtime: int
    refused: str = ""

    @property
    def name(self) -> str:
        """Its name in the day's folder, with that of its hour; empty for the folder itself."""
        return self.source_file.partition("/")[2]


@dataclass(frozen=True)
class DayFolder:
    """The content of an arrival day's folder, without hidden and unfinished files.

    Attributes:
        files: files of a known format, the control file, and refused items, by
            `ListedFile.source_file`.
        unknown_files: names of other files; they are not read, which is worth a warning.
        hours: names of the hour folders, if the source lands hourly.
    """

    files: Mapping[str, ListedFile]
    unknown_files: tuple[str, ...] = ()
    hours: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Listing:
    """The listed folders of arrival days; a day without a folder is left out.

    Attributes:
        requested_days: the listed arrival days; empty if all.
        source_name: the source, which is also its folder in the landing.
        strays: names of items beside the folders of arrival days; they are not read.
    """

    landing: str
    folders: Mapping[date, DayFolder]
    requested_days: frozenset[date] = frozenset()
    source_name: str = ""
    strays: tuple[str, ...] = ()

    def strays_of(self, day: date) -> list[str]:
        """The strays that may belong to an arrival day: those with its date in their name.

        For a day without a folder, strays without a date are included.
        """
        dates = {None} if day not in self.folders else set()
        return [name for name in self.strays if _date_in(name) in {day, *dates}]

    def estimate_rows(self) -> int:
        """Estimate the number of rows of all listed files from their sizes; rather too many."""
        files = (file for folder in self.folders.values() for file in folder.files.values())
        return sum(
            file.size // (_LINE_BYTES if file.name.endswith(_TEXT) else _COMPRESSED_LINE_BYTES)
            for file in files
        )

    def files_on(self, day: date) -> Mapping[str, ListedFile]:
        """The files of an arrival day; empty if it has no folder."""
        folder = self.folders.get(day)
        return folder.files if folder else {}

    def content_digests(self, entries: Iterable[ListedFile]) -> dict[ListedFile, str]:
        """Content digests (half a SHA-256, as hex); a process reads each file only once.

        A file that cannot be read has an empty digest, which equals no recorded one.
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


#: Cached digests of this process, by landing, source and listed file.
_digests: dict[tuple[str, str, ListedFile], str] = {}


def forget_digests() -> None:
    """Have each file read again: one of the same size and time may have other content since."""
    _digests.clear()


def _digest(filesystem: pafs.FileSystem, path: str) -> str:
    """The digest of the stored bytes, not of decompressed ones; empty if they cannot be read."""
    digest = hashlib.sha256()
    try:
        with filesystem.open_input_stream(path, compression=None) as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    except OSError:
        return ""
    return digest.hexdigest()[:32]


def list_landing(landing: str, source: Source, days: Iterable[date] | None = None) -> Listing:
    """List the folders of arrival days of a source, all at once if no days are given.

    No file is opened. An item that cannot be listed or must not be followed is refused by name: it
    affects only its own day.

    Raises:
        LandingError: the source has no folder, or one that cannot be listed: a wrong setting, not
            an empty day.
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
            listed, strays = _list_local(root, base, requested_days, source)
        else:
            listed, strays = _list_store(filesystem, base, requested_days, source)
    except PermissionError as error:
        raise LandingError(
            f"the folder {landing}/{name} cannot be listed ({error_text(error)}): let the user "
            "that this runs as list it. Nothing was written."
        ) from error
    folders = {day: _day_folder(day, items, hourly) for day, items in sorted(listed.items())}
    return Listing(landing, folders, requested_days or frozenset(), name, tuple(sorted(strays)))


#: Number of folders of a store listed at a time.
_LIST_THREADS = 16
#: By arrival day, the items of its folder, or why it cannot be listed. The name of an hour folder
#: ends with a slash, and the names of its items begin with it.
_Listed = dict[date, Iterable[FolderItem] | str]


def _list_local(
    root: str, base: str, days: Iterable[date] | None, source: Source
) -> tuple[_Listed, set[str]]:
    """List folders of arrival days of a local landing, and the strays.

    Of a part of a source, the folders of the part in these; what lies beside them is stray.
    """
    names = [path.name for path in Path(base).iterdir()]
    if days is None:
        days = filter(None, map(folder_day, names))
    # The folder of the source itself may be a link of the deployment; its items come from others.
    real = str(Path(base).resolve()), str(Path(root).resolve())
    listed: _Listed = {}
    for day in days:
        folder = f"{base}/{folder_name(day)}"
        path = f"{folder}{source.part_folder}"
        try:
            links = [link for link in (folder, path) if Path(link).is_symlink()]
            refused = link_problem(links[0], *real) if links else ""
            if source.part:
                beside = () if refused else (item.name for item in Path(folder).iterdir())
                names += _unknown_parts(source, day, beside)
            items = [] if refused else [*local_items(path, *real)]
        except FileNotFoundError:
            continue
        except OSError as error:
            refused = error_text(error)
        listed[day] = refused or [
            inner for item in items for inner in _with_hour(item, real, source.hourly)
        ]
    return listed, set(filter(_is_stray, names))


def _unknown_parts(source: Source, day: date, names: Iterable[str]) -> list[str]:
    """The items of an arrival day's folder that are the folder of no part; only the first tells."""
    if source.dimension is None or source.part != source.dimension.values[0]:
        return []
    known = {f"{source.dimension.name}={value}" for value in source.dimension.values}
    return [
        f"{folder_name(day)}/{name}"
        for name in names
        if name not in known and (name == CONTROL_FILE or not _is_hidden(name))
    ]


def _with_hour(item: FolderItem, roots: tuple[str, ...], hourly: bool) -> Iterator[FolderItem]:
    """An item of an arrival day's folder; for an hour folder, its items as well."""
    if not hourly or item.name not in HOUR_FOLDERS:
        yield item
        return
    folder, inside = replace(item, name=f"{item.name}/"), list[FolderItem]()
    try:
        inside = [] if item.refused else [*local_items(item.path, *roots)]
    except FileNotFoundError:
        return  # deleted since it was listed
    except OSError as error:
        folder = replace(folder, refused=error_text(error))
    yield folder
    yield from (replace(inner, name=folder.name + inner.name) for inner in inside)


def _list_store(
    filesystem: pafs.FileSystem, base: str, days: Collection[date] | None, source: Source
) -> tuple[_Listed, set[str]]:
    """List folders of arrival days of an object store, and the strays.

    A store has no links, and an access error concerns all folders. As a request lists a thousand
    names, strays are listed only if a day has no folder.
    """
    if days is not None:
        # One request a day; most of its time is network latency.
        with ThreadPoolExecutor(_LIST_THREADS) as pool:
            futures = {
                day: pool.submit(_list_store_folder, filesystem, base, day, source) for day in days
            }
        results = {day: listed.result() for day, listed in futures.items()}
        existing: _Listed = {day: items for day, items in results.items() if items is not None}
        if existing.keys() == {*days}:
            return existing, set()
        beside = filesystem.get_file_info(pafs.FileSelector(base))
        return existing, {info.base_name for info in beside if _is_stray_object(info)}
    strays = set()
    inside: dict[date, list[pafs.FileInfo]] = {}
    part = source.part_folder.removeprefix("/")
    for info in filesystem.get_file_info(pafs.FileSelector(base, recursive=True)):
        name, _, within = info.path.removeprefix(f"{base}/").partition("/")
        arrival = folder_day(name)
        if not within and _is_stray_object(info):
            strays.add(name)
        elif arrival is not None and part:
            folder, _, file = within.partition("/")
            if folder == part:
                inside.setdefault(arrival, []).extend([info] if file else [])
            strays.update(_unknown_parts(source, arrival, [folder] if folder else []))
        elif arrival is not None:
            inside.setdefault(arrival, []).extend([info] if within else [])
    listed: _Listed = {
        day: _folder_items(infos, f"{base}/{folder_name(day)}{source.part_folder}", source.hourly)
        for day, infos in inside.items()
    }
    return listed, strays


def _list_store_folder(
    filesystem: pafs.FileSystem, base: str, day: date, source: Source
) -> Iterable[FolderItem] | None:
    """The items of an arrival day's folder; None if there is no folder."""
    folder = f"{base}/{folder_name(day)}{source.part_folder}"
    infos = filesystem.get_file_info(
        pafs.FileSelector(folder, allow_not_found=True, recursive=source.hourly)
    )
    if not infos and filesystem.get_file_info(folder).type != pafs.FileType.Directory:
        return None
    return _folder_items(infos, folder, source.hourly)


def _folder_items(
    infos: Iterable[pafs.FileInfo], folder: str, hourly: bool
) -> Iterable[FolderItem]:
    """The items of an arrival day's folder, from a recursive listing."""
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


def folder_day(folder: str) -> date | None:
    """The arrival day of a folder; None if it is not that of a day."""
    try:
        day = date.fromisoformat(folder.removeprefix("arrival_date="))
    except ValueError:
        return None
    # Python parses more forms of a date than those used in folder names.
    return day if folder == folder_name(day) else None


def _is_stray(name: str) -> bool:
    return folder_day(name) is None and not _is_hidden(name)


def _is_stray_object(info: pafs.FileInfo) -> bool:
    """Whether an object in the folder of a source is a stray, also a file named like a folder."""
    file = info.type == pafs.FileType.File
    return _is_stray(info.base_name) or (file and not _is_hidden(info.base_name))


def _date_in(name: str) -> date | None:
    """The date in a name, in any common form; None if there is none."""
    if match := _DATE.search(name):
        with suppress(ValueError):
            return date(*map(int, match.groups()))
    return None


def _day_folder(day: date, items: Iterable[FolderItem] | str, hourly: bool) -> DayFolder:
    """Split the items of a day's folder into files to read and unknown files.

    `items` is a text, the reason, if the folder could not be listed: it then stands for the folder.
    """
    within = f"{folder_name(day)}/"
    if isinstance(items, str):
        return DayFolder({within: ListedFile(within, "", 0, 0, items)})
    files, unknown, hours = {}, [], set()
    for item in sorted(items, key=lambda item: item.name):
        hour, _, name = item.name.rpartition("/")
        source_file = within + item.name
        if hour and not name:
            hours.add(hour)
            is_read = bool(item.refused)
        else:
            is_read = _is_read(item, name, hourly, hour)
        if is_read:
            refused = item.refused or ("" if item.is_file else "not a file") or _name_problem(item)
            files[source_file] = ListedFile(source_file, item.path, item.size, item.mtime, refused)
        elif name == CONTROL_FILE or (name and not _is_hidden(name)):
            unknown.append(source_file)
    return DayFolder(files, tuple(unknown), frozenset(hours))


def _is_read(item: FolderItem, name: str, hourly: bool, hour: str) -> bool:
    """Whether a file is read, or must be refused by name."""
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


def _name_problem(item: FolderItem) -> str:
    """Why Spark cannot open a file by its name; empty if it can."""
    if ":" in item.path.rpartition("/")[2] and GLOB.search(item.path):
        return "Spark opens no path with a colon and one of * ? [ ] { } \\: rename it"
    return ""


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) or name.endswith((*_UNFINISHED, FOLDER_MARK))
