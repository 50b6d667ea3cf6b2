"""The commit files of a table's log, and a copy of what they say, so that each is read but once.

A commit never changes, but with every night there is one more, and ten thousand small files are
minutes on an object store. What is to be told of a commit is decided by `records`. Nothing depends
on the copy but the time that it takes to read: it may be deleted at any moment.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import pyarrow.fs as pafs

from backfill_assets.stores import open_store

#: Under the table. Delta, VACUUM included, passes over what begins with an underscore.
_FOLDER, _COPY = "_backfill_assets", "commits.jsonl.zst"
#: Who has had to read so many commit files writes the copy.
_ENOUGH = 100
_READERS = 16


@dataclass(frozen=True)
class CommitFiles:
    """The commit files of one table.

    Attributes:
        url: where the table lives.
        line_of: what is told of a commit in a line of text, given its version and its file; none
            if nothing is.
        form: names what `line_of` tells, and changes with it: a copy in another form is not used.
    """

    url: str
    line_of: Callable[[int, bytes], bytes | None]
    form: str

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

    def mark(self, version: int) -> str:
        """Tells a commit, and with it all before it, from any other; empty if it has no file.

        Commits have identifiers and names of files in them that are used but once.
        """
        text = self.text(version)
        return hashlib.sha256(text).hexdigest() if text else ""

    def is_marked(self, version: int, mark: str) -> bool:
        """Whether a commit is still the one that was marked."""
        return bool(mark) and self.mark(version) == mark

    def lines(self, since: int | None, upto: int) -> list[bytes]:
        """What is told of the commits after one version (of all, if none) up to another, in order.

        Commits whose files are not there any more are left out.
        """
        lines: list[bytes] = []
        after = since
        if after is None:
            after, lines = self._copied(upto)
        versions = range(after + 1, upto + 1)
        with ThreadPoolExecutor(_READERS) as readers:
            for version, text in zip(versions, readers.map(self.text, versions), strict=True):
                if text and (line := self.line_of(version, text)):
                    lines.append(line)
        if since is None and len(versions) >= _ENOUGH:
            self._copy(lines, upto)
        return lines

    def _copied(self, upto: int) -> tuple[int, list[bytes]]:
        """The copy's lines, and the version that they go up to; none if it is of no use.

        It is not where it speaks of commits that this table does not have (it was made again, or
        put back from a backup), where it is in another form, and where it is damaged.
        """
        filesystem, path = self._store
        try:
            with filesystem.open_input_stream(f"{path}/{_FOLDER}/{_COPY}") as stream:
                *lines, last = stream.read().splitlines()
            about = json.loads(last)
            version, mark = about["version"], about["mark"]
            if about["form"] == self.form and version <= upto and self.is_marked(version, mark):
                return version, lines
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return -1, []

    def _copy(self, lines: Sequence[bytes], upto: int) -> None:
        filesystem, path = self._store
        folder = f"{path}/{_FOLDER}"
        about = {"form": self.form, "version": upto, "mark": self.mark(upto)}
        # Several may write at once, and one may be killed: nobody sees half a copy.
        unfinished = f"{folder}/.{uuid.uuid4().hex}-{_COPY}"
        try:
            filesystem.create_dir(folder)
            with filesystem.open_output_stream(unfinished) as stream:
                stream.write(b"\n".join([*lines, json.dumps(about).encode()]))
            filesystem.move(unfinished, f"{folder}/{_COPY}")
        except (OSError, NotImplementedError):
            return  # who may only read here goes without
