"""Folders and URLs as Arrow file systems, for what is listed, read or written without Spark."""

from __future__ import annotations

import re

import pyarrow.fs as pafs


def open_store(url: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a local path or a URL, and the path in it."""
    # Hadoop's names of the schemes; Arrow has its own for the same stores.
    url = re.sub(r"^s3[an]://", "s3://", url)
    if "://" not in url:
        return pafs.LocalFileSystem(), url
    filesystem, path = pafs.FileSystem.from_uri(url)
    return filesystem, path


def folder_of(url: str) -> pafs.FileSystem:
    """A folder as a file system of Arrow's own, for reading a table by delta-rs.

    From delta-rs's own, which is Python, Arrow's threads may still be on their way back when the
    process ends, and then it ends with an abort.
    """
    filesystem, path = open_store(url)
    return pafs.SubTreeFileSystem(path, filesystem)
