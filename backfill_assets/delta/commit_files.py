"""The commit files of a table's log, and a copy of what they say, so that each is read but once.

A commit never changes, but with every night there is one more, and ten thousand small files are
minutes on an object store. What is to be told of a commit is decided by `entries`. While the
commits are there, nothing depends on the copy but the time that it takes to read. Of commits that
are gone, the copy is all that is left.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import pyarrow.fs as pafs

from backfill_assets.engine.stores import open_store, put_in_place

#: Under the table. Delta, VACUUM included, passes over what begins with an underscore.
_FOLDER, _COPY = "_backfill_assets", "commits.jsonl.zst"
#: Who has had to read so many commit files writes the copy.
_ENOUGH = 100
_READERS = 16


class Lines(NamedTuple):
    """What is known of commits.

    Attributes:
        lines: what is told of them, in ascending order; of many there is nothing to tell.
        lost: versions of which neither the commit nor a copy is there.
    """

    lines: list[bytes]
    lost: list[int]


@dataclass(frozen=True)
class _Copied:
    """What a copy has.

    Attributes:
        version: up to which it tells of all commits; -1 if of none.
        lines: what it tells of them.
        lost: versions that were lost when it was made.
        spare: by version, lines in another form, for commits that are no longer there.
        spares: versions of which there is a line in `spare` or nothing to tell.
    """

    version: int = -1
    lines: Sequence[bytes] = ()
    lost: Sequence[int] = ()
    spare: Mapping[int, bytes] = field(default_factory=dict)
    spares: frozenset[int] = frozenset()


@dataclass(frozen=True)
class CommitLog:
    """The commit files of one table.

    Attributes:
        url: where the table lives.
    """

    url: str

    @cached_property
    def _store(self) -> tuple[pafs.FileSystem, str]:
        return open_store(self.url)

    def text(self, version: int) -> bytes | None:
        """A commit's file; none if there is none."""
        filesystem, path = self._store
        try:
            with filesystem.open_input_stream(f"{path}/_delta_log/{version:020d}.json") as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def there(self) -> set[int]:
        """The versions whose commit files are there."""
        filesystem, path = self._store
        listed = filesystem.get_file_info(
            pafs.FileSelector(f"{path}/_delta_log", allow_not_found=True)
        )
        names = (re.fullmatch(r"(\d{20})\.json", file.base_name) for file in listed)
        return {int(name[1]) for name in names if name}


@dataclass(frozen=True)
class CommitFiles(CommitLog):
    """The commit files of one of our tables, and the copy of what they say.

    Attributes:
        line_of: what is told of a commit in a line of text, given its version and its file; none
            if nothing is.
        version_of: the version that a line tells of; none if it can't be read.
        form: names what `line_of` tells, and changes with it: a copy in another form is used for
            commits only that are no longer there.
    """

    line_of: Callable[[int, bytes], bytes | None]
    version_of: Callable[[bytes], int | None]
    form: str

    def has(self, version: int) -> bool:
        """Whether a commit's file is there."""
        filesystem, path = self._store
        return bool(filesystem.get_file_info(f"{path}/_delta_log/{version:020d}.json").is_file)

    def oldest(self, upto: int) -> int:
        """The first version, of those up to one, whose commit file is there."""
        return 0 if self.has(0) else min(self.there(), default=upto)

    def mark(self, version: int) -> str:
        """Tells a commit, and with it all before it, from any other; empty if it has no file.

        Commits have identifiers and names of files in them that are used but once.
        """
        text = self.text(version)
        return hashlib.sha256(text).hexdigest() if text else ""

    def is_marked(self, version: int, mark: str) -> bool:
        """Whether a commit is still the one that was marked."""
        return bool(mark) and self.mark(version) == mark

    def lines(self, since: int | None, upto: int, table_id: str) -> Lines:
        """What is told of the commits after one version (of all, if none) up to another.

        Args:
            since: the version.
            upto: the other.
            table_id: Delta's identifier of the table.
        """
        copy = self._copied(upto, table_id) if since is None else _Copied(since)
        # What was lost may have been put back.
        back = self.there().intersection(copy.lost) if copy.lost else set()
        versions = [*sorted(back), *range(copy.version + 1, upto + 1)]
        found = Lines([*copy.lines], [version for version in copy.lost if version not in back])
        with ThreadPoolExecutor(_READERS) as readers:
            for version, text in zip(versions, readers.map(self.text, versions), strict=True):
                if text is None and version not in copy.spares:
                    found.lost.append(version)
                    continue
                line = self.line_of(version, text) if text else copy.spare.get(version)
                if line:
                    found.lines.append(line)
        if back:
            found.lines.sort(key=lambda line: self.version_of(line) or 0)
        if since is None and len(versions) >= _ENOUGH:
            self._copy(found, upto, table_id)
        return found

    def _copied(self, upto: int, table_id: str) -> _Copied:
        """What the copy has; nothing if it is of no use.

        It is not where it speaks of commits that this table does not have (it was made again, or
        put back from a backup), and where it is damaged.
        """
        filesystem, path = self._store
        try:
            with filesystem.open_input_stream(f"{path}/{_FOLDER}/{_COPY}") as stream:
                *lines, last = stream.read().splitlines()
            about = json.loads(last)
            version, mark, lost = about["version"], about["mark"], about.get("lost", [])
            if version > upto or not self._is_ours(version, mark, about.get("table"), table_id):
                return _Copied()
            if about["form"] == self.form:
                return _Copied(version, lines, lost)
        except (OSError, ValueError, KeyError, TypeError):
            return _Copied()
        spare = {of: line for line in lines if (of := self.version_of(line)) is not None}
        return _Copied(spare=spare, spares=frozenset(range(version + 1)).difference(lost))

    def _is_ours(self, version: int, mark: str, of: str | None, table_id: str) -> bool:
        """Whether a copy is of this table: by its last commit, or if that is gone, by the id."""
        now = self.mark(version)
        return now == mark if now and mark else of == table_id

    def _copy(self, found: Lines, upto: int, table_id: str) -> None:
        about = {
            "form": self.form,
            "version": upto,
            "mark": self.mark(upto),
            "table": table_id,
            "lost": found.lost,
        }
        content = b"\n".join([*found.lines, json.dumps(about).encode()])
        # Who may only read here goes without.
        with suppress(OSError, NotImplementedError):
            put_in_place(f"{self.url}/{_FOLDER}", _COPY, content)
