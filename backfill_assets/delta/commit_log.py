"""The commit files of a table's log: read, cached, and copied into a shallow clone.

Commits never change, but each night adds one, and reading ten thousand small files takes minutes on
an object store. So the lines encoded by `records.encode_commit` are cached in one file. While the
commit files exist, the cache only saves time; of deleted commits, it is the only record.

A shallow clone starts with the commits of its table up to a version, and continues with its own. It
names data files by absolute paths; new data files are written into the folder of the table.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import pyarrow.fs as pafs

from backfill_assets.spark.filesystems import in_object_store, open_store, replace_file

#: In the table's folder; of tables of others, in the warehouse. Delta and VACUUM ignore names that
#: begin with an underscore.
CACHE_FOLDER, _CACHE_FILE = "_backfill_assets", "commits.jsonl.zst"
#: After reading so many commit files, write the cache.
_MIN_READS_TO_CACHE = 100
#: The same of a table of others, which may delete its old commits within days.
_MIN_READS_OF_OTHERS = 10
_READERS = 16


class CommitLines(NamedTuple):
    """Encoded commits in ascending order, and versions found neither in the log nor in the cache.

    Many commits have no line.
    """

    lines: list[bytes]
    missing_versions: list[int]


@dataclass(frozen=True)
class _CacheContent:
    """The content of the cache.

    Attributes:
        version: the last version that the cache covers; -1 if none.
        lines: the encoded commits.
        missing_versions: versions that were already missing when the cache was written.
        fallback_lines: by version, lines in another encoding, used for deleted commits.
        fallback_versions: versions covered by `fallback_lines`, those without a line included.
    """

    version: int = -1
    lines: Sequence[bytes] = ()
    missing_versions: Sequence[int] = ()
    fallback_lines: Mapping[int, bytes] = field(default_factory=dict)
    fallback_versions: frozenset[int] = frozenset()


@dataclass(frozen=True)
class CommitLog:
    """The commit files of one table."""

    url: str

    @cached_property
    def _location(self) -> tuple[pafs.FileSystem, str]:
        return open_store(self.url)

    def read_commit(self, version: int) -> bytes | None:
        """The content of a commit file; None if it does not exist."""
        filesystem, path = self._location
        try:
            with filesystem.open_input_stream(f"{path}/_delta_log/{version:020d}.json") as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def list_versions(self) -> set[int]:
        """The versions whose commit files exist."""
        filesystem, path = self._location
        listed = filesystem.get_file_info(
            pafs.FileSelector(f"{path}/_delta_log", allow_not_found=True)
        )
        names = (re.fullmatch(r"(\d{20})\.json", file.base_name) for file in listed)
        return {int(name[1]) for name in names if name}


@dataclass(frozen=True)
class CachedCommitLog(CommitLog):
    """The commit files of a table, with their cache.

    Attributes:
        encode_commit: encodes a commit as a line, from its version and file; None for no line.
        decode_version: the version of a line; None if it cannot be read.
        encoding_id: identifies the encoding; a cache in another encoding is used only for deleted
            commits.
        cache_of_others: the folder of the cache of a table that others write; one of ours has it
            in its own folder.
    """

    encode_commit: Callable[[int, bytes], bytes | None]
    decode_version: Callable[[bytes], int | None]
    encoding_id: str
    cache_of_others: str = ""

    @property
    def _cache_folder(self) -> str:
        return self.cache_of_others or f"{self.url}/{CACHE_FOLDER}"

    def has_commit(self, version: int) -> bool:
        """Whether the commit file exists."""
        filesystem, path = self._location
        return bool(filesystem.get_file_info(f"{path}/_delta_log/{version:020d}.json").is_file)

    def oldest_version(self, upto: int) -> int:
        """The first version up to `upto` whose commit file exists."""
        return 0 if self.has_commit(0) else min(self.list_versions(), default=upto)

    def commit_digest(self, version: int) -> str:
        """Identifies a commit and all commits before it; empty if the file does not exist.

        Commits contain ids and file names that are used only once.
        """
        text = self.read_commit(version)
        return hashlib.sha256(text).hexdigest() if text else ""

    def has_digest(self, version: int, digest: str) -> bool:
        """Whether the commit of a version is still the one with this digest."""
        return bool(digest) and self.commit_digest(version) == digest

    def read_lines(self, since: int | None, upto: int, table_id: str) -> CommitLines:
        """Read the lines of the commits after `since` (of all if None) up to `upto`."""
        cache = self._read_cache(upto, table_id) if since is None else _CacheContent(since)
        # Missing commit files may have been restored.
        restored = (
            self.list_versions().intersection(cache.missing_versions)
            if cache.missing_versions
            else set()
        )
        first, least = cache.version + 1, _MIN_READS_TO_CACHE
        if self.cache_of_others and since is None and not cache.fallback_versions:
            # Of a hundred thousand deleted commits, none is asked for.
            first, least = max(first, self.oldest_version(upto)), _MIN_READS_OF_OTHERS
        versions = [*sorted(restored), *range(first, upto + 1)]
        missing = {*cache.missing_versions, *range(cache.version + 1, first)} - restored
        commits = CommitLines([*cache.lines], sorted(missing))
        with ThreadPoolExecutor(_READERS) as readers:
            for version, text in zip(
                versions, readers.map(self.read_commit, versions), strict=True
            ):
                if text is None and version not in cache.fallback_versions:
                    commits.missing_versions.append(version)
                    continue
                line = (
                    self.encode_commit(version, text) if text else cache.fallback_lines.get(version)
                )
                if line:
                    commits.lines.append(line)
        if restored:
            commits.lines.sort(key=lambda line: self.decode_version(line) or 0)
        if since is None and len(versions) >= least:
            self._write_cache(commits, upto, table_id)
        return commits

    def _read_cache(self, upto: int, table_id: str) -> _CacheContent:
        """The content of the cache; empty if the cache cannot be used.

        It cannot be used if it is damaged, or covers commits that this table does not have: the
        table was created again, or restored from a backup.
        """
        filesystem, path = open_store(self._cache_folder)
        try:
            with filesystem.open_input_stream(f"{path}/{_CACHE_FILE}") as stream:
                *lines, last = stream.read().splitlines()
            description = json.loads(last)
            version, digest, missing = (
                description["version"],
                description["mark"],
                description.get("lost", []),
            )
            if version > upto or not self._is_own_cache(
                version, digest, description.get("table"), table_id
            ):
                return _CacheContent()
            if description["form"] == self.encoding_id:
                return _CacheContent(version, lines, missing)
        except (OSError, ValueError, KeyError, TypeError):
            return _CacheContent()
        fallback_lines = {
            number: line for line in lines if (number := self.decode_version(line)) is not None
        }
        return _CacheContent(
            fallback_lines=fallback_lines,
            fallback_versions=frozenset(range(version + 1)).difference(missing),
        )

    def _is_own_cache(
        self, version: int, digest: str, cached_table_id: str | None, table_id: str
    ) -> bool:
        """Whether the cache is of this table: by its last commit, or by the id if that is gone."""
        current = self.commit_digest(version)
        return current == digest if current and digest else cached_table_id == table_id

    def _write_cache(self, commits: CommitLines, upto: int, table_id: str) -> None:
        """Called after a full read; the last line describes the cache, for `_read_cache`."""
        description = {
            "form": self.encoding_id,
            "version": upto,
            "mark": self.commit_digest(upto),
            "table": table_id,
            "lost": commits.missing_versions,
        }
        content = b"\n".join([*commits.lines, json.dumps(description).encode()])
        # A reader without write access has no cache.
        with suppress(OSError, NotImplementedError):
            replace_file(self._cache_folder, _CACHE_FILE, content)


def changed_files(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    """The files that the lines of a commit add or remove; none if it changed no row (OPTIMIZE)."""
    for action in map(json.loads, lines):
        for kind in ("add", "remove"):
            if kind in action and action[kind].get("dataChange", True):
                yield action[kind]


_THREADS = 16


class CloneError(RuntimeError):
    """A table cannot be cloned; it is unchanged."""


def folder_uri(url: str) -> str:
    """A folder as another table's log names it, not percent-encoded."""
    return url if in_object_store(url) else f"file://{url}"


def file_uri(url: str, path: str) -> str:
    """A data file as another table's log names it; `path` is relative to `url`."""
    return f"{quote(folder_uri(url), safe=':/=')}/{path}"


def resolve_path(url: str, path: str) -> str:
    """A path in the log of the table at `url`, as a path or URL for Spark and `open_store`."""
    path = unquote(path)
    if path.startswith("file://"):
        return path.removeprefix("file://")
    return path if in_object_store(path) else f"{url}/{path}"


def shallow_clone(url: str, destination: str, version: int) -> None:
    """Clone a table as of a version, without its data files; a killed clone can be made again.

    Raises:
        CloneError: commits are missing, or the table has features that a clone cannot have.
    """
    commits = CommitLog(url)
    filesystem, path = open_store(destination)
    filesystem.create_dir(f"{path}/_delta_log", recursive=True)

    def copy_commit(number: int) -> None:
        """Write a commit to the clone's log, with absolute paths to the data files of the table."""
        text = commits.read_commit(number)
        if text is None:
            raise CloneError(
                f"{url}: the commit of version {number} is gone, so there can be no clone of the "
                "table. The table is as it was. Somebody has cut its log; move the folder away and "
                "materialize all of its days to get a table with a whole log."
            )
        lines = b"\n".join(_with_absolute_paths(url, number, text)) + b"\n"
        with filesystem.open_output_stream(f"{path}/_delta_log/{number:020d}.json") as stream:
            stream.write(lines)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(copy_commit, range(version + 1)))


def _with_absolute_paths(url: str, version: int, text: bytes) -> Iterator[bytes]:
    """The lines of a commit, with absolute paths of data files."""
    for line in text.splitlines():
        action = json.loads(line)
        if not action.keys() & {"add", "remove", "protocol"}:
            yield line
            continue
        if (protocol := action.get("protocol")) and protocol["minReaderVersion"] > 1:
            features = ", ".join(protocol.get("readerFeatures") or ()) or "column mapping"
            raise CloneError(
                f"{url}: version {version} turned on {features}, of which a clone would be another "
                "table. The table is as it was. Drop the feature (ALTER TABLE ... DROP FEATURE)."
            )
        for kind in action.keys() & {"add", "remove"}:
            file = action[kind]
            file["path"] = file_uri(url, file["path"])
        yield json.dumps(action).encode()


def added_files(url: str, since: int) -> dict[str, Mapping[str, Any]]:
    """By resolved path, the `add` actions of the commits after a version.

    Files that were replaced later are included.
    """
    commits = CommitLog(url)
    files: dict[str, Mapping[str, Any]] = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        for text in pool.map(
            commits.read_commit, sorted(v for v in commits.list_versions() if v > since)
        ):
            for line in (text or b"").splitlines():
                if b'"add"' in line and (file := json.loads(line).get("add")):
                    files[resolve_path(url, file["path"])] = file
    return files
