"""The commit files of a table's log: read, cached, and copied into a shallow clone.

A commit never changes, but with every night there is one more, and ten thousand small files are
minutes on an object store. What is to be told of a commit is decided by `entries`. While the
commits are there, nothing depends on the copy but the time that it takes to read. Of commits that
are gone, the copy is all that is left.

A fork begins with the commits of its table, up to a version, and goes on with commits of its own.
It names its data files by where they lie; those that it adds lie with the files of the table.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import pyarrow.fs as pafs

from backfill_assets.spark.filesystems import on_s3, open_store, replace_file

#: Under the table. Delta, VACUUM included, passes over what begins with an underscore.
_FOLDER, _CACHE_FILE = "_backfill_assets", "commits.jsonl.zst"
#: Who has had to read so many commit files writes the copy.
_MIN_READS_TO_CACHE = 100
_READERS = 16


class CommitLines(NamedTuple):
    """What is known of commits.

    Attributes:
        lines: what is told of them, in ascending order; of many there is nothing to tell.
        missing_versions: versions of which neither the commit nor a copy is there.
    """

    lines: list[bytes]
    missing_versions: list[int]


@dataclass(frozen=True)
class _CacheContent:
    """What a copy has.

    Attributes:
        version: up to which it tells of all commits; -1 if of none.
        lines: what it tells of them.
        missing_versions: versions that were lost when it was made.
        fallback_lines: by version, lines in another form, for commits that are no longer there.
        fallback_versions: versions of which there is a line in `fallback_lines` or nothing to tell.
    """

    version: int = -1
    lines: Sequence[bytes] = ()
    missing_versions: Sequence[int] = ()
    fallback_lines: Mapping[int, bytes] = field(default_factory=dict)
    fallback_versions: frozenset[int] = frozenset()


@dataclass(frozen=True)
class CommitLog:
    """The commit files of one table.

    Attributes:
        url: where the table lives.
    """

    url: str

    @cached_property
    def _location(self) -> tuple[pafs.FileSystem, str]:
        return open_store(self.url)

    def read_commit(self, version: int) -> bytes | None:
        """A commit's file; none if there is none."""
        filesystem, path = self._location
        try:
            with filesystem.open_input_stream(f"{path}/_delta_log/{version:020d}.json") as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def list_versions(self) -> set[int]:
        """The versions whose commit files are there."""
        filesystem, path = self._location
        listed = filesystem.get_file_info(
            pafs.FileSelector(f"{path}/_delta_log", allow_not_found=True)
        )
        names = (re.fullmatch(r"(\d{20})\.json", file.base_name) for file in listed)
        return {int(name[1]) for name in names if name}


@dataclass(frozen=True)
class CachedCommitLog(CommitLog):
    """The commit files of one of our tables, and the copy of what they say.

    Attributes:
        encode_commit: what is told of a commit in a line of text, given its version and its file;
            none if nothing is.
        decode_version: the version that a line tells of; none if it can't be read.
        encoding_id: names what `encode_commit` tells, and changes with it: a copy in another form
            is used for commits only that are no longer there.
    """

    encode_commit: Callable[[int, bytes], bytes | None]
    decode_version: Callable[[bytes], int | None]
    encoding_id: str

    def has_commit(self, version: int) -> bool:
        """Whether a commit's file is there."""
        filesystem, path = self._location
        return bool(filesystem.get_file_info(f"{path}/_delta_log/{version:020d}.json").is_file)

    def oldest_version(self, upto: int) -> int:
        """The first version, of those up to one, whose commit file is there."""
        return 0 if self.has_commit(0) else min(self.list_versions(), default=upto)

    def commit_digest(self, version: int) -> str:
        """Tells a commit, and with it all before it, from any other; empty if it has no file.

        Commits have identifiers and names of files in them that are used but once.
        """
        text = self.read_commit(version)
        return hashlib.sha256(text).hexdigest() if text else ""

    def has_digest(self, version: int, digest: str) -> bool:
        """Whether a commit is still the one that was marked."""
        return bool(digest) and self.commit_digest(version) == digest

    def read_lines(self, since: int | None, upto: int, table_id: str) -> CommitLines:
        """What is told of the commits after one version (of all, if none) up to another.

        Args:
            since: the version.
            upto: the other.
            table_id: Delta's identifier of the table.
        """
        cache = self._read_cache(upto, table_id) if since is None else _CacheContent(since)
        # What was lost may have been put back.
        restored = (
            self.list_versions().intersection(cache.missing_versions)
            if cache.missing_versions
            else set()
        )
        versions = [*sorted(restored), *range(cache.version + 1, upto + 1)]
        commits = CommitLines(
            [*cache.lines],
            [version for version in cache.missing_versions if version not in restored],
        )
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
        if since is None and len(versions) >= _MIN_READS_TO_CACHE:
            self._write_cache(commits, upto, table_id)
        return commits

    def _read_cache(self, upto: int, table_id: str) -> _CacheContent:
        """What the copy has; nothing if it is of no use.

        It is not where it speaks of commits that this table does not have (it was made again, or
        put back from a backup), and where it is damaged.
        """
        filesystem, path = self._location
        try:
            with filesystem.open_input_stream(f"{path}/{_FOLDER}/{_CACHE_FILE}") as stream:
                *lines, last = stream.read().splitlines()
            about = json.loads(last)
            version, digest, missing = about["version"], about["mark"], about.get("lost", [])
            if version > upto or not self._is_own_cache(
                version, digest, about.get("table"), table_id
            ):
                return _CacheContent()
            if about["form"] == self.encoding_id:
                return _CacheContent(version, lines, missing)
        except (OSError, ValueError, KeyError, TypeError):
            return _CacheContent()
        spare = {
            number: line for line in lines if (number := self.decode_version(line)) is not None
        }
        return _CacheContent(
            fallback_lines=spare,
            fallback_versions=frozenset(range(version + 1)).difference(missing),
        )

    def _is_own_cache(
        self, version: int, digest: str, cached_table_id: str | None, table_id: str
    ) -> bool:
        """Whether a copy is of this table: by its last commit, or if that is gone, by the id."""
        current = self.commit_digest(version)
        return current == digest if current and digest else cached_table_id == table_id

    def _write_cache(self, commits: CommitLines, upto: int, table_id: str) -> None:
        about = {
            "form": self.encoding_id,
            "version": upto,
            "mark": self.commit_digest(upto),
            "table": table_id,
            "lost": commits.missing_versions,
        }
        content = b"\n".join([*commits.lines, json.dumps(about).encode()])
        # Who may only read here goes without.
        with suppress(OSError, NotImplementedError):
            replace_file(f"{self.url}/{_FOLDER}", _CACHE_FILE, content)


_THREADS = 16


class CloneError(RuntimeError):
    """A table cannot be forked; it is as it was."""


def folder_uri(url: str) -> str:
    """A folder as the log of another table names it, not encoded."""
    return url if on_s3(url) else f"file://{url}"


def file_uri(url: str, path: str) -> str:
    """A data file of a table as the log of another one names it.

    Args:
        url: where the table lives.
        path: as its own log has it, relative.
    """
    return f"{quote(folder_uri(url), safe=':/=')}/{path}"


def resolve_path(url: str, path: str) -> str:
    """Where a data file lies, as a path or a URL that Spark and `open_store` take.

    Args:
        url: of the table whose log names the file.
        path: as the log has it; that of a fork is absolute.
    """
    path = unquote(path)
    if path.startswith("file://"):
        return path.removeprefix("file://")
    return path if on_s3(path) else f"{url}/{path}"


def shallow_clone(url: str, destination: str, version: int) -> None:
    """Make a fork of a table as of a version.

    Args:
        url: where the table lives.
        destination: where the fork is to live; nothing is there, or what a killed fork has left.
        version: the version.

    Raises:
        ForkError: commits are gone, or the table has features that a fork cannot have.
    """
    commits = CommitLog(url)
    filesystem, path = open_store(destination)
    filesystem.create_dir(f"{path}/_delta_log", recursive=True)

    def copy_commit(number: int) -> None:
        text = commits.read_commit(number)
        if text is None:
            raise CloneError(
                f"{url}: the commit of version {number} is gone, so there can be no fork of the "
                "table. The table is as it was. Somebody has cut its log; move the folder away and "
                "materialize all of its days to get a table with a whole log."
            )
        lines = b"\n".join(_with_absolute_paths(url, number, text)) + b"\n"
        with filesystem.open_output_stream(f"{path}/_delta_log/{number:020d}.json") as stream:
            stream.write(lines)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(copy_commit, range(version + 1)))


def _with_absolute_paths(url: str, version: int, text: bytes) -> Iterator[bytes]:
    """The lines of a commit, with data files by where they lie."""
    for line in text.splitlines():
        action = json.loads(line)
        if not action.keys() & {"add", "remove", "protocol"}:
            yield line
            continue
        if (protocol := action.get("protocol")) and protocol["minReaderVersion"] > 1:
            features = ", ".join(protocol.get("readerFeatures") or ()) or "column mapping"
            raise CloneError(
                f"{url}: version {version} turned on {features}, of which a fork would be another "
                "table. The table is as it was. Drop the feature (ALTER TABLE ... DROP FEATURE)."
            )
        for kind in action.keys() & {"add", "remove"}:
            file = action[kind]
            file["path"] = file_uri(url, file["path"])
        yield json.dumps(action).encode()


def added_files(url: str, since: int) -> dict[str, Mapping[str, Any]]:
    """What commits after a version have added: by where a data file lies, what its commit says.

    Files that were replaced since are among them.
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
