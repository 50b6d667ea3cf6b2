"""Folders and URLs as Arrow file systems, for files listed, read or written without Spark."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from uuid import uuid4

import pyarrow.fs as pafs

from backfill_assets.spark.stores import ObjectStore, store_of


def in_object_store(url: str) -> bool:
    """Whether a folder lies in an object store."""
    return store_of(url) is not None


def open_store(url: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a local path or a URL, and the path in it."""
    if store := store_of(url):
        return _store_filesystem(store), store.path_of(url)
    return pafs.LocalFileSystem(), url


#: Options of a read in which Hadoop looks for no checksum files, in a file system of its own.
_WITHOUT_CHECKSUMS = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def read_options(urls: Iterable[str]) -> Mapping[str, str]:
    """The options with which Spark reads files, by their paths or URLs.

    Beside a local file, Hadoop looks for a checksum file `.NAME.crc`, and fails where the name has
    a colon: it takes what is before the colon for the scheme of a URL.
    """
    names = (url.rpartition("/")[2] for url in urls)
    return _WITHOUT_CHECKSUMS if any(":" in name for name in names) else {}


@cache
def _store_filesystem(store: ObjectStore) -> pafs.FileSystem:
    """The filesystem of a store, once for each process."""
    return store.create_writer() or _store_reader(store)


@cache
def _store_reader(store: ObjectStore) -> pafs.FileSystem:
    """The file system of Arrow's own for a store, once for each process."""
    return store.create_reader()


def delete_folder(filesystem: pafs.FileSystem, path: str) -> None:
    """Delete a folder with its files, if there is one.

    Raises:
        OSError: it cannot be deleted.
    """
    # On Google Cloud Storage, Arrow deletes the files and then misses the folder itself.
    with suppress(FileNotFoundError):
        filesystem.delete_dir(path)


def replace_file(folder: str, name: str, content: bytes) -> None:
    """Write a file atomically, in place of an existing one; a missing folder is created.

    Raises:
        OSError: it cannot be written.
    """
    filesystem, root = open_store(folder)
    filesystem.create_dir(root, recursive=True)
    # An object appears as a whole. Two local processes that write at once need different temporary
    # files.
    new_name = name if in_object_store(folder) else f".{uuid4().hex}-{name}"
    with filesystem.open_output_stream(f"{root}/{new_name}") as stream:
        stream.write(content)
    if new_name != name:
        filesystem.move(f"{root}/{new_name}", f"{root}/{name}")


def folder_filesystem(url: str) -> pafs.FileSystem:
    """A folder as a file system of Arrow's own, for reading a table by delta-rs.

    Arrow's threads may still use delta-rs's own file system, which is in Python, when the process
    exits; the process then aborts.
    """
    if store := store_of(url):
        return pafs.SubTreeFileSystem(store.path_of(url), _store_reader(store))
    return pafs.SubTreeFileSystem(url, pafs.LocalFileSystem())
