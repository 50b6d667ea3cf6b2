"""Where Spark puts what does not fit into memory: a folder for each engine, under DAGSTER_HOME.

A cleaner of /tmp that removes files of an engine that runs makes each job of it fail.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

_LOCAL_DIR = "spark.local.dir"
_TMPDIR_OPTION = "-Djava.io.tmpdir="


class ScratchDir:
    """A folder of one engine's own, until the process that made this ends.

    Attributes:
        folder: nobody else can read it, or write to it.
    """

    def __init__(self, home: Path) -> None:
        """Make the folder, and remove those of engines that are gone.

        Args:
            home: DAGSTER_HOME; `scratch` in it holds the folders of all its engines.
        """
        self._root = home.resolve() / "scratch"
        self.folder = self._root / f"engine-{uuid4().hex}"
        self._lock: int | None = None
        self.recreate()

    def recreate(self) -> None:
        """Empty the folder for the next engine, or make it again if somebody removed it."""
        self._root.mkdir(parents=True, exist_ok=True)
        if self._lock is not None:
            os.close(self._lock)
        with _lock_folder(self._root):  # nobody takes a new folder, not yet locked, for a left one
            for old_folder in self._root.iterdir():
                with suppress(OSError), _lock_folder(old_folder, wait=False):
                    shutil.rmtree(old_folder, ignore_errors=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            # The lock ends with the process, however that ends.
            self._lock = os.open(self.folder, os.O_RDONLY)
            with suppress(OSError):  # where nothing can be locked, nothing is taken for left
                fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._known_blocks: set[Path] = set()

    def with_local_dir(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Spark's configuration, with this folder where it does not name one itself.

        Args:
            config: of a driver whose JVM is to start.
        """
        options = config.get(_JAVA_OPTIONS, "")
        # Spark cuts the options of a JVM at each space.
        if _TMPDIR_OPTION not in options and " " not in str(self.folder):
            options = f"{options} {_TMPDIR_OPTION}{self.folder}".strip()
        extra = {_JAVA_OPTIONS: options} if options else {}
        return {_LOCAL_DIR: str(self.folder), **config, **extra}

    def is_complete(self) -> bool:
        """Whether all that Spark's blocks lie in is still there: Spark makes it once only."""
        blocks = {*self.folder.glob("blockmgr-*"), *self.folder.glob("blockmgr-*/*")}
        self._known_blocks |= blocks
        return blocks == self._known_blocks


@contextmanager
def _lock_folder(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a folder; with `wait`, do without where nothing can be locked.

    Raises:
        OSError: it is no folder; or somebody has its lock, or it has none, without `wait`.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if wait:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
