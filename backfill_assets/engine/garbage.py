"""Less of the garbage collection, where there is no garbage."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_gc() -> Iterator[None]:
    """Without garbage collection, as where much is made of which nothing is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def tune_gc() -> None:
    """Look for garbage after 50,000 new objects, not 700, and not at the end of the process.

    What a process imports and defines lives to its end. To look through it took 0.4 seconds of the
    imports, and 0.8 seconds of the end.
    """
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
