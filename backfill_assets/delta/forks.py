"""Forks of tables: a log of its own over the same data files, so that nothing is copied but a log.

A fork begins with the commits of its table, up to a version, and goes on with commits of its own.
It names its data files by where they lie; those that it adds lie with the files of the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, unquote

from backfill_assets.delta.commit_files import CommitLog
from backfill_assets.engine.stores import on_s3, open_store

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
